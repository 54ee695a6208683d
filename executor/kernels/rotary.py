"""Rotary position embedding of the queries and keys of fused ``qkv``; the backward turns the other way.

B batch, S sequence, G groups (key/value heads on this rank), C columns (queries, key and value), D head_dim.
"""

from __future__ import annotations

from math import pi

import torch

from executor.kernels.context import Context, position
from executor.kernels.precision import wide
from simpar.program import OpClass


def rotary_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """qkv → qkv, turned."""
    return [_turned(op, where, tensors[0], 1)]


def rotary_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy → dqkv."""
    return [_turned(op, where, tensors[0], -1)]


def frequencies(features: int, theta: float, scaling: list[float]) -> torch.Tensor:
    """Radians a position, [features / 2]; ``scaling`` as of ``Rotation``."""
    found = theta ** (-torch.arange(0, features, 2, dtype=torch.float64) / features)
    if not scaling:
        return found
    factor, *band = scaling
    if not band:
        return found / factor
    low, high, original = band
    turns = original * found / (2 * pi)
    # 0 where waves are long, 1 where they are short.
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return found * (kept + (1 - kept) / factor)


def _turned(op: OpClass, where: Context, qkv: torch.Tensor, sign: int) -> torch.Tensor:
    groups, queries, head_dim, rotated = (
        int(op.attributes[key]) for key in ('groups', 'queries', 'head_dim', 'rotated')
    )
    sequence = qkv.shape[1]
    scaling = [float(number) for number in str(op.attributes.get('scaling', '')).split()]
    radians = frequencies(rotated, float(op.attributes['theta']), scaling)
    # A rank with a part of the sequence has positions that begin further down.
    places = torch.arange(sequence, dtype=torch.float64) + position(op, where) * sequence
    angles = torch.outer(places, radians)[None, :, None, None, :]
    cos, sin = (part.to(wide(qkv)) for part in (angles.cos(), angles.sin() * sign))
    y_BSGCD = qkv.unflatten(-1, (groups, queries + 2, head_dim)).clone()
    # Values, the last column, are not turned.
    turned = y_BSGCD[..., : queries + 1, :rotated]
    one, other = (half.clone() for half in wide(turned).chunk(2, -1))
    turned.copy_(torch.cat([one * cos - other * sin, other * cos + one * sin], -1))
    return y_BSGCD.flatten(2)


KERNELS = {('rotary', 'F'): rotary_forward, ('rotary', 'I'): rotary_dx}
