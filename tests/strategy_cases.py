"""Random networks whose layers carry random valid strategies."""

import random
from itertools import pairwise

from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.workload import Adam, Sgd, Workload


def divisors(world, *lengths):
    return [cut for cut in range(1, world + 1) if world % cut == 0 and all(length % cut == 0 for length in lengths)]


def random_strategy(draw, world, rows, inputs, outputs):
    """((a, b), (b, c)) that fits; fewer ranks than there are repeat the calculation."""
    a = draw.choice(divisors(world, rows))
    b = draw.choice(divisors(world // a, inputs))
    return (a, b), (b, draw.choice(divisors(world // (a * b), outputs)))


def random_out_strategy(draw, strategy, rows, outputs):
    """Now and then one that scatters the sum."""
    (a, b), (_, c) = strategy
    possible = [out for out in ((a * b, c), (a, b * c)) if rows % out[0] == 0 == outputs % out[1]]
    return draw.choice(possible) if b > 1 and possible and draw.random() < 0.4 else ()


def random_dense(draw, world, rows, inputs, outputs):
    if draw.random() < 0.15:
        return Dense(inputs=inputs, outputs=outputs)
    strategy = random_strategy(draw, world, rows, inputs, outputs)
    out_strategy = random_out_strategy(draw, strategy, rows, outputs)
    bias = draw.random() < 0.6
    return Dense(inputs=inputs, outputs=outputs, bias=bias, strategy=strategy, out_strategy=out_strategy)


def random_relu(draw, world, rows, features):
    if draw.random() < 0.3:
        return Relu()
    a = draw.choice(divisors(world, rows))
    return Relu(strategy=((a, draw.choice(divisors(world // a, features))),))


def random_layers(draw, world, rows, count):
    """So many dense layers, the first with a strategy, and relus between them."""
    widths = [draw.choice([world, 2 * world, 3 * world, 12]) for _ in range(count + 1)]
    layers = []
    for inputs, outputs in pairwise(widths):
        layers.append(random_dense(draw, world, rows, inputs, outputs))
        layers += [random_relu(draw, world, rows, outputs)] if draw.random() < 0.6 else []
    layers[0] = Dense(
        inputs=widths[0], outputs=widths[1], strategy=random_strategy(draw, world, rows, widths[0], widths[1])
    )
    return tuple(layers)


def random_case(seed):
    """Workload, plan and world."""
    draw = random.Random(seed)
    world = draw.choice([2, 4, 6, 8, 8, 8, 12, 16])
    copies, micro_batches = draw.choice([(1, 1), (1, 1), (2, 1), (1, 2), (2, 2)])
    rows = world * draw.choice([1, 2])
    workload = Workload(
        model=Network(layers=random_layers(draw, world, rows, draw.randint(1, 3)), init_std=0.5),
        batch=rows * copies * micro_batches,
        loss=draw.choice(['cross-entropy', 'mse', 'mae']),
        optimizer=draw.choice([Sgd(learning_rate=0.1), Adam(learning_rate=0.01)]),
    )
    plan = Plan(
        copies=copies,
        micro_batches=micro_batches,
        copies_loss=draw.choice(['mean', 'sum']),
        sum_loss=seed % 2 == 0,
        dataset=draw.choice(['data-parallel', 'full-batch']),
        redistribution=draw.choice(['cheapest', 'cheapest', 'mindspore-2.0', 'mindspore-2.10']),
        all_to_all=draw.random() < 0.5,
        streams=draw.choice(['group', 'single']),
    )
    return workload, plan, world
