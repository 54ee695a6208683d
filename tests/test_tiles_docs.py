"""Tables of docs/tiles.md below a ``simpar sweep ... --markdown`` are what this command prints.

``python tests/test_tiles_docs.py`` runs the commands and puts what they print into the documentation.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from simpar.cli import parser
from simpar.sweep import load_sweep
from simpar.sweep.table import as_markdown, side_by_side

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / 'docs' / 'tiles.md'
PLACE = re.compile(r'^ {4}(?P<command>simpar sweep .*--markdown.*)\n\n(?P<table>(?:\|.*\n)+)', re.MULTILINE)
FOUND = list(PLACE.finditer(DOCUMENT.read_text(encoding='utf-8')))


def answer(command):
    options = parser().parse_args(shlex.split(command)[1:])
    return options, load_sweep(ROOT / options.file, options.set, options.sweep).predict()


def printed(command):
    """As ``simpar.commands.search`` has it."""
    options, found = answer(command)
    return side_by_side(found, options.across) if options.across else as_markdown(found)


@pytest.mark.parametrize('place', FOUND, ids=lambda place: place['command'].split()[2])
def test_a_table_is_what_its_command_prints(place):
    assert printed(place['command']) == place['table']


def test_all_tables_are_there():
    assert [place['command'].split()[2] for place in FOUND] == [
        'examples/tiles.yaml',
        'examples/tiles.yaml',
        'examples/transformer_h100.yaml',
        'examples/overlap.yaml',
    ]


def steps(command):
    """Seconds by the values of the keys, in words."""
    return {' '.join(map(str, result.settings.values())): result.step for result in answer(command)[1].results}


def test_tiles_win_where_copies_cannot_be_and_lose_where_products_are_small():
    """What the text below the tables says."""
    both, one, small, _ = (steps(place['command']) for place in FOUND)
    assert both['True 2 4'] < both['True 1 8'] < both['True 2 1'] < both['True 1 1']
    assert both['False 2 1'] < both['False 1 8'] < both['False 1 1']
    assert one['1 True 4'] < one['1 True 1']
    assert small['1 4'] > small['1 1'] > small['2 1']


def test_every_pass_gains_alone_and_all_gain_most():
    found = steps(FOUND[-1]['command'])
    none, *alone, default, every = found.values()
    assert every < default < min(alone)
    assert max(alone) < none


if __name__ == '__main__':
    text = DOCUMENT.read_text(encoding='utf-8')
    DOCUMENT.write_text(PLACE.sub(lambda place: place[0].replace(place['table'], printed(place['command'])), text))
