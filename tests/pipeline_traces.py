"""Pipelines with costs that one can add up by hand: every forward and backward of a stage takes a given time."""

from collections import Counter

import numpy as np
from plain_costs import plain_costs

from simpar import Plan, Transformer, Workload, simulate
from simpar.lower import lower

F, B = 4.0, 8.0
"""Seconds of a stage's forward and of its backward, in which I and W take the same; of all copies together."""


def plan_of(order='1f1b', *, ranks=2, micro_batches=2, chunks=0, **more):
    return Plan(pipeline=ranks, micro_batches=micro_batches, order=order, chunks=chunks, **more)


def program_of(plan, layers=0):
    """A small transformer with as many layers as it takes for every stage to have one."""
    stages = plan.pipeline * max(2 if plan.order in ('zb-v', 'dualpipe-v') else 1, plan.chunks)
    model = Transformer(layers=layers or stages, hidden=16, heads=2, vocab=16, sequence=4)
    batch = plan.micro_batches * plan.copies * max(1, plan.data)
    return lower(Workload(model=model, batch=batch), plan, plan.pipeline * plan.tensor * max(1, plan.data))


def stage_costs(program, *, send=0.0, collective=0.0, update=0.0, host=0.0):
    """A stage's forward takes ``F`` seconds and its backward ``B``, shared out evenly among its ops."""

    def shared(op):
        return op.kind == 'compute' and op.phase != 'U' and program.sliced(op)

    parts = {(op.stage, op.phase, op.name.removesuffix('.split')) for op in program.op_classes if shared(op)}
    counts = Counter((stage, phase) for stage, phase, _ in parts)
    whole = {'F': F, 'I': B / 2, 'W': B / 2}
    lasts = {'send': send, 'recv': send, 'collective': collective}

    def compute(op):
        if shared(op):
            return whole[op.phase] / counts[op.stage, op.phase] / program.copies
        return update * (op.phase == 'U')

    hosts = np.full(len(program.op_classes), host)
    return plain_costs(program, compute, lambda op: lasts[op.kind], host=hosts)


def trace_of(plan, *, layers=0, steps=3, **costs):
    """The simulated trace of a plan, and its costs."""
    program = program_of(plan, layers)
    priced = stage_costs(program, **costs)
    return simulate(program, priced, steps=steps), priced
