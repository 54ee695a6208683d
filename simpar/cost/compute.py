"""Isolated seconds of compute ops: measured tables where a profile has them, formulas elsewhere; see docs/costs.md."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from typing import Final

from simpar import hardware, profiles, program
from simpar.cost.costs import MINOR, ComputeCost, ComputeModel, major
from simpar.cost.formula import PAIRWISE
from simpar.cost.tables import Axis, Curve, Grid, Scatter, is_grid
from simpar.errors import Problem, ProfileError
from simpar.model.operators import attention, priced
from simpar.model.ops import counts_of, seen

PRODUCTS = priced('matrix')
"""Matrix products; those of a batch, one for each head and sample in attention, are priced as one of all their rows.

A convolution is one of windows with the weight.
"""
ITERATED = frozenset({'muon', 'muon_change'})
"""Several products: Newton–Schulz iterations."""
FAR: Final = 4.0
"""How many times as large as any measured product one is that its table says little of."""
BEYOND: Final = 'far beyond the rows'
MATRIX = PRODUCTS | priced('attention') | ITERATED
"""Operators that run on the matrix units; all others are bound by memory or by the vector units."""
NO_WORK = priced('view') | {'piece', 'reshard', 'split', 'join'}
"""Operators that launch nothing: views, and the freeing of memory."""
FP8: Final = 'fp8'
HALF = frozenset({'fp16', 'bf16'})
BYTES: Mapping[str, int] = {'fp64': 8, 'fp32': 4, 'tf32': 4, 'fp16': 2, 'bf16': 2, 'fp8': 1}
GROUP_TILE = 128
"""Rows to which a grouped product fills up those of each expert: a tile of cuBLAS, CUTLASS and DeepGEMM."""
MATMUL_AXES = (Axis('m'), Axis('n'), Axis('k'))
# A narrower head than was measured costs more than its share of FLOPs: between 64 and 128, where both were, time goes
# with the power 0.4 to 0.6 of the width.
_ATTENTION = (Axis('queries', 0, 0), Axis('head_dim', 0.5, 1), Axis('sequence', 0, 2), Axis('pairs', 0, 1))


class DeviceCompute:
    """Compute on a profile's device.

    Does not model: layouts of the operands, what is still in a cache, clocks that fall under load.
    """

    def __init__(self, profile: hardware.Profile) -> None:
        self.profile = profile
        self.device = profile.device
        self._known: dict[tuple[object, ...], ComputeCost] = {}

    def seconds(self, op: program.OpClass) -> ComputeCost:
        """Isolated seconds of a compute op class.

        Raises ``ProfileError`` where the profile has no rate for its data type, or a table is wrong.
        """
        key = op.cost_key
        # Plans of a sweep share most of their ops.
        cost = self._known.get(key)
        if cost is None:
            cost = self._known[key] = self._seconds(op)
        return cost

    def _seconds(self, op: program.OpClass) -> ComputeCost:
        if op.operator in NO_WORK:
            return ComputeCost(0.0, 0.0, 'no work (measured)', 'measured')
        if op.operator in PRODUCTS and op.dims:
            return self._matmul(op)
        if op.operator in ITERATED:
            return self._iterated(op)
        if op.operator in MATRIX and op.dims:
            return self._attention(op)
        return self._streaming(op)

    def _in_8_bits(self, op: program.OpClass) -> ComputeCost:
        """By formula, for no table has products of 8 bits; on a device without them as in 16 bits, or what it has."""
        size = _product_size(op)
        if FP8 in self._matrix:
            shape = self.device.matmul
            device = dataclasses.replace(self.device, matmul=dataclasses.replace(shape, share=shape.fp8 or shape.share))
            return _priced(by_products(device, self._matrix[FP8], size, op.bytes))
        wider = next((dtype for dtype in ('bf16', 'fp16', 'fp32') if dtype in self._matrix), op.dtype)
        cost = self._matmul(_product(dataclasses.replace(op, dtype=wider), *size))
        return dataclasses.replace(cost, why=f'no 8 bits on this device, in {wider}: {cost.why}')

    def _matmul(self, op: program.OpClass) -> ComputeCost:
        if op.dtype == FP8 and (FP8 in self._matrix or HALF & self._matrix.keys()):
            return self._in_8_bits(op)
        size = _product_size(op)
        table = self.profile.tables.matmul
        if table is None or not _alike(op.dtype, table.dtype):
            peak = self._rate(op.dtype, op.name, self._matrix)
            return _priced(by_products(self.device, peak, size, op.bytes))
        lookup, points, fastest = self._matmul_lookup
        seconds = lookup(*size)
        how = 'a row' if size in points else 'between the rows'
        if any(part > FAR * most for part, most in zip(size, self._largest, strict=True)):
            how = BEYOND
        rate = op.flops / seconds / 1e12
        why = f'{how} of the matmul table at m, n, k = {size[0]}, {size[1]}, {size[2]}: {rate:.4g} TFLOP/s'
        return _cost(seconds, op.flops / fastest, why, table.grade)

    def _iterated(self, op: program.OpClass) -> ComputeCost:
        """X·Xᵀ, a product of squares, and one of a square with X, as often as there are iterations.

        Does not model: what is done element by element, which fuses with the products.
        """
        short, long, times = (op.dims[key] for key in ('short', 'long', 'iterations'))
        costs = [self._matmul(_product(op, m, n, k)) for m, n, k in
                 ((short, short, long), (short, short, short), (short, long, short))]  # fmt: skip
        seconds, best = (times * sum(getattr(cost, part) for cost in costs) for part in ('seconds', 'best'))
        slowest = max(costs, key=lambda cost: cost.seconds)
        why = f'{times} × {len(costs)} products, the slowest {slowest.why}'
        return ComputeCost(seconds, best, why, hardware.worst([cost.grade for cost in costs]))

    @functools.cached_property
    def _matmul_lookup(self) -> tuple[Callable[..., float], frozenset[profiles.Row], float]:
        """Seconds by m, n, k; the points measured; the best FLOP/s among them."""
        rows = self._rows('matmul')
        fastest = max(2.0 * m * n * k / seconds for m, n, k, seconds in rows)
        # Published tables often hold the shapes of some models, not a grid.
        lookup = Grid(MATMUL_AXES, rows) if is_grid(rows) else Scatter(rows, self._model(), waves(self.device))
        return lookup, frozenset(row[:3] for row in rows), fastest

    def _rows(self, kind: str) -> tuple[profiles.Row, ...]:
        table = getattr(self.profile.tables, kind)
        return profiles.read_table(table, kind) if table else ()

    @functools.cached_property
    def _largest(self) -> tuple[float, ...]:
        return tuple(map(max, zip(*self._matmul_lookup[1], strict=True)))

    def _model(self) -> Callable[..., float]:
        table = self.profile.tables.matmul
        dtype = (table and table.dtype) or 'fp32'
        peak, width = self._rate(dtype, 'of the matmul table', self._matrix), BYTES[dtype]

        def seconds(m: float, n: float, k: float) -> float:
            return by_products(self.device, peak, (m, n, k), width * (m * n + n * k + m * k)).seconds

        return seconds

    def _attention(self, op: program.OpClass) -> ComputeCost:
        """The forward by table or share of the peak; the backward takes ``backward`` times as long."""
        backward = self.device.attention.backward
        # Tables have forwards only; a flash backward does 5 products to the forward's 2, and some more work.
        factor = 1.0 if op.phase == 'F' else backward.value * _of_keys(op)
        flops = factor * forward_flops(op)
        table = self.profile.tables.attention
        rests: list[hardware.Grade] = [] if op.phase == 'F' else [backward.grade]
        times = '' if op.phase == 'F' else f'{factor:g} × the forward, '
        if table is None or not _alike(op.dtype, table.dtype):
            peak = self._rate(op.dtype, op.name, self._matrix)
            return _priced(by_attention(self.device, peak, flops, op.bytes), times, rests)
        lookup, fastest = self._attention_lookup
        share = _seen(op)
        seconds = factor * sum(part * lookup(*point) for part, point in _attention_points(op))
        if share != 1:
            # Tables have no windows and no documents: what is scaled or put together is an estimate.
            times, rests = f'{times}{share:.3g} of the pairs of tokens, ', [*rests, 'estimate']
        if 'pairs' in op.dims:
            # Nor parts: the table is read at the sequence that has as many pairs.
            times, rests = f'{times}at the sequence of as many pairs of tokens, ', [*rests, 'estimate']
        if 'value_dim' in op.dims:
            # Nor values of another width than keys: the table is read at the mean of both.
            times, rests = f'{times}at the mean width of keys and values, ', [*rests, 'estimate']
        why = f'{times}by the attention table: {op.flops / seconds / 1e12:.4g} TFLOP/s'
        return _cost(seconds, flops / fastest, why, hardware.worst([table.grade, *rests]))

    @functools.cached_property
    def _attention_lookup(self) -> tuple[Callable[..., float], float]:
        return _grid_of_attention(self._rows('attention'))

    def _streaming(self, op: program.OpClass) -> ComputeCost:
        """The operator's own curve over bytes where it was measured; memory or vector rate elsewhere."""
        table = self.profile.tables.operator
        curve = self._operator_curves.get((op.operator, op.phase)) if op.bytes else None
        # What has no rate of its own, as integers and masks, is taken at that of fp32.
        dtype = op.dtype if op.dtype in self._vector else 'fp32'
        if table is None or curve is None:
            vector = self._rate(dtype, op.name, self._vector)
            return _priced(by_streaming(self.device, vector, op.flops, op.bytes))
        seconds, grade, how = curve(op.bytes), table.grade, ''
        if curve.is_outside(op.bytes):
            vector = self._rate(dtype, op.name, self._vector)
            sizes = op.bytes, curve.smallest
            here, there = (
                by_streaming(self.device, vector, op.flops * size / op.bytes, size).seconds for size in sizes
            )
            seconds, grade, how = curve(sizes[1]) * here / there, hardware.worst([grade, 'estimate']), ', extrapolated'
        why = f'by the curve of {op.operator}.{op.phase}: {op.bytes / seconds / 1e9:.4g} GB/s{how}'
        return _cost(seconds, op.bytes * curve.best, why, grade)

    @functools.cached_property
    def _operator_curves(self) -> dict[tuple[str, str], Curve]:
        points: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for operator, phase, size, seconds in self._rows('operator'):
            points.setdefault((operator, phase), []).append((size, seconds))
        return {key: Curve(curve) for key, curve in points.items()}

    @functools.cached_property
    def _vector(self) -> Mapping[str, hardware.FlopsFigure]:
        return {str(dtype): figure for dtype, figure in self.device.vector.items()}

    @functools.cached_property
    def _matrix(self) -> Mapping[str, hardware.FlopsFigure]:
        """What the matrix units cannot do, the vector units do."""
        # The later wins: a matrix rate takes the place of the vector rate.
        return {str(dtype): figure for dtype, figure in (*self.device.vector.items(), *self.device.matrix.items())}

    def _rate(self, dtype: str, op: str, rates: Mapping[str, hardware.FlopsFigure]) -> hardware.FlopsFigure:
        if dtype not in rates:
            what = f'{self.device.name} has no rate for {dtype} (op {op})'
            raise ProfileError(Problem(self.profile.name, what, f'choose a precision among {", ".join(rates)}'))
        return rates[dtype]


def _grid_of_attention(rows: tuple[profiles.Row, ...]) -> tuple[Callable[..., float], float]:
    fastest = max(2.0 * pairs * sequence**2 * width / seconds for _, width, sequence, pairs, seconds in rows)
    # Of one size alone nobody knows how little less than it takes.
    sizes = [len({row[place] for row in rows}) for place in range(len(_ATTENTION))]
    axes = [
        axis if size > 1 else axis._replace(below=axis.beyond) for axis, size in zip(_ATTENTION, sizes, strict=True)
    ]
    grid, longest = Grid(axes, rows), float(max(row[2] for row in rows))

    def seconds(queries: float, width: float, sequence: float, pairs: float) -> float:
        # A longer sequence has more rows of blocks, which fill a device as those of more heads do: few heads are no
        # longer few. A device that is full already is no slower than on the longest that was measured.
        more = max(sequence / longest, 1.0)
        filled = more * grid(queries, width, sequence / more, pairs * more)
        return min(filled, grid(queries, width, sequence, pairs))

    return seconds, fastest


def _cost(seconds: float, best: float, why: str, grade: hardware.Grade) -> ComputeCost:
    # A measured row may beat the best rate of its neighbours; best is never the slower.
    return ComputeCost(seconds, min(seconds, best), f'{why} ({grade})', grade)


def _product_size(op: program.OpClass) -> tuple[int, int, int]:
    """m, n, k of a product; a grouped one is priced as one product of all experts' rows.

    It is one kernel, whose tiles of all experts fill the device together. The rows of each expert fill whole tiles.
    Where they are what is summed over (W), each expert has a result of its own.
    """
    m, n, k = (op.dims[name] for name in 'mnk')
    groups = op.dims.get('groups', 1)
    if groups == 1:
        return m, n, k
    if op.phase == 'W':
        return m * groups, n, -(-k // groups)
    return groups * -(-m // (groups * GROUP_TILE)) * GROUP_TILE, n, k


def _product(op: program.OpClass, m: int, n: int, k: int) -> program.OpClass:
    moved = BYTES[op.dtype] * (m * n + n * k + m * k)
    return dataclasses.replace(op, dims={'m': m, 'n': n, 'k': k}, flops=2.0 * m * n * k, bytes=float(moved))


def _priced(estimate: Estimate, times: str = '', rests: Sequence[hardware.Grade] = ()) -> ComputeCost:
    kernel = (estimate.seconds - max(estimate.best, 0.0)) * 1e6
    why = f'{times}roofline: {estimate.bound}, {kernel:.3g} us above its best'
    return _cost(estimate.seconds, estimate.best, why, hardware.worst([*estimate.figures, *rests]))


def _alike(dtype: str, measured: str | None) -> bool:
    # Both are 16 bits wide, so that a table of one is taken for the other.
    return dtype == measured or (dtype in HALF and measured in HALF)


def forward_flops(op: program.OpClass) -> float:
    """Of causal attention: two products over s² / 2 pairs of positions for each head, fewer with a window."""
    dims = op.dims
    return 4.0 * dims['batch'] * dims['heads'] * _pairs(op) * _width(op) * _seen(op)


def _pairs(op: program.OpClass) -> float:
    """Pairs of positions; of a part of attention it says itself how many these are."""
    return float(op.dims.get('pairs', op.dims['sequence'] ** 2 / 2))


def _width(op: program.OpClass) -> float:
    """Features of a product of attention: the mean of those of keys and of values."""
    keys = op.dims['head_dim']
    return (keys + op.dims.get('value_dim', keys)) / 2


def _of_keys(op: program.OpClass) -> float:
    """What the backward does more than its share where keys are wider: 3 of its 5 products are as wide as keys."""
    keys = op.dims['head_dim']
    return (3 * keys + 2 * op.dims.get('value_dim', keys)) / 5 / _width(op)


def _seen(op: program.OpClass) -> float:
    """Pairs of tokens within a window and a document, as a share of those of causal attention without either."""
    return seen(counts_of(op.dims), op.dims.get('window', 0), op.dims['sequence'])


def _attention_points(op: program.OpClass) -> Iterator[tuple[float, tuple[float, float, float, float]]]:
    """For each length of documents the share of its time that counts, and the point of its time.

    The point has queries for each key and value head, width of a head, sequence, heads over all samples. A length
    counts by its share of a sample's tokens, at the time of samples that are full of it: documents run side by side.
    """
    dims = op.dims
    queries = dims['heads'] / dims.get('kv_heads', dims['heads'])
    if 'pairs' in dims:
        # A part of attention is as the causal sequence that has as many pairs.
        yield 1.0, (queries, _width(op), math.sqrt(2 * dims['pairs']), dims['batch'] * dims['heads'])
        return
    sequence, pairs, window = dims['sequence'], dims['batch'] * dims['heads'], dims.get('window', 0)
    for length, count in counts_of(dims).items():
        share = count * length / sequence
        yield share * seen({length: 1}, window, length), (queries, _width(op), length, pairs * sequence / length)


@dataclass(frozen=True, slots=True)
class Estimate:
    """``seconds``; ``best``, without the fixed time of a kernel and at full efficiency; what bounds it; figures."""

    seconds: float
    best: float
    bound: str
    figures: tuple[hardware.Figure, ...]


def memory_rate(device: hardware.Device) -> float:
    """Bytes a second that streaming kernels reach."""
    return device.memory.bandwidth.value * device.memory.share.value


def by_products(
    device: hardware.Device, peak: hardware.FlopsFigure, size: tuple[float, float, float], moved: float
) -> Estimate:
    """kernel + max(2mnk / (peak · share) · (1 + half_area / mn) · (1 + half_depth / k), bytes / memory).

    Arguments: ``size``, (m, n, k); ``moved``, bytes to and from memory.
    The form is ours: with its four constants fitted on 3,000 rows each it meets the other rows of four measured tables
    (A100, H100, H200, B200; n, k ≥ 256) within 5.5 to 7.8 % in the median. It rises with each of m, n and k.
    Does not model: steps where one more tile needs one more wave.
    """
    m, n, k = size
    shape, kernel, memory = device.matmul, device.kernel.matrix, device.memory
    full = peak.value * shape.share.value
    best = 2.0 * m * n * k / full
    # Small m × n leaves multiprocessors idle; small k never amortises loading and storing a tile.
    waste = (1 + shape.half_area.value / (m * n)) * (1 + shape.half_depth.value / k)
    streamed = moved / memory_rate(device)
    bound = f'{1 / waste:.0%} of {full / 1e12:.4g} TFLOP/s at its size'
    figures: tuple[hardware.Figure, ...] = (peak, shape.share, shape.half_area, shape.half_depth)
    # Told by what bounds it, for ``why``.
    if streamed > best * waste:
        bound, figures = _by_memory(device), (memory.bandwidth, memory.share)
    return _with_kernel(kernel, max(best * waste, streamed), best, bound, figures)


def by_streaming(device: hardware.Device, vector: hardware.FlopsFigure, flops: float, moved: float) -> Estimate:
    """kernel + max(bytes / memory, FLOPs / vector)."""
    kernel, memory = device.kernel.memory, device.memory
    streamed, computed = moved / memory_rate(device), flops / vector.value
    best = max(streamed, computed)
    if computed > streamed:
        return _with_kernel(kernel, best, best, f'vector units at {vector.value / 1e12:.4g} TFLOP/s', (vector,))
    return _with_kernel(kernel, best, best, _by_memory(device), (memory.bandwidth, memory.share))


def by_attention(device: hardware.Device, peak: hardware.FlopsFigure, flops: float, moved: float) -> Estimate:
    """kernel + max(FLOPs / (peak · share), bytes / memory).

    Arguments: ``flops`` of the forward, or its multiple that stands for the backward's time.
    Does not model: too few heads and samples to fill the device.
    """
    share, kernel = device.attention.share, device.kernel.matrix
    best = max(flops / (peak.value * share.value), moved / memory_rate(device))
    return _with_kernel(kernel, best, best, f'{share.value:.0%} of the matrix peak', (peak, share))


def _with_kernel(
    kernel: hardware.TimeFigure, work: float, best: float, bound: str, figures: tuple[hardware.Figure, ...]
) -> Estimate:
    seconds = kernel.value + work
    return Estimate(seconds, best, bound, major(seconds, [(kernel.value, (kernel,)), (work, figures)]))


def _by_memory(device: hardware.Device) -> str:
    return f'memory at {memory_rate(device) / 1e9:.4g} GB/s'


TILES: Final = ((128, 128), (256, 128), (128, 256))
"""Rows and columns of a result that one multiprocessor works on: those of cuBLAS and CUTLASS for large products."""


def waves(device: hardware.Device) -> Callable[..., tuple[float, ...]]:
    """m, n, k → for each size of tiles log(slots in its waves / tiles that the result's area needs).

    A wave is one tile on each multiprocessor. Its slots stay empty where tiles reach beyond the result, and in the last
    wave. Which tile a library takes is not told; two products that fill a device alike by all of them cost alike.
    """
    if device.multiprocessors is None:
        return lambda m, n, k: ()
    at_once = device.multiprocessors.value

    def unfilled(m: float, n: float, k: float) -> Iterator[float]:
        for rows, columns in TILES:
            slots = math.ceil(math.ceil(m / rows) * math.ceil(n / columns) / at_once) * at_once
            yield math.log(slots * rows * columns / (m * n))

    return lambda m, n, k: tuple(unfilled(m, n, k))


STAGE: Final = 'stage.F'
"""The key of what the host does where the forward of each stage but the first begins, beside what its ops launch."""
_TILE: Final = re.compile(r'\.tile(\d+)\.')
ONE: Final = hardware.Launches(kernels=1, source='one kernel, which moves the bytes of the operator')


class StackCompute:
    """Compute as a stack issues it on a device.

    An op lasts as long as the profile says of its one kernel, longer where clocks are lower under load; each further
    kernel adds its fixed time, and the bytes that it moves at the rate of streaming kernels.
    """

    def __init__(self, inner: ComputeModel, profile: hardware.Profile, stack: hardware.Stack) -> None:
        self.inner = inner
        self.profile = profile
        self.stack = stack
        by_pattern = [(re.compile(translate(key)), launches) for key, launches in stack.launches.items() if '*' in key]
        # Of the patterns that fit, the last counts.
        self._by_pattern = by_pattern[::-1]
        self._named: dict[str, hardware.Launches | None] = {}

    def launches(self, op: program.OpClass) -> hardware.Launches:
        """What an op launches: as of its name, of its operator and phase, or one kernel."""
        kind = f'{op.operator}.{op.phase}'
        if op.name not in self._named:
            named = (launch for pattern, launch in self._by_pattern if pattern.match(op.name))
            self._named[op.name] = next(named, None)
        launch = self._named[op.name] or self.stack.launches.get(kind, ONE)
        if not launch.multiple or not _batches(op) % launch.multiple:
            return launch
        return self.stack.launches.get(f'{kind}.odd', launch)

    def seconds(self, op: program.OpClass) -> ComputeCost:
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
        rests: Sequence[hardware.Figure] = [kernel] if more > MINOR * cost.seconds else []
        why = f'{cost.why}; {launches.kernels} kernels in {self.stack.name}, {more * 1e6:.3g} us more'
        seconds = max(kernel.value, cost.seconds + more)
        return ComputeCost(seconds, min(seconds, cost.best), why, hardware.worst([cost.grade, *rests]))

    def side_by_side(self, op: program.OpClass) -> int:
        """How many tiles of a product run beside one another; 1 of all else."""
        streams = self.stack.tile_streams
        if streams is None or op.operator != 'matmul' or not _TILE.search(op.name):
            return 1
        return min(streams.count, int(op.attributes.get('tiles', streams.count)))

    def captured(self, op: program.OpClass) -> bool:
        """Whether a graph that was captured before launches an op."""
        graphs = self.stack.graphs
        return graphs is not None and _named(op.name, graphs.ops)

    def tile_seconds(self, op: program.OpClass) -> float | None:
        """Seconds in which the library issues an op of a tile; None of an op that the host issues by a call of its own.

        That is the first product of all tiles, whose call issues the others, and all that is in no tile.
        """
        call, tile = self.stack.tile_call, _TILE.search(op.name)
        if call is None or tile is None:
            return None
        if op.kind == 'collective':
            return call.message * call.each.value
        return call.product * call.each.value if op.operator == 'matmul' and int(tile[1]) else None

    def _side_by_side(self, op: program.OpClass) -> ComputeCost:
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

    @functools.cached_property
    def _rate(self) -> float:
        return memory_rate(self.profile.device)

    def _moved(self, op: program.OpClass, launches: hardware.Launches) -> float:
        """Bytes that kernels beside the first one move."""
        if op.operator not in PRODUCTS or not op.dims:
            # Fewer than one pass: a kernel that skips what is masked.
            return (launches.passes - 1) * op.bytes + (launches.blocks * _further_blocks(op) if launches.blocks else 0)
        m, n, k = (op.dims[key] for key in ('m', 'n', 'k'))
        return launches.result * m * n + launches.left * m * k + launches.right * k * n

    def _at_clocks(self, op: program.OpClass, cost: ComputeCost) -> ComputeCost:
        """Matrix units at the clocks that they keep under load.

        Does not model: that what memory bounds keeps its time.
        """
        sustained = self.profile.device.sustained
        # A kernel of attention leaves the units idle half of the time, which keeps the power and so the clocks.
        if sustained is None or op.operator not in MATRIX or self._own_attention(op):
            return cost
        seconds = cost.seconds / sustained.value
        return dataclasses.replace(cost, seconds=seconds, grade=hardware.worst([cost.grade, sustained]))

    def _attention(self, op: program.OpClass, cost: ComputeCost) -> ComputeCost:
        """The stack's kernel of fused attention in place of the table's."""
        kernel, share = self.stack.attention, self._own_attention(op)
        peaks = {str(dtype): figure for dtype, figure in self.profile.device.matrix.items()}
        if kernel is None or share is None or not op.dims or op.dtype not in peaks:
            return cost
        # By the kernel's share of the peak: the table is of another kernel, which treats narrow heads otherwise.
        device = dataclasses.replace(
            self.profile.device, attention=dataclasses.replace(self.profile.device.attention, share=share)
        )
        factor = 1.0 if op.phase == 'F' else kernel.backward.value
        estimate = by_attention(device, peaks[op.dtype], forward_flops(op) * factor, op.bytes)
        why = f'attention of {self.stack.name}: {estimate.bound}'
        grade = hardware.worst([*estimate.figures, share, *([] if op.phase == 'F' else [kernel.backward])])
        return ComputeCost(estimate.seconds, min(cost.best, estimate.seconds), why, grade)

    def _own_attention(self, op: program.OpClass) -> hardware.ShareFigure | None:
        """The share of the peak of the stack's kernel for an op; None where the device's own prices it."""
        kernel, table = self.stack.attention, self.profile.tables.attention
        if kernel is None or (table is not None and not kernel.tables):
            return None
        if op.operator != 'attention' and not (kernel.parts and op.operator == attention.CONTEXT_ATTENTION):
            return None
        return kernel.share_on(self.profile.device.name)

    def sent(self, op: program.OpClass, shared: float, routed: Mapping[str, int]) -> program.OpClass:
        """A message as the stack sends it.

        Arguments: ``shared``, query heads for each key head under context ranks; ``routed``, dims that tell to how many
        experts a token goes, empty without any.
        """
        if op.kind != 'collective':
            return op
        if routed and dispatches(self.stack, op):
            return dataclasses.replace(op, dims={**op.dims, **routed})
        times = self.launches(op).sent * shared
        return dataclasses.replace(op, bytes=op.bytes * times) if times > 1 else op

    def copied(self, op: program.OpClass) -> float:
        """Seconds in which what stands beside a collective copies what it sends or receives, and calls what does so."""
        return self.copying(op) + self.calling(op)

    def copying(self, op: program.OpClass) -> float:
        """The part of ``copied`` that goes with bytes."""
        return (self.launches(op).passes - 1) * op.bytes / self._rate if op.kind == 'collective' else 0.0

    def calling(self, op: program.OpClass) -> float:
        """The part of ``copied`` that each message takes: calls of a thread that is the device itself, of a CPU."""
        device, host = self.profile.device, self.profile.host
        beside = host.seconds.value > 0 or op.kind != 'collective'
        return 0.0 if beside else self.launches(op).calls * device.kernel.memory.value


def dispatches(stack: hardware.Stack, op: program.OpClass) -> bool:
    """Whether an op sends tokens to experts as the stack does it, once to each node."""
    return stack.dispatch is not None and op.operator == PAIRWISE and _named(op.name, stack.dispatch.ops)


def _named(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _further_blocks(op: program.OpClass) -> float:
    """Elements of a result of attention for each rank but one whose keys it sees."""
    dims = op.dims
    ranks = dims.get('keys', dims['sequence']) / dims['sequence']
    return (ranks - 1) * dims['batch'] * dims['sequence'] * dims['heads'] * dims.get('value_dim', dims['head_dim'])


def _batches(op: program.OpClass) -> int:
    """Heads × samples of a rank, of a product of attention: its result, or its left operand, is so many squares."""
    if op.operator != 'attention_scores' or not op.dims:
        return 0
    # Forward [heads · tokens, tokens]; backward both operands' gradients in one.
    return op.dims['m'] // (op.dims['n'] if op.phase == 'F' else 2 * op.dims['k'])
