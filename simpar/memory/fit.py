"""Whether a step fits on its devices, how surely that is known, and what would fit."""

from __future__ import annotations

from math import inf
from typing import Final

from simpar.errors import Infeasible
from simpar.hardware import Cluster
from simpar.memory.memory import Memory, peak_summary
from simpar.units import format_size

ABOVE: Final = 0.17
"""How far predicted peaks lay above what runs were reported to hold, at most (docs/field.md, tests/test_field.py)."""


def margin_of(cluster: Cluster) -> float:
    """The share by which a peak may be predicted too high: none of a device alone, any where a stack tells nothing."""
    if cluster.stack is None:
        return 0.0
    return ABOVE if cluster.stack.memory else inf


def fits(memory: Memory, size: float, margin: float = 0.0) -> bool | None:
    """Whether no rank holds more than a device; None where that is not known.

    Arguments: ``size``, bytes of a device; ``margin``, as of ``margin_of``. Weights, states and gradients, which no
    batch changes, are known under any framework.
    """
    if memory.peak <= size:
        return True
    if memory.peak > size * (1 + margin) or _fixed(memory) > size * (1 + min(margin, ABOVE)):
        return False
    return None


def check_fit(memory: Memory, size: float, *, batch: int, multiple: int = 1, margin: float = 0.0) -> None:
    """Compare the fullest rank with the memory of its device.

    Arguments:
        size: bytes of a device.
        batch: samples of a step, a multiple of ``multiple`` (data × micro-batches × copies) in every plan of this
            kind.
        margin: as of ``fits``.
    Raises ``Infeasible``, where it is known not to fit, with the op at the peak and the largest batch that fits.
    """
    if fits(memory, size, margin) is not False:
        return
    fullest = memory.fullest
    over = format_size(fullest.peak_bytes - size)
    raise Infeasible(f'{over} too much: {peak_summary(fullest, size)}; {_would_fit(memory, size, batch, multiple)}')


def _fixed(memory: Memory) -> int:
    """Bytes that the fullest rank holds at the peak of what does not grow with the batch."""
    return max(rank.peak_without_batch for rank in memory.ranks)


def _would_fit(memory: Memory, size: float, batch: int, multiple: int) -> str:
    # A share that is exact but for rounding counts as exact.
    largest = int(batch * memory.share_that_fits(size) + 1e-9) // multiple * multiple
    if largest:
        return f'a batch of {largest} instead of {batch} would fit'
    # If even this does not fit, a smaller batch is no help, and the message says what is.
    fixed = _fixed(memory)
    if fixed > size:
        what = f'parameters, gradients and states alone take {format_size(fixed)}'
        return f'no batch would fit, for {what}: shard them over more ranks'
    return f'not even the smallest batch, {multiple}, would fit: shard each sample over more ranks'
