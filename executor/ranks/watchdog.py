"""Supervision: what streams say of themselves, who is to blame when all stop, and ranks that watch one another."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from executor.host import BUSY, BUSY_AMONG_OTHERS, cpu_use
from executor.walk import Order, peers
from simpar import errors, files
from simpar.program import Program

# Status: what every stream of every rank is doing, kept where it outlives the rank.

STREAMS: Final = 128
"""Streams of a rank that the status has room for."""
THROUGH, WAITING, RUNNING = 0, 1, 2


class Beat(NamedTuple):
    """What one stream is doing: ``finished`` ops so far, and its head in ``state`` since ``since`` ns.

    Arguments: ``thread``, the kernel's id of the stream's thread; 0 where it is not known.
    """

    finished: int
    state: int
    step: int
    slot: int
    since: int
    thread: int = 0


class Status:
    """Beats of all ranks in one block of memory: a file that parent and ranks map, or a rank's own memory."""

    def __init__(self, world: int, path: Path | None = None) -> None:
        # A rank that others have started has no parent to share a file with; it sends its rows through the store.
        self._beats: NDArray[np.int64] = np.zeros((world, STREAMS, len(Beat._fields)), np.int64)
        if path is not None:
            if not path.exists():
                with files.naming(path):
                    path.write_bytes(self._beats.tobytes())
            # A mapped file outlives a killed process, so its last beat can still be read.
            self._beats = np.memmap(path, np.int64, 'r+', shape=self._beats.shape)
        self.world = world

    def clear(self) -> None:
        """Forget the run before."""
        self._beats[:] = 0

    def set(self, rank: int, stream: int, beat: Beat) -> None:
        """Say what a stream does; each stream has one writer, and a reader may see a beat half written."""
        # No lock: a half-written beat only blurs a message, a lock would slow every op.
        self._beats[rank, stream] = beat

    def get(self, rank: int, stream: int) -> Beat:
        """What a stream did when it last said so."""
        return Beat(*self._beats[rank, stream].tolist())

    def finished(self) -> int:
        """Ops that have finished on all ranks."""
        return int(self._beats[:, :, 0].sum())

    def row(self, rank: int) -> bytes:
        """A rank's beats, to send elsewhere."""
        return bytes(self._beats[rank])

    def put_row(self, rank: int, row: bytes) -> None:
        """Take over a rank's beats from elsewhere."""
        self._beats[rank] = np.frombuffer(row, np.int64).reshape(STREAMS, -1)


# Watchdog: who is to blame when all ranks stop, told from what every stream did last and what the kernel says.


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception on a rank; ``slot`` −1 where it was in no op; ``lost`` where only a peer can be to blame."""

    rank: int
    step: int
    slot: int
    what: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of the processes of a run that broke.

    Arguments:
        dead: rank → how its process ended, in words.
        stopped: ranks whose processes are stopped, by a signal or a debugger.
        busy: (rank, index of a stream) → share of a core that its thread uses, where it does not wait.
    """

    dead: dict[int, str] = field(default_factory=dict)
    stopped: frozenset[int] = frozenset()
    busy: dict[tuple[int, int], float] = field(default_factory=dict)


class BusyThreads:
    """Finds threads that use a core although their streams do not come forward: they spin, or compute for very long.

    Arguments: ``processes``, rank → process id, of ranks on this host.
    """

    def __init__(self, status: Status, processes: Mapping[int, int]) -> None:
        self._processes = processes
        self._threads = {
            (rank, stream): beat.thread
            for rank in processes
            for stream in range(STREAMS)
            if (beat := status.get(rank, stream)).thread and beat.state != THROUGH
        }
        self._begin = time.perf_counter()
        self._before = self._used()

    def found(self) -> dict[tuple[int, int], float]:
        """Stream → share of a core that its thread has used since this object was made, where that is much."""
        seconds = max(time.perf_counter() - self._begin, 1e-3)
        shares = {}
        for key, (now, running) in self._used().items():
            before, ran = self._before.get(key, (now, False))
            share = (now - before) / seconds
            if share >= (BUSY_AMONG_OTHERS if running and ran else BUSY):
                shares[key] = share
        return shares

    def _used(self) -> dict[tuple[int, int], tuple[float, bool]]:
        used = {key: cpu_use(self._processes[key[0]], thread) for key, thread in self._threads.items()}
        return {key: use for key, use in used.items() if use is not None}


@dataclass(frozen=True, slots=True)
class Head:
    """One stream's head, in the program's terms.

    Arguments:
        active: it runs, or could.
        action, last: what it is at and what it finished last, empty where there is none.
        peers: the ranks that it communicates with in ``partition``.
        busy: share of a core that its thread uses, 0 where it waits.
    """

    rank: int
    stream: str
    beat: Beat
    active: bool
    action: str
    last: str
    peers: tuple[int, ...]
    partition: str
    busy: float = 0.0


def heads(program: Program, status: Status, busy: Mapping[tuple[int, int], float] | None = None) -> list[Head]:
    """The heads of all streams of all ranks. Arguments: ``busy``, see ``Seen``."""
    orders = [Order(program, role) for role in program.roles]
    return [
        replace(_head(program, orders[role], status, rank, stream), busy=(busy or {}).get((rank, stream), 0.0))
        for rank, role in enumerate(program.role_of_rank.tolist())
        for stream in range(len(program.roles[role].streams))
    ]


def _head(program: Program, order: Order, status: Status, rank: int, stream: int) -> Head:
    role, beat, slots, last = program.role(rank), status.get(rank, stream), order.streams[stream], ''
    if beat.finished:
        step, at = divmod(beat.finished - 1, len(slots))
        last = f'{program.action(role, slots[at].position)} of step {step}'
    # The slot is stale then.
    if beat.state == THROUGH:
        return Head(rank, role.streams[stream], beat, False, '', last, (), '')
    op, needs = program.op(role, beat.slot), [order.count(*need) for need in order.slots[beat.slot].awaits(beat.step)]
    return Head(
        rank=rank,
        stream=role.streams[stream],
        beat=beat,
        active=beat.state == RUNNING or all(status.get(rank, other).finished >= count for other, count in needs),
        action=f'{program.action(role, beat.slot)} of step {beat.step}',
        last=last,
        peers=peers(program, op, rank),
        partition=op.partition,
    )


def table(program: Program, status: Status, seen: Seen) -> str:
    """Rank, stream, what it finished last, what it does, and for whom it waits."""
    rows = [('rank', 'stream', 'last finished', 'now', 'waits for')]
    for head in heads(program, status):
        waits = f'{head.partition}: ranks {_list(head.peers)}' if head.peers and head.beat.state == RUNNING else ''
        now = {THROUGH: 'through', WAITING: f'before {head.action}', RUNNING: head.action}[head.beat.state]
        if head.rank in seen.dead:
            now += f' ({seen.dead[head.rank].partition(":")[0]})'
        elif head.rank in seen.stopped:
            now += ' (stopped)'
        rows.append((str(head.rank), head.stream, head.last or 'nothing', now, waits))
    return '\n'.join(f'  {line}' for line in columns(rows, ' | '))


def columns(rows: Sequence[Sequence[str]], between: str) -> list[str]:
    """Rows of a table as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [between.join(map(str.ljust, row, widths)).rstrip() for row in rows]


def stalled(program: Program, status: Status, seen: Seen | None = None) -> list[str]:
    """Name who is to blame when nothing moves: heads that could go on and wait for no absent rank."""
    active = [head for head in heads(program, status, seen.busy if seen else None) if head.active]
    at = {(head.rank, head.stream): head for head in active if head.beat.state == RUNNING}
    blamed = []
    for head in active:
        # It could go on and does not, and waits for nobody: the blame is its own. A thread that is busy waits for
        # nobody either, whatever op it is in.
        if head.beat.state == WAITING or not head.peers or head.busy:
            before = 'in' if head.beat.state == RUNNING else 'before'
            how = f', where its thread spins or computes ({head.busy:.0%} of a core)' if head.busy else ''
            waiters = _waiters(head.rank, active)
            blamed.append(f'rank {head.rank} is stuck {before} {head.action} (stream {head.stream}){how}{waiters}')
        # Told once, by the lowest rank, not by every member.
        elif head.rank < min(head.peers) and all(_in_the_same(head, at.get((p, head.stream))) for p in head.peers):
            ranks = _list(sorted((head.rank, *head.peers)))
            blamed.append(
                f'ranks {ranks} are all in {head.action} (group {head.partition}), but the network between them '
                'delivers nothing'
            )
    # Who is busy is told first: others may only look as if they could go on.
    return sorted(blamed, key=lambda line: 'where its thread' not in line) or _missing(active, at)


def _in_the_same(head: Head, other: Head | None) -> bool:
    return other is not None and head.rank in other.peers and other.beat.step == head.beat.step


def _missing(active: list[Head], at: dict[tuple[int, str], Head]) -> list[str]:
    """Say who waits for whom, where no rank is plainly stuck."""
    lines = []
    for head in active:
        away = [peer for peer in head.peers if not _in_the_same(head, at.get((peer, head.stream)))]
        if away:
            lines.append(f'rank {head.rank} waits in {head.action} for rank {_list(away)}, which never came')
    return lines


def _waiters(rank: int, active: list[Head]) -> str:
    waiting = [head for head in active if rank in head.peers and head.beat.state == RUNNING]
    return ''.join(f'; rank {head.rank} waits for it in {head.action} (group {head.partition})' for head in waiting)


def _list(ranks: Sequence[int]) -> str:
    return ', '.join(map(str, ranks))


def death(code: int, stderr: str) -> str:
    """How a process ended, in words; gloo aborts on a message of an unexpected size."""
    if code == -signal.SIGABRT and 'EnforceNotMet' in stderr:
        return 'was aborted by gloo: size mismatch, a message was longer than its receiver expects'
    if code < 0:
        return f'was killed by {signal.Signals(-code).name}'
    return f'exited with {code}'


def explain(program: Program, status: Status, seen: Seen, failures: Sequence[Failure], timeout: float) -> str:
    """Explain why a run broke: the first line names rank, op and peer; a table of all ranks follows."""
    return '\n'.join((*_causes(program, status, seen, failures, timeout), table(program, status, seen)))


def _causes(program: Program, status: Status, seen: Seen, failures: Sequence[Failure], timeout: float) -> list[str]:
    # A lost connection is the consequence of another rank's failure, so other failures are told first.
    own = [failure for failure in failures if not failure.lost and failure.rank not in seen.dead]
    # A death explains everything else.
    if seen.dead:
        return [_died(program, status, rank, how) for rank, how in sorted(seen.dead.items())]
    if not own and seen.stopped:
        how = 'is stopped (by SIGSTOP, the terminal or a debugger; SIGCONT lets it go on)'
        return [_died(program, status, rank, how) for rank in sorted(seen.stopped)]
    if own or failures:
        return [_failed(program, failure) for failure in own or failures]
    blamed = stalled(program, status, seen) or ['no rank is in an op']
    return [f'nothing has finished for {timeout:g} s: {blamed[0]}', *blamed[1:]]


def _died(program: Program, status: Status, rank: int, how: str) -> str:
    """What a rank was doing when it died or was stopped, and who waits for it."""
    active = [head for head in heads(program, status) if head.active]
    # Where gloo aborted, only streams that communicate can be the cause.
    mine = [head for head in active if head.rank == rank and (head.peers or 'gloo' not in how)]
    at = ', at ' + ' and '.join(head.action for head in mine) if mine else ''
    return f'rank {rank} {how}{at}{_waiters(rank, active)}'


def _failed(program: Program, failure: Failure) -> str:
    if failure.slot < 0:
        return f'rank {failure.rank} failed: {failure.what}'
    role = program.role(failure.rank)
    op = program.op(role, failure.slot)
    met = peers(program, op, failure.rank)
    others = f' with ranks {_list(met)} (group {op.partition})' if met else ''
    return (
        f'rank {failure.rank} failed in {program.action(role, failure.slot)} of step {failure.step}{others}: '
        f'{failure.what}'
    )


# Ranks that nobody else watches: each ends where the store does not answer, or another rank gives no sign of life.

Store = Any
"""A store of torch.distributed."""
PERIOD: Final = 0.5
LOST: Final = 10.0
"""Seconds without a sign of life after which a rank counts as lost; a busy one may miss some of its beats."""


FAILED: Final = 'failed.json'
"""Where ranks that a launcher has started say why they failed: of launchers, few hand on what a rank exits with."""


def write_failure(reason: str) -> None:
    """Say in the current folder why a run failed, unless another rank has said so."""
    failure = {'format': 'simpar failure 1', 'exit_code': errors.RunFailed.exit_code, 'message': reason}
    # A folder that cannot be written keeps nobody from ending.
    with suppress(OSError), open(FAILED, 'x', encoding='utf-8') as file:
        file.write(json.dumps({**failure, 'host': os.uname().nodename}, ensure_ascii=False) + '\n')


def leave(reason: str) -> None:
    """End the process: its main thread is in torch's C++, which cannot be called back."""
    print(errors.RunFailed(reason), file=sys.stderr, flush=True)
    write_failure(reason)
    os._exit(errors.RunFailed.exit_code)


@dataclass(slots=True, eq=False)
class Guard:
    """While it is entered, the process ends where that takes longer than ``patience`` seconds.

    Arguments:
        reason: told then, in words; called in a thread of its own, for the one that asks is in torch's C++.
        end: what ends the process, given the reason.
    """

    patience: float
    reason: Callable[[], str]
    end: Callable[[str], None] = leave
    _since: float | None = None
    _thread: threading.Thread | None = None

    def __enter__(self) -> None:
        self._since = time.perf_counter()
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._since = None

    def _look(self) -> None:
        while True:
            time.sleep(PERIOD)
            since = self._since
            if since is not None and time.perf_counter() - since > self.patience:
                self.end(self.reason())
                return


@dataclass(eq=False)
class Pulse:
    """Within it, this rank gives signs of life, and its process ends when another rank gives none.

    Arguments:
        connect: gives a connection to the store, of its own: those that wait block all others on theirs.
        hosts: their names, rank by rank.
        done: the key of ranks that are through, and need give no more signs.
        end: what ends the process, given the reason.
        when: in words, when it may happen.
    """

    connect: Callable[[], Store]
    rank: int
    hosts: Sequence[str]
    done: str
    end: Callable[[str], None] = leave
    when: str = ' outside of a step'

    def __post_init__(self) -> None:
        self._guard = Guard(LOST, lambda: f'rank {self.rank}: {self._served("cannot be reached")}', self.end)
        self._through = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._through.set()
        self._thread.join()

    def _beat(self) -> None:
        try:
            store = self.connect()
            seen: dict[int, tuple[bytes, float]] = {}
            number = 0
            while not self._through.wait(PERIOD):
                number += 1
                with self._guard:
                    store.set(f'simpar/pulse-{self.done}/{self.rank}', str(number))
                    if lost := self._lost(store, seen):
                        hosts = ', '.join(dict.fromkeys(self.hosts[rank] for rank in lost))
                        store.set('simpar/lost', f'{many("rank", lost)} on {hosts} died or lost the network{self.when}')
                    reason = store.get('simpar/lost').decode() if store.check(['simpar/lost']) else ''
                if reason:
                    self.end(reason)
                    return
        # The store is gone, and with it who serves it.
        except (RuntimeError, OSError, errors.RunFailed):
            if not self._through.is_set():
                self.end(self._served('was lost', 'its store is gone'))

    def _served(self, what: str, why: str = 'its host or network is lost') -> str:
        return f'rank 0 on {self.hosts[0]}, or the launcher there, {what}: {why}'

    def _lost(self, store: Store, seen: dict[int, tuple[bytes, float]]) -> list[int]:
        """Ranks whose beat has not changed for long. Arguments: ``seen``, rank → its last beat and when that came."""
        now = time.perf_counter()
        # One rank looks at all, so that the store of a large world is not asked by everybody for everybody.
        others = range(1, len(self.hosts)) if self.rank == 0 else range(1 if self.rank == 1 else 0)
        for rank in others:
            key = f'simpar/pulse-{self.done}/{rank}'
            beat = store.get(key) if store.check([key]) else b''
            if rank not in seen or seen[rank][0] != beat:
                seen[rank] = (beat, now)
        # Who is through says no more, and is not lost.
        quiet = [rank for rank, (_, since) in seen.items() if now - since > LOST]
        return [rank for rank in quiet if not store.check([f'simpar/{self.done}/{rank}'])]


def many(noun: str, numbers: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0, 2``, ``ranks 0 to 7, 9``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f'{run[0]} to {run[-1]}' if len(run) > 2 else ', '.join(map(str, run)) for run in runs]
    return f'{noun}{"s" if len(numbers) > 1 else ""} {", ".join(texts)}'
