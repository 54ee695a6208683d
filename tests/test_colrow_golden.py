"""Blocks of column-cut and row-cut products as MindSpore's compiler wrote them: copies, what runs again, passes.

Messages, slices, what runs again and the order of edges are the compiler's own, by degrees and by strategies.
"""

from dataclasses import replace
from functools import cache

import pytest
from colrow_cases import FOLDER, Ours, Recorded, recorded
from overlap_cases import OurSpeedup, Speedup

from simpar.lower import lower

KINDS = {'interleave': (Recorded, Ours), 'recompute': (Recorded, Ours), 'speedup': (Speedup, OurSpeedup)}
"""By group, what reads a case and what reads a program of ours."""
RECORDED = {group: recorded(group) for group in KINDS}
OF_GROUP = {name: group for group, cases in RECORDED.items() for name in cases}


def both(name):
    """A recorded network, and the class of its programs."""
    golden, ours = KINDS[OF_GROUP[name]]
    return golden(RECORDED[OF_GROUP[name]][name]), ours


@cache
def lowered(name):
    """A recorded network, and its program of degrees."""
    golden, ours = both(name)
    return golden, ours(golden.program())


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
    golden, ours = lowered(name)
    assert ours.together() == golden.together()


@pytest.mark.parametrize('name', OF_GROUP)
def test_messages_of_strategies_are_those_of_the_compiler(name):
    """With the sum of the loss, too."""
    golden, ours = both(name)
    assert ours(golden.with_strategies()).together() == golden.together(losses=True)


@pytest.mark.parametrize('name', OF_GROUP)
def test_parameters_and_states_are_cut_alike(name):
    golden, ours = lowered(name)
    assert ours.shapes() == golden.shapes()


@pytest.mark.parametrize('name', GRAPHS)
def test_the_same_runs_again(name):
    golden, ours = lowered(name)
    assert ours.again() == golden.again()
    if OF_GROUP[name] == 'recompute':
        assert golden.again().total() == (2 * golden.net['layers'] if golden.recompute else 0)


@pytest.mark.parametrize('name', EDGES)
def test_its_edges_are_kept(name):
    golden, ours = lowered(name)
    if OF_GROUP[name] == 'speedup':
        ours = OurSpeedup(golden.program(fusion='none'))
    assert ours.broken(list(golden.orders())) == []


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


# What is otherwise is noticed.


@pytest.mark.parametrize('name', ['speedup_matmul_grad_comm_overlap', 'speedup_enable_opt_shard_comm_opt'])
def test_without_the_pass_its_edges_are_broken(name):
    golden, ours = both(name)
    assert ours(golden.program(overlap=(), fusion='none')).broken(list(golden.orders()))
