"""The tables of settings that the docs have, made from the code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simpar.importing.deepspeed import DEEPSPEED
from simpar.importing.flags import IDLE, NOT_MODELLED, Row
from simpar.importing.mapping import has_key
from simpar.importing.megatron import MEGATRON
from simpar.importing.mindformers import MINDFORMERS
from simpar.importing.mindspeed import OWN
from simpar.importing.torchtitan import TORCHTITAN

TABLES: Final = {
    'Megatron-LM': (MEGATRON.rows, MEGATRON.idle, MEGATRON.not_modelled),
    'MindSpeed, beside these': OWN,
    'torchtitan': (TORCHTITAN.rows, TORCHTITAN.idle, TORCHTITAN.not_modelled),
    'DeepSpeed': (DEEPSPEED.rows, DEEPSPEED.idle, DEEPSPEED.not_modelled),
    'MindFormers': (MINDFORMERS.rows, MINDFORMERS.idle, MINDFORMERS.not_modelled),
}


def head(name: str) -> str:
    """The first line of the table of what is mapped."""
    return f'| {name} | key | conversion | note |'


def listed_head(name: str) -> str:
    """The first line of the table of what is listed."""
    return f'| {name}: listed | reason | what it is |'


def mapped_table(name: str) -> list[str]:
    """A line for each setting that has a key."""
    rows = TABLES[name][0]
    return [head(name), '|---|---|---|---|', *(_row(flag, row) for flag, row in rows.items())]


def _row(flag: str, row: Row) -> str:
    later = (
        '' if has_key(row.key) or row.key == 'workload.transformer' else 'listed as not modelled: there is no such key'
    )
    note = '; '.join(filter(None, (row.note, later)))
    return f'| `{flag}` | `{row.key}` | {row.how} | {note} |'


def listed_table(name: str) -> list[str]:
    """A line for each reason to list a setting; a name that ends with ``*`` is all that begin so."""
    _, idle, missing = TABLES[name]
    lines = [*_listed(idle, IDLE), *_listed(missing, NOT_MODELLED)]
    return [listed_head(name), '|---|---|---|', *lines]


def _listed(table: Mapping[str, str], reason: str) -> list[str]:
    return [
        f'| {", ".join(f"`{one}`" for one in names.split())} | {reason} | {what.strip()} |'
        for what, names in table.items()
    ]
