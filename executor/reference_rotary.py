"""Rotary as the reference computes it: pairs of features as complex numbers; shares no code with the kernels."""

from __future__ import annotations

from math import ceil, floor, log, pi

import torch

from simpar.model.library.gpt import Transformer


def rotated(model: Transformer, x: torch.Tensor) -> torch.Tensor:
    """Pairs of features as complex numbers, each turned by its own angle."""
    count = (model.qk_rope_head_dim or int(model.head_width * model.rotary_share)) // 2
    exponents = -torch.arange(count, dtype=torch.float64) / count
    base = _base(model, 2 * count)
    rates = torch.tensor([_scaled(model, rate) for rate in (base**exponents).tolist()], dtype=torch.float64)
    size, long = model.rope_scaling[4] if len(model.rope_scaling) == 5 else 1.0, model.longrope
    if long is not None:
        size, beyond = long.magnitude, int(places(model).max()) >= long.original
        rates /= torch.tensor(long.long if beyond else long.short, dtype=torch.float64)
    turns = torch.polar(torch.tensor(size, dtype=torch.float64), places(model)[:, None] * rates)
    one, other = x[..., :count], x[..., count : 2 * count]
    if model.rope_interleaved:
        one, other = x[..., 0 : 2 * count : 2], x[..., 1 : 2 * count : 2]
    pairs = torch.complex(one, other) * turns.to(torch.complex(x, x).dtype)
    return torch.cat([pairs.real, pairs.imag, x[..., 2 * count :]], -1)


def _base(model: Transformer, features: int) -> float:
    """Of the rates; larger where a document is longer than the positions of dynamic NTK."""
    length = int(places(model).max()) + 1
    if len(model.rope_scaling) != 2 or length <= model.rope_scaling[1] or features == 2:
        return model.rope_theta
    factor, positions = model.rope_scaling
    return float(model.rope_theta * (1 + factor * (length / positions - 1)) ** (features / (features - 2)))


def _scaled(model: Transformer, rate: float) -> float:
    """A rate of turning, by Llama 3.1's rule, or divided by a factor."""
    if not model.rope_scaling:
        return rate
    factor, *band = model.rope_scaling
    if not band:
        return rate / factor
    if len(band) == 1:
        return rate
    if len(band) == 4:
        return _yarned(model, rate)
    low, high, original = band
    wave = 2 * pi / rate
    if wave > original / low:
        return rate / factor
    if wave < original / high:
        return rate
    smooth = (original / wave - low) / (high - low)
    return (1 - smooth) * rate / factor + smooth * rate


def places(model: Transformer) -> torch.Tensor:
    """Positions of a sample's tokens, each document's from 0."""
    return torch.cat([torch.arange(length) for length in model.packed or (model.sequence,)])


def _yarned(model: Transformer, rate: float) -> float:
    """By YaRN's ramp over features, whose ends are those that turn so often in the original positions."""
    factor, original, fast, slow, _ = model.rope_scaling
    features = model.qk_rope_head_dim or int(model.head_width * model.rotary_share)

    def feature(turns: float) -> float:
        return features / 2 * log(original / (2 * pi * turns)) / log(model.rope_theta)

    low, high = max(floor(feature(fast)), 0), min(ceil(feature(slow)), features - 1)
    place = -features / 2 * log(rate) / log(model.rope_theta)
    ramp = min(max((round(place) - low) / ((high - low) or 0.001), 0.0), 1.0)
    return rate * (1 - ramp) + rate / factor * ramp
