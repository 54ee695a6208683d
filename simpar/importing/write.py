"""A schedule as YAML with comments: where each value comes from, what was assumed, what was listed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from simpar.importing.baseline import NONE, Question
from simpar.importing.flags import IDLE, MAPPED, NOT_MODELLED, NOT_TAKEN, UNSEEN
from simpar.importing.mapping import Imported, Line

WIDTH: Final = 120
_SHORT: Final = 64
_PLAIN: Final = re.compile(r'[A-Za-z][A-Za-z0-9_-]*')
_WORDS: Final = ('null', 'true', 'false', 'yes', 'no', 'on', 'off', 'y', 'n')


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
