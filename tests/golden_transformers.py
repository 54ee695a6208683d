"""Training steps of transformer blocks that MindSpore's compiler recorded, and the programs that we make of them."""

from collections import Counter
from dataclasses import replace
from math import prod

from golden_shapes import cases
from golden_steps import Recorded, first, tuples

from simpar.lower import lower
from simpar.model import Dense, Mul, Reshape
from simpar.model.library.blocks import block_network
from simpar.workload import Workload

GROUP = 'rec_transformer'
BEHIND = {'_VirtualDataset', 'Reshape', 'Sub', 'Square', 'ReduceMean'}
"""Operators of data and loss, and reshapes, whose strategies follow from their neighbours (2.10 records none)."""


CASES = {
    name: case for name, case in cases(GROUP).items() if case['case']['net'] == 'Transformer' and case.get('final_comm')
}


class RecordedBlocks(Recorded):
    """What a case says, and what we make of it; ``sizes`` in place of the network's own."""

    def __init__(self, golden, **sizes):
        self.golden, self.case, self.group = golden, golden['case'], golden['group']
        self.world, self.rank = self.case['device_num'], self.case.get('rank') or 0
        self.context, self.wrap, self.is_mnist = self.case['ctx'], {}, False
        self.args = {**self.case['net_args'], **sizes}
        self.program = lower(self.workload(), self.plan(), self.world)

    def network(self):
        args = self.args
        built = block_network(args['seq'], args['hidden'], args['heads'], args['ffn'], args.get('layers', 1))
        entries = [entry for entry in self.golden['strategies'] if entry['op'] not in BEHIND]
        cut = iter(entries)
        layers = [one if isinstance(one, Reshape) else self.strategic(one, next(cut)) for one in built.layers]
        assert next(cut, None) is None
        return replace(built, layers=tuple(layers))

    @staticmethod
    def strategic(layer, entry):
        """A layer with a recorded strategy; the constant of a product has none of ours."""
        strategy = tuples(entry['in_strategy'])
        layer = replace(layer, strategy=strategy[:1] if isinstance(layer, Mul) else strategy)
        scattered = first(tuples(entry.get('out_strategy') or []))
        return replace(layer, out_strategy=scattered) if isinstance(layer, Dense) and scattered else layer

    def workload(self):
        rows = self.args['batch'] * self.args['seq']
        subtraction = next(entry for entry in self.golden['strategies'] if entry['op'] == 'Sub')
        return Workload(model=self.network(), batch=rows, loss='mse', loss_strategy=tuples(subtraction['in_strategy']))

    # collectives, with their phases

    def theirs(self):
        return Counter(
            (phase_of(op), *what, prod(shape)) for op in self.compared for *what, shape in [self.message(op)]
        )

    def ours(self):
        return Counter((phase, *what, prod(shape)) for phase, *what, shape in self.phased())

    def messages(self):
        return (message for _, *message in self.phased())

    def phased(self):
        """Ours as phase, kind, ranks and shape."""
        role, program = self.program.role(self.rank), self.program
        for op in (program.op(role, slot) for slot in range(len(role))):
            if op.kind == 'collective':
                yield from ((op.phase, *message) for message in self.members(op))

    def recorded_parameters(self):
        weights = [text for name, text in self.golden['parameters_after'] if name.startswith('blocks.')]
        return sorted(tuple(map(int, text.split(', '))) for text in weights)

    def parameters(self):
        """Weights as the compiler has them, [in, out]."""
        return sorted(super().parameters())


def phase_of(op):
    """Forward, gradient of values or sum of gradients of parameters, by the compiler's name for it."""
    if op['instance'].startswith('grad_mirror'):
        return 'W'
    return 'I' if op['instance'].startswith('grad') else 'F'
