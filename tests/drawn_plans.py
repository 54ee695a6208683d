"""Drawn schedules whose plans a framework can say, by framework: each goes out in its words and comes back."""

import random


def of_megatron(seed):
    """Of all degrees, orders, shards and recomputation that Megatron-LM has, two in ten with experts."""
    dice = random.Random(f'megatron {seed}')
    tensor, pipeline, context = dice.choice((1, 2, 4)), dice.choice((1, 2, 4)), dice.choice((1, 1, 2))
    if tensor * pipeline * context > 8:
        context = 1
    data = 16 // (tensor * pipeline * context)
    layers = 8
    sizes = {
        'layers': layers, 'hidden': 64, 'heads': 8, 'kv_heads': dice.choice((4, 8)), 'vocab': 256, 'sequence': 32,
        'ffn': 128, 'norm': dice.choice(('rms_norm', 'layer_norm')), 'position': dice.choice(('rotary', 'learned')),
        'activation': dice.choice(('swiglu', 'gelu', 'squared_relu')), 'tied': dice.random() < 0.5,
        'bias': dice.choice(([], ['qkv'], ['qkv', 'proj', 'ffn'])), 'dropout': dice.choice((0, 0.1)) * (context == 1),
        'attention': dice.choice(('flash', 'unfused')), 'pad_vocab': tensor,
    }  # fmt: skip
    plan = {'data': data, 'tensor': tensor, 'pipeline': pipeline, 'context': context}
    if tensor > 1:
        plan['sequence_parallel'] = dice.random() < 0.7
    if context > 1:
        plan['context_kind'] = dice.choice(('ring', 'all_to_all', 'all_gather'))
        plan['context_kind'] = 'ring' if plan['context_kind'] == 'all_to_all' and tensor > 1 else plan['context_kind']
    plan['micro_batches'] = dice.choice((4, 8)) if pipeline > 1 else dice.choice((1, 2))
    if pipeline > 1:
        plan['fusion'] = 'stage'
    if pipeline > 1 and dice.random() < 0.4:
        plan |= {'order': 'interleaved-1f1b', 'chunks': 2, 'exchange': 'separate', 'receive': 'late'}
    elif pipeline == 2 and dice.random() < 0.5:
        plan['stages'] = dice.choice(([3, 5], [5, 3]))
    plan['zero'] = dice.choice((0, 1)) if pipeline > 1 else dice.choice((0, 1, 2, 3))
    plan['reduce_gradients'] = dice.choice(('overlapped', 'end'))
    plan['recompute'] = dice.choice(('none', 'full', 'selective', ['layer*.norm?']))
    if dice.random() < 0.3 and context == 1:
        sizes |= {
            'experts': {
                'count': 4, 'top_k': 2, 'ffn': 64, 'aux_loss': dice.choice((0, 0.01)),
                'score': dice.choice(('softmax', 'sigmoid')),
            },
            'bias': [], 'dropout': 0,
        }  # fmt: skip
        plan['expert'] = dice.choice([one for one in (1, 2, 4) if data % one == 0])
        if plan['expert'] > 1 and (pipeline == 1 or 'chunks' in plan):
            plan |= {'pairs': dice.choice(('overlap', 'memory')), 'weight_gradients': dice.choice(('joint', 'delayed'))}
    further = random.Random(f'further {seed}')
    if sizes['position'] == 'rotary' and further.random() < 0.5:
        sizes |= {'mtp_layers': 1, 'mtp_loss': further.choice((0.1, 0.3))}
        if pipeline == 4 and 'chunks' not in plan:
            # With the loss, or alone on a stage before it: a table of words may be in two places, not three.
            plan['stages'] = [3, 3, 2, 1] if sizes['tied'] else further.choice(([4, 4, 1, 0], [3, 3, 2, 1]))
    alone = pipeline == 1 and plan['recompute'] == 'none' and 'pairs' not in plan and 'mtp_layers' not in sizes
    if alone and further.random() < 0.5:
        plan |= {'offload': ['activations'], 'offload_layers': further.choice((0, 1, 2))}
    workload = {
        'transformer': sizes, 'batch': 2 * data * plan['micro_batches'], 'precision': 'bf16',
        'gradients': dice.choice(('fp32', 'bf16')), 'clip_norm': 1.0,
        'optimizer': {'adamw': {'master_weights': True, 'weight_decay': 0.1, 'learning_rate': 3e-4}},
    }  # fmt: skip
    return {
        'simpar': 1, 'cluster': {'profile': 'h100-sxm-8', 'nodes': 2, 'stack': 'megatron-te'},
        'workload': workload, 'plan': plan, 'against': {},
    }  # fmt: skip


def of_mindspeed(seed):
    """As of Megatron-LM, on Ascend: rings or all-to-alls, and pairs in its own words."""
    made = of_megatron(seed)
    plan = made['plan']
    if plan.get('context_kind') == 'all_gather':
        plan['context_kind'] = 'ring'
    if plan['pipeline'] > 1:
        plan.setdefault('exchange', 'fused')
    plan.pop('offload_layers', None)
    plan['offload'] = random.Random(f'swap {seed}').choice(([], ['optimizer']))
    if plan['offload']:
        plan['offload_parts'] = random.Random(f'parts {seed}').choice((1, 4, 16))
    return {**made, 'cluster': {'profile': 'ascend910b-8', 'nodes': 2, 'stack': 'mindspeed'}}


def of_mindformers(seed):
    """Of degrees, copies, optimizer parallelism and passes."""
    dice = random.Random(f'mindformers {seed}')
    tensor, pipeline, copies = dice.choice((1, 2, 4)), dice.choice((1, 2)), dice.choice((1, 2))
    data = 8 // (tensor * pipeline)
    sizes = {
        'layers': 8, 'hidden': 64, 'heads': 8, 'kv_heads': dice.choice((4, 8)), 'vocab': 256, 'sequence': 32,
        'ffn': 128, 'norm': 'rms_norm', 'position': 'rotary', 'activation': dice.choice(('swiglu', 'geglu')),
        'bias': dice.choice(([], ['qkv'])), 'tied': dice.random() < 0.5,
    }  # fmt: skip
    plan = {
        'data': data, 'tensor': tensor, 'pipeline': pipeline, 'copies': copies, 'reduce': 'late',
        'micro_batches': dice.choice((4, 8)) if pipeline > 1 else dice.choice((1, 2)),
        'sequence_parallel': tensor > 1 and dice.random() < 0.5, 'recompute': dice.choice(('none', 'full')),
        'overlap': dice.choice(([], ['matmul_grad_comm_overlap'])), 'hsdp': dice.choice(('off', 'level1')),
    }  # fmt: skip
    # With a pipeline it marks all of a stage alike, without one layers in groups.
    marks = [4, 1, 1, 2, 2, 3, 3, 4, 4, 4] + [4] * (not sizes['tied'])
    plan |= {'fusion': 'stage'} if pipeline > 1 else {'fusion': 'ids', 'fusion_ids': marks}
    if pipeline > 1:
        plan['stages'] = dice.choice(([4, 4], [3, 5]))
    if plan['hsdp'] != 'off':
        plan |= {'shard_threshold': '64 KiB', 'accumulate': dice.choice(('full', 'sharded'))}
    work = {
        'transformer': sizes, 'batch': 2 * data * plan['micro_batches'] * copies, 'precision': 'bf16',
        'clip_norm': 1.0, 'optimizer': {'adamw': {'master_weights': True, 'weight_decay': 0.1}},
    }  # fmt: skip
    cluster = {'profile': 'ascend910b-8', 'stack': 'mindformers'}
    return {'simpar': 1, 'cluster': cluster, 'workload': work, 'plan': plan, 'against': {}}


def of_data_ranks(framework, seed):
    """Of what DeepSpeed or FSDP shard over data ranks."""
    dice = random.Random(f'{framework} {seed}')
    zero = dice.choice((0, 1, 2, 3)) if framework == 'deepspeed' else dice.choice((0, 3))
    plan = {'data': 8, 'zero': zero, 'micro_batches': dice.choice((1, 2)), 'recompute': 'none'}
    if zero < 3:
        plan['reduce_gradients'] = dice.choice(('overlapped', 'end')) if framework == 'deepspeed' else 'overlapped'
    if zero in (1, 2):
        plan['fusion'] = '100 MB'
    if framework == 'deepspeed' and zero == 3:
        plan |= {'shard_threshold': '8 KB', 'prefetch': dice.choice((0, 1)), 'second_shards': dice.choice((0, 2, 4))}
    sizes = {'layers': 2, 'hidden': 64, 'heads': 4, 'vocab': 128, 'sequence': 32}
    # Without shards Accelerate's weights and gradients are of 32 bits, under autocast.
    sums = 'fp32' if framework == 'accelerate' and not zero else 'bf16'
    work = {
        'transformer': sizes, 'batch': 16 * plan['micro_batches'], 'precision': 'bf16', 'gradients': sums,
        'clip_norm': 0.0, 'optimizer': {'adamw': {'master_weights': True}},
    }  # fmt: skip
    stack = 'deepspeed' if framework == 'deepspeed' else 'torch-fsdp'
    cluster = {'profile': 'h100-sxm-8', 'stack': stack}
    return {'simpar': 1, 'cluster': cluster, 'workload': work, 'plan': plan, 'against': {}}


def of_torchtitan(seed):
    """Of a flavour of torchtitan: degrees, shards, orders and checkpoints."""
    dice = random.Random(f'torchtitan {seed}')
    tensor, pipeline, context = dice.choice((1, 2, 4)), dice.choice((1, 1, 2)), dice.choice((1, 1, 2))
    data = 16 // (tensor * pipeline * context)
    plan = {'data': data, 'tensor': tensor, 'pipeline': pipeline, 'context': context, 'zero': 3}
    plan |= {'sequence_parallel': True, 'tiles': dice.choice((1, tensor))} if tensor > 1 else {}
    plan |= {'context_kind': dice.choice(('ring', 'all_gather'))} if context > 1 else {}
    plan |= {'shard_group': context * data // 2} if dice.random() < 0.4 and data > 1 else {}
    if dice.random() < 0.3:
        del plan['zero']
        plan |= {'shard': ['state', 'gradients', 'weights'], 'gather': 'on-use'}
    plan['micro_batches'] = 4 if pipeline > 1 else dice.choice((1, 2))
    if pipeline > 1:
        plan['order'] = dice.choice(('1f1b', 'gpipe', 'interleaved-1f1b', 'zb-v'))
        plan |= {} if plan['order'] in ('1f1b', 'gpipe') else {'chunks': 2}
    cheap = ['layer*norm*', 'layer*.proj', 'layer*.residual1', 'layer*.swiglu', 'layer*.rotary']
    plan['recompute'] = dice.choice(('none', 'full', cheap, ['layer1.*', 'layer3.*', 'layer5.*']))
    sizes = {
        'layers': 6, 'hidden': 256, 'heads': 16, 'kv_heads': 16, 'ffn': 768, 'vocab': 2048, 'norm': 'rms_norm',
        'activation': 'swiglu', 'bias': [], 'position': 'rotary', 'rope_theta': 500000.0, 'sequence': 64,
    }  # fmt: skip
    adamw = {'master_weights': True, 'weight_decay': 0.1, 'beta2': 0.95, 'learning_rate': 8e-4}
    work = {
        'transformer': sizes, 'batch': 2 * data * plan['micro_batches'], 'precision': 'bf16', 'gradients': 'fp32',
        'clip_norm': 1.0, 'optimizer': {'adamw': adamw},
    }  # fmt: skip
    cluster = {'profile': 'h100-sxm-8', 'nodes': 2, 'stack': 'torch-eager'}
    return {'simpar': 1, 'cluster': cluster, 'workload': work, 'plan': plan, 'against': {}}


def of_mindspore(seed):
    """Of what AutoParallel says of a chain of layers, by data ranks."""
    dice = random.Random(seed)
    pipeline, copies = dice.choice((1, 2, 4)), dice.choice((1, 2, 4))
    plan = {
        'pipeline': pipeline, 'data': 8 // pipeline, 'copies': copies, 'copies_loss': dice.choice(('mean', 'sum')),
        'micro_batches': 4 if pipeline > 1 else dice.choice((1, 2)), 'fusion': dice.choice(('all', 'auto', '8 MiB')),
        'hsdp': dice.choice(('off', 'level1', 'level2', 'level3')), 'overlap': [],
    }  # fmt: skip
    further = random.Random(f'mindspore {seed}')
    if plan['hsdp'] != 'off' and pipeline < 4:
        plan |= {'shard_group': further.choice((0, 2)), 'shard_threshold': further.choice(('64 KiB', '1 KiB'))}
    plan['overlap'] = further.choice(([], ['matmul_grad_comm_overlap']))
    network = [{'dense': {'in': 256, 'out': 256, 'bias': False}}, {'relu': {}}] * 4
    work = {'network': network, 'batch': 128, 'loss': 'mse'}
    return {'simpar': 1, 'cluster': {'profile': 'ascend910a-8'}, 'workload': work, 'plan': plan, 'against': {}}


DRAWN = {
    'megatron': of_megatron, 'mindspeed': of_mindspeed, 'mindformers': of_mindformers, 'torchtitan': of_torchtitan,
    'mindspore': of_mindspore,
    'deepspeed': lambda seed: of_data_ranks('deepspeed', seed),
    'accelerate': lambda seed: of_data_ranks('accelerate', seed),
}  # fmt: skip
"""A schedule of a seed, by the framework that can say all of it."""
