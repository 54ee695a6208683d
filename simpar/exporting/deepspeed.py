"""DeepSpeed's JSON, Accelerate's YAML and torchtitan's TOML of a plan; the first two have no model in them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import yaml

from simpar.errors import refusal
from simpar.exporting.settings import Said, Values, bytes_of, direct, need_transformer, plain, spoken
from simpar.huggingface.families import FLAVOURS, Sizes
from simpar.importing import first
from simpar.importing.deepspeed import DEEPSPEED
from simpar.importing.torchtitan import TORCHTITAN

_P: Final = 'parallelism'


def deepspeed_keys(values: Values) -> list[Said]:
    """The keys of DeepSpeed's JSON; its model is a program's."""
    plan, work, stage, kind = values.plan, values.work, values.sharded, values.work('precision', 'fp32')
    names = {'adam': 'Adam', 'adamw': 'AdamW', 'momentum': 'SGD', 'sgd': 'SGD', 'muon': 'Muon'}
    # Sizes of messages are numbers of elements.
    size, bucket = 4 if kind == 'fp32' else 2, bytes_of(plan('fusion')) if stage in (1, 2) else 0.0
    facts = values.facts | {
        'bf16': kind == 'bf16',
        'sums': kind in ('bf16', 'fp16') and (work('gradients', None) or kind),
        'optimizer': names[values.optimizer],
        'momentum': values.optimizer == 'momentum',
        'rate': values.every.get('workload.optimizer.momentum.momentum'),
        'stage': stage,
        'overlaps': plan('prefetch') > 0 if stage == 3 else plan('reduce_gradients') == 'overlapped',
        'fused': bucket,
        'bucket': int(bucket / size),
        'whole': stage == 3,
        'threshold': int(bytes_of(plan('shard_threshold')) / size),
        'group': plan('shard_group') if plan('shard_group') != plan('data') else 0,
        # DeepSpeed's groups are neighbours among all ranks.
        'second': plan('second_shards') if plan('tensor') == plan('pipeline') == 1 else 0,
        **{key: plan(key) if plan(key) > 1 else 0 for key in ('tensor', 'context', 'pipeline')},
    }
    return list(direct('deepspeed', values, facts, DEEPSPEED.table))


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
    plan, stage, kind, nodes = (
        values.plan,
        values.sharded,
        values.work('precision', 'fp32'),
        values.every['cluster.nodes'],
    )
    is_hybrid = stage == 3 and plan('shard_group') == values.ranks // nodes < plan('data')
    facts = values.facts | {
        'kind': {0: 'MULTI_GPU', 1: 'DEEPSPEED'}.get(stage, 'FSDP'),
        'precision': 'no' if kind == 'fp32' else kind,
        'deepspeed': stage == 1,
        # Without a policy the whole model is one message (huggingface/accelerate 16cb6eb8, utils/dataclasses.py).
        'fsdp': stage > 1,
        'version': 1 if is_hybrid else 2,
        'hybrid': is_hybrid,
        'whole': stage == 3,
        'full': plan('recompute') == 'full',
    }
    return list(direct('accelerate', values, facts))


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
    plan, stage, context = values.plan, values.sharded, values.plan('context')
    group, is_pipeline = plan('shard_group') or plan('data') * context, plan('pipeline') > 1
    # Context ranks hold shards, too.
    # Of a bidirectional pipeline, whose ranks hold each stage twice, a group may be wider than the data ranks.
    shards = min(plan('data'), max(1, group // context)) if stage else 1
    order = spoken(TORCHTITAN.table.rows[f'{_P}.pipeline_parallel_schedule'], values)
    chunks, layers, wanted = plan('chunks') or 1, values.model('layers'), plan('recompute')
    count = plan('pipeline') * chunks
    patterns = [] if isinstance(wanted, str) else wanted
    # Of full layers every so-manieth, else cheap operators.
    whole = [str(int(one[5:-2]) + 1) for one in patterns if one.endswith('.*') and one[5:-2].isdigit()]
    facts = values.facts | {
        'name': name,
        'flavour': flavour,
        'local': values.small * plan('micro_batches') if is_pipeline else values.small,
        'stages': is_pipeline,
        'replicas': plan('data') // shards,
        'shards': shards,
        'sharded': stage,
        'reshard': 'never' if plan('gather') == 'on-use' else 'always',
        'tiles': plan('tensor') > 1 and plan('tiles') > 1,
        'chunks of a sequence': context > 1,
        'experts': plan('expert') > 1,
        'order': order.value if order else '1F1B',
        'each': layers // count if chunks > 2 and layers % count == 0 else 0,
        'mode': 'full' if wanted == 'full' else 'selective' if patterns else 'none',
        'selects': '' if isinstance(wanted, str) else (*whole, 'op')[0],
        '8 bits': values.work('fp8', 'none') == 'hybrid',
    }
    return list(direct('torchtitan', values, facts, TORCHTITAN.table))


def _flavour(values: Values) -> tuple[str, str]:
    """The model and flavour of torchtitan with these sizes."""
    flavours = [(name, size, sizes) for name, of_name in FLAVOURS.items() for size, sizes in of_name.items()]
    for name, size, sizes in flavours:
        if _has(values, sizes):
            return name, size
    names = ', '.join(f'{name} {size}' for name, size, _ in flavours)
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
