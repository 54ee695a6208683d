"""Schedules of the covering array of models that people train: each as small as it can be.

Sizes divide wherever mathematics allows: 8 heads of which 4 have keys, 16 tokens or more, so that 4 ranks can share
them; llama has 2, which ranks have to repeat. Products in 8 bits take multiples of 16, so that with them there are more
tokens.
"""

import random

from pair_plans import FORM_KEY, FUSIONS, ORDERS, SHARDING, STRATEGIES_KEY, Splits

HIDDEN, HEADS, KEYS, WIDTH, FFN, VOCAB, TOKENS = 32, 8, 4, 4, 64, 32, 16
RMS = {'norm': 'rms_norm', 'activation': 'swiglu', 'position': 'rotary', 'rope_theta': 100.0, 'bias': []}
LATENT = {**RMS, 'kv_lora_rank': 16, 'qk_nope_head_dim': 6, 'qk_rope_head_dim': 2, 'v_head_dim': 4,
          'rope_interleaved': True}  # fmt: skip
GROUPED = {**RMS, 'kv_heads': KEYS}
MODELS = {
    'gpt2': {'tied': True},
    'llama': {**RMS, 'kv_heads': 2, 'rope_scaling': [4.0, 1.0, 4.0, 8]},
    'mistral': {**GROUPED, 'window': 5, 'rope_scaling': [2.0, 9.0]},
    'qwen3': {**GROUPED, 'qk_norm': True, 'tied': True},
    'gemma': {**GROUPED, 'activation': 'geglu_tanh', 'post_norms': True, 'attention_softcap': 2.0,
              'logit_softcap': 3.0, 'embedding_scale': 5.6},
    'phi': {'position': 'rotary', 'rotary_share': 0.5, 'parallel': True,
            'longrope': {'short': [1.5], 'long': [2.5], 'original': 9, 'magnitude': 1.2}},
    'latent': {**LATENT, 'q_lora_rank': 16},
}  # fmt: skip
EXPERTS = {
    'none': None,
    'softmax': {'top_k': 2},
    'groups': {'top_k': 2, 'score': 'sigmoid', 'groups': 2, 'group_top_k': 1, 'correction_bias': True,
               'scaling_factor': 2.5, 'shared': 16, 'first_dense': 1},
    'gated': {'top_k': 1, 'every': 2, 'shared': 16, 'shared_gate': True, 'normalise': False},
    'capacity': {'top_k': 2, 'capacity': 1.0},
}  # fmt: skip
COUNT = 4
"""Experts of a layer."""
AUX = ('none', 'rank', 'sample', 'global')
CONTEXT = {
    'none': {},
    'gather': {'context_kind': 'all_gather'},
    'heads': {'context_kind': 'all_to_all'},
    'ring': {'context_kind': 'ring'},
    'gather contiguous': {'context_kind': 'all_gather', 'context_split': 'contiguous'},
    'heads contiguous': {'context_kind': 'all_to_all', 'context_split': 'contiguous'},
    'ring contiguous': {'context_kind': 'ring', 'context_split': 'contiguous'},
}
BY_HEADS = {
    'heads of queries': {'context_kind': 'all_to_all', 'context_heads': 'queries'},
    'ring of heads': {'context_kind': 'ring', 'context_by_heads': 2},
    'gather of heads': {'context_kind': 'all_gather', 'context_by_heads': 2},
}
"""Of overlaps alone: keys for each query head, which 4 ranks have, and pairs of ranks that exchange heads."""
SAME = {'1f1b', 'interleaved-1f1b', 'zb-h1', 'zb-v', 'dualpipe-v'}
MODEL_ORDERS = {
    'none': ORDERS['none'],
    **{name: ORDERS[name] for name in ORDERS if name in SAME},
    'v-min': (2, 4, 4),
    'v-half': (2, 4, 4),
    'dualpipe': (2, 2, 4),
    'mindspore-2.10/seqpipe': (2, 2, 3),
    'mindspore-2.10/seqvpp': (2, 4, 2),
    'mindspore-2.10/seqsmartvpp': (2, 4, 2),
}
"""Pipeline ranks, stages and micro-batches."""
MODEL_OPTIMIZERS = {
    'sgd': {'learning_rate': 0.1},
    'adamw': {'learning_rate': 0.01, 'epsilon': 1e-3, 'weight_decay': 0.1},
    'muon': {'learning_rate': 0.02, 'weight_decay': 0.1},
}


def tree_of(row, number):
    """The tree of a schedule file for a row of levels, by factor."""
    draw = random.Random(f'models {number}')
    pipeline, stages, most = MODEL_ORDERS[row['order']]
    micro_batches = most if stages > 1 else draw.randint(1, most)
    data, tensor, copies = row['data'] * row['expert'], row['tensor'], row['copies']
    context = _context(row, data * tensor * pipeline)
    plan = {
        'data': data,
        'expert': row['expert'],
        'tensor': tensor,
        'context': context,
        **{**CONTEXT, **BY_HEADS}[row['context']],
        'sequence_parallel': row['sequence_parallel'],
        'pipeline': pipeline,
        'micro_batches': micro_batches,
        'sequence_chunks': row['sequence_chunks'],
        'copies': copies,
        'reduce': row['reduce'],
        'fusion': FUSIONS[row['fusion']],
        'tiles': row['tiles'],
        'recompute': _patterns(row) if row['recompute'] == 'patterns' else row['recompute'],
        **SHARDING[row['sharding']],
        **({FORM_KEY: row['form']} if row['form'] != 'none' else {}),
        **({'order': row['order']} if stages > 1 else {}),
        **({'recompute_communication': False} if row['recompute'] == 'full' and draw.random() < 0.5 else {}),
    }
    # A slice is a sample, but where strategies may split samples over all ranks of a stage.
    samples = data * (tensor if row['strategies'] == 'one' else 1) * (2 if row['fp8'] != 'none' else 1)
    if row['strategies'] == 'one':
        keys = MODELS[row['model']].get('kv_heads', HEADS)
        splits, lengths = Splits(row, draw), {'b': samples, 's': TOKENS, 'k': keys, 'n': HIDDEN}
        ((_, given),) = splits.of((('b', 's', 'k'), ('k', 'n')), lengths).items()
        plan[STRATEGIES_KEY] = {'layer0.proj': given}
    world = data * context * tensor * pipeline
    devices = max(count for count in range(1, 9) if world % count == 0)
    return {
        'simpar': 1,
        'cluster': {'profile': 'h100-sxm-8', 'nodes': world // devices, 'devices': devices},
        'workload': {
            'transformer': _model(row, max(2, stages), draw),
            'batch': samples * copies * micro_batches,
            'optimizer': {row['optimizer']: MODEL_OPTIMIZERS[row['optimizer']]},
            'fp8': row['fp8'],
            'phase': row['phase'],
        },
        'plan': plan,
        'against': {},
    }


def _context(row, others):
    """Ranks that share a sequence; of llama's two keys, where heads are exchanged, always more than there are keys."""
    if row['context'] == 'none':
        return 1
    if row['context'] in BY_HEADS:
        return 4 // row['tensor'] if row['context'] == 'heads of queries' else 4
    repeats = row['model'] == 'llama' and row['context'].startswith('heads') and row['tensor'] == 1
    return 4 if repeats or others == 1 else 2


def _patterns(row):
    """What is recomputed by name."""
    return ['layer*.norm?', f'layer*{MODELS[row["model"]].get("activation", "gelu")}']


def _model(row, layers, draw):
    """Keys of the transformer."""
    tokens = 2 * TOKENS if row['fp8'] != 'none' else TOKENS
    of_kind = dict(MODELS[row['model']])
    of_experts = EXPERTS[row['experts']]
    if of_experts is not None:
        of_experts = {'count': COUNT, 'ffn': draw.choice([16, 32]), **of_experts}
        if row['aux'] != 'none':
            of_experts |= {'aux_loss': 0.2, 'aux_group': row['aux']}
        of_kind |= {'bias': [], 'experts': of_experts}
    if row['documents'] == 'packed':
        first = draw.randint(1, tokens - 2)
        of_kind['documents'] = draw.choice([[first, tokens - first], first])
    elif of_kind.get('position') == 'rotary' and row['strategies'] == 'none' and row['sequence_chunks'] == 1:
        # Modules of further tokens in every plan that may have them: 59 of 300.
        of_kind |= {'mtp_layers': draw.choice([1, 2]), 'mtp_loss': 0.3}
    return {'layers': layers, 'hidden': HIDDEN, 'heads': HEADS, 'ffn': FFN, 'vocab': VOCAB, 'sequence': tokens,
            'init_std': 0.2, 'attention': row['attention'], **of_kind}  # fmt: skip


def size_of(row):
    """About how many times a plan computes a layer."""
    _, stages, micro_batches = MODEL_ORDERS[row['order']]
    context = _context(row, 0) * row['sequence_chunks']
    return stages * micro_batches * row['data'] * row['expert'] * row['tensor'] * row['copies'] * context


# The array

FACTORS = {
    'model': tuple(MODELS),
    'experts': tuple(EXPERTS),
    'aux': AUX,
    'data': (1, 2),
    'expert': (1, 2),
    'tensor': (1, 2),
    'sequence_parallel': (False, True),
    'context': tuple(CONTEXT),
    'strategies': ('none', 'one'),
    'copies': (1, 2),
    'order': tuple(MODEL_ORDERS),
    'sequence_chunks': (1, 2),
    'sharding': tuple(SHARDING),
    'form': ('none', 'dim', 'padded', 'flat'),
    'fusion': tuple(name for name in FUSIONS if name != 'ids'),
    'recompute': ('none', 'full', 'selective', 'patterns'),
    'tiles': (1, 2),
    'reduce': ('early', 'late'),
    'optimizer': tuple(MODEL_OPTIMIZERS),
    'attention': ('flash', 'unfused'),
    'fp8': ('none', 'e4m3', 'hybrid'),
    'documents': ('one', 'packed'),
    'phase': ('train', 'forward'),
}
ALONE = {
    (('tensor', 1), ('sequence_parallel', True)): 'one tensor rank has no other to share a sequence with',
    (('experts', 'none'), ('expert', 2)): 'there are no experts to share',
    (('order', 'none'), ('sequence_chunks', 2)): 'without a pipeline there is nothing that chunks could fill',
}
EXCUSES = {
    'sequence_parallel': r'^plan\.sequence_parallel: ',
    'expert': r'^plan\.expert: ',
    'sequence_chunks': r'^plan\.sequence_chunks: (there is no pipeline|\S+ takes whole samples)',
}
MIXTURES = tuple(name for name in EXPERTS if name != 'none')
SHARED = tuple(name for name in CONTEXT if name != 'none')
CHUNKS = ('sequence_chunks', 2)
WHOLE = tuple(name for name in MODEL_ORDERS if name != 'none' and not name.startswith('mindspore'))
UNBUILT = {
    **{(CHUNKS, ('experts', name)): r'^workload\.transformer\.experts: not built beside' for name in MIXTURES},
    **{(CHUNKS, ('context', name)): r'^plan\.context: not built beside' for name in SHARED},
    (CHUNKS, ('strategies', 'one')): r'^plan\.sequence_chunks: strategies do not know chunks',
    (CHUNKS, ('attention', 'unfused')): r'^plan\.sequence_chunks: unfused attention over chunks is not built',
    **{(CHUNKS, ('order', name)): r'^plan\.sequence_chunks: \S+ takes whole samples' for name in WHOLE},
}
NEVER = (
    *((('sharding', 'off'), ('form', form)) for form in FACTORS['form'][1:]),
    *((('sharding', sharding), ('form', 'none')) for sharding in FACTORS['sharding'][1:]),
    *((('experts', 'none'), ('aux', aux)) for aux in AUX[1:]),
    # These need experts, which are refused beside chunks.
    *((CHUNKS, ('aux', aux)) for aux in AUX[1:]),
    (CHUNKS, ('expert', 2)),
)
