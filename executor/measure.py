"""Measurement: several programs on one pool of ranks, in turns, so that drift of the machine hits all alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from executor.assemble import Execution
from executor.ranks.pool import Pool
from executor.ranks.request import Request
from simpar.program import Program
from simpar.trace import Times, joined

Case = tuple[Program, Request]
FIRST_STEADY = 2
"""Step from which on steps count: end(k) − end(k−1), k = 3 being the first; ``Trace.warm`` tells the last."""


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Seconds of some repeats.

    A machine that is shared adds time and never takes any, so a low quantile tells what was measured, the median what a
    user sees, and the spread how much to believe either.
    """

    samples: Times

    @property
    def count(self) -> int:
        """Number of repeats."""
        return len(self.samples)

    @property
    def p10(self) -> float:
        """The 10th percentile."""
        return float(np.quantile(self.samples, 0.1))

    @property
    def median(self) -> float:
        """The median."""
        return float(np.median(self.samples))

    @property
    def iqr(self) -> float:
        """The distance between the quartiles."""
        return float(np.subtract(*np.quantile(self.samples, [0.75, 0.25])))

    @property
    def cv(self) -> float:
        """The standard deviation over the mean."""
        return float(np.std(self.samples) / np.mean(self.samples))


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """The measurements of one case.

    Arguments:
        step: one sample a round: the median of its steady steps.
        execution: the round whose step is the nearest to the 10th percentile.
    """

    step: Statistics
    execution: Execution


def measure(cases: Sequence[Case], pool: Pool, rounds: int = 20, warmup: int = 2, seed: int = 0) -> list[Measured]:
    """Run every case once a round.

    Arguments:
        cases: pairs (program, request) of at least three steps.
        warmup: rounds before those that count.
        seed: the seed of the orders, which the parent decides for all ranks.
    """
    for program, request in cases:
        # The first two steps do not count, nor does the last where another would run into it.
        least = FIRST_STEADY + 1 + program.followed
        if request.steps < least:
            raise ValueError(f'no step of {request.steps} is steady; take at least {least}')
    shuffled, order = random.Random(seed), list(range(len(cases)))
    found: list[list[Execution]] = [[] for _ in cases]
    for turn in range(warmup + rounds):
        shuffled.shuffle(order)
        for index in order:
            execution = pool.perform(*cases[index])
            if turn >= warmup:
                found[index].append(execution)
    return [_measured(executions) for executions in found]


def steady_steps(execution: Execution) -> list[float]:
    """Seconds of the steps from the third on that have a follower, where that matters."""
    times: list[float] = execution.trace.step_times[execution.trace.warm(FIRST_STEADY)].tolist()
    return times


def steady(execution: Execution) -> float:
    """Seconds of a steady step: the median, where there are several."""
    # A median: one disturbed step of a run should not count.
    return float(np.median(steady_steps(execution)))


def _measured(executions: list[Execution]) -> Measured:
    step = Statistics(np.array([steady(execution) for execution in executions]))
    # A trace of a typical quiet round, so that its spans fit the number that is reported.
    return Measured(step, min(executions, key=lambda execution: abs(steady(execution) - step.p10)))


# Turns: a plan and its baseline run block after block, one after the other, so that drift of the machine hits both.

BLOCK: Final = 5
"""Steps that count in a block: more would let the machine drift between plan and baseline, fewer mostly warm up."""
Perform = Callable[[Program, Request], Execution]
Run = tuple[Program, Request]
"""What is run: a program, and a request whose number of steps a block replaces."""


def blocks_of(steps: int, programs: int) -> list[int]:
    """How many steps count in each block: of one program all in one, of several a few, and at least two blocks."""
    count = 1 if programs == 1 else min(max(2, round(steps / BLOCK)), steps)
    return [steps // count + (number < steps % count) for number in range(count)]


def in_turns(runs: Sequence[Run], steps: int, perform: Perform) -> tuple[Execution, ...]:
    """Run programs in turns; of each an execution, whose trace has the steps of all its blocks.

    Arguments:
        runs: programs with their requests; the first may keep parameters and gradients.
        steps: how many of each program count, over all blocks.
        perform: runs a program.
    """
    found: list[list[Execution]] = [[] for _ in runs]
    for counted in blocks_of(steps, len(runs)):
        for (program, request), executions in zip(runs, found, strict=True):
            block = replace(request, steps=steps_of(program, counted), keep=request.keep and len(runs) == 1)
            executions.append(perform(program, block))
    whole = [_whole(executions) for executions in found]
    program, request = runs[0]
    if request.keep and len(runs) > 1:
        # A state is of one training, and each block begins a training anew.
        kept = perform(program, replace(request, steps=steps_of(program, steps)))
        whole[0] = replace(kept, trace=whole[0].trace, notes=_notes([whole[0], kept]))
    return tuple(whole)


def steps_of(program: Program, counted: int) -> int:
    """Steps of a block: those before do not count, nor does the last where the next would run into it."""
    return FIRST_STEADY + counted + program.followed


def _whole(executions: Sequence[Execution]) -> Execution:
    trace = joined([one.trace for one in executions], FIRST_STEADY)
    return replace(executions[0], trace=trace, notes=_notes(executions))


def _notes(executions: Sequence[Execution]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for one in executions for note in one.notes))
