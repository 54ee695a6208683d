"""The page of the evidence: a table of every row, and whether what must hold does."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from proof import claims_table, page_head, table

SAME: Final = 0.02
"""Every other run of a row against the others: a row whose 10th percentiles differ by more cannot be measured."""
LOST: Final = 0.15
"""Share of the rows that may be so."""
MEDIAN, MOST, WORST = 0.02, 0.05, 0.08
"""Errors: of the median row, of 95 % of all, of any."""
POINTS: Final = 0.03
"""Gains may differ by."""
LEAST, OFTEN = 40, 10
"""Rows that must be run, and rows of each kind."""
APART: Final = 0.05
"""Steps that are predicted further apart must be measured in the same order."""


def low(seconds: Iterable[float]) -> float:
    """The 10th percentile."""
    return float(np.quantile([*seconds], 0.1))


def verdict(runs: Sequence[Sequence[float]]) -> float:
    """By how much the 10th percentiles of every other run differ, as a share."""
    one, other = (low(itertools.chain(*runs[begin::2])) for begin in (0, 1))
    return abs(one - other) / min(one, other)


def rows_of(blocks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of all blocks, each with its network and ranks."""
    return [{**row, 'net': block['net'], 'world': block['world']} for block in blocks for row in block['rows']]


def around(blocks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the head of a page says of the machine and the time."""
    loads, minutes = [block['load_average'] for block in blocks], sum(block['seconds'] for block in blocks) / 60
    return {'minutes': minutes, 'cores': blocks[0]['cores'], 'least': min(loads), 'most': max(loads)}


def page(blocks: Sequence[dict[str, Any]], **facts: Any) -> tuple[str, bool]:
    """The page in Markdown, and whether everything holds that must; ``facts``, seed, commit and command."""
    rows = rows_of(blocks)
    run = [row for row in rows if 'runs' in row]
    claims = [*_claims(rows, run, [row for row in run if row['same'] <= SAME])]
    nets = len({block['net'] for block in blocks})
    notes = said([(f'{block["net"]}, {block["world"]} ranks', block['notes']) for block in blocks])
    head = page_head('evidence', count=len(rows), nets=nets, **facts, **around(blocks))
    return head + '\n'.join([*tables(claims, rows), *notes]), all(held for _, _, held in claims)


def tables(claims: Sequence[tuple[str, str, bool]], rows: Sequence[dict[str, Any]]) -> list[str]:
    """What must hold, and a line for each row."""
    heads = 'network | ranks | schedule | predicted | measured p10 | median | A/A | error | gain predicted | measured'
    return [*claims_table(claims), *table(heads, (cells(row, rows) for row in rows)), '']


def said(notes: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """What calibration said of each block; nothing where it said nothing."""
    lines = [f'- {block}: {note}' for block, some in notes for note in some]
    return ['What calibration said:', '', *lines, ''] if lines else []


def error(row: dict[str, Any]) -> float:
    """predicted ÷ the 10th percentile measured − 1."""
    return float(row['predicted']) / low(itertools.chain(*row['runs'])) - 1


def gains(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> tuple[float, float] | None:
    """Gain predicted and measured, where both rows can be measured."""
    for other in rows:
        same_block = (other['net'], other['world']) == (row['net'], row['world'])
        if same_block and other['name'] == row['against'] and {'runs'} <= row.keys() & other.keys():
            measured = low(itertools.chain(*other['runs'])) / low(itertools.chain(*row['runs'])) - 1
            return other['predicted'] / row['predicted'] - 1, measured
    return None


def _claims(
    rows: list[dict[str, Any]], run: list[dict[str, Any]], good: list[dict[str, Any]]
) -> Iterable[tuple[str, str, bool]]:
    kinds = Counter(row['kind'] for row in rows)
    seldom = ', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))
    enough = len(run) >= LEAST and min(kinds.values()) >= OFTEN
    yield f'at least {LEAST} schedules, of each kind {OFTEN}', seldom, enough
    yield 'cores suffice, by what calibration saw messages take', f'{len(run)} of {len(rows)} rows were run', bool(run)
    lost = len(run) - len(good)
    yield (
        f'at most {LOST:.0%} of the rows cannot be measured (A/A > {SAME:.0%})',
        f'{lost} of {len(run)}',
        lost <= LOST * len(run),
    )
    if not good:
        return
    errors = np.abs([error(row) for row in good])
    worst = good[int(np.argmax(errors))]
    yield f'median of the errors ≤ {MEDIAN:.0%}', f'{np.median(errors):.2%}', bool(np.median(errors) <= MEDIAN)
    within = float(np.mean(errors <= MOST))
    yield f'95 % of the errors ≤ {MOST:.0%}', f'{within:.0%}', within >= 0.95
    yield (
        f'no error > {WORST:.0%}',
        f'{errors.max():.2%} ({worst["net"]}, {worst["name"]})',
        bool(errors.max() <= WORST),
    )
    both = [found for row in good if row['against'] and (found := gains(row, good))]
    if both:
        points = max(abs(one - other) for one, other in both)
        yield (
            f'gains within {POINTS * 100:.0f} points',
            f'{points * 100:.1f} points, {len(both)} gains',
            points <= POINTS,
        )
    wrong = disordered(good)
    yield f'pairs predicted > {APART:.0%} apart are in order', f'{len(wrong)} are not{"".join(wrong[:1])}', not wrong


def disordered(rows: Sequence[dict[str, Any]], apart: float = APART) -> list[str]:
    found = []
    for one, other in itertools.combinations(rows, 2):
        first, second = one['predicted'], other['predicted']
        if abs(first - second) > apart * min(first, second):
            measured = low(itertools.chain(*one['runs'])) < low(itertools.chain(*other['runs']))
            if (first < second) != measured:
                found.append(f': {one["name"]}; {other["name"]}')
    return found


def cells(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[Any]:
    """A line of the table."""
    first = [row['net'], row['world'], row['name']]
    if 'runs' not in row:
        return [*first, '', '', '', f'not run: messages want {row["load"]:.0%} of the cores', '', '', '']
    seconds = [*itertools.chain(*row['runs'])]
    times = [f'{one * 1e3:.1f} ms' for one in (row['predicted'], low(seconds), float(np.median(seconds)))]
    same = f'{row["same"]:.1%}' + (', unmeasurable' if row['same'] > SAME else '')
    both = gains(row, rows) if row['against'] else None
    return [*first, *times, same, f'{error(row):+.1%}', *([f'{one:+.1%}' for one in both] if both else ['', ''])]
