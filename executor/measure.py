"""Measurement: statistics of repeats, and programs run in turns, so that drift of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from executor.ranks.request import Request
from executor.state import Execution
from simpar.program import Program
from simpar.trace import joined

FIRST_STEADY = 2
"""Step from which on steps count: end(k) − end(k−1), k = 3 being the first; ``Trace.warm`` tells the last."""


DIGITS: Final = 5
"""Significant digits of a time: more would be noise."""


def figures(samples: Any, low: float | None = None) -> dict[str, float] | None:
    """What a reader must know of some repeats; None where there are none.

    A machine that is shared adds time and never takes any, so a low quantile tells what was measured, the median what a
    user sees, and the spread how much to believe either.
    Arguments: ``low``, the number to use of them, where it is not their 10th percentile.
    """
    if not len(samples):
        return None
    return {
        'n': len(samples),
        'median': _short(np.median(samples)),
        'p10': _short(np.quantile(samples, 0.1)),
        'iqr': _short(np.subtract(*np.quantile(samples, [0.75, 0.25]))),
        'cv': round(float(np.std(samples) / np.mean(samples)), 4),
        **({} if low is None else {'low': _short(low)}),
    }


def _short(seconds: Any) -> float:
    return float(f'{float(seconds):.{DIGITS}g}')


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
