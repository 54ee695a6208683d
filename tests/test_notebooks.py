"""The notebooks run from top to bottom, without Jupyter, and say something."""

import json
from pathlib import Path

import matplotlib
import pytest

FOLDER = Path(__file__).parent.parent / 'notebooks'
NOTEBOOKS = sorted(FOLDER.glob('*.ipynb'))


def code_of(notebook):
    """The code cells, each as one text."""
    cells = json.loads(notebook.read_text(encoding='utf-8'))['cells']
    return [''.join(cell['source']) for cell in cells if cell['cell_type'] == 'code']


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize('notebook', NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_every_cell_runs(notebook, monkeypatch, capsys):
    matplotlib.use('Agg')
    monkeypatch.chdir(FOLDER)
    names = {}
    for number, cell in enumerate(code_of(notebook)):
        exec(compile(cell, f'{notebook.name}, cell {number}', 'exec'), names)
    told = capsys.readouterr().out
    assert 'ms a step' in told
    assert '| zero |' in told


def test_no_outputs_are_kept():
    for notebook in NOTEBOOKS:
        assert all(not cell.get('outputs') for cell in json.loads(notebook.read_text(encoding='utf-8'))['cells'])
