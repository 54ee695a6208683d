"""``simpar init``: a first schedule, with comments, from a model, devices and a batch."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simpar.case import load_case
from simpar.commands.question import with_baseline
from simpar.errors import Infeasible, Problem, ScheduleError
from simpar.files import write_atomically
from simpar.huggingface.sizes import MODELS
from simpar.importing.first import Degrees, First, Step, compared, first_schedules
from simpar.profiles import profile_of_flag
from simpar.schedule import load_schedule
from simpar.workload import Transformer


def command(options: argparse.Namespace) -> int:
    """Write it where it is asked for, once it has been read back."""
    profile = profile_of_flag(options.cluster, '--cluster')
    sizes, model = _sizes(options.model, options.sequence)
    firsts = first_schedules(
        sizes, profile, nodes=options.nodes, devices=0 if options.devices == profile.devices else options.devices,
        batch=options.batch, sequence=options.sequence, model=model,
    )  # fmt: skip
    first, lines = _fastest(firsts)
    text = with_baseline(first.values, lambda question: first.text(question, lines))
    if options.output:
        if model:
            # Paths in a schedule are from its folder.
            text = text.replace(f'model: {json.dumps(model)}', f'model: {json.dumps(_relative(model, options.output))}')
        write_atomically(options.output, text)
        print(json.dumps({'written': str(options.output)}) if options.json else f'wrote {options.output}')
    elif options.json:
        print(json.dumps({'schedule': text}))
    else:
        sys.stdout.write(text)
    return 0


def _fastest(firsts: Sequence[First]) -> tuple[First, tuple[str, ...]]:
    """The schedule with the shortest predicted step of those that fit, and lines on all that were predicted."""
    known: dict[Degrees, First] = {}
    steps: dict[Degrees, Step] = {}
    for first in firsts:
        full = [first.with_full_recomputation()] if first.plan.recompute != 'full' else []
        for one in (first, *full):
            step = _predicted(one) if one.plan not in steps else None
            if step is not None:
                known[one.plan], steps[one.plan] = one, step
            if step is None or step.fits:
                break
    # Where none can be predicted, the one that holds least, which the user is told of when it runs.
    best = min(steps, key=lambda plan: (not steps[plan].fits, steps[plan].seconds), default=firsts[0].plan)
    return known.get(best, firsts[0]), compared(steps)


def _predicted(first: First) -> Step | None:
    """A step of a schedule; None where it cannot be predicted.

    Of many micro-batches the ones behind the first rounds take equal times: the step of all is drawn on from two.
    """
    stages, micro = first.plan.pipeline, first.values['plan.micro_batches']
    if micro <= 2 * stages:
        return _step(first, micro)
    short, long = _step(first, stages), _step(first, 2 * stages)
    if short is None or long is None:
        return None
    each = (long.seconds - short.seconds) / stages
    return Step(long.seconds + each * (micro - 2 * stages), long.fits)


def _step(first: First, micro_batches: int) -> Step | None:
    """A step of fewer micro-batches, each as large as those of the schedule."""
    batch = first.values['workload.batch'] * micro_batches // first.values['plan.micro_batches']
    fewer = [f'workload.batch={batch}', f'plan.micro_batches={micro_batches}']
    try:
        prediction = load_case(first.text(), fewer).predict()
    except (ScheduleError, Infeasible):
        return None
    return Step(prediction.step, prediction.memory.peak <= prediction.device_memory)


def _relative(model: str, output: Path) -> str:
    return os.path.relpath(model, output.parent or Path())


def _sizes(model: str, sequence: int) -> tuple[Mapping[str, Any], str]:
    """Sizes of a model of the library, or those that a config has, and its path."""
    if model.lower() in MODELS:
        return MODELS[model.lower()], ''
    if not model.endswith('.json'):
        known = f'one of {", ".join(MODELS)}, or a config.json'
        raise ScheduleError(Problem('--model', f'no known model ({model[:40]!r})', known))
    probe = {'simpar': 1, 'cluster': 'h100-sxm-8', 'workload': {'model': model, 'sequence': sequence, 'batch': 65536}}
    network = load_schedule({**probe, 'plan': {'data': 8}}).workload.model
    assert isinstance(network, Transformer)
    return asdict(network), model
