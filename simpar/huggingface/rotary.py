"""What configs say of rotary: its base, which features are turned, and how positions are scaled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from simpar.huggingface import deepseek, stretched
from simpar.huggingface.family import Config, Refused, Says

ROPE: Final = ('rope_theta', 'rope_scaling', 'rope_parameters', 'partial_rotary_factor')
YARN: Final = ('factor', 'original_max_position_embeddings')
LLAMA3: Final = ('factor', 'low_freq_factor', 'high_freq_factor', 'original_max_position_embeddings')


def rope(config: Config) -> Iterator[Says]:
    """Base and scaling; all features are turned."""
    by, told = deepseek.rope(config)
    share, key = _share(config)
    if share not in (None, 1):
        what = f'these models turn all features, whatever it says (got {share!r})'
        raise Refused(key, what, 'leave it out, or write rotary_share beside model', 'rotary_share')
    yield from _turns(config, by, told)


def rope_of_part(config: Config) -> Iterator[Says]:
    """The same of a share of the features."""
    by, told = deepseek.rope(config)
    share, key = _share(config)
    if share is not None:
        yield Says('rotary_share', share, key)
    yield from _turns(config, by, told)


def _share(config: Config) -> tuple[Any, str]:
    """The share of features that are turned, None: not told; and the key that tells it."""
    by, told = deepseek.rope(config)
    key = 'partial_rotary_factor'
    return (told[key], by) if key in told else (config[key], key)


def _turns(config: Config, by: str, told: Mapping[str, Any]) -> Iterator[Says]:
    theta = told.get('rope_theta', config['rope_theta'])
    yield Says('rope_theta', theta, by if 'rope_theta' in told else 'rope_theta')
    kind = str(told.get('rope_type', told.get('type', 'default')))
    if kind == 'longrope' or (kind in ('su', 'yarn') and 'short_factor' in told):
        yield Says('longrope', stretched.longrope(config, told, by), by)
        return
    keys = {'default': (), 'linear': ('factor',), 'dynamic': ('factor',), 'llama3': LLAMA3, 'yarn': YARN}.get(kind)
    if keys is None:
        what = f'not yet: rotary scaled as {kind[:20]}'
        kinds = 'default, linear, dynamic, llama3, yarn or longrope'
        instead = f'write rope_type: {kinds}, or beside model rope_scaling: [], a step as long'
        raise Refused(by, what, instead, 'rope_scaling')
    missing = [key for key in keys if not isinstance(told.get(key), int | float)]
    if missing:
        raise Refused(by, f'{kind} without a number for {", ".join(missing)}', 'add it', 'rope_scaling')
    if kind == 'dynamic':
        yield Says('rope_scaling', stretched.dynamic(config, told, by), by)
    elif kind == 'yarn':
        yield Says('rope_scaling', deepseek.yarn(dict(told), by), by)
    elif keys:
        yield Says('rope_scaling', [float(told[key]) for key in keys], by)
