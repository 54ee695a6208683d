"""Sweeps as tables in Markdown, row by row and with one key's values side by side."""

from __future__ import annotations

import json

import pytest
from sweep_cases import run, write

from simpar.sweep import load_sweep
from simpar.sweep.markdown import as_markdown, side_by_side


def cells(text):
    return [[cell.strip() for cell in line.strip('|\n').split(' | ')] for line in text.splitlines()]


def test_it_holds_what_the_screen_holds(tmp_path, capsys):
    path = write(tmp_path, sweep='{plan.copies: [1, 2, 3], plan.tensor: [2, 4]}')
    assert run(path, '--markdown') == 0
    table = cells(capsys.readouterr().out)
    assert run(path) == 0
    shown = capsys.readouterr().out.splitlines()[2:9]
    assert len(table) == 2 + 6
    for row, line in zip(table[2:], shown[1:], strict=True):
        plain = [cell.strip('*') for cell in row if cell]
        assert line.lstrip('* ').split() == ' '.join(plain).split()
        assert line.startswith('*') == row[0].startswith('**')


def test_side_by_side_has_every_row_of_the_sweep_once(tmp_path):
    path = write(tmp_path, sweep='{plan.copies: [1, 2, 3], plan.tensor: [2, 4]}')
    answer = load_sweep(path).predict()
    heads, _, *rows = cells(side_by_side(answer, 'plan.tensor'))
    assert heads == ['copies', 'tensor 2', 'tensor 4']
    assert [row[0] for row in rows] == ['1', '2', '3']
    steps = iter(answer.results)
    for row in rows:
        results = [next(steps), next(steps)]
        for cell, result in zip(row[1:], results, strict=True):
            assert (result.step is None) == ('divide' in cell)
        bold = [cell.startswith('**') for cell in row[1:]]
        known = [result.step for result in results]
        assert bold == [step is not None and step == min(known) for step in known]


def test_a_row_that_lacks_a_combination_leaves_it_blank(tmp_path):
    path = write(
        tmp_path, sweep='[{plan.copies: 1, plan.tensor: 2}, {plan.copies: 2, plan.tensor: 4}, {plan.copies: 2}]'
    )
    rows = cells(side_by_side(load_sweep(path).predict(), 'plan.tensor'))[2:]
    assert [[bool(cell) for cell in row] for row in rows] == [[True, True, False, False], [True, False, True, True]]


def test_of_mappings_only_what_differs_is_told(tmp_path):
    one = '{layers: 1, hidden: 64, heads: 4, vocab: 128, sequence: 16}'
    text = f'simpar: 1\ncluster: {{profile: h100-sxm-8, devices: 2}}\nworkload: {{transformer: {one}, batch: 4}}\n'
    path = write(tmp_path, text=text, sweep=f'{{workload.transformer: [{one}, {one.replace("64", "128")}]}}')
    rows = cells(as_markdown(load_sweep(path).predict()))
    assert [row[0].strip('*') for row in rows[2:]] == ['hidden 64', 'hidden 128']


def test_signs_of_markdown_do_not_break_the_table(tmp_path):
    path = write(tmp_path, sweep='{plan.order: ["a|b.csv", gpipe]}')
    text = as_markdown(load_sweep(path).predict())
    assert {line.replace('\\|', '').count('|') for line in text.splitlines()} == {text.splitlines()[0].count('|')}


@pytest.mark.parametrize(
    ('words', 'what'),
    [
        (['--across', 'plan.copies'], '--across: is for tables in Markdown; write --markdown too'),
        (['--markdown', '--json'], '--markdown: and --json at once; write one of both'),
        (['--markdown', '--across', 'plan.data'], '--across: the sweep has no such key (got plan.data); write one of'),
    ],
)
def test_what_does_not_go_together_is_refused(words, what, tmp_path, capsys):
    path = write(tmp_path, sweep='{plan.copies: [1, 2]}')
    from simpar import cli

    assert cli.main(['sweep', str(path), *words]) == 2
    captured = capsys.readouterr()
    # Who asked for JSON gets the error as JSON, and nothing else.
    assert captured.out == '' if '--json' not in words else json.loads(captured.out)['error']['exit_code'] == 2
    assert what in captured.err
