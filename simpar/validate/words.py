"""Words: precision, network, accelerator and year as cells of published rows say them; what is not known is named."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from simpar.validate.rows import Row


class Skipped(Exception):
    """Why a row is not predicted."""


@dataclass(frozen=True, slots=True)
class Precision:
    """``dtype`` of products and activations, as of ``workload.precision``; ``fp8``, as of ``workload.fp8``."""

    dtype: str
    fp8: str = 'none'


_DTYPES: Final = {
    'bf16': 'bf16', 'bfloat16': 'bf16', 'fp16': 'fp16', 'float16': 'fp16', 'half': 'fp16', 'fp32': 'fp32',
    'float32': 'fp32', 'fp64': 'fp64', 'float64': 'fp64',
}  # fmt: skip
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
    rates = [(found, part) for part in clauses if (found := _RATE.search(part))]
    if not rates:
        return Network()
    found, _ = rates[0]
    unit = {'G': 1e9, 'T': 1e12}[found['unit']] / (1 if found['bits'] == 'B' else 8)
    ways = 2 if _BOTH_WAYS.search(text) else 1
    rate = float(found['value']) * unit / ways
    if _CARD.search(text) and not found['count']:
        return Network(rate)
    total = rate * float(found['count'] or 1)
    if found['count'] or _NODE.search(text) or total > FASTEST_PORT:
        return Network(total / node)
    return Network(unsure=f"inter_link {found[0]!r} is not said to be of a card or of a node: the profile's is taken")


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
        yield from (2000 + int(found) for found in pattern.findall(text))
