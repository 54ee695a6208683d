"""Megatron-LM's flags of a model that are read together, or whose absence says something."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import lcm
from typing import Final

from simpar.importing.flags import IDLE, NOT_MODELLED, NOW, Assumed, Left, Says, Settings, Told, Wrong, real, whole
from simpar.importing.tokenizers import words_known

_T: Final = 'workload.transformer'


def trainer(flags: Settings) -> Iterator[Told]:
    """What the program trains, by its name."""
    name = flags.text('trainer').lower()
    other = {'bert': 'an encoder', 't5': 'an encoder and a decoder', 'vlm': 'images', 'vision': 'images',
             'mimo': 'images', 'multimodal': 'images', 'mamba': 'a state space', 'hybrid': 'a state space',
             'retro': 'retrieval', 'ict': 'retrieval'}  # fmt: skip
    what = next((what for part, what in other.items() if part in name), None)
    if what is not None:
        yield Left('trainer', NOT_MODELLED, f'{what}; a decoder of the same sizes is written')


def position(flags: Settings) -> Iterator[Told]:
    """Positions: learned unless told, and what rotary needs."""
    kind = flags.text('position-embedding-type', 'learned_absolute')
    if flags.on('use-rotary-position-embeddings'):
        kind = 'rope'
    if flags.on('no-position-embedding') and kind == 'learned_absolute':
        kind = 'none'
    by = flags.given('position-embedding-type', 'use-rotary-position-embeddings', 'no-position-embedding')
    if kind not in ('rope', 'yarn', 'mrope'):
        known = {'learned_absolute': 'learned', 'none': 'none', 'nope': 'none'}
        if kind not in known:
            yield Left('position-embedding-type', NOT_MODELLED, f'{kind}; no positions are written')
        yield Says(f'{_T}.position', known.get(kind, 'none'), by)
        if kind == 'learned_absolute' and 'max-position-embeddings' in flags:
            yield Says(f'{_T}.positions', flags.number('max-position-embeddings', 0), ('max-position-embeddings',))
        for name in flags.given('rotary-base', 'rotary-percent', 'rotary-interleaved', 'max-position-embeddings'):
            yield Left(name, IDLE, 'positions are not rotary' if 'rotary' in name else '')
        return
    yield Says(f'{_T}.position', 'rotary', by, '' if kind == 'rope' else f'{kind} costs the same')
    yield from rotary(flags)


def rotary(flags: Settings) -> Iterator[Told]:
    """What turns, and by which frequencies."""
    if 'max-position-embeddings' in flags:
        yield Left('max-position-embeddings', IDLE, 'the longest sequence; rotary positions have no weight')
    if 'rotary-base' in flags:
        yield Says(f'{_T}.rope_theta', flags.real('rotary-base', 1e4), ('rotary-base',))
    if 'rotary-percent' in flags:
        yield Says(f'{_T}.rotary_share', flags.real('rotary-percent', 1.0), ('rotary-percent',))
    if flags.on('rotary-interleaved'):
        yield Says(f'{_T}.rope_interleaved', True, ('rotary-interleaved',))
    if flags.on('use-rope-scaling'):
        factor = flags.real('rope-scaling-factor', 8.0)
        by = flags.given('use-rope-scaling', 'rope-scaling-factor')
        yield Says(f'{_T}.rope_scaling', [factor, 1.0, 4.0, 8192], by)
    elif 'rotary-seq-len-interpolation-factor' in flags:
        factor = flags.real('rotary-seq-len-interpolation-factor', 1.0)
        yield Says(f'{_T}.rope_scaling', [factor], ('rotary-seq-len-interpolation-factor',))


def blocks(flags: Settings) -> Iterator[Told]:
    """Heads, feed-forward, norms, biases and the head of words."""
    if flags.on('group-query-attention') or 'group-query-attention' not in flags:
        by = flags.given('group-query-attention', 'num-query-groups')
        if flags.on('group-query-attention'):
            yield Says(f'{_T}.kv_heads', flags.number('num-query-groups', 1), by)
        elif 'num-query-groups' in flags:
            yield Left('num-query-groups', IDLE, 'without group-query-attention')
    gates = {'swiglu': 'swiglu', 'quick-geglu': 'geglu', 'squared-relu': 'squared_relu', 'openai-gelu': 'gelu_tanh'}
    for name, activation in gates.items():
        if flags.on(name):
            yield Says(f'{_T}.activation', activation, (name,))
    if flags.on('swiglu') and 'ffn-hidden-size' not in flags:
        yield Says(f'{_T}.ffn', int(4 * flags.number('hidden-size', 0) * 2 / 3 / 64) * 64, ('swiglu',))
    if flags.text('normalization') not in ('', 'LayerNorm', 'RMSNorm'):
        yield Left('normalization', NOT_MODELLED, 'layer_norm is written')
    elif flags.text('normalization'):
        yield Says(
            f'{_T}.norm', {'RMSNorm': 'rms_norm'}.get(flags.text('normalization'), 'layer_norm'), ('normalization',)
        )
    untied = flags.on('untie-embeddings-and-output-weights')
    yield Says(f'{_T}.tied', not untied, flags.given('untie-embeddings-and-output-weights'))
    if flags.on('disable-bias-linear'):
        biases = ['qkv'] if flags.on('add-qkv-bias') else []
        yield Says(f'{_T}.bias', biases, flags.given('disable-bias-linear', 'add-qkv-bias'))
    elif flags.number('num-experts', 0):
        # Biases of experts are not modelled; where every layer has experts, none is left.
        yield Says(f'{_T}.bias', ['qkv', 'proj', *(['ffn'] if _has_dense(flags) else [])], ())
        yield Assumed('experts have no biases, which simpar does not model: --disable-bias-linear is not given')
    elif flags.on('add-qkv-bias'):
        yield Says(f'{_T}.bias', ['qkv', 'proj', 'ffn'], ('add-qkv-bias',))
    if flags.on('qk-layernorm') and not flags.on('multi-latent-attention'):
        yield Says(f'{_T}.qk_norm', True, ('qk-layernorm',))
    elif flags.on('qk-layernorm'):
        yield Left('qk-layernorm', IDLE, 'latent attention has norms of its latents anyway')


def is_checkpointed(flags: Settings) -> bool:
    """Whether full layers are made again, in the word that Megatron-LM had until v3.0 of 2022."""
    return any(one.called.replace('_', '-') == '--checkpoint-activations' for one in flags.every)


def framework(flags: Settings) -> tuple[str, int]:
    """Megatron-LM, or the fork of it that has flags of its own; and the last year of its release."""
    if flags.given('deepspeed', 'deepspeed-config', 'zero-stage'):
        return 'Megatron-DeepSpeed', NOW
    if any(name.startswith(('enable-zero-bubble', 'zero-bubble-')) for name in flags.named):
        return 'zero-bubble', NOW
    return 'Megatron-LM', 2022 if is_checkpointed(flags) else NOW


def attention(flags: Settings) -> Iterator[Told]:
    """Flash or unfused, its dropout, its window."""
    backend = flags.text('attention-backend')
    by = flags.given('attention-backend', 'use-flash-attn', 'transformer-impl')
    local = flags.text('transformer-impl') == 'local' and not flags.on('use-flash-attn')
    unfused = backend in ('unfused', 'local') or (not backend and local)
    # Before Transformer Engine attention was a product, a softmax and a product.
    is_old = not by and framework(flags) in (('Megatron-DeepSpeed', NOW), ('Megatron-LM', 2022))
    yield Says(f'{_T}.attention', 'unfused' if unfused or is_old else 'flash', by)
    if is_old:
        yield Assumed('attention is unfused, as in Megatron-LM of 2021 without --use-flash-attn')
    elif not by:
        yield Assumed('attention is flash, as attention-backend auto finds it')
    hidden, core = flags.real('hidden-dropout', 0.1), flags.real('attention-dropout', 0.1)
    given = flags.given('hidden-dropout', 'attention-dropout')
    if len(given) < 2 and (hidden or core):
        yield Assumed('dropout is 0.1 where the flags do not say it')
    yield Says(f'{_T}.dropout', hidden, given)
    if hidden != core:
        told = f'{core:g}, beside {hidden:g} elsewhere: dropout {hidden:g} is written for both'
        yield (
            Left('attention-dropout', NOT_MODELLED, told)
            if 'attention-dropout' in flags
            else Assumed(f'attention-dropout is {core:g}, which is not modelled beside hidden-dropout {hidden:g}')
        )
    yield from window(flags)


def window(flags: Settings) -> Iterator[Told]:
    """``--window-size left,right``; every so-manieth layer may be without."""
    if 'window-size' not in flags:
        return
    numbers = re.findall(r'-?\d{1,9}', flags.named['window-size'].shown)
    if not numbers or int(numbers[0]) < 0:
        yield Left('window-size', IDLE, 'no window')
        return
    width, every = int(numbers[0]) + 1, flags.text('window-attn-skip-freq')
    listed = _pattern(every)
    value: int | list[int] = width
    if listed is not None:
        value = [width if one else 0 for one in listed]
    elif every:
        value = [width] * (flags.number('window-attn-skip-freq', 1) - 1) + [0]
    yield Says(f'{_T}.window', value, flags.given('window-size', 'window-attn-skip-freq'))


def latent(flags: Settings) -> Iterator[Told]:
    """Multi-head latent attention; its widths count with its switch alone."""
    if 'kv-channels' in flags and not flags.on('multi-latent-attention'):
        yield Says(f'{_T}.head_dim', flags.number('kv-channels', 0), ('kv-channels',))
    elif 'kv-channels' in flags:
        yield Left('kv-channels', IDLE, 'latent attention has widths of its own')
    if flags.on('multi-latent-attention') and flags.text('position-embedding-type') != 'rope':
        yield Says(f'{_T}.position', 'rotary', flags.given('multi-latent-attention'))
    names = {'kv-lora-rank': ('kv_lora_rank', 32), 'q-lora-rank': ('q_lora_rank', 0),
             'qk-head-dim': ('qk_nope_head_dim', 128), 'qk-pos-emb-head-dim': ('qk_rope_head_dim', 64),
             'v-head-dim': ('v_head_dim', 128)}  # fmt: skip
    for name, (key, default) in names.items():
        if flags.on('multi-latent-attention'):
            by = flags.given(name) or ('multi-latent-attention',)
            yield Says(f'{_T}.{key}', flags.number(name, default), by)
        elif name in flags:
            yield Left(name, IDLE, 'without multi-latent-attention')


def further(flags: Settings) -> Iterator[Told]:
    """Multi-token prediction is refused by name."""
    if flags.number('mtp-num-layers', 0):
        yield Left('mtp-num-layers', NOT_MODELLED, 'multi-token prediction; the model is written without it')
    elif 'mtp-num-layers' in flags:
        yield Says(f'{_T}.mtp_layers', 0, ('mtp-num-layers',))


def words(flags: Settings) -> Iterator[Told]:
    """Words of the vocabulary, and the rows that pad it."""
    of_tokenizer = flags.given('tokenizer-type', 'tokenizer-model', 'tokenizer-name-or-path')
    if flags.number('padded-vocab-size', 0):
        yield Says(f'{_T}.vocab', flags.number('padded-vocab-size', 0), ('padded-vocab-size',))
        for name in flags.given('vocab-size', 'make-vocab-size-divisible-by'):
            yield Left(name, IDLE, 'padded-vocab-size says all')
    else:
        yield from _counted(flags, of_tokenizer)
        rows = flags.number('make-vocab-size-divisible-by', 128) * flags.number('tensor-model-parallel-size', 1)
        yield Says(f'{_T}.pad_vocab', rows, flags.given('make-vocab-size-divisible-by'))


def _counted(flags: Settings, of_tokenizer: tuple[str, ...]) -> Iterator[Told]:
    if flags.number('vocab-size', 0):
        yield Says(f'{_T}.vocab', flags.number('vocab-size', 0), ('vocab-size',))
        for name in of_tokenizer:
            yield Left(name, IDLE, 'vocab-size says how many words')
        return
    if not flags.given('num-layers', 'hidden-size'):
        return
    texts = [flags.named[name].shown for name in (*of_tokenizer, *flags.given('vocab-file'))]
    if 'merge-file' in flags and not of_tokenizer:
        texts.append('GPT2BPETokenizer')
    elif not of_tokenizer and ('bert' in flags.text('trainer') or 't5' in flags.text('trainer')):
        texts.append('BertWordPieceLowerCase')
    known = words_known(texts) or words_known([flags.every[0].where.partition(':')[0].rpartition('/')[2]])
    if known is None:
        what = 'how many words the vocabulary has is not told' + (f' ({", ".join(texts)})' if texts else '')
        yield Wrong('tokenizer-type', what, 'give it, e.g. --set vocab-size=128256')
        return
    count, name = known
    yield Says(f'{_T}.vocab', count, of_tokenizer, f'of the tokenizer of {name}')
    yield Assumed(f'the vocabulary has {count} words, as that of {name} has; --set vocab-size=N says another number')


def experts(flags: Settings) -> Iterator[Told]:
    """A mixture of experts; its flags count with num-experts alone."""
    key = f'{_T}.experts'
    count = flags.number('num-experts', 0)
    names = [name for name in flags.named if name.startswith('moe-')]
    if not count:
        for name in names:
            yield Left(name, IDLE, 'without num-experts')
        return
    yield Says(f'{key}.count', count, ('num-experts',))
    yield Says(f'{key}.top_k', flags.number('moe-router-topk', 2), flags.given('moe-router-topk'))
    plain = {'moe-ffn-hidden-size': 'ffn', 'moe-shared-expert-intermediate-size': 'shared',
             'moe-router-num-groups': 'groups', 'moe-router-group-topk': 'group_top_k'}  # fmt: skip
    for name, part in plain.items():
        if flags.number(name, 0):
            yield Says(f'{key}.{part}', flags.number(name, 0), (name,))
    for name, part in {
        'moe-router-topk-scaling-factor': 'scaling_factor',
        'moe-expert-capacity-factor': 'capacity',
    }.items():
        if flags.real(name, 0.0) > 0:
            yield Says(f'{key}.{part}', flags.real(name, 0.0), (name,))
    for name, part in {
        'moe-shared-expert-gate': 'shared_gate',
        'moe-router-enable-expert-bias': 'correction_bias',
    }.items():
        if flags.on(name):
            yield Says(f'{key}.{part}', True, (name,))
    score = flags.text('moe-router-score-function')
    if score in ('softmax', 'sigmoid'):
        yield Says(f'{key}.score', score, ('moe-router-score-function',))
    elif score:
        yield Left('moe-router-score-function', NOT_MODELLED, f'{score}; softmax is written')
    if flags.on('moe-router-pre-softmax'):
        yield Says(f'{key}.normalise', False, ('moe-router-pre-softmax',))
    yield from _balance(flags, key)
    yield from _expert_layers(flags, key)


def _balance(flags: Settings, key: str) -> Iterator[Told]:
    kind = flags.text('moe-router-load-balancing-type', 'aux_loss')
    by = flags.given('moe-router-load-balancing-type')
    loss = flags.real('moe-aux-loss-coeff', 0.0)
    if kind in ('aux_loss', 'seq_aux_loss'):
        yield Says(f'{key}.aux_loss', loss, flags.given('moe-aux-loss-coeff'))
        if kind == 'seq_aux_loss':
            yield Says(f'{key}.aux_group', 'sample', by)
        return
    for name in flags.given('moe-aux-loss-coeff'):
        yield Left(name, IDLE, f'with load balancing {kind}')
    if by and kind != 'none':
        yield Left(by[0], NOT_MODELLED, f'{kind}; experts are written without an auxiliary loss')


def _expert_layers(flags: Settings, key: str) -> Iterator[Told]:
    text = flags.text('moe-layer-freq')
    listed = _pattern(text)
    if listed is None:
        if text and flags.number('moe-layer-freq', 1) > 1:
            yield Says(f'{key}.every', flags.number('moe-layer-freq', 1), ('moe-layer-freq',))
        return
    dense = listed.index(1) if 1 in listed else len(listed)
    if all(listed[dense:]):
        yield Says(f'{key}.first_dense', dense, ('moe-layer-freq',))
    else:
        yield Left('moe-layer-freq', NOT_MODELLED, 'dense layers among those with experts')


def _has_dense(flags: Settings) -> bool:
    """Whether some layer has no experts."""
    listed = _pattern(flags.text('moe-layer-freq'))
    return 0 in listed if listed is not None else flags.number('moe-layer-freq', 1) > 1


def _pattern(text: str) -> list[int] | None:
    """``([0]*3+[1]*58)`` and ``[1, 0, 1]`` as a list; None where a text is not one."""
    bare = text.strip().strip('"\'').replace(' ', '')
    bare = bare[1:-1] if bare.startswith('(') and bare.endswith(')') else bare
    found: list[int] = []
    for part in bare.split('+') if bare.startswith('[') else ['']:
        match = re.fullmatch(r'\[([01](?:,[01])*)\](?:\*(\d{1,4}))?', part)
        if match is None:
            return None
        found += [int(one) for one in match[1].split(',')] * int(match[2] or 1)
    return found


def least_expert_ranks(flags: Settings) -> int:
    """Data × context × tensor ranks that experts need."""
    inner = flags.number('expert-tensor-parallel-size', 1) * flags.number('expert-model-parallel-size', 1)
    dense = flags.number('tensor-model-parallel-size', 1) * flags.number('context-parallel-size', 1)
    return lcm(max(1, inner), max(1, dense))


RULES: Final = (trainer, position, blocks, attention, latent, further, words, experts)
__all__ = ['RULES', 'least_expert_ranks', 'real', 'whole']
