"""Layouts as bits: for each dim of a tensor, the bits of a device's index that split it, the most significant first."""

from __future__ import annotations

from simpar.errors import Infeasible

Bits = tuple[tuple[int, ...], ...]
"""By tensor dim, the bits that split it; bit 0 is the most significant of a device's index.

A bit that splits no dim tells devices apart that hold the same slice: over it the tensor is replicated. Two layouts are
equal when the bits are, not only when the counts are."""


def device_bits(devices: int) -> int:
    """log2 of the devices; raises Infeasible where that is no whole number."""
    if devices < 1 or devices & (devices - 1):
        raise Infeasible(
            f'strategy search: {devices} devices are not a power of two, and every loop of this search halves; write '
            '2, 4, 8, … devices, or plan.search: exact'
        )
    return devices.bit_length() - 1


def used(layout: Bits) -> frozenset[int]:
    """Bits that split some dim."""
    return frozenset(bit for dim in layout for bit in dim)


def counts(layout: Bits) -> tuple[int, ...]:
    """Into how many slices each dim is split."""
    return tuple(1 << len(dim) for dim in layout)


def twos(number: int) -> int:
    """How often a number can be halved."""
    return (number & -number).bit_length() - 1 if number else 0
