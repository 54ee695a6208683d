"""Settings: a published row as a schedule, or why there is none; of Megatron-LM's own runs by their flags."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from simpar.profiles import load_profile
from simpar.stacks import load_stack, stack_of
from simpar.validate.rows import VOCABULARY, Row

PROFILES: Final = (
    ('a100-pcie', 'a100-pcie-8'),
    ('a100', 'a100-sxm-8'),
    ('h100-pcie', 'h100-pcie-8'),
    ('h100-sxm 96', 'h100-sxm-96-8'),
    ('h100', 'h100-sxm-8'),
    ('h200', 'h200-sxm-8'),
    ('gb200', 'gb200-nvl72'),
    ('b200', 'b200-sxm-8'),
    ('v100', 'v100-sxm2-8'),
    ('l40s', 'l40s-8'),
    ('4090', 'rtx4090-8'),
    ('910c', 'ascend910c-16'),
    ('910b', 'ascend910b-8'),
    # Atlas 800T A2 has eight 910B, whether a row says so or not.
    ('800t a2', 'ascend910b-8'),
    ('910a', 'ascend910a-8'),
)
"""Words of a row's hardware, and the profile that it stands for."""
ORDERS: Final = {
    '1f1b': '1f1b', '1f1b-i': 'interleaved-1f1b', 'interleaved-1f1b': 'interleaved-1f1b', 'zb-1p': 'zb-1p',
    'zb-2p': 'zb-2p', 'zb-v': 'zb-v', 'gpipe': 'gpipe',
}  # fmt: skip
"""A row's schedule, in small letters, and the order that it stands for."""
NODE: Final = 8
_ALIKE: Final = 0.05
"""Bandwidths that differ by less are the same."""


class Skipped(Exception):
    """Why a row is not predicted."""


def reason(row: Row) -> str:
    """Why a row is not predicted; empty where it is."""
    return next((found for wrong in _REASONS if (found := wrong(row))), '')


def stack_name(row: Row) -> str:
    """The stack of a row: as its column says, or by its framework."""
    flags = row.text('overlap_flags') or None
    found = row.text('stack') or stack_of(row.text('framework'), row.text('hardware'), row.whole('year', 9999), flags)
    validated = (
        'post-validation' in row.text('overlap_flags') and ORDERS.get(row.text('schedule').lower(), '')[:2] == 'zb'
    )
    return 'zero-bubble-post' if found == 'zero-bubble' and validated else found


def _filled(tree: dict[str, Any], row: Row) -> dict[str, Any]:
    """The tree with what the row's stack has where the row is silent."""
    for key, value in load_stack(stack_name(row)).of_rows.items():
        *path, last = key.split('.')
        under = tree
        for part in path:
            under = under.setdefault(part, {})
        under.setdefault(last, value)
    return tree


def _profile(row: Row) -> str:
    hardware = row.text('hardware').lower().replace(' pcie', '-pcie').replace('_', '-')
    if 'a100' in hardware and row.whole('gpu_mem_gb') == 40:
        return 'a100-sxm-40-8'
    return next((profile for word, profile in PROFILES if word in hardware), '')


def _unknown_hardware(row: Row) -> str:
    return '' if _profile(row) else f'no profile for {row.text("hardware") or "hardware that is not stated"}'


def _incomplete(row: Row) -> str:
    if not row.seconds:
        return 'no step time'
    if missing := _not_stated(row, ('n_gpus', 'n_layers', 'hidden', 'heads', 'seq', 'micro_batch', 'global_batch')):
        return missing
    if 'do not score time' in row.text('notes'):
        return 'marked: its time is not to be scored'
    return 'marked partial: of use as a ratio only' if row.text('completeness') == 'partial' else ''


def _not_modelled(row: Row) -> str:
    """What simpar has no operators or axes for."""
    if 'fp8' in row.text('dtype').lower():
        return 'fp8'
    if 'lora' in (row.text('model') + row.text('notes')).lower() or 'ptuning' in row.text('model').lower():
        return 'adapters'
    if row.whole('n_experts') > 1 and not row.whole('topk'):
        return 'not stated: topk'
    if row.whole('ep', 1) > 1 and row.whole('n_experts') < 2:
        return 'expert parallelism without experts'
    return ''


def _odd_batch(row: Row) -> str:
    if wrong := _uneven(row):
        return wrong
    data, samples = max(1, row.whole('dp', 1)), row.whole('micro_batch', 1)
    if row.whole('global_batch') % (data * samples):
        return 'the batch is no multiple of data × micro-batch'
    return ''


_REASONS: Final[tuple[Callable[[Row], str], ...]] = (_incomplete, _unknown_hardware, _not_modelled, _odd_batch)


def cluster_of(row: Row) -> dict[str, Any]:
    profile, devices = load_profile(_profile(row)), row.whole('n_gpus')
    node = row.whole('gpus_per_node', min(NODE, profile.devices))
    # The trays of a rack that is one domain count as one node.
    node = profile.devices if profile.devices > NODE else node
    found: dict[str, Any] = {'profile': profile.name, 'nodes': -(-devices // node), 'devices': min(node, devices)}
    found['stack'] = stack_name(row)
    outermost = profile.links[-1]
    stated = _between_nodes(row.text('inter_link')) / node
    # What a row states of its network goes before what the profile takes it to be.
    if stated and abs(stated / outermost.bandwidth.value - 1) > _ALIKE:
        found['links'] = {outermost.name: stated / outermost.bandwidth.value}
    return found


def _between_nodes(text: str) -> float:
    """Bytes a second between nodes, of a text such as '4x200Gb/s' or '1600 Gbps'; 0 where it states none."""
    found = re.search(r'(?:(\d+) ?x ?)?(\d+) ?Gb(?:/s|ps)', text)
    return float(found[1] or 1) * float(found[2]) / 8 * 1e9 if found else 0.0


def workload_of(row: Row) -> dict[str, Any]:
    heads, tensor = row.whole('heads'), row.whole('tp', 1)
    model: dict[str, Any] = {
        'layers': row.whole('n_layers'),
        'hidden': row.whole('hidden'),
        'heads': heads,
        'vocab': row.whole('vocab', VOCABULARY),
        'sequence': row.whole('seq'),
        # Megatron's own padding, which every framework that splits a vocabulary has in some form.
        'pad_vocab': 128 * tensor,
    }
    if row.text('ffn'):
        model['ffn'] = row.whole('ffn')
    if row.whole('kv_heads', heads) != heads:
        model['kv_heads'] = row.whole('kv_heads')
    if row.whole('head_dim') and row.whole('head_dim') != row.whole('hidden') // heads:
        model['head_dim'] = row.whole('head_dim')
    # Where a model of Ascend's tables has no word for it, three products of this width are its feed-forward.
    if 'glu' in row.text('mlp') or (not row.text('mlp') and row.whole('ffn') % row.whole('hidden')):
        activation = row.text('mlp') if row.text('mlp').startswith('geglu') else 'swiglu'
        model |= {'activation': activation, 'norm': 'rms_norm', 'position': 'rotary', 'bias': []}
    if row.whole('n_experts') > 1:
        model['experts'] = {'count': row.whole('n_experts'), 'top_k': row.whole('topk')}
        if row.text('moe_ffn'):
            model['experts']['ffn'] = row.whole('moe_ffn')
    return {'transformer': model, 'batch': row.whole('global_batch'), 'precision': _precision(row)}


def _precision(row: Row) -> str:
    dtype = row.text('dtype').lower()
    return 'fp16' if dtype.startswith(('fp16', 'float16')) else 'bf16'


def plan_of(row: Row) -> dict[str, Any]:
    """The plan of a row, by the columns that all sets have."""
    plan, pipeline = _degrees(row), row.whole('pp', 1)
    copies = row.whole('interleave_copies', 1)
    if copies > 1:
        plan |= {'copies': copies, 'micro_batches': max(1, plan['micro_batches'] // copies)}
    recompute = recomputes(row)
    if recompute:
        plan['recompute'] = recompute
    if pipeline > 1:
        plan |= _pipeline(row, pipeline)
    if _overlaps(row, 'grad-reduce'):
        plan |= {'reduce_gradients': 'overlapped', 'fusion': '40 MB'}
    return plan


def _degrees(row: Row) -> dict[str, Any]:
    """Degrees, micro-batches and shards."""
    data, tensor = max(1, row.whole('dp', 1)), row.whole('tp', 1)
    plan: dict[str, Any] = {
        'data': data,
        'tensor': tensor,
        'pipeline': row.whole('pp', 1),
        'micro_batches': row.whole('global_batch') // data // row.whole('micro_batch', 1),
    }
    if tensor > 1 and row.whole('sp'):
        plan['sequence_parallel'] = True
    if row.whole('cp', 1) > 1:
        # What Megatron's context parallelism does unless told otherwise: keys and values go round (cp_comm_type p2p).
        plan |= {'context': row.whole('cp'), 'context_kind': 'ring'}
    if row.whole('ep', 1) > 1:
        plan['expert'] = row.whole('ep')
    if data > 1 and row.whole('zero_stage'):
        plan['zero'] = row.whole('zero_stage')
    return plan


def _overlaps(row: Row, what: str) -> bool:
    return f'overlap-{what}' in row.text('overlap_flags')


def recomputes(row: Row) -> str:
    """``full``, ``selective`` or nothing: of JSON as MindFormers writes it, or in Megatron's words."""
    text = row.text('recompute')
    if text.startswith('{'):
        told = json.loads(text)
        # Of layers by stage a part is recomputed: no plan here says which.
        return 'full' if told.get('recompute') is True else ''
    word = text.split(' ')[0]
    return {'full': 'full', 'block': 'full', 'selective': 'selective'}.get(word, '')


def order_of(row: Row) -> str:
    """The order that a row's schedule stands for; empty where it is not known, or not stated."""
    found = ORDERS.get(row.text('schedule').lower().replace('_', '-'), '')
    # What several chunks make of 1F1B.
    return 'interleaved-1f1b' if found == '1f1b' and row.whole('vpp_chunks', 1) > 1 else found


def _pipeline(row: Row, pipeline: int) -> dict[str, Any]:
    chunks, layers = row.whole('vpp_chunks', 1), row.whole('n_layers')
    order = order_of(row) or ('interleaved-1f1b' if chunks > 1 else '1f1b')
    if order == 'zb-v':
        chunks = 2
    plan: dict[str, Any] = {'order': order}
    if chunks > 1:
        plan['chunks'] = chunks
    stages = pipeline * chunks
    # The first and the last stage may have a layer less, in place of embedding and head.
    if layers % stages and (layers + 2) % stages == 0:
        each = (layers + 2) // stages
        plan['stages'] = [each - 1, *([each] * (stages - 2)), each - 1]
    return plan


VARIABLE: Final = re.compile(r'(q_lora|kv_lora|qk_head|rope_head|v_head)=(\d+)')
LATENT: Final = {
    'q_lora': 'q_lora_rank',
    'kv_lora': 'kv_lora_rank',
    'qk_head': 'qk_nope_head_dim',
    'rope_head': 'qk_rope_head_dim',
    'v_head': 'v_head_dim',
}
"""Words of a row's attention, and the keys that they stand for."""
VOCABULARY_STEP: Final = 128
"""Megatron pads its vocabulary to so many rows for each tensor rank."""


def megatron_tree(row: Row) -> dict[str, Any]:
    """Workload and plan of a row, as a schedule has them; raises ``Skipped`` for what is not modelled."""
    for wrong in (_unstated, _unmodelled, _uneven):
        reason = wrong(row)
        if reason:
            raise Skipped(reason)
    return _filled({'simpar': 1, 'workload': _workload(row), 'plan': _plan(row)}, row)


def _unstated(row: Row) -> str:
    if row.text('completeness') == 'partial':
        return 'marked partial: of use as a ratio only'
    columns = ('n_gpus', 'n_layers', 'hidden', 'heads', 'seq', 'micro_batch', 'global_batch', 'tp', 'pp', 'dp')
    return _not_stated(row, columns)


def _not_stated(row: Row, columns: Sequence[str]) -> str:
    missing = [column for column in columns if not row.text(column)]
    return f'not stated: {", ".join(missing)}' if missing else ''


def _unmodelled(row: Row) -> str:
    """What simpar has no keys for."""
    if row.text('fp8'):
        return 'fp8 with weights gathered in 8 bits'
    if row.whole('mtp_layers'):
        return 'modules that predict further tokens (MTP)'
    if row.text('optimizer') != 'adam':
        return f'{row.text("optimizer")} over layers, as Megatron has it'
    if row.whole('ep', 1) > 1 and row.whole('etp', 1) != row.whole('tp', 1):
        return 'experts with another tensor degree than attention'
    return ''


def _uneven(row: Row) -> str:
    world = row.whole('tp', 1) * row.whole('pp', 1) * row.whole('cp', 1) * max(1, row.whole('dp', 1))
    return '' if world == row.whole('n_gpus') else f'{world} ranks of its degrees on {row.whole("n_gpus")} devices'


def _has(row: Row, flag: str) -> bool:
    return f'--{flag}' in row.text('flags').split()


def _valued(row: Row, flag: str) -> str:
    found = re.search(rf'--{flag}=(\S+)', row.text('flags'))
    return found.group(1) if found else ''


def _workload(row: Row) -> dict[str, Any]:
    swiglu = 'swiglu' in row.text('mlp')
    attention = row.text('attention_kind')
    model: dict[str, Any] = {
        'layers': row.whole('n_layers'),
        'hidden': row.whole('hidden'),
        'heads': row.whole('heads'),
        'ffn': row.whole('ffn'),
        'vocab': row.whole('vocab'),
        'pad_vocab': _pad(row),
        'sequence': row.whole('seq'),
        'tied': not row.whole('untied_embeddings'),
        'activation': 'swiglu' if swiglu else 'gelu',
        'bias': ['qkv', 'proj', 'ffn'] if row.whole('bias_linear', 1) else [],
        'attention': 'unfused' if 'unfused' in attention or _has(row, 'transformer-impl=local') else 'flash',
        'dropout': float(_valued(row, 'hidden-dropout') or 0.1),
    }
    if row.whole('kv_heads') != row.whole('heads'):
        model['kv_heads'] = row.whole('kv_heads')
    if 'rope' in row.text('position_embedding'):
        model['position'] = 'rotary'
    if _valued(row, 'normalization') == 'RMSNorm':
        model['norm'] = 'rms_norm'
    if attention.startswith('MLA'):
        model |= {LATENT[word]: int(number) for word, number in VARIABLE.findall(attention)}
        model['position'] = 'rotary'
    elif row.whole('head_dim') * row.whole('heads') != row.whole('hidden'):
        model['head_dim'] = row.whole('head_dim')
    if row.whole('n_experts') > 1:
        model['experts'] = _experts(row)
        model['bias'] = [one for one in model['bias'] if one != 'ffn']
    half = row.text('dtype').startswith('fp16')
    gradients = row.text('grad_dtype') or 'fp32'
    return {
        'transformer': model,
        'batch': row.whole('global_batch'),
        'precision': 'fp16' if half else 'bf16',
        'gradients': gradients,
        'optimizer': {'adam': {'master_weights': True}},
        'clip_norm': 1.0,
    }


def _pad(row: Row) -> int:
    step = int(_valued(row, 'make-vocab-size-divisible-by') or VOCABULARY_STEP)
    return step * row.whole('tp', 1)


def _experts(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {'count': row.whole('n_experts'), 'top_k': row.whole('topk', 2)}
    if row.whole('moe_ffn'):
        found['ffn'] = row.whole('moe_ffn')
    if row.whole('moe_shared_ffn'):
        found['shared'] = row.whole('moe_shared_ffn')
    if float(_valued(row, 'moe-aux-loss-coeff') or 0):
        found['aux_loss'] = float(_valued(row, 'moe-aux-loss-coeff'))
    return found


def _plan(row: Row) -> dict[str, Any]:
    plan, pipeline = _degrees(row), row.whole('pp', 1)
    overlapped = _overlaps(row, 'grad-reduce')
    plan |= {
        'fusion': '40 MB' if overlapped else 'all',
        'reduce_gradients': 'overlapped' if overlapped else 'end',
    }
    instances = int(_valued(row, 'num-distributed-optimizer-instances') or 1)
    if 'zero' in plan and instances > 1:
        plan['shard_group'] = plan['data'] // instances
        if instances * row.whole('ep', 1) == plan['data']:
            # The ranks that share an expert are one in each instance.
            plan['unsharded'] = ['*.experts.*']
    if pipeline > 1:
        chunks = row.whole('vpp_chunks', 1)
        order = order_of(row)
        if not order:
            raise Skipped(f'schedule {row.text("schedule") or "not stated"}')
        plan['order'] = order
        if chunks > 1:
            plan['chunks'] = chunks
        if _overlaps(row, 'p2p'):
            # Messages of their own then, received ahead.
            plan |= {'exchange': 'separate', 'receive': 'early'}
        counts = stage_layers(row, pipeline * chunks)
        if counts:
            plan['stages'] = counts
    return plan


def stage_layers(row: Row, stages: int) -> list[int]:
    """Layers of each stage where these are not equal, as its flags tell; empty: equal."""
    layers = row.whole('n_layers')
    embedding = _has(row, 'account-for-embedding-in-pipeline-split')
    loss = _has(row, 'account-for-loss-in-pipeline-split')
    first = _valued(row, 'decoder-first-pipeline-num-layers')
    last = _valued(row, 'decoder-last-pipeline-num-layers')
    if embedding or loss:
        each, rest = divmod(layers + embedding + loss, stages)
        counts = [each] * stages
        counts[0] -= embedding
        counts[-1] -= loss
    elif first or last:
        ends = (int(first) if first else None, int(last) if last else None)
        middle = stages - sum(end is not None for end in ends)
        each, rest = divmod(layers - sum(end or 0 for end in ends), middle)
        counts = [each] * stages
        if ends[0] is not None:
            counts[0] = ends[0]
        if ends[1] is not None:
            counts[-1] = ends[1]
    else:
        return []
    if rest:
        raise Skipped('layers that do not divide over stages')
    return counts


def options(row: Row) -> frozenset[str]:
    """Options of a run that facts of a stack ask for."""
    local = _has(row, 'transformer-impl=local')
    told = {
        # Its own environment: CUBLAS_WORKSPACE_CONFIG=:4096:8.
        'deterministic': _has(row, 'deterministic-mode'),
        'local': local,
        'attention-auto': 'backend=auto' in row.text('attention_kind') and not local,
        'no-mask': _has(row, 'no-create-attention-mask-in-dataloader'),
        'softmax-unfused': _has(row, 'no-masked-softmax-fusion'),
        'grouped': _has(row, 'moe-grouped-gemm'),
        'fused-loss': _has(row, 'cross-entropy-loss-fusion'),
    }
    return frozenset(name for name, holds in told.items() if holds)


def schedule_tree(row: Row) -> dict[str, Any]:
    """The tree of a schedule file for a row; raises ``Skipped`` where it says too little, or what is not modelled."""
    why = reason(row)
    if why:
        raise Skipped(why)
    tree: dict[str, Any] = {'simpar': 1, 'cluster': cluster_of(row)}
    if row.text('flags').startswith('--'):
        # Megatron-LM's own flags say more than the columns that all sets have.
        return tree | megatron_tree(row)
    return _filled({**tree, 'workload': workload_of(row), 'plan': plan_of(row)}, row)
