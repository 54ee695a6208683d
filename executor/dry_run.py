"""A dry run under blocking semantics: a thread for each stream, sends wait for receives, collectives for everybody."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cache

import numpy as np

from simpar.program import OpClass, Program

STEPS = 2
Head = tuple[int, int]
"""A stream of a rank, as (rank, index of the stream in its role)."""


def stuck(program: Program) -> Iterator[str]:
    """One line for each stream that cannot finish two steps, saying what its head waits for."""
    run = _Run(program)
    run.finish()
    for rank in range(program.world):
        for stream in range(len(run.queues[rank])):
            if (line := run.draw(rank, stream)) is not None:
                yield line


class _Run:
    """How far every stream has come."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.roles = [program.role(rank) for rank in range(program.world)]
        self.ops = [[program.op(role, slot) for slot in range(len(role))] for role in program.roles]
        self.needs = [role.needs() for role in program.roles]
        self.carried = [role.carried() for role in program.roles]
        self.queues = [
            [np.flatnonzero(role.stream == stream).tolist() for stream in range(len(role.streams))]
            for role in self.roles
        ]
        self.at = [[0] * len(queues) for queues in self.queues]
        self.done = [[0] * len(role) for role in self.roles]
        self.named = [{name: stream for stream, name in enumerate(role.streams)} for role in self.roles]
        self.members = cache(lambda partition, rank: program.partitions[partition].members(rank))
        self.arrived: set[Head] = set()
        self.held: list[dict[int, list[int]]] = [{} for _ in self.roles]
        """By rank and slot: the streams to look at again once this slot has finished."""

    def finish(self) -> None:
        """Run whatever can run, until nothing can."""
        waiting = deque((rank, stream) for rank, queues in enumerate(self.queues) for stream in range(len(queues)))
        while waiting:
            # A meeting finishes on all its ranks at once.
            for rank, stream in self._together(*waiting.popleft()):
                slot = self._slot(rank, stream)
                self.done[rank][slot] += 1
                self.at[rank][stream] += 1
                self.arrived.discard((rank, stream))
                waiting.append((rank, stream))
                waiting.extend((rank, other) for other in self.held[rank].pop(slot, ()))

    def _slot(self, rank: int, stream: int) -> int:
        """The head of a stream, or -1 when it is through."""
        queue, at = self.queues[rank][stream], self.at[rank][stream]
        # Two steps: one shows deadlocks within a step, the second those over its boundary.
        return queue[at % len(queue)] if at < STEPS * len(queue) else -1

    def _missing(self, rank: int, stream: int) -> list[int]:
        """The slots that the head of a stream still needs."""
        step, slot = self.at[rank][stream] // len(self.queues[rank][stream]), self._slot(rank, stream)
        role, done = int(self.program.role_of_rank[rank]), self.done[rank]
        now = [need for need in self.needs[role][slot] if done[need] <= step]
        # A carried need refers to the step before, so the first step has none.
        return now + [need for need in self.carried[role][slot] if done[need] < step]

    def _together(self, rank: int, stream: int) -> list[Head]:
        """The streams whose heads may finish now, in one go, with this one; empty while one is missing."""
        if self._slot(rank, stream) < 0:
            return []
        if missing := self._missing(rank, stream):
            self.held[rank].setdefault(missing[0], []).append(stream)
            return []
        # Who arrives last finds all others there.
        self.arrived.add((rank, stream))
        heads = [(rank, stream), *self._peers(rank, stream)]
        return heads if self.arrived.issuperset(heads) and self._meet(heads) else []

    def _op(self, rank: int, stream: int) -> OpClass:
        return self.ops[int(self.program.role_of_rank[rank])][self._slot(rank, stream)]

    def _peers(self, rank: int, stream: int) -> list[Head]:
        """The streams of other ranks that must take part; a stream that a rank lacks is -1."""
        op = self._op(rank, stream)
        if op.kind == 'compute':
            return []
        members = self.members(op.partition, rank)
        if op.kind == 'collective':
            others = [member for member in members if member != rank]
        else:
            # A transfer involves its peer alone, although its communicator has more members.
            others = [members[(members.index(rank) + op.peer) % len(members)]]
        name = self.roles[rank].streams[stream]
        return [(other, self.named[other].get(name, -1)) for other in others]

    def _meet(self, heads: list[Head]) -> bool:
        """Whether the heads are the same collective, or a send and a receive that face each other."""
        ops = [self._op(*head) for head in heads]
        if len(heads) == 1 or ops[0].kind == 'collective':
            return all((op.kind, op.partition) == (ops[0].kind, ops[0].partition) for op in ops)
        # Both must name each other: two sends to a third rank do not meet.
        facing = heads[0] in self._peers(*heads[1])
        return facing and {op.kind for op in ops} == {'send', 'recv'}

    def draw(self, rank: int, stream: int) -> str | None:
        """What the head of a stream waits for, in words; None when the stream is through."""
        slot = self._slot(rank, stream)
        if slot < 0:
            return None
        role = self.roles[rank]
        head = f'rank {rank}, stream {role.streams[stream]}: {self.program.action(role, slot)} waits for'
        if missing := self._missing(rank, stream):
            return f'{head} {", ".join(self.program.action(role, need) for need in missing)}'
        away = [
            f'rank {other} (at {self._at(other, theirs)})'
            for other, theirs in self._peers(rank, stream)
            if (other, theirs) not in self.arrived or not self._meet([(rank, stream), (other, theirs)])
        ]
        return f'{head} {", ".join(away)}'

    def _at(self, rank: int, stream: int) -> str:
        slot = self._slot(rank, stream) if stream >= 0 else -1
        return self.program.action(self.roles[rank], slot) if slot >= 0 else 'nothing more'
