"""Blocks of column-cut and row-cut products as MindSpore's compiler wrote them: copies, what runs again, passes.

Messages, slices, what runs again and the order of edges are the compiler's own, by degrees and by strategies.
"""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from colrow_cases import FOLDER, Ours, Recorded, phase_of, recorded
from tile_cases import PASSES

from simpar.lower import lower

# Networks that MindSpore's compiler was given with passes of parallel_speed_up.json, and our programs of them.

AHEAD = 100
"""The compiler issues all gathers before the first product."""
RENAMED = {
    'grad_matmul_communication_overlap': 'matmul_grad_comm_overlap',
    'grad_computation_allreduce_overlap': 'enable_grad_comm_opt',
    'computation_allgather_overlap': 'enable_opt_shard_comm_opt',
    'recomputation_communication_overlap': 'recompute_comm_overlap',
}
"""MindSpore's later names."""


def sizes(shapes):
    """Elements of the pieces: of a weight optimizer parallelism cuts another dim than ours, as it is transposed."""
    return {kind: sorted(rows * columns for rows, columns in mine) for kind, mine in shapes.items()}


class Speedup(Recorded):
    """A compiled network with passes."""

    def __init__(self, golden):
        super().__init__(golden)
        asked = {RENAMED.get(key, key): value for key, value in golden['case'].get('speed_up', {}).items()}
        self.passes = tuple(name for name in PASSES if asked.get(name))
        self.sharded = golden['case']['ctx'].get('enable_parallel_optimizer', False)
        self.nodes = {f'%{node["id"]}': node for node in self.graph}

    def plan(self, **changes):
        level = {'hsdp': 'level1', 'prefetch': AHEAD} if self.sharded else {}
        return replace(super().plan(), **{'overlap': self.passes, **level, **changes})

    def program(self, **changes):
        return lower(self.workload(), self.plan(**changes), self.world)

    def shapes(self):
        return sizes(super().shapes())

    def orders(self):
        """Pairs (what comes first, what comes later) of the edges: each a kind and a layer or number.

        Edges on states of monads, which hold back what is recomputed with any pass or none, are left out.
        """
        sums = [name for name in self.nodes if self.kind(name) == 'sum']
        for name, node in self.nodes.items():
            behind = node['args'][1] if node['op'] == 'Depend' and len(node['args']) == 2 else ''
            readers = [other for other, node in self.nodes.items() if name in node['args']]
            for reader in readers if self.kind(behind) in ('sum', 'dW', 'gather') else ():
                if self.kind(reader) in ('dW', 'gather', 'F'):
                    yield self.told(behind, sums), self.told(reader, sums)

    def kind(self, name):
        node = self.nodes.get(name)
        if node is None:
            return ''
        if node['op'] in ('AllReduce', 'AllGather'):
            return 'gather' if node['op'] == 'AllGather' else 'sum' if phase_of(node) == 'I' else ''
        if node['op'] != 'MatMul':
            return ''
        return 'F' if node.get('mirror_user_id') and not node.get('duplicated') else 'dW' if self.weight(name) else ''

    def weight(self, product):
        """The weight whose gradient a product makes: its message goes to the weight's update."""
        for name, node in self.nodes.items():
            if node['op'] in ('AllReduce', 'ReduceScatter') and product in node['args'] and phase_of(node) == 'W':
                updates = (other for other in self.nodes.values() if other['op'] == 'ApplyMomentum')
                return next(update['args'][0].partition('_')[2] for update in updates if name in update['args'])
        return ''

    def told(self, name, sums):
        kind = self.kind(name)
        if kind == 'sum':
            return kind, sums.index(name)
        return kind, layer(self.weight(name) if kind == 'dW' else self.nodes[name]['mirror_user_id'])


def layer(weight):
    """``layers.1.w2`` → ``dense3``."""
    _, block, which = weight.split('.')
    return f'dense{2 * int(block) + (which == "w2")}'


class OurSpeedup(Ours):
    """Ours, as these cases tell it."""

    def together(self):
        """Gathers of weights have no phase in the compiler's names."""
        found = Counter()
        for (phase, *rest), count in super().together().items():
            found[('W' if rest[1] == 'all_gather' else phase, *rest)] += count
        return found

    def shapes(self):
        return sizes(super().shapes())

    def at(self, what):
        kind, which = what
        names = [op.name for op, _ in self.slots]
        if kind == 'sum':
            return [at for at, (op, _) in enumerate(self.slots) if op.kind == 'collective' and op.phase == 'I'][which]
        if kind == 'gather':
            return next(at for at, (op, _) in enumerate(self.slots) if op.reads == (f'{which}.weight',))
        return names.index(f'{which}.{"W" if kind == "dW" else kind}')

    def broken(self, orders):
        return [(first, later) for first, later in orders if not self.at(first) < self.at(later)]


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
def test_messages_are_those_of_the_compiler_and_parameters_and_states_are_cut_alike(name):
    """Phase, whether run again, ranks, shapes and what travels together, of every copy."""
    golden, ours = lowered(name)
    assert ours.together() == golden.together()
    assert ours.shapes() == golden.shapes()


@pytest.mark.parametrize('name', OF_GROUP)
def test_messages_of_strategies_are_those_of_the_compiler(name):
    """With the sum of the loss, too."""
    golden, ours = both(name)
    assert ours(golden.with_strategies()).together() == golden.together(losses=True)


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
