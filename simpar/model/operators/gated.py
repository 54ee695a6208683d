"""Gated feed-forwards: what is left of a gate behind its activation, times the other half (Shazeer 2020)."""

from __future__ import annotations

from typing import ClassVar

from simpar.layout import Rule
from simpar.model.operators.base import Operator, Sharded, Unary, operator
from simpar.model.operators.pointwise import Elementwise
from simpar.model.ops import Local, Ops, Work
from simpar.model.primitive import Shape, dim_names

SWIGLU, GEGLU, GEGLU_TANH = map(Elementwise, ('SwiGLU', 'GeGLU', 'GeGLUTanh'))


class Gated(Sharded, Unary):
    """y = activation(gate) · up, of x whose features alternate: a gate, then what it lets through."""

    inputs_told: ClassVar[str] = 'x [..., 2 × width]'
    flops: ClassVar[tuple[int, int]]
    """Operations an element of the result, forward and backward."""

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """Half of the features."""
        return (*reads[0][:-1], reads[0][-1] // 2)

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split along all dims; a gate and what it lets through stay together."""
        (x,) = reads
        names, result = dim_names(x), self.result_shape(0, x)
        return Rule(name, (names,), names, (x,), result, names, {}, {names[-1]: result[-1]})

    def ops(self, local: Local) -> Ops:
        """One op, as fused kernels do it; the backward reads x."""
        forward, backward = (count * local.elements('y') for count in self.flops)
        return Ops(
            F=Work(operator=self.key, reads=('x',), writes=('y',), flops=forward),
            I={'x': Work(operator=self.key, reads=('dy', 'x'), flops=backward)},
        )


@operator
class SwiGlu(Gated):
    """y = silu(gate) · up (Shazeer 2020)."""

    key = 'swiglu'
    written = False
    primitives = {'swiglu': SWIGLU}
    flops = (6, 12)


@operator
class GeGlu(Gated):
    """y = gelu(gate) · up, with the exact gelu."""

    key = 'geglu'
    written = False
    primitives = {'geglu': GEGLU}
    flops = (11, 14)


@operator
class GeGluTanh(Gated):
    """y = gelu_tanh(gate) · up, as Gemma has it."""

    key = 'geglu_tanh'
    written = False
    primitives = {'geglu_tanh': GEGLU_TANH}
    flops = (11, 14)


GATED: tuple[type[Operator], ...] = (SwiGlu, GeGlu, GeGluTanh)
