"""Accelerate's and LLaMA-Factory's YAML: what DeepSpeed or FSDP shard, beside a model that is given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from simpar.importing import deepspeed
from simpar.importing.settings import NOW, Entry, Finding, Guess, Mistake, Settings, Source, table_of

_FSDP: Final = ('fsdp_config.fsdp_reshard_after_forward', 'fsdp_config.fsdp_sharding_strategy')
_CHECKPOINTS: Final = 'fsdp_config.fsdp_activation_checkpointing'


def fsdp(config: Settings) -> Iterator[Finding]:
    """What FSDP shards, and what it makes again."""
    kind = config.text('distributed_type').upper()
    if kind == 'FSDP':
        by = config.given(*_FSDP)
        zero = config.choice(by[0]) if by else 3
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


def factory(config: Settings) -> Iterator[Finding]:
    """The stage of the DeepSpeed file that is named, and checkpoints, which LLaMA-Factory has on."""
    if 'deepspeed' in config and 'zero_optimization.stage' not in config:
        named = config.text('deepspeed')
        stage = re.search(r'z(?:ero)?_?([0-3])', named.rpartition('/')[2])
        if stage is None:
            yield Mistake('deepspeed', f'{named[:60]} is not here', 'give it: --set zero_optimization.stage=3')
            return
        yield Entry('plan.zero', int(stage[1]), ('deepspeed',)) if stage[1] != '0' else Guess('no ZeRO, by its name')
        yield Guess(f'ZeRO {stage[1]}, as {named.rpartition("/")[2][:60]} is called, which is not here')
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
