"""Schedules of the covering array of sequences in chunks: each as small as it can be.

What is refused by name beside chunks (experts, context, strategies, unfused attention, other orders) is in the array of
models, and counted there.
"""

import random

from pair_models import FFN, HEADS, HIDDEN, MODEL_OPTIMIZERS, MODELS, TOKENS, VOCAB
from pair_plans import FORM_KEY, FUSIONS, SHARDING

CHUNK_ORDERS = {'seqpipe': (2, 2, 4), 'seqpipe twice': (2, 4, 4), 'seqvpp': (2, 4, 4), 'seqsmartvpp': (2, 4, 4)}
"""Pipeline ranks, stages and micro-batches; orders of MindSpore 2.10, ``twice`` with two stages on a rank."""


def _counts(row):
    """Pipeline ranks, stages and micro-batches; of orders with stages that take turns, no more chunks than ranks."""
    pipeline, stages, micro_batches = CHUNK_ORDERS[row['order']]
    more = row['sequence_chunks'] // 2 if stages > pipeline else 1
    return pipeline * more, stages * more, micro_batches


def tree_of(row, number):
    """The tree of a schedule file for a row of levels, by factor."""
    draw = random.Random(f'chunks {number}')
    pipeline, stages, micro_batches = _counts(row)
    data, tensor, copies = row['data'], row['tensor'], row['copies']
    world = data * tensor * pipeline
    samples = data * (2 if row['fp8'] != 'none' else 1)
    tokens = 4 * TOKENS if row['fp8'] != 'none' else 2 * TOKENS
    first = draw.randint(1, tokens - 2)
    documents = {'documents': [first, tokens - first]} if row['documents'] == 'packed' else {}
    dropout = {'dropout': 0.3} if row['dropout'] else {}
    model = MODELS[row['model']]
    names = ['layer*.norm?', f'layer*{model.get("activation", "gelu")}']
    return {
        'simpar': 1,
        'cluster': {'profile': 'h100-sxm-8', 'nodes': -(-world // 8), 'devices': min(world, 8)},
        'workload': {
            'transformer': {'layers': stages, 'hidden': HIDDEN, 'heads': HEADS, 'ffn': FFN, 'vocab': VOCAB,
                            'sequence': tokens, 'init_std': 0.2, **model, **documents, **dropout},
            'batch': samples * copies * micro_batches,
            'optimizer': {row['optimizer']: MODEL_OPTIMIZERS[row['optimizer']]},
            'fp8': row['fp8'],
            **({'clip_norm': 1.0} if row['clip'] else {}),
            'phase': row['phase'],
        },
        'plan': {
            'data': data,
            'tensor': tensor,
            'sequence_parallel': row['sequence_parallel'],
            'pipeline': pipeline,
            'micro_batches': micro_batches,
            'order': f'mindspore-2.10/{row["order"].split()[0]}',
            'chunks': stages // pipeline,
            'sequence_chunks': row['sequence_chunks'],
            'copies': copies,
            'reduce': row['reduce'],
            'fusion': FUSIONS[row['fusion']],
            'tiles': row['tiles'],
            'recompute': names if row['recompute'] == 'patterns' else row['recompute'],
            **SHARDING[row['sharding']],
            **({FORM_KEY: row['form']} if row['form'] != 'none' else {}),
        },
        'against': {},
    }  # fmt: skip


def size_of(row):
    """About how many times a plan computes a layer."""
    _, stages, micro_batches = _counts(row)
    return stages * micro_batches * row['sequence_chunks'] * row['data'] * row['tensor'] * row['copies']


FACTORS = {
    'order': tuple(CHUNK_ORDERS),
    'sequence_chunks': (2, 4),
    'model': tuple(MODELS),
    'data': (1, 2),
    'tensor': (1, 2),
    'sequence_parallel': (False, True),
    'copies': (1, 2),
    'sharding': tuple(SHARDING),
    'form': ('none', 'dim', 'padded', 'flat'),
    'fusion': tuple(name for name in FUSIONS if name != 'ids'),
    'recompute': ('none', 'full', 'selective', 'patterns'),
    'tiles': (1, 2),
    'reduce': ('early', 'late'),
    'optimizer': tuple(MODEL_OPTIMIZERS),
    'fp8': ('none', 'e4m3', 'hybrid'),
    'documents': ('one', 'packed'),
    'dropout': (False, True),
    'clip': (False, True),
    'phase': ('train', 'forward'),
}
ALONE = {
    (('tensor', 1), ('sequence_parallel', True)): 'one tensor rank has no other to share a sequence with',
    (('dropout', True), ('phase', 'forward')): 'nothing is dropped where nothing is trained',
}
EXCUSES = {'sequence_parallel': r'^plan\.sequence_parallel: ', 'phase': r'^workload\.transformer\.dropout: nothing is'}
UNBUILT: dict = {}
NEVER = (
    *((('sharding', 'off'), ('form', form)) for form in FACTORS['form'][1:]),
    *((('sharding', sharding), ('form', 'none')) for sharding in FACTORS['sharding'][1:]),
)
