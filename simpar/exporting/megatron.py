"""Flags of Megatron-LM and MindSpeed that say a plan, and the script that starts it.

Names, types and mutual checks are those of NVIDIA/Megatron-LM d98e8a64dd megatron/training/arguments.py.
"""

import re
import shlex
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import accumulate, combinations, pairwise
from typing import Final

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
    said = [*direct('megatron', source.table, values, _facts(values, source)), *_model(values)]
    said += [*_experts(values, source), *_training(values), *_states(values, source), *_launch(values)]
    rules = (_pipeline, _sharding, _tiles, _pairs, _offload, _window, _context, _mindspeed)
    said += [one for rule in rules for one in rule(values, source)]
    said += _biases(said, values, source)
    return [*said, *_recompute(said, values, source)]


def _mindspeed(values: Values, source: Source) -> Iterator[Said]:
    """Attention and the scales of Gemma, for which Megatron-LM has no flags."""
    if source is not mindspeed.MINDSPEED:
        return
    scale, factor = values.model('attention_scale'), values.model('embedding_scale', 1)
    if values.model('attention', '') == 'flash':
        yield Said('use-flash-attn', True, (f'{T}.attention',), 'MODEL')
    # Whole numbers alone: its type is int.
    if scale and abs(1 / scale**2 - round(1 / scale**2)) < 1e-6:
        yield Said('query-pre-attn-scalar', round(1 / scale**2), (f'{T}.attention_scale',), 'MODEL')
    if factor != 1 and abs(factor**2 - values.model('hidden')) < 1e-6 * factor**2:
        yield Said('input-embeds-norm', True, (f'{T}.embedding_scale',), 'MODEL')
    if (length := values.model('documents')) and isinstance(length, int):
        yield Said('reset-attention-mask', True, (f'{T}.documents',), 'MODEL')
        yield Said('fix-sub-seq-length', length, (f'{T}.documents',), 'MODEL')
    if of := values.model('lora.of', ()):
        rank, keys = values.model('lora.rank'), (f'{T}.lora.rank', f'{T}.lora.scale')
        yield Said('lora-target-modules', [f'linear_{one}' for one in of], (f'{T}.lora.of',), 'MODEL')
        yield Said('lora-r', rank, keys, 'MODEL')
        if (alpha := float(values.model('lora.scale') * rank)).is_integer():
            yield Said('lora-alpha', int(alpha), keys[1:], 'MODEL')


def _facts(values: Values, source: Source) -> Iterator[str]:
    """Words for what rows of the table need."""
    tests = {
        'rotary': values.model('position', '') == 'rotary',
        'kv_lora_rank': values.model('kv_lora_rank'),
        'q_lora_rank': values.model('q_lora_rank'),
        'experts': values.model('experts.count'),
        'mtp_layers': values.model('mtp_layers'),
        'groups': values.model('experts.groups', 1) > 1,
        'scaled': values.model('experts.scaling_factor', 1) != 1,
        'context': values.plan('context') > 1 and values.plan('context_by_heads') == 1,
        'tensor': values.plan('tensor') > 1,
        '16 bits': values.work('precision', '') in ('bf16', 'fp16'),
        'fp16': values.work('precision', '') == 'fp16',
        'mindspeed': source is mindspeed.MINDSPEED,
        'sinks': values.model('sinks', 'none') != 'none',
    }
    return (word for word, holds in tests.items() if holds)


def _model(values: Values) -> Iterator[Said]:
    """Heads, positions and vocabulary."""
    say = partial(Said, part='MODEL')
    if values.model('kv_heads') not in (0, values.model('heads')):
        yield say('group-query-attention', True, (f'{T}.kv_heads',))
        yield say('num-query-groups', values.model('kv_heads'), (f'{T}.kv_heads',))
    if values.model('kv_lora_rank'):
        yield say('multi-latent-attention', True, (f'{T}.kv_lora_rank',))
    learned = values.model('positions') if values.model('position', '') == 'learned' else 0
    yield say('max-position-embeddings', learned or values.model('sequence'), (f'{T}.positions',))
    scaling = values.model('rope_scaling', [])
    # Whole numbers alone: its type is int.
    if len(scaling) == 1 and float(scaling[0]).is_integer():
        yield say('rotary-seq-len-interpolation-factor', plain(scaling[0]), (f'{T}.rope_scaling',))
    elif len(scaling) == 4:
        yield say('use-rope-scaling', True, (f'{T}.rope_scaling',))
        yield say('rope-scaling-factor', scaling[0], (f'{T}.rope_scaling',))
    yield say('vocab-size', values.model('vocab'), (f'{T}.vocab',))
    rows = values.model('pad_vocab', 1) // values.plan('tensor')
    yield say('make-vocab-size-divisible-by', max(1, rows), (f'{T}.pad_vocab',))


def _window(values: Values, source: Source) -> Iterator[Said]:
    """Windows of all layers, or of all but every so-manieth."""
    say, window = partial(Said, part='MODEL', keys=(f'{T}.window',)), values.model('window')
    widths = list(window) if isinstance(window, (list, tuple)) else [window]
    width = max(widths)
    if not width:
        return
    if source is mindspeed.MINDSPEED:
        # Ascend/MindSpeed-LLM c77308a189, fusion_attention_feature.py: each has the width.
        name = 'interleave-sliding-window' if widths == [width, 0] else 'sliding-window'
        yield from [say(name, width)] if widths in ([width], [width, 0]) else []
        return
    yield say('window-size', f'{width - 1},0')
    if widths == [width] * (len(widths) - 1) + [0]:
        yield say('window-attn-skip-freq', len(widths))
    elif len(widths) > 1:
        yield say('window-attn-skip-freq', str([int(one > 0) for one in widths]).replace(' ', ''))


def _experts(values: Values, source: Source) -> Iterator[Said]:
    """Which layers have experts, their balance, and how tokens get to them."""
    if not values.model('experts.count'):
        return
    say = partial(Said, part='MODEL')
    every, dense = values.model('experts.every', 1), values.model('experts.first_dense')
    if dense:
        layers = values.model('layers')
        yield say('moe-layer-freq', f'([0]*{dense}+[1]*{layers - dense})', (f'{T}.experts.first_dense',))
    elif every > 1:
        yield say('moe-layer-freq', every, (f'{T}.experts.every',))
    loss, keys = values.model('experts.aux_loss'), (f'{T}.experts.aux_loss', f'{T}.experts.aux_group')
    kind = {'rank': 'aux_loss', 'sample': 'seq_aux_loss'}.get(values.model('experts.aux_group', 'rank'), 'aux_loss')
    if values.model('experts.sweeps'):
        kind, loss, keys = 'sinkhorn', 0, (f'{T}.experts.sweeps', f'{T}.experts.normalise')
    yield say('moe-router-load-balancing-type', kind if loss or kind == 'sinkhorn' else 'none', keys)
    if loss:
        yield say('moe-aux-loss-coeff', loss, keys[:1])
    by_features = source is mindspeed.MINDSPEED and values.plan('expert_tokens') == 'features'
    kind, more = ('alltoall_seq', ('plan.expert_tokens',)) if by_features else ('alltoall', ())
    yield Said('moe-token-dispatcher-type', kind, ('plan.expert', *more), 'PLAN')
    if values.plan('expert_ranks') == 'tensor' and values.plan('tensor') > 1:
        yield Said('expert-tensor-parallel-size', 1, ('plan.expert_ranks',), 'PLAN')


def _biases(said: list[Said], values: Values, source: Source) -> Iterator[Said]:
    """The flags that come nearest to the products that add a bias, as import reads them."""
    wanted = set(values.model('bias', ()))
    names = _BIAS if source is mindspeed.MINDSPEED else _BIAS[:2]
    tried = [one for count in range(len(names) + 1) for one in combinations(names, count)]

    def apart(chosen: tuple[str, ...]) -> int:
        extra = [Said(name, True, ()) for name in chosen]
        given = read_as([*said, *extra], source.table)
        rules = (megatron.biases, mindspeed.mindspeed_biases) if source is mindspeed.MINDSPEED else (megatron.biases,)
        read = [one.value for rule in rules for one in rule(given) if isinstance(one, findings.Entry)]
        silent = ['qkv', 'proj', 'ffn']
        return len(wanted ^ set(read[-1] if read else silent))

    nearest = min(tried, key=apart)
    return (Said(name, True, (f'{T}.bias',), 'MODEL') for name in nearest)


def _training(values: Values) -> Iterator[Said]:
    """The batch, and the recipe of 8 bits."""
    say = partial(Said, part='TRAINING')
    yield say('micro-batch-size', values.small, ('plan.micro_batches',))
    yield say('global-batch-size', values.work('batch'), ('workload.batch',))
    if values.work('fp8', 'none') != 'none':
        yield say('fp8-recipe', 'tensorwise', ('workload.fp8',))
        yield from _kept_in_16_bits(values)


def _kept_in_16_bits(values: Values) -> Iterator[Said]:
    """First and last layers whose products stay as they are."""
    say, layers = partial(Said, part='TRAINING', keys=('workload.fp8_except',)), values.model('layers')
    kept = list(values.work('fp8_except', ()))
    first = next((count for count in range(layers) if f'layer{count}.*' not in kept), layers)
    wanted = [f'layer{layer}.*' for layer in (*range(first), *range(layers - len(kept) + first, layers))]
    if kept and kept == wanted:
        yield say('first-last-layers-bf16', True)
        yield say('num-layers-at-start-in-bf16', first)
        yield say('num-layers-at-end-in-bf16', len(kept) - first)


def _states(values: Values, source: Source) -> Iterator[Said]:
    """Master weights and moments of fewer bits."""
    key, say = 'workload.optimizer.adamw', partial(Said, part='TRAINING')
    shares, moments = (values.every.get(f'{key}.{name}') for name in ('master_weights', 'moments'))
    if shares == 'shared':
        name = 'reuse-fp32-param' if source is mindspeed.MINDSPEED else 'use-precision-aware-optimizer'
        yield say(name, True, (f'{key}.master_weights',))
    if moments == 'bf16' and source is mindspeed.MINDSPEED:
        yield say('o2-optimizer', True, (f'{key}.moments',))
    elif shares == 'shared' and moments in ('bf16', 'fp16'):
        yield from (say(name, moments, (f'{key}.moments',)) for name in ('exp-avg-dtype', 'exp-avg-sq-dtype'))


def _launch(values: Values) -> Iterator[Said]:
    """Nodes, devices of each, and work queues."""
    nodes = values.every['cluster.nodes']
    yield Said('nnodes', nodes, ('cluster.nodes',))
    yield Said('nproc-per-node', values.ranks // nodes, ('cluster.devices',))
    if queues := values.every.get('cluster.work_queues'):
        yield Said('cuda-device-max-connections', queues, ('cluster.work_queues',))


def _tiles(values: Values, source: Source) -> Iterator[Said]:
    """Products and messages in parts: as many as tensor ranks, or with MindSpeed 2, 4 or 8."""
    say, count = partial(Said, part='PLAN', keys=('plan.tiles',)), values.plan('tiles')
    if source is mindspeed.MINDSPEED and count in (2, 4, 8):
        # Ascend/MindSpeed 028de58ca6, mindspeed/core/tensor_parallel/coc_feature/min_comm_cfg.py, line 174.
        yield say('use-ascend-coc', True)
        yield say('coc-parallel-num', count)
    elif count > 1 and values.plan('sequence_parallel'):
        yield say('tp-comm-overlap', True)


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


def _context(values: Values, source: Source) -> Iterator[Said]:
    """Neighbours that exchange heads inside of a ring."""
    inner, ranks = values.plan('context_by_heads'), values.plan('context')
    if inner == 1 or values.plan('context_kind') != 'ring':
        return
    say = partial(Said, part='PLAN', keys=('plan.context_by_heads', 'plan.context_kind'))
    if source is mindspeed.MINDSPEED:
        yield say('context-parallel-algo', 'hybrid_cp_algo')
        yield say('ulysses-degree-in-cp', inner)
    else:
        yield say('cp-comm-type', 'a2a+p2p')
        yield say('hierarchical-context-parallel-sizes', [inner, ranks // inner])


def _pairs(values: Values, source: Source) -> Iterator[Said]:
    """A forward beside a backward, where ranks share experts, and a pipeline has virtual stages."""
    pairs, delayed = values.plan('pairs'), values.plan('weight_gradients') == 'delayed'
    whole = values.plan('pipeline') > 1 and values.plan('chunks') < 2
    say, keys = partial(Said, part='PLAN'), ('plan.pairs',)
    if pairs == 'none' or values.plan('expert') == 1 or whole:
        return
    if source is mindspeed.MINDSPEED and (pairs, delayed) == ('overlap', True):
        yield say('moe-fb-overlap', True, (*keys, 'plan.weight_gradients'))
        return
    yield say('overlap-moe-expert-parallel-comm', True, keys)
    if pairs == 'memory':
        yield say('ep-overlap-early-attn-memory-release', True, keys)
    if delayed:
        yield say('delay-wgrad-compute', True, ('plan.weight_gradients',))


def _offload(values: Values, source: Source) -> Iterator[Said]:
    """States by MindSpeed; activations of the first layers by Megatron-LM, without a pipeline."""
    away = values.plan('offload')
    keys = ('plan.offload', 'plan.offload_layers')
    if source is mindspeed.MINDSPEED and 'attention' in away:
        yield Said('swap-attention', True, keys, 'PLAN')
    if source is mindspeed.MINDSPEED and 'optimizer' in away:
        parts = values.plan('offload_parts')
        yield Said('swap-optimizer', True, ('plan.offload', 'plan.offload_parts'), 'PLAN')
        if parts and str(parts) != source.table.rows['swap-optimizer-times'].default:
            yield Said('swap-optimizer-times', parts, ('plan.offload_parts',), 'PLAN')
    single = values.plan('pipeline') == 1 and not values.model('mtp_layers')
    if source is not mindspeed.MINDSPEED and away == ['activations'] and single:
        count = values.plan('offload_layers') or values.model('layers') - 1
        yield Said('cpu-offloading-num-layers', count, keys, 'PLAN')


_ENDS: Final = (('decoder-first-pipeline-num-layers', 0), ('decoder-last-pipeline-num-layers', -1))
_ACCOUNTS: Final = ('account-for-embedding-in-pipeline-split', 'account-for-loss-in-pipeline-split')


def _layout(stages: list[int], modules: int) -> str:
    """Stages as ``Et*3|t*4|t*2mL``: embedding, layers of each, modules that predict further tokens, loss."""
    letters = 't' * (sum(stages) - modules) + 'm' * modules
    begins = list(accumulate(stages, initial=0))
    parts = [letters[begin:end] for begin, end in pairwise(begins)]
    words = [re.sub('t{2,}', lambda found: f't*{len(found[0])}', part) for part in parts]
    words[0], words[-1] = f'E{words[0]}', f'{words[-1]}L'
    return '|'.join(words)


def _sharding(values: Values, _: Source) -> Iterator[Said]:
    """ZeRO's first stage by the distributed optimizer, the others by Megatron-FSDP; gathers under the next forward."""
    say, stage = partial(Said, part='PLAN', keys=('plan.zero', 'plan.shard')), values.sharded
    if stage:
        yield say('use-distributed-optimizer', True)
    if stage > 1:
        yield say('use-megatron-fsdp', True)
        yield say('data-parallel-sharding-strategy', ('optim_grads', 'optim_grads_params')[stage - 2])
    group, ranks = values.plan('shard_group'), values.plan('data') * values.plan('context')
    if stage == 1 and 0 < group < ranks and ranks % group == 0:
        yield Said('num-distributed-optimizer-instances', ranks // group, ('plan.shard_group',), 'PLAN')
    # Megatron-LM checks that gathers overlap only where sums of gradients do.
    overlapped = values.every.get('plan.reduce_gradients') == 'overlapped'
    if stage and overlapped and (stage < 3 or values.plan('prefetch')):
        yield Said('overlap-param-gather', True, ('plan.gather', 'plan.prefetch'), 'PLAN')


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
        found = findings.value_of('plan.recompute', rules)
        return set(found) if isinstance(found, list) else set()

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
    given = list(said)
    launch = {one.name: one.value for one in given if one.name in _LAUNCH}
    lines = ['#!/bin/bash', *(f'# {line}'.rstrip() for line in head), 'set -euo pipefail', '']
    if queues := launch.get('cuda-device-max-connections'):
        lines += [f'export CUDA_DEVICE_MAX_CONNECTIONS={queues}', '']
    for part in _PARTS:
        lines += [f'{part}=(', *(f'    {flag_of(one)}' for one in given if one.part == part), ')']
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
