"""MindSpore's compiler with passes of parallel_speed_up.json: the same messages, and its edges are in our order."""

from collections import Counter
from dataclasses import replace

import pytest
from colrow_cases import FOLDER, Ours, Recorded, phase_of, recorded
from tile_cases import PASSES

from simpar.lower import lower

RECORDED = recorded('speedup')
AHEAD = 100
"""The compiler issues all gathers before the first product."""
RENAMED = {
    'grad_matmul_communication_overlap': 'matmul_grad_comm_overlap',
    'grad_computation_allreduce_overlap': 'enable_grad_comm_opt',
    'computation_allgather_overlap': 'enable_opt_shard_comm_opt',
    'recomputation_communication_overlap': 'recompute_comm_overlap',
}
"""MindSpore's later names."""


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


class Program(Ours):
    """Ours, as these cases tell it."""

    def together(self):
        """Gathers of weights have no phase in the compiler's names."""
        found = Counter()
        for (phase, *rest), count in super().together().items():
            found[('W' if rest[1] == 'all_gather' else phase, *rest)] += count
        return found

    def at(self, what):
        kind, which = what
        names = [op.name for op, _ in self.slots]
        if kind == 'sum':
            return [at for at, (op, _) in enumerate(self.slots) if op.kind == 'collective' and op.phase == 'I'][which]
        if kind == 'gather':
            return next(at for at, (op, _) in enumerate(self.slots) if op.reads == (f'{which}.weight',))
        return names.index(f'{which}.{"W" if kind == "dW" else kind}')

    def out_of_order(self, orders):
        return [(first, later) for first, later in orders if not self.at(first) < self.at(later)]


EDGES = [name for name, case in RECORDED.items() if list(Speedup(case).orders())]


def test_there_are_cases():
    assert RECORDED, f'no recorded case of overlap passes in {FOLDER}'
    assert EDGES, f'no recorded case with edges in {FOLDER}'


@pytest.mark.parametrize('name', RECORDED)
def test_messages_are_those_of_the_compiler(name):
    golden = Speedup(RECORDED[name])
    assert Program(golden.program()).together() == golden.together()


@pytest.mark.parametrize('name', RECORDED)
def test_parameters_and_states_are_cut_alike(name):
    """As many elements of each; which of a weight's dims optimizer parallelism cuts is another, as it is transposed."""
    golden = Speedup(RECORDED[name])

    def sizes(shapes):
        return {kind: sorted(rows * columns for rows, columns in mine) for kind, mine in shapes.items()}

    assert sizes(Program(golden.program()).shapes()) == sizes(golden.shapes())


@pytest.mark.parametrize('name', RECORDED)
def test_the_same_runs_again(name):
    golden = Speedup(RECORDED[name])
    assert Program(golden.program()).again() == golden.again()


@pytest.mark.parametrize('name', EDGES)
def test_its_edges_are_kept(name):
    golden = Speedup(RECORDED[name])
    assert Program(golden.program(fusion='none')).out_of_order(golden.orders()) == []


# What the recorded edges are.


def test_gradients_of_weights_are_ordered_behind_the_sum_that_they_hide():
    """Of every block but the first, whose input needs no gradient: sum issued, dW of up, dW of the block before."""
    golden = Speedup(recorded('speedup')['speedup_matmul_grad_comm_overlap'])
    assert sorted(golden.orders()) == [
        (('dW', 'dense4'), ('dW', 'dense3')),
        (('sum', 1), ('dW', 'dense4')),
        (('sum', 2), ('dW', 'dense2')),
    ]


def test_gathers_are_chained_and_all_are_issued_before_the_first_product():
    golden = Speedup(recorded('speedup')['speedup_enable_opt_shard_comm_opt'])
    chain = [(('gather', f'dense{one}'), ('gather', f'dense{one + 1}')) for one in range(5)]
    assert sorted(golden.orders()) == [*chain, (('gather', 'dense5'), ('F', 'dense0'))]


@pytest.mark.parametrize('name', ['speedup_enable_grad_comm_opt', 'speedup_recompute_comm_overlap'])
def test_two_passes_leave_no_edge_in_this_network(name):
    assert list(Speedup(recorded('speedup')[name]).orders()) == []


# Without the pass, the order is another.


@pytest.mark.parametrize('name', ['speedup_matmul_grad_comm_overlap', 'speedup_enable_opt_shard_comm_opt'])
def test_without_the_pass_its_edges_are_broken(name):
    golden = Speedup(recorded('speedup')[name])
    program = Program(golden.program(overlap=(), fusion='none'))
    assert program.out_of_order(golden.orders())
