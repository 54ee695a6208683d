"""Random plans compute what torch autograd computes on the unsharded model, to 1e-10 in norm in fp64."""

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from every import EVERY

from simpar.cost.costs import Communication, Costs
from simpar.engine import simulate
from simpar.lower import lower
from simpar.model import Dense, Flatten, Network, Relu
from simpar.plans import Plan
from simpar.workload import Adam, Sgd, Transformer, Workload

torch = pytest.importorskip('torch', reason='needs the extra torch')

from executor.inprocess import InProcess
from executor.numerics import check

pytestmark = pytest.mark.torch


CASES = 208
RANKS = 8


def random_plan(draw):
    """A plan of at most 8 ranks, and its number of ranks."""
    data = draw.choice([1, 1, 2, 3, 4])
    tensor = draw.choice([degree for degree in (1, 2, 3, 4, 8) if data * degree <= RANKS])
    plan = Plan(
        data=draw.choice([data, 0]),
        tensor=tensor,
        sequence_parallel=draw.random() < 0.5,
        copies=draw.choice([1, 2, 2, 3, 4]),
        copies_loss=draw.choice(['mean', 'sum']),
        reduce=draw.choice(['early', 'late']),
        streams=draw.choice(['group', 'group', 'single']),
    )
    return plan, data * tensor


def random_transformer(draw, tensor):
    """Tiny; heads, vocabulary and width mostly divide by the tensor degree, and sometimes do not."""
    groups = draw.choice([tensor, tensor, 2 * tensor, 1, 3])
    heads = groups * draw.choice([1, 1, 2])
    return Transformer(
        layers=draw.choice([1, 1, 1, 2]),
        hidden=heads * (draw.choice([2, 4]) if heads >= 4 else 8),
        heads=heads,
        kv_heads=groups,
        ffn=draw.choice([0, 2 * tensor, 7]),
        vocab=draw.choice([tensor * 3, tensor * 4, 11]),
        sequence=tensor * draw.choice([1, 2]),
        tied=draw.random() < 0.3,
        init_std=0.2,
    )


def random_network(draw, tensor):
    """Dense layers with and without bias and relu; some widths do not divide by the tensor degree."""
    widths = [draw.choice([tensor, 3 * tensor, 4 * tensor, 10]) for _ in range(draw.randint(2, 5))]
    layers = [Flatten()]
    for inputs, outputs in pairwise(widths):
        layers.append(Dense(inputs=inputs, outputs=outputs, bias=draw.random() < 0.7))
        layers += [Relu()] if draw.random() < 0.6 else []
    return Network(layers=tuple(layers), init_std=0.5)


def random_case(seed):
    draw = random.Random(seed)
    plan, world = random_plan(draw)
    network = draw.random() < 0.4
    workload = Workload(
        model=random_network(draw, plan.tensor) if network else random_transformer(draw, plan.tensor),
        batch=world // plan.tensor * plan.copies * draw.choice([1, 2]),
        loss=draw.choice(['cross-entropy', 'mse']) if network else 'cross-entropy',
        optimizer=draw.choice([Sgd(learning_rate=0.1), Adam(learning_rate=0.01)]),
    )
    return workload, replace(plan, sum_loss=seed % 2 == 0), world


def random_costs(program, seed):
    """Every op class and every rank at a speed of its own; no links, no host, no slow-down."""
    draw = random.Random(seed)
    classes = range(len(program.op_classes))
    ones = np.ones(len(classes))
    return Costs(
        compute=np.array([draw.randint(1, 9) * 0.125 for _ in classes]),
        host=0 * ones,
        beside_communication=ones,
        beside_compute=ones,
        communication={
            index: (Communication(0.125, draw.randint(1, 40) * 0.125),)
            * len(program.partitions[op.partition].groups_GP)
            for index, op in enumerate(program.op_classes)
            if op.kind != 'compute'
        },
        links=(),
        rank_speed=np.array([draw.choice([1.0, 0.5]) for _ in range(program.world)]),
    )


@pytest.mark.parametrize('seed', range(0, CASES, EVERY))
def test_a_random_plan_computes_what_autograd_computes(seed):
    workload, plan, world = random_case(seed)
    program = lower(workload, plan, world)
    report = check(program, workload, plan, steps=2, seed=seed)
    parameters = sum(tensor.kind == 'parameter' for tensor in program.tensors)
    assert len(report.deviations) == 2 * (1 + 2 * parameters)


def test_the_plans_are_many_and_cover_every_choice():
    cases = [random_case(seed) for seed in range(CASES)]
    assert len({repr(case) for case in cases}) >= 200
    plans = [plan for _, plan, _ in cases]
    assert {(plan.tensor, plan.copies) for plan in plans} >= {(t, c) for t in (1, 2, 3, 4, 8) for c in (1, 2, 3, 4)}
    for of_model, switches in ((Transformer, 16), (Network, 8)):
        cut = [(p, world) for w, p, world in cases if isinstance(w.model, of_model) and p.tensor > 1]
        sequence_parallel = [p.sequence_parallel and of_model is Transformer for p, _ in cut]
        chosen = {
            (world > p.tensor, p.copies > 1, p.reduce, on)
            for (p, world), on in zip(cut, sequence_parallel, strict=True)
        }
        assert len(chosen) == switches
    assert {world for _, _, world in cases} == {1, 2, 3, 4, 6, 8}


@pytest.mark.parametrize('seed', range(0, CASES, 16))
def test_every_order_that_needs_and_streams_allow_gives_the_same_bits(seed):
    program = lower(*random_case(seed))
    wanted = InProcess(program, seed).run(3)
    for other in ({'shuffle': seed}, {'trace': simulate(program, random_costs(program, seed))}):
        found = InProcess(program, seed, **other).run(3)
        assert found.losses == wanted.losses
        for name, parameter in wanted.parameters.items():
            assert torch.equal(found.parameters[name], parameter), name
