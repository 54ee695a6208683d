"""Experts of a mixture: tokens go to their slots, through grouped products, and back."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from simpar.layout import ONE, Rule, TensorLayout, size_of
from simpar.model.keys import Aliases, SplitCounts
from simpar.model.operators.base import Operator, Step, Unary, Weighted, operator
from simpar.model.operators.norm import SameShape
from simpar.model.operators.stream import AlongRows
from simpar.model.ops import Attributes, Load, Local, Ops, Parameter, Work
from simpar.model.primitive import Call, Primitive, Shape


class GroupedMatMul(Primitive):
    """x [batch, experts, slots, inputs] · weight [experts, inputs, outputs], expert by expert."""

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """b, e, c, k, n."""
        x, weight = shapes
        return grouped_axes(name, x, weight[2])


DISPATCH, COMBINE, GATE = map(AlongRows, ('Dispatch', 'Combine', 'SigmoidGate'))
GROUPED_MATMUL = GroupedMatMul('GroupedMatMul', 'matrix')


def grouped_axes(name: str, x: Shape, outputs: int, units: tuple[int, int] = (0, 0)) -> Rule:
    """Names of dims of a grouped product; ``units``, into how many slices n and k fall at most."""
    result = (*x[:-1], outputs)
    found = {name: unit for name, unit in zip('nk', units, strict=True) if unit}
    order = ('b', 'e', 'c', 'k', 'n')
    return Rule(name, (('b', 'e', 'c', 'k'), ('e', 'k', 'n')), ('b', 'e', 'c', 'n'), (x, (x[1], x[-1], outputs)),
                result, order, {}, found)  # fmt: skip


class _Slots:
    """What knows the slots of experts.

    Arguments: ``map_of``, name of the router's map.
    """

    if TYPE_CHECKING:
        map_of: str

    def told(self, local: Local, slots: str) -> Attributes:
        """Slots of an expert on one rank, for each sample; ``slots``, role of the value that has them."""
        return {'slots': local.slice_shape(slots)[2]}


@operator
class Dispatch(_Slots, Operator):
    """x [batch, sequence, hidden] → [batch, experts, slots, hidden]: each token in a slot of each expert it goes to.

    Arguments:
        experts: how many.
        slots: of an expert, for a sample; as many as tokens: each has its own, and none is dropped. Of more tokens than
            slots the first are taken.
        filled: how full they are.
    """

    key = 'dispatch'
    written = False
    primitives = {'dispatch': DISPATCH}
    inputs_told = 'x, weights [batch, sequence, experts]'
    roles = ('x', 'weights')

    experts: int
    slots: int
    filled: Load
    map_of: str

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """Slots of all experts."""
        batch, _, hidden = reads[0]
        return (batch, self.experts, self.slots, hidden)

    def load(self, *reads: Load | None) -> Load | None:
        """As the router sends."""
        return self.filled

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Where the sequence is split, so are slots: each rank fills its own."""
        x, weights = reads
        inputs = (('b', 's', 'h'), ('b', 's', ONE))
        return Rule(name, inputs, ('b', 'e', 's', 'h'), (x, weights), self.result_shape(0, x), ('b', 'e', 's', 'h'), {})

    def ops(self, local: Local) -> Ops:
        """Copies of rows; the gradient adds them up."""
        told, source = self.told(local, 'y'), f'={self.map_of}'
        moved = local.size('x') + local.size('y')
        elements = local.elements('y')
        return Ops(
            F=Work(operator='dispatch', reads=('x', source), writes=('y',), moved=moved, attributes=told),
            I={'x': Work(operator='dispatch', reads=('dy', source), flops=elements, moved=moved, attributes=told)},
        )


@operator
class Combine(_Slots, Operator):
    """The results of a token's experts [batch, experts, slots, hidden], weighted and added: [batch, sequence, hidden].

    Arguments as of ``dispatch``.
    """

    key = 'combine'
    written = False
    primitives = {'combine': COMBINE}
    inputs_told = 'weights, results of experts'
    roles = ('weights', 'z')

    map_of: str

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """A row for each token."""
        weights, z = reads
        return (*weights[:2], z[-1])

    def load(self, *reads: Load | None) -> Load | None:
        """Rows of tokens are full."""
        return None

    def axes(self, name: str, *reads: Shape) -> Rule:
        """As the weights lie."""
        weights, z = reads
        inputs = (('b', 's', ONE), ('b', ONE, 's', 'h'))
        return Rule(name, inputs, ('b', 's', 'h'), (weights, z), self.result_shape(0, weights, z), ('b', 's', 'h'), {})

    def ops(self, local: Local) -> Ops:
        """A product and a sum of each row that comes back; the backward reads these rows."""
        told, source = self.told(local, 'z'), f'={self.map_of}'
        moved, elements = local.size('z') + local.size('y'), local.elements('z')
        return Ops(
            F=Work(operator='combine', reads=('weights', 'z', source), writes=('y',), flops=2 * elements, moved=moved,
                   attributes=told),
            I={
                'weights': Work(operator='combine', reads=('dy', 'z', source), flops=2 * elements, moved=moved,
                                attributes={**told, 'of': 'weights'}, suffix='.weights'),
                'z': Work(operator='combine', reads=('dy', 'weights', source), flops=elements, moved=moved,
                          attributes={**told, 'of': 'z'}, suffix='.rows'),
            },
        )  # fmt: skip


@operator
class GroupedProduct(Weighted, Unary):
    """Slots [batch, experts, slots, inputs] · an own weight of each expert [experts, outputs..., inputs].

    Arguments: ``split``: by degrees, ``outputs``, or ``inputs`` alone.
    """

    key = 'grouped_product'
    written = False
    primitives = {'grouped_matmul': GROUPED_MATMUL}
    inputs_told = 'x [batch, experts, slots, in], weight [experts, in, out]'

    experts: int
    outputs: Shape
    inputs: int
    split: str = 'outputs'
    out_strategy: SplitCounts = ()
    out_layout: Aliases = ()

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """Slots of all outputs."""
        return (*reads[0][:-1], prod(self.outputs))

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Samples, experts, slots, inputs k and outputs n."""
        return grouped_axes(name, reads[0], prod(self.outputs), (self.outputs[0], self.inputs))

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """A matrix for each expert."""
        del result
        return (Parameter('weight', (self.experts, *self.outputs, self.inputs)),)

    def steps(self, reads: tuple[str, ...], result: Shape) -> Iterator[Step]:
        """The product."""
        weight = Parameter('weight', (self.experts, self.inputs, prod(self.outputs)))
        yield Step(primitive=GROUPED_MATMUL, reads=(*reads, weight), shape=result)

    def ops(self, local: Local) -> Ops:
        """2·m·n·k operations in each phase; m counts the tokens of the fullest rank, operations those of the mean."""
        of_experts, in_axes, out_axes = local.inputs[1].dims
        dims = (of_experts, out_axes, *((),) * (len(self.outputs) - 1), in_axes)
        (weight,) = self.parameters(())
        placed = weight.on(TensorLayout(local.world, dims))
        groups = self.experts // size_of(of_experts)
        n, k = prod(self.outputs) // size_of(out_axes), self.inputs // size_of(in_axes)
        m = local.elements('x') // k
        # The rank that has most decides how long it takes; all ranks together do no more than all tokens need.
        flops = 2.0 * m * n * k / local.fullest('x')
        return Ops(
            F=Work(operator='grouped_matmul', reads=('x', 'weight'), writes=('y',), flops=flops,
                   dims={'m': m, 'n': n, 'k': k, 'groups': groups}),
            I={'x': Work(operator='grouped_matmul', reads=('dy', 'weight'), flops=flops,
                         dims={'m': m, 'n': k, 'k': n, 'groups': groups})},
            W=Work(operator='grouped_matmul', reads=('dy', 'x'), flops=flops,
                   dims={'m': n, 'n': k, 'k': m, 'groups': groups}),
            parameters=(placed,),
        )  # fmt: skip


@operator
class SigmoidGate(SameShape, Operator):
    """x [batch, sequence, hidden] · sigmoid of a number of each token: the gate of shared experts (Qwen 2 MoE)."""

    key = 'sigmoid_gate'
    written = False
    primitives = {'sigmoid_gate': GATE}
    inputs_told = 'x, gate [batch, sequence, 1]'
    roles = ('x', 'gate')

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split by batch and by sequence."""
        x, gate = reads
        names = ('b', 's', 'h')
        fixed = {'h': 'is multiplied by one number'}
        return Rule(name, (names, ('b', 's', ONE)), names, (x, gate), x, names, fixed)

    def ops(self, local: Local) -> Ops:
        """A product an element; the gradient of the gate is a sum over features."""
        elements = local.elements('x')
        return Ops(
            F=Work(operator='sigmoid_gate', reads=('x', 'gate'), writes=('y',), flops=elements),
            I={
                'x': Work(operator='sigmoid_gate', reads=('dy', 'gate'), flops=elements, attributes={'of': 'x'},
                          suffix='.rows'),
                'gate': Work(operator='sigmoid_gate', reads=('dy', 'x', 'gate'), flops=2 * elements,
                             attributes={'of': 'gate'}, suffix='.gate'),
            },
        )  # fmt: skip
