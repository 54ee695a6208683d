"""Formulas for compute where no table was measured: seconds, and seconds without what makes small ops slow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simpar.hardware import Device, Figure, FlopsFigure, TimeFigure

MINOR = 0.1
Part = tuple[float, tuple[Figure, ...]]
"""A term of a sum of seconds, and the figures that it rests on."""


def major(seconds: float, parts: Iterable[Part]) -> tuple[Figure, ...]:
    """The figures that decide how well a sum is known: those of terms of at least a tenth of it."""
    # A rough guess at a minor term does not make a sum rough.
    return tuple(figure for part, figures in parts if part >= MINOR * seconds for figure in figures)


@dataclass(frozen=True, slots=True)
class Estimate:
    """``seconds``; ``best``, without the fixed time of a kernel and at full efficiency; what bounds it; figures."""

    seconds: float
    best: float
    bound: str
    figures: tuple[Figure, ...]


def memory_rate(device: Device) -> float:
    """Bytes a second that streaming kernels reach."""
    return device.memory.bandwidth.value * device.memory.share.value


def matmul(device: Device, peak: FlopsFigure, size: tuple[float, float, float], moved: float) -> Estimate:
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
    figures: tuple[Figure, ...] = (peak, shape.share, shape.half_area, shape.half_depth)
    # Told by what bounds it, for ``why``.
    if streamed > best * waste:
        bound, figures = _by_memory(device), (memory.bandwidth, memory.share)
    return _with_kernel(kernel, max(best * waste, streamed), best, bound, figures)


def streaming(device: Device, vector: FlopsFigure, flops: float, moved: float) -> Estimate:
    """kernel + max(bytes / memory, FLOPs / vector)."""
    kernel, memory = device.kernel.memory, device.memory
    streamed, computed = moved / memory_rate(device), flops / vector.value
    best = max(streamed, computed)
    if computed > streamed:
        return _with_kernel(kernel, best, best, f'vector units at {vector.value / 1e12:.4g} TFLOP/s', (vector,))
    return _with_kernel(kernel, best, best, _by_memory(device), (memory.bandwidth, memory.share))


def attention(device: Device, peak: FlopsFigure, flops: float, moved: float) -> Estimate:
    """kernel + max(FLOPs / (peak · share), bytes / memory).

    Arguments: ``flops`` of the forward, or its multiple that stands for the backward's time.
    Does not model: too few heads and samples to fill the device.
    """
    share, kernel = device.attention.share, device.kernel.matrix
    best = max(flops / (peak.value * share.value), moved / memory_rate(device))
    return _with_kernel(kernel, best, best, f'{share.value:.0%} of the matrix peak', (peak, share))


def _with_kernel(kernel: TimeFigure, work: float, best: float, bound: str, figures: tuple[Figure, ...]) -> Estimate:
    seconds = kernel.value + work
    return Estimate(seconds, best, bound, major(seconds, [(kernel.value, (kernel,)), (work, figures)]))


def _by_memory(device: Device) -> str:
    return f'memory at {memory_rate(device) / 1e9:.4g} GB/s'
