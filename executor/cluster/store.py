"""The store at which ranks meet that somebody else has started: their clock, their signs of life, and who is lost."""

from __future__ import annotations

import datetime
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

import torch.distributed as dist

from executor.cluster.handshake import Card, Store, many
from executor.cluster.launch import Launch
from executor.cluster.preflight import knock
from executor.host import Clock, host_identity, offset_by_ping
from executor.ranks.request import INIT_TIMEOUT
from simpar.errors import RunFailed

PERIOD: Final = 0.5


class Guard:
    """While it is entered, the process ends where that takes longer than ``patience`` seconds.

    Arguments:
        reason: told then, in words; called in a thread of its own, for the one that asks is in torch's C++.
        end: what ends the process, given the reason.
    """

    def __init__(self, patience: float, reason: Callable[[], str], end: Callable[[str], None] | None = None) -> None:
        self._patience = patience
        self._reason = reason
        self._end = end or leave
        self._since: float | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        self._since = time.perf_counter()
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._since = None

    def _look(self) -> None:
        while True:
            time.sleep(PERIOD)
            since = self._since
            if since is not None and time.perf_counter() - since > self._patience:
                self._end(self._reason())
                return


def leave(reason: str) -> None:
    """End the process: its main thread is in torch's C++, which cannot be called back."""
    print(RunFailed(reason), file=sys.stderr, flush=True)
    os._exit(RunFailed.exit_code)


# Signs of life while ranks prepare: who dies then is named, though all others wait in torch for it.

LOST: Final = 10.0
"""Seconds without a sign of life after which a rank counts as lost; a busy one may miss some of its beats."""


class Pulse:
    """Within it, this rank gives signs of life, and its process ends when another rank gives none.

    Arguments:
        connect: gives a connection to the store, of its own: those that wait block all others on theirs.
        done: the key of ranks that are through, and need give no more signs.
        end: what ends the process, given the reason.
        when: in words, when it may happen.
    """

    def __init__(
        self,
        connect: Callable[[], Store],
        rank: int,
        cards: Sequence[Card],
        done: str,
        end: Callable[[str], None] | None = None,
        when: str = ' outside of a step',
    ) -> None:
        self._when = when
        self._connect = connect
        self._rank = rank
        self._cards = cards
        self._done = done
        self._end = end or leave
        self._guard = Guard(LOST, self._unanswered, self._end)
        self._through = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._through.set()
        self._thread.join()

    def _beat(self) -> None:
        try:
            store = self._connect()
            seen: dict[int, tuple[bytes, float]] = {}
            number = 0
            while not self._through.wait(PERIOD):
                number += 1
                with self._guard:
                    store.set(f'simpar/pulse-{self._done}/{self._rank}', str(number))
                    if lost := self._lost(store, seen):
                        store.set('simpar/lost', self._told(lost))
                    told = store.get('simpar/lost').decode() if store.check(['simpar/lost']) else ''
                if told:
                    self._end(told)
                    return
        # The store is gone, and with it who serves it.
        except (RuntimeError, OSError, RunFailed):
            if not self._through.is_set():
                host = self._cards[0].host.name
                self._end(f'rank 0 on {host}, or the launcher there, was lost: its store is gone')

    def _unanswered(self) -> str:
        """No answer within ``LOST`` seconds."""
        host = self._cards[0].host.name
        where = f'rank 0 on {host}, or the launcher there, cannot be reached'
        return f'rank {self._rank}: {where}: its host or network is lost'

    def _lost(self, store: Store, seen: dict[int, tuple[bytes, float]]) -> list[int]:
        """Ranks whose beat has not changed for long. Arguments: ``seen``, rank → its last beat and when that came."""
        now = time.perf_counter()
        # One rank looks at all, so that the store of a large world is not asked by everybody for everybody.
        others = range(1, len(self._cards)) if self._rank == 0 else range(1 if self._rank == 1 else 0)
        for rank in others:
            key = f'simpar/pulse-{self._done}/{rank}'
            beat = store.get(key) if store.check([key]) else b''
            if rank not in seen or seen[rank][0] != beat:
                seen[rank] = (beat, now)
        # Who is through says no more, and is not lost.
        quiet = [rank for rank, (_, since) in seen.items() if now - since > LOST]
        return [rank for rank in quiet if not store.check([f'simpar/{self._done}/{rank}'])]

    def _told(self, lost: Sequence[int]) -> str:
        hosts = ', '.join(dict.fromkeys(self._cards[rank].host.name for rank in lost))
        return f'{many("rank", lost)} on {hosts} died or lost the network{self._when}'


# The store at which ranks meet that somebody else has started, and the clock that they agree on there.

PINGS: Final = 16


def common_clock(store: Store, rank: int, world: int) -> tuple[Clock, tuple[str, ...]]:
    """Return rank 0's clock, and a note where ranks on other hosts estimate it by pings."""
    store.set(f'simpar/host/{rank}', host_identity().encode())
    # Only ranks away from rank 0 need pings: one host has one monotonic clock.
    hosts = [store.get(f'simpar/host/{other}') for other in range(world)]
    away = [other for other in range(world) if hosts[other] != hosts[0]]
    notes = (f'clocks of {len(away)} ranks on other hosts were aligned by pings',) if away else ()
    if rank == 0:
        for other in away:
            for turn in range(PINGS):
                # One ping at a time: two at once would queue, and bias the estimate.
                store.wait([f'simpar/ping/{other}/{turn}'])
                store.set(f'simpar/pong/{other}/{turn}', repr(time.perf_counter()))
    if rank not in away:
        return Clock(), notes
    turns = iter(range(PINGS))
    offset, _ = offset_by_ping(lambda: _ping(store, rank, next(turns)), PINGS)
    return Clock(offset), notes


def _ping(store: Store, rank: int, turn: int) -> tuple[float, float, float]:
    sent = time.perf_counter()
    store.set(f'simpar/ping/{rank}/{turn}', b'1')
    stamped = float(store.get(f'simpar/pong/{rank}/{turn}'))
    return sent, stamped, time.perf_counter()


def store_of(launch: Launch, seconds: float = INIT_TIMEOUT, noun: str = 'rank') -> Store:
    """The store at which all ranks meet.

    Arguments: ``seconds`` to wait for it; ``noun``, what meets there, ranks or hosts.
    """
    timeout = datetime.timedelta(seconds=seconds)
    serve = launch.rank == 0 and not launch.served
    place = f'{launch.host}:{launch.port}'
    try:
        # A name that nobody knows would be asked for again and again for a minute.
        socket.getaddrinfo(launch.host, launch.port)
        # torch waits twice as long as it is told to, and prints its C++ stack.
        if not serve and (reason := knock(launch.host, launch.port, seconds)):
            server = f'the launcher on {launch.host}' if launch.served else f'{noun} 0 (on {launch.host})'
            raise RunFailed(
                f'{noun} {launch.rank}: nothing answers at {place} ({reason}): {server} did not come within '
                f'{seconds:g} s, or a firewall keeps it away'
            )
        # Without waiting for workers: ranks arrive in any order, and the timeout belongs to what they wait for.
        store = dist.TCPStore(launch.host, launch.port, is_master=serve, timeout=timeout, wait_for_workers=False)
        # torchrun's own store outlives a restart of the ranks, with all that was written there before.
        return dist.PrefixStore(f'simpar/{os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")}', store)
    except (RuntimeError, OSError) as error:
        text = str(error).splitlines()[0]
        if serve and ('EADDRINUSE' in text or 'in use' in text):
            raise RunFailed(f'{noun} 0: port {launch.port} is taken; choose another by MASTER_PORT') from None
        raise RunFailed(f'{noun} {launch.rank}: no store at {place}: {text}') from None
