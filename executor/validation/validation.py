"""Predicts and measures all cases in one run: one pool of ranks, rounds in shuffled order, calibration among them."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from executor.assemble import Execution
from executor.backend import Pool
from executor.measure import Statistics, steady_steps
from executor.rank import Request
from executor.validation.calibration import (
    CalibratedCollectives,
    Kind,
    Line,
    Samples,
    kinds_of,
    program_of,
    sizes_around,
)
from executor.validation.cases import ValidationCase
from simpar.cost.price import price
from simpar.hardware import Cluster, ShareFigure
from simpar.hardware.net import Net
from simpar.predict import followed
from simpar.profiles import cluster, load_profile, shaped
from simpar.program import Program

STEPS = 4
APART = 0.05
"""Steps that are predicted further apart than this must be measured in the same order."""
BESIDE = 0.9
"""Speed of emulated compute beside a collective."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One program of a round, and who takes what is measured."""

    program: Program
    request: Request
    take: Callable[[Execution], None]


def _into(found: list[float]) -> Callable[[Execution], None]:
    return lambda execution: found.extend(steady_steps(execution))


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One case: predicted seconds of a step, measured ones, and the same of the case that gain is measured from."""

    case: ValidationCase
    predicted: float
    measured: Statistics
    gain_predicted: float | None
    gain_measured: float | None

    @property
    def error(self) -> float:
        """predicted / the 10th percentile measured − 1."""
        return self.predicted / self.measured.p10 - 1

    @property
    def gain_error(self) -> float:
        """Difference of the gains, as a share; 0 for a baseline."""
        if self.gain_predicted is None or self.gain_measured is None:
            return 0.0
        return self.gain_predicted - self.gain_measured


@dataclass(frozen=True, slots=True, eq=False)
class Validation:
    """All rows of a run, and the lines that communication was calibrated to."""

    net: Net
    world: int
    rows: tuple[Row, ...]
    lines: dict[Kind, Line]

    @property
    def worst(self) -> float:
        """The largest error of a step."""
        return max(abs(row.error) for row in self.rows)

    @property
    def worst_gain(self) -> float:
        """The largest error of a gain."""
        return max(abs(row.gain_error) for row in self.rows)

    def disordered(self, apart: float = APART) -> list[tuple[str, str]]:
        """Pairs predicted further apart than this share, and measured the other way round."""
        wrong = []
        for one, other in itertools.combinations(self.rows, 2):
            # Steps closer than this may change places by noise alone.
            clear = abs(one.predicted - other.predicted) > apart * min(one.predicted, other.predicted)
            if clear and (one.predicted < other.predicted) != (one.measured.p10 < other.measured.p10):
                wrong.append((one.case.name, other.case.name))
        return wrong


def run_cases(
    cases: Sequence[ValidationCase],
    net: Net,
    world: int,
    *,
    rounds: int = 20,
    steps_a_run: int = STEPS,
    timeout: float = 60.0,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Validation:
    """Measure everything, calibrate from the same rounds, predict.

    Arguments:
        rounds: how many rounds count, after one of warm-up.
        steps_a_run: steps of a run; those from the third on count.
        progress: called with the rounds done and their number.
    Raises ``RunFailed``.
    """
    hardware = emulated_cluster(net, world)
    samples: dict[Kind, Samples] = {}
    steps: dict[str, list[float]] = {}
    jobs: list[Job] = []
    for case in cases:
        # The same costs drive the emulated device and the prediction: seconds of compute are given, not tested.
        request = Request(compute='emulated', costs=price(case.program, hardware), steps=steps_a_run)
        found = steps.setdefault(case.name, [])
        jobs.append(Job(case.program, request, _into(found)))
    for kind, used in kinds_of(case.program for case in cases).items():
        program = program_of(kind, sizes_around(used), world)
        samples[kind] = Samples()
        # Two steps: the first warms up, the second is measured.
        request = Request(compute='emulated', costs=price(program, hardware), steps=2)
        jobs.append(Job(program, request, samples[kind].add))
    # Pinned, so that a rank that wakes up late is the network's doing, not the scheduler's.
    with Pool(world, net=net, timeout=timeout, pinned=True) as pool:
        _measure(jobs, pool, rounds, progress)
    lines = {kind: found.fit() for kind, found in samples.items()}
    calibrated = CalibratedCollectives(lines)
    predicted = {
        case.name: followed(case.program, price(case.program, hardware, collective=calibrated)).step for case in cases
    }
    measured = {name: Statistics(np.array(found)) for name, found in steps.items()}
    return Validation(net, world, tuple(_row(case, predicted, measured) for case in cases), lines)


def emulated_cluster(net: Net, world: int) -> Cluster:
    """CPU cores over one shaped link each; compute is slowed beside collectives, as given, and collectives are not."""
    profile = shaped(load_profile('cpu-gloo'), str(net), net.rate, net.latency)

    def factor(value: float) -> ShareFigure:
        return ShareFigure(value=value, source='given to the emulated device', grade='estimate')

    slow_down = dataclasses.replace(
        profile.slow_down, matrix=factor(BESIDE), memory=factor(BESIDE), collective=factor(1.0)
    )
    return cluster(dataclasses.replace(profile, slow_down=slow_down, devices=world))


def _measure(jobs: Sequence[Job], pool: Pool, rounds: int, progress: Callable[[int, int], None]) -> None:
    """Run every job once a round, in a new order each; the first round is warm-up."""
    # A new order each round: drift of the machine hits all cases and the calibration alike.
    shuffled, order = random.Random(0), list(jobs)
    for turn in range(rounds + 1):
        shuffled.shuffle(order)
        for job in order:
            execution = pool.perform(job.program, job.request)
            # The first round opens connections.
            if turn:
                job.take(execution)
        progress(turn, rounds)


def _row(case: ValidationCase, predicted: dict[str, float], steps: dict[str, Statistics]) -> Row:
    if not case.against:
        return Row(case, predicted[case.name], steps[case.name], None, None)
    return Row(
        case,
        predicted[case.name],
        steps[case.name],
        predicted[case.against] / predicted[case.name] - 1,
        steps[case.against].p10 / steps[case.name].p10 - 1,
    )
