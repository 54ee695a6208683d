"""The journal of a sweep: what is finished is not predicted again, and nothing else is taken for it."""

import json
import os
import shutil

import pytest
from every import draws
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sweep_cases import NETWORK, run, write

from simpar.errors import ScheduleError
from simpar.profiles import profile_folder
from simpar.sweep import Outcome, load_sweep
from simpar.sweep.answer import Figures, predicted
from simpar.sweep.journal import HEAD, Journal, Wanted

SWEEP = '{plan.copies: [1, 2, 3, 4], cluster.links.nvlink: [1, 0.5]}'
"""Eight rows of which two cannot be; six are predicted."""
PREDICTED = 6


OTHERS = ['step,gain\n1,2\n', 'a letter', '\n', '{"format": "simpar sweep rows 2"}\n']


@pytest.fixture
def count(monkeypatch):
    """The schedules that are predicted in this process."""
    seen = []

    def counted(schedule, session=None):
        seen.append(schedule)
        return predicted(schedule, session)

    monkeypatch.setattr('simpar.sweep.run.predicted', counted)
    return seen


def rows(path):
    return path.read_bytes().splitlines(keepends=True)[1:]


def test_what_is_finished_is_not_predicted_again(tmp_path, count):
    path, journal = write(tmp_path, sweep=SWEEP), tmp_path / 'rows'
    plain = load_sweep(path).predict()
    assert load_sweep(path).predict(journal=journal) == plain
    every = rows(journal)
    assert len(every) == PREDICTED
    for kept in range(PREDICTED + 1):
        journal.write_bytes(HEAD + b''.join(every[:kept]))
        count.clear()
        assert load_sweep(path).predict(journal=journal) == plain
        assert len(count) == PREDICTED - kept
        assert rows(journal) == every


def test_a_torn_line_is_predicted_again(tmp_path, count):
    path, journal = write(tmp_path, sweep=SWEEP), tmp_path / 'rows'
    plain = load_sweep(path).predict(journal=journal)
    whole = journal.read_bytes()
    last = len(rows(journal)[-1])
    for missing in (1, 2, last // 2, last - 1):
        journal.write_bytes(whole[:-missing])
        count.clear()
        assert load_sweep(path).predict(journal=journal) == plain
        assert len(count) == 1
        assert journal.read_bytes() == whole
    # Also where not even the first line was written in full.
    journal.write_bytes(HEAD[:10])
    assert load_sweep(path).predict(journal=journal) == plain
    assert journal.read_bytes() == whole


finite = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
figures = st.builds(
    Figures,
    step=positive,
    compute=finite,
    exposed=finite,
    idle=finite,
    bubble=st.none() | finite,
    grades=st.dictionaries(st.text(), finite),
    notes=st.lists(st.text()).map(tuple),
)
outcomes = st.builds(
    Outcome,
    figures=st.none() | figures,
    peak=st.integers(0, 2**60),
    device=positive,
    reason=st.text(),
    detail=st.text(),
)


@draws(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=outcomes)
def test_an_outcome_is_read_as_it_was_written_to_the_bit(found, tmp_path):
    path = tmp_path / 'rows'
    path.unlink(missing_ok=True)
    row = Wanted(key='key', places='places')
    with Journal(path) as journal:
        journal.write(row, found)
    with Journal(path) as journal:
        assert journal.take([row]) == {'key': found}


def test_an_edited_row_without_a_device_or_a_step_is_refused_by_its_line(tmp_path):
    path, journal = write(tmp_path, sweep=SWEEP), tmp_path / 'rows'
    load_sweep(path).predict(journal=journal)
    head, first, *others = journal.read_text().splitlines()
    row = json.loads(first)
    row['outcome']['device'] = 0
    journal.write_text('\n'.join([head, json.dumps(row), *others, '']))
    with pytest.raises(ScheduleError, match='rows:2: figures without a step or a device; delete the line'):
        load_sweep(path).predict(journal=journal)


def test_a_row_whose_message_names_a_line_is_taken_only_while_the_line_is_there(tmp_path, count):
    sweep = '[{plan.tensor: 3}, {plan.copies: 2}]'
    path, journal = write(tmp_path, sweep=sweep), tmp_path / 'rows'
    load_sweep(path).predict(journal=journal)
    path.write_text('# one line more\n' + path.read_text(encoding='utf-8'), encoding='utf-8')
    count.clear()
    answer = load_sweep(path).predict(journal=journal)
    assert [schedule.plan.tensor for schedule in count] == [3]
    assert answer == load_sweep(path).predict()
    assert answer.results[0].outcome.detail == load_sweep(path).predict().results[0].outcome.detail


def changed_schedule(path, monkeypatch):
    path.write_text(path.read_text(encoding='utf-8').replace('in: 256', 'in: 512'), encoding='utf-8')


def changed_profile(path, monkeypatch):
    profile = path.parent / 'machine' / 'profile.yaml'
    profile.write_text(profile.read_text(encoding='utf-8') + '\n', encoding='utf-8')


def changed_table(path, monkeypatch):
    table = path.parent / 'machine' / 'collective.csv'
    table.write_bytes(table.read_bytes() + b'\n')


def changed_own_profile(path, monkeypatch):
    own = path.parent / 'own.yaml'
    own.write_text(own.read_text(encoding='utf-8') + '\n', encoding='utf-8')


def changed_stack(path, monkeypatch):
    """The stack below the one that is named."""
    stack = path.parent / 'below.yaml'
    stack.write_text(stack.read_text(encoding='utf-8') + '\n', encoding='utf-8')


def changed_order(path, monkeypatch):
    order = path.parent / 'order.csv'
    order.write_text(order.read_text(encoding='utf-8') + '\n', encoding='utf-8')


def changed_simpar(path, monkeypatch):
    monkeypatch.setattr('simpar.sweep.journal.source_content', lambda: 'another')


CHANGES = [
    *(changed_schedule, changed_profile, changed_own_profile, changed_table, changed_stack),
    *(changed_order, changed_simpar),
]


@pytest.mark.parametrize('change', CHANGES, ids=lambda one: one.__name__)
def test_what_rests_on_something_else_is_predicted_again_and_that_is_said(change, tmp_path, monkeypatch, count):
    shutil.copytree(profile_folder() / 'h100-sxm-8', tmp_path / 'machine')
    (tmp_path / 'order.csv').write_text('0F0,0B0,,0F1,0B1\n,1F0,1B0,1F1,1B1\n', encoding='utf-8')
    (tmp_path / 'own.yaml').write_text('extends: machine/profile.yaml\n', encoding='utf-8')
    (tmp_path / 'below.yaml').write_text('extends: eager\n', encoding='utf-8')
    (tmp_path / 'stack.yaml').write_text(f'extends: {tmp_path}/below.yaml\n', encoding='utf-8')
    text = NETWORK.replace('h100-sxm-8', './own.yaml').replace('stack: none', 'stack: ./stack.yaml')
    text = text.replace('plan: {tensor: 2}', 'plan: {tensor: 2, pipeline: 2, micro_batches: 2, order: order.csv}')
    path, journal = write(tmp_path, text=text, sweep='{plan.reduce: [early, late]}'), tmp_path / 'rows'
    load_sweep(path).predict(journal=journal)
    count.clear()
    said = []
    load_sweep(path).predict(journal=journal, note=said.append)
    assert (len(count), said) == (0, [f'2 rows are finished in {journal}'])
    change(path, monkeypatch)
    load_sweep(path).predict(journal=journal, note=said.append)
    assert len(count) == 2
    assert said[1:] == [f'2 rows in {journal} are left out: of another schedule, profile or simpar']
    assert len(rows(journal)) == 4


def test_every_broken_line_is_named(tmp_path, capsys):
    path, journal = write(tmp_path, sweep=SWEEP), tmp_path / 'out.csv.rows'
    load_sweep(path).predict(journal=journal)
    every = rows(journal)
    every[1] = b'no JSON\n'
    every[3] = b'[' * 100_000 + b'\n'
    every[4] = b'"' + b'\xff' + b'"\n'
    journal.write_bytes(HEAD + b''.join(every))
    before = journal.read_bytes()
    assert run(path, '--csv', tmp_path / 'out.csv') == 2
    told = 'not a finished row; delete the line, and its row is predicted again'
    assert capsys.readouterr().err.splitlines() == [f'{journal}:{line}: {told}' for line in (3, 5, 6)]
    assert journal.read_bytes() == before
    assert not (tmp_path / 'out.csv').exists()


def test_a_journal_beside_the_table_goes_with_it_and_a_named_one_stays(tmp_path, capsys):
    path = write(tmp_path, sweep=SWEEP)
    assert run(path, '--csv', tmp_path / 'deep' / 'out.csv') == 0
    assert [file.name for file in (tmp_path / 'deep').iterdir()] == ['out.csv']
    assert run(path, '--csv', tmp_path / 'deep' / 'out.csv', '--journal', tmp_path / 'more' / 'rows') == 0
    assert len(rows(tmp_path / 'more' / 'rows')) == PREDICTED
    assert capsys.readouterr().err == ''


def test_a_full_disk_is_told_with_the_file_and_leaves_no_row_that_is_half(tmp_path, capsys, monkeypatch):
    path, table = write(tmp_path, sweep=SWEEP), tmp_path / 'out.csv'
    left = [3000]

    def filled(file, data, real=os.write):
        taken = data[: left[0]]
        left[0] -= len(taken)
        return real(file, taken)

    with monkeypatch.context() as patched:
        patched.setattr('simpar.sweep.journal.os.write', filled)
        assert run(path, '--csv', table) == 2
    assert capsys.readouterr().err == f'simpar: {table}.rows: No space left on device\n'
    kept = len(rows(tmp_path / 'out.csv.rows')) - 1
    assert 0 < kept < PREDICTED
    assert run(path, '--csv', table) == 0
    assert capsys.readouterr().err == f'Note: {kept} rows are finished in {table}.rows\n'
    assert run(path, '--csv', tmp_path / 'plain.csv') == 0
    assert table.read_bytes() == (tmp_path / 'plain.csv').read_bytes()


@pytest.mark.parametrize('content', OTHERS, ids=repr)
def test_a_file_of_someone_else_is_neither_read_nor_written(content, tmp_path, put, capsys):
    journal = put('letter', content)
    assert run(write(tmp_path, sweep=SWEEP), '--journal', journal) == 2
    assert capsys.readouterr().err == f'{journal}:1: not rows of a simpar sweep; name another file as --journal\n'
    assert journal.read_text(encoding='utf-8') == content
