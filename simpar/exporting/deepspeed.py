"""DeepSpeed's JSON, Accelerate's YAML and torchtitan's TOML of a plan; the first two have no model in them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import yaml

from simpar.errors import refusal
from simpar.exporting.settings import Said, T, Values, bytes_of, need_transformer, plain, spoken
from simpar.huggingface.families import FLAVOURS, Sizes
from simpar.importing import first
from simpar.importing.torchtitan import TORCHTITAN

_Z: Final = 'zero_optimization'
_A: Final = 'workload.optimizer.adamw'
_P: Final = 'parallelism'


def deepspeed_keys(values: Values) -> list[Said]:
    """The keys of DeepSpeed's JSON; its model is a program's."""
    return [one for rule in (_batch, _numbers, _update, _zero, _degrees) for one in rule(values)]


def _batch(values: Values) -> Iterator[Said]:
    yield Said('train_batch_size', values.work('batch'), ('workload.batch',))
    yield Said('train_micro_batch_size_per_gpu', values.small, ('plan.micro_batches',))
    yield Said('gradient_accumulation_steps', values.plan('micro_batches'), ('plan.micro_batches',))
    yield Said('gradient_clipping', plain(values.work('clip_norm')), ('workload.clip_norm',))


def _numbers(values: Values) -> Iterator[Said]:
    """Precision of products and of sums."""
    kind, sums = values.work('precision', 'fp32'), values.work('gradients', None)
    if kind in ('bf16', 'fp16'):
        yield Said(f'{kind}.enabled', True, ('workload.precision', f'{_A}.master_weights'))
        for name in ('data_types.grad_accum_dtype', 'communication_data_type'):
            yield Said(name, sums or kind, ('workload.gradients',))
    if kind == 'fp16':
        yield Said('fp16.loss_scale', plain(values.work('loss_scale', 1)), ('workload.loss_scale',))


def _update(values: Values) -> Iterator[Said]:
    """The optimizer and its numbers."""
    names = {'adam': 'Adam', 'adamw': 'AdamW', 'momentum': 'SGD', 'sgd': 'SGD', 'muon': 'Muon'}
    yield Said('optimizer.type', names[values.optimizer], ('workload.optimizer',))
    for word, key in (('lr', 'learning_rate'), ('eps', 'epsilon'), ('weight_decay', 'weight_decay')):
        if f'{_A}.{key}' in values.every:
            yield Said(f'optimizer.params.{word}', values.every[f'{_A}.{key}'], (f'{_A}.{key}',))
    betas = [values.every.get(f'{_A}.{one}') for one in ('beta1', 'beta2')]
    if None not in betas:
        yield Said('optimizer.params.betas', betas, (f'{_A}.beta1', f'{_A}.beta2'))
    if values.optimizer == 'momentum':
        momentum = values.every['workload.optimizer.momentum.momentum']
        yield Said('optimizer.params.momentum', momentum, ('workload.optimizer.momentum.momentum',))


def _zero(values: Values) -> Iterator[Said]:
    """What is sharded, and the sizes of its messages, as numbers of elements."""
    stage, size = values.sharded, 4 if values.work('precision', 'fp32') == 'fp32' else 2
    yield Said(f'{_Z}.stage', stage, ('plan.zero', 'plan.shard'))
    overlaps = values.plan('prefetch') > 0 if stage == 3 else values.plan('reduce_gradients') == 'overlapped'
    yield Said(f'{_Z}.overlap_comm', overlaps, ('plan.reduce_gradients', 'plan.prefetch'))
    if stage in (1, 2) and (bucket := bytes_of(values.plan('fusion'))):
        yield Said(f'{_Z}.reduce_bucket_size', int(bucket / size), ('plan.fusion',))
    if stage == 3:
        threshold = bytes_of(values.plan('shard_threshold')) / size
        yield Said(f'{_Z}.stage3_param_persistence_threshold', int(threshold), ('plan.shard_threshold',))
        group = values.plan('shard_group')
        if group not in (0, values.plan('data')):
            yield Said(f'{_Z}.mics_shard_size', group, ('plan.shard_group',))
        # DeepSpeed's groups are neighbours among all ranks.
        if values.plan('second_shards') and values.plan('tensor') == values.plan('pipeline') == 1:
            yield Said(f'{_Z}.zero_hpz_partition_size', values.plan('second_shards'), ('plan.second_shards',))


def _degrees(values: Values) -> Iterator[Said]:
    names = ('tensor_parallel.autotp_size', 'sequence_parallel_size', 'pipeline.stages')
    for name, key in zip(names, ('tensor', 'context', 'pipeline'), strict=True):
        if values.plan(key) > 1:
            yield Said(name, values.plan(key), (f'plan.{key}',))


def nested(said: Iterable[Said]) -> dict[str, Any]:
    """Settings by dotted name as a tree."""
    return first.nested(((one.name, one.value) for one in said), {})


def json_text(said: Iterable[Said], _: Values, head: tuple[str, ...]) -> str:
    """JSON has no comments: the head is a key that DeepSpeed does not read."""
    comment = {'_comment': list(head)} if head else {}
    return json.dumps({**comment, **nested(said)}, indent=2) + '\n'


# Accelerate


def accelerate_keys(values: Values) -> list[Said]:
    """The keys of Accelerate: FSDP where weights or gradients are sharded, else DeepSpeed or data parallelism."""
    stage, kind = values.sharded, values.work('precision', 'fp32')
    said = [
        Said('compute_environment', 'LOCAL_MACHINE', ()),
        Said('distributed_type', {0: 'MULTI_GPU', 1: 'DEEPSPEED'}.get(stage, 'FSDP'), ('plan.zero', 'plan.shard')),
        Said('num_machines', values.every['cluster.nodes'], ()),
        Said('num_processes', values.ranks, ()),
        Said('mixed_precision', 'no' if kind == 'fp32' else kind, ('workload.precision',)),
    ]
    if stage == 1:
        own = 'deepspeed_config'
        said.append(Said(f'{own}.zero_stage', 1, ('plan.zero',)))
        said.append(Said(f'{own}.gradient_accumulation_steps', values.plan('micro_batches'), ('plan.micro_batches',)))
        said.append(Said(f'{own}.gradient_clipping', plain(values.work('clip_norm')), ('workload.clip_norm',)))
    if stage > 1:
        node, own = values.ranks // values.every['cluster.nodes'], 'fsdp_config.fsdp'
        is_hybrid = stage == 3 and values.plan('shard_group') == node < values.plan('data')
        said.append(Said(f'{own}_version', 1 if is_hybrid else 2, ()))
        # Else the whole model is one message (huggingface/accelerate 16cb6eb8, utils/dataclasses.py).
        said.append(Said(f'{own}_auto_wrap_policy', 'TRANSFORMER_BASED_WRAP', ('plan.fusion',)))
        if is_hybrid:
            said.append(Said(f'{own}_sharding_strategy', 'HYBRID_SHARD', ('plan.shard_group', 'plan.gather')))
        else:
            said.append(Said(f'{own}_reshard_after_forward', stage == 3, ('plan.gather',)))
        full = values.plan('recompute') == 'full'
        said.append(Said('fsdp_config.fsdp_activation_checkpointing', full, ('plan.recompute',)))
    return said


def yaml_text(said: Iterable[Said], _: Values, head: tuple[str, ...]) -> str:
    """YAML, its head as comments."""
    comments = ''.join(f'# {line}\n' for line in head)
    tree = nested(one._replace(value=plain(one.value)) for one in said)
    return comments + yaml.safe_dump(tree, sort_keys=False, width=100)


# torchtitan


def torchtitan_keys(values: Values) -> list[Said]:
    """The keys of torchtitan. Raises ``ScheduleError`` where none of its flavours has the model's sizes."""
    need_transformer(values, 'torchtitan')
    name, flavour = _flavour(values)
    said = [Said('model.name', name, (T,)), Said('model.flavor', flavour, (T,))]
    for setting in ('training.seq_len', 'training.max_norm', 'training.mixed_precision_param',
                    'training.mixed_precision_reduce', 'optimizer.name', 'optimizer.lr', 'optimizer.eps',
                    'optimizer.beta1', 'optimizer.beta2', 'optimizer.weight_decay'):  # fmt: skip
        said += filter(None, [spoken(TORCHTITAN.table.rows[setting], values)])
    rules = (_titan_batch, _titan_degrees, _titan_order, _titan_recompute)
    return [*said, *(one for rule in rules for one in rule(values))]


def _flavour(values: Values) -> tuple[str, str]:
    """The model and flavour of torchtitan with these sizes."""
    known = [(name, size, sizes) for name, of_name in FLAVOURS.items() for size, sizes in of_name.items()]
    for name, size, sizes in known:
        if _has(values, sizes):
            return name, size
    names = ', '.join(f'{name} {size}' for name, size, _ in known)
    raise refusal('workload', 'no flavour of torchtitan has these sizes', f'known are {names}')


def _has(values: Values, sizes: Sizes, at: str = '') -> bool:
    """Whether the model has all sizes of a flavour."""
    for key, value in sizes.items():
        if isinstance(value, Mapping):
            if not _has(values, dict(value), f'{at}{key}.'):
                return False
        elif key not in ('sequence', 'positions') and values.model(f'{at}{key}', None) != value:
            return False
    return True


def _titan_batch(values: Values) -> Iterator[Said]:
    """Samples of a rank at a time, of all ranks, and of a micro-batch of the pipeline."""
    keys = ('workload.batch', 'plan.micro_batches')
    is_pipeline = values.plan('pipeline') > 1
    local = values.small * values.plan('micro_batches') if is_pipeline else values.small
    yield Said('training.local_batch_size', local, keys)
    yield Said('training.global_batch_size', values.work('batch'), keys)
    if is_pipeline:
        yield Said(f'{_P}.pipeline_parallel_microbatch_size', values.small, keys[1:])


def _titan_degrees(values: Values) -> Iterator[Said]:
    """Degrees, and what data ranks shard."""
    data, stage, context = values.plan('data'), values.sharded, values.plan('context')
    group = values.plan('shard_group') or data * context
    # Context ranks hold shards, too.
    # Of a bidirectional pipeline, whose ranks hold each stage twice, a group may be wider than the data ranks.
    shards = min(data, max(1, group // context)) if stage else 1
    yield Said(f'{_P}.data_parallel_replicate_degree', data // shards, ('plan.shard_group',))
    yield Said(f'{_P}.data_parallel_shard_degree', shards, ('plan.zero', 'plan.shard'))
    reshard = 'never' if values.plan('gather') == 'on-use' else 'always'
    if stage:
        yield Said(f'{_P}.fsdp_reshard_after_forward', reshard, ('plan.gather',))
    for name, key in (('tensor', 'tensor'), ('pipeline', 'pipeline'), ('context', 'context')):
        yield Said(f'{_P}.{name}_parallel_degree', values.plan(key), (f'plan.{key}',))
    if values.plan('tensor') > 1 and values.plan('tiles') > 1:
        yield Said(f'{_P}.enable_async_tensor_parallel', True, ('plan.tiles',))
    if values.plan('context') > 1:
        yield from filter(None, [spoken(TORCHTITAN.table.rows[f'{_P}.context_parallel_rotate_method'], values)])
    if values.plan('expert') > 1:
        yield Said(f'{_P}.expert_parallel_degree', values.plan('expert'), ('plan.expert',))


def _titan_order(values: Values) -> Iterator[Said]:
    """The schedule of a pipeline, in torch's spelling."""
    if values.plan('pipeline') < 2:
        return
    order = spoken(TORCHTITAN.table.rows[f'{_P}.pipeline_parallel_schedule'], values)
    yield order or Said(f'{_P}.pipeline_parallel_schedule', '1F1B', ('plan.order',))
    chunks, layers = values.plan('chunks') or 1, values.model('layers')
    if chunks > 2 and layers % (values.plan('pipeline') * chunks) == 0:
        each = layers // (values.plan('pipeline') * chunks)
        yield Said(f'{_P}.pipeline_parallel_layers_per_stage', each, ('plan.chunks',))


def _titan_recompute(values: Values) -> Iterator[Said]:
    """Full layers, every so-manieth, cheap operators, or nothing; and products in 8 bits."""
    wanted, name = values.plan('recompute'), 'activation_checkpoint'
    if isinstance(wanted, str):
        yield Said(f'{name}.mode', 'full' if wanted == 'full' else 'none', ('plan.recompute',))
    else:
        whole = [one for one in wanted if one.endswith('.*') and one[5:-2].isdigit()]
        every = int(whole[0][5:-2]) + 1 if whole else 0
        yield Said(f'{name}.mode', 'selective' if wanted else 'none', ('plan.recompute',))
        yield Said(f'{name}.selective_ac_option', str(every) if every else 'op', ('plan.recompute',))
    if values.work('fp8', 'none') == 'hybrid':
        yield Said('model.converters', ['quantize.linear.float8'], ('workload.fp8',))


def _titan_flags(said: Iterable[Said], values: Values) -> Iterator[str]:
    """What torchtitan of August 2026, which has no TOML, takes on its command line over a function of its registry."""
    length, is_pipeline = values.model('sequence'), values.plan('pipeline') > 1
    yield f'--training.max_context_length {length}'
    yield f'--training.num_tokens_per_microbatch_per_dp_rank {values.small * length}'
    yield f'--training.num_tokens_per_train_step {values.work("batch") * length}'
    yield from [f'--{_P}.num_pp_microbatches {values.plan("micro_batches")}'] if is_pipeline else []
    for one in said:
        if one.name == f'{_P}.enable_async_tensor_parallel':
            yield '--compile.enable --compile.enable_async_tensor_parallel'
        elif one.name.startswith(_P) and one.name not in _GONE:
            yield f'--{one.name} {plain(one.value)}'


_GONE: Final = (f'{_P}.pipeline_parallel_microbatch_size', f'{_P}.context_parallel_rotate_method')


def toml_text(said: Iterable[Said], values: Values, head: tuple[str, ...]) -> str:
    """TOML; the comment on devices is one that import reads."""
    lines = [*(f'# {line}' for line in head), f'# preset for {values.ranks} GPUs']
    lines += [
        '# torchtitan since 2026, which has no TOML, behind --module and --config, but for activation_checkpoint:'
    ]
    lines += [f'#   {flag}' for flag in _titan_flags(said, values)]
    for section, keys in nested(said).items():
        lines += ['', f'[{section}]', *(f'{key} = {json.dumps(plain(value))}' for key, value in keys.items())]
    return '\n'.join(lines) + '\n'
