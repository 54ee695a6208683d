"""The notebooks run from top to bottom, without Jupyter, say what they say in the file, and keep their pictures."""

import json
import re
from pathlib import Path

import matplotlib
import pytest
from every import EVERY

FOLDER = Path(__file__).parent.parent / 'notebooks'
NOTEBOOKS = sorted(FOLDER.glob('*.ipynb'))
LONG = 'devices=[16, 32, 64, 128]'
"""Four searches, which `make prove NAME=every` makes; test_planner_answer makes some of a small space."""
PICTURES = {'does_multi_copy_pay': 2, 'which_plan': 2, 'prediction_against_measurement': 1}


def cells_of(notebook):
    """The code cells."""
    cells = json.loads(notebook.read_text(encoding='utf-8'))['cells']
    return [cell for cell in cells if cell['cell_type'] == 'code']


def said(cell):
    """What a cell printed when it was kept, but for what was told while it ran."""
    outputs = [output for output in cell['outputs'] if output.get('name') == 'stdout']
    return ''.join(''.join(output['text']) for output in outputs)


@pytest.mark.parametrize('name', sorted(PICTURES))
def test_every_cell_runs_and_says_what_the_file_says(name, monkeypatch, capsys):
    matplotlib.use('Agg')
    monkeypatch.chdir(FOLDER)
    names = {}
    for number, cell in enumerate(cells_of(FOLDER / f'{name}.ipynb')):
        if EVERY > 1 and LONG in ''.join(cell['source']):
            continue
        exec(compile(''.join(cell['source']), f'{name}, cell {number}', 'exec'), names)
        told = capsys.readouterr().out
        # A measurement is never the same twice; a prediction is.
        if name == 'prediction_against_measurement':
            told, kept = (re.sub(r'[-+]?[0-9.]+( ms|%)', '', text) for text in (told, said(cell)))
            assert told == kept
        else:
            assert told == said(cell)


def test_notebooks_are_small_and_have_their_outputs_and_pictures():
    assert {notebook.stem for notebook in NOTEBOOKS} == set(PICTURES)
    for notebook in NOTEBOOKS:
        text = notebook.read_text(encoding='utf-8')
        assert len(text) < 3e6
        outputs = [output for cell in cells_of(notebook) for output in cell['outputs']]
        assert outputs
        assert not any(output['output_type'] == 'error' for output in outputs)
        shown = [''.join(output.get('data', {}).get('text/html', '')) for output in outputs]
        assert sum('data:image/png;base64,' in html for html in shown) == PICTURES[notebook.stem]
