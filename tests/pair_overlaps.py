"""Schedules of the covering array of overlaps: pairs, delayed gradients, offload, further tokens, and laid stages.

Models, experts and axes are those of ``pair_models``; what it draws beside stays at its default here.
"""

import random

import pair_models
from pair_models import AUX, EXPERTS, MODEL_OPTIMIZERS, MODEL_ORDERS, MODELS
from pair_plans import FUSIONS, SHARDING

PLAIN = {'strategies': 'none', 'sequence_chunks': 1, 'reduce': 'early', 'fp8': 'none', 'documents': 'one',
         'phase': 'train', 'attention': 'flash'}  # fmt: skip
OFFLOAD = {'none': [], 'activations': ['activations'], 'states': ['optimizer'], 'both': ['activations', 'optimizer']}
FURTHER = (0, 1, 2)
ORDERS = ('none', '1f1b', 'interleaved-1f1b', 'zb-h1', 'zb-v', 'dualpipe-v', 'dualpipe')
KEYS = ('further', 'pairs', 'weight_gradients', 'offload', 'stages')


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
    workload['clip_norm'] = row['clip']
    plan |= {'pairs': row['pairs'], 'weight_gradients': row['weight_gradients'], 'exchange': row['exchange'],
             'streams': row['streams'], 'offload': OFFLOAD[row['offload']],
             'offload_layers': row['offload_layers']}  # fmt: skip
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
    return {**PLAIN, 'form': 'none' if row['sharding'] == 'off' else 'dim', **row}


def size_of(row):
    """About how many times a plan computes a layer."""
    return pair_models.size_of(_whole(row))


def has_overlap(row):
    """Whether a plan has any of the keys that this array is for."""
    return any(row[key] != FACTORS[key][0] for key in KEYS)


FACTORS = {
    'model': tuple(name for name, model in MODELS.items() if model.get('position') == 'rotary'),
    'experts': tuple(EXPERTS),
    'aux': AUX,
    'further': FURTHER,
    'pairs': ('none', 'overlap', 'memory'),
    'weight_gradients': ('joint', 'delayed'),
    'offload': tuple(OFFLOAD),
    'offload_layers': (0, 1, 2),
    'stages': ('equal', 'uneven', 'laid'),
    'order': ORDERS,
    'data': (1, 2),
    'expert': (1, 2),
    'tensor': (1, 2),
    'sequence_parallel': (False, True),
    'context': ('none', 'gather', 'heads', 'ring'),
    'copies': (1, 2),
    'sharding': tuple(name for name in SHARDING if name not in ('hsdp 1', 'hsdp 2')),
    'fusion': tuple(name for name in FUSIONS if name != 'ids'),
    'recompute': ('none', 'full', 'selective'),
    'tiles': (1, 2),
    'exchange': ('separate', 'fused'),
    'streams': ('group', 'single'),
    'optimizer': tuple(MODEL_OPTIMIZERS),
    'clip': (0.0, 0.1),
}
AWAY = ('activations', 'both')
BESIDE = (('recompute', 'full'), ('recompute', 'selective'), ('tiles', 2), ('pairs', 'overlap'), ('pairs', 'memory'))
UNBUILT = {
    **{
        (('offload', name), other): rf'^plan\.offload: activations beside {other[0]}: '
        for name in AWAY
        for other in BESIDE
    },
    **{
        (('pairs', pairs), ('order', order)): r'^plan\.order: .*has no forward beside a backward'
        for pairs in ('overlap', 'memory')
        for order in ('zb-h1', 'zb-v')
    },
}
NEVER = (
    *((('experts', 'none'), ('aux', aux)) for aux in AUX[1:]),
    (('experts', 'none'), ('expert', 2)),
    (('tensor', 1), ('sequence_parallel', True)),
    *((('order', 'none'), ('stages', stages)) for stages in ('uneven', 'laid')),
    *((('offload', name), ('offload_layers', count)) for name in ('none', 'states') for count in (1, 2)),
    # These need activations that leave, which are refused beside.
    *((('offload_layers', count), other) for count in (1, 2) for other in BESIDE),
)
