"""Further keys of drawn plans, by the framework that can say them: what a plan needs for them, and their values.

An option goes into a plan where that has what it needs, and where the schedule then loads.
"""

import copy
import random

from simpar.errors import Infeasible, ScheduleError
from simpar.exporting.settings import values_of
from simpar.schedule import load_schedule

ADAMW = {'learning_rate': 3e-4, 'weight_decay': 0.1}
MOMENTUM = {'learning_rate': 0.1, 'momentum': 0.8, 'master_weights': True}
MIXTURE = {'count': 8, 'top_k': 2, 'ffn': 64}


def is_plain(plan, model):
    """Whether layers are dense, without modules that predict further tokens."""
    return not {'experts', 'mtp_layers'} & {*model}


def uneven(plan):
    """Layers of stages of which two are unlike the others."""
    count = plan['pipeline'] * plan.get('chunks', 1)
    return [8 // count - 1, 8 // count + 1, *[8 // count] * (count - 2)]


def first_of_stages(parts):
    """Patterns of the first layer of each stage."""

    def patterns(plan):
        count = plan['pipeline'] * plan.get('chunks', 1)
        return [f'layer{layer}.{one}' for layer in range(0, 8, 8 // count) for one in parts]

    return patterns


def has(key, least=2):
    """A plan that has a degree."""
    return lambda plan, model: plan.get(key, 1) >= least


def always(plan, model):
    """Any plan."""
    return True


def stays(plan):
    """Whether no activations leave the device."""
    return 'activations' not in plan.get('offload', ())


# keys and values, and what of plan and model they need; `plan.` and `work.` begin those that are not of the model
MEGATRON = [
    ({'plan.placement': 'tensor-context-pipeline-data'}, has('pipeline')),
    ({'plan.stages': uneven},
     lambda plan, model: plan['pipeline'] > 1 and 'stages' not in plan and is_plain(plan, model)),
    ({'experts': MIXTURE, 'plan.expert': 2, 'plan.expert_ranks': 'context', 'bias': [], 'dropout': 0}, has('context')),
    ({'experts': MIXTURE, 'plan.expert': lambda plan: plan['tensor'], 'plan.expert_ranks': 'tensor', 'bias': [],
      'dropout': 0},
     lambda plan, model: plan.get('sequence_parallel') and plan['context'] == 1 and 'pairs' not in plan),
    ({'experts': {**MIXTURE, 'shared': 64, 'shared_gate': True}, 'plan.expert': 2, 'plan.shared_experts': 'overlapped',
      'bias': [], 'dropout': 0},
     lambda plan, model: plan['data'] % 2 == 0 and plan['context'] == 1 and 'pairs' not in plan),
    ({'experts': {**MIXTURE, 'groups': 4, 'group_top_k': 2, 'score': 'sigmoid', 'correction_bias': True,
                  'scaling_factor': 2.5, 'first_dense': 1, 'aux_loss': 0.01, 'aux_group': 'sample'},
      'bias': [], 'dropout': 0}, lambda plan, model: plan['context'] == 1 and 'pairs' not in plan),
    ({'experts': {**MIXTURE, 'every': 2, 'capacity': 2.0, 'normalise': False}, 'bias': [], 'dropout': 0},
     lambda plan, model: plan['context'] == 1 and 'pairs' not in plan and 'mtp_layers' not in model),
    ({'experts': {**MIXTURE, 'sweeps': 4, 'normalise': False}, 'bias': [], 'dropout': 0},
     lambda plan, model: plan['context'] == 1 and 'pairs' not in plan),
    ({'kv_lora_rank': 16, 'q_lora_rank': 24, 'qk_nope_head_dim': 8, 'qk_rope_head_dim': 4, 'v_head_dim': 8,
      'position': 'rotary', 'kv_heads': 8, 'bias': []}, lambda plan, model: 'experts' not in model),
    ({'window': 16}, always),
    ({'work.fp8': 'hybrid'}, always),
    ({'work.fp8': 'e4m3', 'work.fp8_except': ['layer0.*', 'layer6.*', 'layer7.*']}, always),
    ({'work.precision': 'fp16', 'work.gradients': 'fp16', 'work.loss_scale': 1024.0}, always),
    ({'work.precision': 'fp32', 'work.gradients': 'fp32', 'work.optimizer': {'adamw': ADAMW}}, always),
    ({'work.optimizer': {'momentum': MOMENTUM}}, always),
    ({'plan.recompute': 'full', 'plan.recompute_inputs': 'sharded', 'plan.sequence_parallel': False},
     lambda plan, model: plan['tensor'] > 1 and stays(plan) and 'expert_ranks' not in plan),
    ({'plan.recompute': first_of_stages(['*'])},
     lambda plan, model: stays(plan) and 'stages' not in plan and is_plain(plan, model)),
    ({'plan.recompute': ['layer*[0-9].fc1', 'layer*[0-9].gelu', 'layer*[0-9].fc2'], 'activation': 'gelu'},
     lambda plan, model: stays(plan) and is_plain(plan, model)),
    ({'plan.zero': 1, 'plan.shard_group': lambda plan: plan['data'] * plan['context'] // 2},
     lambda plan, model: plan['data'] > 2),
    ({'plan.tiles': lambda plan: plan['tensor']},
     lambda plan, model: plan.get('sequence_parallel') and stays(plan)),
    ({'position': 'rotary', 'rope_theta': 500000.0, 'rotary_share': 0.5, 'rope_interleaved': True}, is_plain),
    ({'position': 'rotary', 'rope_scaling': [8.0, 1.0, 4.0, 8192]}, is_plain),
    ({'position': 'rotary', 'rope_scaling': [4.0]}, is_plain),
    ({'qk_norm': True, 'norm_epsilon': 1e-6, 'head_dim': 16, 'init_std': 0.01},
     lambda plan, model: 'kv_lora_rank' not in model),
    ({'cluster.work_queues': 1}, always),
    ({'sinks': 'learned', 'attention': 'flash'}, lambda plan, model: plan['context'] == 1),
    ({'sinks': 'zero', 'attention': 'flash'}, lambda plan, model: plan['context'] == 1),
]  # fmt: skip
SHARED_BY_BOTH = [one for one in MEGATRON if {'window', 'sinks', 'cluster.work_queues'}.isdisjoint(one[0])]
MINDSPEED = [
    *SHARED_BY_BOTH,
    ({'lora': {'rank': 4, 'scale': 2.0, 'of': ['qkv', 'proj']}, 'plan.zero': 0},
     lambda plan, model: 'mtp_layers' not in model),
    ({'lora': {'rank': 8, 'scale': 0.5}, 'plan.zero': 0}, is_plain),

    ({'experts': MIXTURE, 'plan.expert': 2, 'plan.expert_tokens': 'features', 'bias': [], 'dropout': 0},
     lambda plan, model: plan.get('sequence_parallel') and plan['data'] % 2 == 0 and plan['context'] == 1),
    ({'plan.offload': ['attention'], 'plan.recompute': 'none',
      'plan.offload_layers': lambda plan: 8 // plan['pipeline']},
     lambda plan, model: {'chunks', 'stages', 'pairs'}.isdisjoint(plan) and is_plain(plan, model)),
    ({'plan.offload': ['attention', 'optimizer'], 'plan.recompute': 'none', 'plan.offload_layers': 8},
     lambda plan, model: plan['pipeline'] == 1 and 'pairs' not in plan and is_plain(plan, model)),
    ({'plan.offload': ['attention'], 'plan.offload_layers': lambda plan: 8 // plan['pipeline'], 'activation': 'swiglu',
      'plan.recompute': [f'layer{layer}.{one}' for layer in range(8) for one in ('fc1', 'swiglu', 'fc2')]},
     lambda plan, model: {'chunks', 'stages', 'pairs'}.isdisjoint(plan) and is_plain(plan, model)),
    ({'documents': 16}, lambda plan, model: plan['context'] == 1 and 'mtp_layers' not in model),
    ({'plan.order': 'dualpipe-v', 'plan.chunks': 2, 'plan.exchange': 'fused', 'plan.micro_batches': 8},
     lambda plan, model: plan['pipeline'] == 2 and {'stages', 'pairs'}.isdisjoint(plan) and is_plain(plan, model)),
    ({'window': 16, 'attention': 'flash'}, lambda plan, model: plan['context'] == 1),
    ({'window': [16, 0], 'attention': 'flash'}, lambda plan, model: plan['context'] == 1),
    ({'attention_softcap': 50.0, 'logit_softcap': 30.0, 'attention_scale': 0.25, 'embedding_scale': 8.0,
      'post_norms': True, 'activation': 'geglu_tanh'}, is_plain),
    ({'bias': ['qkv', 'proj']}, is_plain),
    ({'bias': ['head']}, is_plain),
    ({'plan.tiles': 2}, lambda plan, model: plan['tensor'] > 1),
    ({'work.optimizer': {'adamw': {**ADAMW, 'master_weights': 'shared'}}}, always),
    ({'work.optimizer': {'adamw': {**ADAMW, 'master_weights': True, 'moments': 'bf16'}}}, always),
]  # fmt: skip
MINDFORMERS = [
    ({'mtp_layers': 1, 'mtp_loss': 0.1, 'plan.stages': lambda plan: [4, 5] if plan['pipeline'] > 1 else []},
     always),
    ({'experts': {**MIXTURE, 'aux_loss': 0.01, 'first_dense': 1, 'shared': 128}}, always),
    ({'experts': {**MIXTURE, 'capacity': 1.5}, 'plan.expert': 2}, lambda plan, model: plan['data'] % 2 == 0),
    ({'plan.chunks': 2, 'plan.order': 'mindspore-2.10/1f1b', 'plan.stages': [1, 3, 2, 2]}, has('pipeline')),
    ({'plan.order': 'mindspore-2.10/seqpipe', 'plan.sequence_chunks': 2},
     lambda plan, model: plan['pipeline'] > 1 and plan['copies'] == 1),
    ({'plan.order': 'mindspore-2.10/gpipe'}, has('pipeline')),
    ({'plan.recompute': ['layer0.*', 'layer4.*', 'layer5.*'], 'plan.stages': [4, 4]}, has('pipeline')),
    ({'plan.recompute': 'full', 'plan.recompute_communication': False}, has('tensor')),
    ({'plan.recompute': 'full', 'plan.recompute_inputs': 'sharded', 'plan.sequence_parallel': False}, has('tensor')),
    ({'work.precision': 'fp16', 'work.loss_scale': 1024.0}, always),
    ({'plan.context': 2, 'plan.data': lambda plan: plan['data'] // 2, 'plan.context_kind': 'ring'}, has('data')),
    ({'plan.context': 2, 'plan.data': lambda plan: plan['data'] // 2, 'plan.context_kind': 'all_to_all'},
     lambda plan, model: plan['data'] > 1 and plan['tensor'] == 1),
    ({'kv_lora_rank': 16, 'q_lora_rank': 24, 'qk_nope_head_dim': 8, 'qk_rope_head_dim': 4, 'v_head_dim': 8,
      'kv_heads': 8, 'bias': []}, always),
    ({'plan.overlap': ['enable_grad_comm_opt', 'recompute_comm_overlap']}, always),
    ({'plan.hsdp': 'level1', 'plan.shard_threshold': '0 KiB', 'plan.accumulate': 'sharded',
      'plan.shard_group': lambda plan: plan['data'] // 2}, has('data', 4)),
    ({'cluster.reserve': '4 GiB'}, always),
    ({'rope_theta': 1e6, 'qk_norm': True, 'init_std': 0.01, 'norm_epsilon': 1e-5}, always),
]  # fmt: skip
TORCHTITAN = [
    ({'plan.order': 'looped-bfs', 'plan.chunks': 3}, has('pipeline')),
    ({'plan.order': 'interleaved-zero-bubble', 'plan.chunks': 3}, has('pipeline')),
    ({'plan.order': 'dualpipe-v', 'plan.chunks': 2, 'plan.micro_batches': 8}, has('pipeline')),
    ({'work.fp8': 'hybrid'}, always),
    ({'work.precision': 'bf16', 'work.gradients': 'bf16'}, always),
    ({'layers': 8, 'kv_heads': 8, 'ffn': 3072, 'vocab': 2048, 'head_dim': 128, 'qk_norm': True, 'tied': False,
      'norm_epsilon': 1e-6, 'rope_theta': 1e6, 'experts': {'count': 64, 'top_k': 8, 'ffn': 768}, 'plan.expert': 2,
      'plan.recompute': 'full'}, lambda plan, model: plan['data'] % 2 == 0 and plan['pipeline'] == 1),
    ({'plan.zero': 0, 'plan.shard': [], 'plan.shard_group': 0}, lambda plan, model: plan['context'] == 1),
]  # fmt: skip
DATA_RANKS = [
    ({'lora': {'rank': 4, 'scale': 2.0}, 'plan.zero': 0, 'plan.shard_group': 0}, has('data')),
    ({'work.precision': 'fp16', 'work.gradients': 'fp16', 'work.loss_scale': 1024.0}, has('data')),
    ({'work.precision': 'fp32', 'work.gradients': 'fp32', 'work.optimizer': {'adamw': {}}}, has('data')),
    ({'documents': 16}, has('data')),
    ({'experts': MIXTURE, 'bias': []}, has('data')),
    ({'mtp_layers': 1, 'position': 'rotary'}, has('data')),
    ({'work.clip_norm': 1.0}, has('data')),
]  # fmt: skip
DEEPSPEED = [
    *DATA_RANKS,
    ({'plan.tensor': 2, 'plan.data': 4}, has('data')),
    ({'plan.context': 2, 'plan.data': 4, 'plan.context_kind': 'all_to_all'}, has('data')),
    ({'plan.pipeline': 2, 'plan.data': 4, 'plan.micro_batches': 4, 'plan.zero': 1}, has('data')),
    ({'plan.zero': 3, 'plan.shard_group': 4, 'plan.shard_threshold': '8 KB', 'plan.fusion': 'none'}, has('data')),
    ({'work.gradients': 'fp32'}, has('data')),
    ({'work.optimizer': {'momentum': MOMENTUM}}, has('data')),
    ({'work.optimizer': {'adamw': {'learning_rate': 1e-4, 'beta1': 0.8, 'beta2': 0.95, 'epsilon': 1e-6,
                                   'weight_decay': 0.1, 'master_weights': True}}}, has('data')),
]  # fmt: skip
ACCELERATE = [
    *DATA_RANKS,
    ({'plan.recompute': 'full'}, lambda plan, model: plan['zero'] > 1),
    ({'plan.zero': 1, 'plan.micro_batches': 2, 'plan.reduce_gradients': 'end'}, has('data')),
    ({'plan.zero': 2}, has('data')),
    ({'plan.zero': 3, 'plan.shard_group': 8, 'cluster.nodes': 2, 'plan.data': 16}, has('data')),
]  # fmt: skip
OPTIONS = {
    'megatron': MEGATRON, 'mindspeed': MINDSPEED, 'mindformers': MINDFORMERS, 'torchtitan': TORCHTITAN,
    'deepspeed': DEEPSPEED, 'accelerate': ACCELERATE,
}  # fmt: skip


def with_further(framework, made, seed, also=()):
    """The plan with an option, each in its turn, and one more that is drawn; and the options that it has.

    Argument: ``also``, options that come first, whether the framework can say them or not.
    """
    options, taken = [*also, *OPTIONS.get(framework, ())], []
    dice = random.Random(f'options {framework} {seed}')
    for keys, needs in (options[seed % len(options)], dice.choice(options)) if options else ():
        if needs(made['plan'], made['workload']['transformer']) and _is_one(other := _with(made, keys)):
            made = other
            taken.append(keys)
    return made, taken


def _with(made, keys):
    tree = copy.deepcopy(made)
    places = {'plan': tree['plan'], 'work': tree['workload'], 'cluster': tree['cluster']}
    # What the others are computed from is the plan as it was.
    for key, value in keys.items():
        part, _, name = key.rpartition('.')
        places.get(part, tree['workload']['transformer'])[name] = value(made['plan']) if callable(value) else value
    work, plan = tree['workload'], tree['plan']
    samples = made['workload']['batch'] // (made['plan']['data'] * made['plan']['micro_batches'])
    work['batch'] = samples * plan['data'] * plan['micro_batches']
    return tree


def _is_one(tree):
    """Whether it is a schedule whose program can be made."""
    try:
        values_of(load_schedule(tree))
    except (ScheduleError, Infeasible):
        return False
    return True
