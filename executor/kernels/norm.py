"""Norms, rotary positions, and what latent attention has between its products.

B batch, S sequence, G groups (key/value heads on this rank), C columns (queries, key and value), D head_dim.
"""

from collections.abc import Sequence
from functools import partial
from math import ceil, floor, log, pi

import torch
from torch.nn import functional

from executor.devices.fused import fused
from executor.draws import on_device
from executor.kernels.attention import values_of
from executor.kernels.context import Context, Tensor, Tensors, places, rows, wide
from simpar.program import OpClass


def norm_forward(op: OpClass, where: Context, x: Tensor, gain: Tensor, bias: Tensor | None = None) -> Tensors:
    """x, gain[, bias] → y, mean, rstd."""
    return list(torch.native_layer_norm(x, x.shape[-1:], gain, bias, float(op.attributes['epsilon'])))


def norm_dx(op: OpClass, where: Context, dy: Tensor, x: Tensor, gain: Tensor, mean: Tensor, rstd: Tensor) -> Tensors:
    """dy, x, gain, mean, rstd → dx."""
    # aten wants the statistics with a last dim of length 1.
    column = (*x.shape[:-1], 1)
    dx, _, _ = torch.ops.aten.native_layer_norm_backward(
        # Only dx: gradients of the weights are an op of phase W, which may run later.
        dy,
        x,
        x.shape[-1:],
        mean.reshape(column),
        rstd.reshape(column),
        gain,
        None,
        [True, False, False],
    )
    return [dx]


def norm_dw(op: OpClass, where: Context, dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> Tensors:
    """dy, x, mean, rstd → dgain[, dbias]."""
    column = (*x.shape[:-1], 1)
    of_each = [dy * ((x - mean.reshape(column)) * rstd.reshape(column)), dy]
    return [one.flatten(0, -2).sum(0) for one in of_each[: len(op.writes + op.accumulates)]]


def rms_forward(op: OpClass, where: Context, x: Tensor, gain: Tensor) -> Tensors:
    """x, gain → y, rstd."""
    if fused('rms_norm', op, x):
        return list(torch.ops.aten._fused_rms_norm(x, x.shape[-1:], gain, float(op.attributes['epsilon'])))
    # Squares of 16-bit numbers overflow early.
    rstd = (wide(x).square().mean(-1, keepdim=True) + float(op.attributes['epsilon'])).rsqrt()
    return [x * rstd * gain, rstd]


def rms_dx(op: OpClass, where: Context, dy: Tensor, x: Tensor, gain: Tensor, rstd: Tensor) -> Tensors:
    """dy, x, gain, rstd → dx."""
    if fused('rms_norm', op, x):
        shape, column = x.shape[-1:], (*x.shape[:-1], 1)
        wanted = [True, False]
        return [torch.ops.aten._fused_rms_norm_backward(dy, x, shape, rstd.reshape(column), gain, wanted)[0]]
    dy, x, gain, rstd = map(wide, (dy, x, gain, rstd))
    normalised, scaled = x * rstd, dy * gain
    return [rstd * (scaled - normalised * (scaled * normalised).mean(-1, keepdim=True))]


def rms_dw(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """dy, x, rstd → dgain."""
    dy, x, rstd = map(wide, tensors)
    return [(dy * x * rstd).flatten(0, -2).sum(0)]


# RMSNorm of every head of the queries and keys of fused ``qkv``.


def qk_norm_forward(op: OpClass, where: Context, qkv: Tensor, *gains: Tensor) -> Tensors:
    """qkv, gain of queries, gain of keys → qkv, rstd [B, S, G × (C − 1)]."""
    x_BSGCD = _columns(op, qkv)
    rstd = (_mean(op, wide(x_BSGCD[..., :-1, :]).square()) + float(op.attributes['epsilon'])).rsqrt()
    normalised = x_BSGCD[..., :-1, :] * rstd * _gains(op, gains)
    return [_joined(normalised, x_BSGCD), rstd.flatten(2)]


def qk_norm_dx(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """dy, qkv, gain of queries, gain of keys, rstd → dqkv."""
    dy, qkv, q_gain, k_gain, rstd_BSC = map(wide, tensors)
    dy_BSGCD, x_BSGCD, rstd = _columns(op, dy), _columns(op, qkv)[..., :-1, :], _rstd(op, rstd_BSC)
    normalised, scaled = x_BSGCD * rstd, dy_BSGCD[..., :-1, :] * _gains(op, [q_gain, k_gain])
    dx = rstd * (scaled - normalised * _mean(op, scaled * normalised))
    return [_joined(dx, dy_BSGCD)]


def qk_norm_dw(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """dy, qkv, rstd → gradients of the gains."""
    dy, qkv, rstd_BSC = map(wide, tensors)
    of_each = (_columns(op, dy)[..., :-1, :] * _columns(op, qkv)[..., :-1, :] * _rstd(op, rstd_BSC)).sum((0, 1))
    if 'whole' in op.attributes:
        return [of_each[:, :-1].flatten(), of_each[:, -1].flatten()]
    return [of_each[:, :-1].sum((0, 1)), of_each[:, -1].sum(0)]


def _columns(op: OpClass, qkv: Tensor) -> Tensor:
    groups, queries, head_dim = (int(op.attributes[key]) for key in ('groups', 'queries', 'head_dim'))
    return qkv.unflatten(-1, (groups, queries + 2, head_dim))


def _mean(op: OpClass, x_BSGCD: Tensor) -> Tensor:
    """Of each head, or of all queries and of all keys."""
    if 'whole' not in op.attributes:
        return x_BSGCD.mean(-1, keepdim=True)
    queries = x_BSGCD[..., :-1, :]
    of_queries = queries.mean((2, 3, 4), keepdim=True).expand(-1, -1, 1, queries.shape[3], 1)
    return torch.cat([of_queries, x_BSGCD[..., -1:, :].mean((2, 4), keepdim=True)], 3)


def _rstd(op: OpClass, rstd: Tensor) -> Tensor:
    groups = 1 if 'whole' in op.attributes else int(op.attributes['groups'])
    return rstd.unflatten(-1, (groups, -1)).unsqueeze(-1)


def _gains(op: OpClass, gains: Sequence[Tensor]) -> Tensor:
    """[C − 1, D], or [G, C − 1, D]: the gain of queries for each of a group's, then that of keys."""
    q_gain, k_gain = gains
    if 'whole' in op.attributes:
        groups, queries, head_dim = (int(op.attributes[key]) for key in ('groups', 'queries', 'head_dim'))
        return torch.cat([q_gain.view(groups, queries, head_dim), k_gain.view(groups, 1, head_dim)], 1)
    return torch.cat([q_gain.expand(int(op.attributes['queries']), -1), k_gain.unsqueeze(0)])


def _joined(queries_and_keys: Tensor, source: Tensor) -> Tensor:
    """With the values of a source behind them."""
    return torch.cat([queries_and_keys, source[..., -1:, :]], -2).flatten(2)


# Rotary position embedding of the queries and keys of fused ``qkv``; the backward turns the other way.


def frequencies(features: int, theta: float, scaling: list[float]) -> Tensor:
    """Radians a position, [features / 2]; ``scaling`` as of ``Rotation``."""
    radians = theta ** (-torch.arange(0, features, 2, dtype=torch.float64) / features)
    if not scaling:
        return radians
    factor, *band = scaling
    if not band:
        return radians / factor
    if len(band) == 4:
        return _yarn(radians, theta, factor, *band[:3])
    low, high, original = band
    turns = original * radians / (2 * pi)
    # 0 where waves are long, 1 where they are short.
    ramp = ((turns - low) / (high - low)).clamp(0, 1)
    return radians * (ramp + (1 - ramp) / factor)


def _yarn(radians: Tensor, theta: float, factor: float, original: float, fast: float, slow: float) -> Tensor:
    """Divided by the factor behind a ramp over features, from those that turn ``fast`` times to those of ``slow``."""
    features = 2 * len(radians)
    first, last = (features * log(original / (turns * 2 * pi)) / (2 * log(theta)) for turns in (fast, slow))
    low, high = max(floor(first), 0), min(ceil(last), features - 1)
    divided = ((torch.arange(len(radians), dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return radians * (1 - divided + divided / factor)


def _numbers(op: OpClass, key: str) -> list[float]:
    return [float(number) for number in str(op.attributes.get(key, '')).split()]


def turned(op: OpClass, where: Context, x: Tensor, *, back: bool = False) -> Tensor:
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


def rotary(op: OpClass, where: Context, qkv: Tensor, *, back: bool = False) -> Tensors:
    """qkv → qkv, turned; or dy → dqkv, turned back."""
    groups, queries, head_dim, rotated = (
        int(op.attributes[key]) for key in ('groups', 'queries', 'head_dim', 'rotated')
    )
    y_BSGCD = qkv.unflatten(-1, (groups, queries + 2, head_dim)).clone()
    # Values, the last column, are not turned.
    part = y_BSGCD[..., : queries + 1, :rotated]
    part.copy_(turned(op, where, part, back=back))
    return [y_BSGCD.flatten(2)]


# What multi-head latent attention has between its products: a norm of a part, a part, and what attention reads.


def latent_norm_forward(op: OpClass, where: Context, x: Tensor, gain: Tensor) -> Tensors:
    """x, gain → RMSNorm of the first features, as many as there are gains, and rstd."""
    return rms_forward(op, where, x[..., : gain.shape[-1]], gain)


def latent_norm_dx(op: OpClass, where: Context, dy: Tensor, x: Tensor, gain: Tensor, rstd: Tensor) -> Tensors:
    """dy, x, gain, rstd → dx, zero for the features that were left out."""
    features = gain.shape[-1]
    (dx,) = rms_dx(op, where, dy, x[..., :features], gain, rstd)
    return [functional.pad(dx, (0, x.shape[-1] - features))]


def latent_norm_dw(op: OpClass, where: Context, dy: Tensor, x: Tensor, rstd: Tensor) -> Tensors:
    """dy, x, rstd → dgain."""
    return rms_dw(op, where, dy, x[..., : dy.shape[-1]], rstd)


def last_forward(op: OpClass, where: Context, x: Tensor) -> Tensors:
    """x → its features behind the first ``before``."""
    return [x[..., int(op.attributes['before']) :].contiguous()]


def last_dx(op: OpClass, where: Context, dy: Tensor) -> Tensors:
    """dy → dx."""
    return [functional.pad(dy, (int(op.attributes['before']), 0))]


def qkv_forward(op: OpClass, where: Context, q: Tensor, kv: Tensor, k_rope: Tensor) -> Tensors:
    """q, keys and values, shared keys → qkv [B, S, G × (query, key, value)]."""
    groups = int(op.attributes['groups'])
    q, kv = (tensor.unflatten(-1, (groups, -1)) for tensor in (q, kv))
    rotated, values = int(op.attributes['rotated']), values_of(op)
    q_nope, q_rope = q.split((q.shape[-1] - rotated, rotated), -1)
    k_nope, v = kv.split((kv.shape[-1] - values, values), -1)
    k_turned = turned(op, where, k_rope.unsqueeze(2)).expand(-1, -1, groups, -1)
    return [torch.cat([q_nope, turned(op, where, q_rope), k_nope, k_turned, v], -1).flatten(2)]


def qkv_dx(op: OpClass, where: Context, dqkv: Tensor) -> Tensors:
    """dqkv → the gradient of the part that ``of`` names."""
    head_dim, rotated, values = int(op.attributes['head_dim']), int(op.attributes['rotated']), values_of(op)
    dqkv_BSGD = dqkv.unflatten(-1, (int(op.attributes['groups']), -1))
    parts = (head_dim - rotated, rotated, head_dim - rotated, rotated, values)
    dq, dq_turned, dk, dk_turned, dv = dqkv_BSGD.split(parts, -1)
    if op.attributes['of'] == 'q':
        return [torch.cat([dq, turned(op, where, dq_turned, back=True)], -1).flatten(2)]
    if op.attributes['of'] == 'kv':
        return [torch.cat([dk, dv], -1).flatten(2)]
    # All heads share it.
    return [turned(op, where, dk_turned.sum(2, keepdim=True), back=True).squeeze(2)]


KERNELS = {
    **rows('norm', F=norm_forward, I=norm_dx, W=norm_dw),
    **rows('gain_norm', F=norm_forward, I=norm_dx, W=norm_dw),
    **rows('rms_norm', F=rms_forward, I=rms_dx, W=rms_dw),
    **rows('qk_norm', F=qk_norm_forward, I=qk_norm_dx, W=qk_norm_dw),
    **rows('rotary', F=rotary, I=partial(rotary, back=True)),
    **rows('latent_norm', F=latent_norm_forward, I=latent_norm_dx, W=latent_norm_dw),
    **rows('last_features', F=last_forward, I=last_dx),
    **rows('latent_qkv', F=qkv_forward, I=qkv_dx),
}
