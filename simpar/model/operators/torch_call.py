"""Operators of a torch module: a call of aten with its axis rule, and the products and tables that degrees split."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from simpar.layout import Rule, TensorLayout
from simpar.model.operators import base, linear
from simpar.model.ops import Attributes, Local, Ops, Parameter, Work, slice_text
from simpar.model.primitive import Primitive, Shape

GIVEN = 'given:'
"""What begins the draw of a tensor whose values the module has."""
MOST_READS = 256


_BY_PRICE = {'streaming': 'aten', 'view': 'aten_view', 'product': 'aten_product', 'convolution': 'aten_product',
             'attention': 'aten_attention'}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor of the module that a call reads: a weight, or a constant, which nothing trains.

    Arguments: ``name`` in programs; ``given``, what it begins as; ``dims``, their names.
    """

    name: str
    given: str
    shape: Shape
    dims: tuple[str, ...]
    dtype: str = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class AtenSpec:
    """One call, with those before it that read no sample.

    Arguments:
        calls: as a kernel reads them, JSON.
        reads: names of the dims of what it reads.
        dims: of its result.
        fixed: names that stay unsharded.
        shape: of its result; dim 0 counts ``samples``.
        rows: dim 0 of what it reads first, of as many samples.
        saves: what the backward of an input reads: nothing, the others, or all of the inputs.
        price: what bounds it. flops: of an element of the result; of a product, of an element and a term.
        dtype: of its result; empty: that of the step.
        same: reads whose gradient is that of the result.
        summed: length of what a product sums over.
    """

    calls: str
    reads: tuple[tuple[str, ...], ...]
    dims: tuple[str, ...]
    fixed: tuple[str, ...]
    shape: Shape
    samples: int
    rows: int
    saves: str = 'all'
    price: str = 'streaming'
    flops: int = 1
    dtype: str = ''
    same: tuple[int, ...] = ()
    summed: int = 0
    weights: tuple[Held, ...] = ()
    constants: tuple[Held, ...] = ()


class OfModule(base.Operator):
    """An operator of a torch module: its weights have the module's names."""


@base.operator
class TorchCall(OfModule, base.Sharded):
    """A call of aten as torch.export gives it; torch runs it forward, and its derivative backward."""

    key = 'torch_call'
    primitives = {
        'aten': Primitive('Aten'),
        'aten_view': Primitive('AtenView', 'view'),
        'aten_product': Primitive('AtenProduct', 'matrix'),
        'aten_attention': Primitive('AtenAttention', 'attention'),
    }
    roles = tuple(f'x{place}' for place in range(MOST_READS))

    spec: AtenSpec

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """As exported, of so many samples."""
        return (self.spec.shape[0] * samples // self.spec.samples, *self.spec.shape[1:])

    def axes(self, name: str, *reads: Shape) -> Rule:
        """As its row of the table says."""
        spec = self.spec
        held = (*spec.weights, *spec.constants)
        inputs = (*spec.reads, *(one.dims for one in held))
        shapes = (*reads, *(one.shape for one in held))
        order = tuple(dict.fromkeys(name for dims in (*inputs, spec.dims) for name in dims if name))
        # Of any count of samples: rows grow alike in all that a call reads.
        result = (spec.shape[0] * reads[0][0] // spec.rows, *spec.shape[1:])
        fixed = dict.fromkeys(spec.fixed, 'is worked on as a whole')
        return Rule(name, inputs, spec.dims, shapes, result, order, fixed)

    def steps(self, reads: tuple[str, ...], result: Shape) -> Iterator[base.Step]:
        """One call."""
        yield base.Step(primitive=self.primitives[_BY_PRICE[self.spec.price]], reads=reads, shape=result)

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """The module's weights."""
        return tuple(Parameter(f'={one.name}', one.shape, one.given) for one in self.spec.weights)

    def ops(self, local: Local) -> Ops:
        """The call; the derivative by each input, and by all weights together."""
        spec, count = self.spec, len(self.spec.reads)
        layouts = local.inputs[count:]
        weights = tuple(one.on(at) for one, at in zip(self.parameters(()), layouts, strict=False))
        constants = tuple(
            Parameter(f'c{place}', one.shape, one.given, trained=False, layout=at, dtype=one.dtype, name=one.name)
            for place, (one, at) in enumerate(zip(spec.constants, layouts[len(weights) :], strict=True))
        )
        reads = self.roles[:count]
        held = (*(one.role for one in weights), *(one.role for one in constants))
        attributes: dict[str, str | int] = {
            'calls': spec.calls,
            'shape': slice_text(local, 'y'),
            'reads': count,
            'weights': len(weights),
            'shapes': '|'.join(' '.join(map(str, local.slice_shape(role))) for role in reads),
            'result': ' '.join(map(str, local.slice_shape('y'))),
        }
        name, flops = _BY_PRICE[spec.price], self._flops(local)
        dims = self._dims(local)
        view = spec.price == 'view'
        back = {
            role: None
            if place in spec.same
            else Work(name, ('dy', *(reads[other] for other in self._places(place)), *held), flops=flops, dims=dims,
                      moved=0.0 if view else None,
                      suffix=f'.{place}' if count > 1 else '',
                      attributes={**attributes, 'of': place, 'saved': ' '.join(map(str, self._places(place)))})
            for place, role in enumerate(reads)
        }  # fmt: skip
        return Ops(
            F=Work(name, (*reads, *held), ('y',), flops=flops, dims=dims, attributes=attributes,
                   moved=0.0 if view else None),
            I=back,
            W=Work(name, ('dy', *reads, *held), flops=flops, dims=dims,
                   attributes={**attributes, 'of': -1, 'saved': ' '.join(map(str, range(count)))}) if weights else None,
            parameters=weights,
            constants=constants,
            dtype=spec.dtype,
        )  # fmt: skip

    def _places(self, place: int) -> tuple[int, ...]:
        """Of what it reads, the places that the derivative by one input needs."""
        saves, every = self.spec.saves, range(len(self.spec.reads))
        return tuple(other for other in every if saves != 'nothing' and (saves == 'all' or other != place))

    def _flops(self, local: Local) -> float:
        spec, elements = self.spec, local.elements('y')
        of_a_term = {'product': 2.0, 'convolution': 2.0, 'attention': 4.0}.get(spec.price)
        return of_a_term * elements * spec.summed if of_a_term else float(spec.flops * elements)

    def _dims(self, local: Local) -> dict[str, int]:
        """What price tables are keyed by."""
        spec, shape = self.spec, local.slice_shape('y')
        if spec.price in ('product', 'convolution'):
            n = shape[1] if spec.price == 'convolution' else shape[-1]
            return {'m': max(1, local.elements('y') // n), 'n': n, 'k': spec.summed}
        if spec.price == 'attention':
            heads = shape[1] if len(shape) > 3 else 1
            return {'batch': max(1, local.elements('y') // prod(shape[1:])), 'sequence': shape[-2], 'heads': heads,
                    'kv_heads': heads, 'head_dim': shape[-1]}  # fmt: skip
        return {}


@base.operator
class ModuleLinear(OfModule, linear.Product):
    """A product of a module's weight, [outputs, inputs] or, ``transposed``, [inputs, outputs]."""

    key = 'module_linear'

    transposed: bool = False
    bias_name: str = ''

    @property
    def has_own(self) -> bool:
        """Weights have names of their own."""
        return True

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """Weight and bias, by the module's names."""
        weight, *biases = super().parameters(result)
        made = replace(weight, initial=f'{GIVEN}{self.weight}')
        if self.transposed:
            made = replace(made, shape=made.shape[::-1])
        return (made, *(replace(one, role=f'={self.bias_name}', initial=f'{GIVEN}{self.bias_name}') for one in biases))

    def ops(self, local: Local) -> Ops:
        """Three products."""
        weight, *biases = self.parameters(local.shape('y'))
        straight = replace(weight, shape=(*self.outputs, *self.inputs))
        product = linear.product_ops(local, (straight, *biases), len(self.outputs))
        if not self.transposed:
            return product
        attributes: Attributes = {'transposed': True}
        (laid, *others) = product.parameters
        layout = laid.layout or TensorLayout(local.world, ((), ()))
        turned = weight.on(TensorLayout(local.world, layout.dims[::-1]))
        works = {name: replace(work, attributes={**work.attributes, **attributes}) for name, work in
                 (('F', product.F), ('I', product.I['x']), ('W', product.W)) if work}  # fmt: skip
        return replace(product, F=works['F'], I={'x': works['I']}, W=works['W'], parameters=(turned, *others))


@base.operator
class ModuleEmbedding(OfModule, linear.TiedEmbedding):
    """Rows of a module's table; the row ``padding`` is not trained."""

    key = 'module_embedding'

    padding: int = -1

    @property
    def has_own(self) -> bool:
        """Weights have names of their own."""
        return True

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """The table, by the module's name."""
        return (Parameter(f'={self.weight}', (self.vocab, self.width), f'{GIVEN}{self.weight}'),)

    def ops(self, local: Local) -> Ops:
        """As of any embedding."""
        plain_ops = super().ops(local)
        if self.padding < 0 or plain_ops.W is None:
            return plain_ops
        more: Attributes = {'padding': self.padding}
        forward, backward = (
            replace(work, attributes={**work.attributes, **more}) for work in (plain_ops.F, plain_ops.W)
        )
        return replace(plain_ops, F=forward, W=backward)
