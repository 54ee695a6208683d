"""MindFormers' YAML of a plan, and the JSON of overlap passes beside it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from simpar.exporting.settings import Said, T, Values, bytes_of, direct, need_transformer, plain
from simpar.importing.mindformers import MINDFORMERS, groups_of

_M: Final = 'model.model_config'
_P: Final = 'parallel_config'
_SHARDS: Final = 'parallel.parallel_optimizer_config'
_ORDERS: Final = 'mindspore-2.10/'
SPEED_UP: Final = 'parallel_speed_up.json'


def mindformers_keys(values: Values) -> list[Said]:
    """The keys of MindFormers. Raises ``ScheduleError`` for a model that it has none for."""
    need_transformer(values, 'MindFormers')
    rules = (_model, _experts, _parallel, _pipeline, _sharding, _recompute, _update)
    said = list(direct('mindformers', MINDFORMERS.table, values, _facts(values)))
    return [*said, *(one for rule in rules for one in rule(values))]


def _facts(values: Values) -> Iterator[str]:
    """Words for what rows of the table need."""
    hidden, heads = values.model('hidden'), values.model('heads')
    tests = {
        'head_dim': not values.model('kv_lora_rank') and values.model('head_dim') * heads != hidden,
        'rotary': values.model('position', '') == 'rotary',
        'kv_lora_rank': values.model('kv_lora_rank'),
        'experts': values.model('experts.count'),
        'further tokens': values.model('mtp_layers'),
        'context': values.plan('context') > 1,
        'tensor': values.plan('tensor') > 1,
        'groups of shards': values.sharded and values.plan('shard_group') not in (0, values.plan('data')),
    }
    return (word for word, holds in tests.items() if holds)


def _model(values: Values) -> Iterator[Said]:
    """The kind of model, biases, attention and memory."""
    yield Said('model.arch.type', 'LlamaForCausalLM', ())
    yield Said(f'{_M}.type', 'LlamaConfig', ())
    yield Said(f'{_M}.qkv_has_bias', 'qkv' in values.model('bias', ()), (f'{T}.bias',))
    yield Said(f'{_M}.use_flash_attention', values.model('attention', '') == 'flash', (f'{T}.attention',))
    yield Said(f'{_M}.param_init_type', 'float32', ('workload.optimizer.adamw.master_weights',))
    if bytes_of(values.every.get('cluster.reserve', 0)):
        yield Said('context.max_device_memory', f'{values.memory / 2**30:.4g}GB', ('cluster.reserve',))


def _experts(values: Values) -> Iterator[Said]:
    shared, width = values.model('experts.shared'), values.model('experts.ffn') or values.model('ffn')
    if shared:
        yield Said('moe_config.shared_expert_num', max(1, round(shared / width)), (f'{T}.experts.shared',))


def _parallel(values: Values) -> Iterator[Said]:
    """Degrees and batch."""
    steps, copies = values.plan('micro_batches'), values.plan('copies')
    is_pipeline = values.plan('pipeline') > 1
    for key, degree in (('data_parallel', 'data'), ('model_parallel', 'tensor'), ('pipeline_stage', 'pipeline')):
        yield Said(f'{_P}.{key}', values.plan(degree), (f'plan.{degree}',))
    if values.model('experts.count'):
        yield Said(f'{_P}.expert_parallel', values.plan('expert'), ('plan.expert',))
    yield Said(f'{_P}.micro_batch_num', steps if is_pipeline else 1, ('plan.micro_batches',))
    if not is_pipeline:
        yield Said('runner_config.gradient_accumulation_steps', steps, ('plan.micro_batches',))
    yield Said('runner_config.batch_size', max(1, values.small // copies), ('workload.batch',))
    layers, ids = values.model('layers'), list(values.plan('fusion_ids'))
    for count in range(1, layers + 2) if ids else ():
        if ids == groups_of(layers, count, has_positions=False, is_tied=bool(values.model('tied'))):
            yield Said(f'{_P}.gradient_aggregation_group', count, ('plan.fusion', 'plan.fusion_ids'))
            return


def _pipeline(values: Values) -> Iterator[Said]:
    """Order, chunks and layers of stages."""
    # Modules that predict further tokens are laid on stages as layers are.
    ranks, chunks, layers = values.plan('pipeline'), values.plan('chunks') or 1, _blocks(values)
    if ranks < 2:
        return
    order = values.plan('order')
    if order.startswith(_ORDERS):
        yield Said('parallel.pipeline_config.pipeline_scheduler', order.removeprefix(_ORDERS), ('plan.order',))
    if chunks > 1:
        yield Said('parallel.pipeline_config.pipeline_interleave', True, ('plan.chunks',))
        yield Said(f'{_M}.pp_interleave_num', chunks, ('plan.chunks',))
    if values.plan('sequence_chunks') > 1:
        yield Said(f'{_P}.seq_split_num', values.plan('sequence_chunks'), ('plan.sequence_chunks',))
    stages, share = list(values.plan('stages')), layers // (ranks * chunks)
    more = [one - share for one in stages]
    if any(more):
        rows = [more[start : start + ranks] for start in range(0, len(more), ranks)]
        yield Said(f'{_M}.offset', rows if chunks > 1 else more, ('plan.stages',))


def _blocks(values: Values) -> int:
    return int(values.model('layers') + values.model('mtp_layers'))


def _sharding(values: Values) -> Iterator[Said]:
    """Optimizer parallelism, which MindFormers has at level 1."""
    yield Said('parallel.enable_parallel_optimizer', values.sharded > 0, ('plan.hsdp', 'plan.shard'))
    if values.sharded:
        threshold = bytes_of(values.plan('shard_threshold')) / 1024
        yield Said(f'{_SHARDS}.parallel_optimizer_threshold', plain(threshold), ('plan.shard_threshold',))
        is_sharded = values.plan('accumulate') == 'sharded'
        yield Said(f'{_SHARDS}.gradient_accumulation_shard', is_sharded, ('plan.accumulate',))


def _recompute(values: Values) -> Iterator[Said]:
    """Full layers, the norms and activation of all, or a number of each for each stage."""
    wanted, keys = values.plan('recompute'), ('plan.recompute',)
    if wanted not in ('none', (), []):
        communicates = values.plan('recompute_communication')
        yield Said('recompute_config.mp_comm_recompute', communicates, ('plan.recompute_communication',))
    if values.plan('recompute_inputs') == 'sharded':
        yield Said('recompute_config.recompute_slice_activation', True, ('plan.recompute_inputs',))
    patterns = [] if isinstance(wanted, str) else list(wanted)
    full, some = 'recompute_config.recompute', 'recompute_config.select_recompute'
    of_layers = [one.split('.', 1) for one in patterns if one.startswith('layer') and '*' not in one.split('.')[0]]
    if not of_layers:
        parts = {one.rpartition('.')[2].rstrip('*') for one in patterns}
        cheap = bool(patterns) and any(one.startswith('norm') for one in parts)
        yield Said(full, wanted == 'full', keys)
        yield Said(some, cheap, keys)
        return
    stages = list(values.plan('stages'))
    count = values.plan('pipeline') * (values.plan('chunks') or 1)
    stages = stages or [_blocks(values) // count] * count
    whole = {int(layer.removeprefix('layer')) for layer, rest in of_layers if rest == '*'}
    parts = {int(layer.removeprefix('layer')) for layer, rest in of_layers if rest != '*'}
    spans = [{*range(end - length, end)} for end, length in zip(accumulate(stages), stages, strict=True)]
    counts, selected = ([len(layers & span) for span in spans] for layers in (whole, parts))
    # The first layers count those that are recomputed in full.
    selected = [one and one + more for one, more in zip(selected, counts, strict=True)]
    yield Said(full, counts if any(counts) else False, keys)
    if any(selected) and {rest for _, rest in of_layers if rest != '*'} == {values.model('activation', '')}:
        # The activation alone: what MindFormers multiplies, and the function of its gate.
        yield Said(some, {r'feed_forward\.mul': selected, r'feed_forward\.w1\.activation\.silu': [*selected]}, keys)
    else:
        yield Said(some, selected if any(selected) else False, keys)


def _update(values: Values) -> Iterator[Said]:
    """Optimizer, clipping, the scale of the loss, and overlap passes."""
    adamw = 'workload.optimizer.adamw'
    yield Said('optimizer.type', 'AdamW', ('workload.optimizer',))
    betas = [values.every.get(f'{adamw}.{one}') for one in ('beta1', 'beta2')]
    if None not in betas:
        yield Said('optimizer.betas', betas, (f'{adamw}.beta1', f'{adamw}.beta2'))
    clip = values.work('clip_norm')
    yield Said('runner_wrapper.use_clip_grad', clip > 0, ('workload.clip_norm',))
    if clip:
        yield Said('runner_wrapper.max_grad_norm', plain(clip), ('workload.clip_norm',))
    if values.work('precision', '') == 'fp16':
        yield Said('runner_wrapper.scale_sense', plain(values.work('loss_scale', 1)), ('workload.loss_scale',))
    if passes_of(values):
        yield Said('context.ascend_config.parallel_speed_up_json_path', f'./{SPEED_UP}', ('plan.overlap',))


def passes_of(values: Values) -> list[str]:
    """The overlap passes that are on."""
    overlap = values.plan('overlap')
    return [] if isinstance(overlap, str) else list(overlap)


def speed_up(_: Iterable[Said], values: Values) -> Mapping[str, str]:
    """The JSON of overlap passes, where any is on."""
    passes = passes_of(values)
    return {SPEED_UP: json.dumps(dict.fromkeys(passes, True), indent=2) + '\n'} if passes else {}
