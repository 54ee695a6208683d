"""Whether a step fits on its devices, and what would."""

from __future__ import annotations

from simpar.errors import Infeasible
from simpar.memory.answer import peak_summary
from simpar.memory.memory import Memory
from simpar.units import format_size


def check_fit(memory: Memory, size: float, *, batch: int, multiple: int = 1) -> None:
    """Compare the fullest rank with the memory of its device.

    Arguments:
        size: bytes of a device.
        batch: samples of a step, a multiple of ``multiple`` (data × micro-batches × copies) in every plan of this
            kind.
    Raises ``Infeasible`` with the op at the peak and the largest batch that fits.
    """
    fullest = memory.fullest
    if fullest.peak_bytes <= size:
        return
    over = format_size(fullest.peak_bytes - size)
    raise Infeasible(f'{over} too much: {peak_summary(fullest, size)}; {_would_fit(memory, size, batch, multiple)}')


def _would_fit(memory: Memory, size: float, batch: int, multiple: int) -> str:
    # A share that is exact but for rounding counts as exact.
    largest = int(batch * memory.share_that_fits(size) + 1e-9) // multiple * multiple
    if largest:
        return f'a batch of {largest} instead of {batch} would fit'
    # If even this does not fit, a smaller batch is no help, and the message says what is.
    fixed = max(rank.peak_without_batch for rank in memory.ranks)
    if fixed > size:
        what = f'parameters, gradients and states alone take {format_size(fixed)}'
        return f'no batch would fit, for {what}: shard them over more ranks'
    return f'not even the smallest batch, {multiple}, would fit: shard each sample over more ranks'
