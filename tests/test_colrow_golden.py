"""Blocks of column-cut and row-cut products as MindSpore's compiler wrote them: copies, what runs again, passes.

Messages, slices, what runs again and the order of edges are the compiler's own, by degrees and by strategies.
"""

from collections import Counter
from dataclasses import replace

import pytest
from colrow_cases import FOLDER, Ours, Recorded, recorded
from overlap_cases import OurSpeedup, Speedup
from pipeline_cases import edited

from simpar.lower import lower

KINDS = {'interleave': (Recorded, Ours), 'recompute': (Recorded, Ours), 'speedup': (Speedup, OurSpeedup)}
"""By group, what reads a case and what reads a program of ours."""
RECORDED = {group: recorded(group) for group in KINDS}
OF_GROUP = {name: group for group, cases in RECORDED.items() for name in cases}


def both(name):
    """A recorded network, and the class of its programs."""
    golden, ours = KINDS[OF_GROUP[name]]
    return golden(RECORDED[OF_GROUP[name]][name]), ours


GRAPHS = [name for name in OF_GROUP if both(name)[0].graph]
EDGES = [name for name in GRAPHS if list(both(name)[0].orders())]


@pytest.mark.parametrize('group', KINDS)
def test_there_are_cases(group):
    for what, names in {'case': OF_GROUP, 'graph': GRAPHS, 'edge': EDGES}.items():
        of_group = [name for name in names if OF_GROUP[name] == group]
        assert of_group or (what, group) == ('edge', 'recompute'), f'no recorded {what} of {group} in {FOLDER}'


@pytest.mark.parametrize('name', OF_GROUP)
def test_messages_are_those_of_the_compiler(name):
    """Phase, whether run again, ranks, shapes and what travels together, of every copy."""
    golden, ours = both(name)
    assert ours(golden.program()).together() == golden.together()


@pytest.mark.parametrize('name', OF_GROUP)
def test_messages_of_strategies_are_those_of_the_compiler(name):
    """With the sum of the loss, too."""
    golden, ours = both(name)
    assert ours(golden.with_strategies()).together() == golden.together(losses=True)


@pytest.mark.parametrize('name', OF_GROUP)
def test_parameters_and_states_are_cut_alike(name):
    golden, ours = both(name)
    assert ours(golden.program()).shapes() == golden.shapes()


@pytest.mark.parametrize('name', GRAPHS)
def test_the_same_runs_again(name):
    golden, ours = both(name)
    assert ours(golden.program()).again() == golden.again()
    if OF_GROUP[name] == 'recompute':
        assert golden.again().total() == (2 * golden.net['layers'] if golden.recompute else 0)


@pytest.mark.parametrize('name', EDGES)
def test_its_edges_are_kept(name):
    golden, ours = both(name)
    program = golden.program(fusion='none') if OF_GROUP[name] == 'speedup' else golden.program()
    assert ours(program).broken(list(golden.orders())) == []


# What the recorded edges and sums are.


@pytest.mark.parametrize('name', RECORDED['interleave'])
def test_the_loss_is_summed_for_every_copy(name):
    """By the compiler over all ranks, which it cuts the loss over, by ours over the data ranks.

    A lazily inlined copy stands once for all.
    """
    golden, _ = both(name)
    program = lower(golden.workload(), replace(golden.plan(), sum_loss=True), golden.world)
    ours, without = Ours(program).together(), Ours(golden.program()).together()
    assert ours - without == {('F', False, 'all_reduce', (((1,), (1,), (0, golden.net['tp'])),)): golden.copies}
    recorded_ranks = [golden.ranks(op) for op in golden.losses]
    assert recorded_ranks == [tuple(range(golden.world))] * (1 if golden.lazy else golden.copies)


def test_the_loss_of_strategies_is_summed_over_all_ranks():
    golden, _ = both('speedup_matmul_grad_comm_overlap')
    assert golden.together(losses=True)['F', False, 'all_reduce', (((1,), (1,), tuple(range(8))),)] == 1


@pytest.mark.parametrize('name', [name for name in EDGES if OF_GROUP[name] == 'interleave'])
def test_copies_have_edges_of_the_forward_and_of_the_backward(name):
    """The compiler puts none where there are not two copies."""
    golden, _ = both(name)
    layers, phases = golden.net['layers'], Counter(waits[0] for waits, _ in golden.orders())
    assert (golden.copies, phases['F'], phases['I']) == (2, 2 * layers, 2 * (layers - 1))


def test_gradients_of_weights_are_ordered_behind_the_sum_that_they_hide():
    """Of every block but the first, whose input needs no gradient: sum issued, dW of up, dW of the block before."""
    golden, _ = both('speedup_matmul_grad_comm_overlap')
    assert sorted(golden.orders()) == [
        (('dW', 'dense4'), ('dW', 'dense3')),
        (('sum', 1), ('dW', 'dense4')),
        (('sum', 2), ('dW', 'dense2')),
    ]


def test_gathers_are_chained_and_all_are_issued_before_the_first_product():
    golden, _ = both('speedup_enable_opt_shard_comm_opt')
    chain = [(('gather', f'dense{one}'), ('gather', f'dense{one + 1}')) for one in range(5)]
    assert sorted(golden.orders()) == [*chain, (('gather', 'dense5'), ('F', 'dense0'))]


def test_two_passes_leave_no_edge_in_this_network():
    assert not {'speedup_enable_grad_comm_opt', 'speedup_recompute_comm_overlap'} & set(EDGES)


# What is otherwise is noticed.

COPIES, AGAIN = 'interleave2_colrow_3layers_nolazy', 'recompute_colrow_nolazy_1'
OTHERS = [(COPIES, {'copies': 4}), (COPIES, {'copies': 1}), (AGAIN, {'data': 4, 'tensor': 2})]
OTHERS += [(name, {'reduce': 'early'}) for name in (COPIES, AGAIN)]
OTHERS += [(COPIES, {'fusion': 'none'}), (AGAIN, {'fusion': 'layer'})]


@pytest.mark.parametrize(('name', 'changes'), OTHERS, ids=str)
def test_another_plan_sends_other_messages(name, changes):
    golden, ours = both(name)
    program = lower(golden.workload(), replace(golden.plan(), **changes), golden.world)
    assert ours(program).together() != golden.together()


def test_another_strategy_sends_other_messages():
    golden, ours = both('recompute_colrow_0')
    golden.net = {**golden.net, 'dp': 4, 'tp': 2}
    assert ours(golden.with_strategies()).together() != golden.together(losses=True)


def test_a_sum_that_runs_again_is_noticed():
    """The last operator of a block is its result, which a Cell keeps; run again too, its sum is sent again."""
    golden, _ = both(AGAIN)
    plan = replace(golden.plan(), recompute=('dense*', 'relu*'))
    ours = Ours(lower(golden.workload(), plan, golden.world))
    assert ours.together() != golden.together()
    assert ours.again() != golden.again()


@pytest.mark.parametrize('phase', ['F', 'I'])
def test_one_copy_behind_the_other_breaks_the_order(phase):
    """The copies in turn, each phase of one before that of the other: nothing hides anything."""

    def in_turn(slots):
        mine = [slot for slot in slots if slot[0].endswith(f'.{phase}')]
        turned = iter(sorted(mine, key=lambda slot: slot[3]))
        return [next(turned) if slot in mine else slot for slot in slots]

    golden, _ = both(COPIES)
    broken = Ours(edited(golden.program(), in_turn)).broken(list(golden.orders()))
    assert {waits[0] for waits, _ in broken} == {phase}


@pytest.mark.parametrize('name', ['speedup_matmul_grad_comm_overlap', 'speedup_enable_opt_shard_comm_opt'])
def test_without_the_pass_its_edges_are_broken(name):
    golden, ours = both(name)
    assert ours(golden.program(overlap=(), fusion='none')).broken(list(golden.orders()))
