"""The C++ reference of the benchmarks has the bits of the compiled machines; and laps are fair."""

import numpy as np
import pytest
from engine_cases import make_case

from benchmarks.laps import Spread, in_turns
from benchmarks.reference import compiler, fresh, reference
from simpar.engine.compiled.kernels import events, recurrence
from simpar.engine.compiled.steps import steps_of
from simpar.engine.compiled.world import world_of
from simpar.engine.graph import graph_of
from simpar.engine.node_costs import node_costs
from simpar.engine.representatives import fold

needs_compiler = pytest.mark.skipif(compiler() is None, reason='neither $CXX, g++ nor c++ is there')


def arranged(seed):
    """The graph of a random program, its costs, and how many links there are."""
    case = make_case(seed, pipe=1 + seed % 4, data=1 + seed % 3, tensor=1 + seed // 3 % 3, ops=40, links='any')
    representatives = fold(case.program, case.costs, unfold=True)
    graph = graph_of(case.program, tuple(representatives.of_rank))
    costs = node_costs(graph.ops, case.program, case.costs, representatives, steps=1 + seed % 3)
    return graph, costs, len(case.costs.links)


@needs_compiler
def test_the_event_loop_in_cpp_has_the_bits_of_the_compiled_one():
    for seed in range(40):
        cpp = world_of(*arranged(seed))
        compiled = fresh(cpp)
        assert reference().run_events(cpp) == events(compiled)
        assert (compiled.end > 0).any()
        np.testing.assert_array_equal(cpp.end, compiled.end, err_msg=f'seed {seed}')


@needs_compiler
def test_the_replay_in_cpp_has_the_bits_of_the_compiled_one():
    for seed in range(40):
        graph, costs, _ = arranged(seed)
        cpp = steps_of(graph, costs)
        compiled = fresh(cpp)
        reference().run_replay(cpp)
        recurrence(*compiled)
        assert (compiled.time > 0).any()
        np.testing.assert_array_equal(cpp.time, compiled.time, err_msg=f'seed {seed}')


def test_contenders_run_in_turns_and_each_begins_a_round():
    ran = []
    laps = in_turns({name: lambda name=name: lambda: ran.append(name) for name in 'abc'}, rounds=3)
    assert ''.join(ran) == 'abcbcacab'
    assert {name: len(seconds) for name, seconds in laps.seconds.items()} == {'a': 3, 'b': 3, 'c': 3}


def test_a_spread_has_the_quartiles():
    assert str(Spread.of([5.0, 1.0, 2.0, 3.0, 4.0])) == '3 (2 to 4)'
