"""Settings: a published row as a schedule, or why there is none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from simpar.profiles import load_profile
from simpar.stacks import stack_of
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
    found = row.text('stack') or stack_of(row.text('framework'), row.text('hardware'), flags=flags)
    validated = (
        'post-validation' in row.text('overlap_flags') and ORDERS.get(row.text('schedule').lower(), '')[:2] == 'zb'
    )
    return 'zero-bubble-post' if found == 'zero-bubble' and validated else found


def put_under(tree: dict[str, Any], path: list[str], value: Any) -> None:
    """A value of the stack where the row has none."""
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree.setdefault(path[-1], value)


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
    told = ('n_gpus', 'n_layers', 'hidden', 'heads', 'seq', 'micro_batch', 'global_batch')
    missing = [column for column in told if not row.text(column)]
    if missing:
        return f'not stated: {", ".join(missing)}'
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
    world = row.whole('tp', 1) * row.whole('pp', 1) * row.whole('cp', 1) * max(1, row.whole('dp', 1))
    if world != row.whole('n_gpus'):
        return f'{world} ranks of its degrees on {row.whole("n_gpus")} devices'
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
    data, tensor, pipeline = max(1, row.whole('dp', 1)), row.whole('tp', 1), row.whole('pp', 1)
    plan: dict[str, Any] = {
        'data': data,
        'tensor': tensor,
        'pipeline': pipeline,
        'micro_batches': row.whole('global_batch') // data // row.whole('micro_batch', 1),
    }
    if tensor > 1 and row.whole('sp'):
        plan['sequence_parallel'] = True
    if row.whole('cp', 1) > 1:
        # What Megatron's context parallelism does unless told otherwise.
        plan |= {'context': row.whole('cp'), 'context_kind': 'ring'}
    if row.whole('ep', 1) > 1:
        plan['expert'] = row.whole('ep')
    if data > 1 and row.whole('zero_stage'):
        plan['zero'] = row.whole('zero_stage')
    copies = row.whole('interleave_copies', 1)
    if copies > 1:
        plan['copies'] = copies
        plan['micro_batches'] = max(1, plan['micro_batches'] // copies)
    recompute = recomputes(row)
    if recompute:
        plan['recompute'] = recompute
    if pipeline > 1:
        plan |= _pipeline(row, pipeline)
    if 'overlap-grad-reduce' in row.text('overlap_flags'):
        plan |= {'reduce_gradients': 'overlapped', 'fusion': '40 MB'}
    return plan


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
