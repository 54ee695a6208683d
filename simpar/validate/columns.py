"""Columns: what all published rows say of stack, model and plan, whatever their set; what is not known is named."""

import re
from collections.abc import Sequence
from typing import Any, Final

from simpar.profiles import choices_in, load_stack, stack_of
from simpar.validate import recompute, rows, words

ORDERS: Final = {
    '1f1b': '1f1b', '1f1b-i': 'interleaved-1f1b', 'interleaved-1f1b': 'interleaved-1f1b', 'zb-1p': 'zb-1p',
    'zb-2p': 'zb-2p', 'zb-v': 'zb-v', 'gpipe': 'gpipe',
}  # fmt: skip
"""A row's schedule, in small letters, and the order that it stands for."""
ACTIVATIONS: Final = {
    'gelu': 'gelu', 'swiglu': 'swiglu', 'glu': 'swiglu', 'geglu': 'geglu', 'geglu_tanh': 'geglu_tanh', 'relu': 'relu',
    'squared_relu': 'squared_relu', 'squared-relu': 'squared_relu', 'silu': 'silu', 'gelu_tanh': 'gelu_tanh',
}  # fmt: skip
"""A row's ``mlp``, and the activation that it stands for."""
TODAY: Final = 9999
LATENT: Final = {
    'q_lora': 'q_lora_rank',
    'kv_lora': 'kv_lora_rank',
    'qk_head': 'qk_nope_head_dim',
    'rope_head': 'qk_rope_head_dim',
    'v_head': 'v_head_dim',
}
"""Words of a row's attention, and the keys that they stand for."""
_LATENT: Final = re.compile(r'(q_lora|kv_lora|qk_head|rope_head|v_head)=(\d+)')
_WINDOW: Final = re.compile(r'(?:window|swa|sliding)\D{0,12}(\d+)')
_FREQUENCY: Final = re.compile(r'\(?\[0\] ?\* ?(\d+) ?\+ ?\[1\] ?\* ?(\d+)\)?')


def stack_name(row: rows.Row) -> str:
    """The stack of a row: as its column says, or by its framework and year."""
    found = row.text('stack') or stack_in(row, words.year_of(row) or TODAY)
    is_zero_bubble = ORDERS.get(row.text('schedule').lower(), '')[:2] == 'zb'
    validated = 'post-validation' in row.text('overlap_flags') and is_zero_bubble
    return 'zero-bubble-post' if found == 'zero-bubble' and validated else found


def stack_in(row: rows.Row, year: int) -> str:
    """The stack of a row's framework in a year."""
    flags = row.text('overlap_flags')
    framework = row.text('framework') + choices_in(f'{flags} {row.text("flags")}')
    return stack_of(framework, row.text('hardware'), year, flags or None)


def filled(tree: dict[str, Any], row: rows.Row) -> dict[str, Any]:
    """The tree with what the row's stack has where the row is silent."""

    def told(key: str) -> Any:
        node: Any = tree
        for part in key.split('.'):
            node = node.get(part) if isinstance(node, dict) else None
        return node

    for key, value in load_stack(stack_name(row)).of_rows(told).items():
        *path, last = key.split('.')
        under = tree
        for part in path:
            under = under.setdefault(part, {})
        under.setdefault(last, value)
    return tree


def not_stated(row: rows.Row, columns: Sequence[str]) -> str:
    """Which of some columns are empty, in words; empty where none is."""
    missing = [column for column in columns if not row.text(column)]
    return f'not stated: {", ".join(missing)}' if missing else ''


def uneven(row: rows.Row) -> str:
    """Why degrees do not make the number of devices; empty where they do."""
    world = row.whole('tp', 1) * row.whole('pp', 1) * row.whole('cp', 1) * max(1, row.whole('dp', 1))
    return '' if world == row.whole('n_gpus') else f'{world} ranks of its degrees on {row.whole("n_gpus")} devices'


def degrees(row: rows.Row) -> dict[str, Any]:
    """Degrees, micro-batches and shards."""
    data, tensor = max(1, row.whole('dp', 1)), row.whole('tp', 1)
    plan: dict[str, Any] = {
        'data': data,
        'tensor': tensor,
        'pipeline': row.whole('pp', 1),
        'micro_batches': row.whole('global_batch') // data // row.whole('micro_batch', 1),
    }
    if tensor > 1 and (row.whole('sp') or recompute.says_sequence_parallel(row)):
        plan['sequence_parallel'] = True
    if row.whole('cp', 1) > 1:
        # How keys and values meet is the framework's: its stack says.
        plan['context'] = row.whole('cp')
    if row.whole('ep', 1) > 1:
        plan['expert'] = row.whole('ep')
        # As simpar.importing.mixtures reads Megatron-LM's flags.
        kind = 'tensor' if row.whole('etp', tensor) < tensor else 'context' if 'context' in plan else ''
        plan |= {'expert_ranks': kind} if kind else {}
    if data > 1 and (stage := zero_stage(row)):
        plan['zero'] = stage
    return plan


def zero_stage(row: rows.Row) -> int:
    """The stage of ZeRO: as stated, or all of it where the framework is FSDP."""
    is_sharded = re.search(r'fsdp|titan', row.text('framework').lower())
    return row.whole('zero_stage', 3 if is_sharded else 0)


def overlaps(row: rows.Row, what: str) -> bool:
    """Whether its flags say ``overlap-…`` of something."""
    return f'overlap-{what}' in row.text('overlap_flags')


def order_of(row: rows.Row) -> str:
    """The order that a row's schedule stands for; empty where it is not known, or not stated."""
    found = ORDERS.get(row.text('schedule').lower().replace('_', '-'), '')
    # What several chunks make of 1F1B.
    return 'interleaved-1f1b' if found == '1f1b' and row.whole('vpp_chunks', 1) > 1 else found


def activation_of(row: rows.Row) -> str:
    """The activation of a row's feed-forward; empty where it says none. Raises ``Skipped`` for another word."""
    word = row.text('mlp').lower().split(' ')[0]
    if word and word not in ACTIVATIONS:
        raise words.Skipped(f'mlp {row.text("mlp")[:40]!r}')
    return ACTIVATIONS.get(word, '')


def attention_of(row: rows.Row) -> dict[str, Any]:
    """Keys of a transformer that say how it attends: latents, a window, kernels, heads of keys and values.

    Raises ``Skipped`` where the row names what it gives no numbers of, or layers that are no attention.
    """
    kind, heads = row.text('attention_kind'), row.whole('heads')
    if kind.lower().startswith('hybrid'):
        raise words.Skipped('layers that are no attention')
    found: dict[str, Any] = {}
    if 'unfused' in kind:
        found['attention'] = 'unfused'
    if row.whole('kv_heads', heads) != heads:
        found['kv_heads'] = row.whole('kv_heads')
    window = row.whole('window')
    if said := _WINDOW.search(kind.lower()):
        window = int(said[1])
    elif re.search(r'window|swa|sliding', kind.lower()) and not window:
        raise words.Skipped('not stated: how wide the window of attention is')
    if window:
        found['window'] = window
    if 'mla' in kind.lower() or 'latent' in kind.lower():
        latents = {LATENT[word]: int(number) for word, number in _LATENT.findall(kind)}
        if 'kv_lora_rank' not in latents:
            raise words.Skipped('not stated: widths of latent attention')
        found |= {**latents, 'position': 'rotary'}
        found.pop('kv_heads', None)
    elif row.whole('head_dim') and row.whole('head_dim') * heads != row.whole('hidden'):
        found['head_dim'] = row.whole('head_dim')
    return found


def experts_of(row: rows.Row) -> dict[str, Any]:
    """Keys of a mixture of experts; raises ``Skipped`` for layers of experts in an order that is not known."""
    found: dict[str, Any] = {'count': row.whole('n_experts'), 'top_k': row.whole('topk', 2)}
    if row.whole('moe_ffn'):
        found['ffn'] = row.whole('moe_ffn')
    if row.whole('moe_shared_ffn'):
        found['shared'] = row.whole('moe_shared_ffn')
    frequency = row.text('moe_layer_freq')
    if dense := _FREQUENCY.fullmatch(frequency):
        found['first_dense'] = int(dense[1])
    elif frequency not in ('', '1'):
        raise words.Skipped(f'layers of experts by {frequency[:40]!r}')
    return found
