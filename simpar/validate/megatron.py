"""Megatron: a published row with flags of Megatron-LM as a schedule, which these flags say more exactly."""

import re
from typing import Any, Final

from simpar.validate.columns import (
    activation_of,
    attention_of,
    degrees,
    experts_of,
    filled,
    not_stated,
    order_of,
    overlaps,
    uneven,
)
from simpar.validate.recompute import recompute_of
from simpar.validate.rows import Row
from simpar.validate.words import Skipped, precision_of

VOCABULARY_STEP: Final = 128
"""Megatron pads its vocabulary to so many rows for each tensor rank."""


def megatron_tree(row: Row) -> dict[str, Any]:
    """Workload and plan of a row, as a schedule has them; raises ``Skipped`` for what is not modelled."""
    for wrong in (_unstated, _unmodelled, uneven):
        reason = wrong(row)
        if reason:
            raise Skipped(reason)
    return filled({'simpar': 1, 'workload': _workload(row), 'plan': _plan(row)}, row)


def _unstated(row: Row) -> str:
    if row.text('completeness') == 'partial':
        return 'marked partial: of use as a ratio only'
    columns = ('n_gpus', 'n_layers', 'hidden', 'heads', 'seq', 'micro_batch', 'global_batch', 'tp', 'pp', 'dp')
    return not_stated(row, columns)


def _unmodelled(row: Row) -> str:
    """What simpar has no keys for."""
    if 'param-gather' in row.text('fp8'):
        return 'fp8 with weights gathered in 8 bits'
    if row.whole('mtp_layers'):
        return 'modules that predict further tokens (MTP)'
    if row.text('optimizer') != 'adam':
        return f'{row.text("optimizer")} over layers, as Megatron has it'
    if row.whole('ep', 1) > 1 and row.whole('etp', 1) != row.whole('tp', 1):
        return 'experts with another tensor degree than attention'
    return ''


def _has(row: Row, flag: str) -> bool:
    return f'--{flag}' in row.text('flags').split()


def _valued(row: Row, flag: str) -> str:
    found = re.search(rf'--{flag}=(\S+)', row.text('flags'))
    return found.group(1) if found else ''


def _workload(row: Row) -> dict[str, Any]:
    model: dict[str, Any] = {
        'layers': row.whole('n_layers'),
        'hidden': row.whole('hidden'),
        'heads': row.whole('heads'),
        'ffn': row.whole('ffn'),
        'vocab': row.whole('vocab'),
        'pad_vocab': _pad(row),
        'sequence': row.whole('seq'),
        'tied': not row.whole('untied_embeddings'),
        'activation': activation_of(row) or 'gelu',
        'bias': ['qkv', 'proj', 'ffn'] if row.whole('bias_linear', 1) else [],
        'attention': 'unfused' if _has(row, 'transformer-impl=local') else 'flash',
        'dropout': float(_valued(row, 'hidden-dropout') or 0.1),
    }
    if 'rope' in row.text('position_embedding'):
        model['position'] = 'rotary'
    if _valued(row, 'normalization') == 'RMSNorm':
        model['norm'] = 'rms_norm'
    model |= attention_of(row)
    if row.whole('n_experts') > 1:
        model['experts'] = experts_of(row)
        if coefficient := float(_valued(row, 'moe-aux-loss-coeff') or 0):
            model['experts']['aux_loss'] = coefficient
        model['bias'] = [one for one in model['bias'] if one != 'ffn']
    precision = precision_of(row.text('dtype'))
    return {
        'transformer': model,
        'batch': row.whole('global_batch'),
        'precision': precision.dtype,
        'fp8': precision.fp8,
        'gradients': row.text('grad_dtype') or 'fp32',
        'optimizer': {'adam': {'master_weights': True}},
        'clip_norm': 1.0,
    }


def _pad(row: Row) -> int:
    step = int(_valued(row, 'make-vocab-size-divisible-by') or VOCABULARY_STEP)
    return step * row.whole('tp', 1)


def _plan(row: Row) -> dict[str, Any]:
    plan, pipeline = degrees(row), row.whole('pp', 1)
    overlapped = overlaps(row, 'grad-reduce')
    plan |= {'fusion': '40 MB' if overlapped else 'all', 'reduce_gradients': 'overlapped' if overlapped else 'end'}
    instances = int(_valued(row, 'num-distributed-optimizer-instances') or 1)
    if 'zero' in plan and instances > 1:
        plan['shard_group'] = plan['data'] // instances
        if instances * row.whole('ep', 1) == plan['data']:
            # The ranks that share an expert are one in each instance.
            plan['unsharded'] = ['*.experts.*']
    if recompute := recompute_of(row):
        plan['recompute'] = recompute
    if pipeline > 1:
        chunks = row.whole('vpp_chunks', 1)
        order = order_of(row)
        if not order:
            raise Skipped(f'schedule {row.text("schedule") or "not stated"}')
        plan['order'] = order
        if chunks > 1:
            plan['chunks'] = chunks
        if overlaps(row, 'p2p'):
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
        # Images lag the merge of pytorch/pytorch #175344 by two months.
        'torch-2026': row.text('mem_date').removeprefix('<=') >= '2026-05',
        'fused-loss': _has(row, 'cross-entropy-loss-fusion'),
    }
    return frozenset(name for name, holds in told.items() if holds)
