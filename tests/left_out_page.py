"""Write the table of sets left out in docs/accuracy.md: `python -m tests.left_out_page`, or `make prove-left-out`.

The clock under load, the number of a device that is fitted, is fitted anew on the rows for fitting of one set, and the
rows of another set that were kept aside are scored with it: of the same stack on another device, or of a stack that
extends it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from statistics import fmean

from simpar.shipped import measured_folder
from simpar.validate import null_model
from simpar.validate.fit import BOUNDS, Bench, bench_of
from simpar.validate.rows import Row, is_for_fitting, read_rows
from simpar.validate.settings import Skipped
from simpar.validate.tree import schedule_tree

PAGE = Path(__file__).parent.parent / 'docs' / 'accuracy.md'
BEGIN, END = '<!-- left out -->', '<!-- end of left out -->'
MOST_DEVICES = 64
"""Larger rows take too long to be fitted on."""
CLOCKS = [round(BOUNDS['sustained'][0] + 0.05 * step, 2) for step in range(7)]
MOST_ROWS = 24
"""Rows that a clock is fitted on: of more, those with the smallest sha256 of their id."""
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


def best(bench: Bench) -> float:
    """The clock of least loss."""
    return min(CLOCKS, key=lambda clock: bench.loss({'sustained': clock}))


def error(bench: Bench, clock: float) -> float:
    return fmean(abs(math.expm1(one)) for one in bench.errors({'sustained': clock}))


def null(fitted: Sequence[Row], scored: Sequence[Row]) -> float:
    """The null model, with a rate for each hardware of the rows for fitting of the scored set."""
    rates = null_model.fitted(fitted)
    return fmean(abs(null_model.predicted(row, rates) / row.seconds - 1) for row in scored)


def lines() -> Iterator[str]:
    yield '| clock fitted on | scored on | clock | rows | mean error | bar × 1.5 | null model |'
    yield '|---|---|---|---|---|---|---|'
    for source, target, bar in CASES:
        small = [row for row in rows(source, fitting=True) if row.whole('n_gpus') <= MOST_DEVICES]
        small.sort(key=lambda row: sha256(row.name.encode()).digest())
        clock = best(bench_of(small[:MOST_ROWS]))
        bench = bench_of(rows(target, fitting=False))
        against = null([row for row in rows(target, fitting=True) if predictable(row)], bench.rows)
        names = [f'{name} {word}'.strip() for name, word in (source, target)]
        yield (
            f'| {names[0]} | {names[1]} | {clock} | {len(bench.rows)} | {error(bench, clock):.1%} | {1.5 * bar:.1%} '
            f'| {against:.1%} |'
        )
        print(names, clock, flush=True)


def main() -> None:
    body = '\n'.join(lines())
    text = PAGE.read_text(encoding='utf-8')
    PAGE.write_text(f'{text.split(BEGIN)[0]}{BEGIN}\n\n{body}\n\n{END}{text.split(END)[1]}', encoding='utf-8')


if __name__ == '__main__':
    main()
