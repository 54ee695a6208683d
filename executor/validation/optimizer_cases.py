"""Optimizer parallelism as schedules: where gradients are summed, what is sharded, when weights are gathered."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from executor.validation.cases import ValidationCase
from simpar.lower import lower
from simpar.model import Dense, Network
from simpar.plan import Plan
from simpar.workload import Workload

WIDTHS: Final = {2: 768, 4: 1088}
"""By ranks: a shard of a weight has 1.2 MB."""
LAYERS: Final = 6
SAMPLES: Final = 768
"""Of a data rank in a step."""
MICRO_BATCHES: Final = 4
"""Of a pipeline."""
BUCKET: Final = 2.1
"""Weights that a bucket stays below."""
VARIANTS: Final[dict[str, Plan]] = {
    'sums at the end': Plan(reduce_gradients='end'),
    'unfused': Plan(fusion='none'),
    # In place of auto, as many bytes as BUCKET weights have.
    'buckets': Plan(fusion='auto'),
    'ZeRO 1': Plan(zero=1),
    'ZeRO 2': Plan(zero=2),
    'ZeRO 3': Plan(zero=3, prefetch=0),
    'ZeRO 3, prefetch': Plan(zero=3, prefetch=1),
    'hsdp level 1, prefetch': Plan(hsdp='level1', prefetch=2),
}


def workload(ranks: int, data: int) -> Workload:
    """Square layers, one behind the other, of 2.4 MB each on 2 ranks, of 4.7 on 4."""
    width = WIDTHS[ranks]
    layers = tuple(Dense(inputs=width, outputs=width, bias=False) for _ in range(LAYERS))
    return Workload(model=Network(layers=layers), batch=SAMPLES * data, loss='mse')


def optimizer_cases(ranks: int, *, copies: tuple[int, ...] = (1, 2)) -> list[ValidationCase]:
    """Every variant with copies; on 4 ranks with a pipeline of 2 as well. Gain is measured from sums at the end."""
    pipelines = (1, 2) if ranks > 2 else (1,)
    return [case for pipeline in pipelines for count in copies for case in _family(ranks, pipeline, count)]


def _family(ranks: int, pipeline: int, copies: int) -> list[ValidationCase]:
    label = (f', copies {copies}' if copies > 1 else '') + (f', pipeline {pipeline}' if pipeline > 1 else '')
    data = ranks // pipeline
    first = f'{next(iter(VARIANTS))}{label}'
    found = []
    for name, variant in VARIANTS.items():
        micro_batches = MICRO_BATCHES if pipeline > 1 else 1
        plan = replace(variant, data=data, pipeline=pipeline, micro_batches=micro_batches, copies=copies)
        # In bytes of this width, so that a bucket holds as many weights on 2 ranks as on 4.
        if plan.fusion == 'auto':
            plan = replace(plan, fusion=BUCKET * 4 * WIDTHS[ranks] ** 2)
        case = f'{name}{label}'
        program = lower(workload(ranks, data), plan, ranks)
        found.append(ValidationCase(name=case, program=program, against='' if case == first else first))
    return found
