"""Write the table of anchors in docs/proofs/accuracy_rows.md: `python -m tests.anchored_page`.

Runs of a set on one node are the anchors of its larger runs, on the same device and stack: those that are bound alike,
by the host or the device, and nearest to a larger one, as anyone would measure who wants to know of it. Beside them
stands what any anchor of one node could do at best with one factor: the larger runs by the median of what the node's
runs lack.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from math import expm1, inf, log
from pathlib import Path
from statistics import median

import yaml

import simpar
from simpar.case import Case
from simpar.files import read_csv
from simpar.profiles import profile_of_hardware
from simpar.shipped import measured_folder
from simpar.validate.anchor import anchored
from simpar.validate.columns import stack_name
from simpar.validate.rows import Row, read_rows
from simpar.validate.run import predicted
from simpar.validate.settings import schedule_tree
from tests.accuracy_page import KEPT, put
from tests.left_out_page import in_order
from tests.proof import table

NODE, MOST_LARGER, RUNS = 8, 6, (1, 8)
PARTS = (
    ('llm_foundry_mpt', 'a100'), ('llm_foundry_mpt', 'h100'), ('mindspeed_ascend', ''), ('vtrain_a100_measured', ''),
)  # fmt: skip
SETTLED = {line['id']: float(line['predicted']) / float(line['measured']) for line in read_csv(KEPT)}


@dataclass(frozen=True)
class Part:
    """Runs of a set on one node and on several, in the order in which they are taken."""

    nodes: list[Row]
    larger: list[Row]

    @property
    def at_best(self) -> float:
        """The median error of larger runs, all of them, behind one factor that the node's runs agree on."""
        factor = median(SETTLED[row.name] for row in self.nodes)
        return median(abs(SETTLED[row.name] / factor - 1) for row in self.larger)


def part_of(name: str, hardware: str) -> Part:
    rows = [row for row in read_rows(measured_folder(), name)
            if hardware in row.text('hardware').lower() and row.name in SETTLED]  # fmt: skip
    nodes = in_order([row for row in rows if row.whole('n_gpus') <= NODE])
    return Part(nodes, in_order([row for row in rows if row.whole('n_gpus') > NODE]))


def kind(row: Row) -> tuple[str, str]:
    return stack_name(row), profile_of_hardware(row.text('hardware'), row.whole('gpu_mem_gb'))


def nearest(row: Row, runs: Sequence[Row]) -> list[Row]:
    """Runs of the kind of a row by how far they are off in width, then tokens of a micro-batch, then tensor degree."""

    def far(run: Row) -> tuple[float, ...]:
        sizes = [(one.whole('hidden'), one.whole('micro_batch') * one.whole('seq'), one.whole('tp', 1))
                 for one in (row, run)]  # fmt: skip
        return tuple(
            round(abs(log(mine / other)), 3) if mine and other else inf for mine, other in zip(*sizes, strict=True)
        )

    return sorted((run for run in runs if kind(run) == kind(row)), key=far)


@cache
def bound(name: str) -> str:
    """What bounds a run, which is predicted when that is asked for."""
    runs = read_rows(measured_folder(), name.partition(':')[0])
    return next(predicted(run).bound for run in runs if run.name == name)


def alike(row: Row, runs: Sequence[Row]) -> Iterator[Row]:
    """The nearest runs, those first that are bound as a row is: a run that the host bounds tells of the host alone."""
    found = nearest(row, runs)
    for same in (True, False):
        yield from (run for run in found if (bound(run.name) == bound(row.name)) == same)


def file_of(row: Row, folder: Path) -> Path:
    path = folder / f'{row.name.replace(":", "_")}.yaml'
    path.write_text(yaml.safe_dump(schedule_tree(row)), encoding='utf-8')
    return path


def told(row: Row, runs: Sequence[Row], folder: Path) -> tuple[float, float, float, float]:
    """Of a larger run: log(predicted / measured) and half-width without an anchor, and both with it."""
    case = simpar.load_case(file_of(row, folder))
    anchor = folder / 'anchor.yaml'
    anchor.write_text(yaml.safe_dump({'runs': [
        {'schedule': file_of(run, folder).name, 'step': f'{run.seconds * 1e3:.6f} ms'} for run in runs
    ]}))  # fmt: skip
    moved, _ = anchored(case, anchor)
    return (*_of(case, row), *_of(moved, row))


def _of(case: Case, row: Row) -> tuple[float, float]:
    answer = case.predict(tell=False)
    assert answer.interval
    return log(answer.step / row.seconds), log(answer.interval.high / answer.step)


def lines(folder: Path) -> Iterator[tuple[str | int, ...]]:
    for name, hardware in PARTS:
        part = part_of(name, hardware)
        larger = part.larger[:MOST_LARGER]
        for count in RUNS:
            found = [told(row, list(islice(alike(row, part.nodes), count)), folder) for row in larger]
            plain, before, error, after = (median(map(abs, column)) for column in zip(*found, strict=True))
            shown = (f'{expm1(one):.1%}' for one in (error, before, after))
            inside = sum(abs(one[2]) <= one[3] for one in found)
            yield (
                *(f'{name} {hardware}'.strip(), f'{len(larger)} of {len(part.larger)}', len(part.nodes)),
                *(f'{expm1(plain):.1%}', f'{part.at_best:.1%}', count, *shown, f'{inside} of {len(found)}'),
            )
            print(name, hardware, count, f'{plain:.3f} {error:.3f}', flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        heads = 'set | larger runs | node runs | without | at best | runs | with | half-width without | with | within'
        put('anchored', table(heads, lines(Path(folder))))


if __name__ == '__main__':
    main()
