"""Write the table of what is left out in docs/proofs/accuracy_rows.md: `python -m tests.left_out_page`.

Each set, each device and each framework is left out once, with every number that was fitted on its rows. Its clock is
then the one of least loss on rows for fitting of what is left, each set counted once. A clock that a source tells, of
any grade but an estimate, rests on no row and stays. Where no other set tells the host's seconds of a framework, they
are those of the stack ``eager``, which are from literature. A step that the host bounds has no word on a clock: of the
rows for fitting, those count whose prediction moves with it, which is asked before their measured seconds are looked
at.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from statistics import fmean

from simpar.predict import step_of
from simpar.profiles import load_stack
from simpar.shipped import measured_folder
from simpar.validate.anchor import BOUNDS, with_numbers
from simpar.validate.columns import Skipped
from simpar.validate.rows import Row, is_for_fitting, read_rows
from simpar.validate.run import null_rates, null_seconds
from simpar.validate.settings import schedule_tree
from tests.accuracy_page import MOST_DEVICES, put
from tests.equipment.residuals import Bench, bench_of
from tests.proof import table

TELLS = 1.05
"""How many times as long a step is predicted at the lowest clock as at the highest one, of rows that tell of it."""
CLOCKS = [round(BOUNDS['sustained'][0] + 0.05 * step, 2) for step in range(7)]
MOST_ROWS = 10
"""Rows of a part that a clock is fitted on, at most."""
MOST_SCORED = 16
"""Rows of a part that are scored, at most: the first by the sha256 of their id."""
A100, H100, VTRAIN, BUBBLE, SPEED, FORMERS = (
    ('llm_foundry_mpt', 'a100'), ('llm_foundry_mpt', 'h100'), ('vtrain_a100_measured', ''), ('zero_bubble_a100', ''),
    ('mindspeed_ascend', ''), ('mindformers_ascend', ''),
)  # fmt: skip
"""A set and a word of its hardware."""
CASES = (
    # left out, scored on, where clocks are fitted
    ('set llm_foundry_mpt', A100, (VTRAIN, BUBBLE)),
    ('set llm_foundry_mpt, device H100', H100, (VTRAIN, BUBBLE)),
    ('set vtrain_a100_measured', VTRAIN, (A100, BUBBLE)),
    ('set zero_bubble_a100', BUBBLE, (A100, VTRAIN)),
    ('set, framework mindspeed_ascend', SPEED, (FORMERS,)),
    ('set, framework mindformers_ascend', FORMERS, (SPEED,)),
    ('device H100', H100, (A100, VTRAIN, BUBBLE)),
    ('device A100', A100, (H100, SPEED, FORMERS)),
    ('device A100', VTRAIN, (H100, SPEED, FORMERS)),
    ('device A100', BUBBLE, (H100, SPEED, FORMERS)),
    ('device 910B', SPEED, (A100, H100, VTRAIN, BUBBLE)),
    ('device 910B', FORMERS, (A100, H100, VTRAIN, BUBBLE)),
    ('framework Megatron-LM of 2021', VTRAIN, (A100,)),
    ('framework Megatron-LM of 2021', BUBBLE, (A100,)),
)
HOSTS = (VTRAIN, BUBBLE)
"""Parts on which the host's seconds of a framework rest."""
WORSE, OF_NULL = 1.5, 0.7
"""Bars: the mean error over that with it in, and over that of the null model."""


def rows(of: tuple[str, str], *, fitting: bool) -> list[Row]:
    found = read_rows(measured_folder(), of[0])
    return [row for row in found if of[1] in row.text('hardware').lower() and is_for_fitting(row) == fitting]


def predictable(row: Row) -> bool:
    try:
        schedule_tree(row)
    except Skipped:
        return False
    return True


def in_order(candidates: Sequence[Row]) -> list[Row]:
    """Those of few devices, by the sha256 of their id."""
    small = [row for row in candidates if row.whole('n_gpus') <= MOST_DEVICES]
    return sorted(small, key=lambda row: sha256(row.name.encode()).digest())


@cache
def telling(part: tuple[str, str]) -> tuple[Bench, ...]:
    """The first rows for fitting of a part whose prediction moves with the clock."""
    found: list[Bench] = []
    for row in in_order(rows(part, fitting=True)):
        bench = bench_of([row])
        if bench.rows and predicted(bench, CLOCKS[0]) >= TELLS * predicted(bench, CLOCKS[-1]):
            found.append(bench)
        if len(found) == MOST_ROWS:
            break
    return tuple(found)


@cache
def scored(part: tuple[str, str]) -> Bench:
    """The rows that are scored."""
    return bench_of(in_order(rows(part, fitting=False))[:MOST_SCORED])


def predicted(bench: Bench, clock: float) -> float:
    """Seconds of the step of a bench of one row."""
    return step_of(bench.cases[0].program, with_numbers(bench.cases[0].cluster, {'sustained': clock}))


@cache
def losses(part: tuple[str, str]) -> list[float]:
    """The mean loss of the rows that tell, at each clock."""
    return [fmean(bench.loss({'sustained': clock}) for bench in telling(part)) for clock in CLOCKS]


def best(parts: Sequence[tuple[str, str]]) -> float:
    """The clock of least loss, each part counted once."""
    told = [losses(part) for part in parts if telling(part)]
    return min(CLOCKS, key=lambda clock: fmean(loss[CLOCKS.index(clock)] for loss in told))


def clock_without(part: tuple[str, str], sources: Sequence[tuple[str, str]]) -> tuple[float, str]:
    """The clock of a part's device without its rows, and where it is from if not from other rows."""
    figure = scored(part).cases[0].cluster.profile.device.sustained
    assert figure
    return (best(sources), '') if figure.grade == 'estimate' else (figure.value, ', by its source')


@cache
def shipped(part: tuple[str, str]) -> float:
    """The mean error with the numbers that come with simpar."""
    return error(scored(part), {})


def error(bench: Bench, numbers: Mapping[str, float]) -> float:
    return fmean(abs(math.expm1(one)) for one in bench.errors(numbers))


def null(fitted: Sequence[Row], scored: Sequence[Row]) -> float:
    """The null model, with a rate for each hardware of the rows for fitting of the scored set."""
    rates = null_rates(fitted)
    return fmean(abs(null_seconds(row, rates) / row.seconds - 1) for row in scored)


def rows_of_page() -> Iterator[tuple[str | int, ...]]:
    host = load_stack('eager').host
    assert host
    for name, part, sources in CASES:
        clock, whence = clock_without(part, sources)
        numbers = {'sustained': clock}
        if part in HOSTS and VTRAIN not in sources:
            numbers |= {'forward': host.forward.value, 'backward': host.backward.value}
        bench = scored(part)
        out, known = error(bench, numbers), shipped(part)
        against = null([row for row in rows(part, fitting=True) if predictable(row)], bench.rows)
        hosts = ', host 10 us' if 'forward' in numbers else ''
        holds = 'yes' if out <= WORSE * known and out <= OF_NULL * against else 'no'
        yield (
            *(name, ' '.join(part).strip(), len(bench.rows), f'{clock}{whence}{hosts}', f'{out:.1%}'),
            *(f'{known:.1%}', f'{out / known:.2f}', f'{against:.1%}', f'{out / against:.2f}', holds),
        )
        print(name, part, numbers, f'{out:.3f} {known:.3f} {against:.3f}', flush=True)


if __name__ == '__main__':
    heads = 'left out | scored on | rows | clock | mean error | with it in | times | null model | of it | holds'
    put('left out', table(heads, rows_of_page()))
