"""Convolutions of images."""

from __future__ import annotations

from math import prod
from typing import Annotated

from pydantic import Field

from simpar.layout import Rule, operators
from simpar.model.keys import Strategy, Width
from simpar.model.operators.base import MisfitError, operator, shown
from simpar.model.operators.linear import BIAS_ADD, Biased
from simpar.model.ops import Attributes, Local, Ops, Work, slice_text
from simpar.model.primitive import BOTH, Call, Primitive, Shape


class Convolution(Primitive):
    """Split by batch alone."""

    weighs_work = True
    main = BOTH
    halved = 'batch'

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """n, c, h, w; o, c, kh, kw."""
        x, weight = shapes
        return operators.conv2d(name, x, weight, output)


CONV_2D = Convolution('Conv2D', 'matrix')


@operator
class Conv2d(Biased):
    """A convolution of images [batch, channels, height, width] with a square kernel, and a bias."""

    key = 'conv2d'
    primitives = {'conv2d': CONV_2D, 'bias': BIAS_ADD}
    inputs_told = 'x [batch, channels, height, width], weight [out, in, kernel, kernel]'
    unsharded = 'all but the batch'

    inputs: Annotated[Width, Field(alias='in', description='channels of an image')]
    outputs: Annotated[Width, Field(alias='out', description='channels of its result')]
    kernel: Annotated[int, Field(ge=1, le=2**10, description='height and width of the kernel')]
    stride: Annotated[int, Field(ge=1, le=2**10, description='from one place of the kernel to the next')] = 1
    padding: Annotated[int, Field(ge=0, le=2**10, description='zeros on every side of an image')] = 0
    bias: Annotated[bool, Field(description='adds a bias to every channel')] = True
    strategy: Annotated[
        Strategy,
        Field(
            max_length=2,
            description='slices of x and weight, of which the batch alone is split: [[8, 1, 1, 1], [1, 1, 1, 1]]',
        ),
    ] = ()

    def weight(self) -> Shape:
        """One kernel for each pair of channels."""
        return (self.outputs, self.inputs, self.kernel, self.kernel)

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """Images of other channels, height and width."""
        (x,) = reads
        if len(x) != 4:
            what = f'reads values of {shown(x)} a sample, but a convolution takes images [channels, height, width]'
            raise MisfitError('', what, f'put - reshape: {{shape: [-1, {self.inputs}, height, width]}} before it')
        if self.inputs != x[1]:
            raise MisfitError('in', f'{self.inputs} channels, but what it reads has {x[1]}', f'write {x[1]}')
        most = min(x[2:]) + 2 * self.padding
        if self.kernel > most:
            what = f'{self.kernel} is larger than an image of {x[2]} × {x[3]} with a padding of {self.padding}'
            raise MisfitError('kernel', what, f'write at most {most}')
        # Windows that would reach over the padded edge are left out, as in torch.
        height, width = (1 + (length + 2 * self.padding - self.kernel) // self.stride for length in x[2:])
        return (x[0], self.outputs, height, width)

    def ops(self, local: Local) -> Ops:
        """A product of windows with the full weight, whose dims it has."""
        weight, *biases = self.parameters(local.shape('y'))
        # The weight is full: channels are not split.
        parameters = (weight.on(local.inputs[1]), *biases)
        told: Attributes = {'stride': self.stride, 'padding': self.padding}
        n, k = self.outputs, prod(self.weight()[1:])
        m = local.elements('y') // n
        flops = 2.0 * m * n * k
        return Ops(
            F=Work(operator='conv2d', reads=('x', *(p.role for p in parameters)), writes=('y',), flops=flops,
                   dims={'m': m, 'n': n, 'k': k}, attributes=told),
            I={'x': Work(operator='conv2d', reads=('dy', 'weight'), flops=flops, dims={'m': m, 'n': k, 'k': n},
                         attributes={**told, 'shape': slice_text(local, 'x')})},
            W=Work(operator='conv2d', reads=('dy', 'x'), flops=flops, dims={'m': n, 'n': k, 'k': m},
                   attributes={**told, 'kernel': self.kernel}),
            parameters=parameters,
        )  # fmt: skip
