"""Accelerate's and LLaMA-Factory's YAML: what DeepSpeed or FSDP shard, beside a model that is given."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any, Final

from simpar import document, errors, profiles
from simpar.files import read_csv
from simpar.huggingface.expand import TRANSFORMER, expanded
from simpar.importing import deepspeed
from simpar.importing.findings import Entry, Finding, Guess, Mistake, Unmapped
from simpar.importing.settings import FOLDER, NOW, Setting, Settings, Source, fits, same, table_of

_FSDP: Final = ('fsdp_config.fsdp_reshard_after_forward', 'fsdp_config.fsdp_sharding_strategy')
_CHECKPOINTS: Final = 'fsdp_config.fsdp_activation_checkpointing'
_FILE: Final = deepspeed.FILE
_STAGE: Final = 'zero_optimization.stage'
_OF_FILE: Final = (
    'mixed_precision',
    *(f'deepspeed_config.{name}' for name in ('gradient_*', 'zero_stage', 'offload_*', 'zero3_save*')),
)
"""What Accelerate takes from the DeepSpeed file alone (huggingface/accelerate 16cb6eb8, utils/dataclasses.py)."""


def fsdp(config: Settings) -> Iterator[Finding]:
    """What FSDP or DeepSpeed shard, and what is made again."""
    kind, precision = config.text('distributed_type').upper(), config.text('mixed_precision')
    if precision not in ('', 'no', 'fp16', 'bf16'):
        yield Mistake('mixed_precision', f'not modelled (got {precision[:40]!r})', 'write bf16, fp16 or no')
    if kind == 'DEEPSPEED' and _STAGE not in config:
        if _FILE in config:
            named = config.text(_FILE)[:60]
            yield Mistake(_FILE, f'{named} is not here', f'give what it says: --set {_STAGE}=3')
        # huggingface/accelerate 16cb6eb8, utils/dataclasses.py: ACCELERATE_DEEPSPEED_ZERO_STAGE is 2 unless told.
        yield Entry('plan.zero', 2, ('distributed_type',), 'stage 2, as Accelerate has it')
    if kind == 'FSDP':
        by = config.given(*_FSDP)
        zero = config.choice(by[0]) if by else 3
        if len(by) > 1 and config.choice(by[1]) != zero:
            other = config.named[by[1]]
            yield Mistake(by[0], f'another than {by[1]}: {other.shown} ({other.where})', 'leave one of them')
        if zero is None:
            yield Mistake(by[0], f'no way of sharding (got {config.text(by[0])[:40]!r})', 'write FULL_SHARD or true')
            return
        if zero:
            yield Entry('plan.zero', zero, ('distributed_type', *by))
        if by and config.text(by[0]).upper() in ('HYBRID_SHARD', '4'):
            yield Entry('plan.shard_group', config.number('node-size'), by)
    elif kind not in ('MULTI_GPU', 'MULTI_NPU', 'DEEPSPEED', 'NO', ''):
        yield Mistake('distributed_type', f'{kind[:40]} is not read', 'write what it shards as keys of a plan')
    if kind == 'FSDP' and config.on(_CHECKPOINTS):
        yield Entry('plan.recompute', 'full', (_CHECKPOINTS,))
    else:
        yield from deepspeed.checkpoints(config)
    if kind != 'DEEPSPEED':
        # torch sums gradients while the backward runs, and gathers ahead.
        yield Entry('plan.reduce_gradients', 'overlapped', config.given('distributed_type'))
    if kind not in ('DEEPSPEED', 'FSDP') and (config.on('bf16.enabled') or config.on('fp16.enabled')):
        # huggingface/accelerate 16cb6eb8, accelerator.py, prepare_model: weights stay in fp32 under autocast.
        yield Entry('workload.gradients', 'fp32', config.given('bf16.enabled', 'fp16.enabled'))
    if kind == 'FSDP' and 'fsdp_config.fsdp_auto_wrap_policy' not in config:
        yield Guess('weights of each layer are gathered together: fsdp_auto_wrap_policy is not given')
    yield from config.left('of another distributed_type' if kind != 'FSDP' else 'off', *_FSDP, _CHECKPOINTS)


def compiled(config: Settings) -> Iterator[Finding]:
    """Kernels that a compiler fuses."""
    name = 'dynamo_config.dynamo_backend'
    if config.on(name) and config.text('distributed_type').upper() == 'FSDP':
        yield Entry('cluster.stack', profiles.stack_of('PyTorch FSDP, compile', '', NOW), (name,))
    elif config.on(name):
        yield Unmapped(name, 'kernels that a compiler fuses')


def agreed(source: Source, own: Sequence[Setting], beside: Sequence[Setting]) -> list[Setting]:
    """The settings of a configuration, over those of the DeepSpeed file that it names, which must say the same.

    ``auto`` of that file is what the configuration says, or its default. Others that differ are refused, as by
    huggingface/transformers 02348331be (integrations/deepspeed.py, HfTrainerDeepSpeedConfig.fill_match); Accelerate
    refuses each of them beside a file. Raises ``ScheduleError`` with the lines of both.
    """
    if source is ACCELERATE:
        return _beside_a_file(own, beside)
    return _filled_in(source, own, beside) if source is LLAMA_FACTORY else list(own)


def _beside_a_file(own: Sequence[Setting], beside: Sequence[Setting]) -> list[Setting]:
    """Accelerate's settings, none of which its DeepSpeed file has to say alone."""
    kind = next((str(one.value).upper() for one in own if one.name == 'distributed_type'), 'DEEPSPEED')
    if kind != 'DEEPSPEED':
        return [
            replace(one, name=f'idle.{one.name}', written=one.name) if one.name.startswith('deepspeed') else one
            for one in own
        ]
    wrong, files = [], [one for one in own if one.name == _FILE and one.value]
    for one in own if files else ():
        if any(fits(one.name, name) for name in _OF_FILE):
            what = f'{one.name}: Accelerate takes none beside {files[0].shown} ({files[0].where})'
            wrong.append(errors.Problem(one.where, what, 'write it in that file alone'))
    errors.refuse(wrong)
    return [*beside, *own]


def _filled_in(source: Source, own: Sequence[Setting], beside: Sequence[Setting]) -> list[Setting]:
    """LLaMA-Factory's settings, with what is ``auto`` in its DeepSpeed file filled in."""
    mine, usual = Settings(list(own), source.table).named, table_of('llama_factory').rows
    wrong, filled = [], []
    for one in Settings(list(beside), source.table).every:
        default = usual[one.name].default if one.name in usual else ''
        silent = Setting(one.name, default, f'{own[0].where.partition(":")[0]}, its default')
        other = mine.get(one.name, silent)
        if one.value == 'auto' and other.value != '':
            filled.append(replace(one, value=other.value))
            continue
        filled.append(one)
        if one.value not in ('auto', None) and other.value not in ('', None) and not same(one.value, other.value):
            what = f'{one.called}: {one.shown}, and {other.called} is {other.shown} ({other.where})'
            wrong.append(errors.Problem(one.where, what, 'write "auto" there, or the same in both'))
    errors.refuse(wrong)
    return [*filled, *own]


def factory(config: Settings) -> Iterator[Finding]:
    """The stage of the DeepSpeed file that is named, and checkpoints, which LLaMA-Factory has on."""
    if any(one.called.startswith('pure_bf16') for one in config.every):
        if 'deepspeed' in config:
            yield Unmapped('bf16.enabled', 'weights in bf16 alone, of which DeepSpeed keeps masters')
        else:
            yield Entry('workload.optimizer.adamw.master_weights', False, ('bf16.enabled',), 'weights in bf16 alone')
    if 'deepspeed' in config and 'zero_optimization.stage' not in config:
        named = config.text('deepspeed')
        stage = re.search(r'z(?:ero)?_?([0-3])', named.rpartition('/')[2])
        if stage is None:
            yield Mistake('deepspeed', f'{named[:60]} is not here', 'give it: --set zero_optimization.stage=3')
            return
        for word, what in (('offload', 'offloading to host memory'), ('autotp', 'tensor ranks')):
            if word in named.rpartition('/')[2]:
                yield Unmapped('deepspeed', f'{what}, as its name says; the file is not here')
        yield Entry('plan.zero', int(stage[1]), ('deepspeed',)) if stage[1] != '0' else Guess('no ZeRO, by its name')
        yield Guess(f'ZeRO {stage[1]}, as {named.rpartition("/")[2][:60]} is called, which is not here')
    if 'deepspeed' not in config:
        # torch sums gradients while the backward runs; hiyouga/LLaMA-Factory 01d87b82, model/adapter.py: what is
        # trained is kept in fp32, so that its gradients are, too.
        yield Entry('plan.reduce_gradients', 'overlapped', (), 'as torch has it')
        if config.on('bf16.enabled') or config.on('fp16.enabled'):
            is_pure = any(one.called.startswith('pure_bf16') for one in config.every)
            yield Entry('workload.gradients', 'bf16' if is_pure else 'fp32', config.given('bf16.enabled'))
    if not any(config.on(one) for one in ('packing', 'neat_packing')) and 'sequence' in config:
        yield Guess('each sample has cutoff_len tokens, its most: --set sequence=N says the mean of the data')
    name = 'gradient_accumulation_steps'
    if _STAGE in config and config.number(name) > 1 and sum(one.name == name for one in config.every) == 1:
        # huggingface/accelerate 16cb6eb8, utils/dataclasses.py: 1 where the file of DeepSpeed has none.
        yield Guess(
            f'the DeepSpeed file has no {name}, and takes 1 then: write "auto" there; {config.text(name)} written'
        )
    name = 'disable_gradient_checkpointing'
    if config.on(name):
        yield Entry('plan.recompute', 'none', (name,))
    else:
        yield Entry('plan.recompute', 'full', config.given(name), 'LLaMA-Factory switches checkpoints on')


_T: Final = 'workload.transformer'
_TARGET: Final = 'lora_target'
_PRODUCTS: Final = ('qkv', 'proj', 'fc1', 'fc2')


def adapters(config: Settings) -> Iterator[Finding]:
    """Adapters of a low rank, where these alone are trained (hiyouga/LLaMA-Factory 00577a85, finetuning_args.py)."""
    kind, loaded = config.text('finetuning_type'), 'adapter_name_or_path'
    scaled = ('lora_alpha', 'lora_rank', 'use_rslora')
    if kind != 'lora':
        if kind != 'full':
            what = f'not modelled: {kind[:40]}, which trains some of the weights'
            yield Mistake('finetuning_type', what, 'write full or lora')
        yield from config.left(f'with finetuning_type {kind}', *scaled, _TARGET, loaded)
        return
    if config.on(loaded) and not any(one.name == 'create_new_adapter' and one.value for one in config.every):
        what = 'not modelled: an adapter that is loaded has a rank and modules of its own'
        yield Mistake(loaded, what, f'--set {loaded}=false takes those of this file')
    rank = config.number('lora_rank')
    if rank < 1:
        yield Mistake('lora_rank', f'no rank (got {rank})', '--set lora_rank=8')
        return
    alpha = config.real('lora_alpha') or 2.0 * rank
    yield Entry(f'{_T}.lora.rank', rank, config.given('lora_rank') or ('finetuning_type',))
    scale = alpha / (sqrt(rank) if config.on('use_rslora') else rank)
    yield Entry(f'{_T}.lora.scale', scale, config.given(*scaled) or ('finetuning_type',))
    yield from _adapted(config, config.given(_TARGET) or ('finetuning_type',))


def _adapted(config: Settings, by: tuple[str, ...]) -> Iterator[Finding]:
    """The products that have an adapter, by the modules of the model; several modules may be one product here."""
    kind, sizes = config.text('model-type'), _sizes(config.text('model-config'))
    wanted = re.split(r'[,\s]+', config.shown(_TARGET).strip() or config.default(_TARGET))
    rows = read_csv(FOLDER / 'adapters.csv')
    if wanted == ['all']:
        if kind == 'gpt2':
            yield Mistake(by[0], 'all: no module of a GPT-2 is torch.nn.Linear but its head', 'write another model')
            return
        own = [row for row in rows if kind in row['whole_in'].split()]
        own += [row for row in rows if row['part'] and row['product'] not in {one['product'] for one in own}]
        wanted = [row['module'] for row in own] + ['o_proj', 'down_proj']
    by_module = {row['module']: row for row in rows}
    if unknown := [one for one in wanted if one not in by_module]:
        yield Mistake(
            by[0], f'not modelled: adapters of {", ".join(unknown)[:80]}', f'known are {", ".join(by_module)}'
        )
        return
    of, several = [one for one in _PRODUCTS if any(by_module[name]['product'] == one for name in wanted)], []
    for product in of:
        parts = {row['part']: row['module'] for row in rows if row['product'] == product and row['part']}
        absent = [module for module in parts.values() if module not in wanted]
        # Without a gate the product has one module.
        is_one = len(absent) == len(parts) or (product == 'fc1' and 'glu' not in str(sizes.get('activation', 'glu')))
        if absent and not is_one:
            what = f'not modelled: adapters of some parts of a product, without {", ".join(absent)}'
            yield Mistake(by[0], what, f'--set {_TARGET}={",".join([*wanted, *absent])}')
        several += [] if is_one else [', '.join(parts.values())]
    if sizes.get('kv_lora_rank'):
        yield Mistake(by[0], 'not modelled: adapters of latent attention', 'write finetuning_type: full')
    if sizes.get('experts') and {'fc1', 'fc2'} & {*of}:
        yield Mistake(by[0], 'not modelled: adapters of experts', f'--set {_TARGET}=q_proj,k_proj,v_proj,o_proj')
    yield Entry(f'{_T}.lora.of', of, by)
    if several:
        what = f'{" and ".join(several)} have an adapter each; one of them together is written, of fewer weights'
        yield Unmapped(by[0], what)


def _sizes(path: str) -> dict[str, Any]:
    """The keys of a model as of a ``transformer:``, as far as its config can be read."""
    tree = document.Tree(root={'workload': {'model': path, 'sequence': 1}}, origins={(): path})
    sizes = expanded(tree, Path()).tree.get(TRANSFORMER) if path else None
    return sizes if isinstance(sizes, dict) else {}


_OF_DEEPSPEED: Final = (deepspeed.model, deepspeed.batch, deepspeed.precision, deepspeed.sharding)
ACCELERATE: Final = Source(
    'Accelerate',
    table_of('accelerate').over(deepspeed.DEEPSPEED.table),
    rules=(*_OF_DEEPSPEED, fsdp, compiled),
    framework=lambda config: ('PyTorch FSDP' if config.text('distributed_type') == 'FSDP' else 'DeepSpeed', NOW),
)
LLAMA_FACTORY: Final = Source(
    'LLaMA-Factory',
    table_of('llama_factory').over(deepspeed.DEEPSPEED.table),
    rules=(*_OF_DEEPSPEED, factory, adapters),
    framework='DeepSpeed',
)
