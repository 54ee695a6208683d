"""Random plans with mixtures of experts, drawn over what other random plans are."""

import random
from dataclasses import replace

from newer_cases import newer
from training_cases import training_case

from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.model.library.experts import Experts
from simpar.plans import Plan
from simpar.schedule.checks import check
from simpar.schedule.contents import ClusterReference, Contents
from simpar.workload import Muon, Sgd, Transformer, Workload


def drawn(draw: random.Random, ffn: int) -> Experts:
    """A mixture."""
    count = draw.choice([2, 4, 6, 8])
    groups = draw.choice([one for one in (1, 1, 2, 4) if count % one == 0 and count // one > 1])
    chosen = draw.randint(1, groups)
    shared = draw.choice([0, 0, 8])
    capacity = draw.choice([0.0, 0.0, 1.0, 1.5])
    return Experts(
        count=count,
        top_k=draw.randint(1, min(3, count // groups * chosen)),
        ffn=draw.choice([0, ffn]),
        every=draw.choice([1, 1, 2]),
        shared=shared,
        shared_gate=bool(shared) and draw.random() < 0.5,
        score=draw.choice(['softmax', 'sigmoid']),
        normalise=draw.random() < 0.5,
        scaling_factor=draw.choice([1.0, 2.5]),
        groups=groups,
        group_top_k=chosen,
        group_scores=draw.randint(1, 2),
        correction_bias=draw.random() < 0.3,
        capacity=capacity,
        aux_loss=draw.choice([0.0, 0.2]),
        aux_group=draw.choice(['rank', 'sample', 'global']),
    )


def beside(workload: Workload, plan: Plan, draw: random.Random) -> tuple[Workload, Plan]:
    """Mostly with the forward of a micro-batch beside the backward of another, where the order has them."""
    if plan.rows or plan.order not in ('1f1b', 'interleaved-1f1b', 'dualpipe-v') or plan.sequence_chunks > 1:
        return workload, plan
    pairs, weights = draw.choice(['none', 'overlap', 'overlap', 'memory']), draw.choice(['joint', 'delayed'])
    if plan.pipeline == 1 and pairs != 'none':
        more = draw.choice([2, 3])
        workload = replace(workload, batch=workload.batch * more)
        plan = replace(plan, micro_batches=plan.micro_batches * more)
    return workload, replace(plan, pairs=pairs, weight_gradients=weights)


def mixture_case(seed: int) -> tuple[Workload, Plan, int]:
    """A drawn training plan of a transformer with experts; a seed gives the first that can be."""
    while True:
        (workload, plan, world, order), _ = training_case(seed)
        seed += 1000
        draw = random.Random(f'mixture {seed}')
        if not isinstance(workload.model, Transformer) or order is not None:
            continue
        workload = newer(workload, seed) if draw.random() < 0.4 else workload
        optimizer = Sgd(learning_rate=0.1) if isinstance(workload.optimizer, Muon) else workload.optimizer
        model = replace(workload.model, experts=drawn(draw, 16), bias=())
        workload = replace(workload, model=model, optimizer=optimizer)
        data = world // (plan.tensor * plan.pipeline)
        able = [one for one in range(1, data + 1) if data % one == 0 == model.experts.count % one]
        plan = replace(plan, data=data, expert=draw.choice([able[-1], draw.choice(able)]))
        workload, plan = beside(workload, plan, random.Random(f'pairs {seed}'))
        if any(check(Contents(simpar=1, cluster=ClusterReference(profile=''), workload=workload, plan=plan))):
            continue
        try:
            lower(workload, plan, world)
        except Infeasible:
            continue
        return workload, plan, world
