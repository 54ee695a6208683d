"""MindSpore's compiler interleaves copies alike: the same messages, and what it puts in order is in our issue order."""

from dataclasses import replace

import pytest
from colrow_cases import FOLDER, Ours, Recorded, recorded
from pipeline_cases import edited

from simpar.lower import lower

RECORDED = recorded('interleave')
GRAPHS = [name for name, case in RECORDED.items() if Recorded(case).graph]
CONTROLLED = [name for name, case in RECORDED.items() if list(Recorded(case).orders())]


def test_there_are_cases():
    assert RECORDED, f'no recorded case of interleaving in {FOLDER}'
    assert CONTROLLED, f'no recorded case with an order in {FOLDER}'


@pytest.mark.parametrize('name', RECORDED)
def test_messages_are_those_of_the_compiler(name):
    """Phase, ranks, shapes and what travels together, of every copy."""
    golden = Recorded(RECORDED[name])
    assert Ours(golden.program()).together() == golden.together()


@pytest.mark.parametrize('name', RECORDED)
def test_the_loss_is_summed_for_every_copy(name):
    """By the compiler over all ranks, which it cuts the loss over, by ours over the data ranks.

    A lazily inlined copy stands once for all.
    """
    golden = Recorded(RECORDED[name])
    program = lower(golden.workload(), replace(golden.plan(), sum_loss=True), golden.world)
    ours, without = Ours(program).together(), Ours(golden.program()).together()
    assert ours - without == {('F', False, 'all_reduce', (((1,), (1,), (0, golden.net['tp'])),)): golden.copies}
    recorded_ranks = [golden.ranks(op) for op in golden.losses]
    assert recorded_ranks == [tuple(range(golden.world))] * (1 if golden.lazy else golden.copies)


@pytest.mark.parametrize('name', RECORDED)
def test_parameters_and_states_are_cut_alike(name):
    golden = Recorded(RECORDED[name])
    assert Ours(golden.program()).shapes() == golden.shapes()


@pytest.mark.parametrize('name', GRAPHS)
def test_the_same_runs_again(name):
    golden = Recorded(RECORDED[name])
    assert Ours(golden.program()).again() == golden.again()


@pytest.mark.parametrize('name', CONTROLLED)
def test_its_edges_are_kept(name):
    """Edges of the forward and of the backward; the compiler puts none where there are not two copies."""
    golden = Recorded(RECORDED[name])
    orders = list(golden.orders())
    layers = golden.net['layers']
    assert golden.copies == 2
    assert [waits[0] for waits, _ in orders].count('F') == 2 * layers
    assert [waits[0] for waits, _ in orders].count('I') == 2 * (layers - 1)
    assert Ours(golden.program()).broken(orders) == []


# What is otherwise is noticed.


def case():
    return Recorded(recorded('interleave')['interleave2_colrow_3layers_nolazy'])


@pytest.mark.parametrize('changes', [{'copies': 4}, {'copies': 1}, {'reduce': 'early'}, {'fusion': 'none'}], ids=str)
def test_another_plan_sends_other_messages(changes):
    golden = case()
    program = lower(golden.workload(), replace(golden.plan(), **changes), golden.world)
    assert Ours(program).together() != golden.together()


@pytest.mark.parametrize('phase', ['F', 'I'])
def test_one_copy_behind_the_other_breaks_the_order(phase):
    """The copies in turn, each phase of one before that of the other: nothing hides anything."""

    def in_turn(slots):
        mine = [slot for slot in slots if slot[0].endswith(f'.{phase}')]
        turned = iter(sorted(mine, key=lambda slot: slot[3]))
        return [next(turned) if slot in mine else slot for slot in slots]

    golden = case()
    broken = Ours(edited(golden.program(), in_turn)).broken(list(golden.orders()))
    assert {waits[0] for waits, _ in broken} == {phase}
