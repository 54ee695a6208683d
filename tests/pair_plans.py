"""Schedules of the covering array: what a row of levels is as the tree of a schedule file, as small as it can be.

Sizes divide wherever mathematics allows: hidden 24, heads and tokens 12, so that 1, 2, 3 and 4 ranks can share them.
"""

import random
from dataclasses import fields
from math import prod

from simpar.plans import Plan

HIDDEN, HEADS, TOKENS, FFN, VOCAB, SIDE = 24, 12, 12, 48, 24, 4
FORM_KEY = 'shard_form'
"""Key of a plan for how parameters are sharded whose dims do not divide; ``dim`` is as without it."""
STRATEGIES_KEY, LAYOUTS_KEY = 'strategies', 'layouts'
"""Keys of a plan for strategies and layouts of operators of any model, by name."""
ORDERS = {
    'none': (1, 1, 2),
    '1f1b': (2, 2, 3),
    'gpipe': (2, 2, 2),
    'interleaved-1f1b': (2, 4, 2),
    'zb-h1': (2, 2, 3),
    'zb-v': (2, 4, 3),
    'dualpipe-v': (2, 4, 4),
    'v-min': (2, 4, 4),
    'v-half': (2, 4, 4),
}
"""Pipeline ranks, stages and micro-batches of an order; without one, there may be fewer micro-batches."""
OPTIMIZERS = {
    'sgd': {'learning_rate': 0.1},
    'momentum': {'learning_rate': 0.1, 'weight_decay': 0.1},
    # What softmax makes zero but for rounding, as the gradient of a key's bias, is divided by no less than this.
    'adam': {'learning_rate': 0.01, 'epsilon': 1e-3},
    'adamw': {'learning_rate': 0.01, 'epsilon': 1e-3, 'weight_decay': 0.1},
    'muon': {'learning_rate': 0.02, 'weight_decay': 0.1},
}
SHARDING = {
    'off': {},
    'zero 1': {'zero': 1},
    'zero 2': {'zero': 2},
    'zero 3': {'zero': 3},
    'hsdp 1': {'hsdp': 'level1', 'shard_threshold': '0 B'},
    'hsdp 2': {'hsdp': 'level2', 'shard_threshold': '0 B'},
    'hsdp 3': {'hsdp': 'level3', 'shard_threshold': '0 B'},
}
FUSIONS = {'layer': 'layer', 'none': 'none', 'all': 'all', 'size': '1000 B', 'ids': 'ids'}
PATTERNS = {
    'gpt': ['layer*.gelu', 'layer*.norm?'],
    'chain': ['relu*'],
    'attention': ['*softmax', '*gelu'],
    'llama': ['*softmax', '*silu'],
    'convolution': ['relu*', 'conv2d*'],
    'embedding': ['gelu*', 'norm'],
}
"""What is recomputed by name, of each model."""


def size_of(row):
    """About how many times a plan computes a layer."""
    _, stages, micro_batches = ORDERS[row['order']]
    return stages * micro_batches * row['data'] * row['tensor'] * row['copies']


def tree_of(row, number):
    """The tree of a schedule file for a row of levels, by factor."""
    draw = random.Random(number)
    data, tensor, copies = row['data'], row['tensor'], row['copies']
    pipeline, stages, most = ORDERS[row['order']]
    micro_batches = most if stages > 1 else draw.randint(1, most)
    plan = {
        'data': data,
        'tensor': tensor,
        'sequence_parallel': row['sequence_parallel'],
        'pipeline': pipeline,
        'micro_batches': micro_batches,
        'copies': copies,
        'reduce': row['reduce'],
        'search': row['search'],
        'fusion': FUSIONS[row['fusion']],
        'tiles': row['tiles'],
        'recompute': PATTERNS[row['model']] if row['recompute'] == 'patterns' else row['recompute'],
        **SHARDING[row['sharding']],
        **_form(row),
        **({'order': row['order']} if stages > 1 else {}),
        **({'redistribution': 'mindspore-2.10'} if draw.random() < 0.2 else {}),
        **({'all_to_all': True} if draw.random() < 0.5 else {}),
        **({'device_matrix': {'dp': data, 'tp': tensor}} if row['strategies'] == 'layouts' else {}),
    }
    # Strategies may split samples over all ranks of a stage.
    samples = data if row['strategies'] == 'none' and row['search'] == 'none' else data * tensor
    model = GPT if row['model'] == 'gpt' else NETWORKS[row['model']]
    made = model(row, plan, samples, max(2, stages), draw)
    batch = made.pop('rows') * copies * micro_batches
    world = data * tensor * pipeline
    devices = max(count for count in range(1, 9) if world % count == 0)
    return {
        'simpar': 1,
        'cluster': {'profile': 'h100-sxm-8', 'nodes': world // devices, 'devices': devices},
        'workload': {**made, 'batch': batch, 'optimizer': {row['optimizer']: OPTIMIZERS[row['optimizer']]}},
        'plan': plan,
        'against': {},
    }


def _form(row):
    """The key of a form; plans that have none shard a dim, or nothing where no dim divides."""
    known = FORM_KEY in {field.name for field in fields(Plan)}
    return {FORM_KEY: row['form']} if row['form'] != 'none' and (known or row['form'] != 'dim') else {}


def inner_of(row, draw):
    """Width of a feed-forward; where parameters are sharded, in half of the plans one that no data ranks share."""
    return 5 * row['tensor'] if row['form'] != 'none' and draw.random() < 0.5 else FFN


# Strategies: which axes split which dims of an operator


class Splits:
    """Draws how operators are split over the data and the tensor ranks, as strategies or as layouts."""

    def __init__(self, row, draw):
        self.sizes = {'dp': row['data'], 'tp': row['tensor']}
        self.kind, self.draw = row['strategies'], draw

    def of(self, inputs, lengths, fixed=()):
        """Keys of a layer whose inputs have these named dims of these lengths."""
        axes = self._axes(dict.fromkeys(name for names in inputs for name in names), lengths, fixed)
        if self.kind == 'layouts':
            return {'layout': [['+'.join(axes.get(name, ())) or 'none' for name in names] for names in inputs]}
        return {'strategy': [[self._ranks(axes.get(name, ())) for name in names] for names in inputs]}

    def _axes(self, names, lengths, fixed):
        """Each axis on a dim that it divides, or on none."""
        found = {}
        for axis in self.draw.sample(list(self.sizes), len(self.sizes)):
            able = [
                name
                for name in names
                if name not in fixed and not lengths[name] % self._ranks((*found.get(name, ()), axis))
            ]
            if able and self.draw.random() < 0.8:
                name = self.draw.choice(able)
                found[name] = [*found.get(name, ()), axis]
        return found

    def _ranks(self, axes):
        return prod(self.sizes[axis] for axis in axes)


# The library's model


def GPT(row, plan, samples, stages, draw):
    """Its operators take strategies and layouts by name, if a library's model takes any."""
    ffn = inner_of(row, draw)
    model = {'layers': stages, 'hidden': HIDDEN, 'heads': HEADS, 'ffn': ffn, 'vocab': VOCAB, 'sequence': TOKENS,
             'init_std': 0.2, 'tied': draw.random() < 0.3, 'kv_heads': draw.choice([0, HEADS]),
             'attention': draw.choice(['flash', 'unfused'])}  # fmt: skip
    if row['fusion'] == 'ids':
        plan['fusion_ids'] = [draw.choice([0, 1, 2]) for _ in range(stages + 3 + (not model['tied']))]
    operators = {'layer0.fc1': (HIDDEN, ffn)}
    if row['strategies'] != 'one':
        sizes = {'qkv': (HIDDEN, HEADS), 'proj': (HEADS, HIDDEN), 'fc1': (HIDDEN, ffn), 'fc2': (ffn, HIDDEN)}
        operators = {f'layer{layer}.{name}': size for layer in range(stages) for name, size in sizes.items()}
    if row['strategies'] != 'none':
        splits, inputs = Splits(row, draw), (('b', 's', 'k'), ('k', 'n'))
        for name, (k, n) in operators.items():
            ((kind, given),) = splits.of(inputs, {'b': samples, 's': TOKENS, 'k': k, 'n': n}).items()
            plan.setdefault(LAYOUTS_KEY if kind == 'layout' else STRATEGIES_KEY, {})[name] = given
    return {'transformer': model, 'rows': samples}


# Networks


class Layers:
    """Layers of a network as a file has them; some of them split.

    Arguments: ``rows`` of the input in one copy of a micro-batch.
    """

    def __init__(self, row, draw, rows, one):
        self.row, self.draw, self.rows, self.one = row, draw, rows, one
        self.splits, self.layers = Splits(row, draw), []

    def add(self, kind, name, inputs, lengths, fixed=(), **keys):
        """A layer; it is split where all are, or where it is the one."""
        split = self.row['strategies'] in ('all', 'layouts') or (self.row['strategies'] == 'one' and name == self.one)
        given = self.splits.of(inputs, lengths, fixed) if split and inputs else {}
        self.layers.append({kind: {'name': name, **keys, **given}})

    def dense(self, name, inputs, outputs, **keys):
        if self.row['fusion'] == 'ids':
            keys['comm_fusion'] = self.draw.choice([0, 1, 2])
        lengths = {'m': self.rows, 'k': inputs, 'n': outputs}
        self.add('dense', name, (('m', 'k'), ('k', 'n')), lengths, **{'in': inputs, 'out': outputs}, **keys)

    def pointwise(self, kind, name, shape, parameters=0, fixed=(), reads=1, **keys):
        """An operator of one shape; of norms, with parameters of the last dim."""
        names = tuple(f'd{dim}' for dim in range(len(shape)))
        inputs = (names,) * reads + (names[-1:],) * parameters
        self.add(kind, name, inputs, dict(zip(names, shape, strict=True)), tuple(names[dim] for dim in fixed), **keys)

    def norm(self, kind, name, **keys):
        self.pointwise(kind, name, (self.rows, HIDDEN), 2 if kind == 'layer_norm' else 1, (-1,), **keys)

    def reshape(self, name, shape, **keys):
        self.add('reshape', name, (), {}, shape=shape, **keys)

    def tree(self, sample, loss='mse'):
        network = {'input': sample, 'layers': self.layers, 'init_std': 0.3}
        return {'network': network, 'loss': loss}


def chain(row, plan, samples, stages, draw):
    """Dense layers and relus, one stage's each."""
    rows = 12 * samples
    net = Layers(row, draw, rows, 'dense1')
    inner = inner_of(row, draw)
    widths = [HIDDEN, *(draw.choice([HIDDEN, inner]) for _ in range(stages - 1)), HIDDEN]
    for place in range(stages):
        net.dense(f'dense{place}', widths[place], widths[place + 1], bias=draw.random() < 0.7)
        if place < stages - 1:
            net.pointwise('relu', f'relu{place}', (rows, widths[place + 1]))
    loss = draw.choice(['mse', 'mae', 'cross-entropy'])
    return {'network': {'layers': net.layers, 'init_std': 0.3}, 'loss': loss, 'rows': rows}


def attention(net, name, x, samples):
    """Attention of all tokens, unfused: from rows x to rows name.o."""
    four, width = (samples, TOKENS, HEADS, HIDDEN // HEADS), HIDDEN // HEADS
    by_head = (samples, HEADS, TOKENS, width)
    for which in ('q', 'k', 'v'):
        net.dense(f'{name}{which}', HIDDEN, HIDDEN, of=x, bias=False)
        net.reshape(f'{name}{which}_heads', [-1, TOKENS, HEADS, width])
        net.pointwise('transpose', f'{name}{which}_by_head', four, permutation=[0, 2, 1, 3])
    lengths = {'b': samples, 'h': HEADS, 'm': TOKENS, 'n': TOKENS, 'k': width}
    inputs = (('b', 'h', 'm', 'k'), ('b', 'h', 'n', 'k'))
    net.add('matmul', f'{name}scores', inputs, lengths, of=[f'{name}q_by_head', f'{name}k_by_head'], transpose_b=True)
    scores = (samples, HEADS, TOKENS, TOKENS)
    net.pointwise('mul', f'{name}scale', scores, factor=0.7)
    net.pointwise('softmax', f'{name}softmax', scores, fixed=(-1,))
    inputs = (('b', 'h', 'm', 'n'), ('b', 'h', 'n', 'k'))
    net.add('matmul', f'{name}values', inputs, lengths, of=[f'{name}softmax', f'{name}v_by_head'])
    net.pointwise('transpose', f'{name}by_token', by_head, permutation=[0, 2, 1, 3])
    net.reshape(f'{name}rows', [-1, HIDDEN])
    net.dense(f'{name}o', HIDDEN, HIDDEN, bias=False)


def block(row, plan, samples, stages, draw, gated=False):
    """A pre-norm block of a user's own."""
    rows = samples * TOKENS
    net, norm = Layers(row, draw, rows, 'up'), 'rms_norm' if gated else 'layer_norm'
    both, ffn = (rows, HIDDEN), inner_of(row, draw)
    net.norm(norm, 'norm1')
    attention(net, '', 'norm1', samples)
    net.pointwise('add', 'add1', both, reads=2, of=['x', 'o'])
    net.norm(norm, 'norm2')
    if gated:
        net.dense('gate', HIDDEN, ffn, bias=False)
        net.pointwise('silu', 'silu', (rows, ffn))
        net.dense('up', HIDDEN, ffn, of='norm2', bias=False)
        net.pointwise('multiply', 'gated', (rows, ffn), reads=2, of=['silu', 'up'])
    else:
        net.dense('up', HIDDEN, ffn)
        net.pointwise('gelu', 'gelu', (rows, ffn))
    net.dense('down', ffn, HIDDEN)
    net.pointwise('add', 'add2', both, reads=2, of=['add1', 'down'])
    return {**net.tree([HIDDEN]), 'rows': rows}


def llama(row, plan, samples, stages, draw):
    """A block as Llama's."""
    return block(row, plan, samples, stages, draw, gated=True)


def convolution(row, plan, samples, stages, draw):
    """Images, convolved, averaged over their pixels, and dense layers."""
    rows, channels = 12 * samples, 12
    net = Layers(row, draw, rows, 'dense1')
    images = (rows, channels, SIDE, SIDE)
    dims = {'n': rows, 'c': 2, 'h': SIDE, 'w': SIDE, 'o': channels, 'kh': 3, 'kw': 3}
    inputs, fixed = (('n', 'c', 'h', 'w'), ('o', 'c', 'kh', 'kw')), ('c', 'h', 'w', 'o', 'kh', 'kw')
    net.add('conv2d', 'conv2d0', inputs, dims, fixed, **{'in': 2, 'out': channels, 'kernel': 3, 'padding': 1})
    net.pointwise('relu', 'relu0', images)
    net.pointwise('reduce', 'mean', images, dims=[2, 3], mean=draw.random() < 0.5)
    widths = [channels, *[HIDDEN] * stages]
    for place in range(stages):
        net.dense(f'dense{place}', widths[place], widths[place + 1])
        if place < stages - 1:
            net.pointwise('relu', f'relu{place + 1}', (rows, HIDDEN))
    return {**net.tree([2, SIDE, SIDE]), 'rows': rows}


def embedding(row, plan, samples, stages, draw):
    """Tokens, embedded, normalised, with a feed-forward that is added, and classes."""
    rows = samples * TOKENS
    net, ffn = Layers(row, draw, rows, 'up'), inner_of(row, draw)
    inputs, lengths = (('v', 'w'), ('b', 't')), {'v': VOCAB, 'w': HIDDEN, 'b': samples, 't': TOKENS}
    net.add('embedding', 'words', inputs, lengths, vocab=VOCAB, width=HIDDEN)
    net.reshape('rows', [-1, HIDDEN])
    net.norm('layer_norm', 'norm')
    net.dense('up', HIDDEN, ffn)
    net.pointwise('gelu', 'gelu0', (rows, ffn))
    net.dense('down', ffn, HIDDEN)
    net.pointwise('add', 'sum', (rows, HIDDEN), reads=2, of=['rows', 'down'])
    for place in range(max(0, stages - 3)):
        net.dense(f'more{place}', HIDDEN, HIDDEN)
    net.dense('classes', HIDDEN, VOCAB)
    return {**net.tree([TOKENS], 'cross-entropy'), 'rows': samples}


NETWORKS = {'chain': chain, 'attention': block, 'llama': llama, 'convolution': convolution, 'embedding': embedding}


# The array

FACTORS = {
    'model': tuple(PATTERNS),
    'data': (1, 2, 3),
    'tensor': (1, 2, 3, 4),
    'sequence_parallel': (False, True),
    'strategies': ('none', 'one', 'all', 'layouts'),
    'search': ('none', 'sharding-propagation', 'double-recursive', 'exact'),
    'copies': (1, 2, 3),
    'order': tuple(ORDERS),
    'sharding': tuple(SHARDING),
    'form': ('none', 'dim', 'padded', 'flat'),
    'fusion': tuple(FUSIONS),
    'recompute': ('none', 'full', 'selective', 'patterns'),
    'tiles': (1, 2),
    'reduce': ('early', 'late'),
    'optimizer': tuple(OPTIMIZERS),
}
SELECTIVE = 'it is the scores of attention that are made again, and there are none'
ALONE = {
    (('tensor', 1), ('sequence_parallel', True)): 'one tensor rank has no other to share a sequence with',
    (('strategies', 'none'), ('search', 'sharding-propagation')): 'there is no strategy to propagate',
    (('model', 'chain'), ('recompute', 'selective')): SELECTIVE,
    (('model', 'convolution'), ('recompute', 'selective')): SELECTIVE,
    (('model', 'embedding'), ('recompute', 'selective')): SELECTIVE,
}
"""Pairs that ask for nothing: each is in one plan, and in no other, so that they take no other pair's place."""
EXCUSES = {
    'sequence_parallel': r'^plan\.sequence_parallel: ',
    'search': r'^plan\.search: ',
    'recompute': r'^plan\.recompute: ',
}
"""How a refusal of such a pair begins, by its second feature."""
UNBUILT = {}
"""How pairs are refused that are not built."""
NEVER = (
    *((('sharding', 'off'), ('form', form)) for form in FACTORS['form'][1:]),
    *((('sharding', sharding), ('form', 'none')) for sharding in FACTORS['sharding'][1:]),
)
"""Pairs that no schedule can write: a form is that of what is sharded."""
