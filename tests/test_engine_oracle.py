"""The simulator agrees with a second one that is exact, slow and obvious."""

from engine_cases import make_case
from engine_oracle import Oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.engine import simulate


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    pipe=st.integers(1, 3),
    data=st.integers(1, 3),
    tensor=st.integers(1, 2),
    ops=st.integers(1, 10),
    links=st.sampled_from(['none', 'alike', 'any']),
)
def test_all_effects_at_once(seed, pipe, data, tensor, ops, links):
    case = make_case(seed, pipe, data, tensor, ops, links)
    trace = simulate(case.program, case.costs, steps=2)
    for (rank, step, slot), expected in Oracle(case.program, case.costs, steps=2).run().items():
        lane = trace.times_of(rank)
        found = (lane.arrive_KS[step, slot], lane.start_KS[step, slot], lane.end_KS[step, slot])
        assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < 1e-9
