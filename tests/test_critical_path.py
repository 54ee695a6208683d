"""The critical path: the worked program's by hand, hosts and slow peers, and laws over random plans."""

from dataclasses import replace

import numpy as np
import pytest
from every import draws
from hypothesis import given
from hypothesis import strategies as st
from plain_costs import plain_costs
from worked import worked_costs, worked_program

from simpar import Plan, Transformer, Workload, simulate
from simpar.critical_path import critical_path
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.trace import RankTimes

PROGRAM = worked_program()


def path_of(costs, steps=3, step=-1):
    return critical_path(simulate(PROGRAM, costs, steps=steps), costs, step)


def story(path):
    """(op or kind, rank, seconds) of each segment."""
    return [(part.op.name if part.op else part.kind, part.rank, part.seconds) for part in path.segments]


def test_worked_program_computes_all_the_time():
    """On the page: no gap on the compute stream, 56 s where 44 s would do without the slow-down."""
    path = path_of(worked_costs(PROGRAM))
    names = [name for name, _, _ in story(path)]
    assert ' '.join(names) == 'FA FA FB FB L IB L IB WB WA WB WA U'
    assert path.shares == {'compute': 1.0}
    assert path.stretched == 12
    assert path.summary == (
        'Critical path: 100 % compute (FB 21 %, FA 18 %, IB 18 %, 4 more).'
        ' 21 % of the step is work on this path stretched by what ran beside it.'
    )


def test_the_cold_step_begins_with_the_host():
    path = path_of(worked_costs(PROGRAM), step=0)
    assert story(path)[0] == ('host', 0, 0.125)
    assert path.shares['waiting for the host'] == 0.125 / 56.125


def test_a_slow_host_is_the_whole_path_but_the_last_op():
    """19 ops of 8 s each: the update is issued as the step ends but for its own 2 s."""
    path = path_of(worked_costs(PROGRAM, host=8.0))
    assert path.end - path.begin == 19 * 8
    assert story(path) == [('host', 0, 19 * 8 - 2), ('U', 0, 2)]
    assert path.summary == 'Critical path: 99 % waiting for the host, 1 % compute (U 1 %).'


def test_the_path_runs_on_the_rank_that_comes_last():
    path = path_of(worked_costs(PROGRAM, slow={1: 0.5}))
    assert {segment.rank for segment in path.segments} == {1}
    assert path.shares == {'compute': 1.0}
    assert 'all compute on rank 1' in path.summary
    assert path.words == path.summary


def test_the_path_crosses_to_the_peer_that_arrived_last():
    """On the page with rank 1 at half speed, but rank 0's update ends last: before GB.1, rank 1 computed."""
    trace = simulate(PROGRAM, worked_costs(PROGRAM, slow={1: 0.5}), steps=1, unfold=True)
    trace.representatives[0].end_KS[0, -1] = 110.125
    path = critical_path(trace)
    assert story(path)[-4:] == [('IB', 1, 8.0), ('GB', 0, 4.0), ('WA', 0, 4.0), ('U', 0, 40.0)]
    assert [rank for _, rank, _ in story(path)] == [1] * 9 + [0] * 3
    assert path.shares['tp all_reduce in the backward'] == 4 / 110.125
    assert 'on rank' not in path.summary


def test_a_measured_gap_is_overhead_and_the_path_goes_on():
    trace = simulate(PROGRAM, worked_costs(PROGRAM, host=0.0, beside_communication=1.0))
    late = trace.representatives[0].end_KS.copy()
    starts = trace.representatives[0].start_KS.copy()
    late[:, -1] += 0.5 * np.arange(1, 4)
    starts[:, -1] = late[:, -1] - 2
    lane = RankTimes(0, starts, starts, late)
    measured = replace(trace, origin='measured', representatives=(lane,) * len(trace.representatives))
    path = critical_path(measured)
    assert ('overhead', 0, 1.5) in story(path)
    assert path.segments[0].begin == path.begin


def uniform(program, *, compute, alpha, transfer, host=0.0, beside=1.0, speed=None, links=((0, 1.0),)):
    """Costs that are alike for all ops of a kind."""
    count = len(program.op_classes)
    return plain_costs(
        program, lambda op: compute, lambda op: (alpha, transfer, links), host=np.full(count, host), links=('wire',),
        beside_communication=np.full(count, beside),
        rank_speed=np.ones(program.world) if speed is None else np.array(speed),
    )  # fmt: skip


plans = st.builds(
    Plan,
    data=st.sampled_from([1, 2]),
    tensor=st.sampled_from([1, 2]),
    copies=st.sampled_from([1, 2, 4]),
    reduce=st.sampled_from(['early', 'late']),
    streams=st.sampled_from(['group', 'messages', 'single']),
)
models = st.sampled_from(
    [
        Network(layers=(Dense(inputs=8, outputs=8), Relu(), Dense(inputs=8, outputs=8))),
        Transformer(layers=1, hidden=8, heads=2, vocab=16, sequence=4),
    ]
)
quarters = st.integers(1, 16).map(lambda quarters: quarters / 4)


@draws(20)
@given(plans, models, quarters, quarters, st.sampled_from([0.0, 0.25]), st.sampled_from([1.0, 0.5]), st.data())
def test_segments_cover_the_step_without_gap_or_overlap(plan, model, compute, transfer, host, beside, data):
    world = plan.data * plan.tensor
    program = lower(Workload(model=model, batch=8), plan, world)
    speed = [data.draw(st.sampled_from([1.0, 0.5])) for _ in range(world)]
    costs = uniform(program, compute=compute, alpha=0.25, transfer=transfer, host=host, beside=beside, speed=speed)
    trace = simulate(program, costs, steps=2)
    for step in (0, 1):
        path = critical_path(trace, costs, step)
        ends = [0.0, *trace.step_ends]
        edges = [path.segments[0].begin, *(segment.end for segment in path.segments)]
        assert (edges[0], edges[-1]) == (ends[step], ends[step + 1])
        assert [segment.begin for segment in path.segments] == edges[:-1]
        assert all(segment.seconds > 0 for segment in path.segments)
        assert sum(path.shares.values()) == pytest.approx(1)
        assert 0 <= path.stretched <= path.end - path.begin
        assert {segment.kind for segment in path.segments} <= {'compute', 'communication', 'host'}


@draws(20)
@given(plans, quarters)
def test_shortening_an_op_off_the_path_saves_nothing(plan, transfer):
    """Without slow-down, sharing or hosts, shortening an op class that is not on the path saves nothing."""
    plan = replace(plan, data=1, tensor=2)
    program = lower(Workload(model=Network(layers=(Dense(inputs=8, outputs=8),) * 2), batch=8), plan, 2)
    costs = uniform(program, compute=1.0, alpha=0.25, transfer=transfer, links=())
    trace = simulate(program, costs, steps=1)
    on_path = {segment.op.name for segment in critical_path(trace, costs).segments}
    for index, op in enumerate(program.op_classes):
        if op.kind == 'compute':
            shorter = costs.compute.copy()
            shorter[index] = 0.5
            step = simulate(program, replace(costs, compute=shorter), steps=1).step
            assert step <= trace.step
            if op.name not in on_path:
                assert step == trace.step
