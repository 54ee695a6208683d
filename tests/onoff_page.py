"""Write the table of on/off pairs in docs/proofs/accuracy_rows.md: `python -m tests.onoff_page`, or `make prove-onoff`.

A pair is one plan with an effect of overlap off and on. `measured_steps/pairs/pairs.csv` lists all published ones that
we know: those that can be predicted, with their schedule, and the others, each with why not. It was written before any
of them was predicted, but for two of MegaScale's and the step of H200, which were found later. Where the batch is not
stated, the first is that of the authors' scripts, and all give the range.

What is off and on are keys of the plan, and dotted keys of what else the authors' sources change with it: those of two
copies are left out once more, to tell what the plan gains alone. Where the authors do not state their software, and it
matters, `other_off` and `other_on` are what is off and on with the other one. A row of kind `step` is no pair: its
seconds of a step were published beside one.
"""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import yaml

from simpar.case import case_of
from simpar.document import Tree
from simpar.files import read_csv
from simpar.predict import step_of
from simpar.schedule import schedule_of
from simpar.shipped import measured_folder
from tests.accuracy_page import put
from tests.proof import line, table

LEAST = 0.03
"""From here on the sign of a measured gain counts."""


def rows() -> list[dict[str, str]]:
    return read_csv(measured_folder() / 'pairs' / 'pairs.csv')


def step(row: dict[str, str], key: str, batch: str, *, alone: bool = False) -> float:
    """Seconds of a step of a pair with its effect ``off`` or ``on``; ``alone``, with that of the plan and no more."""
    tree = yaml.safe_load(row['schedule'].replace('BATCH', batch))
    for name, value in (yaml.safe_load(row[key]) or {}).items():
        if '.' not in name:
            tree['plan'][name] = value
        elif not alone:
            _put(tree, name.split('.'), value)
    case = case_of(schedule_of(Tree(root={'simpar': 1, **tree}, origins={(): row['id']})))
    return step_of(case.program, case.cluster)


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        tree = tree[part]
    tree[path[-1]] = value


def batches(row: dict[str, str]) -> list[str]:
    return row['batches'].split() or ['0']


def gains(row: dict[str, str]) -> list[float]:
    """The predicted gain for each batch."""
    return [step(row, 'off', batch) / step(row, 'on', batch) - 1 for batch in batches(row)]


def scored(*, steps: bool = False) -> list[dict[str, str]]:
    """The rows that can be predicted: pairs, or seconds of ``steps``."""
    return [row for row in rows() if not row['not_scorable'] and (row['kind'] == 'step') is steps]


def outside(measured: float, found: list[float]) -> float:
    """How far a measured gain lies outside the range of predicted ones."""
    return max(0.0, min(found) - measured, measured - max(found))


def by_other_software(row: dict[str, str]) -> float | None:
    """The predicted gain with the other software that the authors may have had; None where theirs is known."""
    if not row['other_off']:
        return None
    first = batches(row)[0]
    return step(row, 'other_off', first) / step(row, 'other_on', first) - 1


def by_plan(row: dict[str, str]) -> str:
    """The predicted gain of the plan alone; empty where nothing else changes."""
    if not any('.' in name for name in yaml.safe_load(row['on'])):
        return ''
    first = batches(row)[0]
    return f'{step(row, "off", first) / step(row, "on", first, alone=True) - 1:+.1%}'


def told(sizes: Sequence[float]) -> str:
    return f'off by {median(sizes) * 100:.1f} points in the median of {len(sizes)}, {max(sizes) * 100:.1f} at most'


def lines() -> Iterator[str]:
    """The table, and what it comes to."""
    heads = 'id | effect | measured | predicted | range of batches | off by | by its plan alone | with nvFuser'
    yield from table(heads, ())
    off: dict[str, list[tuple[float, float]]] = {}
    with_other: list[float] = []
    signs = 0
    counted = 0
    for row in scored():
        found, measured, other = gains(row), float(row['measured']), by_other_software(row)
        with_other += [] if other is None else [abs(other - measured)]
        off.setdefault(row['kind'], []).append((abs(found[0] - measured), outside(measured, found)))
        if abs(measured) >= LEAST:
            counted += 1
            signs += (found[0] > 0) == (measured > 0)
        beside = '' if other is None else f'{other:+.1%}'
        spread = f'{min(found):+.1%} to {max(found):+.1%}' if len(found) > 1 else ''
        points = f'{(found[0] - measured) * 100:+.1f} points'
        both = f'{measured:+.1%}', f'{found[0]:+.1%}'
        yield line([row['id'], row['feature'], *both, spread, points, by_plan(row), beside])
        print(row['id'], found, flush=True)
    yield ''
    yield f'- Sign: right in {signs} of {counted} pairs that were measured at ± {LEAST:.0%} or more.'
    yield f'- All: {told([first for sizes in off.values() for first, _ in sizes])}.'
    for kind, sizes in off.items():
        first, rest = zip(*sizes, strict=True)
        yield f'- {kind}: {told(first)}. Outside the range of batches: {told(rest)}.'
    yield f'- With nvFuser: {told(with_other)}.'
    yield from ('', *table('step | measured | predicted | off by', ()))
    for row in scored(steps=True):
        seconds, measured = step(row, 'off', batches(row)[0]), float(row['measured'])
        times = (f'{one * 1e3:.0f} ms' for one in (measured, seconds))
        yield line([row['feature'], *times, f'{seconds / measured - 1:+.1%}'])
    others = ((f'{row["id"]} {row["feature"]}', row['not_scorable']) for row in rows() if row['not_scorable'])
    yield from ('', *table('not scorable | why', others))


if __name__ == '__main__':
    put('pairs', lines())
