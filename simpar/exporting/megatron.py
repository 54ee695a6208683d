"""Flags of Megatron-LM and MindSpeed that say a plan, and the script that starts it.

Names, types and mutual checks are those of NVIDIA/Megatron-LM d98e8a64dd megatron/training/arguments.py.
"""

import re
import shlex
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import accumulate, combinations, pairwise
from typing import Any, Final

from simpar.exporting.settings import Said, T, Values, direct, need_transformer, plain, read_as, word_of
from simpar.importing import findings, megatron, mindspeed
from simpar.importing.settings import Source

_MODULES: Final = ('core_attn', 'layernorm', 'mla_up_proj', 'mlp', 'moe_act', 'moe', 'shared_experts')
_PARTS: Final = ('MODEL', 'TRAINING', 'PLAN')
_BIAS: Final = ('disable-bias-linear', 'add-qkv-bias', 'add-dense-bias', 'add-output-layer-bias')
_LAYOUT: Final = 'pipeline-model-parallel-layout'
_LAUNCH: Final = ('nnodes', 'nproc-per-node', 'cuda-device-max-connections')
"""What the script says outside of the trainer's flags."""


def flags(values: Values, source: Source) -> list[Said]:
    """The flags of Megatron-LM, or of MindSpeed beside them. Raises ``ScheduleError`` for a model that has none."""
    need_transformer(values, source.name)
    said = list(direct('megatron', values, _facts(values, source), source.table))
    said += _pipeline(values, source)
    behind = _facts_of_plan(values, source) | _facts_of_attention(values, source)
    said += direct('megatron_behind', values, behind)
    said += _biases(said, values, source)
    return [*said, *_recompute(said, values, source)]


def _facts(values: Values, source: Source) -> dict[str, Any]:
    """What rows of the table need, and values that they have."""
    model, plan, work = values.model, values.plan, values.work
    scaling, dense, every = model('rope_scaling', []), model('experts.first_dense'), model('experts.every', 1)
    learned = model('positions') if model('position', '') == 'learned' else 0
    balance = 'seq_aux_loss' if model('experts.aux_group', 'rank') == 'sample' else 'aux_loss'
    (first, last), is_mindspeed = _ends_in_16_bits(values), source is mindspeed.MINDSPEED
    shares, moments = (values.every.get(f'workload.optimizer.adamw.{one}') for one in ('master_weights', 'moments'))
    return values.facts | {
        'rotary': model('position', '') == 'rotary',
        'kv_lora_rank': model('kv_lora_rank'),
        'q_lora_rank': model('q_lora_rank'),
        'mtp_layers': model('mtp_layers'),
        'context': plan('context') > 1 and plan('context_by_heads') == 1,
        'tensor': plan('tensor') > 1,
        '16 bits': work('precision', '') in ('bf16', 'fp16'),
        'fp8': work('fp8', 'none') != 'none',
        'mindspeed': is_mindspeed,
        'sinks': model('sinks', 'none') != 'none',
        'kv_heads': 0 if model('kv_heads') == model('heads') else model('kv_heads'),
        'positions': learned or model('sequence'),
        # Whole numbers alone: its type is int.
        'interpolation': plain(scaling[0]) if len(scaling) == 1 and float(scaling[0]).is_integer() else 0,
        'llama_factor': scaling[0] if len(scaling) == 4 else 0,
        'vocab': model('vocab'),
        'vocab_rows': max(1, model('pad_vocab', 1) // plan('tensor')),
        'experts': model('experts.count'),
        'groups': model('experts.groups', 1) > 1,
        'scaled': model('experts.scaling_factor', 1) != 1,
        'dense': dense and f'([0]*{dense}+[1]*{model("layers") - dense})',
        'every': every if every > 1 else 0,
        'sweeps': model('experts.sweeps'),
        'aux_loss': model('experts.aux_loss'),
        'balance': balance if model('experts.aux_loss') else 'none',
        'features': is_mindspeed and plan('expert_tokens') == 'features',
        'expert_ranks': plan('expert_ranks') == 'tensor' and plan('tensor') > 1,
        'first or last': first or last,
        'first': first,
        'last': last,
        'shared': shares == 'shared',
        'moments': moments in ('bf16', 'fp16') and moments,
        'o2': is_mindspeed and moments == 'bf16',
        'devices': values.ranks // values.every['cluster.nodes'],
        'queues': values.every.get('cluster.work_queues'),
    }


def _facts_of_plan(values: Values, source: Source) -> dict[str, Any]:
    """The same of what stands behind the layers of stages: shards, tiles, pairs, and what waits on the host."""
    plan, stage, tiles, away = values.plan, values.sharded, values.plan('tiles'), values.plan('offload')
    is_mindspeed, pairs, delayed = source is mindspeed.MINDSPEED, plan('pairs'), plan('weight_gradients') == 'delayed'
    ranks, group, parts = plan('data') * plan('context'), plan('shard_group'), plan('offload_parts')
    # It pairs where ranks share experts, and a pipeline has virtual stages.
    is_paired = plan('expert') > 1 and (plan('pipeline') == 1 or plan('chunks') > 1)
    single = not is_mindspeed and plan('pipeline') == 1 and not values.model('mtp_layers')
    times = source.table.rows['swap-optimizer-times'].default if is_mindspeed else ''
    return {
        'stage': stage,
        # ZeRO's first stage by the distributed optimizer, the others by Megatron-FSDP.
        'fsdp': {2: 'optim_grads', 3: 'optim_grads_params'}.get(stage, ''),
        'instances': ranks // group if stage == 1 and 0 < group < ranks and ranks % group == 0 else 0,
        # Megatron-LM checks that gathers overlap only where sums of gradients do.
        'gathers': values.every.get('plan.reduce_gradients') == 'overlapped' and (stage < 3 or plan('prefetch')),
        # Ascend/MindSpeed 028de58ca6, mindspeed/core/tensor_parallel/coc_feature/min_comm_cfg.py, line 174.
        'coc': tiles if is_mindspeed and tiles in (2, 4, 8) else 0,
        'tiles': tiles > 1 and plan('sequence_parallel'),
        'pairs': is_paired and pairs != 'none',
        'fb': is_mindspeed and pairs == 'overlap' and delayed,
        'memory': pairs == 'memory',
        'delayed': delayed,
        'attention': is_mindspeed and 'attention' in away,
        'optimizer': is_mindspeed and 'optimizer' in away,
        'parts': str(parts) != times and parts,
        'activations': single and away == ['activations'],
        'away': plan('offload_layers') or values.model('layers') - 1,
    }


def _facts_of_attention(values: Values, source: Source) -> dict[str, Any]:
    """The same of windows, heads that a ring exchanges, and what MindSpeed alone has flags for."""
    model, plan, window, length = values.model, values.plan, values.model('window'), values.model('documents')
    widths = list(window) if isinstance(window, (list, tuple)) else [window]
    width, skips = max(widths), str([int(one > 0) for one in widths]).replace(' ', '') if len(widths) > 1 else ''
    scale, factor, inner = model('attention_scale'), model('embedding_scale', 1), plan('context_by_heads')
    square, alpha = 1 / scale**2 if scale else 0.0, float(model('lora.scale') * model('lora.rank'))
    return {
        'mindspeed': source is mindspeed.MINDSPEED,
        # Ascend/MindSpeed-LLM c77308a189, fusion_attention_feature.py: each has the width.
        'interleaved': width and widths == [width, 0],
        'alike': width and widths == [width],
        'width': width,
        'window': f'{width - 1},0',
        'skips': len(widths) if widths == [width] * (len(widths) - 1) + [0] else skips,
        'heads': inner if inner > 1 and plan('context_kind') == 'ring' else 0,
        'rings': [inner, plan('context') // inner],
        'flash': model('attention', '') == 'flash',
        # Whole numbers alone: its type is int.
        'scalar': round(square) if abs(square - round(square)) < 1e-6 else 0,
        'root': factor != 1 and abs(factor**2 - model('hidden')) < 1e-6 * factor**2,
        'documents': length if isinstance(length, int) else 0,
        'adapters': [f'linear_{one}' for one in model('lora.of', ())],
        'rank': model('lora.rank'),
        'whole': alpha.is_integer(),
        'alpha': int(alpha),
    }


def _biases(said: list[Said], values: Values, source: Source) -> Iterator[Said]:
    """The flags that come nearest to the products that add a bias, as import reads them."""
    wanted = set(values.model('bias', ()))
    names = _BIAS if source is mindspeed.MINDSPEED else _BIAS[:2]
    tried = [one for count in range(len(names) + 1) for one in combinations(names, count)]

    def apart(chosen: tuple[str, ...]) -> int:
        extra = [Said(name, True, ()) for name in chosen]
        settings = read_as([*said, *extra], source.table)
        rules = (megatron.biases, mindspeed.mindspeed_biases) if source is mindspeed.MINDSPEED else (megatron.biases,)
        read = [one.value for rule in rules for one in rule(settings) if isinstance(one, findings.Entry)]
        silent = ['qkv', 'proj', 'ffn']
        return len(wanted ^ set(read[-1] if read else silent))

    nearest = min(tried, key=apart)
    return (Said(name, True, (f'{T}.bias',), 'MODEL') for name in nearest)


def _ends_in_16_bits(values: Values) -> tuple[int, int]:
    """How many first and last layers have products that stay as they are in a step of 8 bits; 0: others, or none."""
    layers, patterns = values.model('layers'), list(values.work('fp8_except', ()))
    first = next((count for count in range(layers) if f'layer{count}.*' not in patterns), layers)
    wanted = [f'layer{layer}.*' for layer in (*range(first), *range(layers - len(patterns) + first, layers))]
    return (first, len(patterns) - first) if patterns == wanted and values.work('fp8', 'none') != 'none' else (0, 0)


def _pipeline(values: Values, source: Source) -> Iterator[Said]:
    """Chunks of a rank, layers of stages and messages between them."""
    ranks, chunks, layers = values.plan('pipeline'), values.plan('chunks') or 1, values.model('layers')
    if ranks < 2:
        return
    if source is mindspeed.MINDSPEED and values.plan('order') == 'dualpipe-v':
        yield Said('schedules-method', 'dualpipev', ('plan.order', 'plan.chunks'), 'PLAN')
        return
    say = partial(Said, part='PLAN')
    stages = list(values.plan('stages'))
    count = ranks * chunks
    if not stages and layers % count == 0:
        stages = [layers // count] * count
    keys = ('plan.chunks', 'plan.stages', 'plan.order')
    modules = values.model('mtp_layers')
    # Modules that predict further tokens are on the last stage, unless the plan counts them.
    full = [*stages[:-1], stages[-1] + modules] if sum(stages) == layers else stages
    by_layout = [say(_LAYOUT, _layout(full, modules), keys)] if stages else []
    by_number = [say('num-virtual-stages-per-pipeline-rank', chunks, keys)] if chunks > 1 else []
    ends = [
        say(name, stages[at], keys) for name, at in _ENDS if stages and chunks == 1 and stages[at] != stages[1 % ranks]
    ]
    accounts = [say(name, True, keys) for name in _ACCOUNTS]
    forms = [by_number, *([*by_number, one] for one in accounts), [*by_number, *accounts], ends, by_layout]
    base = [Said('pipeline-model-parallel-size', ranks, ()), Said('num-layers', layers, ()),
            Said('mtp-num-layers', modules, ())]  # fmt: skip
    for form in forms:
        read = megatron.stages_of(read_as([*base, *form], megatron.MEGATRON.table))
        if read.chunks == chunks and read.layers == (full if form is by_layout else stages):
            yield from form
            break
    if values.plan('placement') == 'tensor-context-pipeline-data':
        yield say('use-tp-pp-dp-mapping', True, ('plan.placement',))
    if chunks > 1 and values.plan('exchange') == 'fused':
        yield say('no-overlap-p2p-communication', True, ('plan.exchange',))


_ENDS: Final = (('decoder-first-pipeline-num-layers', 0), ('decoder-last-pipeline-num-layers', -1))
_ACCOUNTS: Final = ('account-for-embedding-in-pipeline-split', 'account-for-loss-in-pipeline-split')


def _layout(stages: list[int], modules: int) -> str:
    """Stages as ``Et*3|t*4|t*2mL``: embedding, layers of each, modules that predict further tokens, loss."""
    letters = 't' * (sum(stages) - modules) + 'm' * modules
    begins = list(accumulate(stages, initial=0))
    parts = [letters[begin:end] for begin, end in pairwise(begins)]
    words = [re.sub('t{2,}', lambda match: f't*{len(match[0])}', part) for part in parts]
    words[0], words[-1] = f'E{words[0]}', f'{words[-1]}L'
    return '|'.join(words)


def _recompute(said: list[Said], values: Values, source: Source) -> list[Said]:
    """Granularity and modules; of patterns those modules whose operators are among them, as import reads them."""
    wanted = values.plan('recompute')
    say, granularity = partial(Said, part='PLAN', keys=('plan.recompute',)), 'recompute-granularity'
    if wanted in ('none', (), []):
        return []
    if wanted == 'selective':
        return [say(granularity, wanted)]
    full = [say(granularity, 'full'), say('recompute-method', 'uniform'), say('recompute-num-layers', 1)]
    if wanted == 'full':
        return full
    patterns = set(wanted)
    if source is mindspeed.MINDSPEED and patterns == {f'layer*.{values.model("activation", "gelu")}'}:
        return [say('recompute-activation-function', True)]

    def read(form: list[Said]) -> set[str]:
        settings = read_as([*said, *form], source.table)
        rules = [*megatron.recompute(settings), *(mindspeed.swapped(settings) if source is mindspeed.MINDSPEED else ())]
        modules = findings.value_of('plan.recompute', rules)
        return set(modules) if isinstance(modules, list) else set()

    # Of layers whose attention waits on the host the feed-forward alone is made again.
    swaps = any(one.name == 'swap-attention' for one in said)
    if swaps and read(full) == patterns:
        return full
    whole = {one.split('.')[0] for one in patterns if swaps or one.endswith('.*')}
    for count in range(1, len(whole) + 1):
        block = [full[0], say('recompute-method', 'block'), say('recompute-num-layers', count)]
        if read(block) == patterns:
            return block
    chosen = [one for one in _MODULES if (of := read(_modules(say, [one]))) and of <= patterns]
    return _modules(say, chosen) if chosen else full if whole else []


def _modules(say: partial[Said], chosen: list[str]) -> list[Said]:
    # Of attention alone import says selective; beside the others it says patterns.
    listed = chosen if chosen != ['core_attn'] else [*chosen, *chosen]
    return [say('recompute-granularity', 'selective'), say('recompute-modules', listed)]


# the script


def script(said: Iterable[Said], values: Values, head: tuple[str, ...], *, trainer: str = 'pretrain_gpt.py') -> str:
    """The script that starts a training by torchrun."""
    flag_list = list(said)
    launch = {one.name: one.value for one in flag_list if one.name in _LAUNCH}
    lines = ['#!/bin/bash', *(f'# {line}'.rstrip() for line in head), 'set -euo pipefail', '']
    if queues := launch.get('cuda-device-max-connections'):
        lines += [f'export CUDA_DEVICE_MAX_CONNECTIONS={queues}', '']
    for part in _PARTS:
        lines += [f'{part}=(', *(f'    {flag_of(one)}' for one in flag_list if one.part == part), ')']
    arrays = ' '.join(f'"${{{part}[@]}}"' for part in _PARTS)
    lines += [
        '# Data, tokenizer and checkpoints are yours: give them behind the name of this script.',
        'torchrun \\',
        f'    --nnodes {launch["nnodes"]} --nproc-per-node {launch["nproc-per-node"]} --node-rank ${{NODE_RANK:-0}} \\',
        '    --master-addr ${MASTER_ADDR:-localhost} --master-port ${MASTER_PORT:-29500} \\',
        f'    {trainer} "$@" {arrays}',
    ]
    return '\n'.join(lines) + '\n'


def flag_of(one: Said) -> str:
    """A setting as words of a command."""
    if one.value is True:
        return f'--{one.name}'
    words = one.value if isinstance(one.value, list) else [one.value]
    return ' '.join([f'--{one.name}', *(shlex.quote(word_of(word)) for word in words)])
