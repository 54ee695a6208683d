"""One sharded MatMul as MindSpore's compiler recorded it: strategy, slices, collectives, their ranks and shapes."""

from functools import cache

import pytest
from golden_shapes import FOLDER, cases, is_view_of

from simpar import Plan, Workload
from simpar.layout import group_of, operators
from simpar.lower import lower
from simpar.model import Dense, Network

KINDS = {
    'AllReduce': 'all_reduce',
    'AllGather': 'all_gather',
    'ReduceScatter': 'reduce_scatter',
    'AlltoAll': 'all_to_all',
}


class Recorded:
    """What a case says, and what we make of it."""

    def __init__(self, case):
        self.case = case
        self.world, self.rank = case['case']['device_num'], case['case'].get('rank') or 0
        context = case['case']['ctx']
        self.batch, self.inputs = case['case']['inputs'][0][0]
        self.outputs = case['case']['net_args']['n']
        self.strategy = tuple(map(tuple, case['case']['net_args']['s1']))
        self.plan = Plan(
            dataset=context['dataset_strategy'].replace('_', '-'),
            redistribution=f'mindspore-{case["mindspore"].removesuffix(".0")}',
            all_to_all=context.get('enable_alltoall', False),
            sum_loss=True,
        )
        product = Dense(inputs=self.inputs, outputs=self.outputs, bias=False, name='mm', strategy=self.strategy)
        self.workload = Workload(model=Network(layers=(product,)), batch=self.batch, loss='mse')
        self.program = lower(self.workload, self.plan, self.world)

    def collectives(self):
        """Kind, ranks and the larger of both shapes, in order."""
        return [(KINDS[op['op']], self.ranks(op['ranks']), self.slice(op)) for op in self.compared]

    @property
    def compared(self):
        return [op for op in self.case['final_comm'] if op['op'] in KINDS]

    def ranks(self, recorded):
        return tuple(range(self.world)) if recorded == 'world' else tuple(recorded)

    @staticmethod
    def slice(op):
        """The slice that a rank has before a gather and behind a scatter."""
        return tuple(op['out_shapes' if op['op'] == 'ReduceScatter' else 'in_shapes'][0])

    def ours(self):
        role, program = self.program.role(self.rank), self.program
        ops = [program.op(role, slot) for slot in range(len(role))]
        return [
            (
                op.operator,
                program.partitions[op.partition].members(self.rank),
                program.local_shape(program.tensor[(op.writes if op.operator == 'reduce_scatter' else op.reads)[0]]),
            )
            for op in ops
            if op.kind == 'collective'
        ]


CASES = {name: case for name, case in cases('matmul8').items() if case.get('final_comm')}


@cache
def recorded_of(name):
    return Recorded(CASES[name])


def test_there_are_cases():
    assert CASES, f'no recorded matmul in {FOLDER}'


@pytest.mark.parametrize('name', CASES)
def test_collectives_of_a_training_step(name):
    recorded = recorded_of(name)
    ours, theirs = recorded.ours(), recorded.collectives()
    assert [one[:2] for one in ours] == [one[:2] for one in theirs]
    for (*_, shape), (*_, wanted) in zip(ours, theirs, strict=True):
        assert is_view_of(wanted, shape), (shape, wanted)


@pytest.mark.parametrize('name', CASES)
def test_strategy_and_slices_and_the_mirror_over_all_ranks_with_the_same_slice(name):
    recorded = recorded_of(name)
    sharded = operators.matmul(
        'mm', (recorded.batch, recorded.inputs), (recorded.inputs, recorded.outputs)
    ).sharded(recorded.strategy, recorded.world)  # fmt: skip
    for entry in recorded.case['strategies']:
        if entry['op'] == 'MatMul':
            assert tuple(map(tuple, entry['in_strategy'])) == tuple(layout.shard_counts for layout in sharded.inputs)
    slices = dict(recorded.case['parameters_after'])
    weight = recorded.program.tensor['mm.weight']
    shape = sharded.inputs[1].slice_shape((recorded.inputs, recorded.outputs))
    assert recorded.program.local_shape(weight) == shape[::-1]
    if 'w' in slices:
        assert tuple(map(int, slices['w'].split(','))) == shape
    mirrors = [op for op in recorded.case['final_comm'] if (op.get('instance') or '').startswith('grad_mirror')]
    group = group_of(recorded.rank, sharded.inputs[1].unsharded_axes)
    assert [recorded.ranks(op['ranks']) for op in mirrors] == ([group] if len(group) > 1 else [])
