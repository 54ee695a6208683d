"""Random tensor-parallel plans in tiles with overlap passes, and costs by work alone."""

import random
from dataclasses import replace
from itertools import combinations

from pipeline_cases import named_case
from plain_cases import random_case
from plain_costs import plain_costs

from simpar import Network, Transformer
from simpar.errors import Infeasible
from simpar.lower import lower

PASSES = ('matmul_grad_comm_overlap', 'enable_grad_comm_opt', 'enable_opt_shard_comm_opt', 'recompute_comm_overlap')
SETS = ('default', *(names for count in range(5) for names in combinations(PASSES, count)))
CUTS = ({}, {}, {'zero': 1}, {'zero': 3}, {'hsdp': 'level2', 'shard_threshold': 0.0})
RECOMPUTE = ('none', 'full', 'selective', ('*.fc?', '*.gelu'))


def tiled_case(seed):
    """Workload, plan and ranks; tensor parallel, and something in it is in tiles."""
    draw = random.Random(seed)
    while True:
        if draw.random() < 0.7:
            workload, plan, world = random_case(draw.randrange(10**6))
        else:
            order = draw.choice(['1f1b', 'interleaved-1f1b', 'zb-h1', 'dualpipe-v'])
            workload, plan, world = named_case(draw.randrange(10**6), order, 8, 120)
        tiles = draw.choice([2, 2, 3, 4])
        network = isinstance(workload.model, Network)
        plan = replace(
            plan,
            tiles=tiles,
            overlap=draw.choice(SETS),
            recompute=draw.choice(['none', ('dense*',)] if network else RECOMPUTE),
            recompute_communication=draw.random() < 0.7,
            **draw.choice(CUTS),
        )
        workload = _longer(workload, tiles) if draw.random() < 0.5 else replace(workload, batch=workload.batch * tiles)
        if plan.tensor == 1:
            continue
        try:
            program = lower(workload, plan, world)
        except Infeasible:
            continue
        if tiles_in(program):
            return workload, plan, world, program


def _longer(workload, tiles):
    """The sequence of a transformer divides by tiles, even where tensor ranks cut it."""
    if not isinstance(workload.model, Transformer):
        return workload
    return replace(workload, model=replace(workload.model, sequence=workload.model.sequence * tiles))


def tiles_in(program):
    """How many op classes join tiles."""
    return sum(op.operator == 'join' for op in program.op_classes)


def by_work(program, rate=1.0, each=0.0):
    """Costs of products by their operations and of messages by their bytes; all else takes no time.

    Arguments: ``rate``, seconds of a byte over those of an operation; ``each``, seconds of every message more.
    """
    grid = 2.0**-20
    return plain_costs(
        program, lambda op: op.flops * grid * (op.operator == 'matmul'), lambda op: (each, op.bytes * rate * grid)
    )
