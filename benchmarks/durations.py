"""Evaluations of one pipeline order with given durations, beside those of another implementation.

`python -m benchmarks.durations FOLDER` takes the folder of ``sweep.py``, ``kern.py`` and ``wl.py``. There are 1F1B as a
recurrence written for it alone (`sweep_1f1b_seq`), and any graph with cases side by side (`scan_tab`). Everything runs
in one process on one core, in turns; figures are CPU seconds.
"""

import importlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.laps import Laps, in_turns
from simpar.pipeline import Recurrence, StageTimesTable, named_order, step_times

Floats = NDArray[np.float64]
CASES: Final = 1_024
WIDTHS: Final = (8, 16, 32, 64)
"""Cases side by side for which the other implementation is published."""


@dataclass(frozen=True, slots=True)
class Durations:
    """A race over all cases.

    Arguments: ``lowered``, CPU seconds to lower the order, which is done once; ``cases``, how many were evaluated.
    """

    ranks: int
    micro_batches: int
    cases: int
    lowered: float
    laps: Laps

    def rate(self, name: str) -> float:
        """Evaluations a CPU second, in the median."""
        return self.cases / self.laps.of(name).median

    def __str__(self) -> str:
        theirs = [name for name in self.laps.seconds if not name.startswith('simpar')]
        beside = ['sweep_1f1b_seq', max(theirs, key=self.rate)]
        lines = [f'1F1B, {self.ranks} ranks, {self.micro_batches} micro-batches: evaluations a second and core']
        lines += [f'  {name:<40} {self.rate(name):>12,.0f}' for name in self.laps.seconds]
        for name in self.laps.seconds:
            if name.startswith('simpar'):
                for other in dict.fromkeys(beside):
                    lines.append(f'  {name} / {other}: {self.laps.speed(name, other)}')
        return '\n'.join([*lines, f'  the order is lowered once, in {self.lowered * 1e3:.0f} ms'])


def durations(folder: Path, ranks: int = 16, micro_batches: int = 192, rounds: int = 15) -> Durations:
    """Race on random durations; raises ``AssertionError`` where results differ in a bit.

    Messages are shorter than the work around them, so that none waits for the one before: the other implementation
    lets messages queue, the clock does not.
    """
    table = _table(ranks)
    begun = time.process_time()
    kept = Recurrence.of(named_order('1f1b', ranks, micro_batches))
    lowered = time.process_time() - begun
    contenders = {
        'simpar': lambda: step_times(kept, table, 1),
        'simpar, three steps': lambda: step_times(kept, table, 3),
        **_others(folder, table, micro_batches),
    }
    # Once before it counts, which also compiles.
    found = {name: run() for name, run in contenders.items() if 'three steps' not in name}
    for name, seconds in found.items():
        if not np.array_equal(seconds, found['simpar']):
            raise AssertionError(f'{name} gives other seconds')
    laps = in_turns({name: partial(_as_it_is, run) for name, run in contenders.items()}, rounds)
    return Durations(ranks, micro_batches, len(table), lowered, laps)


def _as_it_is(run: Callable[[], object]) -> Callable[[], object]:
    return run


def _table(ranks: int) -> StageTimesTable:
    chance = np.random.default_rng(0)
    forward, inputs, weight = 0.5 + chance.random((3, CASES, ranks))
    travel = 0.5 * chance.random((CASES, ranks - 1))
    return StageTimesTable(forward=forward, input=inputs, weight=weight, communication=travel)


def _others(folder: Path, table: StageTimesTable, micro_batches: int) -> dict[str, Callable[[], Floats]]:
    """The other implementation; all its arrays are made beforehand, untimed."""
    sys.path.insert(0, str(folder))
    sweep, kern = importlib.import_module('sweep'), importlib.import_module('kern')
    cases, ranks = table.forward.shape
    backward = table.input + table.weight
    travel = np.pad(table.communication, ((0, 0), (0, 1)))
    none, out = np.zeros((cases, ranks)), np.empty(cases)
    every = [np.full(cases, count) for count in (ranks, micro_batches)]

    def one_by_one() -> Floats:
        sweep.sweep_1f1b_seq(*every, table.forward, backward, travel, none, none, out, ranks, micro_batches)
        return out

    runs: dict[str, Callable[[], Floats]] = {'sweep_1f1b_seq': one_by_one}
    columns = np.concatenate([table.forward, backward, travel, none], axis=1).T
    graph = _graph(sweep, kern, ranks, micro_batches)
    for width in WIDTHS:
        runs[f'scan_tab, {width} side by side'] = _side_by_side(kern, graph, columns, width)
    return runs


def _graph(sweep: Any, kern: Any, ranks: int, micro_batches: int) -> list[Any]:
    """Its graph, nodes each behind all that they come after."""
    start, node, needs, slots, work = sweep.collapsed(ranks, micro_batches)
    count = len(slots)
    order, place = np.empty(count, np.int32), np.empty(count, np.int32)
    kern.walk(start, node, needs, slots, np.ones(count), np.empty(count), np.empty(count), order)
    place[order] = np.arange(count, dtype=np.int32)
    before = np.where(needs >= 0, place[needs], -1).astype(np.int32)
    # The last nodes of all are those that end the ranks.
    return [*kern.to_dag(start, place[node], before, count), work[order].astype(np.int64), place[-ranks:]]


def _side_by_side(kern: Any, graph: list[Any], columns: Floats, width: int) -> Callable[[], Floats]:
    blocks = [np.ascontiguousarray(columns[:, at : at + width]) for at in range(0, columns.shape[1], width)]
    *graph, last = graph
    ends = np.empty((len(graph[2]), width))

    def run() -> Floats:
        longest = []
        for block in blocks:
            kern.scan_tab(*graph, block, ends)
            longest.append(ends[last].max(axis=0))
        return np.concatenate(longest)

    return run


if __name__ == '__main__':
    print(durations(Path(sys.argv[1])))
