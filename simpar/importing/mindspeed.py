"""What MindSpeed and MindSpeed-LLM have beside Megatron-LM's flags.

The names and defaults are those of mindspeed/arguments.py of Ascend/MindSpeed and of scripts of Ascend/MindSpeed-LLM.
"""

import re
from collections.abc import Iterator
from math import sqrt
from typing import Final

from simpar.importing.findings import Entry, Finding, Guess, Unmapped
from simpar.importing.megatron import (
    MEGATRON,
    OF_MODEL,
    OF_PLAN,
    activation_of,
    idle_layers,
    recompute,
    sharding,
)
from simpar.importing.mixtures import number_of_experts
from simpar.importing.settings import NOW, Settings, Source, table_of

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
    yield from documents(flags)


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
        yield from flags.left('without reset-attention-mask', 'fix-sub-seq-length')
        return
    yield Entry(f'{_T}.documents', max(0, length), flags.given(name, 'fix-sub-seq-length'), 'tokens of a document')
    if length <= 0:
        yield Guess('each sample is one document, whose attention takes longest: documents says how long they are')


def mindspeed_experts(flags: Settings) -> Iterator[Finding]:
    """What MindSpeed-LLM says of experts in its own words."""
    yield from flags.said('first-k-dense-replace')
    if not number_of_experts(flags):
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
    if flags.number('context-parallel-size') > 1 and 'context-parallel-algo' not in flags:
        # Ascend/MindSpeed 028de58ca6, mindspeed/arguments.py, line 175.
        yield Guess('a ring of context ranks, as MindSpeed-LLM has it; MindSpeed alone takes ulysses_cp_algo')
    tiled, parts = flags.given('use-ascend-coc', 'use-ascend-mc2'), flags.given('coc-parallel-num', 'coc-fused-kernel')
    if tiled and flags.number('tensor-model-parallel-size') > 1:
        # Ascend/MindSpeed mindspeed/arguments.py: one part; kernels that do both have parts of their own.
        is_fused = 'use-ascend-mc2' in tiled or flags.on('coc-fused-kernel')
        count = 4 if is_fused else max(flags.number('coc-parallel-num'), 1)
        yield Entry('plan.tiles', count, (*tiled, *parts), 'products and sums in parts')
    else:
        yield from flags.left('with one tensor rank, or switched off', *tiled, *parts)
    method = flags.text('schedules-method')
    if method == 'dualpipev':
        yield Entry('plan.order', 'dualpipe-v', ('schedules-method',))
        yield Entry('plan.chunks', 2, ('schedules-method',))
    elif 'schedules-method' in flags:
        yield Unmapped('schedules-method', f'{method}; 1f1b is written')
    if flags.on('swap-optimizer'):
        yield Entry('plan.offload', ['optimizer'], ('swap-optimizer',))
    yield from mindspeed_stages(flags)
    name = 'recompute-activation-function'
    if flags.text('recompute-granularity') == 'full' and flags.text('recompute-method') != 'block':
        yield from flags.left('every layer is recomputed in full', name)
    elif flags.on(name) and 'recompute-granularity' in flags:
        # Ascend/MindSpeed 028de58ca6, mindspeed/model/transformer.py, should_recompute_activation: of all other layers.
        said = [one.value for one in recompute(flags) if isinstance(one, Entry) and one.key == 'plan.recompute']
        if said and isinstance(said[-1], list):
            yield Entry('plan.recompute', [*said[-1], f'layer*.{activation_of(flags)}'], (name,))
        else:
            yield Unmapped(name, 'beside recompute-granularity, which is written')
    elif flags.on(name):
        yield Entry('plan.recompute', [f'layer*.{activation_of(flags)}'], (name,))


def mindspeed_stages(flags: Settings) -> Iterator[Finding]:
    """Layers without those that do nothing."""
    if idle := idle_layers(flags):
        yield Entry(f'{_T}.layers', flags.number('num-layers') - len(idle), ('num-layers', 'noop-layers'))
    else:
        yield from flags.left('none', 'noop-layers')


MINDSPEED: Final = Source(
    name='MindSpeed',
    profile='ascend910b-8',
    table=table_of('mindspeed').over(MEGATRON.table),
    rules=(*OF_MODEL, mindspeed_model, mindspeed_experts, *OF_PLAN, sharding, recompute, mindspeed_plan),
    # Nodes of the Atlas 800T A3 have sixteen dies.
    nodes={16: 'ascend910c-16'},
    framework=lambda _: ('MindSpeed-LLM', NOW),
)
MINDSPEED_HINTS: Final = re.compile(
    r'ascend|hccl|mindspeed|\bnpu|msrun|use-fused-rotary-pos-emb|--(norm-topk-prob|seq-aux|post-norm|add-dense-bias|'
    r'context-parallel-algo|first-k-dense-replace|n-shared-experts|gelu-tanh|geglu|noop-layers|num-layer-list|'
    r'output-logit-softcapping|reuse-fp32-param|moe-fb-overlap|schedules-method)\b',
    re.IGNORECASE,
)
"""What a script of Megatron-LM on GPUs does not have."""
