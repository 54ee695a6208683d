"""torchtitan's TOML files, with their older names of sections."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm
from typing import Any, Final

from simpar.huggingface.sizes import FLAVOURS, flavour
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
    count,
    number,
    ruled,
)

_T: Final = 'workload.transformer'
_A: Final = 'workload.optimizer.adamw'
_P: Final = 'parallelism'
ROWS: Final[dict[str, Row]] = {
    'model.name': ruled(_T, 'sizes of the flavour'),
    'model.flavor': ruled(_T, 'sizes of the flavour'),
    'model.converters': ruled('workload.fp8', 'float8: hybrid'),
    'training.seq_len': count(f'{_T}.sequence'),
    'training.local_batch_size': ruled('workload.batch', 'times data ranks; 8 without it'),
    'training.global_batch_size': ruled('workload.batch', 'the same number; -1: local_batch_size × data ranks'),
    'training.gradient_accumulation_steps': ruled('plan.micro_batches', 'times those of the pipeline'),
    'training.max_norm': number('workload.clip_norm', '1.0 without it'),
    'training.mixed_precision_param': ruled('workload.precision', 'bfloat16: bf16, with weights kept in fp32'),
    'training.mixed_precision_reduce': ruled('workload.gradients', 'float32: fp32'),
    'training.dtype': ruled('workload.precision', 'bfloat16: bf16, weights too'),
    'optimizer.name': ruled('workload.optimizer', 'AdamW, Adam'),
    'optimizer.lr': number(f'{_A}.learning_rate', 'for all steps'),
    'optimizer.eps': number(f'{_A}.epsilon'),
    'optimizer.beta1': number(f'{_A}.beta1'),
    'optimizer.beta2': number(f'{_A}.beta2', '0.95 without it'),
    'optimizer.weight_decay': number(f'{_A}.weight_decay', '0.1 without it'),
    f'{_P}.data_parallel_replicate_degree': ruled('plan.shard_group', 'data ranks / the number'),
    f'{_P}.data_parallel_shard_degree': ruled('plan.zero', '3 unless 1; -1: the devices that are left'),
    f'{_P}.fsdp_reshard_after_forward': ruled('plan.gather', 'never: on-use; default is never with a pipeline'),
    f'{_P}.tensor_parallel_degree': ruled('plan.tensor', 'the same number, with sequence_parallel'),
    f'{_P}.enable_async_tensor_parallel': ruled('plan.tiles', 'as many as tensor ranks'),
    f'{_P}.pipeline_parallel_degree': ruled('plan.pipeline', 'the same number'),
    f'{_P}.pipeline_parallel_schedule': ruled('plan.order', 'its name in docs/pipeline_orders.md'),
    f'{_P}.pipeline_parallel_microbatch_size': ruled(
        'plan.micro_batches', 'local_batch_size / the number; 1 without it'
    ),
    f'{_P}.pipeline_parallel_layers_per_stage': ruled('plan.chunks', 'layers / (pipeline × number)'),
    f'{_P}.context_parallel_degree': ruled('plan.context', 'the same number'),
    f'{_P}.context_parallel_rotate_method': ruled('plan.context_kind', 'allgather: all_gather, alltoall: ring'),
    f'{_P}.expert_parallel_degree': ruled('plan.expert', 'the same number'),
    'activation_checkpoint.mode': ruled('plan.recompute', 'full; selective: by selective_ac_option; none'),
    'activation_checkpoint.selective_ac_option': ruled(
        'plan.recompute', 'a number n: every n-th layer; op: norms, rotary, activation'
    ),
}
_NEWER: Final = {
    'data_parallel_degree': 'data_parallel_shard_degree', 'data_parallel_replicate_degree': '',
    'data_parallel_shard_degree': '', 'tensor_parallel_degree': '', 'enable_async_tensor_parallel': '',
    'pipeline_parallel_degree': '', 'pipeline_parallel_schedule': '', 'context_parallel_degree': '',
    'context_parallel_rotate_method': '', 'enable_loss_parallel': '', 'disable_loss_parallel': '',
    'pipeline_parallel_microbatches': '', 'pipeline_parallel_split_points': '', 'module_fqns_per_model_part': '',
}  # fmt: skip
ALIASES: Final = {
    **{f'{old}.{name}': f'{_P}.{new or name}' for old in ('training', 'experimental') for name, new in _NEWER.items()},
    'training.batch_size': 'training.local_batch_size', 'model.float8': 'model.converters',
    'training.fsdp_reshard_after_forward': f'{_P}.fsdp_reshard_after_forward',
}  # fmt: skip
IDLE_NAMES: Final = {
    'where a run begins, reads, writes and reports': 'job.* profiling.* metrics.* checkpoint.* validation.* comm.* '
    'debug.* memory_estimation.* model.tokenizer_path model.hf_assets_path model.print_after_conversion eval.*',
    'data, and how long a run is': 'training.dataset* training.steps training.seed training.deterministic '
    'training.gc_freq training.gc_debug training.data_parallel_type training.warmup_steps training.dataloader*',
    'a rate of learning': 'lr_scheduler.* optimizer.warmup_steps',
    'the way of ops that simpar takes anyway': 'optimizer.fused optimizer.implementation optimizer.foreach '
    'parallelism.disable_loss_parallel parallelism.enable_loss_parallel parallelism.enable_compiled_autograd '
    'training.compile compile.* model.norm_type activation_checkpoint.preserve_rng_state '
    'activation_checkpoint.determinism_check activation_checkpoint.debug activation_checkpoint.early_stop '
    'parallelism.context_parallel_load_balancer experimental.custom_* float8.precompute_* '
    'quantize.linear.float8.precompute_*',
}  # fmt: skip
MISSING: Final = {
    'products in 8 bits, in an older way': 'training.fp8_linear training.enable_fp8_linear',
    'products in 8 bits but for some': 'float8.filter_fqns quantize.linear.*.filter_fqns quantize.grouped_mm.* '
    'quantize.dense.*',
    'gathers in 8 bits': 'float8.enable_fsdp_float8_all_gather quantize.linear.float8.enable_fsdp_float8_all_gather',
    'scales of 8 bits': 'float8.* quantize.* mx.*',
    'which operators are kept': 'activation_checkpoint.*',
    'how stages are cut': 'parallelism.pipeline_parallel_split_points parallelism.module_fqns_per_model_part '
    'parallelism.pipeline_parallel_first_stage_less_layers parallelism.pipeline_parallel_last_stage_less_layers',
    'a pipeline schedule of a file': 'parallelism.pipeline_parallel_schedule_csv',
    'tensor ranks of experts, and their libraries': 'parallelism.expert_tensor_parallel_degree '
    'parallelism.expert_parallel_comm_backend',
    'copies of a run': 'fault_tolerance.*',
    'offloading to host memory': 'training.enable_cpu_offload',
    'states apart from gradients': 'optimizer.early_step_in_backward',
}  # fmt: skip
ORDERS: Final = {
    '1f1b': '1f1b', 'gpipe': 'gpipe', 'interleaved1f1b': 'interleaved-1f1b', 'loopedbfs': 'looped-bfs',
    'interleavedzerobubble': 'interleaved-zero-bubble', 'zbvzerobubble': 'zb-v', 'dualpipev': 'dualpipe-v',
    'flexibleinterleaved1f1b': 'interleaved-1f1b',
}  # fmt: skip


def model(toml: Settings) -> Iterator[Told]:
    """Sizes of a flavour, which the file names and does not say."""
    name, size = toml.text('model.name'), toml.text('model.flavor')
    found = flavour(name, size)
    if found is None:
        known = ', '.join(f'{one} {" ".join(sizes)}' for one, sizes in FLAVOURS.items())
        wrong = f'sizes of {name or "a model"} {size} are not known'
        yield Wrong('model.flavor', wrong, f'known are {known}; or give the model, --model config.json')
        return
    for key, value in found.items():
        if key == 'experts':
            for part, one in value.items():
                yield Says(f'{_T}.experts.{part}', one, ('model.name', 'model.flavor'))
        else:
            yield Says(f'{_T}.{key}', value, ('model.name', 'model.flavor'))
    if 'flex' in size or 'varlen' in size:
        yield Left('model.flavor', NOT_MODELLED, 'attention within documents, whose lengths the file does not say')


def _degree(toml: Settings, name: str) -> int:
    return max(1, toml.number(f'{_P}.{name}_degree', 1))


def _ranks(toml: Settings) -> tuple[int, int, int]:
    """Ranks, replicas and data ranks: as many as are told, or the least."""
    inner = _degree(toml, 'tensor_parallel') * _degree(toml, 'pipeline_parallel') * _degree(toml, 'context_parallel')
    replicas = _degree(toml, 'data_parallel_replicate')
    shard = toml.number(f'{_P}.data_parallel_shard_degree', -1)
    told = toml.number('devices', 0)
    if shard > 0:
        data = replicas * shard
    elif told and told % (inner * replicas) == 0:
        data = told // inner
    else:
        # At least a node, so that shards are shared at all.
        data = replicas * max(1, lcm(inner * replicas, 8) // (inner * replicas))
    return data * inner, replicas, data


def parallel(toml: Settings) -> Iterator[Told]:
    """Degrees, and what data ranks share."""
    ranks, replicas, data = _ranks(toml)
    yield Says('ranks', ranks, toml.given('devices'))
    if not toml.number('devices', 0) and toml.number(f'{_P}.data_parallel_shard_degree', -1) < 1:
        yield Wrong('devices', 'the file does not say how many', 'give it, e.g. --set devices=64')
    tensor, pipe = _degree(toml, 'tensor_parallel'), _degree(toml, 'pipeline_parallel')
    yield Says('plan.tensor', tensor, toml.given(f'{_P}.tensor_parallel_degree'))
    if tensor > 1:
        yield Says('plan.sequence_parallel', True, (f'{_P}.tensor_parallel_degree',))
    if toml.on(f'{_P}.enable_async_tensor_parallel') and tensor > 1:
        yield Says('plan.tiles', tensor, (f'{_P}.enable_async_tensor_parallel',), 'one for each rank')
    yield Says('plan.pipeline', pipe, toml.given(f'{_P}.pipeline_parallel_degree'))
    yield from _context_and_experts(toml)
    shards = data // replicas
    by = toml.given(f'{_P}.data_parallel_shard_degree')
    if shards > 1:
        reshard = toml.text(f'{_P}.fsdp_reshard_after_forward', 'default')
        kept = reshard == 'never' or (reshard == 'default' and pipe > 1)
        if kept:
            yield Says('plan.shard', ['state', 'gradients', 'weights'], by)
            yield Says('plan.gather', 'on-use', toml.given(f'{_P}.fsdp_reshard_after_forward') or by)
        else:
            yield Says('plan.zero', 3, (*by, *toml.given(f'{_P}.fsdp_reshard_after_forward')))
        if replicas > 1:
            yield Says('plan.shard_group', shards, toml.given(f'{_P}.data_parallel_replicate_degree'))
    else:
        for name in toml.given(f'{_P}.data_parallel_shard_degree', f'{_P}.fsdp_reshard_after_forward'):
            yield Left(name, IDLE, 'one shard')


def _context_and_experts(toml: Settings) -> Iterator[Told]:
    context = _degree(toml, 'context_parallel')
    if context > 1:
        kinds = {'allgather': 'all_gather', 'alltoall': 'ring'}
        yield Says('plan.context', context, (f'{_P}.context_parallel_degree',))
        kind = toml.text(f'{_P}.context_parallel_rotate_method', 'allgather')
        yield Says('plan.context_kind', kinds.get(kind, 'ring'), toml.given(f'{_P}.context_parallel_rotate_method'))
    else:
        for name in toml.given(f'{_P}.context_parallel_degree', f'{_P}.context_parallel_rotate_method'):
            yield Left(name, IDLE, 'one context rank')
    sizes = flavour(toml.text('model.name'), toml.text('model.flavor')) or {}
    if _degree(toml, 'expert_parallel') > 1 and 'experts' in sizes:
        yield Says('plan.expert', _degree(toml, 'expert_parallel'), (f'{_P}.expert_parallel_degree',))
    elif f'{_P}.expert_parallel_degree' in toml:
        yield Left(f'{_P}.expert_parallel_degree', IDLE, 'one expert rank, or no experts')


def batch(toml: Settings) -> Iterator[Told]:
    """Samples of a step, and the micro-batches of pipeline and accumulation."""
    *_, data = _ranks(toml)
    local = max(1, toml.number('training.local_batch_size', 8))
    full = toml.number('training.global_batch_size', -1)
    steps = max(1, toml.number('training.gradient_accumulation_steps', 1))
    if full > 0 and full % (local * data) == 0:
        steps = full // (local * data)
    elif full > 0:
        yield Assumed(
            f'global_batch_size {full} is no multiple of {local} × data {data}: {local * data * steps} written'
        )
    if 'training.local_batch_size' not in toml:
        yield Assumed('local_batch_size is 8 where the file does not say it')
    by = toml.given('training.local_batch_size', 'training.global_batch_size')
    yield Says('workload.batch', local * data * steps, by)
    small = 1
    if _degree(toml, 'pipeline_parallel') > 1:
        size = toml.number(f'{_P}.pipeline_parallel_microbatch_size', 1)
        small = local // size if size and local % size == 0 else local
    by = toml.given(f'{_P}.pipeline_parallel_microbatch_size', 'training.gradient_accumulation_steps')
    yield Says('plan.micro_batches', small * steps, by)


def order(toml: Settings) -> Iterator[Told]:
    """The pipeline's order and its stages."""
    pipe = _degree(toml, 'pipeline_parallel')
    names = toml.given(f'{_P}.pipeline_parallel_schedule', f'{_P}.pipeline_parallel_layers_per_stage')
    if pipe < 2:
        for name in names:
            yield Left(name, IDLE, 'one pipeline rank')
        return
    kind = toml.text(f'{_P}.pipeline_parallel_schedule', '1F1B')
    known = ORDERS.get(kind.lower())
    if known is None:
        yield Left(f'{_P}.pipeline_parallel_schedule', NOT_MODELLED, f'{kind}; 1f1b is written')
    yield Says('plan.order', known or '1f1b', names[:1])
    sizes: dict[str, Any] = flavour(toml.text('model.name'), toml.text('model.flavor')) or {}
    each = toml.number(f'{_P}.pipeline_parallel_layers_per_stage', 0)
    if known in ('interleaved-1f1b', 'looped-bfs', 'interleaved-zero-bubble', 'zb-v', 'dualpipe-v'):
        # A V has two stages on each rank; the others have two unless told.
        chunks = max(2, -(-sizes.get('layers', 0) // (pipe * each))) if each and known[-1] != 'v' else 2
        yield Says('plan.chunks', chunks, names)


def precision(toml: Settings) -> Iterator[Told]:
    """Products in bf16 of weights that are kept in fp32, unless told."""
    kinds = {'bfloat16': 'bf16', 'float16': 'fp16', 'float32': 'fp32'}
    whole = kinds.get(toml.text('training.dtype', 'float32'), 'fp32')
    of_ops = kinds.get(toml.text('training.mixed_precision_param', 'bfloat16'), 'bf16') if whole == 'fp32' else whole
    yield Says('workload.precision', of_ops, toml.given('training.mixed_precision_param', 'training.dtype'))
    if 'training.mixed_precision_param' in toml and whole != 'fp32':
        yield Left('training.mixed_precision_param', IDLE, 'training.dtype says it')
    sums = kinds.get(toml.text('training.mixed_precision_reduce', 'float32'), 'fp32')
    yield Says('workload.gradients', sums, toml.given('training.mixed_precision_reduce'))
    yield from optimizer(toml, master=whole == 'fp32' and of_ops != 'fp32')
    told = [str(one) for one in _listed(toml, 'model.converters')]
    eight = [one for one in told if 'float8' in one and 'grouped' not in one]
    if eight or toml.on('float8.enable_float8_linear'):
        yield Says('workload.fp8', 'hybrid', toml.given('model.converters', 'float8.enable_float8_linear'))
    if not eight:
        for name in toml.named:
            if name.startswith(('quantize.linear', 'float8.')):
                yield Left(name, IDLE, 'converters name no float8')
    rest = [one for one in told if one not in eight]
    if rest:
        yield Left('model.converters', NOT_MODELLED, ', '.join(rest))


def optimizer(toml: Settings, *, master: bool) -> Iterator[Told]:
    """AdamW; its fp32 weights are the sharded parameters."""
    name = toml.text('optimizer.name', 'AdamW')
    by = toml.given('optimizer.name')
    if name not in ('AdamW', 'Adam'):
        yield Left('optimizer.name', NOT_MODELLED, f'{name}; adamw is written')
    yield Says(f'{_A}.master_weights', master, by)
    for key, value in (('beta2', 0.95), ('weight_decay', 0.1), ('learning_rate', 8e-4)):
        if {'beta2': 'optimizer.beta2', 'weight_decay': 'optimizer.weight_decay'}.get(key, 'optimizer.lr') not in toml:
            yield Says(f'{_A}.{key}', value, (), 'as torchtitan has it')
    if 'training.max_norm' not in toml:
        yield Says('workload.clip_norm', 1.0, (), 'as torchtitan has it')


def _listed(toml: Settings, name: str) -> list[Any]:
    one = toml.named.get(name)
    if one is None:
        return []
    return one.value if isinstance(one.value, list) else [part for part in str(one.value).split(',') if part]


def recompute(toml: Settings) -> Iterator[Told]:
    """Checkpoints of full layers, of some layers, or of cheap operators."""
    mode = toml.text('activation_checkpoint.mode', 'selective')
    by = toml.given('activation_checkpoint.mode', 'activation_checkpoint.selective_ac_option')
    option = toml.text('activation_checkpoint.selective_ac_option', '2')
    if 'activation_checkpoint.mode' not in toml:
        yield Assumed('activation_checkpoint.mode is selective where the file does not say it')
    if mode == 'full':
        yield Says('plan.recompute', 'full', by[:1])
        for name in by[1:]:
            yield Left(name, IDLE, 'with mode full')
    elif mode == 'none':
        yield Says('plan.recompute', 'none', by[:1])
        for name in by[1:]:
            yield Left(name, IDLE, 'with mode none')
    elif option.isdigit():
        layers = (flavour(toml.text('model.name'), toml.text('model.flavor')) or {}).get('layers', 0)
        every = max(1, int(option[:6]))
        chosen = [f'layer{layer}.*' for layer in range(layers) if (layer + 1) % every == 0]
        yield Says('plan.recompute', 'full' if every == 1 else chosen or 'none', by)
    else:
        patterns = ['layer*.norm*', 'layer*.rotary', 'layer*.swiglu']
        yield Says('plan.recompute', patterns, by, 'torchtitan also repeats every second product')
        if mode != 'selective':
            yield Left('activation_checkpoint.mode', NOT_MODELLED, f'{mode}; cheap operators are recomputed')


def framework(toml: Settings) -> tuple[str, int]:
    """Shards of FSDP2, whose kernels a compiler may fuse."""
    is_compiled = toml.on('training.compile') or toml.on('compile.enable')
    return ('torchtitan fsdp, compile' if is_compiled else 'torchtitan fsdp'), NOW


TORCHTITAN: Final = Source(
    name='torchtitan',
    profile='h100-sxm-8',
    rows=ROWS,
    idle=IDLE_NAMES,
    not_modelled=MISSING,
    aliases=ALIASES,
    rules=(model, parallel, batch, order, precision, recompute),
    framework=framework,
)
