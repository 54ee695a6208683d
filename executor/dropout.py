"""Dropout masks: a hash of a sample's key, of where in the model it is, and of the element's place in the full tensor.

Nothing is drawn in sequence, so every plan, machine and step order gets the same bits of the same mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

import torch

from executor.constants import on_device
from executor.tensors import stable_seed

_BITS: Final = 53


def kept(
    keys_B: torch.Tensor,
    site: str,
    full: Sequence[int],
    probability: float,
    shard: tuple[int, int, int] = (0, 0, 0),
    places: Mapping[int, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Which elements stay, as booleans [B, rest of ``full`` ...], or of one shard of it.

    Arguments:
        full: shape without the batch.
        shard: (dim, first, length), a part along one dim of ``full``; length 0: all.
        places: dim → which places along it, in any order.
    """
    dim, first, length = shard
    rows = [torch.arange(size, device=keys_B.device) for size in full]
    if length:
        rows[dim] = rows[dim][first : first + length]
    for axis, index in (places or {}).items():
        rows[axis] = on_device(index, keys_B)
    # The element's number in the full tensor: a shard computes the same numbers for its part.
    index = torch.zeros((), dtype=torch.int64, device=keys_B.device)
    for axis, row in enumerate(rows):
        shape = [-1 if other == axis else 1 for other in range(len(rows))]
        index = index + row.reshape(shape) * prod(full[axis + 1 :])
    # The site keeps two dropouts of one sample apart.
    start = _mixed(keys_B ^ stable_seed(0, site)).reshape(-1, *(1,) * len(rows))
    # 53 bits, as many as a double's mantissa has; the shift also drops the sign.
    uniform = (_mixed(start + index) >> 10) & ((1 << _BITS) - 1)
    return uniform >= int(probability * (1 << _BITS))


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64 (Steele, Lea and Flood 2014): neighbours become independent. Integers wrap around in torch."""
    x = x * _signed(0x9E3779B97F4A7C15)
    x = (x ^ _right(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _right(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _right(x, 31)


def _right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shifted without the sign."""
    # torch shifts int64 with its sign; SplitMix64 is defined on unsigned words.
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
