"""MindSpore's compiler runs the same again, and sends the same messages, in its group of recompute cases."""

from dataclasses import replace

import pytest
from colrow_cases import FOLDER, Ours, Recorded, recorded

from simpar.lower import lower

RECORDED = recorded('recompute')
GRAPHS = [name for name, case in RECORDED.items() if Recorded(case).graph]


def test_there_are_cases():
    assert RECORDED, f'no recorded case of recomputation in {FOLDER}'
    assert GRAPHS, f'no recorded graph in {FOLDER}'


@pytest.mark.parametrize('name', RECORDED)
def test_messages_are_those_of_the_compiler(name):
    """Phase, whether run again, ranks, shapes and what travels together."""
    golden = Recorded(RECORDED[name])
    assert Ours(golden.program()).together() == golden.together()


@pytest.mark.parametrize('name', RECORDED)
def test_parameters_and_states_are_cut_alike(name):
    golden = Recorded(RECORDED[name])
    assert Ours(golden.program()).shapes() == golden.shapes()


@pytest.mark.parametrize('name', GRAPHS)
def test_the_same_runs_again(name):
    golden = Recorded(RECORDED[name])
    assert golden.again().total() == (2 * golden.net['layers'] if golden.recompute else 0)
    assert Ours(golden.program()).again() == golden.again()


# What is otherwise is noticed.


def case():
    return Recorded(recorded('recompute')['recompute_colrow_nolazy_1'])


@pytest.mark.parametrize('changes', [{'reduce': 'early'}, {'fusion': 'layer'}, {'data': 4, 'tensor': 2}], ids=str)
def test_another_plan_sends_other_messages(changes):
    golden = case()
    program = lower(golden.workload(), replace(golden.plan(), **changes), golden.world)
    assert Ours(program).together() != golden.together()


def test_a_sum_that_runs_again_is_noticed():
    """The last operator of a block is its result, which a Cell keeps; run again too, its sum is sent again."""
    golden = case()
    plan = replace(golden.plan(), recompute=('dense*', 'relu*'))
    ours = Ours(lower(golden.workload(), plan, golden.world))
    assert ours.together() != golden.together()
    assert ours.again() != golden.again()
