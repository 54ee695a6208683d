"""Operators of a transformer's residual stream: position embedding, dropout, the sum of a residual and a branch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from simpar.layout import TensorLayout
from simpar.layout.operator import ONE, Operator
from simpar.model.dropout import dropped
from simpar.model.ops import Kept, Local, Ops, Parameter, Work
from simpar.model.products import product_axes, product_ops
from simpar.program.op import Attribute

Shape = tuple[int, ...]


def _names(shape: Shape) -> tuple[str, ...]:
    return tuple(f'd{dim}' for dim in range(len(shape)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """x [batch, sequence, hidden] + weight [sequence, hidden]: the rows of this rank's part of the sequence."""

    roles: ClassVar[tuple[str, ...]] = ('x',)

    def shape(self, x: Shape) -> Shape:
        """That of x."""
        return x

    def axes(self, name: str, x: Shape) -> Operator:
        """Split by batch and by sequence; the weight stays full."""
        fixed = {'d2': 'is a dim of the full weight'}
        return Operator(name, (_names(x), (ONE, ONE)), _names(x), (x, x[1:]), x, _names(x), fixed)

    def ops(self, local: Local) -> Ops:
        """One addition an element."""
        elements, full = local.elements('x'), TensorLayout(local.world, ((), ()))
        partition = local.partition(local.layout('x'), 1)
        told: dict[str, Attribute] = {'partition': partition} if partition else {}
        initial = f'normal:{local.deviation}'
        weight = Parameter(role='weight', shape=local.shape('x')[1:], layout=full, initial=initial)
        return Ops(
            F=Work(operator='position', reads=('x', 'weight'), writes=('y',), flops=elements, attributes=told),
            I={'x': None},
            W=Work(operator='position', reads=('dy',), flops=elements, attributes=told),
            parameters=(weight,),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropout:
    """x × mask / (1 − probability); keeps the mask, a byte an element.

    Arguments: ``site``, what its mask is drawn for.
    """

    probability: float
    site: str
    roles: ClassVar[tuple[str, ...]] = ('x', 'keys')

    def shape(self, x: Shape, keys: Shape) -> Shape:
        """That of x."""
        return x

    def axes(self, name: str, x: Shape, keys: Shape) -> Operator:
        """Split as x is, along the batch and one dim more."""
        return Operator(name, (_names(x), ('d0',)), _names(x), (x, keys), x, _names(x), {})

    def ops(self, local: Local) -> Ops:
        """Two operations an element."""
        flops = 2 * local.elements('x')
        mask = Kept(role=f'={self.site}.mask', shape=local.shape('x'), layout=local.layout('x'), dtype='bool')
        return Ops(
            F=Work(operator='dropout', reads=('x', 'keys'), writes=("y", mask.role), flops=flops,
                   attributes=dropped(local, self.probability, self.site, local.layout('x'))),
            I={'x': Work(operator='dropout', reads=('dy', mask.role), flops=flops,
                         attributes={'dropout': self.probability})},
            kept=(mask,),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """x + z, with the bias of the product that made z; with dropout, x + what is left of z and its bias.

    Arguments: ``bias_of``, the product's name, empty: it has no bias, or has added it; ``dropout``, probability.
    """

    bias_of: str = ''
    dropout: float = 0.0
    roles: ClassVar[tuple[str, ...]] = ('x', 'z', 'keys')

    def shape(self, x: Shape, z: Shape, *keys: Shape) -> Shape:
        """That of x."""
        return x

    def axes(self, name: str, x: Shape, z: Shape, *keys: Shape) -> Operator:
        """Split as x is; a bias must stay full."""
        fixed = {f'd{len(x) - 1}': 'is the dim of a full bias'} if self.bias_of else {}
        return Operator(name, (_names(x), _names(x), *(('d0',) for _ in keys)), _names(x), (x, z, *keys), x, _names(x),
                        fixed)  # fmt: skip

    def ops(self, local: Local) -> Ops:
        """One operation an element for each that is added, two for dropout."""
        x, elements = local.shape('x'), local.elements('x')
        bias, parameters = f'={self.bias_of}.bias', ()
        if self.bias_of:
            parameters = (Parameter(role=bias, shape=x[-1:], layout=TensorLayout(local.world, ((),)), initial='zeros'),)
        roles = tuple(parameter.role for parameter in parameters)
        flops = elements * (1 + len(parameters) + 2 * bool(self.dropout))
        w = Work(operator='residual', reads=('dz',), flops=elements) if parameters else None
        if not self.dropout:
            forward = Work(operator='residual', reads=('x', 'z', *roles), writes=('y',), flops=flops)
            return Ops(F=forward, I={'x': None, 'z': None}, W=w, parameters=parameters)
        mask = Kept(role='mask', shape=x, layout=local.layout('x'), dtype='bool')
        return Ops(
            F=Work(operator='residual', reads=('x', 'z', *roles, 'keys'), writes=('y', 'mask'), flops=flops,
                   attributes=dropped(local, self.dropout, local.name, local.layout('x'))),
            I={'x': None, 'z': Work(operator='residual', reads=('dy', 'mask'), flops=2 * elements,
                                    attributes={'dropout': self.dropout})},
            W=w,
            parameters=parameters,
            kept=(mask,),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """y + bias, behind the sum of a product.

    Arguments: ``of``, the product's name; ``shape_of``, of the bias.
    """

    of: str
    bias_shape: Shape
    roles: ClassVar[tuple[str, ...]] = ('x',)

    def ops(self, local: Local) -> Ops:
        """One addition an element."""
        elements = local.elements('x')
        axes = local.layout('x').dims[-1]
        layout = TensorLayout(local.world, (axes, *((),) * (len(self.bias_shape) - 1)))
        bias = Parameter(role=f'={self.of}.bias', shape=self.bias_shape, layout=layout, initial='zeros')
        return Ops(
            F=Work(operator='bias', reads=('x', bias.role), writes=('y',), flops=elements),
            I={'x': None},
            W=Work(operator='bias', reads=('dy',), flops=elements),
            parameters=(bias,),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalSoftmax:
    """Softmax over the last dim of the scores of attention, zero for tokens of the future."""

    roles: ClassVar[tuple[str, ...]] = ('x',)

    def shape(self, x: Shape) -> Shape:
        """That of x."""
        return x

    def axes(self, name: str, x: Shape) -> Operator:
        """Split along batch and heads."""
        names, whole = _names(x), 'needs all of a sequence and must stay whole'
        return Operator(name, (names,), names, (x,), x, names, {names[-1]: whole, names[-2]: whole})

    def ops(self, local: Local) -> Ops:
        """About five operations an element forward, four backward."""
        elements = local.elements('x')
        return Ops(
            F=Work(operator='softmax', reads=('x',), writes=('y',), flops=5 * elements, attributes={'causal': True}),
            I={'x': Work(operator='softmax', reads=('dy', 'y'), flops=4 * elements)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Rows · weight, whose outputs and inputs may have several dims.

    Arguments:
        bias: added behind the product; a product that sums over ranks leaves it to the next operator.
        weight: name of a weight that another operator has, too (tied).
        split: by degrees, ``outputs``, its inputs where these are split already, or ``inputs`` alone.
        gathers: where it is not split, it takes all rows, as what reads it needs them.
        what: the note of what stays full where a degree does not divide; empty: none.
    """

    outputs: Shape
    inputs: Shape
    bias: bool = True
    weight: str = ''
    split: str = 'outputs'
    gathers: bool = False
    what: str = ''
    roles: ClassVar[tuple[str, ...]] = ('x',)

    def shape(self, x: Shape) -> Shape:
        """Rows of all outputs."""
        return self.axes('', x).output_shape

    def axes(self, name: str, x: Shape) -> Operator:
        """Rows, inputs k and outputs n."""
        return product_axes(name, x, self.outputs, self.inputs)

    def ops(self, local: Local) -> Ops:
        """Three products."""
        weight = f'={self.weight}' if self.weight else 'weight'
        return product_ops(local, self.outputs, self.inputs, bias=self.bias, weight=weight)
