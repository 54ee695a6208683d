"""The simulator meets every span that docs/proofs/worked_program.md works out by hand."""

import numpy as np
import pytest
from worked import SLOW_SPANS, SPANS, shared_link_costs, shared_link_program, table, worked_costs, worked_program

from simpar.engine import simulate


def spans(trace, rank, step):
    """(arrive, start, end) by slot, named as on the page."""
    named = {}
    for span in trace.spans(rank, step):
        name = span.op.name if span.op.phase == 'U' else f'{span.op.name}.{span.copy}'
        named[name] = (span.arrive, span.start, span.end)
    return named


@pytest.fixture(scope='module')
def program():
    return worked_program()


def test_every_span_of_two_steps(program):
    trace = simulate(program, worked_costs(program), steps=3)
    assert len(trace.representatives) == 1, 'both ranks behave alike'
    for step in (0, 1):
        golden = {slot: row[2 * step : 2 * step + 2] for slot, row in table(SPANS).items()}
        for rank in (0, 1):
            found = spans(trace, rank, step)
            assert {slot: (start, end) for slot, (_, start, end) in found.items()} == golden
            assert all(arrive == start for arrive, start, _ in found.values())
    assert trace.step_ends.tolist() == [56.125, 112.125, 168.125]
    assert (trace.cold_step, trace.step) == (56.125, 56.0)


def test_without_slow_down(program):
    trace = simulate(program, worked_costs(program, beside_communication=1.0))
    assert trace.step == 44.0


def test_without_slow_down_and_host_cost(program):
    trace = simulate(program, worked_costs(program, beside_communication=1.0, host=0.0))
    assert (trace.cold_step, trace.step) == (44.0, 44.0)


def test_host_cost_is_no_tax_in_the_steady_state(program):
    trace = simulate(program, worked_costs(program, host=0.0))
    assert (trace.cold_step, trace.step) == (56.0, 56.0)


def test_every_span_with_a_slow_rank(program):
    trace = simulate(program, worked_costs(program, slow={1: 0.5}))
    golden = table(SLOW_SPANS)
    for rank in (0, 1):
        assert spans(trace, rank, 0) == {slot: row[3 * rank : 3 * rank + 3] for slot, row in golden.items()}
    assert trace.step == 100.0


def test_waiting_slows_compute_where_the_profile_says_so(program):
    costs = worked_costs(program, slow={1: 0.5}, waiting_slows=True)
    arrive, start, end = spans(simulate(program, costs), 0, 0)['FA.1']
    assert (arrive, start) == (4.125, 4.125)
    assert end == 12.125, 'half speed beside RA.0, which waits from 4.125 and ends at 12.125'


def test_a_power_of_two_scales_all_spans(program):
    whole, small = (simulate(program, worked_costs(program, unit=unit)) for unit in (1.0, 2.0**-9))
    np.testing.assert_array_equal(small.representatives[0].end_KS, whole.representatives[0].end_KS * 2.0**-9)


def test_sharing_a_link():
    program = shared_link_program()
    trace = simulate(program, shared_link_costs(program), steps=1)
    (a,), (_, b) = trace.spans(0), trace.spans(2)
    assert (a.arrive, a.start, a.end) == (0.0, 0.0, 4.5)
    assert (b.arrive, b.start, b.end) == (2.0, 2.0, 6.5)
