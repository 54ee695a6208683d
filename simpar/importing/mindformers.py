"""MindFormers' YAML: the model, its parallel configuration, recomputation and optimizer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from simpar.importing.flags import (
    DEVICE_MEMORY,
    IDLE,
    NOT_MODELLED,
    NOW,
    SPEED_UP,
    Assumed,
    Left,
    Says,
    Settings,
    Source,
    Told,
    Wrong,
)
from simpar.importing.mindformers_tables import ALIASES, IDLE_NAMES, MISSING, PASSES, ROWS

_T: Final = 'workload.transformer'
_M: Final = 'model.model_config'
_P: Final = 'parallel_config'
_A: Final = 'workload.optimizer.adamw'


def model(config: Settings) -> Iterator[Told]:
    """The sizes of a Llama, or of a GPT-2."""
    missing = [
        name
        for name in ('num_layers', 'hidden_size', 'num_heads', 'vocab_size', 'seq_length')
        if not _number(config, name)
    ]
    if missing and 'model-config' not in config:
        for name in missing:
            yield Wrong(f'{_M}.{name}', 'missing', f'give it: --set {_M}.{name}=N, or --model config.json')
        return
    plain = {'num_layers': 'layers', 'hidden_size': 'hidden', 'num_heads': 'heads', 'n_kv_heads': 'kv_heads',
             'vocab_size': 'vocab', 'seq_length': 'sequence'}  # fmt: skip
    plain |= {
        name: name for name in ('q_lora_rank', 'kv_lora_rank', 'qk_nope_head_dim', 'qk_rope_head_dim', 'v_head_dim')
    }
    if not _number(config, 'kv_lora_rank'):
        plain['head_dim'] = 'head_dim'
    for name, key in plain.items():
        if _number(config, name):
            yield Says(f'{_T}.{key}', _number(config, name), (f'{_M}.{name}',))
    gpt = 'gpt' in f'{config.text(f"{_M}.type")} {config.text("model.arch.type")}'.lower()
    if not gpt:
        yield from llama(config)
    elif _number(config, 'expand_ratio'):
        width = _number(config, 'expand_ratio') * _number(config, 'hidden_size')
        yield Says(f'{_T}.ffn', width, (f'{_M}.expand_ratio',))
    yield from parts(config)


def _number(config: Settings, name: str) -> int:
    return config.number(f'{_M}.{name}', 0)


def llama(config: Settings) -> Iterator[Told]:
    """What all models but GPT-2 have."""
    by = config.given(f'{_M}.type')
    yield Says(f'{_T}.norm', 'rms_norm', by)
    yield Says(f'{_T}.position', 'rotary', by)
    bias = ['qkv'] if config.on(f'{_M}.qkv_has_bias') else []
    yield Says(f'{_T}.bias', bias, config.given(f'{_M}.qkv_has_bias'))
    act = config.text(f'{_M}.hidden_act', 'silu').lower()
    kind = {'gelu': 'geglu', 'fastgelu': 'geglu_tanh'}.get(act, 'swiglu')
    yield Says(f'{_T}.activation', kind, config.given(f'{_M}.hidden_act'))
    if config.real(f'{_M}.theta', 0.0) > 0:
        yield Says(f'{_T}.rope_theta', config.real(f'{_M}.theta', 1e4), (f'{_M}.theta',))
    by = config.given(f'{_M}.intermediate_size', f'{_M}.multiple_of', f'{_M}.ffn_dim_multiplier')
    if _number(config, 'intermediate_size'):
        yield Says(f'{_T}.ffn', _number(config, 'intermediate_size'), by[:1])
        for name in by[1:]:
            yield Left(name, IDLE, 'intermediate_size says it')
    else:
        multiple, share = max(1, _number(config, 'multiple_of') or 256), config.real(f'{_M}.ffn_dim_multiplier', 1.0)
        width = int((share or 1.0) * int(8 * _number(config, 'hidden_size') / 3))
        yield Says(f'{_T}.ffn', -(-width // multiple) * multiple, by)


def parts(config: Settings) -> Iterator[Told]:
    """Head, norms, kernels and numbers of any model."""
    tied = config.on(f'{_M}.tie_word_embeddings')
    yield Says(f'{_T}.tied', tied, config.given(f'{_M}.tie_word_embeddings'))
    if config.on(f'{_M}.qk_layernorm') and not _number(config, 'kv_lora_rank'):
        yield Says(f'{_T}.qk_norm', True, (f'{_M}.qk_layernorm',))
    flash = config.on(f'{_M}.use_flash_attention') or f'{_M}.use_flash_attention' not in config
    yield Says(f'{_T}.attention', 'flash' if flash else 'unfused', config.given(f'{_M}.use_flash_attention'))
    if config.real(f'{_M}.rms_norm_eps', 0.0) > 0:
        yield Says(f'{_T}.norm_epsilon', config.real(f'{_M}.rms_norm_eps', 1e-5), (f'{_M}.rms_norm_eps',))
    if config.real(f'{_M}.initializer_range', 0.0) > 0:
        yield Says(f'{_T}.init_std', config.real(f'{_M}.initializer_range', 0.02), (f'{_M}.initializer_range',))
    rates = config.given(f'{_M}.hidden_dropout', f'{_M}.attention_dropout')
    if rates:
        yield Says(f'{_T}.dropout', max(config.real(name, 0.0) for name in rates), rates)
    kinds = {'bfloat16': 'bf16', 'float16': 'fp16', 'float32': 'fp32'}
    kind = kinds.get(config.text(f'{_M}.compute_dtype', 'float16'), 'fp16')
    yield Says('workload.precision', kind, config.given(f'{_M}.compute_dtype'))
    yield Says(f'{_A}.master_weights', kind != 'fp32', config.given(f'{_M}.param_init_type'))
    by = config.given('runner_wrapper.scale_sense', 'runner_wrapper.scale_sense.loss_scale_value')
    if kind == 'fp16':
        yield Says('workload.loss_scale', max(config.real(by[0], 65536.0), 2.0) if by else 65536.0, by)
    for name in by if kind != 'fp16' else ():
        yield Left(name, IDLE, f'with {kind}')
    yield from experts(config)


def experts(config: Settings) -> Iterator[Told]:
    """A mixture of experts, in moe_config."""
    names = [name for name in config.named if name.startswith('moe_config.')]
    count = config.number('moe_config.expert_num', 0)
    if count <= 1:
        for name in names:
            yield Left(name, IDLE, 'one expert')
        return
    key = f'{_T}.experts'
    yield Says(f'{key}.count', count, ('moe_config.expert_num',))
    chosen = config.number('moe_config.num_experts_chosen', 1)
    yield Says(f'{key}.top_k', chosen, config.given('moe_config.num_experts_chosen'))
    width = config.number('moe_config.moe_intermediate_size', 0)
    if width:
        yield Says(f'{key}.ffn', width, ('moe_config.moe_intermediate_size',))
    for name, part in {'capacity_factor': 'capacity', 'aux_loss_factor': 'aux_loss'}.items():
        if config.real(f'moe_config.{name}', 0.0) > 0:
            yield Says(f'{key}.{part}', config.real(f'moe_config.{name}', 0.0), (f'moe_config.{name}',))
    if config.number('moe_config.first_k_dense_replace', 0) > 0:
        name = 'moe_config.first_k_dense_replace'
        yield Says(f'{key}.first_dense', config.number(name, 0), (name,))
    shared = config.number('moe_config.shared_expert_num', 0) * (width or _number(config, 'intermediate_size'))
    if shared:
        yield Says(f'{key}.shared', shared, ('moe_config.shared_expert_num',))


def _degree(config: Settings, name: str) -> int:
    return max(1, config.number(f'{_P}.{name}', 1))


def parallel(config: Settings) -> Iterator[Told]:
    """Degrees, batch and copies."""
    names = ('data_parallel', 'model_parallel', 'pipeline_stage', 'context_parallel')
    data, tensor, pipe, context = (_degree(config, name) for name in names)
    yield Says('ranks', data * tensor * pipe * context, config.given(*(f'{_P}.{name}' for name in names)))
    yield Says('plan.data', data, config.given(f'{_P}.data_parallel'))
    yield Says('plan.tensor', tensor, config.given(f'{_P}.model_parallel'))
    yield Says('plan.pipeline', pipe, config.given(f'{_P}.pipeline_stage'))
    if context > 1:
        kinds = {'ulysses_cp': 'all_to_all', 'colossalai_cp': 'ring'}
        kind = config.text(f'{_P}.context_parallel_algo', 'colossalai_cp')
        yield Says('plan.context', context, (f'{_P}.context_parallel',))
        yield Says('plan.context_kind', kinds.get(kind, 'ring'), config.given(f'{_P}.context_parallel_algo'))
    for name in config.given(f'{_P}.context_parallel', f'{_P}.context_parallel_algo') if context == 1 else ():
        yield Left(name, IDLE, 'one context rank')
    if config.on(f'{_P}.use_seq_parallel') and tensor > 1:
        yield Says('plan.sequence_parallel', True, (f'{_P}.use_seq_parallel',))
    if _degree(config, 'expert_parallel') > 1 and config.number('moe_config.expert_num', 0) > 1:
        yield Says('plan.expert', _degree(config, 'expert_parallel'), (f'{_P}.expert_parallel',))
    elif f'{_P}.expert_parallel' in config:
        yield Left(f'{_P}.expert_parallel', IDLE, 'one expert rank, or no experts')
    if f'{_P}.gradient_aggregation_group' in config:
        yield Left(f'{_P}.gradient_aggregation_group', NOT_MODELLED, 'messages are those of a layer')
    copies = max(1, config.number('micro_batch_interleave_num', 1))
    yield Says('plan.copies', copies, config.given('micro_batch_interleave_num'))
    small = _degree(config, 'micro_batch_num') if pipe > 1 else 1
    steps = max(1, config.number('runner_config.gradient_accumulation_steps', 1))
    by = config.given(f'{_P}.micro_batch_num', 'runner_config.gradient_accumulation_steps')
    yield Says('plan.micro_batches', small * steps, by)
    each = max(1, config.number('runner_config.batch_size', 1))
    yield Says('workload.batch', each * data * small * steps * copies, config.given('runner_config.batch_size'))
    if 'runner_config.batch_size' not in config:
        yield Assumed('one sample of each data rank in a micro-batch: --set runner_config.batch_size=N says another')
    yield from pipeline(config, pipe)


def pipeline(config: Settings, ranks: int) -> Iterator[Told]:
    """Order and stages."""
    names = (f'{_M}.offset', f'{_M}.pp_interleave_num', 'parallel.pipeline_config.pipeline_interleave',
             'parallel.pipeline_config.pipeline_scheduler', f'{_P}.seq_split_num', f'{_M}.seq_split_num')  # fmt: skip
    if ranks < 2:
        for name in config.given(*names):
            yield Left(name, IDLE, 'one pipeline rank')
        return
    chunks = max(1, _number(config, 'pp_interleave_num'))
    kind = config.text(names[3], '1f1b').lower()
    known = ('1f1b', 'gpipe', 'seqpipe', 'seqvpp', 'seqsmartvpp', 'zero_bubble_v')
    if kind not in known:
        yield Left(names[3], NOT_MODELLED, f'{kind}; 1f1b is written')
    yield Says('plan.order', f'mindspore-2.10/{kind if kind in known else "1f1b"}', config.given(names[3]))
    if chunks > 1:
        yield Says('plan.chunks', chunks, config.given(names[1], names[2]))
    slices = config.given(*names[4:])
    count = max([1, *(int(config.number(name, 1)) for name in slices)])
    if count > 1 and kind.startswith('seq') and kind in known:
        yield Says('plan.sequence_chunks', count, slices)
    else:
        for name in slices:
            yield Left(name, IDLE, f'{kind} takes whole samples' if count > 1 else 'one slice')
    yield from _offset(config, ranks * chunks)


def _offset(config: Settings, stages: int) -> Iterator[Told]:
    """Layers of each stage, by how many more than the others it has."""
    name = f'{_M}.offset'
    inner = sorted(one for one in config.named if one.startswith(f'{name}.'))
    rows = [config.named[one].value for one in ([name] if name in config else inner)]
    flat = [one for row in rows for one in (row if isinstance(row, list) else [row])]
    layers = _number(config, 'num_layers')
    by = config.given(name, *inner)
    if flat in ([0], []) or not all(isinstance(one, int) for one in flat):
        return
    share = layers // stages
    counts = [share + one for one in flat]
    if len(counts) == stages and sum(counts) == layers and min(counts) >= 0:
        yield Says('plan.stages', counts, by)
        return
    for one in by:
        yield Left(one, NOT_MODELLED, f'with {layers} layers on {stages} stages')


def sharding(config: Settings) -> Iterator[Told]:
    """Optimizer parallelism and recomputation."""
    at = 'parallel.parallel_optimizer_config'
    names = tuple(
        f'{at}.{name}'
        for name in ('parallel_optimizer_threshold', 'gradient_accumulation_shard', 'optimizer_weight_shard_size')
    )
    if not config.on('parallel.enable_parallel_optimizer'):
        for name in config.given('parallel.enable_parallel_optimizer', *names):
            yield Left(name, IDLE, 'optimizer parallelism is off')
        return
    yield Says('plan.hsdp', 'level1', ('parallel.enable_parallel_optimizer',))
    if config.number(names[0], -1) >= 0:
        yield Says('plan.shard_threshold', f'{config.number(names[0], 64)} KiB', (names[0],))
    if names[1] in config:
        yield Says('plan.accumulate', 'sharded' if config.on(names[1]) else 'full', (names[1],))
    if config.number(names[2], -1) > 0:
        yield Says('plan.shard_group', config.number(names[2], 0), (names[2],))


def recompute(config: Settings) -> Iterator[Told]:
    """Full layers, or the cheap operators that MindFormers selects."""
    at = 'recompute_config'
    full, some = config.named.get(f'{at}.recompute'), config.named.get(f'{at}.select_recompute')
    patterns = ['layer*.norm*', 'layer*.swiglu']
    if full is not None and config.on(f'{at}.recompute'):
        yield Says('plan.recompute', 'full', (f'{at}.recompute',))
        if isinstance(full.value, list):
            yield Left(f'{at}.recompute', NOT_MODELLED, 'a number of layers for each stage; all are recomputed')
        if some is not None and config.on(f'{at}.select_recompute'):
            yield Left(f'{at}.select_recompute', NOT_MODELLED, 'beside recompute, which is written')
    elif chosen := [name for name in config.named if name.startswith(f'{at}.select_recompute.')]:
        norms = tuple(name for name in chosen if 'norm' in name)
        acts = tuple(name for name in chosen if 'silu' in name or name.endswith('mul'))
        if norms or acts:
            told = ['layer*.norm*'] * bool(norms) + ['layer*.swiglu'] * bool(acts)
            yield Says('plan.recompute', told, norms + acts)
    elif some is not None and config.on(f'{at}.select_recompute'):
        yield Says('plan.recompute', patterns, (f'{at}.select_recompute',), 'norms and activation')
    if f'{at}.mp_comm_recompute' in config:
        again = config.on(f'{at}.mp_comm_recompute')
        yield Says('plan.recompute_communication', again, (f'{at}.mp_comm_recompute',))


def passes(config: Settings) -> Iterator[Told]:
    """Overlap passes, which MindSpore leaves off unless a file beside turns them on."""
    path = 'context.ascend_config.parallel_speed_up_json_path'
    named = [name for name in config.named if name.startswith(f'{SPEED_UP}.')]
    on = {
        name: PASSES[key] for name in named if (key := name.removeprefix(f'{SPEED_UP}.')) in PASSES and config.on(name)
    }
    by = (*on, *(config.given(path) if named else ()))
    yield Says('plan.overlap', list(dict.fromkeys(on.values())), by, '' if on else 'off, as MindSpore has them')
    for name in named:
        if not config.on(name):
            yield Left(name, IDLE, 'switched off')
    if config.text(path) and not named:
        what = 'its file is not here; no overlap pass is on'
        yield Assumed(
            f'no overlap pass is on, for {config.text(path)[:80]} is not here; --set plan.overlap=[…] names them'
        )
        yield Left(path, NOT_MODELLED, what)
    elif path in config and not named:
        yield Left(path, IDLE, 'no file is named')


def memory(config: Settings) -> Iterator[Told]:
    """What MindSpore may take of a device."""
    name = 'context.max_device_memory'
    if name not in config:
        return
    match = re.fullmatch(r'\s*(\d{1,6}(?:\.\d+)?)\s*GB?\s*', config.text(name), re.IGNORECASE)
    if match is None:
        yield Wrong(name, f'no number of GB (got {config.text(name)[:40]!r})', f'write e.g. --set {name}=58GB')
        return
    # MindSpore counts in GB of 2^30 bytes.
    left = config.number(DEVICE_MEMORY, 0) - float(match[1]) * 2**30
    if left > 0:
        yield Says('cluster.reserve', f'{left / 1e9:.4g} GB', (name,), 'the rest of a device')
    else:
        yield Left(name, IDLE, 'no less than the device has')


def optimizer(config: Settings) -> Iterator[Told]:
    """AdamW and what clips its gradients."""
    kind = config.text('optimizer.type', 'AdamW')
    if not re.search('adam', kind, re.IGNORECASE):
        yield Left('optimizer.type', NOT_MODELLED, f'{kind}; adamw is written')
    else:
        yield Says('workload.optimizer.adamw.master_weights', config.text(f'{_M}.compute_dtype') != 'float32',
                   config.given('optimizer.type'))  # fmt: skip
    betas: Any = config.named['optimizer.betas'].value if 'optimizer.betas' in config else None
    if isinstance(betas, list) and len(betas) == 2 and all(isinstance(one, (int, float)) for one in betas):
        for key, value in zip(('beta1', 'beta2'), betas, strict=True):
            yield Says(f'{_A}.{key}', value, ('optimizer.betas',))
    by = config.given('lr_schedule.learning_rate', 'optimizer.learning_rate')
    if by and config.real(by[0], 0.0) > 0:
        yield Says(f'{_A}.learning_rate', config.real(by[0], 0.0), by)
    if config.on('runner_wrapper.use_clip_grad'):
        names = config.given('runner_wrapper.use_clip_grad', 'runner_wrapper.max_grad_norm')
        yield Says('workload.clip_norm', config.real('runner_wrapper.max_grad_norm', 1.0), names)
    else:
        yield Says('workload.clip_norm', 0, config.given('runner_wrapper.use_clip_grad'))
        for name in config.given('runner_wrapper.max_grad_norm'):
            yield Left(name, IDLE, 'use_clip_grad is off')


MINDFORMERS: Final = Source(
    name='MindFormers',
    profile='ascend910b-8',
    rows=ROWS,
    idle=IDLE_NAMES,
    not_modelled=MISSING,
    aliases=ALIASES,
    rules=(model, parallel, passes, memory, sharding, recompute, optimizer),
    framework=lambda _: ('MindFormers', NOW),
)
