"""What MindSpeed and MindSpeed-LLM have beside Megatron-LM's flags.

The names and defaults are those of mindspeed/arguments.py of Ascend/MindSpeed and of scripts of Ascend/MindSpeed-LLM.
"""

import re
from collections.abc import Iterator
from math import sqrt
from typing import Final

from simpar.importing import megatron, mixtures
from simpar.importing.findings import Entry, Finding, Guess, Mistake, Unmapped, value_of
from simpar.importing.settings import Settings, Source, first_layers, table_of

_T: Final = 'workload.transformer'


def mindspeed_model(flags: Settings) -> Iterator[Finding]:
    """What MindSpeed-LLM adds to a model."""
    if not flags.on('use-flash-attn'):
        yield Entry(f'{_T}.attention', 'unfused', (), 'without --use-flash-attn')
    yield from spec(flags)
    # Ascend/MindSpeed-LLM mindspeed_llm/core/transformer/mlp.py: --gelu-tanh alone is gated, too.
    yield from flags.said('geglu', 'gelu-tanh')
    if width := flags.number('sliding-window-size'):
        by = flags.given('sliding-window-size', 'interleave-sliding-window')
        yield Entry(f'{_T}.window', [width, 0] if flags.on('interleave-sliding-window') else width, by)
    elif width := flags.number('interleave-sliding-window'):
        yield Entry(f'{_T}.window', [width, 0], ('interleave-sliding-window',))
    yield from flags.said('post-norm')
    if flags.real('query-pre-attn-scalar') > 0:
        scale = 1 / sqrt(flags.real('query-pre-attn-scalar'))
        yield Entry(f'{_T}.attention_scale', scale, ('query-pre-attn-scalar',))
    if flags.on('input-embeds-norm'):
        yield Entry(f'{_T}.embedding_scale', sqrt(flags.number('hidden-size') or 1), ('input-embeds-norm',))
    share = flags.real('partial-rotary-factor')
    if 0 < share <= 1 and flags.text('position-embedding-type') == 'rope':
        yield Entry(f'{_T}.rotary_share', share, ('partial-rotary-factor',))
    yield from mindspeed_biases(flags)
    if flags.number('mtp-num-layers') > 1 and not flags.on('mtp-mem-efficient-logits'):
        # Ascend/MindSpeed-LLM c77308a1, mindspeed_llm/core/transformer/multi_token_prediction.py, line 257.
        yield Unmapped('mtp-num-layers', 'logits of a module in 16 bits stay, too, while the next one runs')
    yield from documents(flags)
    yield from masks(flags)
    yield from adapters(flags)


def masks(flags: Settings) -> Iterator[Finding]:
    """A mask that the data make, and samples that are not filled up."""
    name, kind = 'attention-mask-type', flags.text('attention-mask-type')
    rings = flags.number('context-parallel-size') > 1 and flags.text('context-parallel-algo') != 'ulysses_cp_algo'
    if kind == 'causal' or (kind == 'general' and not rings):
        # Ascend/MindSpeed-LLM c77308a1, fusion_attention_feature.py: next-tockens is 0 and sparse-mode 0, by which the
        # kernel takes pairs up to the diagonal alone, whatever else a mask says.
        yield from flags.left('pairs up to the diagonal are computed', name)
    elif name in flags:
        yield Unmapped(name, f'{kind} in a ring of context ranks computes every pair')
    # The same, mindspeed_llm/legacy/data/data_samplers.py, line 62: a micro-batch is as long as its longest sample.
    if flags.on('no-pad-to-seq-lengths'):
        by = flags.given('seq-length', 'no-pad-to-seq-lengths', 'pad-to-multiple-of')
        yield Entry(f'{_T}.sequence', flags.number('seq-length'), by)
        yield Guess('each micro-batch is as long as seq-length, its most: --set seq-length=N says the mean of the data')


def adapters(flags: Settings) -> Iterator[Finding]:
    """Adapters of a low rank beside products, which alone are trained."""
    name, fusion = 'lora-target-modules', 'lora-fusion'
    if not flags.on(name):
        yield from flags.left('no module has an adapter', name, 'lora-r', 'lora-alpha', fusion)
        if flags.on('lora-r'):
            yield Mistake('lora-r', f'not modelled: adapters of no module (--{name})', '--set lora-r=false')
        return
    choices = flags.table.rows[name].choices
    modules = flags.shown(name).split()
    if unknown := [one for one in modules if one not in choices]:
        yield Mistake(name, f'not modelled: adapters of {", ".join(unknown)}', f'--set {name}=linear_qkv')
        return
    of = [choices[one] for one in modules]
    if mixtures.number_of_experts(flags) and {'fc1', 'fc2'} & {*of}:
        yield Mistake(name, 'not modelled: adapters of experts', f'--set {name}=linear_qkv')
    rank = max(1, flags.number('lora-r'))
    yield Entry(f'{_T}.lora.rank', rank, flags.given('lora-r') or (name,))
    yield Entry(f'{_T}.lora.scale', flags.real('lora-alpha') / rank, flags.given('lora-alpha', 'lora-r') or (name,))
    yield Entry(f'{_T}.lora.of', of, flags.given(name, fusion))
    if not flags.on(fusion):
        return
    if flags.number('tensor-model-parallel-size') > 1 and flags.on('sequence-parallel'):
        yield Unmapped(fusion, 'messages beside products of merged weights; they go in turns')
    else:
        # Ascend/MindSpeed-LLM c77308a1, mindspeed_llm/tasks/posttrain/lora/cc_lora_forward.py, line 215 on.
        what = 'adapters are products beside others; lora-fusion adds them to weights, which moves as many bytes where'
        yield Guess(f'{what} a micro-batch has as many tokens as a layer is wide')


def spec(flags: Settings) -> Iterator[Finding]:
    """A module that builds the layers: those that other flags say, or layers of its own."""
    module = flags.text('spec').rpartition('.')[2].lower()
    kind = flags.table.rows['spec'].choices.get(module)
    if kind == 'norms':
        yield Entry(f'{_T}.post_norms', True, ('spec',))
    elif kind == 'whole' and flags.on('qk-layernorm'):
        # Ascend/MindSpeed-LLM c77308a1, mindspeed_llm/tasks/models/transformer/minimax_attention.py, line 67 on.
        yield Entry(f'{_T}.qk_norm', 'whole', ('spec', 'qk-layernorm'))
    elif kind in ('flags', 'whole'):
        yield from flags.left('its layers are those that the other flags say', 'spec')
    elif module:
        yield Unmapped('spec', f'layers of {module}')


def mindspeed_biases(flags: Settings) -> Iterator[Finding]:
    """Biases of single products, where the others have none."""
    own = {'add-qkv-bias': 'qkv', 'add-dense-bias': 'proj', 'add-output-layer-bias': 'head'}
    if flags.given('add-dense-bias', 'add-output-layer-bias'):
        all_of = [] if flags.on('disable-bias-linear') else ['qkv', 'proj', 'ffn']
        listed = dict.fromkeys([*all_of, *(key for name, key in own.items() if flags.on(name))])
        yield Entry(f'{_T}.bias', list(listed), flags.given(*own))


def documents(flags: Settings) -> Iterator[Finding]:
    """Documents that a sample packs, of which no token sees another; how long they are the data alone know."""
    name, length = 'reset-attention-mask', flags.number('fix-sub-seq-length')
    if not flags.on(name):
        return
    yield Entry(f'{_T}.documents', max(0, length), flags.given(name, 'fix-sub-seq-length'), 'tokens of a document')
    if length <= 0:
        yield Guess('each sample is one document, whose attention takes longest: documents says how long they are')


def mindspeed_experts(flags: Settings) -> Iterator[Finding]:
    """What MindSpeed-LLM says of experts in its own words."""
    yield from flags.said('first-k-dense-replace')
    if not mixtures.number_of_experts(flags):
        yield from flags.left('without num-experts', 'n-shared-experts')
    elif flags.number('n-shared-experts'):
        width = flags.number('moe-ffn-hidden-size') or flags.number('ffn-hidden-size')
        shared = flags.number('n-shared-experts') * width
        yield Entry(f'{_T}.experts.shared', shared, flags.given('n-shared-experts', 'moe-ffn-hidden-size'))
    yield from flags.said('norm-topk-prob', silent=True)
    yield from flags.said('seq-aux')


def mindspeed_plan(flags: Settings) -> Iterator[Finding]:
    """What MindSpeed adds to a plan."""
    yield from flags.said('context-parallel-algo', silent=True)
    yield from exchanged_heads(flags)
    if flags.choice('context-parallel-algo') == 'all_gather' and flags.on('reset-attention-mask'):
        # Ascend/MindSpeed 028de58ca6, mindspeed/core/context_parallel/get_batch_utils.py, line 112.
        yield Entry('plan.context_split', 'contiguous', flags.given('context-parallel-algo', 'reset-attention-mask'))
    if flags.number('context-parallel-size') > 1 and 'context-parallel-algo' not in flags:
        # Ascend/MindSpeed 028de58ca6, mindspeed/arguments.py, line 175.
        yield Guess('a ring of context ranks, as MindSpeed-LLM has it; MindSpeed alone takes ulysses_cp_algo')
    tiled, parts = flags.given('use-ascend-coc', 'use-ascend-mc2'), flags.given('coc-parallel-num', 'coc-fused-kernel')
    if tiled and flags.number('tensor-model-parallel-size') > 1:
        # Ascend/MindSpeed mindspeed/arguments.py: one part; kernels that do both have parts of their own.
        is_fused = 'use-ascend-mc2' in tiled or flags.on('coc-fused-kernel')
        count = 4 if is_fused else max(flags.number('coc-parallel-num'), 1)
        yield Entry('plan.tiles', count, (*tiled, *parts), 'products and sums in parts')
    if megatron.is_v(flags):
        yield Entry('plan.order', 'dualpipe-v', ('schedules-method',))
        yield Entry('plan.chunks', 2, ('schedules-method',))
    elif 'schedules-method' in flags:
        yield Unmapped('schedules-method', f'{flags.text("schedules-method")}; 1f1b is written')
    yield from expansion(flags)
    yield from swapped_states(flags)
    yield from mindspeed_stages(flags)
    yield from swapped(flags)
    yield from recomputed_parts(flags)


def swapped_states(flags: Settings) -> Iterator[Finding]:
    """States of the optimizer that wait on the host, and in how many parts they come.

    Ascend/MindSpeed 028de58ca6, mindspeed/core/optimizer/swap_optimizer/swap_optimizer.py, line 571 on.
    """
    switch, times = 'swap-optimizer', 'swap-optimizer-times'
    if not flags.on(switch):
        return
    yield Entry('plan.offload', ['optimizer'], (switch,))
    yield Entry('plan.offload_parts', max(1, flags.number(times)), flags.given(times) or (switch,))
    if flags.number(times) < 1:
        yield Unmapped(times, 'all at once, the largest first; in the order of updates is written')


def exchanged_heads(flags: Settings) -> Iterator[Finding]:
    """Heads that ranks exchange, all of them or inside of a ring; of fewer keys each query head gets one of its own.

    Ascend/MindSpeed 028de58ca6, mindspeed/core/context_parallel/ulysses_context_parallel/ulysses_context_parallel.py,
    line 187. The flag is on whether a script has it or not (Ascend/MindSpeed-LLM c77308a1,
    mindspeed_llm/features_manager/context_parallel/ulysses_context_parallel.py, line 16).
    """
    name, queries = 'kv-head-repeat-before-uly-alltoall', flags.number('num-attention-heads')
    keys = flags.number('num-query-groups') if flags.on('group-query-attention') else queries
    if flags.on('multi-latent-attention'):
        keys = queries
    context, tensor = map(flags.number, ('context-parallel-size', 'tensor-model-parallel-size'))
    algorithm, degree = flags.text('context-parallel-algo'), 'ulysses-degree-in-cp'
    ranks = context if algorithm == 'ulysses_cp_algo' else 1
    if algorithm == 'hybrid_cp_algo' and context > 1 and degree in flags:
        ranks = max(1, flags.number(degree))
        yield Entry('plan.context_by_heads', ranks, ('context-parallel-algo', degree))
    elif algorithm == 'hybrid_cp_algo' and context > 1:
        yield Unmapped('context-parallel-algo', f'without --{degree}; a ring is written')
    else:
        yield from flags.left('without hybrid_cp_algo', degree)
    if ranks > 1 and ranks * tensor > keys:
        yield Entry('plan.context_heads', 'queries', flags.given(name) or ('context-parallel-algo',))
    else:
        yield from flags.left('ranks exchange no fewer heads of keys than they are', name)


def swapped(flags: Settings) -> Iterator[Finding]:
    """Activations of attention that wait on the host; of layers that are recomputed, the feed-forward alone is."""
    name, stages = 'swap-attention', megatron.stages_of(flags).layers
    if not flags.on(name):
        return
    method, number = flags.given('recompute-method'), flags.given('recompute-num-layers')
    kind = flags.text(method[0]) if method else ''
    # Ascend/MindSpeed 028de58ca6, mindspeed/core/memory/swap_attention/adaptor.py, line 101 on, beside any granularity.
    count = flags.number('recompute-num-layers') if number else 0
    away = megatron.recomputed_layers(flags, stages, count, last=True) if stages and kind == 'block' else stages
    again = megatron.recomputed_layers(flags, stages, count) if stages and kind != 'uniform' else stages
    most = max(away or [0])
    fits = stages and away and all(one in (most, *range(has, most)) for one, has in zip(away, stages, strict=True))
    if not fits or stages is None or again is None or flags.text('recompute-granularity') == 'selective':
        yield Unmapped(name, 'beside this recomputation, which is written')
    elif flags.text('swap-modules') not in ('', 'self_attention'):
        yield Unmapped('swap-modules', f'{flags.text("swap-modules")}; activations of attention leave')
    else:
        by = flags.given(name, 'recompute-granularity', *method, *number)
        both = flags.given('swap-optimizer') if flags.on('swap-optimizer') else ()
        yield Entry('plan.offload', ['attention', *(['optimizer'] if both else [])], (name, *both))
        yield Entry('plan.offload_layers', most, by)
        if any(again) or flags.text('recompute-granularity') == 'full':
            dense = ('fc1', megatron.activation_of(flags), 'fc2')
            mixed = ('route*', 'dispatch', 'experts.*', *(['shared.*'] if flags.number('n-shared-experts') else []))
            first = max(0, flags.number('first-k-dense-replace')) if mixtures.number_of_experts(flags) else 10**9
            layers = first_layers(stages, again)
            own = [f'layer{layer}.{one}' for layer in layers for one in (dense if layer < first else mixed)]
            yield Entry('plan.recompute', own or 'none', by)


def recomputed_parts(flags: Settings) -> Iterator[Finding]:
    """Activations and norms that run again, in all layers or in some behind those of each stage that do so as a whole.

    Ascend/MindSpeed 028de58ca6, mindspeed/core/memory/recompute/recompute_common.py, line 91 on.
    """
    parts = {'recompute-activation-function': megatron.activation_of(flags), 'recompute-norm': 'norm?'}
    on = [name for name in parts if flags.on(name)]
    numbers = {name: flags.given(f'{name}-num-layers') for name in parts}
    yield from flags.left('switched off', *(one for name in parts if name not in on for one in numbers[name]))
    said = value_of('plan.recompute', (*megatron.recompute(flags), *swapped(flags)))
    if said == 'full':
        yield from flags.left('every layer is recomputed in full', *on, *(one for name in on for one in numbers[name]))
        return
    patterns = said if isinstance(said, list) else []
    first = flags.number('recompute-num-layers') if flags.given('recompute-num-layers') else 0
    whole = flags.text('recompute-granularity') == 'full' and not flags.on('swap-attention')
    for name in on:
        (by, stages), operator = (numbers[name], megatron.stages_of(flags).layers), parts[name]
        if said == 'selective' or ((by or (first and not whole)) and (stages is None or megatron.is_v(flags))):
            yield Unmapped(name, 'beside this recomputation, which is written')
        elif stages is not None and (by or (first and not whole)):
            most = megatron.recomputed_layers(flags, stages, first + flags.number(by[0])) if by else stages
            done = first_layers(stages, megatron.recomputed_layers(flags, stages, first)) if first else []
            patterns = [
                *patterns,
                *(f'layer{one}.*{operator}' for one in first_layers(stages, most) if one not in done),
            ]
            yield Entry('plan.recompute', patterns or 'none', (name, *by))
        else:
            patterns = [*patterns, f'layer*.{operator}']
            yield Entry('plan.recompute', patterns, (name,))


def expansion(flags: Settings) -> Iterator[Finding]:
    """The mode in which HCCL expands collectives, where all groups of several ranks have the same.

    Ascend/MindSpeed 028de58ca6, mindspeed/core/hccl_buffer/hccl_adaptive_func.py, line 9 on.
    """
    name, choices = 'hccl-op-mode', flags.table.rows['hccl-op-mode'].choices
    if not flags.on(name):
        return
    degrees = {'cp': 'context', 'tp': 'tensor-model', 'pp': 'pipeline-model', 'ep': 'expert-model'}
    alone = {group for group, axis in degrees.items() if flags.number(f'{axis}-parallel-size') < 2}
    said = dict(re.findall(r'(\w+):(\d+)', flags.shown(name)))
    modes = {choices.get(mode) for group, mode in said.items() if group not in alone}
    if len(modes) == 1 and None not in modes:
        yield Entry('cluster.expansion_mode', modes.pop(), (name,))
    else:
        yield Unmapped(name, 'a mode for each group; that of the devices is written')


def mindspeed_stages(flags: Settings) -> Iterator[Finding]:
    """Layers without those that do nothing."""
    if idle := megatron.idle_layers(flags):
        yield Entry(f'{_T}.layers', flags.number('num-layers') - len(idle), ('num-layers', 'noop-layers'))


MINDSPEED: Final = Source(
    'MindSpeed',
    table_of('mindspeed').over(megatron.MEGATRON.table),
    rules=(*megatron.OF_MODEL, mindspeed_model, mindspeed_experts, *megatron.WHOLE_PLAN, mindspeed_plan),
    framework='MindSpeed-LLM',
    profile='ascend910b-8',
    # Nodes of the Atlas 800T A3 have sixteen dies.
    nodes={16: 'ascend910c-16'},
    # As its examples are called: pretrain_…_A5_ptd.sh.
    names={'a3': 'ascend910c-16', 'a5': 'ascend950-8'},
)
MINDSPEED_HINTS: Final = re.compile(
    r'ascend|hccl|mindspeed|\bnpu|msrun|use-fused-rotary-pos-emb|--(norm-topk-prob|seq-aux|post-norm|add-dense-bias|'
    r'context-parallel-algo|first-k-dense-replace|n-shared-experts|gelu-tanh|geglu|noop-layers|num-layer-list|'
    r'output-logit-softcapping|reuse-fp32-param|lora-target-modules|swap-attention|moe-fb-overlap|schedules-method)\b',
    re.IGNORECASE,
)
"""What a script of Megatron-LM on GPUs does not have."""
