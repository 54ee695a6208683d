"""Signs of life while ranks prepare: who dies then is named, though all others wait in torch for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final

from executor.guard import Guard, leave
from executor.handshake import Card, many
from simpar.errors import RunFailed

Store = Any
PERIOD: Final = 0.5
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
