"""Schedules of the covering array of overlaps: pairs, delayed gradients, offload, further tokens, laid stages, heads
that some ranks exchange, matrices that ranks own, weights that neighbours share once more, and sinks of attention.

Models, experts and axes are those of ``pair_models``; what it draws beside stays at its default here.
"""

import random

import pair_models
from pair_models import AUX, BY_HEADS, EXPERTS, MODEL_OPTIMIZERS, MODEL_ORDERS, MODELS
from pair_plans import FUSIONS

PLAIN = {'strategies': 'none', 'sequence_chunks': 1, 'reduce': 'early', 'fp8': 'none', 'documents': 'one',
         'phase': 'train', 'attention': 'flash', 'form': 'none'}  # fmt: skip
STATES = ['optimizer']
OFFLOAD = {
    'none': {},
    'activations': {'offload': ['activations']},
    'activations of 1': {'offload': ['activations'], 'offload_layers': 1},
    'activations of 2': {'offload': ['activations'], 'offload_layers': 2},
    'attention': {'offload': ['attention']},
    'states': {'offload': STATES},
    'states in 1': {'offload': STATES, 'offload_parts': 1},
    'states in 3': {'offload': STATES, 'offload_parts': 3},
    'both': {'offload': ['activations', *STATES], 'offload_parts': 2},
}
SHARDING = {
    'off': {},
    'zero 1': {'zero': 1},
    'zero 2': {'zero': 2},
    'zero 2 flat': {'zero': 2, 'shard_form': 'flat'},
    'zero 3': {'zero': 3},
    'zero 3 padded': {'zero': 3, 'shard_form': 'padded'},
    'hsdp 3': {'hsdp': 'level3', 'shard_threshold': '0 B'},
    'owned 1': {'zero': 1, 'shard_form': 'owned'},
    'owned 2': {'zero': 2, 'shard_form': 'owned'},
    'near 3': {'zero': 3, 'second_shards': 2},
    'near hsdp 3': {'hsdp': 'level3', 'shard_threshold': '0 B', 'second_shards': 2},
}
"""Near: with twice the data ranks, so that there are neighbours."""
OWNED, NEAR = ('owned 1', 'owned 2'), ('near 3', 'near hsdp 3')
FURTHER = (0, 1, 2)
ORDERS = ('none', '1f1b', 'interleaved-1f1b', 'zb-h1', 'zb-v', 'dualpipe-v', 'dualpipe')
KEYS = ('further', 'pairs', 'weight_gradients', 'offload', 'stages', 'sinks')


def tree_of(row, number):
    """The tree of a schedule file for a row of levels, by factor."""
    draw = random.Random(f'overlaps {number}')
    tree = pair_models.tree_of(_whole(row), number)
    plan, workload = tree['plan'], tree['workload']
    model = workload['transformer']
    for key in ('mtp_layers', 'mtp_loss'):
        model.pop(key, None)
    if row['further']:
        model |= {'mtp_layers': row['further'], 'mtp_loss': 0.3}
    if row['pairs'] != 'none' and plan['micro_batches'] == 1:
        plan['micro_batches'], workload['batch'] = 2, 2 * workload['batch']
    workload['clip_norm'], model['sinks'] = row['clip'], row['sinks']
    if row['context'] == 'heads of queries':
        # Fewer keys than ranks, so that it matters which are repeated.
        model['kv_heads'] = 2
    plan |= {'pairs': row['pairs'], 'weight_gradients': row['weight_gradients'], 'exchange': row['exchange'],
             'streams': row['streams'], **OFFLOAD[row['offload']], **SHARDING[row['sharding']]}  # fmt: skip
    if row['stages'] != 'equal':
        model['layers'] += 1
        plan['stages'] = _laid(row, model['layers'], draw)
    return tree


def _laid(row, layers, draw):
    """Layers of each stage: one more in one of them, or anyhow, with stages of embedding or loss alone."""
    stages = MODEL_ORDERS[row['order']][1]
    if row['stages'] == 'uneven':
        more = draw.randrange(stages)
        return [1 + (stage == more) for stage in range(stages)]
    blocks = layers + (row['further'] if draw.random() < 0.5 else 0)
    counts = [0] * stages
    for _ in range(blocks):
        counts[draw.randrange(stages)] += 1
    return counts


def _whole(row):
    """The row with what it leaves out of ``pair_models``."""
    return {**PLAIN, **row, 'sharding': 'off', 'data': row['data'] * (2 if row['sharding'] in NEAR else 1)}


def size_of(row):
    """About how many times a plan computes a layer."""
    return pair_models.size_of(_whole(row))


def has_overlap(row):
    """Whether a plan has any of the keys that this array is for."""
    rest = row['sharding'] in (*OWNED, *NEAR) or row['context'] in BY_HEADS
    return rest or any(row[key] != FACTORS[key][0] for key in KEYS)


FACTORS = {
    'model': tuple(name for name, model in MODELS.items() if model.get('position') == 'rotary'),
    'experts': tuple(EXPERTS),
    'aux': AUX,
    'further': FURTHER,
    'pairs': ('none', 'overlap', 'memory'),
    'weight_gradients': ('joint', 'delayed'),
    'offload': tuple(OFFLOAD),
    'stages': ('equal', 'uneven', 'laid'),
    'order': ORDERS,
    'data': (1, 2),
    'expert': (1, 2),
    'tensor': (1, 2),
    'sequence_parallel': (False, True),
    'context': ('none', 'gather', 'heads', 'ring', *BY_HEADS),
    'sinks': ('none', 'zero', 'learned'),
    'copies': (1, 2),
    'sharding': tuple(SHARDING),
    'fusion': tuple(name for name in FUSIONS if name != 'ids'),
    'recompute': ('none', 'full', 'selective'),
    'tiles': (1, 2),
    'exchange': ('separate', 'fused'),
    'streams': ('group', 'single'),
    'optimizer': tuple(MODEL_OPTIMIZERS),
    'clip': (0.0, 0.1),
}
AWAY, SOME = ('activations', 'both'), ('activations of 1', 'activations of 2')
PAIRS = (('pairs', 'overlap'), ('pairs', 'memory'))
BESIDE = (('recompute', 'full'), ('recompute', 'selective'), *PAIRS)
UNBUILT = {
    **{
        (('offload', name), other): rf'^plan\.offload: activations beside {other[0]}: '
        for name in AWAY
        for other in (*BESIDE, ('tiles', 2))
    },
    **{(('offload', 'attention'), other): rf'^plan\.offload: attention beside {other[0]}: ' for other in BESIDE},
    **{
        (pairs, ('order', order)): r'^plan\.order: .*has no forward beside a backward'
        for pairs in PAIRS
        for order in ('zb-h1', 'zb-v')
    },
    **{
        (('sinks', sinks), ('context', context)): r'^plan\.context: not yet: ranks that share a sequence with sinks'
        for sinks in FACTORS['sinks'][1:]
        for context in FACTORS['context'][1:]
    },
    **{
        (('sharding', name), ('expert', 2)): r'^plan\.second_shards: .* whose data ranks are no neighbours'
        for name in NEAR
    },
}
NEVER = (
    *((('experts', 'none'), ('aux', aux)) for aux in AUX[1:]),
    (('experts', 'none'), ('expert', 2)),
    (('tensor', 1), ('sequence_parallel', True)),
    *((('order', 'none'), ('stages', stages)) for stages in ('uneven', 'laid')),
    # Refused as all activations are.
    *((('offload', name), other) for name in SOME for other in (*BESIDE, ('tiles', 2))),
    # Latent attention has as many keys as heads, and of other optimizers no matrix is updated as a whole.
    (('model', 'latent'), ('context', 'heads of queries')),
    *((('sharding', name), ('optimizer', optimizer)) for name in OWNED for optimizer in ('sgd', 'adamw')),
)
