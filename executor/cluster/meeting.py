"""The meeting of ranks that somebody else has started: all must ask for the very same run, on hosts that can do it."""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import ipaddress
import json
import os
import platform
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from typing import Final

import numpy as np
import torch

from executor import data
from executor.cluster import Launch
from executor.devices.open import Survey, survey
from executor.host import Host, Process, this_host, this_process
from executor.ranks.watchdog import Store, many
from executor.state import INIT_TIMEOUT, Request, Stretch
from executor.tensors import TORCH
from simpar import __version__
from simpar.cost.costs import Costs
from simpar.errors import RunFailed
from simpar.hardware.net import Net
from simpar.memory import memory, sequential
from simpar.program import Program
from simpar.units import format_size, format_time

_SIOCGIFADDR: Final = 0x8915
_PORT: Final = 9
"""Any: nothing is sent there."""


def local_address(host: str) -> str:
    """The address from which packets to a host leave this one; empty where there is no route or no such name."""
    # Connecting a datagram socket sends nothing, but makes the kernel choose a route.
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, _PORT, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return ''


def loopback(address: str) -> bool:
    """Whether an address means the same host everywhere."""
    try:
        return ipaddress.ip_address(address.partition('%')[0]).is_loopback
    except ValueError:
        return False


def interface_of(address: str) -> str:
    """The interface that has an address of this host; empty where the kernel names none (then IPv6, or not Linux)."""
    return next((name for _, name in socket.if_nameindex() if address_of(name) == address), '')


def address_of(interface: str) -> str:
    """The address of an interface; empty where it is down or has none that the kernel tells (IPv6, or not Linux)."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack('256s', interface.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    return ''


def interface_to(addresses: list[str]) -> str:
    """The interface towards the first of some hosts that is reached over a network; empty where none is.

    Arguments: ``addresses``, of the store's host first, then of ranks on other hosts.
    """
    return next((name for address in _over_a_network(addresses) if (name := interface_of(address))), '')


def address_towards(addresses: list[str], interface: str = '') -> str:
    """This host's address towards the first of some hosts that is reached over a network; empty where none is.

    Arguments: ``interface``, whose address it is to be, where the user has chosen one.
    """
    return (interface and address_of(interface)) or next(_over_a_network(addresses), '')


def _over_a_network(addresses: list[str]) -> Iterator[str]:
    for address in addresses:
        local = local_address(address)
        if local and not loopback(local):
            yield local


# The handshake of ranks that somebody else has started: before any collective, all must ask for the very same run.

LINGER: Final = 5.0
"""Seconds for which rank 0, which may serve the store, waits until all have read why the run does not begin."""
POLL: Final = 0.02


@dataclass(frozen=True, slots=True)
class Card:
    """What a rank says of itself.

    Arguments:
        asked: topic → what this rank was asked to run, in words or as a digest; equal on all ranks.
        process: where it runs.
        address: the address from which it reaches the store.
        refusal: why it will not run; empty where it will.
        host: what its host has.
        devices: of the kind that the run asks for.
    """

    asked: Mapping[str, str]
    process: Process
    address: str = ''
    refusal: str = ''
    host: Host = field(default_factory=this_host)
    devices: Survey = field(default_factory=Survey)

    def packed(self) -> str:
        """The card as JSON."""
        of_process, of_host = [self.process.host, self.process.pid], [self.host.name, self.host.cores, self.host.free]
        return json.dumps([dict(self.asked), of_process, self.address, self.refusal, of_host, asdict(self.devices)])

    @classmethod
    def read(cls, text: str) -> Card:
        """The card of a JSON text."""
        topics, (host, pid), address, refusal, of_host, devices = json.loads(text)
        device_survey = Survey(**{**devices, 'free': tuple(devices['free'])})
        return cls(topics, Process(host, pid), address, refusal, Host(*of_host), device_survey)


def asked(program: Program, request: Request, net: Net) -> dict[str, str]:
    """What must be equal on all ranks, topic by topic; the program comes last, since any other topic may explain it."""
    return {
        'ranks': str(program.world),
        **software(),
        'seed': str(request.seed),
        'steps': str(request.steps),
        'dtype': request.dtype or "the job's own",
        'compute': request.compute,
        'work queues': str(request.queues or 'not asked for'),
        'network': str(net),
        'device': f'{request.device} {request.transport}'.strip(),
        'data (DATA_PATH)': _data(program),
        'saving of the state': 'on' if request.keep else 'off',
        **_stretch(request.stretch),
        'costs': _digest_of_costs(request.costs),
        'program': program.hash[:12],
    }


def software() -> dict[str, str]:
    """Versions that all ranks must share."""
    return {
        'version of simpar': __version__,
        'version of torch': str(torch.__version__),
        'version of numpy': np.__version__,
        'version of Python': '.'.join(platform.python_version_tuple()[:2]),
    }


def _device(wanted: Mapping[str, str]) -> tuple[str, str]:
    """Kind of device and transport that were asked for."""
    kind, _, transport = wanted.get('device', 'cpu').partition(' ')
    return kind, transport


def _stretch(stretch: Stretch | None) -> dict[str, str]:
    """Where a training goes on, and with what."""
    if stretch is None:
        return {}
    digest = hashlib.sha256()
    for batch in stretch.batches:
        for name, tensor in sorted(batch.items()):
            digest.update(f'{name} {tensor.dtype} {tuple(tensor.shape)}'.encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return {
        'steps trained before (do all hosts see one checkpoint folder?)': str(stretch.first),
        'batches': digest.hexdigest()[:12] if stretch.batches else 'drawn',
    }


def _data(program: Program) -> str:
    """A digest of the data set that a program reads, if any."""
    if not any(tensor.initial == data.INITIAL for tensor in program.tensors):
        return 'none'
    return data.identity(os.environ.get('DATA_PATH', ''))


def _digest_of_costs(costs: Costs | None) -> str:
    if costs is None:
        return 'none'
    digest = hashlib.sha256()
    for numbers in (costs.compute, costs.host, costs.speeds, costs.taking, costs.beside_compute, costs.rank_speed):
        digest.update(np.ascontiguousarray(numbers).tobytes())
    digest.update(repr((sorted(costs.communication.items()), costs.links, costs.waiting)).encode())
    return digest.hexdigest()[:12]


def shake_hands(store: Store, launch: Launch, wanted: Mapping[str, str], seconds: float = INIT_TIMEOUT) -> list[Card]:
    """Exchange cards with all ranks and return them.

    Arguments:
        wanted: what this rank was asked to run, see ``asked``.
        seconds: how long others may take to come.
    Raises ``RunFailed`` that names who did not come, who differs in what, or who refuses to run; all raise the same.
    """
    devices = survey(*_device(wanted))
    card = Card({**wanted, **devices.versions}, this_process(), local_address(launch.host), devices=devices)
    cards = _exchange(store, launch, card, seconds)
    noun = launch.noun
    problems = [f'{noun} {other} will not run: {card.refusal}' for other, card in enumerate(cards) if card.refusal]
    problems = problems or _differences(cards, noun)
    if problems:
        let_all_see(store, launch.rank, range(launch.world))
        raise RunFailed('\n'.join(problems))
    return cards


def refuse(store: Store, rank: int, world: int, reason: str) -> None:
    """Tell the other ranks why this one will not run, so that they do not wait for it."""
    # Whoever cannot be told has its own timeout.
    with suppress(RuntimeError):
        store.set(f'simpar/card/{rank}', Card({}, this_process(), refusal=reason).packed())
        let_all_see(store, rank, range(world))


def _exchange(store: Store, launch: Launch, card: Card, seconds: float) -> list[Card]:
    store.set(f'simpar/card/{launch.rank}', card.packed())
    until = time.perf_counter() + seconds
    for other in range(launch.world):
        while not store.check([f'simpar/card/{other}']):
            if time.perf_counter() > until:
                came = [one for one in range(launch.world) if store.check([f'simpar/card/{one}'])]
                here = ', '.join(dict.fromkeys(_card(store, one).host.name for one in came))
                here = f'{many(launch.noun, came)} on {here}'
                reason = f'{_absent(launch, came)} did not come within {seconds:g} s; here: {here}'
                let_all_see(store, launch.rank, came, 'given-up')
                raise RunFailed(reason)
            time.sleep(POLL)
    return [_card(store, other) for other in range(launch.world)]


def _card(store: Store, rank: int) -> Card:
    return Card.read(store.get(f'simpar/card/{rank}').decode())


def _absent(launch: Launch, came: Sequence[int]) -> str:
    """Who did not come, and on which hosts."""
    missing = [other for other in range(launch.world) if other not in came]
    hosts = ', '.join(dict.fromkeys(filter(None, map(launch.where, missing))))
    return many(launch.noun, missing) + (f' (on {hosts})' if hosts else '')


def _differences(cards: list[Card], noun: str) -> list[str]:
    """A line for each rank that was asked for another run than rank 0, with every topic that differs."""
    lines = []
    for rank, card in enumerate(cards):
        first = cards[0].asked
        topics = [topic for topic in {**first, **card.asked} if first.get(topic) != card.asked.get(topic)]
        # A program that differs is explained by whatever else differs.
        topics = [topic for topic in topics if topic != 'program'] or topics
        if topics:
            apart = ', '.join(
                f'{topic} ({card.asked.get(topic, "?")}, not {first.get(topic, "?")})' for topic in topics
            )
            lines.append(
                f'{noun} {rank} {on_host(card, cards)}was asked for another run than {noun} 0: {apart}; '
                f'give every {noun} the same command'
            )
    return lines


def on_host(card: Card, cards: Sequence[Card]) -> str:
    """``on NAME `` where there are several hosts."""
    return f'on {card.host.name} ' if len({one.host.name for one in cards}) > 1 else ''


def let_all_see(store: Store, rank: int, ranks: Iterable[int], what: str = 'seen') -> None:
    """Stay, as the store may be rank 0's, until these ranks have read what it holds.

    Arguments: ``what``, another word for every such meeting of a run.
    """
    store.set(f'simpar/{what}/{rank}', b'1')
    # Who does not come has gone by itself.
    with suppress(RuntimeError):
        store.wait([f'simpar/{what}/{other}' for other in ranks], datetime.timedelta(seconds=LINGER))


# The preflight: before any group is made, do the hosts have what the ranks need, and do they reach one another?

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
    by_host: dict[str, list[int]] = {}
    for index, card in enumerate(cards):
        # By kernel and space of process ids: names may repeat.
        by_host.setdefault(card.process.host, []).append(index)
    return [
        Place(cards[of[0]].host, tuple(rank for index in of for rank in ranks[index]), tuple(of), cards[of[0]].devices)
        for of in by_host.values()
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
        devices, ranks = place.devices, place.ranks
        if devices.lacking:
            lines.append(f'{place}: {devices.lacking}; install its driver and a torch for it, or leave the host out')
        if not devices.count:
            continue
        if len(ranks) > devices.count and (devices.native or mixed):
            lines.append(
                f'{place} has {devices.count} of {devices.kind} for {len(ranks)} ranks; give it as many, '
                'or write --transport gloo'
            )
        for index, free in enumerate(devices.free):
            need = sum(needs[rank] for rank in ranks[index :: devices.count])
            if need > free:
                lines.append(
                    f'{place} needs about {format_size(need)} on {devices.kind}:{index}, but {format_size(free)} are '
                    'free; end what else runs there, shard more, or start with --no-preflight'
                )
    return lines


def shared(places: Sequence[Place]) -> tuple[str, ...]:
    """Notes: hosts whose ranks share devices, and drivers that differ."""
    lines = [f'{place} has {place.devices.count}' for place in places if 0 < place.devices.count < len(place.ranks)]
    notes = [f'more ranks than devices: {"; ".join(lines)}; messages go by gloo through the host'] if lines else []
    drivers = {place.devices.driver: place for place in places if place.devices.driver}
    if len(drivers) > 1:
        versions = ', '.join(f'{version} on {place}' for version, place in drivers.items())
        notes.append(f'drivers of {places[0].devices.kind} differ: {versions}')
    return tuple(notes)


def crowded(places: Sequence[Place]) -> tuple[str, ...]:
    """A note for all hosts with more ranks than cores."""
    lines = [f'{place} has {place.host.cores} cores' for place in places if len(place.ranks) > place.host.cores]
    return (f'more ranks than cores: {"; ".join(lines)}; ranks take turns, and times mean little',) if lines else ()


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


def door(address: str) -> socket.socket:
    """A port of this host at which the other hosts knock; nobody answers but the kernel."""
    # The kernel completes a connection for us, as long as the queue has room.
    return socket.create_server(
        (address, 0), family=socket.AF_INET6 if ':' in address else socket.AF_INET, backlog=1024
    )


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
        others = [cards[place.cards[0]].address for index, place in enumerate(places) if index != mine]
        towards = address_towards(others, os.environ.get('GLOO_SOCKET_IFNAME', ''))
        with door(towards or cards[own].address) as opened:
            address, port = opened.getsockname()[:2]
            store.set(f'simpar/door/{mine}', f'{port} {address}')
            failed = '\n'.join(_failed(store, mine, places, seconds))
            store.set(f'simpar/unreachable/{mine}', failed or ' ')
            # The door stays open until all have knocked.
            store.wait([f'simpar/unreachable/{index}' for index in range(len(places))])
    answers = [store.get(f'simpar/unreachable/{index}').decode().strip() for index in range(len(places))]
    remedy = 'open the ports between the hosts, or name the right interface by GLOO_SOCKET_IFNAME'
    return [f'{line}; {remedy}' for text in answers for line in text.splitlines()]


def _failed(store: Store, mine: int, places: Sequence[Place], seconds: float) -> list[str]:
    """Which other hosts this one does not reach, and why."""

    def tried(index: int) -> str:
        port, _, address = store.get(f'simpar/door/{index}').decode().partition(' ')
        reason = knock(address, int(port), seconds)
        return f'{places[mine]} cannot reach {places[index]} at {address}: {reason}' if reason else ''

    others = [index for index in range(len(places)) if index != mine]
    with ThreadPoolExecutor(min(32, len(others))) as threads:
        return [line for line in threads.map(tried, others) if line]
