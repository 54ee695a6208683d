"""What a sweep says and writes: table, JSON, CSV and picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sweep_cases import rows_of_csv, run, write

from simpar import cli
from simpar.commands.progress import Progress
from simpar.sweep import load_sweep
from simpar.sweep.plot import bars
from simpar.sweep.table import best_summary, render, short_keys

DOCUMENTATION = Path(__file__).parent.parent / 'docs' / 'sweep.md'


def test_csv_holds_what_json_holds(tmp_path, capsys):
    path = write(tmp_path, sweep='{plan.copies: [1, 2, 3], plan.stages: [[], balanced]}')
    assert run(path, '--json', '--csv', tmp_path / 'table.csv') == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer['written'] == [str(tmp_path / 'table.csv')]
    table = rows_of_csv(tmp_path / 'table.csv')
    for row, cells in zip(answer['rows'], table, strict=True):
        assert cells['plan.stages'] == ('balanced' if row['settings']['plan.stages'] else '[]')
        assert cells['reason'] == row['reason']
        for name in ('step', 'compute', 'exposed', 'idle', 'bubble', 'gain'):
            assert cells[name] == ('' if row[name] is None else repr(row[name]))


def test_the_documentation_names_every_part_of_the_json(tmp_path, capsys):
    assert run(write(tmp_path, sweep='{plan.copies: [1, 3]}'), '--json') == 0
    answer = json.loads(capsys.readouterr().out)
    text = DOCUMENTATION.read_text(encoding='utf-8')
    for name in (*answer, *answer['rows'][0], *answer['rows'][0]['memory']):
        assert f'`{name}`' in text, name


@pytest.mark.parametrize('keys', [1, 6, 12])
def test_a_table_fits_120_columns_whatever_is_swept(keys, tmp_path):
    names = ['plan.copies', 'plan.tensor', 'plan.reduce', 'plan.copies_loss', 'plan.streams', 'workload.batch']
    names += ['workload.network.0.dense.out', 'workload.network.2.dense.in', 'workload.network.3.dense.in']
    names += ['workload.network.0.dense.in', 'cluster.links.nvlink', 'cluster.links.infiniband']
    values = [[1, 2], [2, 3], ['early'], ['mean'], ['group'], [64], [512], [512], [512], [256], [0.123456789], [1]]
    sweep = dict(zip(names[:keys], values[:keys], strict=True))
    answer = load_sweep(write(tmp_path, sweep=json.dumps(sweep))).predict()
    lines = render(answer, colour=False).splitlines()
    assert max(map(len, lines[1:])) <= 120
    assert lines[0].startswith('fastest of')
    table = lines[2 : 3 + len(answer.results)]
    assert [line[0] for line in table[1:]].count('*') == 1
    assert table[1 + answer.best].startswith('*')


def test_short_names_stay_apart():
    assert short_keys(['plan.copies_loss', 'cluster.nodes']) == {
        'plan.copies_loss': 'copies loss',
        'cluster.nodes': 'nodes',
    }
    assert short_keys(['plan.x', 'cluster.x', 'plan']) == {'plan.x': 'plan.x', 'cluster.x': 'cluster.x', 'plan': 'plan'}


def test_progress_is_told_on_a_terminal_only(tmp_path, capsys, monkeypatch):
    path = write(tmp_path, sweep='{plan.copies: [1, 2]}')
    assert run(path) == 0
    assert capsys.readouterr().err == ''
    monkeypatch.setattr('sys.stderr.isatty', lambda: True)
    monkeypatch.setenv('TERM', 'xterm')
    assert run(path) == 0
    assert capsys.readouterr().err == '\r1 of 2 predicted\r\x1b[K'


def test_run_takes_the_file_as_it_stands_and_says_so(tmp_path, capsys):
    path = write(tmp_path)
    assert cli.main(['run', str(path), '--json']) == 0
    alone = json.loads(capsys.readouterr().out)
    path = write(tmp_path, sweep='{plan.copies: [2, 4]}')
    assert cli.main(['run', str(path), '--json']) == 0
    swept = json.loads(capsys.readouterr().out)
    more = set(swept.pop('notes')) - set(alone.pop('notes'))
    assert more == {'the sweep of the file is left out, this is the file as it stands; `simpar sweep` makes the table'}
    assert swept == alone
    assert cli.main(['run', str(path)]) == 0
    assert capsys.readouterr().out.count('Note: the sweep of the file is left out') == 1


# The picture


def test_bars_are_as_long_as_the_steps_and_their_parts(tmp_path):
    answer = load_sweep(write(tmp_path, sweep='{plan.copies: [1, 3, 2]}')).predict()
    axes = bars(answer).axes[0]
    scale = 1e6 if answer.results[0].step < 1e-3 else 1e3
    for place, result in enumerate(answer.results):
        parts = [bar.get_width() for bar in axes.patches if bar.get_y() < place < bar.get_y() + bar.get_height()]
        assert sum(parts) == pytest.approx((result.step or 0.0) * scale)
        if result.step:
            figures = result.outcome.figures
            assert parts == pytest.approx([part * scale for part in (figures.compute, figures.exposed, figures.idle)])
    words = [text.get_text() for text in axes.texts]
    assert ['fastest' in text for text in words] == [row == answer.best for row in range(3)]
    assert words[1].strip() == answer.results[1].outcome.reason


def test_of_very_many_rows_the_fastest_are_drawn(tmp_path):
    answer = load_sweep(write(tmp_path), sweeps=[f'cluster.links.nvlink={[1 + n / 200 for n in range(120)]}']).predict()
    figure = bars(answer)
    assert len(figure.axes[0].texts) == 100
    assert '20 slower rows not drawn' in figure.texts[0].get_text()
    assert best_summary(answer)[:40] == figure.texts[0].get_text()[:40]


def test_the_picture_is_written_and_named(tmp_path, capsys):
    target = tmp_path / 'deep' / 'sweep.png'
    assert run(write(tmp_path), '--sweep', 'plan.copies=1,2', '--plot', target) == 0
    assert target.read_bytes().startswith(b'\x89PNG')
    assert capsys.readouterr().out.endswith(f'wrote {target}\n')
    assert [path.name for path in target.parent.iterdir()] == ['sweep.png']


def test_rows_whose_names_are_too_long_are_named_by_their_values_below_the_keys(tmp_path):
    sweep = '{plan.copies: [1, 2], workload.network.0.dense.out: [512], workload.network.3.dense.out: [8, 16], '
    answer = load_sweep(write(tmp_path, sweep=sweep + 'cluster.links.infiniband: [1, 2]}')).predict()
    axes = bars(answer).axes[0]
    assert axes.get_title(loc='left') == 'rows: copies · network.3.dense.out · links.infiniband'
    assert [label.get_text() for label in axes.get_yticklabels()][:3] == ['1 · 8 · 1', '1 · 8 · 2', '1 · 16 · 1']


def test_without_a_terminal_a_slow_sweep_writes_a_line_now_and_then(monkeypatch, capsys):
    clock = iter(range(0, 100, 4))
    monkeypatch.setattr('simpar.commands.progress.monotonic', lambda: float(next(clock)))
    with Progress() as progress:
        for done in range(1, 7):
            progress(done, 6)
    # At 12 s and, 10 s later at the earliest, at 24 s all are done.
    assert capsys.readouterr().err == '3 of 6 predicted, 12 s left\n'
