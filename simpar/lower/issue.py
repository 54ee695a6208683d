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
from typing import NamedTuple

from simpar.program import OpClass


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
