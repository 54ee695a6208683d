"""Operators of a transformer's residual stream: position embedding, dropout, the sum of a residual and a branch."""

from typing import Final

from simpar.layout import ONE, Rule, TensorLayout
from simpar.model.operators import base, linear, pointwise
from simpar.model.ops import Attributes, Kept, Local, Ops, Parameter, Work, given, placed
from simpar.model.ops import told as told_of
from simpar.model.primitive import Call, Primitive, Shape, ShardCounts, Strategy, Use, dim_names, same


class AlongRows(Primitive):
    """What a rank has of it follows from its first input, dim by dim; what else it reads has the first dim alone."""

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """d0, d1, ..."""
        names = dim_names(output)
        inputs = tuple(names if shape == output else (names[0], *(ONE,) * (len(shape) - 1)) for shape in shapes)
        return Rule(name, inputs, names, shapes, output, names, {})

    def strategy(self, use: Use, shards: ShardCounts) -> Strategy:
        """What has rows alone as the rows, a table full."""
        return tuple(
            same(shards, shape) if shape == use.output else (shards[0],) if len(shape) == 1 else (1,) * len(shape)
            for shape in use.shapes
        )


@base.operator
class Position(base.SameShape, base.Trained):
    """x [batch, sequence, hidden] + weight [rows, hidden]: the rows of this rank's part of the sequence.

    Arguments: ``rows`` of the weight; 0: as many as tokens; ``documents``, lengths of those that a sample packs: each
    begins with the first row.
    """

    key = 'position'
    primitives = {'position': AlongRows('Position')}

    rows: int = 0
    documents: tuple[int, ...] = ()

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split by batch and by sequence; the weight stays full."""
        (x,) = reads
        # Each rank takes its rows of the full weight by offset; features have no offset.
        fixed = {'d2': 'is a dim of the full weight'}
        (weight,) = self.parameters(x)
        return Rule(name, (dim_names(x), (ONE, ONE)), dim_names(x), (x, weight.shape), x, dim_names(x), fixed)

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """A row for each place."""
        return (Parameter('weight', (self.rows or result[1], result[2])),)

    def ops(self, local: Local) -> Ops:
        """One addition an element."""
        elements = local.elements('x')
        # Only where the sequence is split must a rank know which rows of the weight are its own.
        attributes: Attributes = {**placed(local, local.layout('x'), 1), **told_of(self.documents)}
        return Ops(
            F=Work('position', ('x', 'weight'), ('y',), flops=elements, attributes=attributes),
            I={'x': None},
            W=Work('position', ('dy',), flops=elements, attributes=attributes),
            parameters=self.parameters(local.shape('x')),
        )


@base.operator
class Dropout(base.SameShape):
    """x × mask / (1 − probability); keeps the mask, a byte an element.

    Arguments: ``site``, what its mask is drawn for.
    """

    key = 'dropout'
    primitives = {'dropout': AlongRows('Dropout')}
    roles = ('x', 'keys')

    probability: float
    site: str

    def ops(self, local: Local) -> Ops:
        """Two operations an element."""
        flops = 2 * local.elements('x')
        # Named after its site, which it is drawn for, not after this operator.
        mask = Kept(role=f'={self.site}.mask', shape=local.shape('x'), layout=local.layout('x'), dtype='bool')
        return Ops(
            F=Work('dropout', ('x', 'keys'), ('y', mask.role), flops=flops,
                   attributes=dropped(local, self.probability, self.site, local.layout('x'))),
            I={'x': Work('dropout', ('dy', mask.role), flops=flops, attributes={'dropout': self.probability})},
            kept=(mask,),
        )  # fmt: skip


@base.operator
class Residual(base.SameShape, base.Trained):
    """x + z, with the bias of the product that made z; with dropout, x + what is left of z and its bias.

    Arguments: ``bias_of``, the product's name, empty: it has no bias, or has added it; ``dropout``, probability.
    """

    key = 'residual'
    primitives = {'residual': pointwise.ADD}
    roles = ('x', 'z', 'keys')
    full = True

    bias_of: str = ''
    dropout: float = 0.0

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split as x is; a bias must stay full."""
        x, z, *keys = reads
        names = dim_names(x)
        fixed = {names[-1]: 'is the dim of a full bias'} if self.bias_of else {}
        return Rule(name, (names, names, *(names[:1] for _ in keys)), names, (x, z, *keys), x, names, fixed)

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """The product's bias."""
        return (Parameter(f'={self.bias_of}.bias', result[-1:], 'zeros'),) if self.bias_of else ()

    def ops(self, local: Local) -> Ops:
        """One operation an element for each that is added, two for dropout."""
        x, elements, is_dropped = local.shape('x'), local.elements('x'), bool(self.dropout)
        parameters = self.parameters(x)
        reads = ('x', 'z', *(parameter.role for parameter in parameters), *('keys',) * is_dropped)
        attributes = dropped(local, self.dropout, local.name, local.layout('x')) if is_dropped else {}
        back = Work('residual', ('dy', 'mask'), flops=2 * elements, attributes={'dropout': self.dropout})
        mask = Kept(role='mask', shape=x, layout=local.layout('x'), dtype='bool')
        flops = elements * (1 + len(parameters) + 2 * is_dropped)
        return Ops(
            F=Work('residual', reads, ('y', *('mask',) * is_dropped), flops=flops, attributes=attributes),
            I={'x': None, 'z': back if is_dropped else None},
            # The bias sums what comes behind the mask: ``dz``, not ``dy``.
            W=Work('residual', ('dz',), flops=elements) if parameters else None,
            parameters=parameters,
            kept=(mask,) * is_dropped,
        )


@base.operator
class Bias(base.SameShape, base.Trained):
    """y + bias, behind the sum of a product.

    Arguments: ``product``, its name; ``bias_shape``, of the bias.
    """

    key = 'bias'
    primitives = {'bias': linear.BIAS_ADD}

    product: str
    bias_shape: Shape
    given: str = 'zeros'

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """The bias."""
        return (Parameter(f'={self.product}.bias', self.bias_shape, self.given),)

    def ops(self, local: Local) -> Ops:
        """One addition an element."""
        elements = local.elements('x')
        axes = local.layout('x').dims[-1]
        layout = TensorLayout(local.world, (axes, *((),) * (len(self.bias_shape) - 1)))
        (bias,) = self.parameters(local.shape('x'))
        return Ops(
            F=Work('bias', ('x', bias.role), ('y',), flops=elements),
            I={'x': None},
            W=Work('bias', ('dy',), flops=elements),
            parameters=(bias.on(layout),),
        )


KEYS: Final = 'dropout.keys'
"""The input with one integer a sample."""
DRAW: Final = f'tokens:{2**62}'


def dropped(local: Local, probability: float, site: str, layout: TensorLayout) -> Attributes:
    """What a kernel must know to draw.

    Arguments: ``layout`` of the mask: one dim behind the batch may be sharded.
    """
    attributes: Attributes = {'dropout': probability, 'site': site, **given(balanced=local.balanced)}
    for dim, axes in enumerate(layout.dims):
        # Keys are split with the batch, so dim 0 needs no offset; of the others one at most is split.
        if dim and axes:
            return {**attributes, 'cut': dim, 'partition': local.partition(layout, dim)}
    return attributes
