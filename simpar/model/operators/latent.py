"""Multi-head latent attention (DeepSeek-V2, 2024): what lies between its products, down to what attention reads.

Keys and values come from a latent vector of each token, ``kv_down`` [..., rank + rope]: its first features are
normalised and made keys and values of all heads, its last are the one part of the keys that is turned. Keys are put
together before attention, as in training, so that kernels see ordinary heads.
"""

from __future__ import annotations

from collections.abc import Iterator

from simpar.layout import ONE, Rule, TensorLayout
from simpar.model.documents import told as told_of
from simpar.model.operators.attention import AttentionCore, Heads
from simpar.model.operators.base import Operator, Sharded, Step, Trained, Unary, operator
from simpar.model.operators.norm import EPSILON
from simpar.model.operators.rotary import Rotation
from simpar.model.ops import Attributes, Kept, Local, Ops, Parameter, Work, placed
from simpar.model.primitive import Primitive, Shape, ShardCounts, Strategy, Use, dim_names


class Rows(Primitive):
    """What changes rows one by one; their features stay unsharded."""

    def axes(self, name: str, call: object, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """d0, d1, ..., and features that no axis splits."""
        return row_axes(name, shapes[0], output)

    def strategy(self, use: Use, shards: ShardCounts) -> Strategy:
        """The last dim unsharded."""
        return ((*shards[:-1], 1), *((1,) for _ in use.shapes[1:]))


class LatentJoin(AttentionCore):
    """Queries, keys and values of all heads, of their parts."""

    def strategy(self, use: Use, shards: ShardCounts) -> Strategy:
        """As its queries lie, but for the key that all heads share."""
        return (shards, shards, (*shards[:-1], 1))

    def output_shards(self, use: Use, strategy: Strategy) -> ShardCounts:
        """As its queries."""
        return strategy[0]


LATENT_NORM, LAST_FEATURES, LATENT_QKV = Rows('LatentNorm'), Rows('LastFeatures'), LatentJoin('LatentQkv')


def row_axes(name: str, x: Shape, result: Shape) -> Rule:
    """Every dim but the last may be split."""
    names = (*dim_names(x)[:-1], ONE)
    return Rule(name, (names,), names, (x,), result, names[:-1], {})


@operator
class LatentNorm(Trained, Unary):
    """RMSNorm of the first features of what it reads; the others are left out.

    Arguments: ``features``, how many; ``epsilon``, added to the mean of squares.
    """

    key = 'latent_norm'
    written = False
    primitives = {'latent_norm': LATENT_NORM}
    unsharded = 'last dim'

    features: int
    epsilon: float = EPSILON

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """With so many features."""
        return (*reads[0][:-1], self.features)

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Rows; every rank has the gain in full."""
        return row_axes(name, reads[0], self.result_shape(0, *reads))

    def steps(self, reads: tuple[str, ...], result: Shape) -> Iterator[Step]:
        """One primitive; its gain is full."""
        yield Step(primitive=LATENT_NORM, reads=reads, shape=result)

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """The gain."""
        return (Parameter('gain', (self.features,), 'ones'),)

    def ops(self, local: Local) -> Ops:
        """As of RMSNorm; the gradient of the features left out is zero."""
        told: Attributes = {'epsilon': self.epsilon}
        elements, size, full = local.elements('y'), local.size('y'), local.size('x')
        column = TensorLayout(local.world, (*local.layout('x').dims[:-1], ()))
        rstd = Kept(role='rstd', shape=(*local.shape('x')[:-1], 1), layout=column)
        return Ops(
            F=Work(operator='latent_norm', reads=('x', 'gain'), writes=('y', 'rstd'), flops=5 * elements,
                   moved=2 * size, attributes=told),
            I={'x': Work(operator='latent_norm', reads=('dy', 'x', 'gain', 'rstd'), flops=9 * elements,
                         moved=2 * size + full, attributes=told)},
            W=Work(operator='latent_norm', reads=('dy', 'x', 'rstd'), flops=3 * elements, moved=2 * size,
                   attributes=told),
            parameters=self.parameters(()),
            kept=(rstd,),
        )  # fmt: skip


@operator
class LastFeatures(Sharded, Unary):
    """The last features of what it reads, as a tensor of their own.

    Arguments: ``features``, how many.
    """

    key = 'last_features'
    written = False
    primitives = {'last_features': LAST_FEATURES}
    unsharded = 'last dim'

    features: int

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """With so many features."""
        return (*reads[0][:-1], self.features)

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Rows."""
        return row_axes(name, reads[0], self.result_shape(0, *reads))

    def ops(self, local: Local) -> Ops:
        """A copy; backward it is put behind zeros."""
        moved, told = 2 * local.size('y'), {'before': local.shape('x')[-1] - self.features}
        return Ops(
            F=Work(operator='last_features', reads=('x',), writes=('y',), moved=moved, attributes=told),
            I={'x': Work(operator='last_features', reads=('dy',), attributes=told)},
        )


@operator
class LatentQkv(Operator):
    """Queries, keys and values of all heads as attention reads them, rotary parts turned.

    Arguments: ``heads`` of attention; ``rotation`` of the last features of queries and keys.
    """

    key = 'latent_qkv'
    written = False
    primitives = {'latent_qkv': LATENT_QKV}
    inputs_told = 'queries, keys and values, shared keys'
    roles = ('q', 'kv', 'k_rope')

    heads: Heads
    rotation: Rotation

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """[batch, sequence, heads × (query, key and value)]."""
        return (*reads[0][:2], self.heads.count * self.heads.width)

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Batch b, sequence s and heads g; shared keys have no heads."""
        names = ('b', 's', 'g')
        inputs, result = (names, names, ('b', 's', ONE)), self.result_shape(0, *reads)
        return Rule(name, inputs, names, reads, result, names, {}, {'g': self.heads.groups})

    def ops(self, local: Local) -> Ops:
        """Bytes of what is read and written; forward and backward three operations for each feature that is turned."""
        heads, layout = self.heads, local.layout('q')
        turned = self.rotation.features * local.elements('q') / heads.head_dim
        # Its own partition of the sequence tells a rank where its positions begin.
        told: Attributes = {
            **heads.held(layout),
            **self.rotation.told,
            **told_of(heads.documents),
            **placed(local, layout, 1),
        }
        # Of the gradient dy each op reads what its part became: queries; keys but for the shared part, and values; the
        # shared part of all heads' keys.
        size, rope = local.size('q') / heads.head_dim, self.rotation.features
        width = heads.head_dim - rope + heads.values
        return Ops(
            F=Work(operator='latent_qkv', reads=self.roles, writes=('y',), flops=6 * turned, attributes=told),
            I={
                'q': Work(operator='latent_qkv', reads=('dy',), flops=3 * turned, moved=2 * size * heads.head_dim,
                          attributes={**told, 'of': 'q'}, suffix='.q'),
                'kv': Work(operator='latent_qkv', reads=('dy',), moved=2 * size * width,
                           attributes={**told, 'of': 'kv'}, suffix='.kv'),
                'k_rope': Work(operator='latent_qkv', reads=('dy',), flops=4 * turned,
                               moved=size * rope + local.size('k_rope'), attributes={**told, 'of': 'k_rope'},
                               suffix='.k_rope'),
            },
        )  # fmt: skip
