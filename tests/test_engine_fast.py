"""The fast machines give the spans of the reference, to the bit, and take over wherever they can."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from engine_cases import make_case, role_of

from simpar import cli
from simpar.cost.costs import Communication, Costs
from simpar.cost.price import price
from simpar.engine import fast, reference, simulate
from simpar.engine import node_costs as node_costs_module
from simpar.engine.compiled import events
from simpar.engine.graph import graph_of
from simpar.engine.node_costs import node_costs
from simpar.engine.representatives import fold
from simpar.errors import Deadlock, SimparError
from simpar.lower import lower
from simpar.plan import Plan
from simpar.predict import EFFECTS
from simpar.profiles import cluster, load_profile
from simpar.program import OpClass, Partition, Program
from simpar.workload import Transformer, Workload


def assert_same(one, other):
    """Two traces with the same bytes."""
    assert one.representative_of_rank.tolist() == other.representative_of_rank.tolist()
    for mine, theirs in zip(one.representatives, other.representatives, strict=True):
        assert mine.rank == theirs.rank
        for name in ('arrive_KS', 'start_KS', 'end_KS'):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)


def ideal(case):
    """A case in which nothing slows anything."""
    ones = np.ones(len(case.program.op_classes))
    return case.with_costs(beside_communication=ones, beside_compute=ones)


WORKLOAD = Workload(model=Transformer(layers=8, hidden=512, heads=8, vocab=4096, sequence=512), batch=32)
PLANS = {
    'interleaved': Plan(tensor=2, pipeline=4, data=2, micro_batches=8, order='interleaved-1f1b', chunks=2),
    'late': Plan(tensor=2, pipeline=4, data=2, micro_batches=4, receive='late', copies=2),
    'zero bubble': Plan(tensor=2, pipeline=4, data=2, micro_batches=8, order='zb-h1'),
    'copies': Plan(tensor=8, data=2, copies=2),
    'one stream': Plan(tensor=2, pipeline=2, data=4, micro_batches=4, streams='single', order='gpipe'),
}


@pytest.mark.parametrize('profile', ['h100-sxm-8', 'ascend910a-8'])
@pytest.mark.parametrize('plan', PLANS.values(), ids=PLANS)
def test_lowered_plans_have_the_spans_of_the_reference_with_any_effects(plan, profile, monkeypatch):
    hardware = cluster(load_profile(profile), nodes=2)
    program = lower(WORKLOAD, plan, 16)
    states = [price(program, hardware, effects) for _, effects in EFFECTS]
    slow = [simulate(program, costs, engine='simpy') for costs in states]
    monkeypatch.setattr(reference, 'run', None)
    for costs, expected in zip(states, slow, strict=True):
        for engine in ('python', 'compiled'):
            assert_same(simulate(program, costs, engine=engine), expected)


def test_a_program_that_nothing_slows_is_replayed_and_others_are_not():
    case = make_case(seed=3, pipe=2, data=2, tensor=2, ops=20, links='alike')

    def interferes(case):
        lanes = fold(case.program, case.costs)
        graph = graph_of(case.program, tuple(lanes.of_rank))
        return node_costs(graph.ops, case.program, case.costs, lanes, steps=1).interferes

    assert interferes(case)
    assert interferes(ideal(case))
    assert not interferes(ideal(make_case(seed=3, pipe=2, data=2, tensor=2, ops=20, links='none')))


def pair(first, second):
    """Two ranks with these collectives of one group on one stream."""
    roles = tuple(
        role_of(f'rank{r}', [(0, 0)] * count, [[]] * count, [], ('s',)) for r, count in ((0, first), (1, second))
    )
    both = {'p': Partition('p', np.array([[0, 1]], dtype=np.int32))}
    op = OpClass('both', 'collective', 'all_reduce', 'F', partition='p')
    program = Program(roles, np.array([0, 1], dtype=np.int32), both, (op,), ())
    one = np.ones(1)
    costs = Costs(
        compute=np.zeros(1), host=np.zeros(1), beside_communication=one, beside_compute=one,
        communication={0: (Communication(0.0, 1.0),)}, links=(), rank_speed=np.ones(2),
    )  # fmt: skip
    return program, costs


def test_what_does_not_pair_up_in_a_step_is_left_to_the_reference():
    program, costs = pair(2, 1)
    assert graph_of(program, (0, 1)) is None
    with pytest.raises(Deadlock, match='rank 1, finished'):
        simulate(program, costs, steps=2)
    assert graph_of(pair(1, 1)[0], (0, 1)) is not None


def one_rank(needs):
    """A rank with an op, a collective and an op on two streams, and these needs of each; it computes for 1, 2, 3 s."""
    role = role_of('one', [(0, 0), (1, 1), (2, 0)], needs, [(1, 2)], ('a', 'b'))
    ops = (
        OpClass('early', 'compute', 'gelu', 'F'),
        OpClass('sum', 'collective', 'all_reduce', 'F', partition='p'),
        OpClass('late', 'compute', 'gelu', 'F'),
    )
    alone = {'p': Partition('p', np.array([[0]], dtype=np.int32))}
    program = Program((role,), np.array([0], dtype=np.int32), alone, ops, ())
    return program, Costs(
        compute=np.array([1.0, 0.0, 3.0]), host=np.full(3, 0.25), beside_communication=np.full(3, 0.5),
        beside_compute=np.ones(3), communication={1: (Communication(0.0, 2.0),)}, links=(), rank_speed=np.ones(1),
    )  # fmt: skip


@pytest.mark.parametrize(
    'needs', [[[], [], []], [[], [0], [1]], [[1], [], []], [[], [2], []]], ids=['none', 'before', 'behind', 'last']
)
def test_ops_of_a_rank_that_stands_for_all_wait_for_any_op(needs):
    program, costs = one_rank(needs)
    traces = [simulate(program, costs, steps=3, engine=engine) for engine in ('simpy', 'python', 'compiled')]
    for trace in traces[1:]:
        assert_same(trace, traces[0])


@pytest.mark.parametrize('engine', ['simpy', 'python', 'compiled'])
def test_ops_of_a_rank_that_stands_for_all_wait_in_a_circle(engine):
    program, costs = one_rank([[1], [2], []])
    with pytest.raises(Deadlock):
        simulate(program, costs, engine=engine)


@pytest.mark.parametrize('below', [40, node_costs_module._FEW + 1])
def test_numbers_are_found_with_and_without_a_sort(below):
    values = np.array([31, 4, 4, 17, 31])
    found, place = node_costs_module._numbered(values, below)
    assert found.tolist() == [4, 17, 31]
    assert found[place].tolist() == values.tolist()


def test_records_of_a_graph_are_as_new_whenever_they_are_asked_for():
    case = make_case(seed=5, pipe=2, data=2, tensor=1, ops=30, links='alike')
    representatives = fold(case.program, case.costs)
    graph = graph_of(case.program, tuple(representatives.of_rank))
    costs = node_costs(graph.ops, case.program, case.costs, representatives, steps=2)
    ends = [fast.run_events(graph, costs, len(case.costs.links)).tolist() for _ in range(4)]
    assert ends == ends[:1] * 4


def test_compiled_machines_run_where_loading_or_compiling_them_repays(monkeypatch):
    monkeypatch.setattr(fast, 'is_installed', lambda: True)
    monkeypatch.setattr(fast, 'is_compiled', lambda: True)
    # Whatever tests before this one have simulated in Python.
    monkeypatch.setattr(fast, '_walked', [0])
    assert fast.repays(10, asked=True)
    monkeypatch.setattr(fast, 'is_started', lambda: False)
    assert [fast.repays(slots, asked=False) for slots in (fast.LOADS - 1, fast.LOADS)] == [False, True]
    monkeypatch.setattr(fast, 'is_compiled', lambda: False)
    assert [fast.repays(slots, asked=False) for slots in (fast.LOADS, fast.COMPILES)] == [False, True]
    # A search that predicts twenty plans like this one compiles sooner.
    with fast.many_follow(20):
        assert [fast.repays(slots, asked=False) for slots in (fast.LOADS, fast.COMPILES // 20)] == [False, True]
    assert not fast.repays(fast.COMPILES // 20, asked=False)
    monkeypatch.setattr(fast, 'is_installed', lambda: False)
    assert not fast.repays(10 * fast.COMPILES, asked=False)
    with pytest.raises(SimparError, match='numba, which is not installed; write: pip install numba'):
        fast.repays(10, asked=True)


def test_the_machines_can_be_compiled_beforehand(capsys):
    assert cli.main(['warmup', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['seconds'] >= 0


def test_kernels_are_compiled_anew_when_what_they_call_has_changed():
    """numba's cache on disk knows of a kernel's own file alone, which therefore names what it was written for."""
    home = Path(events.__file__).parents[2]
    files = sorted([home / 'jit.py', *home.glob('*/compiled/*.py')])
    texts = {path: path.read_text(encoding='utf-8') for path in files}
    texts = {path: text for path, text in texts.items() if 'simpar.jit import' in text or path.stem == 'jit'}
    marks = ('@kernel', 'HELPERS: Final')
    cached = [path for path, text in texts.items() if any(mark in text for mark in marks)]
    others = ''.join(text for path, text in texts.items() if path not in cached)
    found = hashlib.sha256(others.encode()).hexdigest()[:16]
    for path in cached:
        assert f"HELPERS: Final = '{found}'\n" in texts[path], f"write HELPERS: Final = '{found}' in {path.name}"
