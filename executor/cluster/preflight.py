"""The preflight: before any group is made, do the hosts have what the ranks need, and do they reach one another?"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from executor.cluster.handshake import Card, address_towards, let_all_see
from executor.devices.open import Survey
from executor.host import Host
from executor.ranks.watchdog import Store, many
from executor.tensors import TORCH
from simpar.errors import RunFailed
from simpar.memory import memory, sequential
from simpar.program import Program
from simpar.units import format_size, format_time

RANK_BYTES: Final = 300 * 2**20
"""What a process holds before it holds a tensor: Python and torch's libraries."""
REACH: Final = 5.0
"""Seconds in which a host must answer another."""
APART: Final = 1.0
"""Seconds by which the wall clocks of hosts may differ before a note says so."""


@dataclass(frozen=True, slots=True)
class Place:
    """A host of a run.

    Arguments:
        host: what it has.
        ranks: those that run on it.
        cards: indices of the cards of its processes; the first speaks for it.
        devices: of the kind that the run asks for.
    """

    host: Host
    ranks: tuple[int, ...]
    cards: tuple[int, ...]
    devices: Survey = field(default_factory=Survey)

    def __str__(self) -> str:
        return f'{self.host.name} ({many("rank", self.ranks)})'


def places_of(cards: Sequence[Card], ranks: Sequence[Sequence[int]]) -> list[Place]:
    """The hosts of a run. Arguments: ``ranks`` that each card speaks for."""
    found: dict[str, list[int]] = {}
    for index, card in enumerate(cards):
        # By kernel and space of process ids: names may repeat.
        found.setdefault(card.process.host, []).append(index)
    return [
        Place(cards[of[0]].host, tuple(rank for index in of for rank in ranks[index]), tuple(of), cards[of[0]].devices)
        for of in found.values()
    ]


def preflight(
    store: Store, own: int, cards: Sequence[Card], places: Sequence[Place], needs: Sequence[int]
) -> tuple[str, ...]:
    """Check hosts and the network between them; all that have a card call it at once.

    Arguments:
        own: the index of the caller's card.
        needs: bytes of each rank, see ``bytes_of_ranks``.
    Returns notes. Raises ``RunFailed`` with everything that is wrong, the same on all.
    """
    problems = [*too_little(places, needs), *wrong_devices(places, needs)]
    if len(places) > 1:
        problems += unreachable(store, own, cards, places)
    if problems:
        let_all_see(store, own, range(len(cards)))
        raise RunFailed('\n'.join(problems))
    return (*crowded(places), *shared(places))


def bytes_of_ranks(program: Program, dtype: str = '') -> list[int]:
    """What each rank's process will hold at its peak: simpar's own estimate, and what a process holds without tensors.

    Arguments: ``dtype`` takes the place of every floating dtype of the program.
    """
    held = memory(sequential(program))
    wider = _wider(program, dtype)
    return [int(held.ranks[index].peak_bytes * wider) + RANK_BYTES for index in held.representative_of_rank.tolist()]


def _wider(program: Program, dtype: str) -> float:
    """How much more bytes numbers take in another dtype, at most."""
    if not dtype:
        return 1.0
    sizes = {TORCH[tensor.dtype].itemsize for tensor in program.tensors if TORCH[tensor.dtype].is_floating_point}
    return float(TORCH[dtype].itemsize / min(sizes, default=TORCH[dtype].itemsize))


def too_little(places: Sequence[Place], needs: Sequence[int]) -> list[str]:
    """What hosts lack, a line each. Arguments: ``needs``, bytes of each rank."""
    lines = []
    for place in places:
        need, free = sum(needs[rank] for rank in place.ranks), place.host.free
        if free and need > free:
            lines.append(
                f'{place} needs about {format_size(need)} of memory, but has {format_size(free)} free; give it fewer '
                'ranks or more memory, shard more, or start with --no-preflight'
            )
    return lines


def wrong_devices(places: Sequence[Place], needs: Sequence[int]) -> list[str]:
    """Hosts whose devices are missing, too few or too full, a line each. Arguments: ``needs``, bytes of each rank."""
    lines = []
    # A library that some ranks cannot use would leave the others waiting.
    mixed = len({len(place.ranks) > place.devices.count for place in places if place.devices.count}) > 1
    for place in places:
        found, ranks = place.devices, place.ranks
        if found.lacking:
            lines.append(f'{place}: {found.lacking}; install its driver and a torch for it, or leave the host out')
        if not found.count:
            continue
        if len(ranks) > found.count and (found.native or mixed):
            lines.append(
                f'{place} has {found.count} of {found.kind} for {len(ranks)} ranks; give it as many, '
                'or write --transport gloo'
            )
        for index, free in enumerate(found.free):
            need = sum(needs[rank] for rank in ranks[index :: found.count])
            if need > free:
                lines.append(
                    f'{place} needs about {format_size(need)} on {found.kind}:{index}, but {format_size(free)} are '
                    'free; end what else runs there, shard more, or start with --no-preflight'
                )
    return lines


def shared(places: Sequence[Place]) -> tuple[str, ...]:
    """Notes: hosts whose ranks share devices, and drivers that differ."""
    found = [f'{place} has {place.devices.count}' for place in places if 0 < place.devices.count < len(place.ranks)]
    notes = [f'more ranks than devices: {"; ".join(found)}; messages go by gloo through the host'] if found else []
    drivers = {place.devices.driver: place for place in places if place.devices.driver}
    if len(drivers) > 1:
        told = ', '.join(f'{version} on {place}' for version, place in drivers.items())
        notes.append(f'drivers of {places[0].devices.kind} differ: {told}')
    return tuple(notes)


def crowded(places: Sequence[Place]) -> tuple[str, ...]:
    """A note for all hosts with more ranks than cores."""
    found = [f'{place} has {place.host.cores} cores' for place in places if len(place.ranks) > place.host.cores]
    return (f'more ranks than cores: {"; ".join(found)}; ranks take turns, and times mean little',) if found else ()


def clocks_apart(places: Sequence[Place], moments: Mapping[int, float]) -> tuple[str, ...]:
    """A note where the hosts' wall clocks differ. Arguments: ``moments``, rank → its wall clock, all at one moment."""
    if len(places) < 2:
        return ()
    by = {place.host.name: moments[place.ranks[0]] for place in places}
    first, last = min(by, key=by.__getitem__), max(by, key=by.__getitem__)
    apart = by[last] - by[first]
    if apart <= APART:
        return ()
    what = f'the clock of {last} is {format_time(apart)} ahead of that of {first}'
    return (f'{what}: logs and files of the two are dated apart; times of ops are not, for they are aligned by pings',)


class Door:
    """A port of this host at which the other hosts knock; nobody answers but the kernel."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ':' in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.bind((address, 0))
        # The kernel completes a connection for us, as long as the queue has room.
        self._socket.listen(1024)
        self.address, self.port = self._socket.getsockname()[:2]

    def close(self) -> None:
        self._socket.close()


def knock(address: str, port: int, seconds: float = REACH) -> str:
    """Why a port of another host cannot be reached; empty where it can."""
    until = time.monotonic() + seconds
    while True:
        left = until - time.monotonic()
        try:
            with closing(socket.create_connection((address, port), timeout=max(left, 0.1))):
                return ''
        except OSError as error:
            # A cable that was just put in needs a moment; a firewall that rejects does so again.
            if left <= 0.5 or isinstance(error, TimeoutError):
                return 'no answer' if isinstance(error, TimeoutError) else error.strerror or str(error)
            time.sleep(0.2)


def unreachable(
    store: Store, own: int, cards: Sequence[Card], places: Sequence[Place], seconds: float = REACH
) -> list[str]:
    """Which hosts do not reach which, a line each; all that have a card call it at once and get the same.

    Arguments: ``seconds``, how long a host may take to answer.
    """
    mine = next(index for index, place in enumerate(places) if own in place.cards)
    if own == places[mine].cards[0]:
        with closing(_door(mine, cards, places)) as door:
            store.set(f'simpar/door/{mine}', f'{door.port} {door.address}')
            failed = '\n'.join(_failed(store, mine, places, seconds))
            store.set(f'simpar/unreachable/{mine}', failed or ' ')
            # The door stays open until all have knocked.
            store.wait([f'simpar/unreachable/{index}' for index in range(len(places))])
    told = [store.get(f'simpar/unreachable/{index}').decode().strip() for index in range(len(places))]
    remedy = 'open the ports between the hosts, or name the right interface by GLOO_SOCKET_IFNAME'
    return [f'{line}; {remedy}' for text in told for line in text.splitlines()]


def _door(mine: int, cards: Sequence[Card], places: Sequence[Place]) -> Door:
    others = [cards[place.cards[0]].address for index, place in enumerate(places) if index != mine]
    address = address_towards(others, os.environ.get('GLOO_SOCKET_IFNAME', ''))
    return Door(address or cards[places[mine].cards[0]].address)


def _failed(store: Store, mine: int, places: Sequence[Place], seconds: float) -> list[str]:
    """Which other hosts this one does not reach, and why."""

    def tried(index: int) -> str:
        port, _, address = store.get(f'simpar/door/{index}').decode().partition(' ')
        reason = knock(address, int(port), seconds)
        return f'{places[mine]} cannot reach {places[index]} at {address}: {reason}' if reason else ''

    others = [index for index in range(len(places)) if index != mine]
    with ThreadPoolExecutor(min(32, len(others))) as threads:
        return [line for line in threads.map(tried, others) if line]
