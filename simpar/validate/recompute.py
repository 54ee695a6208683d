"""Recompute: what the backward makes again, of words as frameworks write them, as ``plan.recompute`` has it."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

from simpar.validate.rows import Row
from simpar.validate.words import Skipped

NOTHING: Final = frozenset({'', 'none', 'no', 'off', 'false', '0'})
_OF_ATTENTION: Final = frozenset({'selective', 'attn', 'attention', 'core', 'core_attn'})
_OF_SEQUENCE: Final = frozenset({'sp', 'seq', 'par', 'sequence', 'parallel', 'parallelism', 'with'})
_MODULES: Final = {
    'core_attn': 'attention*', 'layernorm': 'norm?', 'moe_act': 'experts.*glu', 'moe': 'experts.*',
    'shared_experts': 'shared.*',
}  # fmt: skip
"""Modules of Megatron Core's --recompute-modules, and the operators of a layer that they stand for."""
CHEAP: Final = ('norm*', 'proj', 'residual1', '*glu', 'rotary')
"""What torchtitan's mode ``op`` makes again of a dense layer: all but attention, messages, and of two products one."""
OF_EXPERTS: Final = ('router', 'dispatch', 'experts.fc*')

Recompute = str | list[str]


def recompute_of(row: Row) -> Recompute:
    """``full``, ``selective``, patterns of operators, or nothing.

    Words are those of Megatron-LM (``selective``, ``full uniform 1``, ``block 30``, ``selective core_attn``), of
    torchtitan (``selective``, ``selective 2``) and of MindFormers (JSON). Raises ``Skipped`` for others.
    """
    text = row.text('recompute')
    if text.startswith('{'):
        return _mindformers(row, json.loads(text))
    words = re.findall(r'[a-z_]+|\d+', text.lower().replace('-', ' ').replace('core attn', 'core_attn'))
    if text.lower() in NOTHING or words[:1] in ([], ['none'], ['no']):
        return ''
    if words[0] in ('full', 'block', 'uniform'):
        return _full(row, words)
    if words[0] == 'selective':
        return _selective(row, words)
    raise Skipped(f'recompute {text[:60]!r}')


def says_sequence_parallel(row: Row) -> bool:
    """Whether the words of recomputation name sequence parallelism, as tables of papers have it."""
    return bool(re.search(r'seq\w*.par|\+ ?sp\b', row.text('recompute').lower()))


def _full(row: Row, words: Sequence[str]) -> Recompute:
    counts = [int(word) for word in words if word.isdigit()]
    unknown = {word for word in words if not word.isdigit()} - {'full', 'block', 'uniform', 'layers', 'layer'}
    unknown -= _OF_SEQUENCE
    if unknown or len(counts) > 1 or (counts and not {'block', 'uniform'} & {*words}):
        raise Skipped(f'recompute {row.text("recompute")[:60]!r}')
    if 'block' not in words or not counts:
        # Of uniform groups each keeps its input: the same work, and less memory.
        return 'full'
    return _layers(row, [counts[0]] * _stages(row))


def _selective(row: Row, words: Sequence[str]) -> Recompute:
    rest = [word for word in words[1:] if word not in _OF_SEQUENCE]
    if 'titan' in row.text('framework').lower() and set(rest) <= {'op'} | {word for word in rest if word.isdigit()}:
        every = next((int(word) for word in rest if word.isdigit()), 0)
        if every:
            return [f'layer{layer}.*' for layer in range(row.whole('n_layers')) if (layer + 1) % every == 0]
        return [f'layer*.{name}' for name in (*CHEAP, *(OF_EXPERTS if row.whole('n_experts') > 1 else ()))]
    if set(rest) <= _OF_ATTENTION:
        return 'selective'
    if set(rest) <= _MODULES.keys():
        return [f'layer*.{_MODULES[word]}' for word in rest]
    raise Skipped(f'recompute {row.text("recompute")[:60]!r}')


def _stages(row: Row) -> int:
    return row.whole('pp', 1) * row.whole('vpp_chunks', 1)


def _layers(row: Row, counts: Sequence[int], names: Sequence[str] = ('*',)) -> Recompute:
    """The first layers of each stage, so many of each."""
    layers, stages = row.whole('n_layers'), len(counts)
    if layers % stages:
        raise Skipped('recomputation of layers that do not divide over stages')
    each = layers // stages
    if names == ('*',) and all(count >= each for count in counts):
        return 'full'
    return [
        f'layer{stage * each + layer}.{name}'
        for stage, count in enumerate(counts)
        for layer in range(min(count, each))
        for name in names
    ]


def _mindformers(row: Row, told: dict[str, object]) -> Recompute:
    """Full layers, or norms and activation of those that MindFormers selects; a list has layers for each stage."""
    full, some = told.get('recompute', False), told.get('select_recompute', False)
    if full is True:
        return 'full'
    patterns = [*_of_stages(row, full, ('*',)), *_of_stages(row, some, ('norm*', '*glu'))]
    return list(dict.fromkeys(patterns)) if patterns else ''


def _of_stages(row: Row, told: object, names: Sequence[str]) -> Iterator[str]:
    if told is True:
        yield from (f'layer*.{name}' for name in names)
    elif isinstance(told, list):
        if len(told) != _stages(row) or not all(isinstance(count, int) for count in told):
            raise Skipped('recomputation by stage, with another number of stages')
        found = _layers(row, told, names)
        yield from ('layer*.*',) if found == 'full' else found
    elif told:
        raise Skipped('recomputation of chosen operators')
