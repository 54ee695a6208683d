"""What updates must know of all gradients together: their norm, to clip by it, and whether all of them are finite.

Every rank looks at the gradients that it holds, and one message of a number or two over all ranks follows, for which
every update waits. It stands on the critical path: nothing is left to hide it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final, NamedTuple

import numpy as np

from simpar.lower.tape import Tape
from simpar.lower.update_shards import UpdateShard, local_elements
from simpar.program import OpClass, Partition, Tensor
from simpar.program.tensor import BYTES
from simpar.workload import Workload

WORLD: Final = 'world'
"""All ranks in one group."""
SQUARES: Final = 'gradients.squares'
OVERFLOW: Final = 'gradients.overflow'


class _Gradient(NamedTuple):
    """What one rank has of a gradient; ``ranks``, how many have the same shard of it, as ``square_sum`` reads it."""

    ranks: str
    elements: int
    bytes: int
    stage: int


@dataclass(frozen=True, slots=True)
class Check:
    """The look at all gradients once their sums are done; nothing without ``numbers``.

    Arguments:
        numbers: tensors that the check writes and updates read.
        gradients: what a rank has of each, by name.
        look: the op that every rank does; the gradients that it reads are filled in for each rank.
        reduction: the message over all ranks, where there are several.
        staged: whether ranks differ by their stages.
    """

    numbers: tuple[str, ...] = ()
    gradients: dict[str, _Gradient] = field(default_factory=dict)
    look: OpClass | None = None
    reduction: OpClass | None = None
    staged: bool = False

    def ops(self, held: Collection[str]) -> list[OpClass]:
        """What a pipeline rank that holds these gradients issues before its updates; one with none takes part too."""
        if self.look is None:
            return []
        look = self._filled(self.look, tuple(name for name in self.gradients if name in held))
        return [look] if self.reduction is None else [look, self.reduction]

    def _filled(self, look: OpClass, names: tuple[str, ...]) -> OpClass:
        mine = [self.gradients[name] for name in names]
        # Unique, for the last stage of a pipeline rank is on no other; a tied weight counts to the first.
        stage = max((gradient.stage for gradient in mine), default=0)
        where = '' if not self.staged else f'.stage{stage}' if mine else '.none'
        squares, checks = SQUARES in self.numbers, OVERFLOW in self.numbers
        return replace(
            look,
            name=f'gradients.{look.operator}{where}.U',
            flops=float(sum(gradient.elements for gradient in mine) * (2 * squares + checks)),
            bytes=float(sum(gradient.bytes for gradient in mine)),
            reads=names,
            attributes=({**look.attributes, 'ranks': ' '.join(one.ranks for one in mine)} if squares else {}),
            stage=stage,
        )


def check(tape: Tape, workload: Workload, shards: Sequence[UpdateShard]) -> Check:
    """The check that clipping and a loss scale need; its numbers are registered as tensors.

    They are never freed, as the loss is not: 4 bytes each. Does not model: a step without an update, which nobody can
    foresee; all are priced.
    """
    numbers = ((SQUARES,) if workload.clip_norm else ()) + ((OVERFLOW,) if workload.loss_scale != 1 else ())
    # Without clipping and scaling no update waits for others, and nothing is emitted.
    if not numbers:
        return Check()
    # A sum of squares of 16-bit gradients would be lost in 16 bits.
    dtype = 'fp64' if tape.gradients == 'fp64' else 'fp32'
    for name in numbers:
        tape.tensors[name] = Tensor(name, 'activation', (1,), dtype)
    look = OpClass(
        name='',
        kind='compute',
        operator='square_sum' if workload.clip_norm else 'finite_check',
        phase='U',
        dtype=tape.gradients,
        writes=numbers,
        attributes={'loss_scale': workload.loss_scale} if workload.loss_scale != 1 else {},
    )
    return Check(numbers, _gradients(tape, shards), look, _reduction(tape, numbers, dtype), tape.mesh.pipeline > 1)


def _gradients(tape: Tape, shards: Sequence[UpdateShard]) -> dict[str, _Gradient]:
    """By name; every element of a gradient lies on as many ranks as hold the same shard of it."""
    on: dict[str, set[int]] = {}
    for op in tape.ops:
        for name in op.accumulates:
            on.setdefault(tape.tensors[name].like, set()).add(tape.mesh.pipeline_rank(op.stage))
    # Ranks of one pipeline rank: all of them hold something of each of its parameters.
    each = tape.mesh.world // tape.mesh.pipeline
    found = {}
    for shard in shards:
        gradient = shard.gradient
        elements = local_elements(tape, gradient)
        runs = _runs(tape, shard, {full.like: len(on[full.like]) * each for full in shard.fulls})
        found[gradient.name] = _Gradient(runs, elements, elements * BYTES[gradient.dtype], shard.stage)
    return found


def _runs(tape: Tape, shard: UpdateShard, holders: Mapping[str, int]) -> str:
    """How many ranks have the same shard of a gradient; where members of a packed one differ, for how many elements.

    Arguments: ``holders``, ranks that have any shard of a parameter.
    """
    if not shard.gradient.members:
        parts = prod(tape.partitions[split.partition].size for split in shard.gradient.splits)
        return str(next(iter(holders.values())) // parts)
    partition = shard.gradient.splits[-1].partition
    runs: list[tuple[int, int]] = []
    for full in shard.fulls:
        parts = prod(tape.partitions[split.partition].size for split in full.splits) * tape.partitions[partition].size
        ranks, elements = holders[full.like] // parts, local_elements(tape, full)
        # Neighbours with equal counts are one run: the text stays short for packed messages of a thousand parameters.
        before = runs.pop()[1] if runs and runs[-1][0] == ranks else 0
        runs.append((ranks, before + elements))
    if len(runs) == 1:
        return str(runs[0][0])
    return '+'.join(f'{ranks}x{elements}' for ranks, elements in runs) + f'@{partition}'


def _reduction(tape: Tape, numbers: tuple[str, ...], dtype: str) -> OpClass | None:
    """One message over all ranks."""
    world = tape.mesh.world
    if world == 1:
        return None
    tape.partitions[WORLD] = Partition(WORLD, np.arange(world, dtype=np.int32).reshape(1, -1))
    return OpClass(
        name='gradients.all_reduce.U',
        kind='collective',
        operator='all_reduce',
        phase='U',
        bytes=float(len(numbers) * BYTES[dtype]),
        dtype=dtype,
        partition=WORLD,
        reduce='sum',
        reads=numbers,
        writes=numbers,
    )
