"""Tables in the documentation below a ``simpar sweep ... --markdown`` are what this command prints.

``python tests/test_examples_tables.py`` runs the commands and puts what they print into the documentation.
"""

import re
import shlex

import pytest
from example_sweeps import ROOT, answer

from simpar.cli import parser
from simpar.sweep import SweepAnswer
from simpar.sweep.table import as_markdown, side_by_side

PLACE = re.compile(r'^ {4,}(?P<command>simpar sweep .*--markdown.*)\n\n(?P<table>(?:\|.*\n)+)', re.MULTILINE)
DOCUMENTS = {
    'overlaps': ['tiles', 'overlap'],
    'proofs/overlap_tables': ['tiles', 'transformer_h100'],
    'proofs/sharding_tables': [
        'when_sharding_pays',
        'transformer_h100_7b',
        'transformer_h100_7b',
        'transformer_910b_7b',
    ],
    'context_parallel': ['context_parallel'],
}
"""By page, the examples of its commands."""
PATHS = {name: ROOT / 'docs' / f'{name}.md' for name in DOCUMENTS}
FOUND = {name: list(PLACE.finditer(path.read_text(encoding='utf-8'))) for name, path in PATHS.items()}
BOTH, PASSES, ONE, SMALL = (place['command'] for name in ('overlaps', 'proofs/overlap_tables') for place in FOUND[name])


def answered(command: str) -> tuple[SweepAnswer, str]:
    """The answer of a command, and the key whose values are side by side."""
    options = parser().parse_args(shlex.split(command)[1:])
    assert options.markdown
    return answer(str(options.file), tuple(options.sweep), tuple(options.set)), options.across


def printed(command: str) -> str:
    """As ``simpar.commands.search`` has it (tests/test_sweep.py)."""
    found, across = answered(command)
    return side_by_side(found, across) if across else as_markdown(found)


def step_times(command: str) -> dict[str, float]:
    """Seconds by the values of the keys, in words."""
    return {' '.join(map(str, result.settings.values())): result.step for result in answered(command)[0].results}


@pytest.mark.parametrize(('name', 'number'), [(name, number) for name in FOUND for number in range(len(FOUND[name]))])
def test_a_table_is_what_its_command_prints(name: str, number: int) -> None:
    place = FOUND[name][number]
    assert printed(place['command']) == place['table']


@pytest.mark.parametrize('name', DOCUMENTS)
def test_all_tables_are_there(name: str) -> None:
    examples = [f'examples/{example}.yaml' for example in DOCUMENTS[name]]
    assert [place['command'].split()[2] for place in FOUND[name]] == examples


def test_tiles_win_where_copies_cannot_be_and_lose_where_products_are_small() -> None:
    """What the text below the tables says."""
    both, one, small = map(step_times, (BOTH, ONE, SMALL))
    assert both['True 2 4'] < both['True 1 8'] < both['True 2 1'] < both['True 1 1']
    assert both['False 2 1'] < both['False 1 8'] < both['False 1 1']
    assert one['1 True 4'] < one['1 True 1']
    assert small['1 4'] > small['1 1'] > small['2 1']


def test_every_pass_gains_alone_and_all_gain_most() -> None:
    none, *alone, default, every = step_times(PASSES).values()
    assert every < default < min(alone)
    assert max(alone) < none


if __name__ == '__main__':
    for path in PATHS.values():
        text = path.read_text(encoding='utf-8')
        path.write_text(PLACE.sub(lambda place: place[0].replace(place['table'], printed(place['command'])), text))
