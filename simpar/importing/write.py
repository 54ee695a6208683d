"""A schedule as YAML with comments: where each value comes from, what was assumed, what was listed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from simpar.importing.mapping import Imported, Line
from simpar.importing.settings import IDLE, MAPPED, NOT_MODELLED, NOT_TAKEN, UNSEEN

WIDTH: Final = 120
_SHORT: Final = 64
_PLAIN: Final = re.compile(r'[A-Za-z][A-Za-z0-9_-]*')
_WORDS: Final = ('null', 'true', 'false', 'yes', 'no', 'on', 'off', 'y', 'n')
PASSES: Final = ('matmul_grad_comm_overlap', 'enable_grad_comm_opt', 'enable_opt_shard_comm_opt')
"""MindSpore's passes that put communication under computation, without the one that costs memory."""


class Question(NamedTuple):
    """What differs in the baseline, by dotted key, and what the gain over it says, in words."""

    against: Mapping[str, Any]
    comment: str


NONE: Final = Question({}, 'no baseline is known to fit this plan: write what to compare with, e.g. {plan.copies: 2}')


def yaml_of(
    values: Mapping[str, Any], comments: Mapping[str, str], head: tuple[str, ...] = (), question: Question = NONE
) -> str:
    """YAML of values by dotted key, each with its comment.

    Arguments: ``head``, lines of comment before all; ``question``, the baseline that the plan is compared with.
    """
    tree: dict[str, Any] = {'simpar': 1}
    for part in ('cluster', 'workload', 'plan'):
        tree[part] = {}
    for key, value in values.items():
        node = tree
        *above, last = key.split('.')
        for name in above:
            node = node.setdefault(name, {})
        node[last] = value
    lines = [f'# {line}'.rstrip() for line in head] + list(_lines(tree, '', comments, 0))
    lines.append(f'# The baseline of the gain: {question.comment}.')
    changes = ', '.join(f'{key}: {scalar(value)}' for key, value in question.against.items())
    lines.append(f'against: {{{changes}}}')
    return '\n'.join(lines) + '\n'


def _lines(node: Mapping[str, Any], at: str, comments: Mapping[str, str], depth: int) -> Iterator[str]:
    for key, value in node.items():
        place = f'{at}{key}'
        indent = '  ' * depth
        if isinstance(value, dict) and value:
            yield f'{indent}{key}:'
            yield from _lines(value, f'{place}.', comments, depth + 1)
            continue
        line = f'{indent}{key}: {scalar(value)}'
        note = _clean(comments.get(place, ''))
        if not note:
            yield line
        elif len(line) < _SHORT - 14 and len(note) + 50 <= WIDTH:
            yield f'{line:<48}  # {note}'
        else:
            yield f'{indent}# {note[: WIDTH - 4]}'
            yield line


def scalar(value: Any) -> str:
    """A value as YAML, lists in one line; JSON is YAML, and its text cannot be mistaken for anything else."""
    if isinstance(value, str):
        return (
            value if _PLAIN.fullmatch(value) and value.lower() not in _WORDS else json.dumps(value, ensure_ascii=False)
        )
    if isinstance(value, list):
        return f'[{", ".join(map(scalar, value))}]'
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return json.dumps(value)


def _clean(text: str) -> str:
    return ''.join(one if one.isprintable() else '?' for one in text)


def schedule_text(made: Imported, name: str, question: Question = NONE) -> str:
    """The schedule of an imported file.

    Arguments: ``name`` of that file, for the first line; ``question``, the baseline that the plan is compared with.
    """
    listed = [line for line in made.lines if line.outcome != MAPPED]
    counts = f'{len(made.lines) - len(listed)} settings mapped, {len(listed)} listed'
    head = [f'Written by simpar import from {name} ({made.kind}): {counts}.']
    head += _guesses(made)
    # What moves the answer stands before what does not.
    for outcome in sorted(dict.fromkeys(line.outcome for line in listed), key=lambda one: one == IDLE):
        head.append(f'{outcome}:')
        head += [f'  {_flag(line)}' for line in listed if line.outcome == outcome]
    return yaml_of(made.values, made.comments, tuple(_clean(line)[: WIDTH + 80] for line in head), question)


def _flag(line: Line, *, with_note: bool = True) -> str:
    value = '' if line.value == 'true' else f' {line.value}'
    note = f' ({line.note})' if line.note and with_note else ''
    return f'{line.where}: {line.name}{value[:60]}{note}'


def listing(made: Imported, *, full: bool) -> str:
    """What a reader has to know of an import: first what was assumed, then what is not modelled.

    Arguments: ``full``, whether a line for every other setting follows, or their number.
    """
    told = _guesses(made)
    missing = [line for line in made.lines if line.outcome in (NOT_MODELLED, UNSEEN, NOT_TAKEN)]
    told += [f'{_outcome(line)}: {_flag(line, with_note=False)}' for line in missing]
    rest = [line for line in made.lines if line not in missing]
    if full:
        rows = [(line.where, f'{line.name} {line.value}'.removesuffix(' true'), _outcome(line)) for line in rest]
        widths = [min(48, max((len(row[column]) for row in rows), default=0)) for column in range(2)]
        told += [f'{row[0]:<{widths[0]}}  {row[1][:80]:<{widths[1]}}  {row[2]}' for row in rows]
    else:
        mapped = sum(line.outcome == MAPPED for line in rest)
        idle = len(rest) - mapped
        told.append(f'{mapped} settings are mapped, {idle} have no effect on the time of a step: --full lists them')
    return _clean_lines(told)


def _guesses(made: Imported) -> list[str]:
    """What was assumed, and what of the file could not be followed."""
    return [f'Assumed: {what}' for what in made.assumed] + [f'Not followed: {what}' for what in made.notes]


def _clean_lines(lines: list[str]) -> str:
    return '\n'.join(map(_clean, lines))


def _outcome(line: Line) -> str:
    what = f'→ {", ".join(line.keys)}' if line.outcome == MAPPED else line.outcome
    return f'{what}: {line.note}' if line.note else what


def questions(values: Mapping[str, Any], ranks: int) -> Iterator[Question]:
    """Baselines for a plan, the most telling first: without one kind of overlap that it has, else with copies.

    Arguments: ``values`` of the schedule by dotted key; ``ranks`` in all.
    """
    inner = values.get('plan.pipeline', 1) * values.get('plan.tensor', 1) * values.get('plan.context', 1)
    data = values.get('plan.data') or max(1, ranks // max(1, inner))
    if values.get('plan.copies', 1) > 1:
        yield Question({'plan.copies': 1}, 'what the copies gain, over the whole batch at once')
    if values.get('plan.chunks', 1) > 1 and values.get('plan.order') == 'interleaved-1f1b':
        yield Question({'plan.order': '1f1b', 'plan.chunks': 1}, 'what interleaved stages gain, over plain 1F1B')
    if values.get('plan.tiles', 1) > 1:
        yield Question({'plan.tiles': 1}, 'what products and messages in tiles gain')
    passes = values.get('plan.overlap')
    if passes:
        yield Question({'plan.overlap': []}, 'what the overlap passes gain')
    if data > 1 and values.get('plan.zero', 0) == 3 and values.get('plan.prefetch', 1):
        yield Question({'plan.prefetch': 0}, 'what gathers ahead of their use gain')
    if data > 1 and values.get('plan.reduce_gradients') == 'overlapped':
        yield Question({'plan.reduce_gradients': 'end'}, 'what sums of gradients under the backward gain')
    yield from _what_if(values, data)


def _what_if(values: Mapping[str, Any], data: int) -> Iterator[Question]:
    """Plans to weigh this one against, which overlaps nothing: two copies, interleaved stages, overlapped sums."""
    micro = values.get('plan.micro_batches', 1)
    comment = 'would two copies be faster? The plan is compared with them'
    if any(values.get(key, 1) > 1 for key in ('plan.tensor', 'plan.context', 'plan.expert')):
        yield Question({'plan.copies': 2}, comment)
        if micro % 2 == 0:
            yield Question({'plan.copies': 2, 'plan.micro_batches': micro // 2}, comment)
    if values.get('plan.overlap') == []:
        comment = "would MindSpore's overlap passes be faster? The plan is compared with them"
        yield Question({'plan.overlap': list(PASSES)}, comment)
    stages, layers = values.get('plan.pipeline', 1), values.get('workload.transformer.layers', 0)
    if stages > 1 and micro % stages == 0 and layers and layers % (2 * stages) == 0:
        comment = 'would interleaved stages be faster? The plan is compared with them'
        yield Question({'plan.order': 'interleaved-1f1b', 'plan.chunks': 2}, comment)
    if data > 1:
        comment = 'would sums of gradients under the backward be faster? The plan is compared with them'
        yield Question({'plan.reduce_gradients': 'overlapped'}, comment)
