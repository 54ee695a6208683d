"""Rotary position embedding of queries and keys (Su et al. 2021), each feature with that half a rotation away.

Feature i of r is turned with feature i + r / 2, by position × theta^(−2i / r): the order of GPT-NeoX and Llama.
"""

from __future__ import annotations

from dataclasses import dataclass

from simpar.layout import Rule
from simpar.model.documents import told as told_of
from simpar.model.operators.attention import Heads, Qkv
from simpar.model.operators.base import Sharded, Unary, operator
from simpar.model.operators.norm import SameShape
from simpar.model.ops import Attributes, Local, Ops, Work, placed
from simpar.model.primitive import Shape

ROTARY = Qkv('RotaryPositionEmbedding')


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Which features are turned, and how fast.

    Arguments:
        features: of a head, an even count; those behind them stay.
        theta: base of the frequencies.
        scaling: empty: none; (factor,): positions are divided by it (Chen et al. 2023); (factor, low, high, original):
            frequencies whose waves are longer than original / low positions are divided by the factor, those shorter
            than original / high stay, and those between are mixed (Llama 3.1); (factor, original, fast, slow,
            magnitude): those that turn less than ``slow`` times in the original positions are divided by the factor,
            those that turn more than ``fast`` times stay, a ramp over features lies between, and what is turned is
            multiplied by the magnitude (YaRN, Peng et al. 2023).
        factors: each frequency is divided by its own; empty: none (LongRoPE, Ding et al. 2024). ``magnitude``: what is
            turned is multiplied by it.
        interleaved: each feature is turned with its neighbour (the order of RoFormer and DeepSeek); the first of each
            pair come out in front of all others.
    """

    features: int
    theta: float = 10000.0
    scaling: tuple[float, ...] = ()
    factors: tuple[float, ...] = ()
    magnitude: float = 1.0
    interleaved: bool = False

    @property
    def told(self) -> Attributes:
        """What a kernel must know."""
        return {
            'rotated': self.features,
            'theta': self.theta,
            **({'scaling': ' '.join(map(repr, self.scaling))} if self.scaling else {}),
            **({'factors': ' '.join(map(repr, self.factors))} if self.factors else {}),
            **({'magnitude': self.magnitude} if self.magnitude != 1 else {}),
            **({'interleaved': True} if self.interleaved else {}),
        }


@operator
class Rotary(SameShape, Sharded, Unary):
    """Turns queries and keys by their positions; values stay where they are.

    Arguments: ``heads`` of attention; ``rotation``.
    """

    key = 'rotary'
    written = False
    primitives = {'rotary': ROTARY}
    inputs_told = 'qkv'

    heads: Heads
    rotation: Rotation

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split by batch, by sequence and by groups."""
        return self.heads.rows(name, *reads)

    def ops(self, local: Local) -> Ops:
        """Three operations for each feature of a query or key that is turned, forward and backward."""
        heads, rotation = self.heads, self.rotation
        layout = local.layout('x')
        # Only where the sequence is split must a rank know where its positions begin.
        told: Attributes = {
            **heads.held(layout),
            **rotation.told,
            **told_of(heads.documents),
            **placed(local, layout, 1),
        }
        turned = (heads.queries + 1) / (heads.queries + 2)
        # A device turns queries and keys in their place in memory; values are neither read nor written.
        moved = 2 * turned * local.size('x')
        flops = 3 * turned * local.elements('x') * rotation.features / heads.head_dim
        return Ops(
            F=Work(operator='rotary', reads=('x',), writes=('y',), flops=flops, moved=moved, attributes=told),
            I={'x': Work(operator='rotary', reads=('dy',), flops=flops, moved=moved, attributes=told)},
        )
