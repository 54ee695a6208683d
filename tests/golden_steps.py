"""Training steps that MindSpore's compiler recorded, and the programs that we make of them."""

import re
from collections import Counter, defaultdict
from functools import cache, cached_property
from itertools import pairwise
from math import prod

from golden_shapes import are_views, cases
from tables import load_table

from simpar import Plan, Workload
from simpar.lower import lower
from simpar.model import Dense, Flatten, Network, Relu

GROUPS = ('prop', 'rec_chain', 'seeds', 'opt', 'fusion')
NETWORKS = ('MatMulChain', 'Seed003', 'Mnist')
KINDS = load_table(__file__, 'KINDS')
IMAGE = (1, 28, 28)
MNIST = (784, 512, 512)
"""Features of the tutorials' network before its last layer."""
CROSS_ENTROPY = load_table(__file__, 'CROSS_ENTROPY')
"""Its operators by primitive, in the order of the compiler's dump, which has the count twice."""
WEIGHT = re.compile(r'w\d*|network\.weight\d*|layer\d\.(weight|bias)')


CASES = {
    name: case
    for group in GROUPS
    for name, case in cases(group).items()
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
        self.is_mnist, self.group = self.case['net'] == 'Mnist', golden['group']
        self.args = self.case['net_args']
        self.widths = (
            (*MNIST, self.args.get('out', 10))
            if self.is_mnist
            else self.args.get('dims') or tuple(self.args[key] for key in ('in_dim', 'hidden_dim', 'out_dim'))
        )

    # the case as a workload and a plan

    @cached_property
    def program(self):
        return lower(self.workload(), self.plan(), self.world)

    @property
    def stages(self):
        return self.context.get('pipeline_stages', 1)

    @property
    def cuts_weights(self):
        """Whether optimizer parallelism does: along the first dim, which is another of ours than of the compiler's."""
        return self.context.get('enable_parallel_optimizer', False)

    @property
    def loss(self):
        return 'mae' if self.args.get('out') == 1 else 'cross-entropy' if self.is_mnist else 'mse'

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

    def network(self):
        if not self.is_mnist:
            return Network(layers=tuple(self.layers()))
        cuts = [tuples(entry['in_strategy']) for entry in self.entries('Flatten')]
        return Network(layers=(Flatten(strategy=cuts[0] if cuts else ()), *self.layers()), input=IMAGE)

    def workload(self):
        ((images, *_), *_), *_ = self.case['inputs']
        ranks = self.world // self.stages
        batch = images * (ranks if self.context.get('dataset_strategy') == 'data_parallel' else 1)
        batch *= self.wrap.get('grad_accum', 1)
        subtractions = [] if self.loss == 'cross-entropy' else self.entries('Sub')
        return Workload(
            model=self.network(),
            batch=batch,
            loss=self.loss,
            loss_strategy=tuples(subtractions[0]['in_strategy']) if subtractions else (),
            loss_operators='mindspore-2.10' if self.loss == 'cross-entropy' else 'one',
            loss_strategies=self.loss_strategies() if self.loss == 'cross-entropy' else {},
        )

    def loss_strategies(self):
        """Of cross-entropy, by name; the compiler's own, by batch, where none are recorded.

        Single numbers have none; of several micro-batches or copies those of the first are told.
        """
        found = {}
        for primitive, names in CROSS_ENTROPY.items():
            cuts = [tuple(filter(None, tuples(entry['in_strategy']))) for entry in self.entries(primitive)]
            cuts = [strategy for strategy in cuts if strategy]
            assert len(cuts) % len(names) == 0, (primitive, cuts)
            found |= dict(zip(names, cuts, strict=False))
        return found

    def plan(self):
        options = self.context.get('parallel_optimizer_config', {})
        level = options.get('optimizer_level', 'level1') if self.cuts_weights else 'off'
        copies = self.wrap.get('interleave', 1)
        return Plan(
            dataset=self.context.get('dataset_strategy', 'full_batch').replace('_', '-'),
            redistribution=f'mindspore-{self.golden["mindspore"].removesuffix(".0")}',
            pipeline=self.stages,
            micro_batches=self.wrap.get('pipeline', 1) * self.wrap.get('grad_accum', 1),
            copies=copies,
            copies_loss='sum',
            sum_loss=True,
            reduce='late' if copies > 1 else 'early',
            hsdp=level,
            shard_group=options.get('optimizer_weight_shard_size', 0),
            accumulate='sharded' if options.get('gradient_accumulation_shard') else 'full',
            fusion='none',
        )

    # collectives

    @property
    def recorded(self):
        """All messages."""
        return [op for op in self.golden['final_comm'] if op['op'] in KINDS]

    @property
    def compared(self):
        """Those that a program has."""
        return [op for op in self.recorded if not self.of_constant(op)]

    def theirs(self):
        return Counter((*what, prod(shape)) for *what, shape in map(self.message, self.compared))

    def ours(self):
        return Counter((*what, prod(shape)) for *what, shape in self.messages())

    def unlike(self):
        """Messages, as (kind, ranks, elements), whose shapes on a rank are not views of ours."""
        theirs, ours = shapes(map(self.message, self.compared)), shapes(self.messages())
        return [what for what, found in theirs.items() if not are_views(found, ours[what])]

    def message(self, op):
        return KINDS[op['op']], self.ranks(op), self.slice(op)

    def ranks(self, op):
        """Of a collective, those of its group; of a message, its other end."""
        if op['op'] in ('Send', 'Receive'):
            return (op['dest_rank' if op['op'] == 'Send' else 'src_rank'],)
        return tuple(range(self.world)) if op['ranks'] == 'world' else tuple(op['ranks'])

    @staticmethod
    def slice(op):
        """What a rank has before a gather, behind a scatter and of a message."""
        return tuple(op['out_shapes' if op['op'] in ('ReduceScatter', 'Receive') else 'in_shapes'][0])

    def of_constant(self, op):
        """Whether one number is summed that is a gradient which the compiler did not fold to a constant."""
        return of_one_number(op) and self.loss != 'cross-entropy' and op['instance'].startswith('grad')

    def messages(self):
        """Ours as kind, ranks and shape: one of each tensor, as the compiler fuses later."""
        role, program = self.program.role(self.rank), self.program
        ops = [program.op(role, slot) for slot in range(len(role))]
        # Of micro-batches that follow one another the compiler writes one.
        ops = {op.name: op for op in ops}.values() if 'grad_accum' in self.wrap else ops
        for op in ops:
            if op.kind == 'collective':
                yield from self.members(op)
            elif op.kind in ('send', 'recv'):
                (name,) = op.reads or op.writes
                yield op.kind, (self.other_end(op),), self.local(name)

    def members(self, op):
        ranks = self.program.partitions[op.partition].members(self.rank)
        for source, target in zip(op.reads, op.writes + op.accumulates, strict=True):
            yield op.operator, ranks, self.local(target if op.operator == 'reduce_scatter' else source)

    def other_end(self, op):
        members = self.program.partitions[op.partition].members(self.rank)
        return members[(members.index(self.rank) + op.peer) % len(members)]

    def local(self, name):
        return self.program.local_shape(self.program.tensor[name])

    # parameters

    def parameters(self):
        """Shapes of the slices of weights on the rank, as the compiler has them: but for the tutorials' [in, out]."""
        held = self.program.tensors_of_role[int(self.program.role_of_rank[self.rank])]
        mine = [one.name for one in self.program.tensors if one.kind == 'parameter' and one.name in held]
        return sorted(self.local(name)[:: 1 if self.is_mnist else -1] for name in mine)

    def recorded_parameters(self):
        return sorted(
            tuple(map(int, text.split(', ')))
            for name, text in self.golden['parameters_after']
            if text and WEIGHT.fullmatch(name)
        )


def shapes(messages):
    """Shapes by kind, ranks and elements."""
    found = defaultdict(list)
    for *what, shape in messages:
        found[(*what, prod(shape))].append(shape)
    return found


def of_one_number(op):
    """Whether a recorded collective sums one number."""
    return op['in_shapes'] == [[]] and op['op'] != 'Receive'


def first(strategy):
    """The strategy of one tensor, whether it stands alone or in a list."""
    return strategy[0] if strategy and isinstance(strategy[0], tuple) else strategy


@cache
def recorded_of(name):
    """A case, whose program is lowered once."""
    return Recorded(CASES[name])
