"""Random pipelines: plans over every order, and orders that nobody would write but that can be carried out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import prod

from simpar.errors import ScheduleError
from simpar.pipeline import ORDERS, Action, Order, check_order, gives, named_order, needs, overlap
from simpar.plan import Plan
from simpar.program import Program, ProgramBuilder
from simpar.workload import Adam, Dense, Network, Relu, Sgd, Transformer, Workload

Case = tuple[Workload, Plan, int]
Slot = tuple[str, str, int, int]
"""Op class, stream, micro-batch, copy."""


def random_case(seed: int, name: str, ranks: int, most_ops: int) -> Case:
    """A plan with this order on at most so many ranks, and a tiny model for it.

    Arguments: ``most_ops``, a bound on layers × micro-batches × copies × ranks of a stage, which keeps a case short.
    """
    draw = random.Random(seed)
    while True:
        plan, order = random_plan(draw, name, ranks)
        if order is None:
            continue
        workload, plan = random_workload(draw, plan, order.stages)
        if work(workload, plan) <= most_ops:
            return workload, plan, plan.pipeline * plan.data * plan.tensor


def work(workload: Workload, plan: Plan) -> int:
    """What a case costs in process: op classes of a layer × how often they run."""
    model = workload.model
    layers = 6 * (model.layers + 1) if isinstance(model, Transformer) else len(model.layers)
    return layers * plan.micro_batches * plan.copies * plan.data * plan.tensor


def random_plan(draw: random.Random, name: str, ranks: int) -> tuple[Plan, Order | None]:
    """A plan, and its order; None where the order does not have these counts."""
    degrees = {'pipeline': draw.choice([1, 2, 2, 3, 4, 4, 5, 6, 7, 8, ranks])}
    for other in ('data', 'tensor'):
        room = ranks // prod(degrees.values())
        degrees[other] = draw.choice([degree for degree in (1, 1, 2, 2, 3, 4) if degree <= room] or [0])
    if 0 in degrees.values():
        return Plan(), None
    least, most = ORDERS[name].chunks
    plan = Plan(
        **degrees,
        micro_batches=draw.choice([1, 2, 3, degrees['pipeline'], *range(2, 2 * degrees['pipeline'] + 3)]),
        order=name,
        chunks=draw.choice([least or 1, min(most, 2), min(most, 3)]),
        receive=draw.choice(['early', 'late']),
        exchange=draw.choice(['separate', 'separate', 'fused']),
        sequence_parallel=degrees['tensor'] > 1 and draw.random() < 0.5,
        copies=draw.choice([1, 1, 2, 3]),
        copies_loss=draw.choice(['mean', 'sum']),
        reduce=draw.choice(['early', 'late']),
        streams=draw.choice(['group', 'group', 'group', 'single']),
    )
    try:
        return plan, named_order(name, plan.pipeline, plan.micro_batches, plan.chunks)
    except ScheduleError:
        return plan, None


def random_workload(draw: random.Random, plan: Plan, stages: int) -> tuple[Workload, Plan]:
    """A tiny model for a plan, and the plan with the layers of its stages, equal or not."""
    network = draw.random() < 0.5
    uneven = stages > 1 and draw.random() < 0.4
    counts = tuple(draw.choice([1, 1, 2] if network else [0, 0, 1, 2]) for _ in range(stages)) if uneven else ()
    layers = sum(counts) if uneven else stages + draw.choice([0, 0, 1])
    if not layers:
        counts, layers = (1, *counts[1:]), 1
    slices = max(1, plan.data) * plan.micro_batches * plan.copies
    workload = Workload(
        model=random_network(draw, plan.tensor, layers) if network else random_transformer(draw, plan.tensor, layers),
        batch=slices * draw.choice([1, 1, 2]),
        loss=draw.choice(['cross-entropy', 'mse']) if network else 'cross-entropy',
        precision='fp64',
        optimizer=draw.choice([Sgd(learning_rate=0.1), Adam(learning_rate=0.01)]),
    )
    return workload, replace(plan, stages=counts)


def random_transformer(draw: random.Random, tensor: int, layers: int) -> Transformer:
    """Heads divide by the tensor degree, vocabulary and width mostly; half of them are tied."""
    heads = tensor * draw.choice([1, 1, 2])
    return Transformer(
        layers=layers,
        hidden=4 * heads,
        heads=heads,
        kv_heads=draw.choice([0, tensor]),
        ffn=draw.choice([2 * tensor, 7]),
        vocab=draw.choice([tensor * 3, 11]),
        sequence=tensor * draw.choice([1, 2]),
        tied=draw.random() < 0.5,
        weight_deviation=0.3,
    )


def random_network(draw: random.Random, tensor: int, layers: int) -> Network:
    """Dense layers with and without bias and relu; some widths do not divide by the tensor degree."""
    widths = [draw.choice([3 * tensor, 4 * tensor, 5]) for _ in range(layers + 1)]
    found: list[Dense | Relu] = []
    for inputs, outputs in pairwise(widths):
        found += [Relu()] if found and draw.random() < 0.4 else []
        found.append(Dense(inputs=inputs, outputs=outputs, bias=draw.random() < 0.7))
    return Network(layers=tuple(found), weight_deviation=0.7)


def random_order(draw: random.Random, ranks: int, stages: int, micro_batches: int) -> Order:
    """An order that can be carried out and that nobody would write.

    Stages lie anywhere, micro-batches overtake one another, backwards are whole, split or overlapped.
    """
    placement = (*range(ranks), *(draw.randrange(ranks) for _ in range(stages - ranks)))
    placement = tuple(draw.sample(placement, stages))
    order = Order(((),) * ranks, placement, micro_batches)
    left = {stage: _work(draw, stage, micro_batches) for stage in range(stages)}
    rows: list[list[Action]] = [[] for _ in range(ranks)]
    known: set[object] = set()
    while any(left.values()):
        ready = [
            chain[0]
            for chains in left.values()
            for chain in chains
            if chain and known.issuperset(need for part in chain[:1] for need in needs(part, order))
        ]
        first, *others = draw.sample(ready, len(ready))
        together = next((other for other in others if _overlaps(first, other, order)), None)
        action = first
        if together is not None and draw.random() < 0.3:
            action = overlap(*sorted((first, together), key=lambda part: part.kind != 'F'))
        rows[placement[first.stage]].append(action)
        known.update(gives(action))
        for part in action.parts:
            left[part.stage] = [chain[1:] if chain[:1] == [part] else chain for chain in left[part.stage]]
        left = {stage: [chain for chain in chains if chain] for stage, chains in left.items()}
    return check_order(replace(order, actions=tuple(map(tuple, rows))))


def _work(draw: random.Random, stage: int, micro_batches: int) -> list[list[Action]]:
    """What a stage does with each micro-batch, in order."""
    kinds = [draw.choice(['FB', 'FIW']) for _ in range(micro_batches)]
    return [[Action(stage, kind, number) for kind in chain] for number, chain in enumerate(kinds)]  # type: ignore[arg-type]


def _overlaps(first: Action, other: Action, order: Order) -> bool:
    same = order.placement[first.stage] == order.placement[other.stage]
    return same and sorted((first.kind, other.kind)) in (['B', 'F'], ['F', 'I'])
