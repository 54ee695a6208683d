"""Recorded jobs: replayed as Programs of their ops they take what their authors' analysis says."""

import csv
import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest

from simpar.engine.simulate import simulate, step_ends
from simpar.errors import ScheduleError
from simpar.recording import chosen_ops, read_job, straggling
from simpar.recording.job import COLUMNS
from simpar.recording.replay import alike_seconds, own_seconds, to_program

JOBS = Path(__file__).parent / 'recorded' / 'stragglers'
SAME = {'forward sends': 'forward-pp-comm', 'backward sends': 'backward-pp-comm'}


def published(name):
    return json.loads((JOBS / f'{name}.json').read_text(encoding='utf-8'))


def test_a_job_with_a_slow_worker_takes_what_its_authors_say():
    """64 GPUs, a slow worker put in on purpose: every step without gaps, and the step of the ideal job."""
    job, theirs = read_job(JOBS / 'AR.csv.gz'), published('AR')
    own = own_seconds(job)
    replayed = to_program(job)
    steps = [step_ends(replayed.program, replayed.costs(seconds), steps=1)[0] for seconds in own]
    assert [str(step) for step in job.steps] == list(theirs['step_t_nodelay'])
    assert steps == pytest.approx(list(theirs['step_t_nodelay'].values()), rel=1e-3)
    ideal = step_ends(replayed.program, replayed.costs(alike_seconds(job, own)), steps=1)[0]
    assert ideal == pytest.approx(theirs['ideal'], rel=1e-5)
    assert np.mean(steps) / ideal == pytest.approx(theirs['blocking_slowdown'], rel=1e-3)


def test_what_each_part_costs_is_what_the_authors_say_and_the_answer_says_who_straggles(printed, monkeypatch):
    kept, theirs = [], published('ST')
    monkeypatch.setattr('simpar.recording.straggling', lambda *of: kept.append(straggling(*of)) or kept[0])
    told = printed('replay', JOBS / 'ST.csv.gz', '--scale', 'stage=3:0.9')
    assert told.startswith('Stragglers make a step 1.18 times as long. Stage 3 alone costs 125% of that.')
    assert 'on every data rank: it has more work.' in told.splitlines()[0]
    assert 'with --scale' in told
    (found,) = kept
    assert found.slowdown == pytest.approx(theirs['blocking_slowdown'], rel=1e-3)
    for parts, by in ((found.families, 'optype'), (found.data_ranks, 'dp_rank'), (found.stages, 'stage')):
        told = theirs[f'blocking_decompose_by_{by}']
        assert len(parts) == len(told)
        for part in parts:
            name = SAME.get(part.name, part.name.removeprefix('data ').removeprefix('stage '))
            # Theirs ends each side of a message by itself, ours both when it has arrived.
            assert part.seconds / found.alike == pytest.approx(told[name], rel=0.02), part.name
    assert found.without == pytest.approx(theirs['mw']['trem'], rel=1e-3)
    assert found.explained == pytest.approx(theirs['mw']['Mw'], abs=0.01)


COMPUTES = ('forward-compute', 'backward-compute')
ROWS = [
    # Two stages, two micro-batches: forwards of 1 s and backwards of 2 s, messages of 0.25 s.
    *((stage, kind, number) for stage in (0, 1) for kind in COMPUTES for number in (0, 1)),
    *((0, kind, number) for kind in ('forward-send', 'backward-recv') for number in (0, 1)),
    *((1, kind, number) for kind in ('forward-recv', 'backward-send') for number in (0, 1)),
]  # fmt: skip
STARTS = {
    (0, 'forward-compute'): (0, 1), (0, 'forward-send'): (1, 2), (1, 'forward-recv'): (1, 2.25),
    (1, 'forward-compute'): (1.25, 4.25), (1, 'backward-compute'): (2.25, 5.25), (1, 'backward-send'): (4.25, 7.25),
    (0, 'backward-recv'): (4.25, 7.25), (0, 'backward-compute'): (4.5, 7.5),
}  # fmt: skip
LASTS = {'forward-compute': 1.0, 'backward-compute': 2.0}


def table(**changes):
    """A CSV file of that job. Arguments: ``changes``, of cells of all lines."""
    text = io.StringIO()
    out = csv.DictWriter(text, COLUMNS, lineterminator='\n')
    out.writeheader()
    for stage, kind, number in ROWS:
        start = STARTS[stage, kind][number]
        line = {'dp_rank': 0, 'stage': stage, 'step': 7, 'optype': kind, 'seq_id': number}
        out.writerow(line | {'start_ts': start, 'duration': LASTS.get(kind, 0.25)} | changes)
    return text.getvalue()


def written(tmp_path, text, name='job.csv'):
    path = tmp_path / name
    path.write_text(text, encoding='utf-8')
    return path


def test_a_job_made_by_hand_takes_its_sum(tmp_path):
    """1F1B by hand: F0 send F0 B0 send | B0 waits for stage 1's F0, B0; then F1, B1 of stage 1, a message, B1."""
    job = read_job(written(tmp_path, table()))
    replayed = to_program(job)
    trace = simulate(replayed.program, replayed.costs(own_seconds(job)[0]), steps=1, engine='simpy')
    assert trace.cold_step == 9.5
    assert job.step_seconds.tolist() == [9.5]


def test_what_if_a_stage_was_faster(tmp_path):
    job = read_job(written(tmp_path, table()))
    # Without the forwards of stage 1, its backwards end at 3.25 and 5.25 s. Stage 0 takes the second message behind
    # its first backward, at 5.5 s; the message and a backward are left.
    found = straggling(job, chosen_ops(job, ['stage=1,optype=forward-compute:0']))
    assert found.replayed == 9.5
    assert found.scaled == 7.75


@pytest.mark.parametrize(
    ('text', 'says'),
    [
        ('', 'lacks the columns'),
        (table(duration=-1), 'duration: below 0'),
        (table(start_ts='soon'), 'start_ts: no number of seconds'),
        (table(optype='backward'), 'no kind of recorded op'),
        (table(stage=-1), 'stage: no whole number'),
        (table(step=7) + '0,0,8,forward-compute,0,0,1\n', 'step 8 lacks'),
        (table() + '0,0,7,forward-compute,0,0,1\n', 'has an op twice'),
        (table() + '0,0,7,forward-recv,0,0,1\n', 'nobody takes part in it'),
        (table() + '9,0,7,forward-compute,0,0,1\n', 'count both from 0'),
        (table() + '0,0,7\n', '3 cells, and the first line names 7 columns'),
    ],
)
def test_a_file_that_is_wrong_is_told_so(tmp_path, refused, text, says):
    path = written(tmp_path, text)
    told = refused('replay', path)
    assert str(path) in told
    assert says in told


@pytest.mark.parametrize(
    'text', ['stage=1', 'stage=9:2', 'level=1:2', 'stage=1:-2', 'stage=1:1', ':nan', 'stage=:2'],
)  # fmt: skip
def test_a_scale_that_is_wrong_is_told_so(tmp_path, refused, text):
    assert f'--scale {text}' in refused('replay', written(tmp_path, table()), '--scale', text)


def test_a_packed_file_that_never_ends_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr('simpar.recording.job.MOST_BYTES', 10_000)
    path = tmp_path / 'job.csv.gz'
    path.write_bytes(gzip.compress(b'0,' * 10**6))
    with pytest.raises(ScheduleError, match='holds more than 10000 bytes'):
        read_job(path)
