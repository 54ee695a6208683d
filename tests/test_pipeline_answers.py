"""What is said about pipelines: bubble, exposed communication, critical path, screen; by hand and by closed forms."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from every import draws, some
from hypothesis import given
from hypothesis import strategies as st
from pipeline_traces import B, F, plan_of, program_of, trace_of

from simpar import cluster, load_profile, simulate
from simpar.critical_path import critical_path
from simpar.lower.lower import order_of
from simpar.metrics import Meetings, action_spans, actions_of, by_stages, metrics, stages_of
from simpar.pipeline import ORDERS
from simpar.predict import predict
from simpar.report import pipeline_ranks, render, to_dict


def one_micro_batch(send, **more):
    """Two ranks: F of rank 0, a send, F and B of rank 1, a send, B of rank 0; nothing else."""
    return trace_of(plan_of(micro_batches=1, **more), send=send)


@pytest.mark.parametrize('receive', ['early', 'late'])
def test_a_receive_that_waits_is_bubble_and_one_that_transfers_is_exposed(receive):
    """Both ranks compute F + B, see two messages go by, and wait for the rest, however early they post receives."""
    trace, _ = one_micro_batch(send=3.0, receive=receive)
    cold = metrics(trace).cold
    assert cold.step == pytest.approx(2 * (F + B) + 2 * 3, abs=1e-9)
    for rank in cold.ranks:
        assert rank.compute == pytest.approx(F + B, abs=1e-9)
        assert rank.exposed == pytest.approx(2 * 3, abs=1e-9)
        assert rank.exposed_by == {'pipeline': rank.exposed}
        assert rank.idle == rank.bubble == pytest.approx(F + B, abs=1e-9)


def test_streams_of_sends_and_of_receives_are_told_together():
    """Rank 1 of three sends to both sides, posts its receives at once, and waits for them while no other runs."""
    trace, _ = trace_of(plan_of(ranks=3, micro_batches=1), send=1.0)
    middle = metrics(trace).cold.rank(1)
    named = {stream.stream: stream for stream in middle.streams}
    assert set(named) == {'compute', 'sends', 'receives'}
    assert len(trace.program.role(1).streams) == 5
    assert (named['sends'].busy, named['sends'].ops) == (2, 2)
    assert (named['receives'].busy, named['receives'].ops) == (2, 2)
    assert named['sends'].waiting == 0
    gradient_has_come = 3 * F + B + 3 * 1
    assert named['receives'].waiting == pytest.approx(gradient_has_come - 2, abs=1e-9)


@pytest.mark.parametrize('copies', [1, 2])
@pytest.mark.parametrize('name', some(ORDERS, 2))
def test_actions_read_back_from_a_program_are_those_of_its_order(name, copies):
    """Tensor 2, so that overlapped actions really alternate: without collectives nothing tells them apart."""
    chunks = ORDERS[name].chunks[0]
    plan = plan_of(name, ranks=3, micro_batches=8, chunks=chunks, copies=copies, tensor=2)
    program = program_of(plan, layers=3 * chunks)
    for role, row in zip(program.roles, order_of(plan).actions, strict=True):
        assert [work.action for work in actions_of(program, role)] == list(row)
        assert stages_of(program, role) == tuple(sorted({part.stage for action in row for part in action.parts}))


def test_action_spans_follow_each_other_and_hold_all_of_a_micro_batch():
    trace, _ = trace_of(plan_of('dualpipe-v', ranks=3, micro_batches=8, copies=2, tensor=2), collective=0.125, send=1.0)
    for rank in range(6):
        spans = action_spans(trace, rank)
        assert all(one.begin < one.end <= two.begin for one, two in itertools.pairwise(spans))
        slots = [slot for span in spans for slot in span.slots]
        role = trace.program.role(rank)
        wanted = [slot for slot in range(len(role)) if _of_a_micro_batch(trace.program, trace.program.op(role, slot))]
        assert sorted(slots) == wanted


def _of_a_micro_batch(program, op):
    return op.kind == 'compute' and op.phase != 'U' and program.sliced(op)


def test_pipeline_ranks_are_found_by_their_stages():
    program = program_of(plan_of('zb-v', ranks=2, micro_batches=4, tensor=2))
    assert list(by_stages(program)) == [(0, 3), (1, 2)]
    assert list(by_stages(program.unfold())) == [(0, 3), (1, 2)]
    assert [len(roles) for roles in by_stages(program.unfold()).values()] == [2, 2]


def test_what_meets_is_found_by_order_in_each_direction():
    program = program_of(plan_of('interleaved-1f1b', ranks=2, micro_batches=4, chunks=2, tensor=2))
    meetings = Meetings(program)
    for rank in range(program.world):
        role = program.role(rank)
        for slot in range(len(role)):
            op, met = program.op(role, slot), meetings.of(rank, slot)
            others = [program.op(program.role(other), there) for other, there in met]
            if op.kind == 'collective':
                assert [other for other, _ in met] == [rank - rank % 2, rank - rank % 2 + 1]
                assert others == [op, op]
            elif op.kind != 'compute':
                (_, _), (peer, there) = met
                assert peer == (rank + 2) % 4
                assert {op.kind, others[1].kind} == {'send', 'recv'}
                assert int(role.micro_batch[slot]) == int(program.role(peer).micro_batch[there])
                assert meetings.of(peer, there)[1] == (rank, slot)


# the critical path


def test_the_path_goes_back_and_forth_with_the_messages():
    """One micro-batch: every op of both stages and both messages are on the path, and nothing else."""
    trace, costs = one_micro_batch(send=3.0)
    path = critical_path(trace, costs, 0)
    whole = 2 * (F + B) + 2 * 3
    expected = {
        'compute of stage 0': (F + B) / whole,
        'compute of stage 1': (F + B) / whole,
        'pipeline sends': 6 / whole,
    }
    assert path.shares == pytest.approx(expected)
    assert path.stretched == pytest.approx(0, abs=1e-9)
    assert 'host' not in path.summary
    sends = [(segment.op.kind, segment.seconds) for segment in path.segments if segment.kind == 'communication']
    assert [seconds for _, seconds in sends] == [3, 3]


def test_a_busy_last_stage_is_named_first():
    """The last rank at half speed: all but the first forward and the last backward of the other is under its work."""
    plan = plan_of(ranks=2, micro_batches=8)
    trace, costs = trace_of(plan, send=0.5)
    slow = replace(costs, rank_speed=np.array([1.0, 0.5]))
    words = critical_path(simulate(trace.program, slow, steps=1), slow, 0).summary
    whole = 8 * 2 * (F + B) + F + B + 2 * 0.5
    assert words.startswith(f'Critical path: {8 * 2 * (F + B) / whole * 100:.0f} % compute of stage 1 (')
    assert f'{(F + B) / whole * 100:.0f} % compute of stage 0' in words


pipelines = st.builds(
    plan_of,
    st.sampled_from(['gpipe', '1f1b', 'interleaved-1f1b', 'zb-h1', 'zb-v']),
    ranks=st.sampled_from([2, 3]),
    micro_batches=st.sampled_from([3, 6]),
    receive=st.sampled_from(['early', 'late']),
    exchange=st.sampled_from(['separate', 'fused']),
    copies=st.sampled_from([1, 2]),
    streams=st.sampled_from(['group', 'messages', 'single']),
)
seconds = st.sampled_from([0.0, 0.25, 2.0])


@draws(20)
@given(pipelines, seconds, st.sampled_from([0.0, 0.0, 0.0625, 1.0]))
def test_segments_cover_the_step_and_the_host_is_named_only_where_it_held_the_op_up(plan, send, host):
    chunks = 2 if plan.order == 'interleaved-1f1b' else 0
    trace, costs = trace_of(replace(plan, chunks=chunks), steps=2, send=send, host=host, update=1.0)
    for step in (0, 1):
        path = critical_path(trace, costs, step)
        ends = [0.0, *trace.step_ends]
        edges = [path.segments[0].begin, *(segment.end for segment in path.segments)]
        assert (edges[0], edges[-1]) == (ends[step], ends[step + 1])
        assert [segment.begin for segment in path.segments] == edges[:-1]
        assert path.stretched == pytest.approx(0, abs=1e-9)
        hosts = [number for number, segment in enumerate(path.segments) if segment.kind == 'host']
        assert not hosts or host > 0
        assert hosts in ([], [0])
        for number in hosts:
            follower = path.segments[number + 1]
            assert path.segments[number].end in _issues(trace, costs, path.segments[number].rank)
            assert follower.begin == path.segments[number].end


def _issues(trace, costs, rank):
    """When the host has issued each op of a rank, over all steps."""
    return set(np.cumsum(np.tile(costs.host[trace.program.role(rank).op_class], trace.steps)).tolist())


# laws


# the screen


def prediction(plan, baseline=None):
    """On a real profile; the model is small, the screen is as large as any."""
    programs = [program_of(one) if one else None for one in (plan, baseline)]
    names = ('the plan under test', 'its baseline')
    return predict(*programs, cluster(load_profile('h100-sxm-8')), names=names)


def test_many_pipeline_ranks_are_told_by_the_first_and_the_last():
    lines = render(prediction(plan_of(ranks=8, micro_batches=8)), colour=False).splitlines()
    assert sum(': stage ' in line for line in lines) == 8
    answer = predict(
        program_of(plan_of(ranks=16, micro_batches=16)), None, cluster(load_profile('h100-sxm-8'), nodes=2)
    )
    lines = render(answer, colour=False).splitlines()
    assert sum(': stage ' in line for line in lines) == 8
    assert any(line.startswith('8 more: see --json') for line in lines)


def test_json_has_every_pipeline_rank():
    answer = prediction(plan_of('interleaved-1f1b', ranks=4, micro_batches=8, chunks=2, tensor=2))
    places = to_dict(answer)['pipeline']
    assert places == pipeline_ranks(answer)
    json.dumps(places, allow_nan=False)
    assert [place['stages'] for place in places] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [(place['rank'], place['ranks']) for place in places] == [(0, 2), (2, 2), (4, 2), (6, 2)]
    for place in places:
        assert place['compute'] + place['exposed'] + place['idle'] == pytest.approx(answer.step)
        assert place['memory'] == answer.memory.rank(place['rank']).peak.bytes
    assert to_dict(prediction(plan_of(ranks=1, micro_batches=2)))['pipeline'] is None
