"""Metrics: the worked program's by hand, random traces against counting ticks, and laws."""

import math
from dataclasses import replace

import numpy as np
import pytest
from every import draws
from hypothesis import given
from hypothesis import strategies as st
from worked import worked_costs, worked_program

from simpar import load_case, simulate
from simpar.interval_sets import length, minus, union
from simpar.metrics import metrics
from simpar.trace import RankTimes, Trace

PROGRAM = worked_program()
SLOTS = len(PROGRAM.roles[0])
COMMUNICATES = [PROGRAM.op(PROGRAM.roles[0], slot).kind != 'compute' for slot in range(SLOTS)]
SETTINGS = draws(30)


def worked(**costs):
    return simulate(PROGRAM, worked_costs(PROGRAM, **costs), steps=3)


def test_worked_program_hides_all_communication():
    """Its compute stream never waits: 56 s of computing, six collectives of 4 s under it."""
    steady = metrics(worked()).steady
    assert (steady.step, steady.compute, steady.communication, steady.exposed, steady.idle) == (56, 56, 24, 0, 0)
    assert steady.overlap == 1
    blocks, losses = (4 + 6) + (6 + 6), 2 + 2
    assert steady.ranks[0].phases == {'F': blocks + losses, 'I': 5 + 5, 'W': 6 + 4 + 4 + 4, 'U': 2}
    compute, tp = steady.ranks[0].streams
    assert (compute.busy, compute.waiting, compute.idle, compute.ops) == (56, 0, 0, 13)
    assert (tp.busy, tp.waiting, tp.idle, tp.ops) == (24, 0, 32, 6)


def test_the_cold_step_waits_for_the_first_issue():
    cold = metrics(worked()).cold
    assert (cold.step, cold.compute, cold.idle) == (56.125, 56, 0.125)


def test_a_slow_peer_shows_as_exposed_waiting():
    """Rank 1 at half speed. Rank 0 computes 45 s; its RA.0 arrives at 76.125 of the step before and ends at 112.125,
    so it communicates 62 s as on the page and 28 s more; 35 s of computing lie under that."""
    steady = metrics(worked(slow={1: 0.5})).steady
    fast, slow = steady.ranks
    assert (fast.compute, fast.communication, fast.exposed, fast.idle) == (45, 90, 55, 0)
    assert fast.overlap == pytest.approx(35 / 90, abs=1e-15)
    assert fast.streams[1].waiting == 90 - 24
    assert (slow.compute, slow.communication, slow.exposed, slow.idle) == (100, 24, 0, 0)
    assert (steady.compute, steady.exposed) == (72.5, 27.5)
    assert steady.overlap == 1 - 55 / (90 + 24)


def test_the_bubble_is_idle_time_and_exposed_waiting():
    """Rank 0 computes 45 s and transfers 24 s; of these WB.0 and GB.0 share 2 s, and nothing else does."""
    fast = metrics(worked(slow={1: 0.5})).steady.ranks[0]
    assert fast.bubble == 100 - 45 - 24 + 2


def test_exposed_by_communicator_names_it():
    assert metrics(worked(slow={1: 0.5})).steady.ranks[0].exposed_by == {'tp': 55}


def test_without_communication_there_is_no_overlap_to_speak_of():
    trace = worked()
    computes = [slot for slot, communicates in enumerate(COMMUNICATES) if not communicates]
    lanes = tuple(RankTimes(lane.rank, lane.arrive_KS, lane.start_KS, lane.end_KS) for lane in trace.representatives)
    for lane in lanes:
        for times in (lane.arrive_KS, lane.start_KS, lane.end_KS):
            times[:, [slot for slot in range(SLOTS) if slot not in computes]] = 0.0
    assert math.isnan(metrics(Trace(PROGRAM, 'simulated', lanes, trace.representative_of_rank)).steady.overlap)


@st.composite
def traces(draw):
    """Any times at all on a coarse grid, two steps, one lane; the second step may begin before the first has ended."""
    ticks = st.integers(0, 40)
    spans = [sorted(draw(st.tuples(ticks, ticks, ticks))) for _ in range(2 * SLOTS)]
    times = np.array(spans, dtype=np.float64).reshape(2, SLOTS, 3)
    times[1] += draw(st.integers(1, 40))
    times[1, -1, 2] = max(times[1, -1, 2], times[0, :, 2].max() + 1)
    lane = RankTimes(0, times[..., 0], times[..., 1], times[..., 2])
    return Trace(PROGRAM, 'simulated', (lane,), np.zeros(2, dtype=np.int32))


def ticks(trace, since, mask, begin, end, step=-1):
    """Whole seconds of the window in which a slot of the mask is between ``since`` and its end; earlier ones wrap."""
    lane, found = trace.representatives[0], set()
    for slot in range(SLOTS):
        if mask[slot]:
            for tick in range(int(since(lane)[step, slot]), int(lane.end_KS[step, slot])):
                found.add(tick if tick >= begin else int(end - 1 - (end - 1 - tick) % (end - begin)))
    return found


@SETTINGS
@given(traces())
def test_metrics_equal_counting_ticks(trace):
    begin, end = (int(value) for value in trace.step_ends)
    rank = metrics(trace).steady.ranks[0]
    computing = ticks(trace, lambda lane: lane.start_KS, [not c for c in COMMUNICATES], begin, end)
    communicating = ticks(trace, lambda lane: lane.arrive_KS, COMMUNICATES, begin, end)
    assert rank.compute == len(computing)
    assert rank.communication == len(communicating)
    assert rank.exposed == len(communicating - computing)
    assert rank.idle == end - begin - len(communicating | computing)


@SETTINGS
@given(traces())
def test_times_add_up_and_overlap_is_a_share(trace):
    for window in (metrics(trace).steady, metrics(trace).cold, metrics(trace).whole):
        rank = window.ranks[0]
        assert rank.compute + rank.exposed + rank.idle == window.step
        assert min(rank.compute, rank.exposed, rank.idle) >= 0
        assert rank.idle <= rank.bubble <= rank.idle + rank.exposed
        assert math.isnan(rank.overlap) or 0 <= rank.overlap <= 1
        for stream in rank.streams:
            assert stream.busy + stream.waiting + stream.idle == window.step


def test_folded_ranks_weigh_as_much_as_unfolded_ones():
    costs = worked_costs(PROGRAM)
    folded = metrics(simulate(PROGRAM, costs, unfold=False))
    unfolded = metrics(simulate(PROGRAM, costs, unfold=True))
    assert [rank.ranks for rank in folded.steady.ranks] == [2]
    assert [rank.ranks for rank in unfolded.steady.ranks] == [1, 1]
    assert folded.steady.compute == unfolded.steady.compute
    assert folded.whole.overlap == unfolded.whole.overlap


intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), max_size=12)


def covered(pairs):
    return {tick for begin, end in pairs for tick in range(int(begin), int(end))}


def array(pairs):
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


@given(intervals, intervals)
def test_interval_arithmetic_is_set_arithmetic(one, other):
    assert covered(union(array(one))) == covered(one)
    assert length(array(one)) == len(covered(one))
    left = minus(array(one), array(other))
    assert covered(left) == covered(one) - covered(other)
    assert (left[1:, 0] > left[:-1, 1]).all()


def test_a_device_that_its_host_keeps_waiting_is_told_apart_from_one_that_has_no_work(tmp_path):
    """On one device there is nothing else to wait for; without a host all idle time is a bubble of the stages."""
    model = {'layers': 4, 'hidden': 64, 'heads': 4, 'vocab': 64, 'sequence': 32}
    work = {'transformer': model, 'batch': 8, 'precision': 'bf16'}
    alone = {'profile': 'h100-sxm-8', 'devices': 1, 'stack': 'eager'}
    steady = load_case({'simpar': 1, 'cluster': alone, 'workload': work}).predict().metrics.steady
    assert steady.host == steady.idle > 0.5 * steady.step

    plan = {'pipeline': 2, 'micro_batches': 4}
    staged = load_case({'simpar': 1, 'cluster': {**alone, 'devices': 2}, 'workload': work, 'plan': plan})
    costs = staged.predict().costs
    free = metrics(simulate(staged.program, replace(costs, host=0 * costs.host), steps=3)).steady
    assert free.host == 0
    assert free.bubble > 0
