"""The mixture of experts of a ``transformer:``: its keys, its operators in order, and what of it does not fit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Annotated

from pydantic import Field

from simpar.errors import Problem, divisors
from simpar.keys import described
from simpar.model import model, ops
from simpar.model.operators import base, linear, pointwise
from simpar.model.operators.experts import (
    MAP,
    AuxLoss,
    Balance,
    Combine,
    Dispatch,
    Group,
    GroupedProduct,
    Route,
    Routing,
    Score,
    SigmoidGate,
    Sinkhorn,
)

Width = Annotated[int, Field(ge=0, le=2**22)]
MakeNode = Callable[..., model.Node]
"""Makes a node of a layer: name, operator, what it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
@described('workload.transformer.experts')
class Experts:
    """A mixture of experts in the place of feed-forwards.

    Arguments:
        ffn: width of an expert; 0: that of the model's feed-forward.
        every, first_dense: which layers have experts; the others have the feed-forward.
        shared: width of what all tokens go through besides, with a gate of each token where ``shared_gate`` says so.
        score, normalise, scaling_factor, groups, group_top_k, group_scores, correction_bias: see ``Routing``.
        capacity: slots of an expert over the mean of its tokens, in each sample; further tokens are dropped. 0: none
            is dropped.
        aux_loss: coefficient of the auxiliary loss, taken over the tokens of ``aux_group``.
        sweeps: of Sinkhorn's balance before tokens choose: what is priced, not computed.
        imbalance: tokens of the fullest expert over the mean, where none is dropped: what is priced, not computed.
    """

    count: int
    top_k: int
    ffn: int = 0
    every: int = 1
    first_dense: int = 0
    shared: int = 0
    shared_gate: bool = False
    score: Score = 'softmax'
    normalise: bool = True
    scaling_factor: float = 1.0
    groups: int = 1
    group_top_k: int = 1
    group_scores: int = 2
    correction_bias: bool = False
    capacity: float = 0.0
    aux_loss: float = 0.0
    aux_group: Group = 'rank'
    sweeps: int = 0
    imbalance: float = 1.0

    def in_layer(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return layer >= self.first_dense and (layer + 1) % self.every == 0

    @property
    def routing(self) -> Routing:
        """How tokens choose."""
        return Routing(
            experts=self.count,
            top_k=self.top_k,
            score=self.score,
            normalise=self.normalise,
            factor=self.scaling_factor,
            groups=self.groups,
            group_top_k=self.group_top_k,
            group_scores=self.group_scores,
            correction=self.correction_bias,
        )

    def slots(self, sequence: int) -> int:
        """Slots of an expert, in each sample."""
        if not self.capacity:
            return sequence
        return min(sequence, ceil(sequence * self.top_k / self.count * self.capacity))

    def load(self, sequence: int) -> ops.Load:
        """How full slots are: all that are sent on are full, where there are fewer than tokens."""
        share = 1.0 if self.capacity else self.top_k / self.count
        return ops.Load(dim=1, experts=self.count, mean=share, imbalance=1.0 if self.capacity else self.imbalance)


def mixture_nodes(
    experts: Experts, node: MakeNode, layer: int, x: str, *, hidden: int, ffn: int, sequence: int, gated: bool,
    activation: type[base.Operator],
) -> Iterator[model.Node]:  # fmt: skip
    """The operators of a mixture; the last is named ``mixture``.

    Arguments: ``node`` makes one of a layer; ``x``, what they read; ``ffn``, width of an expert unless it says so.
    """
    routing, width, kind = experts.routing, experts.ffn or ffn, activation.key
    parts = 2 if gated else 1
    map_of = f'layer{layer}.route.{MAP}'
    yield node('router', linear.Product(outputs=(experts.count,), inputs=(hidden,), bias=False, split='inputs'), x)
    logits = '.router'
    for sweep in range(experts.sweeps):
        yield node(f'sinkhorn{sweep}', Sinkhorn(), logits)
        logits = f'.sinkhorn{sweep}'
    yield node('route', Route(routing=routing), logits)
    weights = '.route'
    if experts.aux_loss:
        yield node(
            'balance', Balance(routing=routing, map_of=map_of, together=experts.aux_group == 'global'), '.router'
        )
        aux = AuxLoss(routing=routing, coefficient=experts.aux_loss, group=experts.aux_group)
        yield node('aux_loss', aux, weights, '.router', '.balance')
        weights = '.aux_loss'
    dispatch = Dispatch(
        experts=experts.count, slots=experts.slots(sequence), filled=experts.load(sequence), map_of=map_of
    )
    yield node('dispatch', dispatch, x, weights)
    fc1 = GroupedProduct(experts=experts.count, outputs=(width, 2)[:parts], inputs=hidden)
    yield node('experts.fc1', fc1, '.dispatch')
    yield node(f'experts.{kind}', activation(), '.experts.fc1')
    fc2 = GroupedProduct(experts=experts.count, outputs=(hidden,), inputs=width, split='inputs')
    yield node('experts.fc2', fc2, f'.experts.{kind}')
    if not experts.shared:
        yield node('mixture', Combine(map_of=map_of), weights, '.experts.fc2')
        return
    yield node('combine', Combine(map_of=map_of), weights, '.experts.fc2')
    shared = linear.Product(outputs=(experts.shared, 2)[:parts], inputs=(hidden,), bias=False,
                     what='the shared experts (their width)')  # fmt: skip
    yield node('shared.fc1', shared, x)
    yield node(f'shared.{kind}', activation(), '.shared.fc1')
    last = linear.Product(outputs=(hidden,), inputs=(experts.shared,), bias=False, split='inputs')
    yield node('shared.fc2', last, f'.shared.{kind}')
    beside = '.shared.fc2'
    if experts.shared_gate:
        yield node('shared.gate', linear.Product(outputs=(1,), inputs=(hidden,), bias=False, split='inputs'), x)
        yield node('shared.gated', SigmoidGate(), beside, '.shared.gate')
        beside = '.shared.gated'
    yield node('mixture', pointwise.Add(of=('', '')), '.combine', beside)


def mixture_problems(experts: Experts, at: tuple[str, ...], layers: int) -> Iterator[Problem]:
    """What of a mixture's keys does not fit together.

    Arguments: ``at``, where a file has it.
    """
    count, top_k = experts.count, experts.top_k
    if not any(map(experts.in_layer, range(layers))):
        yield Problem((*at, 'first_dense'), f'none of {layers} layers has experts', 'write a smaller one, or every: 1')
    if count % experts.groups:
        what = f'{experts.groups} groups do not divide {count} experts'
        yield Problem((*at, 'groups'), what, f'write one of {divisors(count)}')
    elif experts.group_top_k > experts.groups:
        what = f'{experts.group_top_k} of {experts.groups} groups'
        yield Problem((*at, 'group_top_k'), what, f'write at most {experts.groups}')
    elif experts.groups > 1 and count // experts.groups * experts.group_top_k < top_k:
        has = count // experts.groups * experts.group_top_k
        yield Problem((*at, 'group_top_k'), f'{has} experts in these groups, but top_k {top_k}', 'write a larger one')
    elif experts.groups > 1 and experts.group_scores > count // experts.groups:
        what = f'{experts.group_scores} scores, but {count // experts.groups} experts in a group'
        yield Problem((*at, 'group_scores'), what, f'write at most {count // experts.groups}')
    if top_k <= count and experts.imbalance > count / top_k:
        what = f'{experts.imbalance:g} times the mean is more than all tokens'
        yield Problem((*at, 'imbalance'), what, f'write at most {count / top_k:g}')
