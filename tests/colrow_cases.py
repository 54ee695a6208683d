"""Networks of column-cut and row-cut products that MindSpore's compiler was given, and what it made of them."""

import json
from collections import Counter
from dataclasses import replace

from golden_shapes import FOLDER

from simpar.lower import lower
from simpar.model import Add, Dense, Network, Relu
from simpar.plans import Plan
from simpar.workload import Momentum, Workload

OPERATORS = {'AllReduce': 'all_reduce', 'AllGather': 'all_gather', 'ReduceScatter': 'reduce_scatter'}
ALONE = 0
"""The fusion id of what is not fused."""


def recorded(group, folder=FOLDER):
    """The cases of a group by name."""
    paths = sorted(folder.rglob(f'v2.10.0/{group}/*.json'))
    return {path.stem: json.loads(path.read_text(encoding='utf-8')) for path in paths}


class Recorded:
    """One compiled network: blocks of up (cut by columns), relu and down (cut by rows), each added to its input.

    That addition is local, and so no message tells of it; with degrees ours have none. A block that recomputes keeps
    what its last operator makes, as a Cell does.
    """

    def __init__(self, golden):
        case = golden['case']
        self.net = case['net_args']
        self.copies = (case.get('wrap') or {}).get('interleave', 1)
        self.lazy = case.get('lazy_inline', False)
        self.recompute = bool(self.net.get('recompute'))
        self.batch, self.world = case['inputs'][0][0][0], case['device_num']
        self.messages = [op for op in golden['final_comm'] if op['in_shapes'] != [[]]]
        numbers = [op for op in golden['final_comm'] if op['in_shapes'] == [[]]]
        self.losses = [op for op in numbers if phase_of(op) == 'F']
        """Sums of the loss, apart: the compiler cuts it over all ranks; with degrees, ours lies as its data."""
        self.graph = [] if self.lazy else golden.get('final_graph', [])
        """Empty where copies are inlined lazily: what runs again and in what order is settled behind the front end."""
        self.parameters = [(name, text) for name, text in golden['parameters_after'] if 'layers.' in name]

    def workload(self):
        layers = []
        for _ in range(self.net['layers']):
            layers += [
                Dense(inputs=self.net['hidden'], outputs=self.net['ffn'], bias=False, recompute=self.recompute),
                Relu(recompute=self.recompute),
                Dense(inputs=self.net['ffn'], outputs=self.net['hidden'], bias=False),
            ]
        return Workload(model=Network(layers=tuple(layers)), batch=self.batch, loss='mse', optimizer=Momentum())

    def plan(self):
        """``reduce: late`` and one fusion id for all gradients are what MindSpore does unless told otherwise."""
        degrees = {'data': self.net['dp'], 'tensor': self.net['tp'], 'copies': self.copies}
        return Plan(**degrees, copies_loss='sum', reduce='late', fusion='all')

    def program(self):
        return lower(self.workload(), self.plan(), self.world)

    def with_strategies(self):
        """The program of strategies in the place of degrees, with what the compiler has besides: that addition, and the
        loss, summed over all ranks."""
        plan = replace(self.plan(), data=0, tensor=1, reduce='early', dataset='full-batch', sum_loss=True)
        plan = replace(plan, redistribution='mindspore-2.10')
        workload = self.workload()
        model = Network(layers=tuple(self.strategic(workload.model.layers)))
        return lower(replace(workload, model=model), plan, self.world)

    def strategic(self, layers):
        """Blocks with the strategies of the network's script; each is added to what it reads."""
        data, tensor = self.net['dp'], self.net['tp']
        rows, columns = (data, 1), (data, tensor)
        read = 'x'
        for place in range(0, len(layers), 3):
            up, relu, down = layers[place : place + 3]
            yield replace(up, strategy=(rows, (1, tensor)))
            yield replace(relu, strategy=(columns,))
            yield replace(down, strategy=(columns, (tensor, 1)), name=f'down{place}')
            yield Add(of=(read, f'down{place}'), strategy=(rows, rows), name=f'block{place}')
            read = f'block{place}'

    def ranks(self, op):
        return tuple(range(self.world)) if op['ranks'] == 'world' else tuple(op['ranks'])

    def together(self, *, losses=False):
        """Multiset of messages: (phase, again, operator, members as (shapes in and out, ranks)).

        A lazily inlined copy stands once for all. Its sums of gradients do too, and are counted once for the step.
        """
        ids, found = {}, Counter()
        for op in self.messages + self.losses * losses:
            phase = phase_of(op)
            (taken,), (given,) = op['in_shapes'], op['out_shapes']
            ranks = self.ranks(op)
            kind = (phase, bool(op.get('duplicated')), OPERATORS[op['op']])
            member = (tuple(taken) or (1,), tuple(given) or (1,), ranks)
            if op['fusion'] == ALONE:
                found[(*kind, (member,))] += self.copies if self.lazy and phase != 'W' else 1
            else:
                ids.setdefault((kind, op['fusion']), []).append(member)
        for (kind, _), members in ids.items():
            found[(*kind, tuple(sorted(members)))] += 1
        return found

    def again(self):
        """Multiset of computations that run again: operator and shape of the result."""
        done = (node for node in self.graph if node.get('duplicated') and node['op'] in ('MatMul', 'ReLU'))
        return Counter((node['op'].lower(), tuple(node['out_shapes'][0])) for node in done)

    def shapes(self):
        """Shapes of the pieces of weights and moments in order; a weight is the transposed of ours."""
        kept = {'v' if name.startswith('moments') else 'weight': [] for name, _ in self.parameters}
        for name, text in self.parameters:
            kept['v' if name.startswith('moments') else 'weight'].append(tuple(map(int, text.split(', '))))
        return kept

    def orders(self):
        """What the compiler's edges order: (message whose first reader waits, message whose maker it waits for).

        A message is (phase, copy, number). The loss is the maker behind a copy's last message of the forward.
        """
        sums = [node for node in self.graph if node['op'] == 'AllReduce' and phase_of(node) != 'W']
        makers, numbers, counts = {}, {}, Counter()
        for node in sorted(sums, key=lambda node: node['id']):
            key = phase_of(node), node.get('micro_interleaved_index')
            makers[_made_by(node)] = numbers[node['id']] = (*key, counts[key])
            counts[key] += 1
        for node in self.graph:
            if node.get('micro_interleaved_depend1') or node.get('micro_interleaved_depend2'):
                yield numbers[_made_by(node)], makers[_made_by(node, 1)]


def _made_by(node, argument=0):
    """The number of the node that makes what a node takes."""
    return int(node['args'][argument].removeprefix('%'))


def phase_of(op):
    """F, I or W of a recorded message."""
    if op['instance'].startswith('forward_op'):
        return 'F'
    return 'I' if op['instance'].startswith('gradforward_op') else 'W'


class Ours:
    """The same of a program of one role."""

    def __init__(self, program):
        self.program = program
        (self.role,) = program.roles
        self.slots = [(program.op(self.role, slot), int(self.role.copy[slot])) for slot in range(len(self.role))]

    def _shape(self, name):
        return self.program.local_shape(self.program.tensor[name])

    def together(self):
        found = Counter()
        for op, _ in self.slots:
            if op.kind == 'collective':
                ranks = tuple(self.program.partitions[op.partition].members(0))
                pairs = zip(op.reads, op.writes + op.accumulates, strict=True)
                members = tuple(sorted((self._shape(one), self._shape(other), ranks) for one, other in pairs))
                found[op.phase, 'recompute' in op.attributes, op.operator, members] += 1
        return found

    def again(self):
        done = (op for op, _ in self.slots if 'recompute' in op.attributes and op.kind == 'compute')
        return Counter((op.operator, self._shape(op.writes[0])) for op in done)

    def shapes(self):
        kept = {}
        for tensor in self.program.tensors:
            if tensor.kind in ('parameter', 'state'):
                kind = 'weight' if tensor.kind == 'parameter' else tensor.name.partition(':')[0]
                kept.setdefault(kind, []).append(self._shape(tensor.name)[::-1])
        return kept

    def place(self, message):
        """The slot of (phase, copy, number); behind a copy's last message of the forward, that of its loss."""
        phase, copy, number = message
        wanted = [
            slot
            for slot, (op, of) in enumerate(self.slots)
            if of == copy and op.phase == phase and (op.kind == 'collective' or op.name == 'loss.F')
        ]
        return wanted[number]

    def maker(self, message):
        """The slot that makes what a message sends, or the loss itself."""
        place = self.place(message)
        op, copy = self.slots[place]
        if op.kind == 'compute':
            return place
        return next(
            slot
            for slot in range(place - 1, -1, -1)
            if self.slots[slot][1] == copy and op.reads[0] in self.slots[slot][0].writes
        )

    def reader(self, message):
        """The first slot that reads what came of a message."""
        place = self.place(message)
        op, copy = self.slots[place]
        return next(
            slot
            for slot in range(place + 1, len(self.slots))
            if self.slots[slot][1] == copy and op.writes[0] in self.slots[slot][0].reads
        )

    def broken(self, orders):
        """The orders that the issue order does not keep; both ends are on the compute stream."""
        return [(waits, behind) for waits, behind in orders if self.reader(waits) < self.maker(behind)]
