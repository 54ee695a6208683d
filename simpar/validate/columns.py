"""Columns: what cells of all published rows say of stack, model and plan; what is not known is named.

Precision, network and year; what the backward makes again, of words as frameworks write them; the rest.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simpar.files import read_csv
from simpar.profiles import choices_in, load_stack, stack_of
from simpar.validate.rows import Row


class Skipped(Exception):
    """Why a row is not predicted."""


@dataclass(frozen=True, slots=True)
class Precision:
    """``dtype`` of products and activations, as of ``workload.precision``; ``fp8``, as of ``workload.fp8``."""

    dtype: str
    fp8: str = 'none'


_WORDS: Final = read_csv(Path(__file__).with_name('words.csv'))


def words_of(column: str) -> dict[str, str]:
    """Words of cells of a column, in small letters, and what each stands for, by the table ``words.csv``."""
    return {row['word']: row['means'] for row in _WORDS if row['column'] == column}


_DTYPES: Final = words_of('dtype')
_IN_8_BITS: Final = ('fp8', 'float8', 'hif8')
_BY_ROWS: Final = ('rowwise', 'row', 'blockwise', 'block')
"""Scales of 8 bits that cost passes which are not modelled."""


def precision_of(text: str) -> Precision:
    """The precision that words stand for, e.g. ``amp_bf16/DEFAULT``; bf16 where there are none.

    Raises ``Skipped`` for what is not modelled, and for words that are not known.
    """
    words = re.findall(r'[a-z]+[0-9]*', text.lower().replace('bfloat16', 'bf16'))
    if not words:
        return Precision('bf16')
    narrow = next((word for word in words if re.fullmatch(r'(nv|mx)?(fp|float|int)4|int8', word)), '')
    if narrow:
        raise Skipped(f'products of {narrow}')
    dtypes = [_DTYPES[word] for word in words if word in _DTYPES]
    eight = any(word in _IN_8_BITS or word.startswith(('mxfp8', 'e4m')) for word in words)
    if eight and any(word in _BY_ROWS for word in words):
        raise Skipped('8 bits with scales by rows or blocks')
    if not dtypes and not eight:
        raise Skipped(f'precision {text[:40]!r}')
    # Activations are in 16 bits; of which kind costs the same.
    recipe = 'none' if not eight else 'e4m3' if 'e4m3' in text.lower() and 'e5m2' not in text.lower() else 'hybrid'
    return Precision(dtypes[0] if dtypes else 'bf16', recipe)


@dataclass(frozen=True, slots=True)
class Network:
    """Bytes a second of a device in one direction, 0 where nothing says; ``unsure``, why a stated rate is not used."""

    rate: float = 0.0
    unsure: str = ''


_RATE: Final = re.compile(
    r'(?:(?P<count>\d+) ?[x×*] ?)?(?P<value>\d+(?:\.\d+)?) ?(?P<unit>[GT])(?P<bits>b|B|bit)(?:/s|ps)?(?![a-zA-Z])'
)
_STORAGE: Final = re.compile(r'storage|file ?system|front.?end|management|\bin.?band\b|ethernet for', re.IGNORECASE)
_CARD: Final = re.compile(
    r'(?:per|each|a|every|/) ?(?:gpu|npu|card|device|accelerator|die|rank)|for each|point to point', re.IGNORECASE
)
_NODE: Final = re.compile(r'(?:per|each|a|every|/) ?(?:node|server|host|machine)|node.?node', re.IGNORECASE)
_BOTH_WAYS: Final = re.compile(r'bidir|both (?:ways|directions)', re.IGNORECASE)
FASTEST_PORT: Final = 100e9
"""Bytes a second of the fastest network card of a device (800 Gb/s, NVIDIA ConnectX-8): what is more is a node's."""


def network_of(text: str, node: int) -> Network:
    """The network between nodes, of a text such as ``8x200Gb/s RoCE per node`` or ``200 Gb/s a card; storage 1 Tb/s``.

    Arguments: ``node``, devices of a node. Several ports, or a rate above any port's, are those of a node. A bare rate
    of one port may be a card's or a node's, and is not used.
    """
    # Compute and storage stand in clauses of their own.
    clauses = [part for part in re.split(r'[;,+()]| and ', text) if not _STORAGE.search(part)]
    rates = [(match, part) for part in clauses if (match := _RATE.search(part))]
    if not rates:
        return Network()
    match, _ = rates[0]
    unit = {'G': 1e9, 'T': 1e12}[match['unit']] / (1 if match['bits'] == 'B' else 8)
    ways = 2 if _BOTH_WAYS.search(text) else 1
    rate = float(match['value']) * unit / ways
    if _CARD.search(text) and not match['count']:
        return Network(rate)
    total = rate * float(match['count'] or 1)
    if match['count'] or _NODE.search(text) or total > FASTEST_PORT:
        return Network(total / node)
    return Network(unsure=f"inter_link {match[0]!r} is not said to be of a card or of a node: the profile's is taken")


def year_of(row: Row) -> int | None:
    """The year of a row's framework: as stated, or by the earliest date of its framework, run or source; else None.

    What a paper tells was run before it was printed: numbers of arXiv papers have the year in front.
    """
    if row.text('year'):
        return row.whole('year')
    for columns in (('framework',), ('time_date', 'mem_date', 'date'), ('source', 'source_ref')):
        years = [year for column in columns for year in _years(row.text(column))]
        if years:
            return min(years)
    return None


_ARXIV: Final = re.compile(r'(?<![\w.])([12]\d)(?:0[1-9]|1[0-2])\.\d{4,5}(?!\d)')
"""The number of a paper: its year, its month, and a count."""
_YEAR: Final = re.compile(r'(?<![\w.])20([1-3]\d)(?![\w.])')
_CONFERENCE: Final = re.compile(
    r'\b(?:SC|ICLR|ICML|NeurIPS|NIPS|MLSys|OSDI|SOSP|NSDI|ATC|ASPLOS|ISCA|MICRO|HPCA|EuroSys|PPoPP)[ \'’]*([12]\d)\b'
)


def _years(text: str) -> Iterator[int]:
    for pattern in (_ARXIV, _YEAR, _CONFERENCE):
        yield from (2000 + int(year) for year in pattern.findall(text))


NOTHING: Final = frozenset({'', 'none', 'no', 'off', 'false', '0'})
_OF_ATTENTION: Final = frozenset({'selective', 'attn', 'attention', 'core', 'core_attn'})
_OF_SEQUENCE: Final = frozenset({'sp', 'seq', 'par', 'sequence', 'parallel', 'parallelism', 'with'})
_MODULES: Final = words_of('recompute')
"""Modules of Megatron Core's --recompute-modules, and the operators of a layer that they stand for."""
CHEAP: Final = ('norm*', 'proj', 'residual1', '*glu', 'rotary')
"""What torchtitan's mode ``op`` makes again of a dense layer: all but attention, messages, and of two products one."""
OF_EXPERTS: Final = ('router', 'dispatch', 'experts.fc*')

Recompute = str | list[str]


def recompute_of(row: Row) -> Recompute:
    """``full``, ``selective``, patterns of operators, or nothing.

    Words are those of Megatron-LM (``selective``, ``full uniform 1``, ``block 30``, ``selective core_attn``), of
    torchtitan (``selective``, ``selective 2``) and of MindFormers (JSON). Raises ``Skipped`` for others.
    """
    text = row.text('recompute')
    if text.startswith('{'):
        return _mindformers(row, json.loads(text))
    words = re.findall(r'[a-z_]+|\d+', text.lower().replace('-', ' ').replace('core attn', 'core_attn'))
    if text.lower() in NOTHING or words[:1] in ([], ['none'], ['no']):
        return ''
    if words[0] in ('full', 'block', 'uniform'):
        return _full(row, words)
    if words[0] == 'selective':
        return _selective(row, words)
    raise Skipped(f'recompute {text[:60]!r}')


def says_sequence_parallel(row: Row) -> bool:
    """Whether the words of recomputation name sequence parallelism, as tables of papers have it."""
    return bool(re.search(r'seq\w*.par|\+ ?sp\b', row.text('recompute').lower()))


def _full(row: Row, words: Sequence[str]) -> Recompute:
    counts = [int(word) for word in words if word.isdigit()]
    unknown = {word for word in words if not word.isdigit()} - {'full', 'block', 'uniform', 'layers', 'layer'}
    unknown -= _OF_SEQUENCE
    if unknown or len(counts) > 1 or (counts and not {'block', 'uniform'} & {*words}):
        raise Skipped(f'recompute {row.text("recompute")[:60]!r}')
    if 'block' not in words or not counts:
        # Of uniform groups each keeps its input: the same work, and less memory.
        return 'full'
    return _layers(row, [counts[0]] * _stages(row))


def _selective(row: Row, words: Sequence[str]) -> Recompute:
    rest = [word for word in words[1:] if word not in _OF_SEQUENCE]
    if 'titan' in row.text('framework').lower() and set(rest) <= {'op'} | {word for word in rest if word.isdigit()}:
        every = next((int(word) for word in rest if word.isdigit()), 0)
        if every:
            return [f'layer{layer}.*' for layer in range(row.whole('n_layers')) if (layer + 1) % every == 0]
        return [f'layer*.{name}' for name in (*CHEAP, *(OF_EXPERTS if row.whole('n_experts') > 1 else ()))]
    if set(rest) <= _OF_ATTENTION:
        return 'selective'
    if set(rest) <= _MODULES.keys():
        return [f'layer*.{_MODULES[word]}' for word in rest]
    raise Skipped(f'recompute {row.text("recompute")[:60]!r}')


def _stages(row: Row) -> int:
    return row.whole('pp', 1) * row.whole('vpp_chunks', 1)


def _layers(row: Row, counts: Sequence[int], names: Sequence[str] = ('*',)) -> Recompute:
    """The first layers of each stage, so many of each."""
    layers, stages = row.whole('n_layers'), len(counts)
    if layers % stages:
        raise Skipped('recomputation of layers that do not divide over stages')
    each = layers // stages
    if names == ('*',) and all(count >= each for count in counts):
        return 'full'
    return [
        f'layer{stage * each + layer}.{name}'
        for stage, count in enumerate(counts)
        for layer in range(min(count, each))
        for name in names
    ]


def _mindformers(row: Row, settings: dict[str, object]) -> Recompute:
    """Full layers, or norms and activation of those that MindFormers selects; a list has layers for each stage."""
    full, some = settings.get('recompute', False), settings.get('select_recompute', False)
    if full is True:
        return 'full'
    patterns = [*_of_stages(row, full, ('*',)), *_of_stages(row, some, ('norm*', '*glu'))]
    return list(dict.fromkeys(patterns)) if patterns else ''


def _of_stages(row: Row, counts: object, names: Sequence[str]) -> Iterator[str]:
    if counts is True:
        yield from (f'layer*.{name}' for name in names)
    elif isinstance(counts, list):
        if len(counts) != _stages(row) or not all(isinstance(count, int) for count in counts):
            raise Skipped('recomputation by stage, with another number of stages')
        layers = _layers(row, counts, names)
        yield from ('layer*.*',) if layers == 'full' else layers
    elif counts:
        raise Skipped('recomputation of chosen operators')


ORDERS: Final = words_of('schedule')
ACTIVATIONS: Final = words_of('mlp')
TODAY: Final = 9999
LATENT: Final = words_of('attention_kind')
_LATENT: Final = re.compile(rf'({"|".join(LATENT)})=(\d+)')
_WINDOW: Final = re.compile(r'(?:window|swa|sliding)\D{0,12}(\d+)')
_FREQUENCY: Final = re.compile(r'\(?\[0\] ?\* ?(\d+) ?\+ ?\[1\] ?\* ?(\d+)\)?')


def stack_name(row: Row) -> str:
    """The stack of a row: as its column says, or by its framework and year."""
    name = row.text('stack') or stack_in(row, year_of(row) or TODAY)
    is_zero_bubble = ORDERS.get(row.text('schedule').lower(), '')[:2] == 'zb'
    validated = 'post-validation' in row.text('overlap_flags') and is_zero_bubble
    return 'zero-bubble-post' if name == 'zero-bubble' and validated else name


def stack_in(row: Row, year: int) -> str:
    """The stack of a row's framework in a year."""
    flags = row.text('overlap_flags')
    framework = row.text('framework') + choices_in(f'{flags} {row.text("flags")}')
    return stack_of(framework, row.text('hardware'), year, flags or None)


def filled(tree: dict[str, Any], row: Row) -> dict[str, Any]:
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


def not_stated(row: Row, columns: Sequence[str]) -> str:
    """Which of some columns are empty, in words; empty where none is."""
    missing = [column for column in columns if not row.text(column)]
    return f'not stated: {", ".join(missing)}' if missing else ''


def uneven(row: Row) -> str:
    """Why degrees do not make the number of devices; empty where they do."""
    world = row.whole('tp', 1) * row.whole('pp', 1) * row.whole('cp', 1) * max(1, row.whole('dp', 1))
    return '' if world == row.whole('n_gpus') else f'{world} ranks of its degrees on {row.whole("n_gpus")} devices'


def degrees(row: Row) -> dict[str, Any]:
    """Degrees, micro-batches and shards."""
    data, tensor = max(1, row.whole('dp', 1)), row.whole('tp', 1)
    plan: dict[str, Any] = {
        'data': data,
        'tensor': tensor,
        'pipeline': row.whole('pp', 1),
        'micro_batches': row.whole('global_batch') // data // row.whole('micro_batch', 1),
    }
    if tensor > 1 and (row.whole('sp') or says_sequence_parallel(row)):
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


def zero_stage(row: Row) -> int:
    """The stage of ZeRO: as stated, or all of it where the framework is FSDP."""
    is_sharded = re.search(r'fsdp|titan', row.text('framework').lower())
    return row.whole('zero_stage', 3 if is_sharded else 0)


def overlaps(row: Row, what: str) -> bool:
    """Whether its flags say ``overlap-…`` of something."""
    return f'overlap-{what}' in row.text('overlap_flags')


def order_of(row: Row) -> str:
    """The order that a row's schedule stands for; empty where it is not known, or not stated."""
    order = ORDERS.get(row.text('schedule').lower().replace('_', '-'), '')
    # What several chunks make of 1F1B.
    return 'interleaved-1f1b' if order == '1f1b' and row.whole('vpp_chunks', 1) > 1 else order


def activation_of(row: Row) -> str:
    """The activation of a row's feed-forward; empty where it says none. Raises ``Skipped`` for another word."""
    word = row.text('mlp').lower().split(' ')[0]
    if word and word not in ACTIVATIONS:
        raise Skipped(f'mlp {row.text("mlp")[:40]!r}')
    return ACTIVATIONS.get(word, '')


def attention_of(row: Row) -> dict[str, Any]:
    """Keys of a transformer that say how it attends: latents, a window, kernels, heads of keys and values.

    Raises ``Skipped`` where the row names what it gives no numbers of, or layers that are no attention.
    """
    kind, heads = row.text('attention_kind'), row.whole('heads')
    if kind.lower().startswith('hybrid'):
        raise Skipped('layers that are no attention')
    keys: dict[str, Any] = {}
    if 'unfused' in kind:
        keys['attention'] = 'unfused'
    if row.whole('kv_heads', heads) != heads:
        keys['kv_heads'] = row.whole('kv_heads')
    window = row.whole('window')
    if said := _WINDOW.search(kind.lower()):
        window = int(said[1])
    elif re.search(r'window|swa|sliding', kind.lower()) and not window:
        raise Skipped('not stated: how wide the window of attention is')
    if window:
        keys['window'] = window
    if 'mla' in kind.lower() or 'latent' in kind.lower():
        latents = {LATENT[word]: int(number) for word, number in _LATENT.findall(kind)}
        if 'kv_lora_rank' not in latents:
            raise Skipped('not stated: widths of latent attention')
        keys |= {**latents, 'position': 'rotary'}
        keys.pop('kv_heads', None)
    elif row.whole('head_dim') and row.whole('head_dim') * heads != row.whole('hidden'):
        keys['head_dim'] = row.whole('head_dim')
    return keys


def experts_of(row: Row) -> dict[str, Any]:
    """Keys of a mixture of experts; raises ``Skipped`` for layers of experts in an order that is not known."""
    keys: dict[str, Any] = {'count': row.whole('n_experts'), 'top_k': row.whole('topk', 2)}
    if row.whole('moe_ffn'):
        keys['ffn'] = row.whole('moe_ffn')
    if row.whole('moe_shared_ffn'):
        keys['shared'] = row.whole('moe_shared_ffn')
    frequency = row.text('moe_layer_freq')
    if dense := _FREQUENCY.fullmatch(frequency):
        keys['first_dense'] = int(dense[1])
    elif frequency not in ('', '1'):
        raise Skipped(f'layers of experts by {frequency[:40]!r}')
    return keys
