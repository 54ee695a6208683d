"""MindFormers' YAML: the model, its parallel configuration, recomputation and optimizer."""

import re
from collections.abc import Iterator
from typing import Any, Final

from simpar.importing.findings import Entry, Finding, Guess, Mistake, Unmapped
from simpar.importing.settings import DEVICE_MEMORY, SPEED_UP, Settings, Source, first_layers, table_of

_T: Final = 'workload.transformer'
_M: Final = 'model.model_config'
_P: Final = 'parallel_config'
_A: Final = 'workload.optimizer.adamw'
_OFFSET: Final = f'{_M}.offset'


def _of_model(*names: str) -> tuple[str, ...]:
    return tuple(f'{_M}.{name}' for name in names)


def _number(config: Settings, name: str) -> int:
    return config.number(f'{_M}.{name}')


def model(config: Settings) -> Iterator[Finding]:
    """The sizes of a Llama, or of a GPT-2."""
    needed = ('num_layers', 'hidden_size', 'num_heads', 'vocab_size', 'seq_length')
    missing = [name for name in needed if not _number(config, name)]
    if missing and 'model-config' not in config:
        for name in missing:
            yield Mistake(f'{_M}.{name}', 'missing', f'give it: --set {_M}.{name}=N, or --model config.json')
        return
    sizes = ('num_layers', 'hidden_size', 'num_heads', 'n_kv_heads', 'vocab_size', 'seq_length')
    latent = ('q_lora_rank', 'kv_lora_rank', 'qk_nope_head_dim', 'qk_rope_head_dim', 'v_head_dim')
    head = () if _number(config, 'kv_lora_rank') else ('head_dim',)
    yield from config.said(*_of_model(*sizes, *latent, *head))
    if not _is_gpt(config):
        yield from llama(config)
    elif _number(config, 'expand_ratio'):
        width = _number(config, 'expand_ratio') * _number(config, 'hidden_size')
        yield Entry(f'{_T}.ffn', width, (f'{_M}.expand_ratio',))
    yield from parts(config)


def _is_gpt(config: Settings) -> bool:
    return 'gpt' in f'{config.text(f"{_M}.type")} {config.text("model.arch.type")}'.lower()


def llama(config: Settings) -> Iterator[Finding]:
    """What all models but GPT-2 have."""
    by = config.given(f'{_M}.type')
    yield Entry(f'{_T}.norm', 'rms_norm', by)
    yield Entry(f'{_T}.position', 'rotary', by)
    bias = ['qkv'] if config.on(f'{_M}.qkv_has_bias') else []
    yield Entry(f'{_T}.bias', bias, config.given(f'{_M}.qkv_has_bias'))
    yield from config.said(f'{_M}.hidden_act', silent=True)
    yield from config.said(f'{_M}.theta')
    by = config.given(*_of_model('intermediate_size', 'multiple_of', 'ffn_dim_multiplier'))
    if _number(config, 'intermediate_size'):
        yield Entry(f'{_T}.ffn', _number(config, 'intermediate_size'), by[:1])
        yield from config.left('intermediate_size says it', *by[1:])
        return
    multiple, share = max(1, _number(config, 'multiple_of')), config.real(f'{_M}.ffn_dim_multiplier')
    # mindspore-lab/mindformers research/llama3_1/llama_layer.py has this hundredth.
    width = int(((share + 0.01) if share else 1.0) * 4 * _number(config, 'hidden_size'))
    yield Entry(f'{_T}.ffn', -(-int(2 * width / 3) // multiple) * multiple, by)


def parts(config: Settings) -> Iterator[Finding]:
    """Head, norms, kernels and numbers of any model."""
    yield from config.said(f'{_M}.tie_word_embeddings', silent=True)
    if not _number(config, 'kv_lora_rank'):
        yield from config.said(f'{_M}.qk_layernorm')
    flash = config.on(f'{_M}.use_flash_attention') or f'{_M}.use_flash_attention' not in config
    yield Entry(f'{_T}.attention', 'flash' if flash else 'unfused', config.given(f'{_M}.use_flash_attention'))
    yield from config.said(*_of_model('rms_norm_eps', 'initializer_range'))
    rates = config.given(*_of_model('hidden_dropout', 'attention_dropout'))
    if rates:
        yield Entry(f'{_T}.dropout', max(config.real(name) for name in rates), rates)
    yield from config.said(f'{_M}.compute_dtype', silent=True)
    kind = config.choice(f'{_M}.compute_dtype')
    yield Entry(f'{_A}.master_weights', kind != 'fp32', config.given(f'{_M}.param_init_type'))
    by = config.given('runner_wrapper.scale_sense', 'runner_wrapper.scale_sense.loss_scale_value')
    if kind == 'fp16':
        yield Entry('workload.loss_scale', max(config.real(by[0] if by else 'runner_wrapper.scale_sense'), 2.0), by)
    else:
        yield from config.left(f'with {kind}', *by)
    yield from experts(config)


def experts(config: Settings) -> Iterator[Finding]:
    """A mixture of experts, in moe_config."""
    if config.number('moe_config.expert_num') <= 1:
        yield from config.left('one expert', *(name for name in config.named if name.startswith('moe_config.')))
        return
    yield from config.said('moe_config.expert_num')
    yield from config.said('moe_config.num_experts_chosen', silent=True)
    names = ('moe_intermediate_size', 'capacity_factor', 'aux_loss_factor', 'first_k_dense_replace')
    yield from config.said(*(f'moe_config.{name}' for name in names))
    way = 'moe_config.routing_policy'
    if way in config and config.text(way) != 'TopkRouterV2':
        yield Unmapped(way, f'{config.text(way)}; tokens are sorted, as by TopkRouterV2')
    width = config.number('moe_config.moe_intermediate_size') or _number(config, 'intermediate_size')
    shared = config.number('moe_config.shared_expert_num') * width
    if shared:
        yield Entry(f'{_T}.experts.shared', shared, ('moe_config.shared_expert_num',))


def launch(config: Settings, ranks: int) -> Iterator[Finding]:
    """What MindFormers and MindSpore refuse, or run in another way than the degrees say."""
    pipe, small = _count(config, f'{_P}.pipeline_stage'), f'{_P}.micro_batch_num'
    mode, switch = 'parallel.parallel_mode', 'use_parallel'
    if ranks > 1 and switch in config and not config.on(switch):
        yield Mistake(switch, f'one device is taken, where the degrees come to {ranks}', f'--set {switch}=true')
    is_manual = config.text(mode).lower() in ('', '1', 'semi_auto_parallel')
    if ranks > _count(config, f'{_P}.data_parallel') and not is_manual:
        what = f'in this mode no degree counts but that of data (got {config.text(mode)[:40]!r})'
        yield Mistake(mode, what, f'--set {mode}=1 takes all of them')
    for name in config.given('device_num', 'parallel.device_num'):
        if config.number(name) not in (0, ranks):
            yield Mistake(name, f'{config.number(name)}, and the degrees come to {ranks}', f'--set {name}={ranks}')
    if pipe > _count(config, small):
        yield Mistake(small, f'less than the {pipe} stages', f'--set {small}={pipe}')


def further(config: Settings) -> Iterator[Finding]:
    """Modules that predict further tokens, each a layer of the last one's kind."""
    names = _of_model('mtp_depth', 'mtp_loss_factor')
    yield from config.said(names[0])
    yield from config.said(names[1], silent=_number(config, 'mtp_depth') > 0)


def _blocks(config: Settings) -> int:
    """Layers, and modules that are laid on stages as layers are."""
    # mindspore-lab/mindformers fd4deebc1606, research/deepseek3/deepseek2_model.py, line 1261.
    return _number(config, 'num_layers') + _number(config, 'mtp_depth')


def _count(config: Settings, name: str) -> int:
    """A number of ranks or parts, which is at least 1."""
    return max(1, config.number(name))


def parallel(config: Settings) -> Iterator[Finding]:
    """Degrees, batch and copies."""
    names = tuple(f'{_P}.{name}' for name in ('data_parallel', 'model_parallel', 'pipeline_stage', 'context_parallel'))
    data, tensor, pipe, context = (_count(config, name) for name in names)
    ranks = data * tensor * pipe * context
    yield Entry('ranks', ranks, config.given(*names))
    yield from launch(config, ranks)
    for name, degree in zip(names[:3], (data, tensor, pipe), strict=True):
        yield Entry(config.table.rows[name].key, degree, config.given(name))
    yield from config.said(f'{_P}.context_parallel')
    yield from config.said(f'{_P}.context_parallel_algo', silent=True)
    yield from config.said(f'{_M}.use_ring_attention')
    if tensor > 1:
        yield from config.said(f'{_P}.use_seq_parallel')
    if _count(config, f'{_P}.expert_parallel') > 1 and config.number('moe_config.expert_num') > 1:
        yield Entry('plan.expert', _count(config, f'{_P}.expert_parallel'), (f'{_P}.expert_parallel',))
    else:
        yield from config.left('one expert rank, or no experts', f'{_P}.expert_parallel')
    yield from messages(config, pipe)
    each, by = _count(config, 'runner_config.batch_size'), config.given('runner_config.batch_size')
    copies, parts = _count(config, 'micro_batch_interleave_num'), f'{_M}.fine_grain_interleave'
    yield Entry('plan.copies', copies, config.given('micro_batch_interleave_num'))
    # MindFormers takes parts with several tensor ranks alone (mindformers/models/utils.py, line 86).
    if (count := config.number(parts)) > 1 and tensor > 1 and each % count == 0:
        yield Entry('plan.copies', copies * count, (parts, *config.given('micro_batch_interleave_num')))
        copies, each = copies * count, each // count
    elif count > 1 and tensor > 1:
        # mindspore-lab/mindformers fd4deebc1606, mindformers/models/llama/llama_interleave.py, line 656: parts of the
        # rows of a sequence go through all but attention.
        yield Entry('plan.tiles', count, (parts,), 'parts of a sequence: products and their messages take turns')
    small = _count(config, f'{_P}.micro_batch_num') if pipe > 1 else 1
    steps = small * _count(config, 'runner_config.gradient_accumulation_steps')
    by = config.given(f'{_P}.micro_batch_num', 'runner_config.gradient_accumulation_steps')
    yield Entry('plan.micro_batches', steps, by)
    by = config.given('runner_config.batch_size')
    yield Entry('workload.batch', each * data * steps * copies, by)
    if not by:
        yield Guess('one sample of each data rank in a micro-batch: --set runner_config.batch_size=N says another')
    yield from pipeline(config, pipe)


def messages(config: Settings, pipe: int) -> Iterator[Finding]:
    """Gradients and weights of some layers in one message, or with a pipeline of each stage.

    mindspore-lab/mindformers fd4deebc1606, mindformers/models/utils.py, line 422, and models/llama/llama.py, line 275.
    """
    name, layers = f'{_P}.gradient_aggregation_group', _number(config, 'num_layers')
    count = config.number(name)
    if pipe > 1:
        yield Entry('plan.fusion', 'stage', config.given(name), 'one number marks all of a stage')
    elif count > 0 and layers:
        yield Entry('plan.fusion', 'ids', config.given(name))
        is_tied = config.on(f'{_M}.tie_word_embeddings')
        yield Entry(
            'plan.fusion_ids', groups_of(layers, count, has_positions=_is_gpt(config), is_tied=is_tied), (name,)
        )


def groups_of(layers: int, count: int, *, has_positions: bool, is_tied: bool) -> list[int]:
    """The number that MindFormers marks each layer with: embedding and positions, the layers, norm and head.

    Arguments: ``count``, the gradient_aggregation_group.
    """
    share = max((layers + 1) // count, 1)
    own = [1 + layer // share for layer in range(layers)]
    return [count] * (1 + has_positions) + own + [count] * (1 + (not is_tied))


def pipeline(config: Settings, ranks: int) -> Iterator[Finding]:
    """Order and stages."""
    names = (_OFFSET, f'{_M}.pp_interleave_num', 'parallel.pipeline_config.pipeline_interleave',
             'parallel.pipeline_config.pipeline_scheduler', f'{_P}.seq_split_num', f'{_M}.seq_split_num')  # fmt: skip
    if ranks < 2:
        return
    chunks = _count(config, names[1])
    kind = config.text(names[3]).lower()
    is_known = kind in ('1f1b', 'gpipe', 'seqpipe', 'seqvpp', 'seqsmartvpp', 'zero_bubble_v')
    if not is_known:
        yield Unmapped(names[3], f'{kind}; 1f1b is written')
    yield Entry('plan.order', f'mindspore-2.10/{kind if is_known else "1f1b"}', config.given(names[3]))
    if chunks > 1:
        yield Entry('plan.chunks', chunks, config.given(names[1], names[2]))
    slices = config.given(*names[4:])
    count = max([1, *(config.number(name) for name in slices)])
    if count > 1 and kind.startswith('seq') and is_known:
        yield Entry('plan.sequence_chunks', count, slices)
    else:
        yield from config.left(f'{kind} takes whole samples' if count > 1 else 'one slice', *slices)
    yield from offset(config, ranks * chunks)


def offset(config: Settings, stages: int) -> Iterator[Finding]:
    """Layers of each stage, by how many more than the others it has."""
    by = tuple(sorted(name for name in config.named if name == _OFFSET or name.startswith(f'{_OFFSET}.')))
    more = _offsets(config)
    if more in ([0], []) or not all(isinstance(one, int) for one in more):
        return
    counts, layers = _stages(config, stages), _blocks(config)
    if counts is not None:
        yield Entry('plan.stages', counts, by)
        return
    yield from (Unmapped(one, f'with {layers} layers on {stages} stages') for one in by)


def _offsets(config: Settings) -> list[Any]:
    """How many layers more than the others each stage has, those of chunks behind one another."""
    names = [_OFFSET] if _OFFSET in config else sorted(one for one in config.named if one.startswith(f'{_OFFSET}.'))
    rows = [config.named[name].value for name in names]
    return [one for row in rows for one in (row if isinstance(row, list) else [row])]


def _stages(config: Settings, stages: int) -> list[int] | None:
    """Layers of each stage; None where they do not add up."""
    layers, more = _blocks(config), _offsets(config)
    if not all(isinstance(one, int) for one in more):
        return None
    counts = [layers // stages + one for one in ([0] * stages if more in ([0], []) else more)]
    return counts if len(counts) == stages and sum(counts) == layers and min(counts) >= 0 else None


def sharding(config: Settings) -> Iterator[Finding]:
    """Optimizer parallelism."""
    own = ('parallel_optimizer_threshold', 'gradient_accumulation_shard', 'optimizer_weight_shard_size')
    names = tuple(f'parallel.parallel_optimizer_config.{name}' for name in own)
    if not config.on('parallel.enable_parallel_optimizer'):
        return
    yield from config.said('parallel.enable_parallel_optimizer')
    if names[0] in config and config.number(names[0]) >= 0:
        yield Entry('plan.shard_threshold', f'{config.number(names[0])} KiB', (names[0],))
    if names[1] in config:
        yield Entry('plan.accumulate', 'sharded' if config.on(names[1]) else 'full', (names[1],))
    yield from config.said(names[2])


def recompute(config: Settings) -> Iterator[Finding]:
    """Full layers, or the cheap operators that MindFormers selects; a list has a number of layers for each stage."""
    full, some = 'recompute_config.recompute', 'recompute_config.select_recompute'
    by = tuple(name for name in config.named if re.fullmatch(r'recompute_config\.(select_)?recompute(\..+)?', name))
    of_full, parts = _layers(config, full), _selected(config, some)
    names = [full, *dict.fromkeys(name for name, _ in parts)]
    lists = [name for name in names if isinstance(_counts(config, name), list)]
    unfit = [name for name in lists if _layers(config, name) is None]
    if unfit:
        yield Unmapped(unfit[0], 'numbers of layers that do not fit the stages; none is recomputed for them')
    if config.on(full) and full not in lists:
        yield Entry('plan.recompute', 'full', (full,))
        yield from config.left('every layer is recomputed in full', *(name for name in by if name != full))
    elif lists:
        patterns = [f'layer{layer}.*' for layer in of_full or []]
        more = [(layer, one) for name, one in parts for layer in _layers(config, name) or [] if one]
        patterns += [f'layer{layer}.{one}' for layer, one in sorted(set(more)) if layer not in (of_full or [])]
        yield Entry('plan.recompute', patterns or 'none', by)
    elif chosen := list(dict.fromkeys(f'layer*.{one}' for name, one in parts if one and config.on(name))):
        yield Entry('plan.recompute', chosen, by, 'norms and activation' if len(chosen) > 1 else '')
    yield from recomputed_messages(config, full in lists or not config.on(full))


def recomputed_messages(config: Settings, is_selective: bool) -> Iterator[Finding]:
    """Whether messages run again, and what is kept of the inputs of layers.

    mindspore-lab/mindformers fd4deebc1606, mindformers/models/utils.py, lines 418 to 446: operators of messages are
    selected in layers that are not recomputed in full, and slices are kept where every layer is.
    """
    some = 'recompute_config.select_recompute'
    again, chosen, every = (
        f'recompute_config.{name}' for name in ('mp_comm_recompute', 'select_comm_recompute', 'recompute')
    )
    lists = [name for name in config.named if name.startswith(f'{chosen}.')]
    if config.on(chosen) and is_selective and not config.on(every):
        if _counts(config, chosen) == _counts(config, some):
            yield Entry('plan.recompute_communication', True, (chosen,))
        else:
            yield Unmapped(chosen, 'messages of other layers than those of select_recompute')
    elif not (lists and is_selective):
        yield from config.left('no operator is selected', chosen, *lists)
    if by := config.given(again):
        yield Entry('plan.recompute_communication', config.on(again), by)
    sliced = 'recompute_config.recompute_slice_activation'
    if not config.on(sliced) or is_selective:
        yield from config.left('inputs of layers are kept whole', sliced)
    elif _count(config, f'{_P}.model_parallel') < 2 or config.on(f'{_P}.use_seq_parallel'):
        yield from config.left('no two ranks hold the same inputs of layers', sliced)
    elif sliced in config:
        yield Entry('plan.recompute_inputs', 'sharded', (sliced,))
    gathers = 'recompute_config.parallel_optimizer_comm_recompute'
    if config.on('parallel.enable_parallel_optimizer') and config.on(gathers):
        yield Unmapped(gathers, 'weights that are gathered again')


def _selected(config: Settings, some: str) -> list[tuple[str, str]]:
    """Settings that select operators, and the pattern of each: norms, activation, or nothing where it costs nothing."""
    act = 'gelu' if _is_gpt(config) else config.choice(f'{_M}.hidden_act')
    named = [name for name in config.named if name.startswith(f'{some}.') and not name[-1].isdigit()]
    if not named:
        return [(some, 'norm*'), (some, act)]
    kinds = {'norm': 'norm*', 'silu': act, 'mul': act, 'reshape': ''}
    patterns = [
        (name, next((one for word, one in kinds.items() if word in name.rpartition('\\.')[2]), None)) for name in named
    ]
    return [(name, one) for name, one in patterns if one is not None]


def _counts(config: Settings, name: str) -> Any:
    """What a setting of recomputation is: a switch, or numbers of layers, those of chunks behind one another."""
    if name in config:
        return config.named[name].value
    rows = [config.named[one].value for one in sorted(config.named) if re.fullmatch(rf'{re.escape(name)}\.\d+', one)]
    return [count for row in rows for count in row] if rows and all(isinstance(row, list) for row in rows) else False


def _layers(config: Settings, name: str) -> list[int] | None:
    """The layers that a setting names: all, none, or the first of each stage; None where its list does not fit."""
    pipe, chunks = _count(config, f'{_P}.pipeline_stage'), _count(config, f'{_M}.pp_interleave_num')
    stages, counts = _stages(config, pipe * chunks), _counts(config, name)
    if not isinstance(counts, list):
        return list(range(_blocks(config))) if config.on(name) else []
    if stages is None or not all(isinstance(one, int) for one in counts):
        return None
    if len(counts) == pipe < len(stages):
        counts = _spread(stages, counts)
    return first_layers(stages, counts) if len(counts) == len(stages) else None


def _spread(stages: list[int], counts: list[int]) -> list[int]:
    """Layers of each rank's chunks, one of each chunk in turn (utils.py, line 476). Arguments: ``counts`` of ranks."""
    layers = [0] * len(stages)
    for rank, count in enumerate(counts):
        own = range(rank, len(stages), len(counts))
        for _ in range(min(count, sum(stages[one] for one in own))):
            place = min((one for one in own if layers[one] < stages[one]), key=lambda one: (layers[one], one))
            layers[place] += 1
    return layers


def passes(config: Settings) -> Iterator[Finding]:
    """Overlap passes, which MindSpore leaves off unless a file beside turns them on."""
    path = 'context.ascend_config.parallel_speed_up_json_path'
    named = [name for name in config.named if name.startswith(f'{SPEED_UP}.')]
    rows = [config.table.rows[name] for name in named if name in config.table.rows and config.on(name)]
    on = {row.setting: row.value.removeprefix('= ') for row in rows}
    by = (*on, *(config.given(path) if named else ()))
    yield Entry('plan.overlap', list(dict.fromkeys(on.values())), by, '' if on else 'off, as MindSpore has them')
    yield from config.left('switched off', *(name for name in named if not config.on(name)))
    if config.text(path) and not named:
        what = f'no overlap pass is on, for {config.text(path)[:80]} is not here; --set plan.overlap=[…] names them'
        yield Guess(what)
        yield Unmapped(path, 'its file is not here; no overlap pass is on')
    elif not named:
        yield from config.left('no file is named', path)


def memory(config: Settings) -> Iterator[Finding]:
    """What MindSpore may take of a device."""
    name = 'context.max_device_memory'
    if name not in config:
        return
    match = re.fullmatch(r'\s*(\d{1,6}(?:\.\d+)?)\s*GB?\s*', config.text(name), re.IGNORECASE)
    if match is None:
        yield Mistake(name, f'no number of GB (got {config.text(name)[:40]!r})', f'write e.g. --set {name}=58GB')
        return
    # MindSpore counts in GB of 2^30 bytes.
    rest = config.number(DEVICE_MEMORY) - float(match[1]) * 2**30
    if rest > 0:
        yield Entry('cluster.reserve', f'{rest / 1e9:.4g} GB', (name,), 'the rest of a device')
    else:
        yield from config.left('no less than the device has', name)


def optimizer(config: Settings) -> Iterator[Finding]:
    """AdamW and what clips its gradients."""
    kind = config.text('optimizer.type')
    if not re.search('adam', kind, re.IGNORECASE):
        yield Unmapped('optimizer.type', f'{kind}; adamw is written')
    else:
        master = config.text(f'{_M}.compute_dtype') != 'float32'
        yield Entry(f'{_A}.master_weights', master, config.given('optimizer.type'))
    betas = config.named['optimizer.betas'].value if 'optimizer.betas' in config else None
    if isinstance(betas, list) and len(betas) == 2 and all(isinstance(one, (int, float)) for one in betas):
        for key, value in zip(('beta1', 'beta2'), betas, strict=True):
            yield Entry(f'{_A}.{key}', value, ('optimizer.betas',))
    by = config.given('lr_schedule.learning_rate', 'optimizer.learning_rate')
    if by and config.real(by[0]) > 0:
        yield Entry(f'{_A}.learning_rate', config.real(by[0]), by)
    names = ('runner_wrapper.use_clip_grad', 'runner_wrapper.max_grad_norm')
    if config.on(names[0]):
        yield Entry('workload.clip_norm', config.real(names[1]), config.given(*names))
    else:
        yield Entry('workload.clip_norm', 0, config.given(names[0]))


MINDFORMERS: Final = Source(
    'MindFormers',
    table_of('mindformers'),
    rules=(model, further, parallel, passes, memory, sharding, recompute, optimizer),
    framework='MindFormers',
    profile='ascend910b-8',
)
