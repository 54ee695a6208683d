"""Settings: a published row as a schedule, or why there is none; and what is assumed where it is silent."""

from collections.abc import Iterator
from typing import Any, Final

from simpar.importing.megatron import MEGATRON, stages_of
from simpar.importing.settings import Setting, Settings
from simpar.profiles import load_profile, profile_of_hardware
from simpar.validate import columns
from simpar.validate.rows import VOCABULARY, Row

NODE: Final = 8
_ALIKE: Final = 0.05
"""Bandwidths that differ by less are the same."""
LONG_AGO: Final = 2000
UNREAD: Final = ('tp-comm-overlap', 'overlap-moe-expert-parallel-comm', 'use-ascend-coc', 'defer-embedding-wgrad')
"""Words of ``overlap_flags`` that mean an overlap which rows are not read with."""


def assumed(row: Row) -> Iterator[str]:
    """What a row does not say, or not in words that are known, and what stands in its place."""
    if not row.text('vocab'):
        yield f'vocab not stated: {VOCABULARY}'
    if not row.text('dtype'):
        yield 'dtype not stated: bf16'
    if (
        not row.text('stack')
        and columns.year_of(row) is None
        and columns.stack_in(row, LONG_AGO) != columns.stack_in(row, columns.TODAY)
    ):
        yield f'year of {row.text("framework")} not stated: its stack of today'
    if row.whole('dp', 1) > 1 and not row.text('zero_stage') and columns.zero_stage(row):
        yield 'zero_stage of FSDP not stated: 3'
    if row.whole('n_gpus') > _node(row) and (unsure := columns.network_of(row.text('inter_link'), _node(row)).unsure):
        yield unsure
    flags = [word for word in UNREAD if word in row.text('overlap_flags')]
    if flags:
        yield f'overlap_flags not read: {", ".join(flags)}'


def _profile(row: Row) -> str:
    return profile_of_hardware(row.text('hardware'), row.whole('gpu_mem_gb'))


def _not_modelled(row: Row) -> str:
    """What simpar has no operators, axes or keys for."""
    if 'lora' in (row.text('model') + row.text('notes')).lower() or 'ptuning' in row.text('model').lower():
        return 'adapters'
    if row.whole('mtp_layers'):
        return 'modules that predict further tokens (MTP)'
    if row.whole('n_experts') > 1 and not row.whole('topk'):
        return 'not stated: topk'
    if row.whole('ep', 1) > 1 and row.whole('n_experts') < 2:
        return 'expert parallelism without experts'
    tensor = row.whole('tp', 1)
    if row.whole('ep', 1) > 1 and row.whole('etp', 1 if has_flags(row) else tensor) not in (1, tensor):
        return 'experts over some of their tensor ranks'
    if not has_flags(row):
        return ''
    if missing := columns.not_stated(row, ('tp', 'pp', 'dp')):
        return missing
    if wrong := next(flags_of(row).unreadable(), None):
        return f'--{wrong.by}: {wrong.what}'
    if 'param-gather' in row.text('fp8'):
        return 'fp8 with weights gathered in 8 bits'
    return '' if row.text('optimizer') == 'adam' else f'{row.text("optimizer")} over layers, as Megatron has it'


def reasons(row: Row, *, step: bool = True) -> Iterator[str]:
    """Why a row is not predicted; the first counts. Arguments: ``step``, whether its time and its devices matter."""
    missing = columns.not_stated(row, ('n_gpus', 'n_layers', 'hidden', 'heads', 'seq', 'micro_batch', 'global_batch'))
    if step and not row.seconds:
        yield 'no step time'
    if step and missing:
        yield missing
    if step and 'do not score time' in row.text('notes'):
        yield 'marked: its time is not to be scored'
    if row.text('completeness') == 'partial':
        yield 'marked partial: of use as a ratio only'
    yield missing
    yield _not_modelled(row)
    yield columns.uneven(row)
    if row.whole('global_batch') % (max(1, row.whole('dp', 1)) * row.whole('micro_batch', 1)):
        yield 'the batch is no multiple of data × micro-batch'
    if step and not _profile(row):
        yield f'no profile for {row.text("hardware") or "hardware that is not stated"}'
    if step and (stated := row.whole('gpus_per_node')) > (most := load_profile(_profile(row)).devices):
        yield f'{stated} devices a node, where the profile has {most}'


def _node(row: Row) -> int:
    """Devices that a node has, used or not."""
    most = load_profile(_profile(row)).devices
    # The trays of a rack that is one domain count as one node.
    return most if most > NODE else row.whole('gpus_per_node', min(NODE, most))


def cluster_of(row: Row) -> dict[str, Any]:
    """The cluster of a row: the fewest nodes over which its devices divide, with the network that it states."""
    profile, devices, node = load_profile(_profile(row)), row.whole('n_gpus'), _node(row)
    nodes = next(count for count in range(-(-devices // node), devices + 1) if devices % count == 0)
    keys: dict[str, Any] = {'profile': profile.name, 'nodes': nodes, 'devices': devices // nodes}
    keys['stack'] = columns.stack_name(row)
    outermost = profile.links[-1]
    stated = columns.network_of(row.text('inter_link'), node).rate
    # What a row states of its network goes before what the profile takes it to be.
    if stated and abs(stated / outermost.bandwidth.value - 1) > _ALIKE:
        keys['links'] = {outermost.name: stated / outermost.bandwidth.value}
    return keys


def has_flags(row: Row) -> bool:
    """Whether a row has flags of Megatron-LM, which say more than the columns that all sets have."""
    return row.text('flags').startswith('--')


def flags_of(row: Row) -> Settings:
    """A row's flags of Megatron-LM, as import reads them; of other rows none, so that each has its default."""
    words = [word.removeprefix('--').partition('=') for word in row.text('flags').split() if has_flags(row)]
    return Settings([Setting(name, value if sign else True, '') for name, sign, value in words], MEGATRON.table)


def workload_of(row: Row) -> dict[str, Any]:
    """The workload of a row."""
    flags = flags_of(row)
    model: dict[str, Any] = {
        'layers': row.whole('n_layers'),
        'hidden': row.whole('hidden'),
        'heads': row.whole('heads'),
        'vocab': row.whole('vocab', VOCABULARY),
        'sequence': row.whole('seq'),
        # Megatron's own padding, which every framework that splits a vocabulary has in some form.
        'pad_vocab': flags.number('make-vocab-size-divisible-by') * row.whole('tp', 1),
    }
    if row.text('ffn'):
        model['ffn'] = row.whole('ffn')
    if row.text('untied_embeddings') or has_flags(row):
        model['tied'] = not row.whole('untied_embeddings')
    for word, position in columns.words_of('position_embedding').items():
        if word in row.text('position_embedding') and (position == 'rotary' or not has_flags(row)):
            model['position'] = position
    model |= _of_flags(row, flags) if has_flags(row) else _of_columns(row)
    model |= columns.attention_of(row)
    if row.whole('n_experts') > 1:
        model['experts'] = columns.experts_of(row)
        if coefficient := flags.real('moe-aux-loss-coeff'):
            model['experts']['aux_loss'] = coefficient
    precision = columns.precision_of(row.text('dtype'))
    keys = {'transformer': model, 'batch': row.whole('global_batch'), 'precision': precision.dtype}
    if precision.fp8 != 'none':
        keys['fp8'] = precision.fp8
    if has_flags(row):
        keys |= {
            'gradients': row.text('grad_dtype') or 'fp32', 'optimizer': {'adam': {'master_weights': True}},
            'clip_norm': 1.0,
        }  # fmt: skip
    return keys


def _of_flags(row: Row, flags: Settings) -> dict[str, Any]:
    """Keys of a transformer, by flags of Megatron-LM."""
    norm = {'norm': 'rms_norm'} if flags.text('normalization') == 'RMSNorm' else {}
    # Experts have no biases.
    biased = ['qkv', 'proj', *(['ffn'] if row.whole('n_experts') < 2 else [])]
    return {
        **norm,
        'activation': columns.activation_of(row) or 'gelu',
        'bias': biased if row.whole('bias_linear', 1) else [],
        'attention': 'unfused' if flags.text('transformer-impl') == 'local' else 'flash',
        'dropout': flags.real('hidden-dropout'),
    }


def _of_columns(row: Row) -> dict[str, Any]:
    """Keys of a transformer, by the columns that all sets have."""
    model: dict[str, Any] = {}
    activation = columns.activation_of(row)
    # Where a model of Ascend's tables has no word for it, three products of this width are its feed-forward.
    if 'glu' in activation or (not activation and row.whole('ffn') % row.whole('hidden')):
        model = {'activation': activation or 'swiglu', 'norm': 'rms_norm', 'position': 'rotary'}
        model['bias'] = ['qkv'] if row.whole('qkv_bias') else []
    elif activation not in ('', 'gelu'):
        model['activation'] = activation
    flags = row.text('overlap_flags')
    if 'mindspeed' in row.text('framework').lower() and flags and 'flash-attn' not in flags:
        model['attention'] = 'unfused'
    return model


def plan_of(row: Row) -> dict[str, Any]:
    """The plan of a row."""
    plan, flags, copies = columns.degrees(row), flags_of(row), row.whole('interleave_copies', 1)
    if copies > 1:
        plan |= {'copies': copies, 'micro_batches': max(1, plan['micro_batches'] // copies)}
    if recompute := columns.recompute_of(row):
        plan['recompute'] = recompute
    if row.whole('pp', 1) > 1:
        plan |= _pipeline(row, flags)
    if columns.overlaps(row, 'grad-reduce'):
        plan |= {'reduce_gradients': 'overlapped', 'fusion': '40 MB'}
    elif has_flags(row):
        plan |= {'reduce_gradients': 'end', 'fusion': 'all'}
    instances = flags.number('num-distributed-optimizer-instances')
    if 'zero' in plan and instances > 1:
        plan['shard_group'] = plan['data'] // instances
        if instances * row.whole('ep', 1) == plan['data']:
            # The ranks that share an expert are one in each instance.
            plan['unsharded'] = ['*.experts.*']
    return plan


def _pipeline(row: Row, flags: Settings) -> dict[str, Any]:
    chunks, layers = row.whole('vpp_chunks', 1), row.whole('n_layers')
    order = columns.order_of(row)
    if not order and (has_flags(row) or row.text('schedule').lower() not in ('', 'none')):
        raise columns.Skipped(f'schedule {row.text("schedule")[:40]!r}')
    order = order or ('interleaved-1f1b' if chunks > 1 else '1f1b')
    if order == 'zb-v':
        chunks = 2
    plan: dict[str, Any] = {'order': order}
    if chunks > 1:
        plan['chunks'] = chunks
    stages = row.whole('pp', 1) * chunks
    if has_flags(row):
        if columns.overlaps(row, 'p2p'):
            # Messages of their own then, received ahead.
            plan |= {'exchange': 'separate', 'receive': 'early'}
        if counts := _stage_layers(row, flags, chunks):
            plan['stages'] = counts
    # The first and the last stage may have a layer less, in place of embedding and head.
    elif layers % stages and (layers + 2) % stages == 0:
        each = (layers + 2) // stages
        plan['stages'] = [each - 1, *([each] * (stages - 2)), each - 1]
    return plan


def _stage_layers(row: Row, flags: Settings, chunks: int) -> list[int]:
    """Layers of each stage where flags say them; empty: equal."""
    said = {
        'num-layers': row.whole('n_layers'), 'pipeline-model-parallel-size': row.whole('pp', 1),
        'num-layers-per-virtual-pipeline-stage': 0, 'num-virtual-stages-per-pipeline-rank': chunks,
    }  # fmt: skip
    stages = stages_of(Settings([*flags.every, *(Setting(*one, '') for one in said.items())], flags.table))
    if stages.by and stages.layers is None:
        raise columns.Skipped('layers that do not divide over stages')
    return (stages.layers or []) if stages.by else []


def options(row: Row) -> frozenset[str]:
    """Options of a run that facts of a stack ask for."""
    flags = flags_of(row)
    local = flags.text('transformer-impl') == 'local'
    by_option = {
        # Its own environment: CUBLAS_WORKSPACE_CONFIG=:4096:8.
        'deterministic': flags.on('deterministic-mode'),
        'local': local,
        'attention-auto': 'backend=auto' in row.text('attention_kind') and not local,
        'no-mask': flags.on('no-create-attention-mask-in-dataloader'),
        'softmax-unfused': flags.on('no-masked-softmax-fusion'),
        'grouped': flags.on('moe-grouped-gemm'),
        # Images lag the merge of pytorch/pytorch #175344 by two months.
        'torch-2026': row.text('mem_date').removeprefix('<=') >= '2026-05',
        'fused-loss': flags.on('cross-entropy-loss-fusion'),
    }
    return frozenset(name for name, holds in by_option.items() if holds)


def schedule_tree(row: Row) -> dict[str, Any]:
    """The tree of a schedule file for a row; raises ``Skipped`` where it says too little, or what is not modelled."""
    if why := next(filter(None, reasons(row)), ''):
        raise columns.Skipped(why)
    return plan_tree(row, cluster_of(row))


def plan_tree(row: Row, cluster: object) -> dict[str, Any]:
    """The same on any cluster, whatever is known of the row's step; raises ``Skipped``."""
    if why := next(filter(None, reasons(row, step=False)), ''):
        raise columns.Skipped(why)
    return columns.filled({'simpar': 1, 'cluster': cluster, 'workload': workload_of(row), 'plan': plan_of(row)}, row)
