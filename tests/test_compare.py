"""Comparing: signed errors by hand, files that travel without their Program, and broken files."""

import contextlib
import json
from dataclasses import replace
from functools import reduce
from operator import getitem

import numpy as np
import pytest
from every import draws
from hypothesis import given
from hypothesis import strategies as st
from tables import load_table
from worked import worked_costs, worked_program

from simpar import case_of, load_schedule, simulate
from simpar.comparison import compare, comparison_to_dict, render_comparison
from simpar.errors import OutsideTolerance, ScheduleError
from simpar.trace import RankTimes
from simpar.trace_files import load_trace, save_trace, to_saved

PROGRAM = worked_program()


def predicted(**costs):
    return simulate(PROGRAM, worked_costs(PROGRAM, **costs), steps=3)


def measured(trace, origin='measured'):
    """A trace as a machine would record it: a lane for each rank, in memory of its own."""
    lanes = []
    for rank in range(trace.program.world):
        lane = trace.times_of(rank)
        lanes.append(RankTimes(rank, lane.arrive_KS.copy(), lane.start_KS.copy(), lane.end_KS.copy()))
    return replace(
        trace, origin=origin, representatives=tuple(lanes), representative_of_rank=np.arange(trace.program.world)
    )


def test_a_trace_equals_itself():
    comparison = compare(predicted(), measured(predicted()))
    assert (comparison.step.predicted, comparison.step.measured, comparison.step.error) == (56, 56, 0)
    assert (comparison.cold_step.predicted, comparison.cold_step.measured) == (56.125, 56.125)
    assert all(pair.difference == 0 for pair in [*comparison.phases.values(), *comparison.op_classes.values()])
    assert comparison.worst == ()
    comparison.check(0.0)


def test_a_first_step_that_is_long_on_a_machine_alone_is_commented():
    """All before the second step is 100 s later, as where connections are opened."""
    trace = predicted()
    late = [replace(one, **{name: getattr(one, name) + 100 for name in ('arrive_KS', 'start_KS', 'end_KS')})
            for one in measured(trace).representatives]  # fmt: skip
    found = compare(trace, replace(measured(trace), representatives=tuple(late)))
    assert found.step.error == 0
    assert found.cold.startswith('The first step took 100.1 s longer than the others')
    assert 'The first step took' in render_comparison(found, width=300)
    assert compare(trace, measured(trace)).cold == ''


def test_signed_errors_by_hand():
    """On the page: 44 s predicted where nothing slows down, 56 s measured, the difference in computing alone."""
    comparison = compare(predicted(beside_communication=1.0), measured(predicted()))
    assert (comparison.step.predicted, comparison.step.measured) == (44, 56)
    assert comparison.step.error == 44 / 56 - 1
    assert {name: (pair.predicted, pair.measured) for name, pair in comparison.phases.items()} == {
        'compute F': (18, 26),
        'tp all_reduce F': (16, 16),
        'compute I': (8, 10),
        'tp all_reduce I': (8, 8),
        'compute W': (16, 18),
        'compute U': (2, 2),
        'waiting for peers': (0, 0),
        'pauses of compute': (0, 0),
    }
    assert (comparison.op_classes['FA'].predicted, comparison.op_classes['FA'].measured) == (4, 5)
    with pytest.raises(OutsideTolerance, match=r'predicted 44 s a step, measured 56 s: error -21.4 %, tolerance 20 %'):
        comparison.check(0.2)
    comparison.check(0.22)


def test_an_op_that_lasts_longer_is_told_from_ops_that_wait():
    """WA.1 takes 10 s longer on rank 1: it is longer itself; the update of rank 1 is late, but no worse for it."""
    trace = measured(predicted())
    wa, update = 17, 18
    lane = trace.representatives[1]
    for step in range(3):
        for times in (lane.arrive_KS, lane.start_KS, lane.end_KS):
            times[step] += 10 * step
            times[step, update] += 10
        lane.end_KS[step, wa] += 10
    worst = compare(predicted(), trace).worst
    assert [(op.op, op.rank, op.difference, op.why) for op in worst if op.stream == 'compute'] == [
        ('WA.c1', 1, -10, 'itself longer than predicted')
    ]


def test_an_op_that_waits_says_for_what():
    """Rank 1 at full speed predicted, at half speed measured: rank 0 waits for its peer, 32 s at RA.0."""
    worst = {op.op: op for op in compare(predicted(), measured(predicted(slow={1: 0.5}))).worst}
    assert worst['RA.c0'].rank == 0
    assert worst['RA.c0'].wait.measured == 32
    assert worst['RA.c0'].why == 'waits for its peers longer than predicted'


def test_a_percentile_of_the_measured_steps():
    """Steps of 56 s but for one disturbed of 66: the median and the 10th percentile do not see it, the 100th does."""
    trace = measured(simulate(PROGRAM, worked_costs(PROGRAM), steps=6))
    for lane in trace.representatives:
        for times in (lane.arrive_KS, lane.start_KS, lane.end_KS):
            times[3:] += 10
    assert [compare(predicted(), trace, percentile=p).step.measured for p in (10, 50, 100)] == [56, 56, 66]
    assert compare(predicted(), trace).steps == 5


def test_a_last_step_that_no_step_follows_does_not_count_where_messages_would_run_into_it():
    """Gathers of ZeRO-1 run under the next step's computation; behind the last step they have all links."""
    model = {'layers': 4, 'hidden': 1024, 'heads': 8, 'vocab': 512, 'sequence': 512}
    case = case_of(
        load_schedule(
            {
                'simpar': 1,
                'cluster': {'profile': 'a100-sxm-8', 'devices': 4, 'stack': 'none'},
                'workload': {'transformer': model, 'batch': 4, 'precision': 'bf16', 'optimizer': 'adam'},
                'plan': {'data': 4, 'zero': 1},
            }
        )
    )
    told = case.predict(tell=False)
    run = measured(simulate(case.program, told.costs, steps=5))
    assert run.step_times[-1] < 0.99 * run.step_times[-2]
    for one in (run, to_saved(run)):
        found = compare(told.trace, one, percentile=10, costs=told.costs)
        assert (found.steps, found.step.error) == (3, 0)
    # Of two steps the second counts all the same; without such messages all but the first do.
    assert run.first(2).warm() == slice(1, 2)
    assert measured(simulate(PROGRAM, worked_costs(PROGRAM), steps=5)).warm() == slice(1, 5)


def test_other_programs_are_refused():
    other = replace(predicted(), program=PROGRAM.replace(notes=(), copies=3))
    with pytest.raises(ScheduleError, match='different programs'):
        compare(predicted(), other)
    saved = to_saved(predicted())
    shifted = replace(saved, roles=(saved.roles[0][::-1],))
    with pytest.raises(ScheduleError, match='different ops on rank 0'):
        compare(saved, shifted)
    with pytest.raises(ScheduleError, match='2 ranks, the other 1'):
        compare(saved, replace(saved, representative_of_rank=(0,)))


def test_a_saved_trace_compares_like_the_trace(tmp_path):
    path = tmp_path / 'trace.json'
    trace = measured(predicted(slow={1: 0.5}))
    save_trace(path, trace)
    loaded = load_trace(path)
    assert comparison_to_dict(compare(predicted(), loaded)) == comparison_to_dict(compare(predicted(), trace))
    assert (loaded.program, loaded.origin) == (PROGRAM.hash, 'measured')
    again = tmp_path / 'again.json'
    save_trace(again, loaded)
    assert again.read_bytes() == path.read_bytes()


def test_screen_and_json():
    comparison = compare(predicted(beside_communication=1.0), measured(predicted(), 'emulated'))
    text = render_comparison(comparison, colour=False)
    assert text.splitlines()[0] == 'predicted 44 s a step, emulated 56 s: error -21.4 %'
    assert len(text.splitlines()) < 40
    answer = comparison_to_dict(comparison)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert answer['step'] == {'predicted': 44, 'measured': 56, 'error': 44 / 56 - 1}


def content(tmp_path):
    """A saved trace as a tree that a test may break."""
    path = tmp_path / 'trace.json'
    save_trace(path, predicted(slow={1: 0.5}))
    return path, json.loads(path.read_text(encoding='utf-8'))


BREAKS = load_table(__file__, 'BREAKS')


@pytest.mark.parametrize('case', BREAKS)
def test_broken_files_are_refused_by_name(tmp_path, case):
    path, tree = content(tmp_path)
    (*above, last), value = BREAKS[case]
    inner = reduce(getitem, above, tree)
    inner[last] = {**inner[last], **value} if isinstance(value, dict) else value
    if value is None:
        del inner[last]
    path.write_text(json.dumps(tree), encoding='utf-8')
    with pytest.raises(ScheduleError, match=r'trace\.json') as caught:
        load_trace(path)
    assert len(str(caught.value).splitlines()) < 40


@pytest.mark.parametrize(
    'text', [b'', b'{', b'[]', b'null', b'\xff\xfe', b'{"format": "simpar trace 1"}', b'[' * 100000]
)
def test_files_that_are_no_trace_are_refused(tmp_path, text):
    path = tmp_path / 'trace.json'
    path.write_bytes(text)
    with pytest.raises(ScheduleError, match=r'trace\.json'):
        load_trace(path)


@draws(30)
@given(st.data())
def test_a_torn_file_never_breaks_through(tmp_path_factory, data):
    """Cut or overwritten anywhere, a file is loaded or refused, never anything else."""
    path, tree = content(tmp_path_factory.mktemp('torn'))
    raw = bytearray(json.dumps(tree).encode())
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        raw = raw[:at]
    else:
        raw[at : at + 4] = data.draw(st.binary(max_size=8))
    path.write_bytes(bytes(raw))
    with contextlib.suppress(ScheduleError):
        assert load_trace(path).representatives
