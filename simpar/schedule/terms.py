"""Terms: what to say of an unknown key or value that is a word of the field, or one of ours in the wrong place.

Words stand in the table of keys and in ``words.csv``: what the field calls a value, a key with a value or a kind of
layer, and what is not modelled. They are those of Megatron-LM, torch, DeepSpeed, MindSpore, MaxText and Hugging Face,
in lower case with ``_``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from simpar.document import Key
from simpar.files import read_csv
from simpar.keys import ROWS

_TABLE: Final = read_csv(Path(__file__).with_name('words.csv'))


def _names(kind: str) -> dict[str, str]:
    """The words of the field of a kind of the table, by what they mean."""
    return {row['name']: row['words'] for row in _TABLE if row['kind'] == kind}


KEYS: Final[Mapping[str, str]] = {**{key: row.words for key, row in ROWS.items() if row.words}, **_names('key')}
"""What to write, and the words that mean it."""
ABSENT: Final[Mapping[str, str]] = _names('absent')
"""What is not modelled, and the words that mean it."""
LAYERS: Final[Mapping[str, str]] = _names('layer')
"""Kinds of layers of a network and their keys, and other words for them."""
VALUES: Final[Mapping[str, str]] = _names('value')
"""Key and value to write, and other spellings of that value."""
ABSENT_LAYERS: Final = _names('absent layer')['']
ABSENT_ORDERS: Final = _names('absent order')['']
FAMILIES: Final[Mapping[str, str]] = {row['words']: row['name'] for row in _TABLE if row['kind'] == 'absent part'}
"""Parts of words that are enough to tell what they mean."""
AROUND: Final = re.compile(r'^(use|enable|num|n|base|ici|dcn|target)_|_(size|degree|num|count|world_size|factor|dim)$')
"""What words have around them without meaning something else."""


NOT_MODELLED: Final = 'docs/not_modelled.md'


class Remark(NamedTuple):
    """What is said of a word, and what to write instead."""

    what: str
    instead: str


def _by_word(table: Mapping[str, str]) -> dict[str, str]:
    return {word: name for name, words in table.items() for word in words.split()}


_WRITE: Final = _by_word(KEYS)
_IS_ABSENT: Final = _by_word(ABSENT)
_LAYER_WORDS: Final = _by_word(LAYERS)
_HOMES: Final = {
    key.rpartition('.')[2]: key
    for key in ROWS
    if re.fullmatch(r'(workload|workload\.transformer|plan)\.[a-z_0-9]+', key) and key != 'workload.transformer'
}
"""Our own keys, for those in the wrong place."""
_CHOSEN: Final = ('attention', 'precision', 'gradients', 'order', 'optimizer', 'zero', 'recompute', 'search')
_OTHER_VALUES: Final = {
    (name.split()[0], word.replace('_', '')): name.split()[1]
    for name, words in VALUES.items()
    for word in words.split()
}


def plain(word: str) -> str:
    """A word in lower case, its parts joined by ``_``: ``numLayers``, ``--num-layers`` are ``num_layers``."""
    parted = re.sub(r'(?<=[a-z0-9])(?=[A-Z][a-z])', '_', word[:60])
    return re.sub(r'[^a-z0-9]+', '_', parted.lower()).strip('_')


def key_term(key: Key) -> Remark | None:
    """What to say of an unknown key that is a word of the field; None of others."""
    *above, word = map(str, key)
    if above[:2] == ['workload', 'network'] and len(above) > 2:
        return _layer_term(plain(word))
    known = _known(plain(word))
    if absent := _absent_of(known):
        return absent
    if known not in _WRITE:
        home = _HOMES.get(word, '')
        return Remark('unknown key', f'write {home}') if home else None
    place, colon, value = _WRITE[known].partition(': ')
    owner, _, name = place.rpartition('.')
    if owner.startswith('workload.optimizer') and above[:2] == ['workload', 'optimizer']:
        owner = '.'.join(above)
    # In its own place a key is written without what is above it.
    short = name if owner == '.'.join(above) else place
    return Remark('unknown key', f'write {short}{colon}{value}')


def _known(word: str) -> str:
    """The word, or what is left of it without what many words have around them, if that is in a table."""
    shorter = AROUND.sub('', word, count=1)
    # Twice, for words may have something before them and behind.
    tries = (word, shorter, AROUND.sub('', shorter))
    return next((one for one in tries if one in _WRITE or one in _IS_ABSENT), word)


def _absent_of(word: str) -> Remark | None:
    """Of a word for what is not modelled."""
    family = next((what for pattern, what in FAMILIES.items() if re.search(pattern, word)), '')
    found = _IS_ABSENT.get(word, '' if word in _WRITE else family)
    return _absent(found) if found else None


def _layer_term(word: str) -> Remark | None:
    """Of a kind or key of a network's layers."""
    if word in ABSENT_LAYERS.split():
        return _absent(f'{word} as a layer of a network')
    return Remark('unknown key', f'write {_LAYER_WORDS[word]}') if word in _LAYER_WORDS else None


def value_term(key: Key, value: str) -> Remark | None:
    """What to say of an unknown value that is a word of the field; None of others."""
    name, known = str(key[-1]), plain(value)
    # Classes of torch are written together: ScheduleInterleaved1F1B.
    if key[:2] == ('cluster', 'links'):
        return Remark(
            f'a factor of the profile is wanted (got "{value[:38]}")', 'write e.g. 0.5 for half its bandwidth'
        )
    found = _OTHER_VALUES.get((name, known.replace('_', '')))
    if found:
        return Remark(f'unknown value (got "{value[:38]}")', f'write {found}')
    if name == 'order' and known in ABSENT_ORDERS.split():
        return _absent(f'the order {value[:38]}')
    if name == 'precision' and _WRITE.get(known) == 'workload.fp8':
        return Remark(f'unknown value (got "{value[:38]}")', 'write bf16, and fp8: hybrid beside it')
    if name == 'attention' and _WRITE.get(known, '').startswith('plan.context'):
        return Remark(f'unknown value (got "{value[:38]}")', f'write flash, and {_WRITE[known]}')
    return _absent_of(known) if name in _CHOSEN else None


def _absent(what: str) -> Remark:
    return Remark(f'not modelled: {what}', f'see {NOT_MODELLED}')
