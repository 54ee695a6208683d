"""What a stack makes of a device's prices: more kernels, more passes through memory, its own attention, real clocks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from fnmatch import translate
from functools import cached_property, lru_cache
from typing import Final

from simpar.cost import roofline
from simpar.cost.compute import MATRIX, NO_WORK, PRODUCTS, forward_flops
from simpar.cost.model import ComputeCost, ComputeModel
from simpar.hardware import Figure, Launches, Profile, Stack, worst
from simpar.kept import Facts
from simpar.program import OpClass

NAMES: Final = 1 << 16
"""Names of ops that are remembered of a stack."""
STAGE: Final = 'stage.F'
"""The key of what the host does where the forward of each stage but the first begins, beside what its ops launch."""
_TILE: Final = re.compile(r'\.tile(\d+)\.')
ONE: Final = Launches(kernels=1, source='one kernel, which moves the bytes of the operator')


class Named:
    """What a stack says of ops by patterns of their names, of which the last that fits counts."""

    def __init__(self, stack: Stack) -> None:
        by_pattern = [(re.compile(translate(key)), found) for key, found in stack.launches.items() if '*' in key]
        self._by_pattern = by_pattern[::-1]
        # Every prediction asks twice for each of its ops, and the next one has most of these names too.
        self.of = lru_cache(maxsize=NAMES)(self._of)

    def _of(self, name: str) -> Launches | None:
        return next((found for pattern, found in self._by_pattern if pattern.match(name)), None)


_named: Final[Facts[Stack, Named]] = Facts(Named, 8)


class StackCompute:
    """Compute as a stack issues it on a device.

    An op lasts as long as the profile says of its one kernel, longer where clocks are lower under load; each further
    kernel adds its fixed time, and the bytes that it moves at the rate of streaming kernels.
    """

    def __init__(self, inner: ComputeModel, profile: Profile, stack: Stack) -> None:
        self.inner = inner
        self.profile = profile
        self.stack = stack

    def launches(self, op: OpClass) -> Launches:
        """What an op launches: as of its name, of its operator and phase, or one kernel."""
        kind = f'{op.operator}.{op.phase}'
        found = _named(self.stack).of(op.name) or self.stack.launches.get(kind, ONE)
        if not found.multiple or not _batches(op) % found.multiple:
            return found
        return self.stack.launches.get(f'{kind}.odd', found)

    def seconds(self, op: OpClass) -> ComputeCost:
        """Isolated seconds of a compute op class; errors as of the model inside."""
        cost = self._side_by_side(op)
        if op.operator in NO_WORK:
            return cost
        launches = self.launches(op)
        if not launches.kernels:
            return ComputeCost(0.0, 0.0, f'not launched by {self.stack.name}: {launches.source}', 'literature')
        cost = self._at_clocks(op, self._attention(op, cost))
        kernel = self.profile.device.kernel.memory
        more = max(0, launches.kernels - 1) * kernel.value + self._moved(op, launches) / self._rate
        if not more:
            return cost
        rests: Sequence[Figure] = [kernel] if more > roofline.MINOR * cost.seconds else []
        why = f'{cost.why}; {launches.kernels} kernels in {self.stack.name}, {more * 1e6:.3g} us more'
        seconds = max(kernel.value, cost.seconds + more)
        return ComputeCost(seconds, min(seconds, cost.best), why, worst([cost.grade, *rests]))

    def side_by_side(self, op: OpClass) -> int:
        """How many tiles of a product run beside one another; 1 of all else."""
        streams = self.stack.tile_streams
        if streams is None or op.operator != 'matmul' or not _TILE.search(op.name):
            return 1
        return min(streams.count, int(op.attributes.get('tiles', streams.count)))

    def tile_seconds(self, op: OpClass) -> float | None:
        """Seconds in which the library issues an op of a tile; None of an op that the host issues by a call of its own.

        That is the first product of all tiles, whose call issues the others, and all that is in no tile.
        """
        call, tile = self.stack.tile_call, _TILE.search(op.name)
        if call is None or tile is None:
            return None
        if op.kind == 'collective':
            return call.message * call.each.value
        return call.product * call.each.value if op.operator == 'matmul' and int(tile[1]) else None

    def _side_by_side(self, op: OpClass) -> ComputeCost:
        """A tile's share of what runs beside it, where small tiles fill the device together as none does alone.

        Does not model: a first tile that starts alone, as those that follow have not arrived.
        """
        alone, count = self.inner.seconds(op), self.side_by_side(op)
        if count == 1:
            return alone
        dims = {**op.dims, 'm': op.dims['m'] * count}
        cost = self.inner.seconds(dataclasses.replace(op, dims=dims, flops=op.flops * count, bytes=op.bytes * count))
        seconds, best = cost.seconds / count, min(alone.best, cost.best / count)
        if seconds >= alone.seconds:
            return alone
        why = f'{cost.why}; {count} tiles side by side, each a share'
        return dataclasses.replace(cost, seconds=seconds, best=min(seconds, best), why=why)

    @cached_property
    def _rate(self) -> float:
        return roofline.memory_rate(self.profile.device)

    def _moved(self, op: OpClass, launches: Launches) -> float:
        """Bytes that kernels beside the first one move."""
        if op.operator not in PRODUCTS or not op.dims:
            # Fewer than one pass: a kernel that skips what is masked.
            return (launches.passes - 1) * op.bytes
        m, n, k = (op.dims[key] for key in ('m', 'n', 'k'))
        return launches.result * m * n + launches.left * m * k + launches.right * k * n

    def _at_clocks(self, op: OpClass, cost: ComputeCost) -> ComputeCost:
        """Matrix units at the clocks that they keep under load; what memory bounds is as it was."""
        sustained = self.profile.device.sustained
        # A kernel of attention leaves the units idle half of the time, which keeps the power and so the clocks.
        if sustained is None or op.operator not in MATRIX or (self.stack.attention and op.operator == 'attention'):
            return cost
        bound = max(cost.seconds / sustained.value, op.bytes / self._rate)
        seconds = max(cost.seconds, min(cost.seconds / sustained.value, bound))
        return dataclasses.replace(cost, seconds=seconds, grade=worst([cost.grade, sustained]))

    def _attention(self, op: OpClass, cost: ComputeCost) -> ComputeCost:
        """The stack's kernel of fused attention in place of the table's."""
        kernel = self.stack.attention
        if kernel is None or op.operator not in MATRIX or op.operator in PRODUCTS or not op.dims:
            return cost
        if op.operator != 'attention':
            return cost
        peaks = {str(dtype): figure for dtype, figure in self.profile.device.matrix.items()}
        if op.dtype not in peaks:
            return cost
        # By the kernel's share of the peak: the table is of another kernel, which treats narrow heads otherwise.
        device = dataclasses.replace(
            self.profile.device, attention=dataclasses.replace(self.profile.device.attention, share=kernel.share)
        )
        flops = op.flops if op.phase == 'F' else forward_flops(op) * kernel.backward.value
        estimate = roofline.attention(device, peaks[op.dtype], flops, op.bytes)
        why = f'attention of {self.stack.name}: {estimate.bound}'
        grade = worst([*estimate.figures, kernel.share, *([] if op.phase == 'F' else [kernel.backward])])
        return ComputeCost(estimate.seconds, min(cost.best, estimate.seconds), why, grade)


def _batches(op: OpClass) -> int:
    """Heads × samples of a rank, of a product of attention: its result, or its left operand, is so many squares."""
    if op.operator != 'attention_scores' or not op.dims:
        return 0
    # Forward [heads · tokens, tokens]; backward both operands' gradients in one.
    return op.dims['m'] // (op.dims['n'] if op.phase == 'F' else 2 * op.dims['k'])
