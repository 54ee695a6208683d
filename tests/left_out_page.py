"""Write the table of sets left out in docs/proofs/accuracy_rows.md: `python -m tests.left_out_page`.

The clock under load, the number of a device that is fitted, is fitted anew on the rows for fitting of one set, and the
rows of another set that were kept aside are scored with it: of the same stack on another device, or of a stack that
extends it. A step that the host bounds has no word on a clock: of the rows for fitting, those count whose prediction
moves with it, which is asked before their measured seconds are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from hashlib import sha256
from statistics import fmean

from simpar.listing import measured_folder
from simpar.predict import step_of
from simpar.validate.fit import BOUNDS, with_numbers
from simpar.validate.rows import Row, is_for_fitting, read_rows
from simpar.validate.run import null_rates, null_seconds
from simpar.validate.settings import schedule_tree
from simpar.validate.words import Skipped
from tests.accuracy_page import put
from tests.equipment.residuals import Bench, bench_of

TELLS = 1.05
"""How many times as long a step is predicted at the lowest clock as at the highest one, of rows that tell of it."""
CLOCKS = [round(BOUNDS['sustained'][0] + 0.05 * step, 2) for step in range(7)]
MOST_ROWS = 24
"""Rows that a clock is fitted on, at most."""
CASES = (
    # fitted on (set, word of its hardware), scored on, bar
    (('llm_foundry_mpt', 'a100'), ('llm_foundry_mpt', 'h100'), 0.07),
    (('vtrain_a100_measured', 'a100'), ('zero_bubble_a100', 'a100'), 0.05),
    (('mindspeed_ascend', ''), ('mindformers_ascend', ''), 0.13),
    (('mindformers_ascend', ''), ('mindspeed_ascend', ''), 0.10),
)


def rows(of: tuple[str, str], *, fitting: bool) -> list[Row]:
    found = read_rows(measured_folder(), of[0])
    return [row for row in found if of[1] in row.text('hardware').lower() and is_for_fitting(row) == fitting]


def predictable(row: Row) -> bool:
    try:
        schedule_tree(row)
    except Skipped:
        return False
    return True


def telling(candidates: Sequence[Row]) -> list[Bench]:
    """The first rows, in the order of the sha256 of their id, whose prediction moves with the clock."""
    found: list[Bench] = []
    for row in sorted(candidates, key=lambda row: sha256(row.name.encode()).digest()):
        bench = bench_of([row])
        if bench.rows and predicted(bench, CLOCKS[0]) >= TELLS * predicted(bench, CLOCKS[-1]):
            found.append(bench)
        if len(found) == MOST_ROWS:
            break
    return found


def predicted(bench: Bench, clock: float) -> float:
    """Seconds of the step of a bench of one row."""
    return step_of(bench.cases[0].program, with_numbers(bench.cases[0].cluster, {'sustained': clock}))


def best(benches: Sequence[Bench]) -> float:
    """The clock of least loss."""
    return min(CLOCKS, key=lambda clock: fmean(bench.loss({'sustained': clock}) for bench in benches))


def error(bench: Bench, clock: float) -> float:
    return fmean(abs(math.expm1(one)) for one in bench.errors({'sustained': clock}))


def null(fitted: Sequence[Row], scored: Sequence[Row]) -> float:
    """The null model, with a rate for each hardware of the rows for fitting of the scored set."""
    rates = null_rates(fitted)
    return fmean(abs(null_seconds(row, rates) / row.seconds - 1) for row in scored)


def lines() -> Iterator[str]:
    yield '| clock fitted on | its rows | scored on | clock | rows | mean error | bar × 1.5 | null model |'
    yield '|---|---|---|---|---|---|---|---|'
    for source, target, bar in CASES:
        fitted = telling(rows(source, fitting=True))
        clock = best(fitted)
        bench = bench_of(rows(target, fitting=False))
        against = null([row for row in rows(target, fitting=True) if predictable(row)], bench.rows)
        names = [f'{name} {word}'.strip() for name, word in (source, target)]
        yield (
            f'| {names[0]} | {len(fitted)} | {names[1]} | {clock} | {len(bench.rows)} | {error(bench, clock):.1%} '
            f'| {1.5 * bar:.1%} | {against:.1%} |'
        )
        print(names, clock, flush=True)


def main() -> None:
    put('left out', lines())


if __name__ == '__main__':
    main()
