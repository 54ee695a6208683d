"""The issue order of a pipeline rank: runs of ops, each issued for many micro-batches.

What an action does is the same for every micro-batch, so it is one run, and the order is a list of blocks (run, its
micro-batches). Ops that are added inside of a run make another run. All blocks that get
the same ops at the same places share it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.lower.mesh import PIPELINE, Mesh
from simpar.plans import Plan
from simpar.program import OpClass, OpKind, Slots, Template


class Issue(NamedTuple):
    """An op class for one micro-batch and copy.

    Arguments: ``late``: not before the computation that is issued before it has finished, e.g. a receive that is
    posted only when it is wanted.
    """

    op: OpClass
    micro_batch: int = 0
    copy: int = 0
    late: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Ops in issue order; the micro-batch of each is which of those that its block has."""

    issues: tuple[Issue, ...]


class Block(NamedTuple):
    """A run for some micro-batches, no two of them the same."""

    run: Run
    micro_batches: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Issued:
    """All that a pipeline rank issues in a step, as blocks; a place is the number of an op in it."""

    blocks: tuple[Block, ...]

    @cached_property
    def start(self) -> list[int]:
        """The place of each block's first op, and at last the number of ops."""
        return [0, *accumulate(len(block.run.issues) for block in self.blocks)]

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The runs, in the order in which they are first issued."""
        return tuple(dict.fromkeys(block.run for block in self.blocks))

    def ops(self) -> Iterator[OpClass]:
        """The ops of all runs, in the order in which they are first issued, some more than once."""
        # Runs, not blocks: there are a few runs and thousands of blocks.
        return (issue.op for run in self.runs for issue in run.issues)

    def last(self) -> Iterator[tuple[int, OpClass]]:
        """The ops of all runs, each with its place in the last block of its run."""
        starts = self.last_start.items()
        return ((begin + offset, issue.op) for run, begin in starts for offset, issue in enumerate(run.issues))

    @property
    def last_start(self) -> dict[Run, int]:
        """Of each run the place of the first op of its last block."""
        return {block.run: begin for block, begin in zip(self.blocks, self.start[:-1], strict=True)}

    def behind(self, issues: Sequence[Issue]) -> Issued:
        """The order with more behind it."""
        return Issued((*self.blocks, block_of(issues))) if issues else self

    def inserted(self, before: Mapping[int, Sequence[Issue]]) -> Issued:
        """The order with issues before the ops of some places; the number of ops as a place is the end."""
        at: dict[int, list[tuple[int, Sequence[Issue]]]] = {}
        for place, issues in sorted(before.items()):
            # A place between two blocks belongs to the later one, at its offset 0.
            block = min(bisect_right(self.start, place) - 1, len(self.blocks))
            at.setdefault(block, []).append((place - self.start[block], issues))
        made: dict[tuple[object, ...], Run] = {}
        blocks: list[Block] = []
        done = 0
        for number, added in at.items():
            blocks += self.blocks[done:number]
            done = number
            # What stands before a block's first op is a block of its own: the run behind it stays shared.
            if not added[0][0]:
                blocks.append(_shared(made, Block(Run(()), ()), added[:1]))
                del added[0]
            if added:
                blocks.append(_shared(made, self.blocks[number], added))
                done = number + 1
        return Issued((*blocks, *self.blocks[done:]))


def block_of(issues: Iterable[Issue]) -> Block:
    """A block of its own."""
    return _shared({}, Block(Run(()), ()), [(0, tuple(issues))])


def _shared(made: dict[tuple[object, ...], Run], block: Block, added: Sequence[tuple[int, Sequence[Issue]]]) -> Block:
    """A block with issues before the ops at some offsets, its run shared with blocks that get the same ones.

    Arguments: ``made``, such runs; grows.
    """
    parts = {micro_batch: part for part, micro_batch in enumerate(block.micro_batches)}
    into = [
        (
            offset,
            tuple(
                [
                    Issue(op, parts.setdefault(micro_batch, len(parts)), copy, late)
                    for op, micro_batch, copy, late in issues
                ]
            ),
        )
        for offset, issues in added
    ]
    # Ops of one name are equal, though they need not be the same.
    names = tuple((offset, issue.op.name, issue[1:]) for offset, issues in into for issue in issues)
    key = (block.run if block.run.issues else None, names)
    if key not in made:
        found: list[Issue] = []
        done = 0
        for offset, issues in into:
            found += [*block.run.issues[done:offset], *issues]
            done = offset
        made[key] = Run((*found, *block.run.issues[done:]))
    return Block(made[key], tuple(parts))


# Streams: the in-order queues of a pipeline rank, one for each partition and way between two ranks.


COMPUTE: Final = 'compute'
_BLOCKING: Final[dict[str, frozenset[OpKind]]] = {
    'group': frozenset({'compute'}),
    'messages': frozenset({'compute', 'collective'}),
    'single': frozenset({'compute', 'collective', 'send', 'recv'}),
}
"""By ``plan.streams``, what takes its turn on the stream of computation."""


class Streams:
    """Numbers the streams of a pipeline rank, as they are first used; the first is that of computation.

    Arguments: ``place``, the pipeline rank.
    """

    def __init__(self, mesh: Mesh, plan: Plan, place: int) -> None:
        self._mesh = mesh
        self._blocking = _BLOCKING[plan.streams]
        self._place = place
        self._number = {COMPUTE: 0}

    @property
    def names(self) -> tuple[str, ...]:
        """By number."""
        return tuple(self._number)

    def number(self, issue: Issue) -> int:
        """The number of the stream that an op is issued on."""
        # Whatever blocks, computation does.
        if issue.op.kind == COMPUTE:
            return 0
        return self._number.setdefault(self._name(issue), len(self._number))

    def _name(self, issue: Issue) -> str:
        """One for each partition; sends and receives, one for each direction, phase and copy."""
        op = issue.op
        if op.kind in self._blocking:
            return COMPUTE
        if op.partition != PIPELINE:
            return op.partition
        peer = (self._place + op.peer) % self._mesh.pipeline
        ends = (self._place, peer) if op.kind == 'send' else (peer, self._place)
        # A stream a direction: a send that waits for its receiver must not hold up what comes the other way.
        name = f'{PIPELINE}.{"B" if op.phase == "I" else op.phase}.{ends[0]}-{ends[1]}'
        # And a stream a copy, whose messages may overtake each other.
        return f'{name}.c{issue.copy}' if self._mesh.copies > 1 else name


# Slots: the issue order of a pipeline rank as arrays, a template for each run.


Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
_NO_PART = -1


def slots_of(order: Issued, index: Mapping[str, int], streams: Streams, *, batched: bool) -> Slots:
    """The slots of an issue order.

    Arguments:
        index: by name, the number of each op class.
        streams: they are numbered as they are met.
        batched: a batched send/recv (``exchange: fused``): computation waits for all that is sent and received behind
            the computation before it.
    """
    runs = order.runs
    number = {run: at for at, run in enumerate(runs)}
    parts = max((len(block.micro_batches) for block in order.blocks), default=0)
    padded = [(*block.micro_batches, *(_NO_PART,) * (parts - len(block.micro_batches))) for block in order.blocks]
    # First without pairs, as finding these needs the slots' numbers.
    slots = Slots(
        tuple(_template(run, index, streams) for run in runs),
        np.array([number[block.run] for block in order.blocks], dtype=np.int64),
        np.array(padded, dtype=np.int64).reshape(-1, parts),
        np.zeros((0, 2), dtype=np.int64),
    )
    return Slots(slots.templates, slots.which, slots.micro_batches, _after(slots, runs, batched=batched))


def _template(run: Run, index: Mapping[str, int], streams: Streams) -> Template:
    ops, parts, copies, _ = zip(*run.issues, strict=True) if run.issues else ((), (), (), ())
    # Most ops compute, on the first stream.
    stream = [0 if issue[0].kind == 'compute' else streams.number(issue) for issue in run.issues]
    return Template(*map(_numbers, ([index[op.name] for op in ops], stream, parts, copies)))


def _numbers(column: Sequence[int]) -> Ints:
    # Often all are 0, which need not be converted one by one.
    return np.array(column, dtype=np.int64) if any(column) else np.zeros(len(column), dtype=np.int64)


def _after(slots: Slots, runs: tuple[Run, ...], *, batched: bool) -> Ints:
    """Pairs (slot, an earlier one that it waits for), whatever the tensors say."""
    late = [[issue.late for issue in run.issues] for run in runs]
    if not batched and not any(map(any, late)):
        return slots.after
    computes = [np.array([issue.op.kind == 'compute' for issue in run.issues], dtype=bool) for run in runs]
    waits = np.flatnonzero(slots.spread([np.array(own, dtype=bool) for own in late]))
    computed = np.flatnonzero(slots.spread(computes))
    if not len(computed):
        return slots.after
    # The last computation before each late op; −1 where none is.
    at = np.searchsorted(computed, waits) - 1
    pairs = np.column_stack((waits, computed[at]))[at >= 0]
    if batched:
        transfers = [np.array([issue.op.kind in ('send', 'recv') for issue in run.issues], dtype=bool) for run in runs]
        sent = np.flatnonzero(slots.spread(transfers))
        into = np.searchsorted(computed, sent)
        meets = into < len(computed)
        exchanged = np.column_stack((computed[into[meets]], sent[meets]))
        pairs = np.append(pairs, exchanged[~np.isin(exchanged[:, 0], waits)], axis=0)
    return pairs
