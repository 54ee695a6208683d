"""The router of a mixture of experts: which tokens go to which experts, with which weights, and its auxiliary loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simpar.layout import ONE, Rule, TensorLayout
from simpar.model.operators.base import Operator, Sharded, Unary, operator
from simpar.model.operators.norm import SameShape
from simpar.model.operators.stream import AlongRows
from simpar.model.ops import Attributes, Kept, Local, Ops, Parameter, Work
from simpar.model.primitive import Shape, dim_names

Score = Literal['softmax', 'sigmoid']
Group = Literal['rank', 'sample', 'global']
ROUTE, BALANCE, AUX_LOSS = map(AlongRows, ('Route', 'Balance', 'AuxLoss'))
MAP = 'map'
"""What a router keeps: for each token and expert, whether the token goes there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How tokens choose experts.

    Arguments:
        experts: how many there are; ``top_k``, how many a token goes to.
        score: of logits, over all experts.
        normalise: the weights of a token's experts are divided by their sum; ``factor`` multiplies them then.
        groups: of neighbouring experts; a token chooses among those of ``group_top_k`` groups, the best by the sum of
            the ``group_scores`` largest scores in each; 1: among all.
        correction: a bias is added to the scores that choose, not to those that weigh (DeepSeek-V3).
    """

    experts: int
    top_k: int
    score: Score = 'softmax'
    normalise: bool = True
    factor: float = 1.0
    groups: int = 1
    group_top_k: int = 1
    group_scores: int = 2
    correction: bool = False

    @property
    def told(self) -> Attributes:
        """What kernels must know."""
        grouped: Attributes = {
            'groups': self.groups, 'group_top_k': self.group_top_k, 'group_scores': self.group_scores
        }  # fmt: skip
        return {
            'top_k': self.top_k,
            'score': self.score,
            **({'normalise': True} if self.normalise else {}),
            **({'factor': self.factor} if self.factor != 1 else {}),
            **(grouped if self.groups > 1 else {}),
        }


def _rows(name: str, x: Shape) -> Rule:
    """Samples and tokens can be split; a token chooses among all experts."""
    names = dim_names(x)
    return Rule(name, (names,), names, (x,), x, names, {names[-1]: 'is chosen from and must stay unsharded'})


@operator
class Route(SameShape, Sharded, Unary):
    """Of logits [batch, sequence, experts] the weights of those experts that a token goes to, and zeros.

    Arguments: ``routing`` of tokens.
    """

    key = 'route'
    written = False
    primitives = {'route': ROUTE}
    inputs_told = 'logits [batch, sequence, experts]'
    unsharded = 'experts'

    routing: Routing

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split by batch and sequence."""
        return _rows(name, reads[0])

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """The correction bias, a constant."""
        del result
        return (Parameter('correction', (self.routing.experts,), 'zeros', trained=False),) * self.routing.correction

    def ops(self, local: Local) -> Ops:
        """A softmax and a choice; the backward reads the logits and what was chosen."""
        elements, told = local.elements('y'), self.routing.told
        own = self.parameters(local.shape('y'))
        kept = Kept(role=MAP, shape=local.shape('x'), layout=local.layout('x'), dtype='bool')
        return Ops(
            F=Work(operator='route', reads=('x', *(one.role for one in own)), writes=('y', MAP), flops=8 * elements,
                   attributes=told),
            I={'x': Work(operator='route', reads=('dy', 'x', MAP), flops=10 * elements, attributes=told)},
            parameters=own,
            kept=(kept,),
        )  # fmt: skip


@operator
class Balance(Operator):
    """Of each sample, how many tokens go to each expert and the sum of its scores: [batch, 2, experts].

    Arguments: ``routing`` of tokens; ``map_of``, name of the router's map; ``together``: of all samples of a copy, over
    all ranks, [copies, 2, experts].
    """

    key = 'balance'
    written = False
    primitives = {'balance': BALANCE}
    inputs_told = 'logits [batch, sequence, experts]'

    routing: Routing
    map_of: str
    together: bool = False

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """Two numbers of each expert."""
        return (1 if self.together else reads[0][0], 2, self.routing.experts)

    def shape_of_copies(self, result: Shape, copies: int) -> Shape:
        """Each copy has sums of its own."""
        return (copies, *result[1:]) if self.together else result

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split by batch; where the sequence is split, each rank has a part of the sums."""
        (x,) = reads
        names = ('b', 's', ONE)
        return Rule(
            name, (names,), (ONE if self.together else 'b', ONE, ONE), (x,), self.result_shape(0, x), ('b', 's'), {}
        )

    def ops(self, local: Local) -> Ops:
        """No gradient comes back by it: that of the loss is made from the logits."""
        return Ops(
            F=Work(operator='balance', reads=('x', f'={self.map_of}'), writes=('y',), flops=6 * local.elements('x'),
                   attributes={'score': self.routing.score, **({'together': True} if self.together else {})}),
        )  # fmt: skip


@operator
class AuxLoss(SameShape, Operator):
    """Hands on a router's weights, and adds its auxiliary loss to the loss and to the gradient of its logits.

    coefficient · experts · Σ share of choices · mean score, over the experts (Fedus et al. 2022; Megatron-LM).
    Arguments: ``group``: over which tokens shares and means are taken, those of a ``rank`` and copy of a micro-batch,
    or of each ``sample``, or ``global``, those of all ranks in a copy of a micro-batch.
    """

    key = 'aux_loss'
    written = False
    primitives = {'aux_loss': AUX_LOSS}
    inputs_told = 'weights, logits, balance'
    unsharded = 'experts'
    roles = ('x', 'logits', 'balance')

    routing: Routing
    coefficient: float
    group: Group = 'rank'

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split by batch and sequence."""
        x, logits, balance = reads
        names = dim_names(x)
        fixed = {names[-1]: 'is chosen from and must stay unsharded'}
        first = ONE if self.group == 'global' else names[0]
        return Rule(name, (names, names, (first, ONE, ONE)), names, (x, logits, balance), x, names, fixed)

    def ops(self, local: Local) -> Ops:
        """The number of each slice of samples and copy; then the gradient of the logits."""
        samples = local.layout('x').dims[0]
        slices = local.layout('x').shard_counts[0]
        # Of each of the sums that are balanced.
        tokens = local.shape('x')[1] * (local.shape('x')[0] // local.copies if self.group == 'global' else 1)
        # The mean over the groups of a step: every slice of samples, and every copy, is one.
        weight = self.coefficient * self.routing.experts * local.loss_weight / (slices * local.copies)
        told: Attributes = {'score': self.routing.score, 'top_k': self.routing.top_k, 'group': self.group,
                            'tokens': tokens, 'sequence': local.shape('x')[1]}  # fmt: skip
        loss = Kept(role='loss', shape=(slices * local.copies,), layout=TensorLayout(local.world, (samples,)),
                    dtype='fp32')  # fmt: skip
        elements = local.elements('x')
        return Ops(
            F=Work(operator='aux_loss', reads=('x', 'balance'), writes=('loss', 'y'), flops=4 * self.routing.experts,
                   moved=0.0, attributes={**told, 'scale': weight}),
            I={
                'x': None,
                'logits': Work(operator='aux_loss', reads=('logits', 'balance'), flops=8 * elements,
                               attributes={**told, 'scale': weight * local.loss_scale * local.share('logits')}),
            },
            kept=(loss,),
        )  # fmt: skip
