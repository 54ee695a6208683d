"""DeepSpeed's JSON, whose model is given beside, and the flags that Megatron-DeepSpeed has beside Megatron-LM's."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from simpar.importing import megatron, mixtures
from simpar.importing.findings import Entry, Finding, Guess, Mistake, Unmapped
from simpar.importing.settings import Setting, Settings, Source, real, table_of

_A: Final = 'workload.optimizer'
_Z: Final = 'zero_optimization'
FILE: Final = 'deepspeed_config.deepspeed_config_file'
_DEGREES: Final = ('tensor_parallel.autotp_size', 'sequence_parallel_size', 'pipeline.stages')
_BATCH: Final = ('train_batch_size', 'train_micro_batch_size_per_gpu', 'gradient_accumulation_steps')


def _degrees(ds: Settings) -> tuple[int, int, int]:
    """Tensor, context and pipeline ranks; ``auto``, which the program fills in, is one."""
    tensor, context, pipe = (max(1, ds.number(name)) for name in _DEGREES)
    return tensor, context, pipe


def _shape(ds: Settings) -> tuple[int, int, int, int]:
    """Batch, samples of a micro-batch, micro-batches, and data ranks: each follows from the others."""
    tensor, context, pipe = _degrees(ds)
    inner = tensor * context * pipe
    full, small, steps = map(ds.number, _BATCH)
    devices = ds.number('devices')
    data = max(1, devices // inner) if devices else max(1, full // (small * steps)) if full and small and steps else 0
    data = data or max(1, 8 // inner)
    if full and not small:
        steps = steps or 1
        small = max(1, full // (data * steps))
    small = small or 1
    steps = steps or (max(1, full // (small * data)) if full else 1)
    return small * steps * data, small, steps, data


def batch(ds: Settings) -> Iterator[Finding]:
    """Devices, batch and micro-batches."""
    full, small, steps, data = _shape(ds)
    degrees = _degrees(ds)
    tensor, context, pipe = degrees
    yield Entry('ranks', data * tensor * context * pipe, ds.given('devices'))
    if (rest := ds.number('devices') % (tensor * context * pipe)) > 0:
        yield Mistake('devices', f'{rest} more than groups of {tensor * context * pipe} ranks', 'give a multiple of it')
    if not ds.number('devices'):
        yield Mistake('devices', 'a DeepSpeed file does not say how many', 'give it, e.g. --set devices=16')
    if not all(map(ds.number, _BATCH)):
        yield Guess(f'a batch of {full}: {small} samples a device × {steps} micro-batches × {data} data ranks')
    if _BATCH[0] in ds and ds.number(_BATCH[0]) not in (0, full):
        # deepspeedai/DeepSpeed deepspeed/runtime/config.py (_batch_assertion), and transformers likewise.
        what = f'{small} samples × {steps} micro-batches × {data} data ranks are {full} (got {ds.number(_BATCH[0])})'
        yield Mistake(_BATCH[0], what, f'--set {_BATCH[0]}={full}, or --set devices=N')
    yield Entry('workload.batch', full, ds.given(_BATCH[0], _BATCH[1]))
    yield Entry('plan.micro_batches', steps, ds.given(_BATCH[2], _BATCH[1]))
    for name, degree in zip(_DEGREES, degrees, strict=True):
        if degree > 1:
            yield from ds.said(name)
    if context > 1:
        yield Entry('plan.context_kind', 'all_to_all', ('sequence_parallel_size',))


def precision(ds: Settings) -> Iterator[Finding]:
    """16 bits with master weights, or 32; ``auto`` is bf16."""
    by = ds.given('bf16.enabled', 'fp16.enabled')
    kind = 'bf16' if ds.on('bf16.enabled') else 'fp16' if ds.on('fp16.enabled') else 'fp32'
    if {str(ds.named[name].value).lower() for name in by} == {'auto'}:
        yield Guess(f'precision is {kind} where the file says auto')
    yield Entry('workload.precision', kind, by)
    if kind != 'fp32':
        yield from _sums(ds, kind)
    if kind == 'fp16':
        scale = ds.real('fp16.loss_scale')
        yield Entry('workload.loss_scale', scale or 65536.0, ds.given('fp16.loss_scale'), '' if scale else 'dynamic')
    else:
        yield from ds.left('fp16 is off', 'fp16.loss_scale')
    clip, by = ds.real('gradient_clipping'), ds.given('gradient_clipping')
    if ds.text('gradient_clipping') == 'auto':
        yield Entry('workload.clip_norm', 1.0, by, 'auto')
    elif not by and ds.text('distributed_type').upper() == 'DEEPSPEED' and not ds.on(FILE):
        # huggingface/accelerate 16cb6eb8, accelerator.py: config_kwargs of _prepare_deepspeed.
        yield Entry('workload.clip_norm', 1.0, (), 'as Accelerate fills it in')
    else:
        if not by and not ds.text('distributed_type') and 'finetuning_type' not in ds:
            what = 'norms are not clipped, as in DeepSpeed before 442166559 of June 2026'
            yield Guess(f'{what}; since then they are at 1.0: --set gradient_clipping=1.0')
        yield Entry('workload.clip_norm', max(0, clip), by)
    yield from optimizer(ds, master=kind != 'fp32')


def _sums(ds: Settings, kind: str) -> Iterator[Finding]:
    """The precision that gradients are added up in, and that of their messages, each of which is ``kind`` unless told.

    deepspeedai/DeepSpeed edaa72212, deepspeed/runtime/engine.py, lines 1405 and 1485.
    """
    names = ('data_types.grad_accum_dtype', 'communication_data_type')
    by, (added, sent) = ds.given(*names), ((ds.choice(name) or kind) for name in names)
    if by:
        yield Entry('workload.gradients', added if by[0] == names[0] else sent, by)
    if added != sent:
        yield Unmapped(by[0], f'gradients are added up in {added} and sent in {sent}: one of both is written')


def optimizer(ds: Settings, *, master: bool) -> Iterator[Finding]:
    """Adam with decay apart, unless told."""
    kind, kinds = ds.text('optimizer.type'), ds.table.rows['optimizer.type'].choices
    name = kinds.get(kind.lower().replace('_', ''))
    if 'optimizer.type' not in ds:
        yield Guess('the optimizer is adamw, as the file has none')
    elif name is None:
        yield Unmapped('optimizer.type', f'{kind}; adamw is written')
    name = name or 'adamw'
    own = {'lr': 'learning_rate', 'weight_decay': 'weight_decay'}
    own |= {'eps': 'epsilon'} if name == 'adamw' else {'momentum': 'momentum'}
    for flag, key in own.items():
        at = f'optimizer.params.{flag}'
        if at in ds and ds.text(at) != 'auto':
            yield Entry(f'{_A}.{name}.{key}', ds.real(at), (at,))
    betas = ds.named['optimizer.params.betas'].value if 'optimizer.params.betas' in ds else None
    if name == 'adamw' and isinstance(betas, list) and len(betas) == 2:
        for key, value in zip(('beta1', 'beta2'), betas, strict=True):
            number = 0.9
            with suppress(ValueError):
                number = real(value)
            yield Entry(f'{_A}.adamw.{key}', number, ('optimizer.params.betas',))
    yield Entry(f'{_A}.{name}.master_weights', master, ds.given('optimizer.type'))


def sharding(ds: Settings) -> Iterator[Finding]:
    """ZeRO, and the messages that it sends."""
    stage, overlaps = ds.number(f'{_Z}.stage'), ds.given(f'{_Z}.overlap_comm')
    if not 0 <= stage <= 3:
        yield Mistake(f'{_Z}.stage', f'no stage of ZeRO (got {stage})', 'write 0 to 3')
        return
    if stage:
        yield Entry('plan.zero', stage, (f'{_Z}.stage',))
    overlap = ds.on(f'{_Z}.overlap_comm') if overlaps else stage == 3
    if stage < 3:
        yield Entry('plan.reduce_gradients', 'overlapped' if overlap else 'end', overlaps)
    elif overlaps:
        yield Entry('plan.prefetch', int(overlap), overlaps)
    # Numbers, not bytes; DeepSpeed has these where the file is silent, and what is auto goes by the width.
    bucket, name = _sized(ds, f'{_Z}.reduce_bucket_size'), f'{_Z}.reduce_bucket_size'
    size = 4 if not (ds.on('bf16.enabled') or ds.on('fp16.enabled')) else 2
    if stage in (1, 2) and bucket >= 1:
        yield Entry('plan.fusion', f'{bucket * size / 1e6:g} MB', ds.given(name), 'messages of so many numbers')
    elif name in ds and stage:
        yield Unmapped(name, 'messages are those of a layer')
    name = f'{_Z}.stage3_param_persistence_threshold'
    if stage == 3 and (threshold := _sized(ds, name)) >= 1:
        yield Entry('plan.shard_threshold', f'{threshold * size / 1e3:g} KB', ds.given(name))
    elif name in ds and stage == 3:
        yield Unmapped(name, 'auto')
    else:
        yield from ds.left(f'with stage {stage}', name)
    yield from ds.said(f'{_Z}.mics_shard_size')
    yield from _second(ds, stage)


def _second(ds: Settings, stage: int) -> Iterator[Finding]:
    """hpZ: neighbours among all ranks gather weights from the second time on.

    deepspeedai/DeepSpeed edaa7221: deepspeed/utils/groups.py, ``_create_zero_param_parallel_group``.
    """
    name, (tensor, context, pipe) = f'{_Z}.zero_hpz_partition_size', _degrees(ds)
    if stage < 3 or ds.number(name) < 2:
        yield from ds.left(f'with stage {stage}' if stage < 3 else 'one rank', name)
    elif tensor * pipe > 1:
        yield Unmapped(name, 'groups of ranks that hold unlike weights')
    else:
        yield Entry('plan.second_shards', min(ds.number(name), _shape(ds)[3] * context), (name,))


def _sized(ds: Settings, name: str) -> float:
    """A number of elements; ``auto`` as huggingface/transformers 02348331be, integrations/deepspeed.py, fills it in."""
    width = ds.number('model-hidden')
    if ds.text(name) == 'auto' and width:
        return width * width if name.endswith('bucket_size') else 10 * width
    return ds.real(name)


def model(ds: Settings) -> Iterator[Finding]:
    """The model is in no DeepSpeed file."""
    if 'model-config' not in ds:
        yield Mistake('model', 'a DeepSpeed file does not say the model', 'give it: --model config.json')
        return
    sequence = ds.number('sequence')
    length = sequence or min(ds.number('model-longest') or 2048, 2048)
    yield Entry('workload.sequence', length, ds.given('sequence'))
    if not sequence:
        yield Guess(f'samples of {length} tokens: --set sequence=N says another length')


def checkpoints(_: Settings) -> Iterator[Finding]:
    """The program switches checkpoints of activations on, or not."""
    yield Guess('nothing is recomputed: --set plan.recompute=full where the program switches checkpoints on')


DEEPSPEED: Final = Source(
    'DeepSpeed', table_of('deepspeed'), rules=(model, batch, precision, sharding, checkpoints), framework='DeepSpeed'
)

# Megatron-DeepSpeed: deepspeedai/Megatron-DeepSpeed megatron/arguments.py


def deepspeed_model(flags: Settings) -> Iterator[Finding]:
    """Heads and experts in words of its own."""
    yield from flags.said('num-key-value-heads', 'embed-layernorm')
    if flags.text('attention-head-type') == 'multiquery':
        yield Entry('workload.transformer.kv_heads', 1, ('attention-head-type',))
    has_experts = mixtures.number_of_experts(flags) > 0
    yield from flags.said_where(has_experts, 'without num-experts', 'expert-interval', silent=True)


def deepspeed_order(flags: Settings) -> Iterator[Finding]:
    """Zero Bubble, where there is a pipeline."""
    is_pipeline = flags.number('pipeline-model-parallel-size') > 1
    yield from flags.said_where(is_pipeline, 'one pipeline rank', 'enable-zbh1-pipeline')


def deepspeed_sharding(flags: Settings) -> Iterator[Finding]:
    """ZeRO, by a flag or by the JSON."""
    stage, file = flags.number('zero-stage'), flags.given('deepspeed-config')
    if stage > 0:
        yield Entry('plan.zero', stage, ('zero-stage', *file))
    elif flags.on('bf16') and flags.given('deepspeed', *file) and not flags.on('no-pipeline-parallel'):
        # deepspeedai/DeepSpeed deepspeed/runtime/engine.py, line 2014, and bf16_optimizer.py: a pipeline of one stage
        # is one, too.
        yield Entry('plan.zero', 1, flags.given('bf16', 'zero-stage', *file), 'BF16_Optimizer shards states')
    elif file and 'zero-stage' not in flags:
        text = flags.named['deepspeed-config'].shown[:80]
        yield Guess(f'no ZeRO, for {text} is not here; --set zero-stage=N says its stage')
    if stage < 3 and flags.on('overlap-comm'):
        yield Entry('plan.reduce_gradients', 'overlapped', ('overlap-comm',))
    elif stage < 3:
        yield Entry('plan.reduce_gradients', 'end', (), 'overlap_comm is off in DeepSpeed')


_OWN: Final = (deepspeed_order, deepspeed_sharding)
MEGATRON_DEEPSPEED: Final = Source(
    'Megatron-DeepSpeed',
    table_of('megatron_deepspeed').over(megatron.MEGATRON.table),
    rules=(*megatron.OF_MODEL, deepspeed_model, *megatron.OF_PLAN, *_OWN, megatron.recompute),
    framework='Megatron-DeepSpeed',
)


def neox_model(flags: Settings) -> Iterator[Finding]:
    """What GPT-NeoX says in words of its own."""
    yield from flags.said('activation', 'sliding-window-width')
    if flags.text('activation') in ('swiglu', 'geglu'):
        # EleutherAI/gpt-neox ea7aefd8f8e1, megatron/model/transformer.py, lines 117 to 143: gate and up have two thirds
        # of the width together, each up to a multiple.
        full = flags.number('ffn-hidden-size') or 4 * flags.number('hidden-size')
        multiple = max(1, flags.number('mlp-multiple-of'))
        width = -(-(int(full * 2 / 3) // 2) // multiple) * multiple
        by = flags.given('ffn-hidden-size', 'mlp-multiple-of', 'activation')
        yield Entry('workload.transformer.ffn', width, by, 'a third of it, with a gate')
    else:
        yield from flags.left('without a gate', 'mlp-multiple-of')
    without = {'no-attention-bias': ['qkv', 'proj'], 'no-mlp-bias': ['ffn']}
    if by := flags.given(*without):
        biases = [one for name, parts in without.items() if name not in by for one in parts]
        yield Entry('workload.transformer.bias', biases, by)
    if flags.on('gpt-j-residual'):
        yield Entry('workload.transformer.parallel', True, ('gpt-j-residual',))
        # EleutherAI/gpt-neox ea7aefd8f8e1, megatron/model/transformer.py: two norms of one input, unless they are tied.
        if not flags.on('gpt-j-tied'):
            yield Entry('workload.transformer.parallel_norms', True, flags.given('gpt-j-tied'))
    by = tuple(name for name in flags.named if name.startswith('attention-config'))
    is_flash = any('flash' in flags.named[name].shown for name in by)
    yield Entry('workload.transformer.attention', 'flash' if is_flash else 'unfused', by)
    if any(re.search('sparse|local|mamba|rwkv|bigbird', flags.named[name].shown) for name in by):
        yield Mistake(by[0], f'not modelled: attention of another kind ({flags.named[by[0]].shown[:40]})', '')


GPT_NEOX: Final = Source(
    'GPT-NeoX',
    table_of('gpt_neox').over(MEGATRON_DEEPSPEED.table),
    rules=(*megatron.OF_MODEL, deepspeed_model, neox_model, *megatron.OF_PLAN, *_OWN, megatron.recompute),
    framework='Megatron-DeepSpeed',
)
MEGATRON_DEEPSPEED_HINTS: Final = re.compile(r'--(deepspeed|zero.stage|ds.sequence.parallel|no.pipeline.parallel)')
"""Flags that Megatron-LM does not have."""


def in_flags(config: Sequence[Setting]) -> list[Setting]:
    """What a JSON says that Megatron-DeepSpeed's flags say, too, in their words.

    deepspeedai/Megatron-DeepSpeed 4efb479dd8, megatron/training.py: DeepSpeed takes all of it from the JSON, the model
    is built by the flags, and nothing holds them together.
    """
    flags = (GPT_NEOX.table.renamed(replace(one, name=one.name.replace('_', '-'), written=one.name)) for one in config)
    both = ('zero-stage', 'global-batch-size', 'micro-batch-size', 'fp16', 'bf16', 'overlap-comm')
    return [
        replace(one, written=one.written.replace('-', '_'))
        for one in flags
        if one.name in both or one.name.startswith('zero-optimization.offload')
    ]
