"""Watchdog: who is to blame when all ranks stop, told from what every stream did last and what the kernel says."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from executor.process_state import BUSY, BUSY_AMONG_OTHERS, cpu_use
from executor.status import RUNNING, STREAMS, THROUGH, WAITING, Beat, Status
from simpar.program import OpClass, Program


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
    return [
        replace(_head(program, status, rank, stream), busy=(busy or {}).get((rank, stream), 0.0))
        for rank in range(program.world)
        for stream in range(len(program.role(rank).streams))
    ]


def _head(program: Program, status: Status, rank: int, stream: int) -> Head:
    role, beat = program.role(rank), status.get(rank, stream)
    queue = np.flatnonzero(role.stream == stream).tolist()
    last = ''
    if beat.finished:
        step, at = divmod(beat.finished - 1, len(queue))
        last = f'{program.action(role, queue[at])} of step {step}'
    # The slot is stale then.
    if beat.state == THROUGH:
        return Head(rank, role.streams[stream], beat, False, '', last, (), '')
    op = program.op(role, beat.slot)
    return Head(
        rank=rank,
        stream=role.streams[stream],
        beat=beat,
        active=beat.state == RUNNING or _needs_finished(program, status, rank, beat),
        action=f'{program.action(role, beat.slot)} of step {beat.step}',
        last=last,
        peers=_peers(program, op, rank),
        partition=op.partition,
    )


def _peers(program: Program, op: OpClass, rank: int) -> tuple[int, ...]:
    if op.kind == 'compute':
        return ()
    members = program.partitions[op.partition].members(rank)
    if op.kind in ('send', 'recv'):
        return (members[(members.index(rank) + op.peer) % len(members)],)
    return tuple(member for member in members if member != rank)


def _needs_finished(program: Program, status: Status, rank: int, beat: Beat) -> bool:
    role = program.role(rank)
    needs = [(beat.step, need) for need in role.needs()[beat.slot]]
    needs += [(beat.step - 1, need) for need in role.carried()[beat.slot] if beat.step]
    for step, need in needs:
        stream = int(role.stream[need])
        queue = np.flatnonzero(role.stream == stream).tolist()
        # The same count as the streams wait for.
        if status.get(rank, stream).finished <= step * len(queue) + queue.index(need):
            return False
    return True


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
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return '\n'.join(
        '  ' + ' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


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


def explain(program: Program, status: Status, seen: Seen, failures: list[Failure], timeout: float) -> str:
    """Explain why a run broke: the first line names rank, op and peer; a table of all ranks follows."""
    return '\n'.join((*_causes(program, status, seen, failures, timeout), table(program, status, seen)))


def _causes(program: Program, status: Status, seen: Seen, failures: list[Failure], timeout: float) -> list[str]:
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
    peers = _peers(program, op, failure.rank)
    others = f' with ranks {_list(peers)} (group {op.partition})' if peers else ''
    return (
        f'rank {failure.rank} failed in {program.action(role, failure.slot)} of step {failure.step}{others}: '
        f'{failure.what}'
    )
