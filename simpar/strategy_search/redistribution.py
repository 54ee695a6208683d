"""What it moves to get a tensor from one layout to another: the seam to ``simpar.layout``."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from simpar.layout import Axis, TensorLayout, redistribute
from simpar.strategy_search.bits import Bits
from simpar.strategy_search.graph import Shape


def redistribution_bytes(source: Bits, target: Bits, shape: Shape, itemsize: int = 4) -> float:
    """Bytes that a device receives while a tensor goes from one layout to another, by the cheapest sequence.

    The backward moves as much: an all-gather's is a reduce-scatter, and a slice's moves nothing, where gradients stay
    partial sums. Does not model: latency.
    """
    return 0.0 if source == target else _share(source, target) * prod(shape) * itemsize


@lru_cache(maxsize=1 << 18)
def _share(source: Bits, target: Bits) -> float:
    """Received, as a share of the whole tensor; layouts that differ by names of bits alone are asked for once."""
    dims, common = [], 0
    for now, then in zip(source, target, strict=True):
        kept = 0
        while kept < min(len(now), len(then)) and now[kept] == then[kept]:
            kept += 1
        common += kept
        dims.append((now[kept:], then[kept:]))
    names: dict[int, int] = {}
    for now, then in sorted(dims, key=_form):
        for bit in (*now, *then):
            names.setdefault(bit, len(names))
    renamed = sorted((tuple(map(names.__getitem__, now)), tuple(map(names.__getitem__, then))) for now, then in dims)
    kinds = tuple(dim for dim in renamed if dim != ((), ()))
    return 0.5**common * _asked(kinds, len(names))


def _form(dim: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[int, int]:
    return len(dim[0]), len(dim[1])


@lru_cache(maxsize=1 << 16)
def _asked(dims: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], bits: int) -> float:
    # A free digit between any two bits keeps neighbours from being taken for one axis, which would have to move as one.
    devices = 4**bits
    source, target = (
        TensorLayout(devices, tuple(tuple(Axis(2, devices // 4 ** (bit + 1)) for bit in dim[side]) for dim in dims))
        for side in (0, 1)
    )
    shape = (1 << bits,) * len(dims)
    return float(redistribute(shape, source, target).elements / prod(shape))
