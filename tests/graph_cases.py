"""Random networks that are graphs of operators, with random valid strategies, in random plans."""

import random
from dataclasses import dataclass, field, replace

from drawn_orders import DRAWN
from shard_cases import choices
from strategy_cases import divisors, random_out_strategy

from simpar import Plan, model
from simpar.errors import ScheduleError
from simpar.layout import operators
from simpar.lower.graph.loss import loss_rules
from simpar.pipeline import named_order
from simpar.workload import Adam, AdamW, Momentum, Sgd, Workload

MOST_RANKS = 16
WIDTHS = (4, 6, 8, 12)
# A gradient that softmax makes zero but for rounding, as of a bias of keys, is divided by no less than this.
SCALED = (Adam(learning_rate=0.01, epsilon=1e-3), AdamW(learning_rate=0.01, epsilon=1e-3))


@dataclass
class Draft:
    """Layers as they are added.

    Arguments: ``rows`` of the input, of one copy of a micro-batch; ``sample``, its other dims; ``sequence``, rows that
    a reshape takes together.
    """

    draw: random.Random
    rows: int
    sample: tuple
    sequence: int
    layers: list = field(default_factory=list)

    @property
    def network(self):
        return model.Network(layers=tuple(self.layers), input=self.sample, init_std=0.5)

    @property
    def unread(self):
        read = {name for reads in model.reads_of(self.network) for name in reads}
        return [name for name in model.layer_names(self.network) if name not in read]

    def shape(self, name):
        return model.shapes_of(self.network, self.rows).of[name]

    def add(self, layer, x=None):
        """Its name. Arguments: ``x``, what it reads, where it has not been told or is not what stands before it."""
        before = model.layer_names(self.network)[-1] if self.layers else model.INPUT
        if x is not None and (x != before or self.draw.random() < 0.3):
            layer = replace(layer, of=x)
        name = f'n{len(self.layers)}' if self.draw.random() < 0.3 else ''
        self.layers.append(replace(layer, name=name))
        return model.layer_names(self.network)[-1]

    def dense(self, x, outputs, **options):
        bias = self.draw.random() < 0.6
        return self.add(model.Dense(inputs=self.shape(x)[1], outputs=outputs, bias=bias, **options), x)

    def as_wide(self, x, width):
        return x if self.shape(x)[1] == width else self.dense(x, width)

    def pointwise(self, x):
        # What is normalised over two elements is a sign, all but for epsilon: nothing but rounding comes back.
        flat = [model.Flatten] * (len(self.shape(x)) == 2)
        norms = [model.LayerNorm, model.RmsNorm] * (self.shape(x)[-1] > 2)
        kind = self.draw.choice(
            [model.Relu, model.SquaredRelu, model.Gelu, model.Silu, model.Softmax, model.Mul, *flat, *norms]
        )
        return self.add(model.Mul(factor=self.draw.uniform(0.3, 1.7)) if kind is model.Mul else kind(), x)

    def norm(self, x):
        return self.add(self.draw.choice([model.LayerNorm(), model.RmsNorm()]), x)

    def sum(self, x, z, kind=model.Add):
        return self.add(kind(of=(x, self.as_wide(z, self.shape(x)[1]))))

    def joined(self):
        """One value that all others have gone into."""
        while len(self.unread) > 1:
            self.sum(*self.unread[:2])
        return self.unread[0]


# Parts of graphs: from values [rows, features] to another. Shapes are [samples, sequence, features] in between, or
# [samples, heads, sequence, depth].


def turned(draft, x):
    """Features as rows, and back in another order."""
    width = draft.shape(x)[1]
    y = draft.add(model.Reshape(shape=(-1, draft.sequence, width)), x)
    y = draft.pointwise(y) if draft.draw.random() < 0.3 else y
    y = draft.add(model.Transpose(permutation=(0, 2, 1)), y)
    y = draft.pointwise(y) if draft.draw.random() < 0.3 else y
    y = draft.add(model.Flatten()) if draft.draw.random() < 0.5 else y
    return draft.add(model.Reshape(shape=(-1, width)), y)


def reduced(draft, x):
    """Groups of features, or every so many of them, as their sum or mean."""
    width = draft.shape(x)[1]
    groups = draft.draw.choice([count for count in divisors(4, width) if count < width])
    dim, keep = draft.draw.choice([1, 2] if groups > 1 else [1]), draft.draw.random() < 0.5
    y = draft.add(model.Reshape(shape=(-1, groups, width // groups)), x)
    y = draft.pointwise(y) if draft.draw.random() < 0.3 else y
    y = draft.add(model.Reduce(dims=(dim,), mean=draft.draw.random() < 0.5, keep=keep), y)
    return draft.add(model.Reshape(shape=(-1, width // groups if dim == 1 else groups)), y) if keep else y


def convolved(draft, x):
    """Images, convolved to others, as rows."""
    channels, *sides = draft.shape(x)[1:]
    padding, stride = draft.draw.choice([0, 1]), draft.draw.choice([1, 1, 2])
    kernel = draft.draw.choice([size for size in (1, 2, 3) if size <= min(sides) + 2 * padding])
    window = {'kernel': kernel, 'stride': stride, 'padding': padding, 'bias': draft.draw.random() < 0.6}
    y = draft.add(model.Conv2d(inputs=channels, outputs=draft.draw.choice([4, 6]), **window), x)
    y = (
        draft.add(draft.draw.choice([model.Relu(), model.SquaredRelu(), model.Silu()]), y)
        if draft.draw.random() < 0.5
        else y
    )
    return draft.add(model.Flatten() if draft.draw.random() < 0.5 else model.Reduce(dims=(2, 3)), y)


def as_images(draft, x):
    """Rows as images of two channels."""
    high, wide = 2, draft.shape(x)[1] // 4
    return convolved(draft, draft.add(model.Reshape(shape=(-1, 2, high, wide)), draft.as_wide(x, 4 * wide)))


def operand(draft, x, heads, swapped):
    """Rows as matrices, one for each sample and head; their two dims swapped where asked for."""
    width = draft.shape(x)[1]
    split = (-1, draft.sequence, width) if heads == 1 else (-1, draft.sequence, heads, width // heads)
    y = draft.add(model.Reshape(shape=split), x)
    if heads > 1:
        return draft.add(model.Transpose(permutation=(0, 2, 3, 1) if swapped else (0, 2, 1, 3)), y)
    return draft.add(model.Transpose(permutation=(0, 2, 1)), y) if swapped else y


def attention(draft, q, k, v, heads):
    """Softmax of q · kᵀ, times v; operands as they are or swapped before, probabilities as they are or swapped."""
    width, alone = draft.shape(q)[1], q == k and draft.draw.random() < 0.5
    of_q, of_k, of_v, of_y = (draft.draw.random() < 0.3 for _ in range(4))
    rows = operand(draft, q, heads, of_q)
    columns, of_k = (rows, of_q) if alone else (operand(draft, k, heads, of_k), of_k)
    y = draft.add(model.MatMul(of=(rows, columns), transpose_a=of_q, transpose_b=not of_k))
    y = draft.add(model.Softmax(), draft.add(model.Mul(factor=0.5), y))
    y = draft.add(model.MatMul(of=(y, operand(draft, v, heads, of_v)), transpose_a=of_y, transpose_b=of_v))
    y = draft.add(model.Transpose(permutation=(0, 2, 1, 3)), y) if heads > 1 else y
    return draft.add(model.Reshape(shape=(-1, width)), y)


def attention_half(draft, x):
    """The first half of a pre-norm transformer block."""
    hidden = draft.shape(x)[1]
    y = draft.norm(x)
    q, k, v = (draft.dense(y, hidden) for _ in range(3))
    y = attention(draft, q, k, v, draft.draw.choice(divisors(4, hidden)))
    return draft.sum(x, draft.dense(y, hidden))


def feed_forward_half(draft, x):
    """The second half, now and then with a gate (Shazeer 2020)."""
    normed, width = draft.norm(x), draft.draw.choice(WIDTHS)
    y = draft.dense(normed, width)
    if draft.draw.random() < 0.5:
        y = draft.sum(draft.add(model.Silu(), y), draft.dense(normed, width), model.Multiply)
    else:
        y = draft.add(draft.draw.choice([model.Gelu(), model.Relu()]), y)
    return draft.sum(x, draft.dense(y, draft.shape(x)[1]))


def any_part(draft, values):
    """Of random values, which may have readers already."""
    draw = draft.draw
    x, z, v = (draw.choice(values) for _ in range(3))
    width = draft.shape(x)[1]
    parts = {
        'dense': lambda: draft.dense(x, draw.choice(WIDTHS)),
        'pointwise': lambda: draft.pointwise(x),
        'sum': lambda: draft.sum(x, z),
        'product': lambda: draft.sum(x, z, model.Multiply),
        'turned': lambda: turned(draft, x),
        'reduced': lambda: reduced(draft, x),
        'convolved': lambda: as_images(draft, x if width >= 4 else draft.dense(x, 8)),
        'attention': lambda: attention(
            draft, x, draft.as_wide(z, width), draft.as_wide(v, width), draw.choice(divisors(4, width))
        ),
    }
    return parts[draw.choice(list(parts))]()


def random_half(draft, x):
    """A few of these on one another."""
    values = [x, draft.dense(x, draft.draw.choice(WIDTHS))]
    for _ in range(draft.draw.randint(1, 3)):
        values.append(any_part(draft, values))
    return draft.joined()


# networks


def random_draft(draw, world):
    """An input, of rows, images, sequences or tokens, and what brings it to [rows, features]; both names."""
    sequence, samples = draw.choice([2, 4]), draw.choice([2, 4, world])
    width, kind = draw.choice(WIDTHS), draw.choice(['rows', 'images', 'pictures', 'sequences', 'tokens'])
    if kind == 'rows':
        return Draft(draw, sequence * samples, (width,), sequence), model.INPUT
    if kind == 'images':
        draft = Draft(draw, sequence * samples, (2, width // 2), sequence)
        return draft, draft.add(model.Flatten())
    if kind == 'pictures':
        draft = Draft(
            draw, sequence * samples, (draw.choice([1, 3]), draw.choice([3, 4]), draw.choice([3, 5])), sequence
        )
        return draft, convolved(draft, model.INPUT)
    if kind == 'sequences':
        draft = Draft(draw, samples, (sequence, width), sequence)
        return draft, draft.add(model.Reshape(shape=(-1, width)))
    draft = Draft(draw, samples, (sequence,), sequence)
    y = draft.add(model.Embedding(vocab=draw.choice(WIDTHS), width=width))
    y = draft.pointwise(y) if draw.random() < 0.3 else y
    return draft, draft.add(model.Reshape(shape=(-1, width)), y)


def random_graph(draw, world, stages):
    """A draft of halves of blocks and random parts; a dense layer begins a stage and reads what crosses."""
    draft, x = random_draft(draw, world)
    x = draft.dense(x, draw.choice(WIDTHS)) if x != model.INPUT or draw.random() < 0.5 else x
    halves = draw.choice([[attention_half, feed_forward_half], [random_half, random_half]])
    for stage, half in enumerate(draw.sample(halves, 2) if stages == 2 else halves):
        if stage and stages == 2:
            y = draft.dense(x, draft.shape(x)[1], pipeline_stage=1)
            x = draft.sum(x, y) if draw.random() < 0.5 else y
        x = half(draft, x)
    if draw.random() < 0.3:
        y = draft.add(model.Reshape(shape=(-1, draft.sequence, draft.shape(x)[1])), x)
        pooled = model.Reduce(dims=(1,), mean=draw.random() < 0.5, keep=draw.random() < 0.3)
        draft.add(pooled, y) if draw.random() < 0.5 else y
    return draft


def strategy_of(draw, rule, world):
    """One that a rule allows, with cuts of some names; fewer ranks than there are repeat the calculation."""
    cuts, left = {}, world
    for name in draw.sample(rule.order, len(rule.order)):
        if name not in rule.fixed:
            cuts[name] = draw.choice(divisors(left, rule.lengths[name]))
            left //= cuts[name]
    strategy = rule.strategy(cuts)
    assert not rule.wrong(strategy, world)
    return strategy


def cut(draw, layer, shapes, world, share):
    """A layer with strategies, now and then; ``shapes``, of what it reads, of one copy of a micro-batch."""
    if isinstance(layer, model.Reshape) or draw.random() > share:
        return layer
    strategy = strategy_of(draw, layer.axes('layer', *shapes), world)
    if isinstance(layer, model.Dense):
        out = random_out_strategy(draw, strategy, shapes[0][0], layer.outputs)
        return replace(layer, strategy=strategy, out_strategy=out)
    return replace(layer, strategy=strategy)


def cut_network(draw, draft, world):
    """The network with random strategies and marks."""
    shapes, share = model.network_shapes(draft.network, draft.rows), draw.choice([0.2, 0.6, 0.6, 1.0])
    layers = []
    for layer, reads in zip(draft.layers, model.reads_of(draft.network), strict=True):
        marked = not isinstance(layer, model.Reshape | model.Flatten) and draw.random() < 0.25
        found = cut(draw, layer, [shapes[read] for read in reads], world, share)
        layers.append(replace(found, recompute=True) if marked else found)
    return replace(draft.network, layers=tuple(layers))


def random_loss(draw, last, world):
    """How a loss of what the last layer gives is made and cut, as one operator or in many."""
    loss = draw.choice(['mse', 'mae'] + 3 * ['cross-entropy'] * (len(last) == 2))
    if loss == 'cross-entropy' and draw.random() < 0.4:
        share = draw.choice([0.0, 0.3, 1.0])
        cut = {one.name: strategy_of(draw, rule, world) for one, rule in loss_rules(last) if draw.random() < share}
        return {'loss': loss, 'loss_operators': 'mindspore-2.10', 'loss_strategies': cut}
    rule = (operators.cross_entropy if loss == 'cross-entropy' else operators.mean_loss)('loss', last)
    return {'loss': loss, 'loss_strategy': strategy_of(draw, rule, world) if draw.random() < 0.4 else ()}


def random_workload(draw, draft, plan, world):
    network = cut_network(draw, draft, world)
    *_, last = model.network_shapes(network, draft.rows).values()
    return Workload(
        model=network,
        batch=draft.rows * plan.copies * plan.micro_batches,
        **random_loss(draw, last, world),
        optimizer=draw.choice([Sgd(learning_rate=0.1), Momentum(learning_rate=0.1), *SCALED]),
        clip_norm=draw.choice([0.0, 0.0, 0.1]),
        loss_scale=draw.choice([1.0, 1.0, 256.0]),
    )


def random_plan(draw, ranks):
    """A plan for stages of so many ranks, and how many stages; None where an order does not take it."""
    pipeline, chunks = draw.choice([(1, 1), (1, 1), (1, 1), (2, 1), (2, 1), (1, 2)])
    name = draw.choice([name for name, order in DRAWN.items() if order.chunks[0] <= chunks <= order.chunks[1]])
    sharded = choices(draw) if draw.random() < 0.4 else {}
    sharded |= {'shard_group': draw.choice([0, 0, 2]) if ranks & (ranks - 1) == 0 else 0} if sharded else {}
    plan = Plan(
        pipeline=pipeline,
        chunks=chunks,
        order=name,
        micro_batches=draw.choice([1, 1, 2, 3] if pipeline == chunks == 1 else [1, 2, 4]),
        copies=draw.choice([1, 1, 2]),
        copies_loss=draw.choice(['mean', 'sum']),
        dataset=draw.choice(['data-parallel', 'full-batch']),
        redistribution=draw.choice(['cheapest', 'cheapest', 'mindspore-2.0', 'mindspore-2.10']),
        all_to_all=draw.random() < 0.5,
        streams=draw.choice(['group', 'group', 'single']),
        recompute=draw.choice([(), (), ('*',)]),
        recompute_communication=draw.random() < 0.7,
        **(sharded | {'fusion': 'layer'} if sharded.get('fusion') == 'ids' else sharded),
    )
    if pipeline == chunks == 1:
        return plan, 1
    try:
        return (plan, 2) if named_order(name, pipeline, plan.micro_batches, chunks).stages == 2 else None
    except ScheduleError:
        return None


def graph_case(seed):
    """Workload, plan and world."""
    draw = random.Random(seed)
    while True:
        ranks = draw.choice([2, 4, 4, 6, 8, 8, 12, 16])
        found = random_plan(draw, ranks)
        if found is not None and found[0].pipeline * ranks <= MOST_RANKS:
            plan, stages = found
            draft = random_graph(draw, ranks, stages)
            plan = replace(plan, sum_loss=seed % 2 == 0)
            return random_workload(draw, draft, plan, ranks), plan, plan.pipeline * ranks
