"""MindSpeed's flags beside those of Megatron-LM, as scripts of Ascend/MindSpeed-LLM have them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import sqrt
from typing import Final

from simpar.importing import megatron_model, megatron_plan
from simpar.importing.flags import IDLE, NOT_MODELLED, NOW, Left, Row, Says, Settings, Source, Told, number, ruled
from simpar.importing.megatron import ALIASES, MEGATRON, ROWS

_T: Final = 'workload.transformer'
_ROWS: Final[dict[str, Row]] = {
    'context-parallel-algo': ruled('plan.context_kind', 'ulysses_cp_algo: all_to_all, megatron_cp_algo: ring'),
    'use-ascend-coc': ruled('plan.tiles', 'coc-parallel-num, 4 without it'),
    'coc-parallel-num': ruled('plan.tiles', 'the same number, with use-ascend-coc'),
    'use-ascend-mc2': ruled('plan.tiles', '4'),
    'schedules-method': ruled('plan.order', 'dualpipev: dualpipe-v'),
    'num-layer-list': ruled('plan.stages', 'the same numbers'),
    'noop-layers': ruled(f'{_T}.layers', 'num-layers without these, and plan.stages'),
    'recompute-activation-function': ruled('plan.recompute', 'a pattern of the activation, unless more is recomputed'),
    'first-k-dense-replace': ruled(f'{_T}.experts.first_dense', 'the same number; -1: none'),
    'n-shared-experts': ruled(f'{_T}.experts.shared', 'times moe-ffn-hidden-size'),
    'norm-topk-prob': ruled(f'{_T}.experts.normalise', 'true; without it false'),
    'seq-aux': ruled(f'{_T}.experts.aux_group', 'sample'),
    'sliding-window-size': ruled(f'{_T}.window', 'the same number'),
    'interleave-sliding-window': ruled(f'{_T}.window', 'every second layer has one'),
    'post-norm': ruled(f'{_T}.post_norms', 'true'),
    'gelu-tanh': ruled(f'{_T}.activation', 'geglu_tanh with geglu, else gelu_tanh'),
    'geglu': ruled(f'{_T}.activation', 'geglu'),
    'query-pre-attn-scalar': ruled(f'{_T}.attention_scale', '1 / √ of it'),
    'attn-logit-softcapping': number(f'{_T}.attention_softcap'),
    'output-logit-softcapping': number(f'{_T}.logit_softcap'),
    'input-embeds-norm': ruled(f'{_T}.embedding_scale', '√ of hidden-size'),
    'partial-rotary-factor': ruled(f'{_T}.rotary_share', 'the same number'),
    'add-output-layer-bias': ruled(f'{_T}.bias', 'head'),
    'add-dense-bias': ruled(f'{_T}.bias', 'proj'),
}
_ALIASES: Final = {
    'multi-head-latent-attention': 'multi-latent-attention', 'qk-nope-head-dim': 'qk-head-dim',
    'qk-rope-head-dim': 'qk-pos-emb-head-dim', 'shared-expert-gate': 'moe-shared-expert-gate',
    'local-worker-num': 'nproc-per-node', 'moe-intermediate-size': 'moe-ffn-hidden-size',
    'add-rmsnorm': 'normalization', 'use-mc2': 'use-ascend-mc2', 'sliding-window': 'sliding-window-size',
}  # fmt: skip
_IDLE: Final = {
    'kernels that simpar prices as fused anyway': 'use-fused-* no-use-fused-* npu-deterministic shape-order '
    'use-deter-comp apply-rope-no-* mla-fa-without-pad mla-mm-split use-triton-* gemm-gradient-accumulation-fusion '
    'coc-fused-kernel coc-mode coc-print-tensor-value-enabled no-enable-linear-qkv use-flash-attn-*',
    'how processes find one another': 'join cluster-time-out bind-core log-dir ai-framework '
    'no-shared-storage disable-gloo-group tail-log',
    'names, checkpoints and data': 'model-type-hf enable-hf2mg-convert enable-mg2hf-convert hf-cfg-dir '
    'trust-remote-code pack neat-pack padded-samples stage workers cutoff-len max-batch-size original-seq-len',
    'a scale that values alone have': 'rope-scaling-* low-freq-factor high-freq-factor long-factor short-factor '
    'long-mscale short-mscale longrope-freqs-type add-rmsnorm-offset router-gating-in-fp32 topk-softmax-in-fp32 '
    'rmsnorm-weight-in-fp32 init-norm-weight-in-fp32 use-glm-rope swiglu-limit input-jitter '
    'embedding-multiplier-scale output-multiplier-scale rope-factor compress-rope-theta routed-scaling-factor '
    'scale-emb scale-depth dim-model-base enable-mla-scale-*',
}  # fmt: skip
_MISSING: Final = {
    'memory that is moved or kept once': 'swap-* reuse-fp32-param enable-recompute-layers-per-pp-rank recompute-in-* '
    'recompute-norm recompute-norm-num-layers adaptive-* smart-swap',
    'states and gradients of fewer bits': 'o2-optimizer o2-gradient fp32-residual-connection',
    'overlap of expert exchange and compute': 'moe-alltoall-overlap-comm moe-permutation-async-comm '
    'moe-allgather-overlap-comm moe-fb-overlap moe-zero-memory moe-zero-memory-num-layers moe-unperm2-mem-optim*',
    'tensor ranks that hold experts': 'moe-tp-extend-ep',
    'context parallelism of two kinds at once': 'ulysses-degree-in-cp kv-head-repeat-before-uly-alltoall '
    'use-cp-send-recv-overlap cp-window-size attention-mask-type cp-attention-mask-type megatron-cp-in-bnsd',
    'sparse or linear attention': 'enable-dsa-* use-sparse-* index* linear-* full-attention-interval kv-compress '
    'compress-ratios use-dsa-* no-use-sparse-c8-indexer',
    'layers of another kind': 'enable-mhc hc-* o-lora-rank o-groups n-hash-layers num-zero-experts enable-mla-absorb '
    'reset-attention-mask',
    'a head in chunks': 'loss-compute-mode loss-chunk-size',
    'tensor parallelism in two dimensions': 'tp-2d tp-x tp-y enable-overlap-*',
    'how sends of the pipeline overlap': 'variable-seq-lengths optimize-send-recv-comm optimize-vpp-send-recv-comm',
}  # fmt: skip


def model(flags: Settings) -> Iterator[Told]:
    """What MindSpeed-LLM adds to a model."""
    if not flags.on('use-flash-attn'):
        yield Says(f'{_T}.attention', 'unfused', (), 'without --use-flash-attn')
    if flags.on('geglu') or flags.on('gelu-tanh'):
        kind = ('geglu_tanh' if flags.on('gelu-tanh') else 'geglu') if flags.on('geglu') else 'gelu_tanh'
        yield Says(f'{_T}.activation', kind, flags.given('geglu', 'gelu-tanh'))
    if flags.number('sliding-window-size', 0):
        width = flags.number('sliding-window-size', 0)
        value = [width, 0] if flags.on('interleave-sliding-window') else width
        yield Says(f'{_T}.window', value, flags.given('sliding-window-size', 'interleave-sliding-window'))
    elif flags.number('interleave-sliding-window', 0):
        width = flags.number('interleave-sliding-window', 0)
        yield Says(f'{_T}.window', [width, 0], ('interleave-sliding-window',))
    if flags.on('post-norm'):
        yield Says(f'{_T}.post_norms', True, ('post-norm',))
    if flags.real('query-pre-attn-scalar', 0.0) > 0:
        scale = 1 / sqrt(flags.real('query-pre-attn-scalar', 1.0))
        yield Says(f'{_T}.attention_scale', scale, ('query-pre-attn-scalar',))
    if flags.on('input-embeds-norm'):
        yield Says(f'{_T}.embedding_scale', sqrt(flags.number('hidden-size', 1)), ('input-embeds-norm',))
    if 0 < flags.real('partial-rotary-factor', 0.0) <= 1 and flags.text('position-embedding-type') == 'rope':
        yield Says(f'{_T}.rotary_share', flags.real('partial-rotary-factor', 1.0), ('partial-rotary-factor',))
    yield from biases(flags)


def biases(flags: Settings) -> Iterator[Told]:
    """Biases of single products, where the others have none."""
    own = {'add-qkv-bias': 'qkv', 'add-dense-bias': 'proj', 'add-output-layer-bias': 'head'}
    if flags.given('add-dense-bias', 'add-output-layer-bias'):
        all_of = [] if flags.on('disable-bias-linear') else ['qkv', 'proj', 'ffn']
        listed = dict.fromkeys([*all_of, *(key for name, key in own.items() if flags.on(name))])
        yield Says(f'{_T}.bias', list(listed), flags.given(*own))


def experts(flags: Settings) -> Iterator[Told]:
    """What MindSpeed-LLM says of experts in its own words."""
    if not flags.number('num-experts', 0):
        for name in flags.given('first-k-dense-replace', 'n-shared-experts', 'norm-topk-prob', 'seq-aux'):
            yield Left(name, IDLE, 'without num-experts')
        return
    if flags.number('first-k-dense-replace', 0) > 0:
        yield Says(f'{_T}.experts.first_dense', flags.number('first-k-dense-replace', 0), ('first-k-dense-replace',))
    if flags.number('n-shared-experts', 0):
        width = flags.number('moe-ffn-hidden-size', flags.number('ffn-hidden-size', 0))
        shared = flags.number('n-shared-experts', 0) * width
        yield Says(f'{_T}.experts.shared', shared, flags.given('n-shared-experts', 'moe-ffn-hidden-size'))
    yield Says(f'{_T}.experts.normalise', flags.on('norm-topk-prob'), flags.given('norm-topk-prob'))
    if flags.on('seq-aux'):
        yield Says(f'{_T}.experts.aux_group', 'sample', ('seq-aux',))


def plan(flags: Settings) -> Iterator[Told]:
    """What MindSpeed adds to a plan."""
    if flags.number('context-parallel-size', 1) > 1:
        kinds = {'ulysses_cp_algo': 'all_to_all', 'megatron_cp_algo': 'ring'}
        kind = flags.text('context-parallel-algo', 'megatron_cp_algo')
        yield Says('plan.context_kind', kinds.get(kind, 'ring'), flags.given('context-parallel-algo'))
        if kind not in kinds:
            yield Left('context-parallel-algo', NOT_MODELLED, f'{kind}; ring is written')
    elif 'context-parallel-algo' in flags:
        yield Left('context-parallel-algo', IDLE, 'one context rank')
    tiled = flags.given('use-ascend-coc', 'use-ascend-mc2')
    if tiled and flags.number('tensor-model-parallel-size', 1) > 1:
        parts = max(flags.number('coc-parallel-num', 4), 1)
        yield Says('plan.tiles', parts, (*tiled, *flags.given('coc-parallel-num')), 'products and sums in parts')
    else:
        for name in (*tiled, *flags.given('coc-parallel-num')):
            yield Left(name, IDLE, 'with one tensor rank, or switched off')
    if flags.text('schedules-method') == 'dualpipev':
        yield Says('plan.order', 'dualpipe-v', ('schedules-method',))
        yield Says('plan.chunks', 2, ('schedules-method',))
    elif 'schedules-method' in flags:
        yield Left('schedules-method', NOT_MODELLED, f'{flags.text("schedules-method")}; 1f1b is written')
    yield from stages(flags)
    if flags.on('recompute-activation-function'):
        if 'recompute-granularity' in flags:
            yield Left('recompute-activation-function', NOT_MODELLED, 'beside recompute-granularity, which is written')
        else:
            name = 'swiglu' if flags.on('swiglu') else 'gelu'
            yield Says('plan.recompute', [f'layer*.{name}'], ('recompute-activation-function',))


def stages(flags: Settings) -> Iterator[Told]:
    """Layers of each stage, as a list or by layers that do nothing."""
    ranks, layers = flags.number('pipeline-model-parallel-size', 1), flags.number('num-layers', 0)
    each = flags.number('num-layers-per-virtual-pipeline-stage', 0)
    count = layers // each if each else ranks * (2 if flags.text('schedules-method') == 'dualpipev' else 1)
    idle = (
        {int(one) for one in re.findall(r'\d{1,5}', flags.named['noop-layers'].shown)}
        if 'noop-layers' in flags
        else set()
    )
    idle = {one for one in idle if one < layers}
    if idle:
        yield Says(f'{_T}.layers', layers - len(idle), ('num-layers', 'noop-layers'))
        if ranks > 1 and count and layers % count == 0:
            share = layers // count
            left = [sum(one // share == stage for one in idle) for stage in range(count)]
            if flags.text('schedules-method') == 'dualpipev':
                yield Left('noop-layers', NOT_MODELLED, 'their place in a V; layers are shared out evenly')
            else:
                yield Says('plan.stages', [share - one for one in left], ('noop-layers',))
    elif 'noop-layers' in flags:
        yield Left('noop-layers', IDLE, 'none')
    listed = (
        [int(one) for one in re.findall(r'\d{1,5}', flags.named['num-layer-list'].shown)]
        if 'num-layer-list' in flags
        else []
    )
    if listed and sum(listed) == layers and len(listed) == ranks > 1:
        yield Says('plan.stages', listed, ('num-layer-list',))
    elif listed:
        yield Left('num-layer-list', NOT_MODELLED, 'as these numbers do not add up to the layers of the stages')


def _numbers(flags: Settings, name: str) -> list[int]:
    return [int(one) for one in re.findall(r'\d{1,5}', flags.named[name].shown)] if name in flags else []


MINDSPEED: Final = Source(
    name='MindSpeed',
    profile='ascend910b-8',
    rows={**ROWS, **_ROWS},
    idle={**MEGATRON.idle, **{f'{what} ': names for what, names in _IDLE.items()}},
    not_modelled={**MEGATRON.not_modelled, **{f'{what} ': names for what, names in _MISSING.items()}},
    aliases={**ALIASES, **_ALIASES},
    rules=(*megatron_model.RULES, model, experts, *megatron_plan.RULES, plan),
    # Nodes of the Atlas 800T A3 have sixteen dies.
    nodes={16: 'ascend910c-16'},
    framework=lambda _: ('MindSpeed-LLM', NOW),
)
OWN: Final = (_ROWS, _IDLE, _MISSING)
"""The tables of what MindSpeed adds, for the docs."""
HINTS: Final = re.compile(r'ascend|hccl|mindspeed|\bnpu|msrun|use-fused-rotary-pos-emb', re.IGNORECASE)
"""What a script of Megatron-LM on GPUs does not have."""
