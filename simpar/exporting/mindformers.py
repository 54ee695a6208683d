"""MindFormers' YAML of a plan, and the JSON of overlap passes beside it."""

import json
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final

from simpar.exporting.settings import Said, Values, bytes_of, direct, need_transformer, plain
from simpar.importing.mindformers import MINDFORMERS, groups_of

_ORDERS: Final = 'mindspore-2.10/'
SPEED_UP: Final = 'parallel_speed_up.json'


def mindformers_keys(values: Values) -> list[Said]:
    """The keys of MindFormers. Raises ``ScheduleError`` for a model that it has none for."""
    need_transformer(values, 'MindFormers')
    return list(direct('mindformers', values, _facts(values), MINDFORMERS.table))


def _facts(values: Values) -> dict[str, Any]:
    """What rows of the table need, and values that they have."""
    model, plan, heads = values.model, values.plan, values.model('heads')
    width, is_pipeline = model('experts.ffn') or model('ffn'), plan('pipeline') > 1
    ids, layers, is_tied = list(plan('fusion_ids')), model('layers'), bool(model('tied'))
    groups = (
        one for one in range(1, layers + 2) if ids == groups_of(layers, one, has_positions=False, is_tied=is_tied)
    )
    # Modules that predict further tokens are laid on stages as layers are.
    ranks, chunks = plan('pipeline'), plan('chunks') or 1
    more = [one - _blocks(values) // (ranks * chunks) for one in plan('stages')]
    rows = [more[start : start + ranks] for start in range(0, len(more), ranks)]
    order, (full, some) = plan('order'), _recomputed(values)
    return values.facts | {
        'head_dim': not model('kv_lora_rank') and model('head_dim') * heads != model('hidden'),
        'rotary': model('position', '') == 'rotary',
        'kv_lora_rank': model('kv_lora_rank'),
        'experts': model('experts.count'),
        'shared experts': model('experts.shared') and max(1, round(model('experts.shared') / width)),
        'further tokens': model('mtp_layers'),
        'qkv_bias': 'qkv' in model('bias', ()),
        'flash': model('attention', '') == 'flash',
        'reserve': bytes_of(values.every.get('cluster.reserve', 0)),
        'memory': f'{values.memory / 2**30:.4g}GB',
        'context': plan('context') > 1,
        'tensor': plan('tensor') > 1,
        'groups of shards': values.sharded and plan('shard_group') not in (0, plan('data')),
        'model_parallel': plan('tensor'),
        'stages': plan('pipeline'),
        'accumulates': not is_pipeline,
        'micro batches': plan('micro_batches') if is_pipeline else 1,
        'batch': max(1, values.small // plan('copies')),
        'aggregated': next(groups, 0) if ids else 0,
        'pipeline': is_pipeline,
        'order': order.removeprefix(_ORDERS) if order.startswith(_ORDERS) else '',
        'chunks': chunks if chunks > 1 else 0,
        'sequence chunks': plan('sequence_chunks') if plan('sequence_chunks') > 1 else 0,
        'offset': any(more) and (rows if chunks > 1 else more),
        'shards': values.sharded > 0,
        'threshold': plain(bytes_of(plan('shard_threshold')) / 1024) if values.sharded else 0,
        'accumulate': plan('accumulate') == 'sharded',
        'recomputes': plan('recompute') not in ('none', (), []),
        'communicates': plan('recompute_communication'),
        'slices': plan('recompute_inputs') == 'sharded',
        'full': full,
        'some': some,
        'clips': values.work('clip_norm') > 0,
        'passes': passes_of(values) and f'./{SPEED_UP}',
    }


def _blocks(values: Values) -> int:
    return int(values.model('layers') + values.model('mtp_layers'))


def _recomputed(values: Values) -> tuple[Any, Any]:
    """Full layers, the norms and activation of all, or a number of each for each stage."""
    wanted = values.plan('recompute')
    patterns = [] if isinstance(wanted, str) else list(wanted)
    of_layers = [one.split('.', 1) for one in patterns if one.startswith('layer') and '*' not in one.split('.')[0]]
    if not of_layers:
        parts = {one.rpartition('.')[2].rstrip('*') for one in patterns}
        cheap = bool(patterns) and any(one.startswith('norm') for one in parts)
        return wanted == 'full', cheap
    stages = list(values.plan('stages'))
    count = values.plan('pipeline') * (values.plan('chunks') or 1)
    stages = stages or [_blocks(values) // count] * count
    whole = {int(layer.removeprefix('layer')) for layer, rest in of_layers if rest == '*'}
    parts = {int(layer.removeprefix('layer')) for layer, rest in of_layers if rest != '*'}
    spans = [{*range(end - length, end)} for end, length in zip(accumulate(stages), stages, strict=True)]
    counts, selected = ([len(layers & span) for span in spans] for layers in (whole, parts))
    # The first layers count those that are recomputed in full.
    selected = [one and one + more for one, more in zip(selected, counts, strict=True)]
    full = counts if any(counts) else False
    if any(selected) and {rest for _, rest in of_layers if rest != '*'} == {values.model('activation', '')}:
        # The activation alone: what MindFormers multiplies, and the function of its gate.
        return full, {r'feed_forward\.mul': selected, r'feed_forward\.w1\.activation\.silu': [*selected]}
    return full, selected if any(selected) else False


def passes_of(values: Values) -> list[str]:
    """The overlap passes that are on."""
    overlap = values.plan('overlap')
    return [] if isinstance(overlap, str) else list(overlap)


def speed_up(_: Iterable[Said], values: Values) -> Mapping[str, str]:
    """The JSON of overlap passes, where any is on."""
    passes = passes_of(values)
    return {SPEED_UP: json.dumps(dict.fromkeys(passes, True), indent=2) + '\n'} if passes else {}
