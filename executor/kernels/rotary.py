"""Rotary position embedding of the queries and keys of fused ``qkv``; the backward turns the other way.

B batch, S sequence, G groups (key/value heads on this rank), C columns (queries, key and value), D head_dim.
"""

from __future__ import annotations

from math import ceil, floor, log, pi

import torch

from executor.constants import on_device
from executor.kernels.context import Context
from executor.kernels.places import places
from executor.kernels.precision import wide
from simpar.program import OpClass


def rotary_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """qkv → qkv, turned."""
    return [_turned(op, where, tensors[0])]


def rotary_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy → dqkv."""
    return [_turned(op, where, tensors[0], back=True)]


def frequencies(features: int, theta: float, scaling: list[float]) -> torch.Tensor:
    """Radians a position, [features / 2]; ``scaling`` as of ``Rotation``."""
    found = theta ** (-torch.arange(0, features, 2, dtype=torch.float64) / features)
    if not scaling:
        return found
    factor, *band = scaling
    if not band:
        return found / factor
    if len(band) == 4:
        return _yarn(found, theta, factor, *band[:3])
    low, high, original = band
    turns = original * found / (2 * pi)
    # 0 where waves are long, 1 where they are short.
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return found * (kept + (1 - kept) / factor)


def _yarn(found: torch.Tensor, theta: float, factor: float, original: float, fast: float, slow: float) -> torch.Tensor:
    """Divided by the factor behind a ramp over features, from those that turn ``fast`` times to those of ``slow``."""
    features = 2 * len(found)
    first, last = (features * log(original / (turns * 2 * pi)) / (2 * log(theta)) for turns in (fast, slow))
    low, high = max(floor(first), 0), min(ceil(last), features - 1)
    divided = ((torch.arange(len(found), dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return found * (1 - divided + divided / factor)


def _numbers(op: OpClass, key: str) -> list[float]:
    return [float(number) for number in str(op.attributes.get(key, '')).split()]


def turned(op: OpClass, where: Context, x: torch.Tensor, *, back: bool = False) -> torch.Tensor:
    """x [B, S, ..., features], every feature turned by its position; ``back``, the transpose of that."""
    sequence = x.shape[1]
    scaling, factors = _numbers(op, 'scaling'), _numbers(op, 'factors')
    radians = frequencies(x.shape[-1], float(op.attributes['theta']), scaling)
    if factors:
        radians = radians / torch.tensor(factors, dtype=torch.float64)
    magnitude = scaling[4] if len(scaling) == 5 else float(op.attributes.get('magnitude', 1.0))
    angles = torch.outer(places(op, where, sequence).double(), radians).reshape(1, sequence, *(1,) * (x.ndim - 3), -1)
    both = (angles.cos(), angles.sin() * (-1 if back else 1))
    cos, sin = (on_device((part * magnitude).to(wide(x).dtype), x) for part in both)
    interleaved = bool(op.attributes.get('interleaved', False))
    one, other = (x[..., 0::2], x[..., 1::2]) if interleaved and not back else x.chunk(2, -1)
    halves = wide(one) * cos - wide(other) * sin, wide(other) * cos + wide(one) * sin
    # Pairs come out as halves, so backward they go from halves to pairs.
    y = torch.stack(halves, -1).flatten(-2) if interleaved and back else torch.cat(halves, -1)
    return y.to(x.dtype)


def _turned(op: OpClass, where: Context, qkv: torch.Tensor, *, back: bool = False) -> torch.Tensor:
    groups, queries, head_dim, rotated = (
        int(op.attributes[key]) for key in ('groups', 'queries', 'head_dim', 'rotated')
    )
    y_BSGCD = qkv.unflatten(-1, (groups, queries + 2, head_dim)).clone()
    # Values, the last column, are not turned.
    part = y_BSGCD[..., : queries + 1, :rotated]
    part.copy_(turned(op, where, part, back=back))
    return y_BSGCD.flatten(2)


KERNELS = {('rotary', 'F'): rotary_forward, ('rotary', 'I'): rotary_dx}
