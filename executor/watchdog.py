"""Watchdog: what every stream of every rank is doing, kept where it outlives the rank, and who is to blame when all
stop."""

from __future__ import annotations

import mmap
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from simpar.program import OpClass, Program

STREAMS: Final = 128
"""Streams of a rank that the status has room for."""
FIELDS: Final = 5
"""64-bit numbers for each stream: finished ops, state, step, slot, and since when, in ns."""
THROUGH, WAITING, RUNNING = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Beat:
    """What one stream is doing: ``finished`` ops so far, and its head in ``state`` since ``since`` ns."""

    finished: int
    state: int
    step: int
    slot: int
    since: int


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception on a rank; ``slot`` −1 where it was in no op; ``lost`` where only a peer can be to blame."""

    rank: int
    step: int
    slot: int
    what: str
    lost: bool = False


class Status:
    """Beats of all ranks in one block of memory: a file that parent and ranks map, or a rank's own memory."""

    def __init__(self, world: int, path: Path | None = None) -> None:
        size = world * STREAMS * FIELDS * 8
        # A rank that others have started has no parent to share a file with; it sends its rows through the store.
        if path is None:
            self._memory: bytearray | mmap.mmap = bytearray(size)
        else:
            if not path.exists():
                path.write_bytes(bytes(size))
            # A mapped file outlives a killed process, so its last beat can still be read.
            with path.open('r+b') as file:
                self._memory = mmap.mmap(file.fileno(), size)
        self._numbers = memoryview(self._memory).cast('q')
        self.world = world

    def clear(self) -> None:
        """Forget the run before."""
        self._numbers[:] = memoryview(bytes(self._numbers.nbytes)).cast('q')

    def set(self, rank: int, stream: int, beat: Beat) -> None:
        """Say what a stream does; each stream has one writer, and a reader may see a beat half written."""
        at = (rank * STREAMS + stream) * FIELDS
        numbers = self._numbers
        # No lock: a half-written beat only blurs a message, a lock would slow every op.
        numbers[at], numbers[at + 1], numbers[at + 2] = beat.finished, beat.state, beat.step
        numbers[at + 3], numbers[at + 4] = beat.slot, beat.since

    def get(self, rank: int, stream: int) -> Beat:
        """What a stream did when it last said so."""
        at = (rank * STREAMS + stream) * FIELDS
        return Beat(*self._numbers[at : at + FIELDS].tolist())

    def finished(self) -> int:
        """Ops that have finished on all ranks."""
        return sum(self._numbers[::FIELDS].tolist())

    def row(self, rank: int) -> bytes:
        """A rank's beats, to send elsewhere."""
        width = STREAMS * FIELDS
        return self._numbers[rank * width : (rank + 1) * width].tobytes()

    def put_row(self, rank: int, row: bytes) -> None:
        """Take over a rank's beats from elsewhere."""
        width = STREAMS * FIELDS
        self._numbers[rank * width : (rank + 1) * width] = memoryview(row).cast('q')


@dataclass(frozen=True, slots=True)
class Head:
    """One stream's head, in the program's terms.

    Arguments:
        active: it runs, or could.
        action, last: what it is at and what it finished last, empty where there is none.
        peers: the ranks that it communicates with in ``partition``.
    """

    rank: int
    stream: str
    beat: Beat
    active: bool
    action: str
    last: str
    peers: tuple[int, ...]
    partition: str


def heads(program: Program, status: Status) -> list[Head]:
    """The heads of all streams of all ranks."""
    return [
        _head(program, status, rank, stream)
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


def table(program: Program, status: Status, dead: dict[int, str]) -> str:
    """Rank, stream, what it finished last, what it does, and for whom it waits."""
    rows = [('rank', 'stream', 'last finished', 'now', 'waits for')]
    for head in heads(program, status):
        waits = f'{head.partition}: ranks {_list(head.peers)}' if head.peers and head.beat.state == RUNNING else ''
        now = {THROUGH: 'through', WAITING: f'before {head.action}', RUNNING: head.action}[head.beat.state]
        if head.rank in dead:
            now += f' ({dead[head.rank].partition(":")[0]})'
        rows.append((str(head.rank), head.stream, head.last or 'nothing', now, waits))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return '\n'.join(
        '  ' + ' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def stalled(program: Program, status: Status) -> list[str]:
    """Name who is to blame when nothing moves: heads that could go on and wait for no absent rank."""
    active = [head for head in heads(program, status) if head.active]
    at = {(head.rank, head.stream): head for head in active if head.beat.state == RUNNING}
    blamed = []
    for head in active:
        # It could go on and does not, and waits for nobody: the blame is its own.
        if head.beat.state == WAITING or not head.peers:
            before = 'in' if head.beat.state == RUNNING else 'before'
            blamed.append(
                f'rank {head.rank} is stuck {before} {head.action} (stream {head.stream}){_waiters(head.rank, active)}'
            )
        # Told once, by the lowest rank, not by every member.
        elif head.rank < min(head.peers) and all(_in_the_same(head, at.get((p, head.stream))) for p in head.peers):
            ranks = _list(sorted((head.rank, *head.peers)))
            blamed.append(
                f'ranks {ranks} are all in {head.action} (group {head.partition}), but the network between them '
                'delivers nothing'
            )
    return blamed or _missing(active, at)


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


def explain(program: Program, status: Status, dead: dict[int, str], failures: list[Failure], timeout: float) -> str:
    """Explain why a run broke: the first line names rank, op and peer; a table of all ranks follows."""
    return '\n'.join((*_causes(program, status, dead, failures, timeout), table(program, status, dead)))


def _causes(
    program: Program, status: Status, dead: dict[int, str], failures: list[Failure], timeout: float
) -> list[str]:
    # A lost connection is the consequence of another rank's failure, so other failures are told first.
    own = [failure for failure in failures if not failure.lost and failure.rank not in dead]
    # A death explains everything else.
    if dead:
        return [_died(program, status, rank, how) for rank, how in sorted(dead.items())]
    if own or failures:
        return [_failed(program, failure) for failure in own or failures]
    blamed = stalled(program, status) or ['no rank is in an op']
    return [f'nothing has finished for {timeout:g} s: {blamed[0]}', *blamed[1:]]


def _died(program: Program, status: Status, rank: int, how: str) -> str:
    """What a rank was doing when it died, and who waits for it."""
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
