"""Random strategies in random plans: pipelines, optimizer parallelism, recomputation, and what ends a step."""

import random
from dataclasses import replace

from drawn_orders import DRAWN
from shard_cases import choices
from strategy_cases import random_layers

from simpar.errors import ScheduleError
from simpar.model import Network, Relu
from simpar.pipeline import ORDERS, named_order
from simpar.plans import Plan
from simpar.workload import Adam, AdamW, Momentum, Sgd, Workload

MOST_RANKS = 16


def combined_case(seed):
    """Strategies in the stages of a pipeline, cut by optimizer parallelism, recomputed, clipped and scaled."""
    draw = random.Random(seed)
    while True:
        stage_ranks, pipeline = draw.choice([2, 4, 4, 6, 8]), draw.choice([1, 2, 2, 3, 4])
        name = draw.choice(list(DRAWN))
        chunks = draw.choice(
            [count for count in (1, 2, 3) if ORDERS[name].chunks[0] <= count <= ORDERS[name].chunks[1]]
        )
        plan = Plan(
            pipeline=pipeline,
            chunks=chunks,
            order=name,
            micro_batches=draw.choice([1, 2, 3, 4, 6]),
            copies=draw.choice([1, 1, 2]),
            copies_loss=draw.choice(['mean', 'sum']),
            sum_loss=seed % 2 == 0,
            dataset=draw.choice(['data-parallel', 'full-batch']),
            redistribution=draw.choice(['cheapest', 'cheapest', 'mindspore-2.0', 'mindspore-2.10']),
            all_to_all=draw.random() < 0.5,
            streams=draw.choice(['group', 'group', 'single']),
            receive=draw.choice(['early', 'late']),
            exchange=draw.choice(['separate', 'separate', 'fused']),
            recompute=draw.choice([(), (), ('*',), ('relu*',), ('dense*',)]),
            recompute_communication=draw.random() < 0.7,
            **(choices(draw) if draw.random() < 0.8 else {}),
        )
        plan = replace(
            plan,
            shard_group=0 if stage_ranks == 6 else draw.choice([0, 0, 2]),
            fusion=plan.fusion if plan.fusion != 'ids' else 'layer',
        )
        try:
            stages = 1 if pipeline == chunks == 1 else named_order(name, pipeline, plan.micro_batches, chunks).stages
        except ScheduleError:
            continue
        if pipeline * stage_ranks <= MOST_RANKS and stages <= 6:
            workload = combined_workload(draw, plan, stage_ranks, stages)
            named = plan.recompute != ('relu*',) or any(isinstance(layer, Relu) for layer in workload.model.layers)
            return workload, plan if named else replace(plan, recompute=()), pipeline * stage_ranks


def combined_workload(draw, plan, stage_ranks, stages):
    rows = stage_ranks * draw.choice([1, 2])
    layers = random_layers(draw, stage_ranks, rows, draw.randint(stages, stages + 1))
    marked = [replace(layer, recompute=draw.random() < 0.3) for layer in layers]
    return Workload(
        model=Network(layers=tuple(marked), init_std=0.5),
        batch=rows * plan.copies * plan.micro_batches,
        loss=draw.choice(['cross-entropy', 'mse', 'mae']),
        optimizer=draw.choice(
            [Sgd(learning_rate=0.1), Momentum(learning_rate=0.1), Adam(learning_rate=0.01), AdamW(learning_rate=0.01)]
        ),
        clip_norm=draw.choice([0.0, 0.0, 0.1]),
        loss_scale=draw.choice([1.0, 1.0, 256.0]),
    )
