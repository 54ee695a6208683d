"""Settings: a published row as a schedule, or why there is none; and what is assumed where it is silent."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from simpar.profiles import load_profile, profile_of_hardware
from simpar.validate import columns
from simpar.validate.megatron import megatron_tree
from simpar.validate.recompute import recompute_of
from simpar.validate.rows import VOCABULARY, Row
from simpar.validate.words import Skipped, network_of, precision_of, year_of

NODE: Final = 8
_ALIKE: Final = 0.05
"""Bandwidths that differ by less are the same."""
LONG_AGO: Final = 2000
POSITIONS: Final = {'rope': 'rotary', 'alibi': 'alibi', 'learned': 'learned'}
"""Words of a row's ``position_embedding``, and the position that each stands for."""
UNREAD: Final = ('tp-comm-overlap', 'overlap-moe-expert-parallel-comm', 'use-ascend-coc', 'defer-embedding-wgrad')
"""Words of ``overlap_flags`` that mean an overlap which rows are not read with."""


def reason(row: Row) -> str:
    """Why a row is not predicted; empty where it is."""
    return next((found for wrong in _REASONS if (found := wrong(row))), '')


def assumed(row: Row) -> Iterator[str]:
    """What a row does not say, or not in words that are known, and what stands in its place."""
    if not row.text('vocab'):
        yield f'vocab not stated: {VOCABULARY}'
    if not row.text('dtype'):
        yield 'dtype not stated: bf16'
    if (
        not row.text('stack')
        and year_of(row) is None
        and columns.stack_in(row, LONG_AGO) != columns.stack_in(row, columns.TODAY)
    ):
        yield f'year of {row.text("framework")} not stated: its stack of today'
    if row.whole('dp', 1) > 1 and not row.text('zero_stage') and columns.zero_stage(row):
        yield 'zero_stage of FSDP not stated: 3'
    if row.whole('n_gpus') > _node(row) and (unsure := network_of(row.text('inter_link'), _node(row)).unsure):
        yield unsure
    flags = [word for word in UNREAD if word in row.text('overlap_flags')]
    if flags:
        yield f'overlap_flags not read: {", ".join(flags)}'


def _profile(row: Row) -> str:
    return profile_of_hardware(row.text('hardware'), row.whole('gpu_mem_gb'))


def _unknown_hardware(row: Row) -> str:
    return '' if _profile(row) else f'no profile for {row.text("hardware") or "hardware that is not stated"}'


def _incomplete(row: Row) -> str:
    if not row.seconds:
        return 'no step time'
    if missing := columns.not_stated(
        row, ('n_gpus', 'n_layers', 'hidden', 'heads', 'seq', 'micro_batch', 'global_batch')
    ):
        return missing
    if 'do not score time' in row.text('notes'):
        return 'marked: its time is not to be scored'
    return 'marked partial: of use as a ratio only' if row.text('completeness') == 'partial' else ''


def _not_modelled(row: Row) -> str:
    """What simpar has no operators or axes for."""
    if 'lora' in (row.text('model') + row.text('notes')).lower() or 'ptuning' in row.text('model').lower():
        return 'adapters'
    if row.whole('mtp_layers'):
        return 'modules that predict further tokens (MTP)'
    if row.whole('n_experts') > 1 and not row.whole('topk'):
        return 'not stated: topk'
    if row.whole('ep', 1) > 1 and row.whole('n_experts') < 2:
        return 'expert parallelism without experts'
    if row.whole('ep', 1) > 1 and row.whole('etp', row.whole('tp', 1)) != row.whole('tp', 1):
        return 'experts with another tensor degree than attention'
    return ''


def _odd_batch(row: Row) -> str:
    if wrong := columns.uneven(row):
        return wrong
    data, samples = max(1, row.whole('dp', 1)), row.whole('micro_batch', 1)
    if row.whole('global_batch') % (data * samples):
        return 'the batch is no multiple of data × micro-batch'
    return ''


def _odd_nodes(row: Row) -> str:
    most = load_profile(_profile(row)).devices
    stated = row.whole('gpus_per_node')
    return f'{stated} devices a node, where the profile has {most}' if stated > most else ''


_REASONS: Final[tuple[Callable[[Row], str], ...]] = (
    _incomplete, _unknown_hardware, _not_modelled, _odd_batch, _odd_nodes,
)  # fmt: skip


def _node(row: Row) -> int:
    """Devices that a node has, used or not."""
    most = load_profile(_profile(row)).devices
    # The trays of a rack that is one domain count as one node.
    return most if most > NODE else row.whole('gpus_per_node', min(NODE, most))


def cluster_of(row: Row) -> dict[str, Any]:
    """The cluster of a row: the fewest nodes over which its devices divide, with the network that it states."""
    profile, devices, node = load_profile(_profile(row)), row.whole('n_gpus'), _node(row)
    nodes = next(count for count in range(-(-devices // node), devices + 1) if devices % count == 0)
    found: dict[str, Any] = {'profile': profile.name, 'nodes': nodes, 'devices': devices // nodes}
    found['stack'] = columns.stack_name(row)
    outermost = profile.links[-1]
    stated = network_of(row.text('inter_link'), node).rate
    # What a row states of its network goes before what the profile takes it to be.
    if stated and abs(stated / outermost.bandwidth.value - 1) > _ALIKE:
        found['links'] = {outermost.name: stated / outermost.bandwidth.value}
    return found


def workload_of(row: Row) -> dict[str, Any]:
    """The workload of a row, by the columns that all sets have."""
    tensor = row.whole('tp', 1)
    model: dict[str, Any] = {
        'layers': row.whole('n_layers'),
        'hidden': row.whole('hidden'),
        'heads': row.whole('heads'),
        'vocab': row.whole('vocab', VOCABULARY),
        'sequence': row.whole('seq'),
        # Megatron's own padding, which every framework that splits a vocabulary has in some form.
        'pad_vocab': 128 * tensor,
    }
    if row.text('ffn'):
        model['ffn'] = row.whole('ffn')
    activation = columns.activation_of(row)
    # Where a model of Ascend's tables has no word for it, three products of this width are its feed-forward.
    if 'glu' in activation or (not activation and row.whole('ffn') % row.whole('hidden')):
        model |= {'activation': activation or 'swiglu', 'norm': 'rms_norm', 'position': 'rotary', 'bias': []}
    elif activation not in ('', 'gelu'):
        model['activation'] = activation
    if row.whole('qkv_bias') and 'bias' in model:
        model['bias'] = ['qkv']
    for word, position in POSITIONS.items():
        if word in row.text('position_embedding'):
            model['position'] = position
    if row.text('untied_embeddings'):
        model['tied'] = not row.whole('untied_embeddings')
    flags = row.text('overlap_flags')
    if 'mindspeed' in row.text('framework').lower() and flags and 'flash-attn' not in flags:
        model['attention'] = 'unfused'
    model |= columns.attention_of(row)
    if row.whole('n_experts') > 1:
        model['experts'] = columns.experts_of(row)
    precision = precision_of(row.text('dtype'))
    found = {'transformer': model, 'batch': row.whole('global_batch'), 'precision': precision.dtype}
    return found if precision.fp8 == 'none' else {**found, 'fp8': precision.fp8}


def plan_of(row: Row) -> dict[str, Any]:
    """The plan of a row, by the columns that all sets have."""
    plan, pipeline = columns.degrees(row), row.whole('pp', 1)
    copies = row.whole('interleave_copies', 1)
    if copies > 1:
        plan |= {'copies': copies, 'micro_batches': max(1, plan['micro_batches'] // copies)}
    if recompute := recompute_of(row):
        plan['recompute'] = recompute
    if pipeline > 1:
        plan |= _pipeline(row, pipeline)
    if columns.overlaps(row, 'grad-reduce'):
        plan |= {'reduce_gradients': 'overlapped', 'fusion': '40 MB'}
    return plan


def _pipeline(row: Row, pipeline: int) -> dict[str, Any]:
    chunks, layers = row.whole('vpp_chunks', 1), row.whole('n_layers')
    order = columns.order_of(row)
    if not order and row.text('schedule').lower() not in ('', 'none'):
        raise Skipped(f'schedule {row.text("schedule")[:40]!r}')
    order = order or ('interleaved-1f1b' if chunks > 1 else '1f1b')
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


def schedule_tree(row: Row) -> dict[str, Any]:
    """The tree of a schedule file for a row; raises ``Skipped`` where it says too little, or what is not modelled."""
    why = reason(row)
    if why:
        raise Skipped(why)
    tree: dict[str, Any] = {'simpar': 1, 'cluster': cluster_of(row)}
    if row.text('flags').startswith('--'):
        # Megatron-LM's own flags say more than the columns that all sets have.
        return tree | megatron_tree(row)
    return columns.filled({**tree, 'workload': workload_of(row), 'plan': plan_of(row)}, row)
