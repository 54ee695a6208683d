"""Costs that a test says op by op: without links, without a host, and nothing slows anything, unless said otherwise."""

import random

import numpy as np

from simpar.cost.costs import Communication, Costs


def plain_costs(program, compute, message=lambda op: 0.0, **others):
    """The costs of a program.

    Arguments: ``compute``, an op class → seconds alone; ``message``, an op class that communicates → seconds that take
    nothing of a link, or (seconds, transfer); ``others``, fields of ``Costs`` in place of the plain ones.
    """
    ops = program.op_classes
    ones = np.ones(len(ops))
    plain = {
        'host': 0 * ones,
        'beside_communication': ones,
        'beside_compute': ones,
        'links': (),
        'rank_speed': np.ones(program.world),
    }
    return Costs(
        compute=np.array([float(compute(op)) if op.kind == 'compute' else 0.0 for op in ops]),
        communication={
            index: (_communication(message(op)),) * len(program.partitions[op.partition].groups_GP)
            for index, op in enumerate(ops)
            if op.kind != 'compute'
        },
        **{**plain, **others},
    )


def _communication(seconds):
    return Communication(*seconds) if isinstance(seconds, tuple) else Communication(seconds, 0.0)


def random_costs(program, seed, **others):
    """Every op class at a speed of its own, on the grid of times."""
    draw = random.Random(seed)
    return plain_costs(
        program, lambda op: draw.randint(0, 63) / 64, lambda op: (1 / 64, draw.randint(1, 63) / 64), **others
    )
