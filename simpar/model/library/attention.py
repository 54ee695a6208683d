"""Attention of a ``transformer:``: rotary that is stretched to more positions, and latent attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from simpar.errors import Problem
from simpar.model.keys import Size
from simpar.model.operators import attention, base, linear, norm

if TYPE_CHECKING:
    from simpar.model.library.gpt import Transformer

# Rotary of a ``transformer:`` that is stretched to more positions: its keys, its rotation, and what does not fit.

FILE: Final = ('workload', 'transformer')
Factor = Annotated[float, Field(gt=0, le=1e12)]
Factors = Annotated[tuple[Factor, ...], Field(min_length=1, max_length=2**12)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRope:
    """LongRoPE (Ding et al. 2024): every frequency is divided by a factor of its own.

    Arguments:
        short, long: factors of samples up to so many positions as the model was first trained with, and of longer ones.
        original: those positions.
        magnitude: what is turned is multiplied by it.
    """

    short: Annotated[Factors, Field(description='of samples of up to original tokens, a factor for each pair')]
    long: Annotated[Factors, Field(description='the same of longer samples')]
    original: Annotated[Size, Field(description='positions that the model was first trained with')]
    magnitude: Annotated[float, Field(gt=0, le=1e6, description='queries and keys are multiplied by it')] = 1.0


def rotation_of(model: Transformer, features: int) -> attention.Rotation:
    """How so many features are turned; some kinds of scaling look at the longest document of a sample."""
    longest = max(model.packed or (model.sequence,))
    theta, scaling, long = model.rope_theta, model.rope_scaling, model.longrope
    if len(scaling) == 2:
        theta, scaling = _stretched(theta, *scaling, longest, features), ()
    factors = () if long is None else long.short if longest <= long.original else long.long
    return attention.Rotation(
        features=features,
        theta=theta,
        scaling=scaling,
        factors=factors,
        magnitude=long.magnitude if long else 1.0,
        interleaved=model.rope_interleaved,
    )


def _stretched(theta: float, factor: float, positions: float, longest: int, features: int) -> float:
    """A base whose slowest frequency is divided by so much as a sample is longer than the positions (dynamic NTK)."""
    # A zero is told by ``rope_problems``; the only frequency of two features has no base.
    if longest <= positions or positions == 0 or features <= 2:
        return theta
    return float(theta * (factor * longest / positions - (factor - 1)) ** (features / (features - 2)))


FORMS: Final = (
    '[factor], [factor, positions], [factor, low, high, original positions], or [factor, original, fast, slow, '
    'magnitude]'
)


def rope_problems(model: Transformer) -> Iterator[Problem]:
    """What of the keys of a stretched rotary does not fit together."""
    at, scaling = (*FILE, 'rope_scaling'), model.rope_scaling
    if len(scaling) not in (0, 1, 2, 4, 5) or 0 in scaling:
        yield Problem(at, f'{len(scaling)} numbers, or a zero among them', f'write {FORMS}')
    elif len(scaling) == 5 and scaling[2] < scaling[3]:
        what = f'fast {scaling[2]:g} is below slow {scaling[3]:g}'
        yield Problem(at, what, 'write [factor, original, fast, slow, magnitude]')
    elif len(scaling) == 4 and scaling[1] >= scaling[2]:
        what = f'low {scaling[1]:g} is not below high {scaling[2]:g}'
        yield Problem(at, what, 'write [factor, low, high, original positions]')
    if model.longrope is not None:
        yield from _of_longrope(model, model.longrope)


def _of_longrope(model: Transformer, long: LongRope) -> Iterator[Problem]:
    at = (*FILE, 'longrope')
    if model.position != 'rotary':
        yield Problem(at, f'position is {model.position}', 'leave it out, or write position: rotary')
        return
    if model.rope_scaling:
        yield Problem(at, 'frequencies are scaled by rope_scaling, too', 'leave one of them out')
    features = model.qk_rope_head_dim or int(model.head_width * model.rotary_share)
    for name, factors in (('short', long.short), ('long', long.long)):
        if len(factors) != features // 2:
            what = f'{len(factors)} factors for {features // 2} pairs of features'
            yield Problem((*at, name), what, f'write {features // 2} numbers')


# Multi-head latent attention of a ``transformer:`` (DeepSeek-V2, 2024): its operators, and whether its keys fit.
#
# As Megatron-LM splits it: the products down to latents are on every tensor rank, with sequence parallelism each for
# its own tokens; those up to heads are split by heads.

OF_HEADS: Final = 'attention (its groups of heads)'
Part = tuple[str, base.Operator, tuple[str, ...]]
"""Name, operator, and what it reads, in a layer."""


def latent_parts(model: Transformer, heads: attention.Heads) -> Iterator[Part]:
    """The operators between ``norm1`` and ``qkv``, the last of which is what attention reads."""
    rope, epsilon = model.qk_rope_head_dim, model.latent_epsilon or model.norm_epsilon
    queries = '.norm1'
    if model.q_lora_rank:
        yield 'q_down', _down(model, model.q_lora_rank), ('.norm1',)
        yield 'q_norm', norm.RmsNorm(epsilon=epsilon), ('.q_down',)
        queries = '.q_norm'
    yield 'q_up', _up(heads, heads.head_dim, model.q_lora_rank or model.hidden), (queries,)
    yield 'kv_down', _down(model, model.kv_lora_rank + rope), ('.norm1',)
    yield 'kv_norm', attention.LatentNorm(features=model.kv_lora_rank, epsilon=epsilon), ('.kv_down',)
    yield 'kv_up', _up(heads, model.qk_nope_head_dim + model.v_head_dim, model.kv_lora_rank), ('.kv_norm',)
    yield 'k_rope', attention.LastFeatures(features=rope), ('.kv_down',)
    yield 'qkv', attention.LatentQkv(heads=heads, rotation=rotation_of(model, rope)), ('.q_up', '.kv_up', '.k_rope')


def _down(model: Transformer, outputs: int) -> linear.Product:
    """To a latent: too small to be split, so each tensor rank has all of its weight."""
    return linear.Product(outputs=(outputs,), inputs=(model.hidden,), bias='qkv' in model.bias, split='inputs')


def _up(heads: attention.Heads, features: int, inputs: int) -> linear.Product:
    return linear.Product(
        outputs=(heads.groups, features), inputs=(inputs,), bias=False, gathers=True, what=OF_HEADS
    )  # fmt: skip


def latent_problems(model: Transformer) -> Iterator[Problem]:
    """What of its keys does not fit together, beside what the table of conflicts has."""
    if not model.kv_lora_rank:
        return
    if model.qk_rope_head_dim % 2:
        what = f'{model.qk_rope_head_dim} features cannot be turned in pairs'
        yield Problem((*FILE, 'qk_rope_head_dim'), what, 'write an even count')
    if model.head_dim not in (0, model.qk_nope_head_dim + model.qk_rope_head_dim):
        what = f'latent attention has heads of qk_nope_head_dim + qk_rope_head_dim features (got {model.head_dim})'
        yield Problem((*FILE, 'head_dim'), what, 'leave head_dim out')
