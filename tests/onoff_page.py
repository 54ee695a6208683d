"""Write the table of on/off pairs in docs/accuracy.md: `python -m tests.onoff_page`, or `make prove-onoff`.

A pair is one plan with an effect of overlap off and on. `measured_steps/pairs/pairs.csv` lists all published ones that
we know: those that can be predicted, with their schedule, and the others, each with why not. It was written before any
of them was predicted. Where the batch is not stated, the first is that of the authors' scripts, and all give the range.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import yaml

from simpar.case import case_of
from simpar.document import Tree
from simpar.predict import step_of
from simpar.schedule import schedule_of
from simpar.shipped import measured_folder

PAGE = Path(__file__).parent.parent / 'docs' / 'accuracy.md'
BEGIN, END = '<!-- pairs -->', '<!-- end of pairs -->'
LEAST = 0.03
"""From here on the sign of a measured gain counts."""


def rows() -> list[dict[str, str]]:
    with (measured_folder() / 'pairs' / 'pairs.csv').open(encoding='utf-8', newline='') as file:
        return list(csv.DictReader(file))


def step(row: dict[str, str], key: str, batch: str) -> float:
    """Seconds of a step of a pair with its effect ``off`` or ``on``."""
    tree = yaml.safe_load(row['schedule'].replace('BATCH', batch))
    tree['plan'] |= yaml.safe_load(row[key])
    case = case_of(schedule_of(Tree(root={'simpar': 1, **tree}, origins={(): row['id']})))
    return step_of(case.program, case.cluster)


def gains(row: dict[str, str]) -> list[float]:
    """The predicted gain for each batch."""
    return [step(row, 'off', batch) / step(row, 'on', batch) - 1 for batch in row['batches'].split() or ['0']]


def lines() -> Iterator[str]:
    """The table, and what it comes to."""
    yield '| id | effect | measured | predicted | range of batches | off by |'
    yield '|---|---|---|---|---|---|'
    off: dict[str, list[float]] = {}
    signs = 0
    counted = 0
    for row in rows():
        if row['not_scorable']:
            continue
        found, measured = gains(row), float(row['measured'])
        off.setdefault(row['kind'], []).append(abs(found[0] - measured))
        if abs(measured) >= LEAST:
            counted += 1
            signs += (found[0] > 0) == (measured > 0)
        spread = f'{min(found):+.1%} to {max(found):+.1%}' if len(found) > 1 else ''
        yield (
            f'| {row["id"]} | {row["feature"]} | {measured:+.1%} | {found[0]:+.1%} | {spread} '
            f'| {(found[0] - measured) * 100:+.1f} points |'
        )
        print(row['id'], found, flush=True)
    yield ''
    yield f'- Sign: right in {signs} of {counted} pairs that were measured at ± {LEAST:.0%} or more.'
    for kind, sizes in off.items():
        told = f'{median(sizes) * 100:.1f} points in the median of {len(sizes)}, {max(sizes) * 100:.1f} at most'
        yield f'- {kind}: off by {told}.'
    yield ''
    yield '| not scorable | why |'
    yield '|---|---|'
    for row in rows():
        if row['not_scorable']:
            yield f'| {row["id"]} {row["feature"]} | {row["not_scorable"]} |'


def main() -> None:
    text = PAGE.read_text(encoding='utf-8')
    body = '\n'.join(lines())
    PAGE.write_text(f'{text.split(BEGIN)[0]}{BEGIN}\n\n{body}\n\n{END}{text.split(END)[1]}', encoding='utf-8')


if __name__ == '__main__':
    main()
