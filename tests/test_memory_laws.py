"""Memory: laws on lowered programs under random times, what fits, and how soon it is known."""

from dataclasses import replace

import numpy as np
import pytest
from every import draws
from hypothesis import given
from hypothesis import strategies as st
from plain_costs import random_costs

from simpar.engine import simulate
from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.memory import Room, check_fit, memory, sequential
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.program import KINDS, instance
from simpar.workload import Adam, Transformer, Workload

SETTINGS = draws(20)


def totals(rank):
    """(from when, bytes) wherever it changes."""
    line = rank.by_kind()
    rows = list(zip(line.times[:-1].tolist(), line.total.tolist(), strict=True))
    return [row for index, row in enumerate(rows) if index == 0 or row[1] != rows[index - 1][1]]


def slowed_costs(program, seed):
    """A collective halves the speed of what computes beside it."""
    return random_costs(program, seed, beside_communication=np.full(len(program.op_classes), 0.5))


PLANS = st.builds(
    Plan, data=st.sampled_from([1, 2]), tensor=st.sampled_from([1, 2, 4]), sequence_parallel=st.booleans(),
    copies=st.sampled_from([1, 2, 4]), reduce=st.sampled_from(['early', 'late']),
    streams=st.sampled_from(['group', 'messages', 'single']),
)  # fmt: skip
MODELS = st.sampled_from(
    [
        Transformer(layers=2, hidden=16, heads=4, vocab=32, sequence=8),
        Network(layers=(Dense(inputs=8, outputs=16), Relu(), Dense(inputs=16, outputs=8))),
    ]
)


def lowered(model, plan, batch=16):
    workload = Workload(model=model, batch=batch, precision='fp16', optimizer=Adam())
    return lower(workload, plan, plan.data * plan.tensor)


@SETTINGS
@given(model=MODELS, plan=PLANS, seed=st.integers(0, 99))
def test_laws_of_a_peak(model, plan, seed):
    """No less than what always stays; the sum of its kinds, whose activations are the sum of their operators; reached
    when it is said to be, and no earlier; what the step begins with it ends with."""
    program = lowered(model, plan)
    rank = memory(simulate(program, slowed_costs(program, seed), steps=3), flattened=True).rank(0)
    line, peak = rank.by_kind(), rank.peak
    assert peak.bytes == line.total.max() == sum(peak.kinds.values()) >= rank.always > 0
    assert sum(peak.operators.values()) == peak.kinds['activation']
    assert sum(rank.by_kind().at(peak.time).values()) == sum(live.bytes for live in rank.live(peak.time)) == peak.bytes
    assert (line.bytes >= 0).all()
    assert np.array_equal(rank.by_operator().total, line.total)
    assert (line.bytes[:, line.names.index('parameter')] == line.bytes[0, line.names.index('parameter')]).all()


@SETTINGS
@given(model=MODELS, plan=PLANS)
def test_copies_raise_neither_parameters_nor_states_nor_gradients(model, plan):
    kinds = [memory(sequential(lowered(model, replace(plan, copies=copies)))).ranks[0] for copies in (1, plan.copies)]
    for kind in ('parameter', 'state', 'gradient'):
        one, many = (rank.by_kind() for rank in kinds)
        assert one.bytes[:, one.names.index(kind)].max() == many.bytes[:, many.names.index(kind)].max()


@SETTINGS
@given(model=MODELS, plan=PLANS)
def test_freeing_nothing_holds_all_that_is_ever_written(model, plan):
    program = lowered(model, plan)
    role = program.roles[0]
    touched = {
        instance(program.tensor[name], 0, int(role.copy[slot]))
        for slot in range(len(role))
        for op in [program.op(role, slot)]
        for name in (*op.reads, *op.writes, *op.accumulates)
    }
    everything = sum(program.local_bytes(program.tensor[name]) for name, _, _ in touched)
    unfreed = program.replace(op_classes=tuple(replace(op, frees=()) for op in program.op_classes))
    for rank in (
        memory(sequential(program), always=set(KINDS)).ranks[0],
        memory(sequential(unfreed), always={*KINDS} - {'activation', 'gradient'}).ranks[0],
    ):
        assert rank.always == rank.peak.bytes == everything


@SETTINGS
@given(plan=PLANS, seed=st.integers(0, 99), ticks=st.integers(0, 2**30))
def test_a_later_clock_changes_nothing(plan, seed, ticks):
    program = lowered(Transformer(layers=1, hidden=16, heads=4, vocab=32, sequence=8), plan)
    trace = simulate(program, slowed_costs(program, seed), steps=3)
    shift = ticks / 2**20
    later = replace(
        trace,
        representatives=tuple(
            replace(lane, arrive_KS=lane.arrive_KS + shift, start_KS=lane.start_KS + shift, end_KS=lane.end_KS + shift)
            for lane in trace.representatives
        ),
    )
    mine, other = (memory(side).ranks[0] for side in (trace, later))
    assert totals(mine) == totals(other)
    assert mine.peak == other.peak


GPT = Transformer(layers=2, hidden=32, heads=4, vocab=64, sequence=16)


@pytest.mark.parametrize('plan', [Plan(data=1), Plan(data=1, tensor=2, copies=2), Plan(data=2, copies=2)])
def test_the_largest_batch_that_fits_does_and_the_next_does_not(plan):
    """Issue order does not depend on the batch, so the sentence is held against the program of that batch."""
    step = plan.data * plan.copies
    peaks = [memory(sequential(lowered(GPT, plan, batch * step))).peak for batch in (8, 9)]
    size = sum(peaks) / 2
    whole = memory(sequential(lowered(GPT, plan, 24 * step)))
    with pytest.raises(Infeasible, match=rf'a batch of {8 * step} instead of {24 * step} would fit') as error:
        check_fit(whole, Room(size=size), batch=24 * step, multiple=step)
    assert whole.fullest.peak.action in str(error.value)
    check_fit(whole, Room(size=whole.peak), batch=24 * step, multiple=step)


def test_where_no_batch_fits_it_says_what_alone_is_too_much():
    held = memory(sequential(lowered(GPT, Plan(data=1))))
    with pytest.raises(Infeasible, match='no batch would fit, for parameters, gradients and states alone take'):
        check_fit(held, Room(size=held.fullest.always), batch=16)
    with pytest.raises(Infeasible, match='not even the smallest batch, 16, would fit'):
        check_fit(held, Room(size=held.peak - 1), batch=16, multiple=16)
