"""Random networks that are graphs: what is refused at the door is what lowering refuses, at a layer of the file."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from graph_cases import graph_case, random_graph

from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.model import Dense, Network, network_shapes
from simpar.plans import Plan
from simpar.schedule import ClusterReference
from simpar.schedule.checks import check
from simpar.schedule.contents import Contents
from simpar.workload import Workload


def complaints(workload: Workload, plan: Plan) -> list[tuple[object, ...]]:
    contents = Contents(simpar=1, cluster=ClusterReference(profile='h100-sxm-8'), workload=workload, plan=plan)
    return [complaint.key for complaint in check(contents)]


@pytest.mark.parametrize('seed', range(120))
def test_what_can_be_lowered_is_not_refused(seed):
    workload, plan, _ = graph_case(seed)
    assert complaints(workload, plan) == []


def staged(seed: int) -> tuple[Workload, Plan]:
    """A random graph in a pipeline of stages that begin at any dense layers."""
    draw = random.Random(seed)
    while True:
        draft = random_graph(draw, 4, 1)
        dense = len(draft.network.dense)
        if dense >= 2:
            break
    stages = draw.randint(2, min(4, dense))
    begins = sorted(draw.sample(range(1, dense), stages - 1))
    counts = tuple(end - start for start, end in zip([0, *begins], [*begins, dense], strict=True))
    workload = Workload(model=draft.network, batch=2 * draft.rows, loss='mse')
    return workload, Plan(pipeline=stages, stages=counts, micro_batches=2)


def test_stages_begin_at_any_layer_whatever_later_ones_read():
    several = 0
    for seed in range(120):
        workload, plan = staged(seed)
        assert ('plan', 'stages') not in complaints(workload, plan), seed
        program = lower(workload, plan, 2 * plan.pipeline)
        several += any(len(op.reads) > 1 for op in program.op_classes if op.kind == 'send')
    assert 10 < several < 110


def spoiled(seed: int) -> Workload:
    """A random graph of which one layer is another, or out."""
    draw = random.Random(seed)
    workload, *_ = graph_case(seed)
    layers = list(workload.model.layers)
    place = draw.randrange(len(layers))
    layer = layers[place]
    if isinstance(layer, Dense) and draw.random() < 0.5:
        layers[place] = replace(layer, inputs=layer.inputs + draw.choice([0, 1]))
    elif draw.random() < 0.5:
        del layers[place]
    else:
        layers.insert(place, draw.choice(layers[: place + 1]))
    model = replace(workload.model, layers=tuple(layers or [layer]))
    return replace(workload, model=model, loss='mse', loss_operators='one', loss_strategies={})


@pytest.mark.parametrize('seed', range(150))
def test_networks_that_do_not_fit_are_refused_at_the_door_and_no_others(seed):
    workload = spoiled(seed)
    model = workload.model
    assert isinstance(model, Network)
    named = [key for key in complaints(workload, Plan()) if key[-1] != 'name']
    clash = len(named) < len(complaints(workload, Plan()))
    if clash or not model.is_graph:
        return
    try:
        network_shapes(model, workload.batch)
    except Infeasible:
        assert named
    else:
        assert not named
