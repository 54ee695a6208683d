"""Megatron: a row of Megatron-LM's own runs, with its flags, as workload, plan and ranks; their memory was measured."""

from __future__ import annotations

import re
from typing import Any, Final

from simpar.stacks import load_stack
from simpar.validate.rows import Row
from simpar.validate.settings import Skipped, order_of, put_under, stack_name

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
    tree: dict[str, Any] = {'simpar': 1, 'workload': _workload(row), 'plan': _plan(row)}
    for key, value in load_stack(stack_name(row)).of_rows.items():
        put_under(tree, key.split('.'), value)
    return tree


def _unstated(row: Row) -> str:
    if row.text('completeness') == 'partial':
        return 'marked partial: of use as a ratio only'
    told = ('n_gpus', 'n_layers', 'hidden', 'heads', 'seq', 'micro_batch', 'global_batch', 'tp', 'pp', 'dp')
    missing = [column for column in told if not row.text(column)]
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
    world = row.whole('tp', 1) * row.whole('pp', 1) * row.whole('dp', 1) * row.whole('cp', 1)
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
    data, tensor, pipeline = row.whole('dp', 1), row.whole('tp', 1), row.whole('pp', 1)
    plan: dict[str, Any] = {
        'data': data,
        'tensor': tensor,
        'pipeline': pipeline,
        'micro_batches': row.whole('global_batch') // data // row.whole('micro_batch', 1),
        'fusion': '40 MB' if 'overlap-grad-reduce' in row.text('overlap_flags') else 'all',
        'reduce_gradients': 'overlapped' if 'overlap-grad-reduce' in row.text('overlap_flags') else 'end',
    }
    if tensor > 1 and row.whole('sp'):
        plan['sequence_parallel'] = True
    if row.whole('zero_stage') and data > 1:
        plan['zero'] = row.whole('zero_stage')
        instances = int(_valued(row, 'num-distributed-optimizer-instances') or 1)
        if instances > 1:
            plan['shard_group'] = data // instances
            if instances * row.whole('ep', 1) == data:
                # The ranks that share an expert are one in each instance.
                plan['unsharded'] = ['*.experts.*']
    if row.whole('cp', 1) > 1:
        # Megatron's own way: keys and values go round (cp_comm_type p2p).
        plan |= {'context': row.whole('cp'), 'context_kind': 'ring'}
    if row.whole('ep', 1) > 1:
        plan['expert'] = row.whole('ep')
    if pipeline > 1:
        chunks = row.whole('vpp_chunks', 1)
        order = order_of(row)
        if not order:
            raise Skipped(f'schedule {row.text("schedule") or "not stated"}')
        plan['order'] = order
        if chunks > 1:
            plan['chunks'] = chunks
        if 'overlap-p2p' in row.text('overlap_flags'):
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
