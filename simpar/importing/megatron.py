"""Megatron-LM's flags that are read together or whose absence says something.

The names and defaults are those of megatron/training/arguments.py and megatron/core of NVIDIA/Megatron-LM.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from simpar import files, profiles
from simpar.importing import mixtures
from simpar.importing.findings import IDLE, Entry, Finding, Guess, Mistake, Unmapped
from simpar.importing.settings import FOLDER, NOW, Settings, Source, first_layers, table_of

_T: Final = 'workload.transformer'

# the model


def trainer(flags: Settings) -> Iterator[Finding]:
    """What the program trains, by its name."""
    parts = re.split(r'[_.-]', flags.text('trainer').lower())
    rows = files.read_csv(FOLDER / 'programs.csv')
    what = next((row['trains'] for row in rows if {*parts} & {*row['parts'].split()}), None)
    if what is not None:
        of_sizes = '--set trainer=pretrain_gpt.py takes a decoder of the same sizes'
        yield Mistake('trainer', f'not modelled: {what} (got {flags.text("trainer")})', of_sizes)


def position(flags: Settings) -> Iterator[Finding]:
    """Positions: learned unless told, and what rotary needs."""
    kind = flags.text('position-embedding-type')
    if flags.on('use-rotary-position-embeddings'):
        kind = 'rope'
    elif flags.on('no-position-embedding') and kind == 'learned_absolute':
        kind = 'none'
    by = flags.given('position-embedding-type', 'use-rotary-position-embeddings', 'no-position-embedding')
    said = flags.table.rows['position-embedding-type'].choices.get(kind.lower())
    if said == 'rotary':
        yield Entry(f'{_T}.position', 'rotary', by, '' if kind in ('rope', 'rotary') else f'{kind} costs the same')
        yield from rotary(flags)
        return
    if said is None:
        yield Unmapped('position-embedding-type', f'{kind}; no positions are written')
    yield Entry(f'{_T}.position', said or 'none', by)
    if said == 'learned' and 'max-position-embeddings' in flags:
        yield Entry(f'{_T}.positions', flags.number('max-position-embeddings'), ('max-position-embeddings',))
    yield from flags.left('positions are not rotary', 'rotary-base', 'rotary-percent', 'rotary-interleaved')
    yield from flags.left('', 'max-position-embeddings')


def rotary(flags: Settings) -> Iterator[Finding]:
    """What turns, and by which frequencies."""
    yield from flags.left('the longest sequence; rotary positions have no weight', 'max-position-embeddings')
    yield from flags.said('rotary-base', 'rotary-percent', 'rotary-interleaved')
    if flags.on('use-rope-scaling'):
        by = flags.given('use-rope-scaling', 'rope-scaling-factor')
        yield Entry(f'{_T}.rope_scaling', [flags.real('rope-scaling-factor'), 1.0, 4.0, 8192], by)
    elif by := flags.given('rotary-seq-len-interpolation-factor'):
        yield Entry(f'{_T}.rope_scaling', [flags.real(by[0])], by)


def blocks(flags: Settings) -> Iterator[Finding]:
    """Heads, feed-forward, norms and the head of words."""
    if flags.on('group-query-attention'):
        by = flags.given('group-query-attention', 'num-query-groups')
        yield Entry(f'{_T}.kv_heads', flags.number('num-query-groups'), by)
    else:
        yield from flags.left('without group-query-attention', 'num-query-groups')
    yield from flags.said('swiglu', 'quick-geglu', 'squared-relu', 'openai-gelu')
    if flags.on('swiglu') and 'ffn-hidden-size' not in flags:
        yield Entry(f'{_T}.ffn', int(4 * flags.number('hidden-size') * 2 / 3 / 64) * 64, ('swiglu',))
    yield from flags.said('normalization')
    yield from flags.said('untie-embeddings-and-output-weights', silent=True)
    yield from biases(flags)
    yield from flags.said('qk-layernorm')


def biases(flags: Settings) -> Iterator[Finding]:
    """Biases of all products, unless a flag takes them away."""
    if flags.on('disable-bias-linear'):
        by = flags.given('disable-bias-linear', 'add-qkv-bias')
        yield Entry(f'{_T}.bias', ['qkv'] if flags.on('add-qkv-bias') else [], by)
    elif mixtures.number_of_experts(flags):
        # Biases of experts are not modelled; where every layer has experts, none is left.
        yield Entry(f'{_T}.bias', ['qkv', 'proj', *(['ffn'] if mixtures.has_dense(flags) else [])], ())
        yield Guess('experts have no biases, which simpar does not model: --disable-bias-linear is not given')
    elif flags.on('add-qkv-bias'):
        yield Entry(f'{_T}.bias', ['qkv', 'proj', 'ffn'], ('add-qkv-bias',))


def is_checkpointed(flags: Settings) -> bool:
    """Whether full layers are made again, in the words that Megatron-LM had until v3.0 of 2022."""
    old = ('checkpoint-activations', 'activations-checkpoint-method')
    return any(one.called.lstrip('-').replace('_', '-') in old for one in flags.every)


def framework(flags: Settings) -> tuple[str, int]:
    """Megatron-LM, or the fork of it that has flags of its own; and the last year of its release."""
    if flags.given('deepspeed', 'deepspeed-config', 'zero-stage'):
        return 'Megatron-DeepSpeed', NOW
    if any(name.startswith(('enable-zero-bubble', 'zero-bubble-')) for name in flags.named):
        return 'zero-bubble', NOW
    return 'Megatron-LM', 2022 if is_checkpointed(flags) else NOW


def graphs(flags: Settings) -> Iterator[Finding]:
    """A stack with captured graphs or another dispatcher, where flags ask for them."""
    by = tuple(name for name in flags.named if 'cuda-graph' in name and 'warmup' not in name)
    by += flags.given('moe-token-dispatcher-type', 'moe-flex-dispatcher-backend', 'moe-enable-deepep')
    if words := profiles.choices_in(' '.join(f'{name}={flags.text(name)}' for name in by)):
        name, year = framework(flags)
        yield Entry('cluster.stack', profiles.stack_of(name + words, '', year), by)


def attention(flags: Settings) -> Iterator[Finding]:
    """Flash or unfused, its dropout, its window."""
    by, sinks = flags.given('attention-backend', 'use-flash-attn', 'transformer-impl'), flags.choice('softmax-type')
    if sinks is None and flags.on('softmax-type'):
        what = f'no softmax that Megatron-LM has (got {flags.text("softmax-type")[:40]!r})'
        yield Mistake('softmax-type', what, 'write vanilla, off-by-one or learnable')
    elif sinks not in ('none', None):
        # NVIDIA/Megatron-LM d98e8a64dd, megatron/core/transformer/dot_product_attention.py, line 118 on.
        yield Entry(f'{_T}.sinks', sinks, ('softmax-type',))
    is_local = flags.text('transformer-impl') == 'local' and not flags.on('use-flash-attn')
    unfused = flags.choice('attention-backend') == 'unfused' or (not flags.text('attention-backend') and is_local)
    # Before Transformer Engine attention was a product, a softmax and a product.
    is_old = not by and framework(flags) in (('Megatron-DeepSpeed', NOW), ('Megatron-LM', 2022))
    yield Entry(f'{_T}.attention', 'unfused' if unfused or is_old else 'flash', by)
    # GPT-NeoX has a word of its own for it.
    silent = not by and 'attention-config' not in flags.table.rows
    if silent and is_old:
        yield Guess('attention is unfused, as in Megatron-LM of 2021 without --use-flash-attn')
    elif silent:
        yield Guess('attention is flash, as attention-backend auto finds it')
    hidden, core = flags.real('hidden-dropout'), flags.real('attention-dropout')
    sources = flags.given('hidden-dropout', 'attention-dropout')
    if len(sources) < 2 and (hidden or core):
        yield Guess('dropout is 0.1 where the flags do not say it')
    yield Entry(f'{_T}.dropout', hidden, sources)
    if hidden != core and 'attention-dropout' in flags:
        note = f'{core:g}, beside {hidden:g} elsewhere: dropout {hidden:g} is written for both'
        yield Unmapped('attention-dropout', note)
    elif hidden != core:
        yield Guess(f'attention-dropout is {core:g}, which is not modelled beside hidden-dropout {hidden:g}')
    if 'window-size' in flags:
        yield from window(flags)


def window(flags: Settings) -> Iterator[Finding]:
    """``--window-size left,right``; every so-manieth layer may be without."""
    numbers = flags.numbers('window-size')
    if not numbers or numbers[0] < 0:
        yield from flags.left('no window', 'window-size')
        return
    width, every = numbers[0] + 1, flags.text('window-attn-skip-freq')
    listed = mixtures.pattern_of(every)
    value: int | list[int] = width
    if listed is not None:
        value = [width if one else 0 for one in listed]
    elif every:
        value = [width] * ((flags.number('window-attn-skip-freq') or 1) - 1) + [0]
    yield Entry(f'{_T}.window', value, flags.given('window-size', 'window-attn-skip-freq'))


def latent(flags: Settings) -> Iterator[Finding]:
    """Multi-head latent attention; its widths count with its switch alone."""
    yield from flags.said('kv-channels')
    if flags.on('multi-latent-attention') and flags.text('position-embedding-type') != 'rope':
        yield Entry(f'{_T}.position', 'rotary', ('multi-latent-attention',))
    widths = ('kv-lora-rank', 'q-lora-rank', 'qk-head-dim', 'qk-pos-emb-head-dim', 'v-head-dim')
    yield from flags.said(*widths, by=('multi-latent-attention',), silent=True)


def vocabulary(flags: Settings) -> Iterator[Finding]:
    """Words of the vocabulary, and the rows that pad it."""
    padded = flags.number('padded-vocab-size')
    if padded:
        yield Entry(f'{_T}.vocab', padded, ('padded-vocab-size',))
        yield from flags.left('padded-vocab-size says all', 'vocab-size', 'make-vocab-size-divisible-by')
        return
    yield from _words(flags)
    rows = flags.number('make-vocab-size-divisible-by') * flags.number('tensor-model-parallel-size')
    yield Entry(f'{_T}.pad_vocab', rows, flags.given('make-vocab-size-divisible-by'))


def _words(flags: Settings) -> Iterator[Finding]:
    """How many words there are, by their number or by the tokenizer."""
    by = flags.given('tokenizer-type', 'tokenizer-model', 'tokenizer-name-or-path')
    if flags.number('vocab-size'):
        yield Entry(f'{_T}.vocab', flags.number('vocab-size'), ('vocab-size',))
        yield from flags.left('vocab-size says how many words', *by)
        return
    if not flags.given('num-layers', 'hidden-size'):
        return
    texts = [flags.named[name].shown for name in (*by, *flags.given('vocab-file'))]
    if 'merge-file' in flags and not by:
        texts.append('GPT2BPETokenizer')
    elif not by and ('bert' in flags.text('trainer') or 't5' in flags.text('trainer')):
        texts.append('BertWordPieceLowerCase')
    tokenizer = tokenizer_of(texts) or tokenizer_of([flags.every[0].where.partition(':')[0].rpartition('/')[2]])
    if tokenizer is None:
        what = 'how many words the vocabulary has is not told' + (f' ({", ".join(texts)})' if texts else '')
        yield Mistake('tokenizer-type', what, 'give it, e.g. --set vocab-size=128256')
        return
    count, name = tokenizer
    yield Entry(f'{_T}.vocab', count, by, f'of the tokenizer of {name}')
    yield Guess(f'the vocabulary has {count} words, as that of {name} has; --set vocab-size=N says another number')


def tokenizer_of(texts: Iterable[str]) -> tuple[int, str] | None:
    """Words and name of the tokenizer that texts such as a path name; None where none does.

    Each count is vocab_size of a published config: openai-community/gpt2, meta-llama/Llama-2-7b-hf, Meta-Llama-3-8B,
    mistralai/Mistral-7B-v0.1 and Mixtral-8x7B, Qwen/Qwen2.5-7B and Qwen3-8B, deepseek-ai/DeepSeek-V2 and V3,
    google-bert/bert-base-uncased, google/gemma-2-9b.
    """
    full = ' '.join(texts).lower()
    fitting = (row for row in files.read_csv(FOLDER / 'tokenizers.csv') if re.search(row['name'], full))
    return next(((int(row['words']), row['tokenizer']) for row in fitting), None)


# the cluster and the batch


def cluster(flags: Settings) -> Iterator[Finding]:
    """Nodes and devices of each, and work queues."""
    ranks = mixtures.ranks_of(flags)
    yield from ranks.notes
    # The engine makes nodes of them, which hold as many devices as the profile says.
    yield Entry('ranks', ranks.total, flags.given('nnodes', 'nproc-per-node', 'worker-num'))
    if ranks.node:
        yield Entry('node', ranks.node, flags.given('nproc-per-node'))
    queues = 'cuda-device-max-connections'
    # CUDA takes no other number; what a variable holds that nobody assigns keeps no schedule from being written.
    if 1 <= flags.number(queues) <= 32:
        yield from flags.said(queues)
    elif queues in flags:
        yield Unmapped(queues, 'no number from 1 to 32; all queues of the device are taken')


def batch(flags: Settings) -> Iterator[Finding]:
    """Samples of a step, and the micro-batches that they come in."""
    ranks = mixtures.ranks_of(flags).total
    # Those that share experts are among the data ranks.
    data = max(1, ranks // max(1, mixtures.dense_ranks(flags) * flags.number('pipeline-model-parallel-size')))
    small, full = flags.number('micro-batch-size'), flags.number('global-batch-size')
    # Both give the batch of one step; the last of a schedule is that of nearly all steps.
    steps, name = flags.number('gradient-accumulation-steps'), 'gradient-accumulation-steps'
    if full and small and steps and name in flags and full != small * data * steps:
        # EleutherAI/gpt-neox ea7aefd8f8e1, megatron/neox_arguments/arguments.py, line 879.
        what = f'{small} samples × {steps} × {data} data ranks are not the batch of {full}'
        yield Mistake(name, what, f'--set {name}={max(1, full // (small * data))}')
        return
    growing = flags.given('rampup-batch-size', 'step-batch-size-schedule')
    if listed := re.findall(r':(\d{1,9})(?!\S)', flags.shown('step-batch-size-schedule')):
        full = int(listed[-1])
    if not flags.given('num-layers', 'hidden-size'):
        yield Mistake('num-layers', 'missing: the command trains no model that its flags say', 'name a training script')
        return
    if not small and not full:
        yield Mistake(
            'micro-batch-size', 'missing', 'give it, e.g. --set micro-batch-size=1 --set global-batch-size=256'
        )
        return
    if not full and 'gradient-accumulation-steps' in flags.table.rows:
        full = small * data * max(1, flags.number('gradient-accumulation-steps'))
    elif not full:
        full = small * data
        yield Guess(f'the global batch is micro-batch-size × {data} data ranks = {full}')
    small = small or max(1, full // data)
    if full % (small * data):
        even = max(1, round(full / (small * data))) * small * data
        what = f'global-batch-size {full} is no multiple of micro-batch-size {small} × data {data}'
        yield Guess(f'a batch of {even}: {what}')
        full = even
    by = flags.given('global-batch-size') or flags.given('micro-batch-size', 'gradient-accumulation-steps')
    if growing:
        yield Guess(f'the step of the full batch, {full}: the first steps of the run, whose batch grows, are shorter')
    yield Entry('workload.batch', full, (*by, *growing))
    yield Entry('plan.micro_batches', full // (small * data), flags.given('micro-batch-size', 'global-batch-size'))


_AWARE: Final = 'use-precision-aware-optimizer'


def precision(flags: Settings) -> Iterator[Finding]:
    """16 bits with master weights, or 32."""
    kind = 'bf16' if flags.on('bf16') else 'fp16' if flags.on('fp16') else 'fp32'
    yield Entry('workload.precision', kind, flags.given('bf16', 'fp16'))
    narrow = ('grad-reduce-in-bf16', 'o2-gradient', *(['main-grads-dtype'] if flags.on(_AWARE) else []))
    sums = flags.given('accumulate-allreduce-grads-in-fp32', *narrow)
    said = (name for name in narrow if name in flags.table.rows)
    in_16_bits = any(flags.on(name) and flags.text(name) != 'fp32' for name in said)
    if kind == 'bf16' and not in_16_bits:
        yield Entry('workload.gradients', 'fp32', sums or ('bf16',))
    # NVIDIA/Megatron-LM d98e8a64dd, megatron/training/arguments.py, line 1210: sums in bf16 go over those in fp32.
    elif flags.on('accumulate-allreduce-grads-in-fp32') and kind != 'bf16':
        yield Entry('workload.gradients', 'fp32', sums)
    else:
        yield Entry('workload.gradients', kind, sums)
    if kind == 'fp16':
        scale, by = flags.real('loss-scale'), flags.given('loss-scale') or ('fp16',)
        yield Entry('workload.loss_scale', scale, by, 'dynamic in Megatron-LM')
    if 'fp8-format' in flags:
        yield from eight(flags)


def eight(flags: Settings) -> Iterator[Finding]:
    """Products in 8 bits, of one scale a tensor."""
    recipe = flags.text('fp8-recipe')
    note = '' if recipe in ('delayed', 'tensorwise') else f'scales by {recipe} are priced as one scale a tensor'
    form = flags.choice('fp8-format') or 'hybrid'
    yield Entry('workload.fp8', form, flags.given('fp8-format', 'fp8-recipe'), note)
    if note:
        yield Unmapped('fp8-recipe', note)
    names = ('first-last-layers-bf16', 'num-layers-at-start-in-bf16', 'num-layers-at-end-in-bf16')
    if flags.on(names[0]):
        first, last = map(flags.number, names[1:])
        layers = flags.number('num-layers')
        numbers = dict.fromkeys([*range(first), *range(layers - last, layers)])
        yield Entry('workload.fp8_except', [f'layer{layer}.*' for layer in numbers], flags.given(*names))


def optimizer(flags: Settings) -> Iterator[Finding]:
    """Adam with decay apart, unless told."""
    name, by = flags.choice('optimizer'), flags.given('optimizer')
    if flags.text('optimizer').lower() not in flags.table.rows['optimizer'].choices:
        yield Unmapped('optimizer', f'{flags.text("optimizer")}; adamw is written')
    own = {'adamw': ('adam-beta1', 'adam-beta2', 'adam-eps'), 'momentum': ('sgd-momentum',)}.get(name, ())
    always = ('weight-decay', *(['muon-momentum'] if name == 'muon' else []))
    for one in (*flags.said(*always, silent=True), *flags.said('lr', *own)):
        # The table has the keys of Adam.
        yield one._replace(key=one.key.replace('adamw', name)) if isinstance(one, Entry) else one
    yield from _states(flags, name, by)
    if 'clip-grad' not in flags:
        yield from flags.said('clip-grad', silent=True)


def _states(flags: Settings, name: str, by: tuple[str, ...]) -> Iterator[Finding]:
    """Master weights and moments, in full or in fewer bits."""
    key, kinds, moments = f'workload.optimizer.{name}', ('exp-avg-dtype', 'exp-avg-sq-dtype'), 'o2-optimizer'
    own = (_AWARE, 'main-params-dtype', 'main-grads-dtype', *kinds)
    shares = flags.given('reuse-fp32-param') if flags.on('bf16') and flags.on('reuse-fp32-param') else ()
    aware = flags.on(own[0]) and name == 'adamw'
    # NVIDIA/Megatron-LM d98e8a64dd, megatron/core/optimizer/__init__.py, line 576 on; optimizer_config.py, line 407.
    if aware and flags.on('bf16') and flags.text('fp8-recipe') == 'delayed':
        shares = flags.given(own[0])
    yield Entry(f'{key}.master_weights', 'shared' if shares else flags.on('bf16') or flags.on('fp16'), (*by, *shares))
    if not shares:
        yield from flags.left('weights have no fp32 beside bf16 that could share memory', 'reuse-fp32-param')
    if not aware:
        yield from flags.left('without use-precision-aware-optimizer', *own)
    elif not shares:
        yield from flags.left('master weights are in full beside this recipe of 8 bits', own[0])
    if aware and flags.text(own[1]) != 'fp32':
        yield Unmapped(own[1], f'master weights in {flags.text(own[1])}; fp32 is written')
    words = sorted({flags.text(one) for one in kinds}) if aware else ['fp32']
    if moments in flags.table.rows and flags.on(moments) and name == 'adamw':
        yield Entry(f'{key}.moments', 'bf16', (moments,))
    elif words in (['bf16'], ['fp16']):
        yield Entry(f'{key}.moments', words[0], flags.given(*kinds))
    elif words != ['fp32']:
        why = 'moments of 8 bits, or of two precisions; fp32 is written'
        yield from (Unmapped(one, why) for one in flags.given(*kinds))


# the plan


def parallel(flags: Settings) -> Iterator[Finding]:
    """Sequence, context and expert parallelism."""
    yield from flags.said('sequence-parallel', 'context-parallel-size', 'use-tp-pp-dp-mapping')
    yield from flags.said('cp-comm-type', silent=True)
    yield from _within_ring(flags)
    yield from mixtures.expert(flags)
    tensor = flags.number('tensor-model-parallel-size')
    if flags.on('tp-comm-overlap') and tensor > 1 and flags.on('sequence-parallel'):
        yield Entry('plan.tiles', tensor, ('tp-comm-overlap',), 'a ring has as many parts as ranks')
    elif flags.on('tp-comm-overlap'):
        yield from flags.left('without sequence-parallel', 'tp-comm-overlap')


def _within_ring(flags: Settings) -> Iterator[Finding]:
    """Neighbours that exchange heads inside of a ring.

    NVIDIA/Megatron-LM d98e8a64dd, megatron/core/transformer/transformer_config.py: the first size is of neighbours.
    """
    name, sizes = 'hierarchical-context-parallel-sizes', flags.numbers('hierarchical-context-parallel-sizes')
    if flags.number('context-parallel-size') < 2 or flags.text('cp-comm-type') != 'a2a+p2p':
        yield from flags.left('without cp-comm-type a2a+p2p', name)
    elif len(sizes) == 2:
        yield Entry('plan.context_by_heads', sizes[0], (name, 'cp-comm-type'))
    else:
        yield Unmapped('cp-comm-type', f'a2a+p2p without two --{name}; a ring is written')


class Stages(NamedTuple):
    """Chunks of a rank, layers of each stage (None where they do not come out even), and the flags that say these."""

    chunks: int
    layers: list[int] | None
    by: tuple[str, ...]


_VIRTUAL: Final = ('num-layers-per-virtual-pipeline-stage', 'num-virtual-stages-per-pipeline-rank')
_ENDS: Final = ('decoder-first-pipeline-num-layers', 'decoder-last-pipeline-num-layers')
_ACCOUNTS: Final = ('account-for-embedding-in-pipeline-split', 'account-for-loss-in-pipeline-split')
_LAYOUT: Final = 'pipeline-model-parallel-layout'
_METHOD: Final = 'pp-partition-method'
_OF_RANK: Final = ('enable-recompute-layers-per-pp-rank', 'recompute-in-advance')
"""MindSpeed's words for which layers of a rank a block takes."""


def is_v(flags: Settings) -> bool:
    """Whether each rank has a stage of both halves of the model.

    Ascend/MindSpeed 028de58ca6, mindspeed/core/pipeline_parallel/dualpipev/dualpipev_chunks.py, line 43 on: layers lie
    in the order of the stages, with those that do nothing among them.
    """
    return flags.text('schedules-method') == 'dualpipev'


def stages_of(flags: Settings) -> Stages:
    """How layers lie on stages: by a layout, by the number of the first and the last, or evenly."""
    ranks, layers = max(1, flags.number('pipeline-model-parallel-size')), flags.number('num-layers')
    if _LAYOUT in flags:
        # Modules that predict further tokens (m) count where the model has them.
        modules = flags.number('mtp-num-layers')
        counts = _laid_out(flags.text(_LAYOUT), 'tm' if modules else 't')
        fits = sum(counts) == layers + modules and len(counts) % ranks == 0
        return Stages(len(counts) // ranks if fits else 1, counts if fits else None, (_LAYOUT,))
    # Embedding and loss may count as a layer each.
    both = 'embedding' in flags.text(_METHOD)
    before, behind = (both or flags.on(name) for name in _ACCOUNTS)
    each, full = flags.number(_VIRTUAL[0]), layers + before + behind
    chunks = max(1, full // (ranks * each)) if each else 2 if is_v(flags) else flags.number(_VIRTUAL[1])
    first, last = map(flags.number, _ENDS)
    middle, rest = ranks - bool(first) - bool(last), layers - first - last
    by, count = flags.given(*_ENDS, *_ACCOUNTS, *([_METHOD] if both else [])), ranks * chunks
    if first or last:
        # NVIDIA/Megatron-LM d98e8a64dd, megatron/core/transformer/transformer_block.py, line 104 on: layers of a
        # rank, which its chunks share evenly.
        fits = chunks > 0 and rest >= 0 and (rest % middle == 0 if middle else rest == 0)
        each_rank = [first] * bool(first) + [rest // max(1, middle)] * middle + [last] * bool(last) if fits else []
        even = bool(each_rank) and all(one % chunks == 0 for one in each_rank)
        return Stages(chunks, [one // chunks for one in each_rank] * chunks if even else None, by)
    if listed := flags.numbers('num-layer-list'):
        fits = sum(listed) == layers and len(listed) == ranks
        return Stages(chunks, listed if fits else None, ('num-layer-list',))
    idle = idle_layers(flags)
    by += ('noop-layers',) * bool(idle)
    if full % max(1, count):
        return Stages(chunks, None, by)
    share = full // count
    counts = [share - (stage == 0) * before - (stage == count - 1) * behind for stage in range(count)]
    return Stages(chunks, [one - idle_of(idle, stage, share) for stage, one in enumerate(counts)], by)


def idle_layers(flags: Settings) -> set[int]:
    """Layers that do nothing, in MindSpeed."""
    return {one for one in flags.numbers('noop-layers') if 0 <= one < flags.number('num-layers')}


def idle_of(idle: set[int], stage: int, share: int, first: int = 10**9) -> int:
    """How many idle layers are among the first of a stage. Arguments: ``share``, layers of each stage."""
    return sum(one // share == stage and one % share < first for one in idle)


def _laid_out(text: str, counted: str) -> list[int]:
    """What each stage of a layout such as ``Et*3|(tt|)*29,m|L`` has of some letters."""
    text = re.sub(r'[\s,"\']', '', text)
    while len(text) < 10_000 and (match := re.search(r'\(([^()]*)\)\*(\d{1,4})', text)):
        text = text[: match.start()] + match[1] * int(match[2]) + text[match.end() :]
    text = re.sub(r'([A-Za-z])\*(\d{1,4})', lambda match: match[1] * int(match[2]), text)
    return [sum(map(stage.count, counted)) for stage in text.split('|')]


def pipeline(flags: Settings) -> Iterator[Finding]:
    """The order of a pipeline, and layers of its stages."""
    if flags.number('pipeline-model-parallel-size') < 2:
        yield from flags.left('one pipeline rank', _METHOD)
        return
    if 'parameters' in flags.text(_METHOD):
        yield Unmapped(_METHOD, 'stages of equal weights; even numbers of layers are written')
    if 'm' in flags.text(_LAYOUT) and not flags.number('mtp-num-layers'):
        yield Unmapped(_LAYOUT, 'its layers of multi-token prediction (m) are left out')
    stages = stages_of(flags)
    if stages.chunks > 1 and not is_v(flags):
        by = flags.given(*_VIRTUAL) or stages.by
        yield Entry('plan.order', 'interleaved-1f1b', by)
        yield Entry('plan.chunks', stages.chunks, by)
    by = flags.given('no-overlap-p2p-communication') or ('pipeline-model-parallel-size',)
    if stages.chunks == 1 or is_v(flags) or flags.on('no-overlap-p2p-communication'):
        yield Entry('plan.exchange', 'fused', by, 'sends and receives between two computations are one')
    else:
        # NVIDIA/Megatron-LM d98e8a64dd, megatron/training/arguments.py, line 3118: overlap_p2p_comm is on with virtual
        # stages; core/pipeline_parallel/schedules.py, line 1747 on: each message is issued behind a computation, and so
        # waits for it on the device.
        yield Entry('plan.exchange', 'separate', by, 'messages go on beside computation')
        yield Entry('plan.receive', 'late', by, 'posted behind a computation')
    if not flags.given('use-megatron-fsdp', 'use-torch-fsdp2'):
        # The same, training.py, line 2508, and core/distributed/distributed_data_parallel.py, line 170: buckets cut the
        # first chunk of the first rank alone.
        yield Entry('plan.fusion', 'stage', ('pipeline-model-parallel-size',), 'each chunk has one bucket')
    if stages.by and stages.layers is not None:
        yield Entry('plan.stages', stages.layers, stages.by)
    yield from (
        Unmapped(name, 'with these numbers of layers, ranks and chunks') for name in stages.by if not stages.layers
    )


def pairs(flags: Settings) -> Iterator[Finding]:
    """The forward of a micro-batch beside the backward of another, which hides all-to-alls of experts."""
    switches = ('overlap-moe-expert-parallel-comm', 'moe-fb-overlap')
    more = ('ep-overlap-early-attn-memory-release', 'delay-wgrad-compute')
    on = [name for name in switches if name in flags.table.rows and flags.on(name)]
    whole = flags.number('pipeline-model-parallel-size') > 1 and stages_of(flags).chunks == 1
    # NVIDIA/Megatron-LM d98e8a64dd, megatron/core/transformer/transformer_config.py, line 3002 on.
    if not on or not mixtures.number_of_experts(flags) or flags.number('expert-model-parallel-size') < 2:
        why = 'without overlap-moe-expert-parallel-comm' if not on else 'no ranks share experts'
        yield from flags.left(why, *switches, *more)
    elif whole:
        for name in flags.given(*on, *more):
            yield Unmapped(name, 'with a pipeline it needs virtual stages; forwards and backwards are written in turns')
    else:
        early, late = (flags.on(name) for name in more)
        by = flags.given(*on, *more[:1])
        yield Entry('plan.pairs', 'memory' if early else 'overlap', by)
        # MindSpeed's docs of moe-fb-overlap: dW of attention covers the sending between stages.
        if late or 'moe-fb-overlap' in on:
            yield Entry('plan.weight_gradients', 'delayed', flags.given('delay-wgrad-compute') or by)


def offload(flags: Settings) -> Iterator[Finding]:
    """Activations of the first layers that wait on the host."""
    switch, number = 'cpu-offloading', 'cpu-offloading-num-layers'
    by, count = flags.given(switch, number), flags.number(number)
    # NVIDIA/Megatron-LM d98e8a64dd, megatron/training/arguments.py: a number switches it on; transformer_config.py: it
    # needs one pipeline rank, and nothing recomputed.
    if not count and not flags.given(switch):
        return
    if not count or flags.number('pipeline-model-parallel-size') > 1:
        why = 'a pipeline beside it, which it refuses' if count else 'offloading to host memory'
        yield from (Unmapped(name, why) for name in by)
        return
    yield Entry('plan.offload', ['activations'], by)
    if count != flags.number('num-layers') - 1:
        yield Entry('plan.offload_layers', count, (number,))


def sharding(flags: Settings) -> Iterator[Finding]:
    """What data ranks share, and what their messages hide under."""
    fsdp, strategy = flags.given('use-megatron-fsdp', 'use-torch-fsdp2'), 'data-parallel-sharding-strategy'
    zero, by = int(flags.on('use-distributed-optimizer')), flags.given('use-distributed-optimizer')
    if fsdp:
        zero, by = flags.choice(strategy), (*by, *fsdp, *flags.given(strategy))
        zero = 3 if zero is None else zero
    # NVIDIA/Megatron-LM d98e8a64, training/arguments.py: use_layer_wise_distributed_optimizer, of all but Adam and SGD.
    own = flags.choice('optimizer') == 'muon' and (zero == 1 or flags.text('optimizer') == 'dist_muon')
    if own:
        zero, by = 1, (*by, *flags.given('optimizer'))
    if zero:
        yield Entry('plan.zero', zero, by)
    if own:
        yield Entry('plan.shard_form', 'owned', by, 'each rank updates whole matrices')
    yield from instances(flags, zero)
    yield from flags.said('overlap-grad-reduce', silent=zero < 3)
    if not zero:
        yield from flags.left('without use-distributed-optimizer', 'overlap-param-gather')
    elif 'overlap-param-gather' in flags and zero == 3:
        yield Entry('plan.prefetch', 1, ('overlap-param-gather',))
    elif gathers := flags.given('overlap-param-gather', 'overlap-param-gather-with-optimizer-step'):
        yield Entry('plan.gather', 'after-update', gathers, 'each behind its own update, under the next forward')
    elif zero < 3 and 'overlap-param-gather-with-optimizer-step' not in flags:
        yield Guess('weights are gathered under the next forward, as with --overlap-param-gather')


def instances(flags: Settings, zero: int) -> Iterator[Finding]:
    """Data ranks that share one set of shards, where there are several of these."""
    name = 'num-distributed-optimizer-instances'
    count, ranks = flags.number(name), mixtures.ranks_of(flags).total
    for axis in ('pipeline', 'tensor'):
        ranks //= max(1, flags.number(f'{axis}-model-parallel-size'))
    if count < 2 or not zero:
        yield from flags.left('one set of shards', name)
    elif ranks % count == 0:
        yield Entry('plan.shard_group', ranks // count, (name,))
    else:
        yield Mistake(name, f'{count} do not divide the {ranks} data ranks', f'--set {name}=1')


def recompute(flags: Settings) -> Iterator[Finding]:
    """What the backward makes again."""
    kind = flags.text('recompute-granularity')
    # A method alone switched it on.
    is_old = is_checkpointed(flags) and 'recompute-method' in flags
    # NVIDIA/Megatron-LM d98e8a64dd, megatron/training/arguments.py, line 607: it goes over a granularity.
    if flags.on('recompute-activations') or ('recompute-granularity' not in flags and is_old):
        kind = 'full' if is_checkpointed(flags) else 'selective'
    by = flags.given('recompute-granularity', 'recompute-activations')
    if flags.on(_OF_EXPERTS) and kind != 'full':
        kind, by = 'selective', (*by, _OF_EXPERTS)
    names = ('recompute-method', 'recompute-num-layers', *_OF_RANK)
    if kind == 'full':
        yield from recompute_full(flags, (*by, *flags.given(*names)))
    elif kind == 'selective':
        yield from recompute_modules(flags, by)
        yield from flags.left('with recompute-granularity selective', *names)
    else:
        # MindSpeed's attention that waits on the host reads them without it.
        read = () if flags.on('swap-attention') else names
        yield from flags.left('without recompute-granularity', *read, 'recompute-modules')
    alike = kind == 'full' and flags.number('tensor-model-parallel-size') > 1 and not flags.on('sequence-parallel')
    why = 'no two ranks hold the same inputs of recomputed layers'
    yield from flags.said_where(alike, why, 'distribute-saved-activations')


_OF_EXPERTS: Final = 'moe-layer-recompute'


def recompute_modules(flags: Settings, by: tuple[str, ...]) -> Iterator[Finding]:
    """The modules that a list names, as patterns of operators; attention where there is no list."""
    name, act = 'recompute-modules', activation_of(flags)
    modules = re.findall(r'\w+', flags.named[name].shown) if name in flags else ['core_attn']
    if _OF_EXPERTS in by:
        modules = [*(modules if len(by) > 1 else []), 'moe']
    by = (*by, *flags.given(name))
    if modules == ['core_attn']:
        yield Entry('plan.recompute', 'selective', by)
        return
    patterns = {
        'core_attn': ('attention*',),
        'layernorm': ('norm?',),
        'mla_up_proj': ('kv_up', 'k_rope', 'qkv', *(['q_up'] if flags.number('q-lora-rank') else [])),
        # Of dense layers alone: those of experts have a name before.
        'mlp': ('[0-9].fc1', f'[0-9].{act}', '[0-9].fc2') if mixtures.has_dense(flags) else (),
        'moe_act': (f'experts.{act}',),
        'moe': ('route*', 'dispatch', 'experts.*'),
        'shared_experts': ('shared.*',),
    }
    if not mixtures.number_of_experts(flags):
        patterns |= dict.fromkeys(('moe_act', 'moe', 'shared_experts'), ())
    if not flags.on('multi-latent-attention'):
        patterns['mla_up_proj'] = ()
    if not (flags.number('moe-shared-expert-intermediate-size') or flags.number('n-shared-experts')):
        patterns['shared_experts'] = ()
    chosen = [one for module in modules for one in patterns.get(module, ())]
    written = [f'layer*{one}' if one.startswith('[') else f'layer*.{one}' for one in dict.fromkeys(chosen)]
    yield Entry('plan.recompute', written or 'none', by)
    if rest := [module for module in modules if module not in patterns]:
        yield Unmapped(name, f'{", ".join(rest)}; the others are recomputed')


def activation_of(flags: Settings) -> str:
    """The activation that a flag says."""
    rows = [row for row in flags.table.rows.values() if row.key == f'{_T}.activation' and flags.on(row.setting)]
    return rows[0].value.removeprefix('= ') if rows else 'gelu'


def recompute_full(flags: Settings, by: tuple[str, ...]) -> Iterator[Finding]:
    """All layers, or with ``block`` the first of each stage."""
    count, method = flags.number('recompute-num-layers'), flags.text('recompute-method')
    stages = stages_of(flags).layers
    # What attention that waits on the host leaves to the backward runs there.
    if 'recompute-in-advance' in flags and flags.number(_VIRTUAL[0]) == 1 and not flags.on('swap-attention'):
        yield Unmapped('recompute-in-advance', 'recomputation in the idle time of a pipeline')
    yield from flags.left('with recompute-granularity full', 'recompute-modules')
    if method == 'block' and stages is None:
        yield Unmapped('recompute-num-layers', 'blocks of these stages; all layers are')
    elif method == 'block' and stages is not None:
        counts = recomputed_layers(flags, stages, count)
        if any(one < layers for one, layers in zip(counts, stages, strict=True)):
            # Megatron-LM recomputes no module that predicts further tokens then.
            own = (layer for layer in first_layers(stages, counts) if layer < flags.number('num-layers'))
            patterns = [f'layer{layer}.*' for layer in own]
            yield Entry('plan.recompute', patterns or 'none', by)
            return
    yield Entry('plan.recompute', 'full', by)
    if method == 'uniform' and count > 1:
        yield Unmapped('recompute-num-layers', f'{count} layers as one; each keeps its input')


def recomputed_layers(flags: Settings, stages: list[int], count: int, *, last: bool = False) -> list[int]:
    """How many of the first layers of each stage a block of so many takes.

    Arguments: ``last``: the last layer of the model, too, where a flag leaves it out.
    """
    chunks, counts = stages_of(flags).chunks, [count] * len(stages)
    if flags.on(_OF_RANK[0]) and not is_v(flags):
        # Ascend/MindSpeed 028de58ca6, mindspeed/core/memory/common.py, line 167 on: chunks take turns.
        ranks = len(stages) // chunks
        counts = [max(0, -(-(count - place // ranks) // chunks)) for place in range(len(stages))]
    if flags.on(_OF_RANK[1]) and not last:
        counts[-1] = min(counts[-1], stages[-1] - 1)
    idle, share = idle_layers(flags), max(1, flags.number('num-layers') // len(stages))
    return [one - idle_of(idle, stage, share, one) for stage, one in enumerate(counts)]


def further(flags: Settings) -> Iterator[Finding]:
    """Modules that predict further tokens, and the weight of their losses."""
    has_modules = flags.number('mtp-num-layers') != 0
    yield from flags.said_where(has_modules, 'no modules', 'mtp-num-layers', 'mtp-loss-scaling-factor')


OF_MODEL: Final = (trainer, position, blocks, attention, latent, further, vocabulary, mixtures.experts)
OF_PLAN: Final = (cluster, batch, precision, optimizer, parallel, pipeline, pairs, offload)
WHOLE_PLAN: Final = (*OF_PLAN, sharding, recompute)
MEGATRON: Final = Source(
    'Megatron-LM', table_of('megatron'), rules=(*OF_MODEL, *WHOLE_PLAN, graphs), framework=framework
)

# the same words in files of YAML, of NeMo, Megatron-Bridge and Primus


def grouped(flags: Settings) -> Iterator[Finding]:
    """Groups of queries, which count by themselves there."""
    if 'num-query-groups' in flags and not flags.on('group-query-attention'):
        yield Entry(f'{_T}.kv_heads', flags.number('num-query-groups'), ('num-query-groups',))


def sections(flags: Settings) -> Iterator[Finding]:
    """What a section of NeMo or Megatron-Bridge says over others, or by being there.

    NVIDIA-NeMo/Megatron-Bridge 067f987df0, training/comm_overlap.py, line 562 on; training/mixed_precision.py, line 138
    on: a recipe's sums are in fp32. NVIDIA/NeMo 7ed5455, megatron_base_model.py: setup_optimization; docs of its
    features, parallelisms.rst: the optimizer of Apex overlaps its sums unless told, and keeps what bf16 lacks of fp32.
    """
    narrow, shards, off = 'grad-reduce-in-bf16', 'use-distributed-optimizer', 'no-overlap-grad-reduce'
    if narrow in flags and any(one.called.startswith('mixed_precision bf16') for one in flags.every):
        yield Entry('workload.gradients', 'fp32', ('bf16',), 'as its recipe has it')
        yield Unmapped(narrow, 'mixed_precision goes over it', IDLE)
    if shards not in flags:
        return
    apex = 'distributed_fused_adam' in flags.named[shards].called
    if off not in flags and (apex or any(one.called.startswith('comm_overlap.') for one in flags.every)):
        yield Entry('plan.reduce_gradients', 'overlapped', flags.given('overlap-grad-reduce') or (shards,))
    if apex and flags.on('bf16') and not flags.on('fp8-params'):
        yield Entry('workload.optimizer.adamw.master_weights', 'shared', (shards,))


NEMO: Final = Source(
    'NeMo, Megatron-Bridge or Primus',
    table_of('nemo').over(MEGATRON.table),
    rules=(*OF_MODEL, grouped, *WHOLE_PLAN, graphs, sections),
    framework=framework,
)
