"""RMSNorm of every head of queries and of keys with one gain for all (Qwen 3), or of all heads together (OLMo 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simpar.layout import Rule, TensorLayout
from simpar.model.operators.attention import Heads, Qkv
from simpar.model.operators.base import Step, Trained, Unary, operator
from simpar.model.operators.norm import EPSILON, NORMALISED, SameShape
from simpar.model.ops import Attributes, Kept, Local, Ops, Parameter, Work
from simpar.model.primitive import Shape

GAINS = ('q_gain', 'k_gain')
QK_NORM = Qkv('QkNorm')


@operator
class QkNorm(SameShape, Trained, Unary):
    """Divides every head of queries and keys by its root mean square, with gains; values stay.

    Arguments: ``heads`` of attention; ``epsilon``, added to the mean of squares; ``whole``: the mean is of all queries,
    and of all keys.
    """

    key = 'qk_norm'
    written = False
    primitives = {'qk_norm': QK_NORM}
    inputs_told = 'qkv'

    heads: Heads
    epsilon: float = EPSILON
    whole: bool = False

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split by batch, by sequence and by groups; every rank has the gains in full."""
        rule = self.heads.rows(name, *reads)
        return replace(rule, fixed={**rule.fixed, 'g': NORMALISED}) if self.whole else rule

    def steps(self, reads: tuple[str, ...], result: Shape) -> Iterator[Step]:
        """One primitive; its gains are full."""
        yield Step(primitive=QK_NORM, reads=reads, shape=result)

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """The gains of queries and of keys."""
        of_queries, of_keys = (self.heads.count, self.heads.groups) if self.whole else (1, 1)
        counts = zip(GAINS, (of_queries, of_keys), strict=True)
        return tuple(Parameter(gain, (count * self.heads.head_dim,), 'ones') for gain, count in counts)

    def ops(self, local: Local) -> Ops:
        """As of RMSNorm; the backward reads x and one number of each head that is normalised."""
        heads, x, layout = self.heads, local.shape('x'), local.layout('x')
        told: Attributes = {**heads.held(layout), 'epsilon': self.epsilon, **({'whole': True} if self.whole else {})}
        share = (heads.queries + 1) / (heads.queries + 2)
        elements = share * local.elements('x')
        # Values are neither read nor written: x and y count without them, the backward reads dy too.
        moved = share * local.size('x')
        groups = 1 if self.whole else heads.groups
        if self.whole:
            layout = TensorLayout(local.world, (*layout.dims[:-1], ()))
        rstd = Kept(role='rstd', shape=(*x[:-1], groups * (heads.queries + 1)), layout=layout)
        return Ops(
            F=Work(operator='qk_norm', reads=('x', *GAINS), writes=('y', 'rstd'), flops=5 * elements, moved=2 * moved,
                   attributes=told),
            I={'x': Work(operator='qk_norm', reads=('dy', 'x', *GAINS, 'rstd'), flops=9 * elements, moved=3 * moved,
                         attributes=told)},
            W=Work(operator='qk_norm', reads=('dy', 'x', 'rstd'), flops=3 * elements, moved=2 * moved, attributes=told),
            parameters=self.parameters(x),
            kept=(rstd,),
        )  # fmt: skip
