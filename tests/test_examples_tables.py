"""Tables in the documentation below a ``simpar sweep ... --markdown`` are what this command prints.

``python tests/test_examples_tables.py`` runs the commands and puts what they print into the documentation.
"""

from __future__ import annotations

import re
import shlex

import pytest
from example_sweeps import ROOT, answer

from simpar.cli import parser
from simpar.sweep.table import side_by_side

DOCUMENT = ROOT / 'docs' / 'optimizer_parallel.md'
PLACE = re.compile(r'^ {4,}(?P<command>simpar sweep .*--markdown.*)\n\n(?P<table>(?:\|.*\n)+)', re.MULTILINE)
FOUND = list(PLACE.finditer(DOCUMENT.read_text(encoding='utf-8')))


def printed(command: str) -> str:
    """As ``simpar.commands.search`` has it (tests/test_sweep.py)."""
    options = parser().parse_args(shlex.split(command)[1:])
    assert options.markdown
    return side_by_side(answer(str(options.file), tuple(options.sweep), tuple(options.set)), options.across)


@pytest.mark.parametrize('place', FOUND, ids=lambda place: place['command'].split('.')[0].rpartition('/')[2])
def test_a_table_is_what_its_command_prints(place: re.Match[str]) -> None:
    assert printed(place['command']) == place['table']


def test_all_tables_are_there() -> None:
    assert [place['command'].split()[2] for place in FOUND] == [
        'examples/when_sharding_pays.yaml',
        'examples/transformer_h100_7b.yaml',
        'examples/transformer_h100_7b.yaml',
        'examples/transformer_910b_7b.yaml',
    ]


if __name__ == '__main__':
    text = DOCUMENT.read_text(encoding='utf-8')
    text = PLACE.sub(lambda place: place[0].replace(place['table'], printed(place['command'])), text)
    DOCUMENT.write_text(text, encoding='utf-8')
