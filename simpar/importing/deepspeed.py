"""DeepSpeed's JSON: sharding, batch, precision and optimizer; the model is given beside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from simpar.importing.flags import (
    IDLE,
    NOT_MODELLED,
    NOW,
    Assumed,
    Left,
    Row,
    Says,
    Settings,
    Source,
    Told,
    Wrong,
    real,
    ruled,
    whole,
)

_A: Final = 'workload.optimizer'
_Z: Final = 'zero_optimization'
ROWS: Final[dict[str, Row]] = {
    'sequence': ruled('workload.sequence', '--set sequence=N; the config of the model says at most how long'),
    'train_batch_size': ruled('workload.batch', 'the same number'),
    'train_micro_batch_size_per_gpu': ruled('plan.micro_batches', 'batch / (the number × data ranks)'),
    'gradient_accumulation_steps': ruled('plan.micro_batches', 'the same number'),
    'gradient_clipping': ruled('workload.clip_norm', 'the same number'),
    'bf16.enabled': ruled('workload.precision', 'bf16, with master weights'),
    'fp16.enabled': ruled('workload.precision', 'fp16, with master weights and loss_scale'),
    'fp16.loss_scale': ruled('workload.loss_scale', 'the same number; 0, dynamic: 65536'),
    'data_types.grad_accum_dtype': ruled('workload.gradients', 'fp32, bf16 or fp16'),
    'communication_data_type': ruled('workload.gradients', 'fp32, bf16 or fp16'),
    'optimizer.type': ruled(_A, 'Adam, AdamW: adamw; SGD: momentum; Muon: muon'),
    'optimizer.params.lr': ruled(f'{_A}.adamw.learning_rate', 'the same number'),
    'optimizer.params.betas': ruled(f'{_A}.adamw.beta1', 'the first; the second is beta2'),
    'optimizer.params.eps': ruled(f'{_A}.adamw.epsilon', 'the same number'),
    'optimizer.params.weight_decay': ruled(f'{_A}.adamw.weight_decay', 'the same number'),
    'optimizer.params.momentum': ruled(f'{_A}.momentum.momentum', 'the same number'),
    f'{_Z}.stage': ruled('plan.zero', 'the same number'),
    f'{_Z}.overlap_comm': ruled('plan.reduce_gradients', 'true: overlapped, false: end'),
    f'{_Z}.reduce_bucket_size': ruled('plan.fusion', 'numbers × bytes of a gradient, with stages 1 and 2'),
    f'{_Z}.stage3_param_persistence_threshold': ruled(
        'plan.shard_threshold', 'numbers × bytes of a weight, with stage 3'
    ),
    f'{_Z}.mics_shard_size': ruled('plan.shard_group', 'the same number'),
    'tensor_parallel.autotp_size': ruled('plan.tensor', 'the same number'),
    'sequence_parallel_size': ruled('plan.context', 'the same number, all_to_all (Ulysses)'),
    'pipeline.stages': ruled('plan.pipeline', 'the same number'),
    'devices': ruled('cluster.nodes', '--set devices=N'),
}
ALIASES: Final = {
    'bfloat16.enabled': 'bf16.enabled', f'{_Z}.stage3_prefetch_bucket_size': f'{_Z}.prefetch_bucket_size',
    'tensor_parallel.tp_size': 'tensor_parallel.autotp_size', f'{_Z}.param_persistence_threshold':
    f'{_Z}.stage3_param_persistence_threshold', 'zero_allow_untested_optimizer': 'zero_allow_untested_optimizer',
}  # fmt: skip
IDLE_NAMES: Final = {
    'what is reported, and where': 'steps_per_print wall_clock_breakdown dump_state flops_profiler* tensorboard* '
    'wandb* '
    'csv_monitor* comet* monitor* comms_logger* memory_breakdown checkpoint* autotuning* dataloader* seed '
    'comms_config* nebula* $schema _comment* comment* description hostfile',
    'a rate of learning': 'scheduler* optimizer.params.* fp16.initial_scale_power fp16.loss_scale_window '
    'fp16.hysteresis fp16.min_loss_scale fp16.consecutive_hysteresis fp16.auto_cast progressive_layer_drop.enabled',
    'the way of ops that simpar takes anyway': f'{_Z}.contiguous_gradients {_Z}.round_robin_gradients '
    f'prescale_gradients '
    f'gradient_predivide_factor zero_allow_untested_optimizer zero_force_ds_cpu_optimizer {_Z}.load_from_fp32_weights '
    f'{_Z}.elastic_checkpoint {_Z}.reduce_scatter {_Z}.allgather_partitions {_Z}.ignore_unused_parameters '
    f'{_Z}.stage3_gather_16bit_weights_on_model_save {_Z}.gather_16bit_weights_on_model_save '
    f'{_Z}.stage3_gather_fp16_weights_on_model_save {_Z}.legacy_stage1 {_Z}.cpu_offload_use_pin_memory '
    f'{_Z}.stage3_use_all_reduce_for_fetch_params bf16.check_grad_overflow bf16.bf16_master_weights_and_grads '
    'use_data_before_expert_parallelism disable_allgather sparse_gradients fp32_allreduce vocabulary_size',
}  # fmt: skip
MISSING: Final = {
    'offloading to host memory or disk': f'{_Z}.offload_* {_Z}.cpu_offload* {_Z}.zenflow* aio* {_Z}.super_offload '
    f'{_Z}.nvme*',
    'sizes of messages': f'{_Z}.allgather_bucket_size {_Z}.prefetch_bucket_size {_Z}.sub_group_size '
    f'{_Z}.stage3_max_* {_Z}.max_live_parameters {_Z}.max_reuse_distance {_Z}.use_multi_rank_bucket_allreduce '
    f'{_Z}.stage3_module_granularity_threshold {_Z}.model_persistence_threshold {_Z}.memory_efficient_linear '
    f'{_Z}.log_trace_cache_warnings {_Z}.stage3_*',
    'quantised communication': f'{_Z}.zero_* {_Z}.mics_*  zero_quantized_*',
    'checkpoints of activations, which the model switches on (plan.recompute)': 'activation_checkpointing*',
    'captured graphs and compilers': 'compile* cuda_graph* deepcompile*',
    'compression and layers that are left out': 'compression_training* progressive_layer_drop* quantize_training* '
    'eigenvalue* weight_quantization*',
    'samples of unlike lengths': 'curriculum_learning* data_efficiency*',
    'sparse attention': 'sparse_attention*',
    'experts': 'expert_parallel* moe* zero_optimization.leaf_module',
    'inference': 'hybrid_engine* inference* kernel_inject* tensor_parallel.*',
    'another precision': 'amp* torch_autocast* fp8*',
    'elastic runs': 'elasticity*',
    'pipelines that the program builds': 'pipeline.*',
    'adapters': 'lora* peft*',
}  # fmt: skip
_BYTES: Final = {'fp32': 4, 'bf16': 2, 'fp16': 2}


def _auto(ds: Settings, name: str, default: int) -> int:
    """A number; ``auto``, which the program fills in, is the default."""
    return max(1, ds.number(name, default))


def _shape(ds: Settings) -> tuple[int, int, int, int]:
    """Batch, samples of a micro-batch, micro-batches, and data ranks: each follows from the others."""
    inner = _auto(ds, 'tensor_parallel.autotp_size', 1) * _auto(ds, 'sequence_parallel_size', 1)
    inner *= _auto(ds, 'pipeline.stages', 1)
    names = ('train_batch_size', 'train_micro_batch_size_per_gpu', 'gradient_accumulation_steps')
    full, small, steps = (ds.number(name, 0) for name in names)
    told = ds.number('devices', 0)
    data = max(1, told // inner) if told else max(1, full // (small * steps)) if full and small and steps else 0
    data = data or max(1, 8 // inner)
    if full and not small:
        steps = steps or 1
        small = max(1, full // (data * steps))
    small = small or 1
    steps = steps or (max(1, full // (small * data)) if full else 1)
    return small * steps * data, small, steps, data


def batch(ds: Settings) -> Iterator[Told]:
    """Devices, batch and micro-batches."""
    full, small, steps, data = _shape(ds)
    tensor, context = (_auto(ds, name, 1) for name in ('tensor_parallel.autotp_size', 'sequence_parallel_size'))
    pipe = _auto(ds, 'pipeline.stages', 1)
    yield Says('ranks', data * tensor * context * pipe, ds.given('devices'))
    names = ('train_batch_size', 'train_micro_batch_size_per_gpu', 'gradient_accumulation_steps')
    if not ds.number('devices', 0):
        yield Wrong('devices', 'a DeepSpeed file does not say how many', 'give it, e.g. --set devices=16')
    if not all(ds.number(name, 0) for name in names):
        yield Assumed(f'a batch of {full}: {small} samples a device × {steps} micro-batches × {data} data ranks')
    if ds.number(names[0], full) != full:
        yield Left(names[0], NOT_MODELLED, f'with {data} data ranks the others give {full}, which is written')
    yield Says('workload.batch', full, ds.given(names[0], names[1]))
    yield Says('plan.micro_batches', steps, ds.given(names[2], names[1]))
    for key, degree, name in (('plan.tensor', tensor, 'tensor_parallel.autotp_size'),
                              ('plan.context', context, 'sequence_parallel_size'),
                              ('plan.pipeline', pipe, 'pipeline.stages')):  # fmt: skip
        if degree > 1:
            yield Says(key, degree, (name,))
    if context > 1:
        yield Says('plan.context_kind', 'all_to_all', ('sequence_parallel_size',))


def precision(ds: Settings) -> Iterator[Told]:
    """16 bits with master weights, or 32; ``auto`` is bf16."""
    auto = {str(ds.named[name].value).lower() for name in ds.given('bf16.enabled', 'fp16.enabled')} == {'auto'}
    kind = 'bf16' if ds.on('bf16.enabled') else 'fp16' if ds.on('fp16.enabled') else 'fp32'
    if auto:
        yield Assumed(f'precision is {kind} where the file says auto')
    yield Says('workload.precision', kind, ds.given('bf16.enabled', 'fp16.enabled'))
    sums = ds.given('data_types.grad_accum_dtype', 'communication_data_type')
    told = next((ds.text(name) for name in sums), '')
    if told in _BYTES and kind != 'fp32':
        yield Says('workload.gradients', told, sums)
    if kind == 'fp16':
        scale = ds.real('fp16.loss_scale', 0.0) or 65536.0
        yield Says(
            'workload.loss_scale',
            scale,
            ds.given('fp16.loss_scale'),
            '' if ds.real('fp16.loss_scale', 0.0) else 'dynamic',
        )
    elif 'fp16.loss_scale' in ds:
        yield Left('fp16.loss_scale', IDLE, 'fp16 is off')
    if ds.real('gradient_clipping', 0.0) > 0:
        yield Says('workload.clip_norm', ds.real('gradient_clipping', 0.0), ('gradient_clipping',))
    elif ds.text('gradient_clipping') == 'auto':
        yield Says('workload.clip_norm', 1.0, ('gradient_clipping',), 'auto')
    else:
        yield Says('workload.clip_norm', 0, ds.given('gradient_clipping'))
    yield from optimizer(ds, master=kind != 'fp32')


def optimizer(ds: Settings, *, master: bool) -> Iterator[Told]:
    """Adam with decay apart, unless told."""
    kind = ds.text('optimizer.type', 'AdamW')
    known = {'adam': 'adamw', 'adamw': 'adamw', 'sgd': 'momentum', 'muon': 'muon', 'fusedadam': 'adamw',
             'deepspeedcpuadam': 'adamw', 'cpuadam': 'adamw'}  # fmt: skip
    name = known.get(kind.lower().replace('_', ''), 'adamw')
    if 'optimizer.type' not in ds:
        yield Assumed('the optimizer is adamw, as the file has none')
    elif kind.lower().replace('_', '') not in known:
        yield Left('optimizer.type', NOT_MODELLED, f'{kind}; adamw is written')
    own = {'lr': 'learning_rate', 'weight_decay': 'weight_decay'}
    own |= {'eps': 'epsilon'} if name == 'adamw' else {'momentum': 'momentum'}
    for flag, key in own.items():
        at = f'optimizer.params.{flag}'
        if at in ds and ds.text(at) != 'auto':
            yield Says(f'{_A}.{name}.{key}', ds.real(at, 0.0), (at,))
    betas = ds.named.get('optimizer.params.betas')
    if betas is not None and name == 'adamw' and isinstance(betas.value, list) and len(betas.value) == 2:
        for key, value in zip(('beta1', 'beta2'), betas.value, strict=True):
            yield Says(f'{_A}.adamw.{key}', _real(value), ('optimizer.params.betas',))
    yield Says(f'{_A}.{name}.master_weights', master, ds.given('optimizer.type'))


def _real(value: Any) -> float:
    try:
        return real(value)
    except ValueError:
        return 0.9


def sharding(ds: Settings) -> Iterator[Told]:
    """ZeRO, and the messages that it sends."""
    stage = ds.number(f'{_Z}.stage', 0)
    if not 0 <= stage <= 3:
        yield Wrong(f'{_Z}.stage', f'no stage of ZeRO (got {stage})', 'write 0 to 3')
        return
    if stage:
        yield Says('plan.zero', stage, (f'{_Z}.stage',))
    overlap = ds.on(f'{_Z}.overlap_comm') if f'{_Z}.overlap_comm' in ds else stage == 3
    if stage < 3:
        yield Says('plan.reduce_gradients', 'overlapped' if overlap else 'end', ds.given(f'{_Z}.overlap_comm'))
    elif not overlap:
        yield Says('plan.prefetch', 0, (f'{_Z}.overlap_comm',))
    elif f'{_Z}.overlap_comm' in ds:
        yield Says('plan.prefetch', 1, (f'{_Z}.overlap_comm',))
    # Numbers, not bytes; DeepSpeed has these where the file is silent.
    bucket, name = ds.real(f'{_Z}.reduce_bucket_size', 5e8), f'{_Z}.reduce_bucket_size'
    size = 4 if not (ds.on('bf16.enabled') or ds.on('fp16.enabled')) else 2
    if stage in (1, 2) and bucket >= 1:
        yield Says('plan.fusion', f'{bucket * size / 1e6:g} MB', ds.given(name), 'messages of so many numbers')
    elif name in ds:
        yield Left(name, IDLE if not stage else NOT_MODELLED, '' if not stage else 'messages are those of a layer')
    name = f'{_Z}.stage3_param_persistence_threshold'
    if stage == 3 and ds.real(name, 1e5) >= 1:
        yield Says('plan.shard_threshold', f'{ds.real(name, 1e5) * size / 1e3:g} KB', ds.given(name))
    elif name in ds:
        yield Left(name, IDLE if stage < 3 else NOT_MODELLED, f'with stage {stage}' if stage < 3 else 'auto')
    if ds.number(f'{_Z}.mics_shard_size', 0) > 0:
        yield Says('plan.shard_group', ds.number(f'{_Z}.mics_shard_size', 0), (f'{_Z}.mics_shard_size',))


def model(ds: Settings) -> Iterator[Told]:
    """The model is in no DeepSpeed file."""
    if 'model-config' not in ds:
        yield Wrong('model', 'a DeepSpeed file does not say the model', 'give it: --model config.json')
        return
    told = ds.number('sequence', 0)
    longest = ds.number('model-longest', 0)
    length = told or min(longest or 2048, 2048)
    yield Says('workload.sequence', length, ds.given('sequence'))
    if not told:
        yield Assumed(f'samples of {length} tokens: --set sequence=N says another length')
    yield Assumed('nothing is recomputed: --set plan.recompute=full where the program switches checkpoints on')


DEEPSPEED: Final = Source(
    name='DeepSpeed',
    profile='h100-sxm-8',
    rows=ROWS,
    idle=IDLE_NAMES,
    not_modelled=MISSING,
    aliases=ALIASES,
    rules=(model, batch, precision, sharding),
    framework=lambda _: ('DeepSpeed', NOW),
)
__all__ = ['DEEPSPEED', 'whole']
