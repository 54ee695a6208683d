"""Rotary that looks at how long a sample is: LongRoPE (Phi-3, Phi-4-mini), and a base that grows (dynamic NTK)."""

from __future__ import annotations

from collections.abc import Mapping
from math import log, sqrt
from typing import Any, Final

from simpar.huggingface.family import Config, Refused

LONGEST: Final = 'max_position_embeddings'
ORIGINAL: Final = 'original_max_position_embeddings'


def dynamic(config: Config, told: Mapping[str, Any], by: str) -> list[float]:
    """[factor, positions]; raises ``Refused``."""
    return [float(told['factor']), float(_positive(config[LONGEST], LONGEST, by, 'rope_scaling'))]


def longrope(config: Config, told: Mapping[str, Any], by: str) -> dict[str, Any]:
    """The keys of ``longrope`` of a mapping of a config's key ``by``; raises ``Refused``."""
    for key in ('short_factor', 'long_factor'):
        if not isinstance(told.get(key), list) or not all(map(_is_positive, told[key])):
            raise Refused(by, f'longrope without positive numbers as {key}', 'write a list of numbers', 'longrope')
    # As transformers 5: what stands beside the mapping goes before what stands in it.
    found = next((one for one in (config[ORIGINAL], told.get(ORIGINAL), config[LONGEST]) if one is not None), None)
    original = _positive(found, ORIGINAL, by, 'longrope')
    size = told.get('attention_factor')
    if size is None:
        size = _magnitude(config, told, by, original)
    return {
        'short': [float(one) for one in told['short_factor']],
        'long': [float(one) for one in told['long_factor']],
        'original': original,
        'magnitude': float(_positive(size, 'attention_factor', by, 'longrope')),
    }


def _magnitude(config: Config, told: Mapping[str, Any], by: str, original: float) -> float:
    """What queries and keys are multiplied by, from how far positions are stretched."""
    factor = told.get('factor')
    if factor is None:
        factor = _positive(config[LONGEST], LONGEST, by, 'longrope') / original
    factor = _positive(factor, 'factor', by, 'longrope')
    return sqrt(1 + log(factor) / log(original)) if factor > 1 and original > 1 else 1.0


def _is_positive(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and number > 0


def _positive(number: Any, name: str, by: str, of: str) -> Any:
    if not _is_positive(number):
        raise Refused(by, f'without a positive number for {name} (got {str(number)[:20]})', f'write {name}', of)
    return number
