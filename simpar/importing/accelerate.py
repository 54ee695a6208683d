"""Accelerate's and LLaMA-Factory's YAML: what DeepSpeed or FSDP shard, beside a model that is given."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from simpar.errors import Problem, refuse
from simpar.importing import deepspeed
from simpar.importing.findings import Entry, Finding, Guess, Mistake, Unmapped
from simpar.importing.settings import NOW, Setting, Settings, Source, fits, same, table_of

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
    yield from config.left('of another distributed_type' if kind != 'FSDP' else 'off', *_FSDP, _CHECKPOINTS)


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
            wrong.append(Problem(one.where, what, 'write it in that file alone'))
    refuse(wrong)
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
            wrong.append(Problem(one.where, what, 'write "auto" there, or the same in both'))
    refuse(wrong)
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
        yield Entry('plan.zero', int(stage[1]), ('deepspeed',)) if stage[1] != '0' else Guess('no ZeRO, by its name')
        yield Guess(f'ZeRO {stage[1]}, as {named.rpartition("/")[2][:60]} is called, which is not here')
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


_OF_DEEPSPEED: Final = (deepspeed.model, deepspeed.batch, deepspeed.precision, deepspeed.sharding)
ACCELERATE: Final = Source(
    name='Accelerate',
    profile='h100-sxm-8',
    table=table_of('accelerate').over(deepspeed.DEEPSPEED.table),
    rules=(*_OF_DEEPSPEED, fsdp),
    framework=lambda config: ('PyTorch FSDP' if config.text('distributed_type') == 'FSDP' else 'DeepSpeed', NOW),
)
LLAMA_FACTORY: Final = Source(
    name='LLaMA-Factory',
    profile='h100-sxm-8',
    table=table_of('llama_factory').over(deepspeed.DEEPSPEED.table),
    rules=(*_OF_DEEPSPEED, factory),
    framework=lambda _: ('DeepSpeed', NOW),
)
