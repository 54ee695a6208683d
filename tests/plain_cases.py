"""Random plans of data and tensor ranks with copies, of tiny transformers and networks of dense layers."""

import random
from dataclasses import replace
from itertools import pairwise

from simpar.model import Dense, Flatten, Network, Relu
from simpar.plans import Plan
from simpar.workload import Adam, Sgd, Transformer, Workload

RANKS = 8
MLP = Workload(
    model=Network(
        layers=(Dense(inputs=6, outputs=8), Relu(), Dense(inputs=8, outputs=8), Relu(), Dense(inputs=8, outputs=4)),
        init_std=0.5,
    ),
    batch=16,
    precision='fp64',
    loss='mse',
    optimizer=Adam(learning_rate=0.01),
)
"""What programs are made of that are made wrong."""


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
