"""Attention with grouped queries: flash, which keeps no probabilities, or unfused, which keeps them, dropped or not.

All read ``qkv`` [batch, sequence, groups × (queries + 2) × head_dim], split by batch and by groups of heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from simpar.layout import TensorLayout
from simpar.layout.axis import size_of
from simpar.layout.operator import ONE, Operator
from simpar.model.dropout import dropped
from simpar.model.ops import Attributes, Kept, Local, Ops, Work

Shape = tuple[int, ...]
_SEQUENCE = 'needs all of a sequence and must stay whole'


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Heads of attention.

    Arguments: ``groups`` of heads that share a key and a value; ``queries`` of a group; ``head_dim``, features of a
    head; ``causal``: no token sees those behind it.
    """

    groups: int
    queries: int
    head_dim: int
    causal: bool = True

    @property
    def count(self) -> int:
        """Heads of queries."""
        return self.groups * self.queries

    def groups_held(self, layout: TensorLayout) -> int:
        """Groups on one rank, from the layout of ``qkv``."""
        return self.groups // size_of(layout.dims[2])

    def told(self, local: Local) -> Attributes:
        """What a kernel must know."""
        return {
            'groups': self.groups_held(local.layout('qkv')),
            'queries': self.queries,
            'head_dim': self.head_dim,
            'causal': self.causal,
        }

    def axes(self, name: str, *shapes: Shape, result: Shape, inner: int) -> Operator:
        """Batch b, sequence s and groups g: of the result's dims, ``inner`` is the one of heads."""
        inputs = tuple(self._dims(shape) for shape in shapes)
        output = tuple('b' if dim == 0 else 'g' if dim == inner else ONE for dim in range(len(result)))
        return Operator(name, inputs, output, shapes, result, ('b', 's', 'g'), {'s': _SEQUENCE}, {'g': self.groups})

    @staticmethod
    def _dims(shape: Shape) -> tuple[str, ...]:
        return {1: ('b',), 3: ('b', 's', 'g'), 4: ('b', 'g', ONE, ONE)}[len(shape)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Flash attention: the backward does the scores again (5 products to 2), dropped probabilities are drawn again.

    Arguments: ``dropout``, probability of a zero. Causal: half of the scores.
    """

    heads: Heads
    dropout: float = 0.0
    roles: ClassVar[tuple[str, ...]] = ('qkv', 'keys')

    def shape(self, qkv: Shape, *keys: Shape) -> Shape:
        """[batch, sequence, heads × head_dim]."""
        return (*qkv[:2], self.heads.count * self.heads.head_dim)

    def axes(self, name: str, qkv: Shape, *keys: Shape) -> Operator:
        """Split by batch and by groups."""
        return self.heads.axes(name, qkv, *keys, result=self.shape(qkv), inner=2)

    def ops(self, local: Local) -> Ops:
        """2 products forward, 5 backward."""
        heads = self.heads
        batch, sequence, _ = local.shape('qkv')
        layout = local.layout('qkv')
        held = heads.groups_held(layout)
        dims = {
            'batch': batch // size_of(layout.dims[0]) // local.copies,
            'sequence': sequence,
            'heads': held * heads.queries,
            'kv_heads': held,
            'head_dim': heads.head_dim,
        }
        product = dims['batch'] * dims['heads'] * sequence * sequence * heads.head_dim
        rows = TensorLayout(local.world, (layout.dims[0], layout.dims[2], ()))
        kept = Kept(role='lse', shape=(batch, heads.count, sequence), layout=rows, dtype='fp32')
        told = {**heads.told(local)}
        keys: tuple[str, ...] = ()
        if self.dropout:
            told, keys = {**told, **dropped(local, self.dropout, local.name, rows)}, ('keys',)
        return Ops(
            F=Work(operator='attention', reads=('qkv', *keys), writes=('y', 'lse'), flops=2.0 * product, dims=dims,
                   attributes=told),
            I={'qkv': Work(operator='attention', reads=('dy', 'qkv', 'y', 'lse', *keys), flops=5.0 * product,
                           dims=dims, attributes=told)},
            kept=(kept,),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionScores:
    """q · kᵀ for every head, of all pairs of tokens; its backward also takes the gradient of the values.

    Arguments: ``values``, name of the operator that multiplies with the values.
    """

    heads: Heads
    values: str
    roles: ClassVar[tuple[str, ...]] = ('qkv',)

    def shape(self, qkv: Shape) -> Shape:
        """[batch, heads, sequence, sequence]."""
        return (qkv[0], self.heads.count, qkv[1], qkv[1])

    def axes(self, name: str, qkv: Shape) -> Operator:
        """Split by batch and by groups."""
        return self.heads.axes(name, qkv, result=self.shape(qkv), inner=1)

    def ops(self, local: Local) -> Ops:
        """One product forward, two backward."""
        rows, sequence, width, product = _product(local, self.heads, 'y')
        told = self.heads.told(local)
        return Ops(
            F=Work(operator='attention_scores', reads=('qkv',), writes=('y',), flops=product,
                   dims={'m': rows, 'n': sequence, 'k': width}, attributes=told),
            I={'qkv': Work(operator='attention_scores', reads=('dy', 'qkv', f'=d:{self.values}.v'), flops=2 * product,
                           dims={'m': 2 * rows, 'n': width, 'k': sequence}, attributes=told, of=self.values)},
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionValues:
    """Probabilities · v for every head; the gradient of v is handed to the operator of the scores."""

    heads: Heads
    roles: ClassVar[tuple[str, ...]] = ('kept', 'qkv')

    def shape(self, kept: Shape, qkv: Shape) -> Shape:
        """[batch, sequence, heads × head_dim]."""
        return (*qkv[:2], self.heads.count * self.heads.head_dim)

    def axes(self, name: str, kept: Shape, qkv: Shape) -> Operator:
        """Split by batch and by groups."""
        return self.heads.axes(name, kept, qkv, result=self.shape(kept, qkv), inner=2)

    def ops(self, local: Local) -> Ops:
        """One product forward, two backward."""
        heads = self.heads
        rows, sequence, width, product = _product(local, heads, 'kept')
        told = heads.told(local)
        of_v = Kept(
            role=f'=d:{local.name}.v',
            shape=(*local.shape('qkv')[:2], heads.groups * heads.head_dim),
            layout=local.layout('qkv'),
        )
        return Ops(
            F=Work(operator='attention_values', reads=('kept', 'qkv'), writes=('y',), flops=product,
                   dims={'m': rows, 'n': width, 'k': sequence}, attributes=told),
            I={'kept': Work(operator='attention_values', reads=('dy', 'kept', 'qkv'), writes=(of_v.role,),
                            flops=2 * product, dims={'m': 2 * rows, 'n': sequence, 'k': width}, attributes=told)},
            made_backward=(of_v,),
        )  # fmt: skip


def _product(local: Local, heads: Heads, scores: str) -> tuple[int, int, int, float]:
    """Rows of all heads on one rank, tokens, features, and floating-point operations of one product."""
    sequence = local.shape('qkv')[1]
    rows = local.elements(scores) // sequence
    return rows, sequence, heads.head_dim, 2.0 * rows * sequence * heads.head_dim
