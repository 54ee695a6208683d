"""Rows of a table by integers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simpar.layout import Rule, operators
from simpar.model.keys import Strategy, Width
from simpar.model.operators.base import Weighted, operator
from simpar.model.ops import Attributes, Local, Ops, Parameter, Work
from simpar.model.primitive import Call, Primitive, Shape


class Gathered(Primitive):
    """Rows of its first input by its second: a split of the rows leaves zeros to be summed."""

    weighs_work = True

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """v, h, i0, i1, ..."""
        weight, indices = shapes
        return operators.embedding(name, weight, indices)


GATHER = Gathered('Gather', stops=True)


@operator
class Embedding(Weighted):
    """Rows of a weight [vocab, width] by the tokens of a sample; the first layer."""

    key = 'embedding'
    primitives = {'embedding': GATHER}
    inputs_told = 'weight [vocab, width], tokens'
    lead = 1
    roles = ('tokens',)

    vocab: Annotated[Width, Field(description='tokens in the vocabulary')]
    width: Annotated[Width, Field(description='features of a token')]
    strategy: Annotated[
        Strategy,
        Field(max_length=2, description='slices of the weight and of the tokens, e.g. [[4, 1], [1, 1]]; empty: none'),
    ] = ()

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """A row for each token."""
        return (*reads[0], self.width)

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """The weight, which its strategy has before the tokens."""
        return (Parameter('weight', (self.vocab, self.width)),)

    def ops(self, local: Local) -> Ops:
        """Rows of a weight; where it is split by rows, zeros for the tokens of others."""
        (weight,) = self.parameters(local.shape('y'))
        layout = local.inputs[0]
        partition = local.partition(layout, 0)
        # Only a kernel whose rows are split must know which of them it has.
        told: Attributes = {'partition': partition} if partition else {}
        # Rows are read and written once; the backward reads the sum that it adds to besides.
        moved = 2.0 * local.size('y') + local.size('tokens')
        return Ops(
            F=Work(operator='embedding', reads=('tokens', 'weight'), writes=('y',), moved=moved, attributes=told),
            W=Work(operator='embedding', reads=('tokens', 'dy'), moved=1.5 * moved, flops=local.elements('y'),
                   attributes=told),
            parameters=(weight.on(layout),),
        )  # fmt: skip
