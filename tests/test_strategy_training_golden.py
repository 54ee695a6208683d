"""Whole training steps as MindSpore's compiler recorded them: with its strategies, our collectives are its own.

Of every step the collectives (kind, ranks, elements of a slice) and the slices of parameters are equal. Their order is
not compared: the compiler's dump has it as its graph is sorted. Left out are sums for display of the loss, which a
program does not have, and what LEFT_OUT names.
"""

import json
import os
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path

import pytest

from simpar.lower import lower
from simpar.plan import Plan
from simpar.workload import Dense, Flatten, Network, Relu, Workload

SHIPPED = Path(__file__).parent / 'golden' / 'mindspore'
FOLDER = Path(os.environ.get('SIMPAR_GOLDEN', SHIPPED))
GROUPS = ('prop', 'rec_chain', 'seeds', 'opt', 'fusion')
NETWORKS = ('MatMulChain', 'Seed003', 'Mnist')
LEFT_OUT = {
    '2.10.0-prop_seed003_2x2_2x2_d8': 'two all-gathers of the input over neighbouring axes are recorded as one, as '
    'in the pair of layouts that test_redistribution_golden leaves out',
    '2.10.0-seed000_interleave2_semi_d8': 'the whole batch is gathered and cut into copies again; ours reads copies',
}
KINDS = {
    'AllReduce': 'all_reduce',
    'AllGather': 'all_gather',
    'ReduceScatter': 'reduce_scatter',
    'AlltoAll': 'all_to_all',
    'Send': 'send',
    'Receive': 'recv',
}
MNIST = (784, 512, 512)
"""Features of the tutorials' network before its last layer."""


def cases(folder):
    """Recorded cases by version and name."""
    paths = [path for group in GROUPS for path in sorted(folder.rglob(f'{group}/*.json'))]
    found = (json.loads(path.read_text(encoding='utf-8')) for path in paths)
    return {
        f'{case["mindspore"]}-{case["case"]["name"]}': case
        for case in found
        if case.get('final_comm') and case['case']['net'] in NETWORKS
    }


def tuples(value):
    return tuple(map(tuples, value)) if isinstance(value, list) else value


class Recorded:
    """What a case says, and what we make of it."""

    def __init__(self, golden):
        self.golden, self.case = golden, golden['case']
        self.world, self.rank = self.case['device_num'], self.case.get('rank') or 0
        self.context, self.wrap = self.case['ctx'], self.case.get('wrap') or {}
        self.is_mnist = self.case['net'] == 'Mnist'
        self.args = self.case['net_args']
        self.widths = (
            (*MNIST, self.args.get('out', 10))
            if self.is_mnist
            else self.args.get('dims') or tuple(self.args[key] for key in ('in_dim', 'hidden_dim', 'out_dim'))
        )
        self.program = lower(self.workload(), self.plan(), self.world)

    # the case as a workload and a plan

    @property
    def stages(self):
        return self.context.get('pipeline_stages', 1)

    def entries(self, operator):
        """Strategies that the compiler wrote, of a pipeline those of one micro-batch and both stages."""
        found = [entry for entry in self.golden.get('strategies') or [] if entry['op'] == operator]
        if self.stages > 1:
            other = next(one for name, one in CASES.items() if 'rec_pp2' in name and one is not self.golden)
            both = sorted((self.golden, other), key=lambda one: one['case'].get('rank') or 0)
            mine = [[entry for entry in one['strategies'] if entry['op'] == operator] for one in both]
            found = [entry for entries in mine for entry in entries[: len(entries) // self.wrap['pipeline']]]
        return found

    def layers(self):
        products, relus = self.entries('MatMul'), [tuples(entry['in_strategy']) for entry in self.entries('ReLU')]
        if not products:
            whole = [[self.world, 1], [1, 1]]
            given = [self.args['s1'], self.args['s2']] if 's1' in self.args else self.args.get('strategies')
            products = [{'in_strategy': one} for one in given or [whole] * (len(self.widths) - 1)]
            relus = [tuples(self.args.get('sr', [[self.world, 1]]))] * (len(products) - 1)
            relus = relus if self.args.get('relu', True) else []
        marks = self.args.get('comm_fusion') or self.args.get('fusion') or [None] * len(products)
        for place, (inputs, outputs) in enumerate(pairwise(self.widths)):
            yield Dense(
                name=f'w{place}', inputs=inputs, outputs=outputs, bias=self.is_mnist, comm_fusion=marks[place],
                strategy=self.transposed(tuples(products[place]['in_strategy'])),
                out_strategy=first(tuples(products[place].get('out_strategy') or [])),
                pipeline_stage=min(place, 1) if self.stages > 1 else None,
            )  # fmt: skip
            if place < len(relus):
                yield Relu(name=f'relu{place}', strategy=relus[place])

    def transposed(self, strategy):
        """Of a dense layer, whose weight is [out, in], as x · weight with weight [in, out]."""
        return (strategy[0], strategy[1][::-1]) if self.is_mnist else strategy

    def workload(self):
        ((images, *_), *_), *_ = self.case['inputs']
        ranks = self.world // self.stages
        batch = images * (ranks if self.context.get('dataset_strategy') == 'data_parallel' else 1)
        batch *= self.wrap.get('grad_accum', 1)
        loss = 'mae' if self.args.get('out') == 1 else 'cross-entropy' if self.is_mnist else 'mse'
        subtractions = [] if loss == 'cross-entropy' else self.entries('Sub')
        return Workload(
            model=Network(layers=(Flatten(), *self.layers())),
            batch=batch,
            loss=loss,
            loss_strategy=tuples(subtractions[0]['in_strategy']) if subtractions else (),
        )

    def plan(self):
        options = self.context.get('parallel_optimizer_config', {})
        level = options.get('optimizer_level', 'level1') if self.context.get('enable_parallel_optimizer') else 'off'
        return Plan(
            dataset=self.context.get('dataset_strategy', 'full_batch').replace('_', '-'),
            redistribution=f'mindspore-{self.golden["mindspore"].removesuffix(".0")}',
            pipeline=self.stages,
            micro_batches=self.wrap.get('pipeline', 1) * self.wrap.get('grad_accum', 1),
            hsdp=level,
            shard_group=options.get('optimizer_weight_shard_size', 0),
            accumulate='sharded' if options.get('gradient_accumulation_shard') else 'full',
            fusion='none',
        )

    # collectives

    def theirs(self):
        return Counter(
            (KINDS[op['op']], self.ranks(op), prod(self.slice(op)))
            for op in self.golden['final_comm']
            if (op['op'] in KINDS and op['in_shapes'] != [[]]) or op['op'] == 'Receive'
            if not self.of_data_or_loss(op)
        )

    def ranks(self, op):
        """Of a collective, those of its group; of a message, its other end."""
        if op['op'] in ('Send', 'Receive'):
            return (op['dest_rank' if op['op'] == 'Send' else 'src_rank'],)
        return tuple(range(self.world)) if op['ranks'] == 'world' else tuple(op['ranks'])

    @staticmethod
    def slice(op):
        """What a rank has before a gather, behind a scatter and of a message."""
        return tuple(op['out_shapes' if op['op'] in ('ReduceScatter', 'Receive') else 'in_shapes'][0])

    def of_data_or_loss(self, op):
        """Of the tutorials' network what is not of its layers: images gathered for a Flatten or for micro-batches, the
        operators that its loss is made of (ours is one), and labels."""
        shape = self.slice(op)
        redistributed = 'redistribution' in (op.get('instance') or '')
        own = len(shape) == 2 and shape[1] not in (MNIST[0], self.widths[-1])
        return self.is_mnist and redistributed and not own

    def ours(self):
        role, program = self.program.role(self.rank), self.program
        ops = [program.op(role, slot) for slot in range(len(role))]
        # Of micro-batches that follow one another the compiler writes one.
        ops = {op.name: op for op in ops}.values() if 'grad_accum' in self.wrap else ops
        data = {'x', 'target', 'labels'} if self.is_mnist else set()
        return Counter(
            message
            for op in ops
            if op.kind != 'compute' and not data.intersection(op.reads)
            for message in self.messages(op)
        )

    def messages(self, op):
        """One of each tensor, as the compiler fuses later."""
        if op.kind != 'collective':
            partition, end = self.program.partitions[op.partition], self.rank
            members = partition.members(end)
            (name,) = op.reads or op.writes
            yield op.kind, (members[(members.index(end) + op.peer) % len(members)],), self.elements(name)
            return
        ranks = self.program.partitions[op.partition].members(self.rank)
        for source, target in zip(op.reads, op.writes + op.accumulates, strict=True):
            yield op.operator, ranks, self.elements(target if op.operator == 'reduce_scatter' else source)

    def elements(self, name):
        return prod(self.program.local_shape(self.program.tensor[name]))

    # parameters

    def parameters(self):
        """Elements of the slice of every weight on the rank."""
        held = self.program.tensors_of_role[int(self.program.role_of_rank[self.rank])]
        mine = [one for one in self.program.tensors if one.kind == 'parameter' and one.name in held]
        return sorted(self.elements(tensor.name) for tensor in mine)

    def recorded_parameters(self):
        shapes = [
            tuple(map(int, text.split(', ')))
            for name, text in self.golden['parameters_after']
            if text and WEIGHT.fullmatch(name)
        ]
        return sorted(map(prod, shapes))


def first(strategy):
    """The strategy of one tensor, whether it stands alone or in a list."""
    return strategy[0] if strategy and isinstance(strategy[0], tuple) else strategy


WEIGHT = re.compile(r'w\d*|network\.weight\d*|layer\d\.(weight|bias)')
CASES = cases(FOLDER)


def test_there_are_cases():
    found = {name.split('-')[1].partition('_')[0] for name in CASES}
    assert {'prop', 'rec', 'opt', 'fusion', 'mnist', 'seed003', 'seed004'} <= found
    if FOLDER == SHIPPED:
        assert LEFT_OUT.keys() <= CASES.keys()
        assert len(LEFT_OUT) <= 0.02 * len(CASES)


@pytest.mark.parametrize('name', [name for name in CASES if name not in LEFT_OUT])
def test_collectives_of_a_training_step(name):
    recorded = Recorded(CASES[name])
    assert recorded.ours() == recorded.theirs()


@pytest.mark.parametrize('name', CASES)
def test_slices_of_parameters(name):
    recorded = Recorded(CASES[name])
    if recorded.golden.get('parameters_after'):
        assert recorded.parameters() == recorded.recorded_parameters()


def test_another_strategy_is_noticed():
    recorded = Recorded(CASES['2.10.0-opt_dp4tp2_level3'])
    workload = recorded.workload()
    turned = tuple(
        replace(layer, strategy=((2, 1), (1, 4))) if isinstance(layer, Dense) and layer.name == 'w0' else layer
        for layer in workload.model.layers
    )
    recorded.program = lower(replace(workload, model=replace(workload.model, layers=turned)), recorded.plan(), 8)
    assert recorded.ours() != recorded.theirs()
