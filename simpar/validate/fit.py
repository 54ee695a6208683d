"""Fit: the few numbers of stacks and devices that may be fitted, within bounds stated beforehand, on rows for fitting.

Nothing else is fitted: no factor on a step, a model or a kind of operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Final

from simpar.case import Case, case_of
from simpar.document import Tree
from simpar.errors import SimparError
from simpar.hardware import Cluster
from simpar.predict import step_of
from simpar.schedule import schedule_of
from simpar.validate.rows import Row
from simpar.validate.settings import Skipped
from simpar.validate.tree import schedule_tree

BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    'forward': (3e-6, 40e-6),
    'backward': (3e-6, 40e-6),
    'step': (0.0, 0.5),
    'sustained': (0.7, 1.0),
    'memory': (0.6, 0.95),
}
"""Host seconds for a kernel forward and backward, and of a step; clock under load over that of short measurements;
bandwidth of streaming kernels over the peak."""
_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class Bench:
    """Rows with their programs, priced again and again."""

    rows: tuple[Row, ...]
    cases: tuple[Case, ...]

    def errors(self, numbers: Mapping[str, float]) -> list[float]:
        """log(predicted / measured) of each row with some numbers in place of those in the files."""
        return [
            log(step_of(case.program, with_numbers(case.cluster, numbers)) / row.seconds)
            for row, case in zip(self.rows, self.cases, strict=True)
        ]

    def loss(self, numbers: Mapping[str, float]) -> float:
        """Mean size of the errors: no row counts more than its share, however wrong."""
        found = self.errors(numbers)
        return sum(map(abs, found)) / len(found)


def bench_of(rows: Sequence[Row]) -> Bench:
    """The rows that can be predicted."""
    kept = [(row, case) for row in rows if (case := _case(row))]
    return Bench(tuple(row for row, _ in kept), tuple(case for _, case in kept))


def _case(row: Row) -> Case | None:
    try:
        return case_of(schedule_of(Tree(root=schedule_tree(row), origins={(): row.name})))
    except (Skipped, SimparError):
        return None


def with_numbers(cluster: Cluster, numbers: Mapping[str, float]) -> Cluster:
    """A cluster with other numbers of its stack and device."""
    stack, device = cluster.stack, cluster.profile.device
    if stack and stack.host:
        host = stack.host
        changed = {key: replace(getattr(host, key), value=numbers[key]) for key in ('forward', 'backward', 'step')
                   if key in numbers}  # fmt: skip
        stack = replace(stack, host=replace(host, **changed))
    if 'memory' in numbers:
        memory = device.memory
        device = replace(device, memory=replace(memory, share=replace(memory.share, value=numbers['memory'])))
    if 'sustained' in numbers:
        device = replace(device, sustained=replace(device.memory.share, value=numbers['sustained']))
    profile = cluster.profile if device is cluster.profile.device else replace(cluster.profile, device=device)
    return replace(cluster, stack=stack, profile=profile)


def fit(bench: Bench, names: Sequence[str], begin: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """Numbers of least loss, by a search along one after the other, and that loss."""
    best = dict(begin)
    least = bench.loss(best)
    reach = 0.4
    for _ in range(_ROUNDS):
        for name in names:
            low, high = BOUNDS[name]
            for factor in (1 - reach, 1 - reach / 2, 1 + reach / 2, 1 + reach):
                tried = {**best, name: min(high, max(low, best[name] * factor))}
                loss = bench.loss(tried)
                if loss < least:
                    least, best = loss, tried
        reach /= 2
    return best, least
