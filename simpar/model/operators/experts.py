"""Mixtures of experts: the router with its losses, dispatch, products of the experts, and combination."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod
from typing import Literal

from simpar.keys import described
from simpar.layout import ONE, Rule, TensorLayout, size_of
from simpar.model.keys import Aliases, SplitCounts
from simpar.model.operators import base, stream
from simpar.model.ops import Attributes, Kept, Load, Local, Ops, Parameter, Work, given
from simpar.model.primitive import Primitive, Shape, dim_names

# The router of a mixture of experts: which tokens go to which experts, with which weights, and its auxiliary loss.

Score = Literal['softmax', 'sigmoid']
Group = Literal['rank', 'sample', 'global']
MAP = 'map'
"""What a router keeps: for each token and expert, whether the token goes there."""


@dataclass(frozen=True, slots=True, kw_only=True)
@described('workload.transformer.experts')
class Experts:
    """A mixture of experts in the place of feed-forwards.

    Arguments:
        ffn: width of an expert; 0: that of the model's feed-forward.
        every, first_dense: which layers have experts; the others have the feed-forward.
        shared: width of what all tokens go through besides, with a gate of each token where ``shared_gate`` says so.
        score: of logits, over all experts.
        normalise: the weights of a token's experts are divided by their sum; ``scaling_factor`` multiplies them then.
        groups: of neighbouring experts; a token chooses among those of ``group_top_k`` groups, the best by the sum of
            the ``group_scores`` largest scores in each; 1: among all.
        correction_bias: it is added to the scores that choose, not to those that weigh (DeepSeek-V3).
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
    def told(self) -> Attributes:
        """What kernels must know of how tokens choose."""
        grouped = given(groups=self.groups, group_top_k=self.group_top_k, group_scores=self.group_scores)
        return {
            'top_k': self.top_k,
            'score': self.score,
            **given(normalise=self.normalise),
            **({'factor': self.scaling_factor} if self.scaling_factor != 1 else {}),
            **(grouped if self.groups > 1 else {}),
        }

    def slots(self, sequence: int) -> int:
        """Slots of an expert, in each sample."""
        if not self.capacity:
            return sequence
        return min(sequence, ceil(sequence * self.top_k / self.count * self.capacity))

    def load(self, sequence: int) -> Load:
        """How full slots are: all that are sent on are full, where there are fewer than tokens."""
        share = 1.0 if self.capacity else self.top_k / self.count
        return Load(dim=1, experts=self.count, mean=share, imbalance=1.0 if self.capacity else self.imbalance)


def _rows(name: str, x: Shape) -> Rule:
    """Samples and tokens can be split; a token chooses among all experts."""
    names = dim_names(x)
    return Rule(name, (names,), names, (x,), x, names, {names[-1]: 'is chosen from and must stay unsharded'})


@base.operator
class Route(base.SameShape, base.Sharded, base.Unary):
    """Of logits [batch, sequence, experts] the weights of those experts that a token goes to, and zeros.

    Arguments: ``experts``, how tokens choose among them.
    """

    key = 'route'
    primitives = {'route': stream.AlongRows('Route')}

    experts: Experts

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split by batch and sequence."""
        return _rows(name, reads[0])

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """The correction bias, a constant."""
        return (Parameter('correction', (self.experts.count,), 'zeros', trained=False),) * self.experts.correction_bias

    def ops(self, local: Local) -> Ops:
        """A softmax and a choice; the backward reads the logits and what was chosen."""
        elements, attributes = local.elements('y'), self.experts.told
        own = self.parameters(local.shape('y'))
        choice_map = Kept(role=MAP, shape=local.shape('x'), layout=local.layout('x'), dtype='bool')
        return Ops(
            F=Work('route', ('x', *(one.role for one in own)), ('y', MAP), flops=8 * elements, attributes=attributes),
            I={'x': Work('route', ('dy', 'x', MAP), flops=10 * elements, attributes=attributes)},
            parameters=own,
            kept=(choice_map,),
        )  # fmt: skip


@base.operator
class Sinkhorn(base.SameShape, base.Unary):
    """One sweep of Sinkhorn's balance of logits [batch, sequence, experts]: what is priced, not computed.

    Rows and columns of exp(logits) are scaled in fp32 until the scales of columns no longer change
    (megatron/core/transformer/moe/moe_utils.py); choices alone hang on it, so that no gradient does.
    """

    key = 'sinkhorn'
    primitives = {'sinkhorn': stream.AlongRows('Sinkhorn')}

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split by batch and sequence."""
        return _rows(name, reads[0])

    def ops(self, local: Local) -> Ops:
        """Two products, each written and read again for its sum."""
        elements = local.elements('y')
        sweep = Work('sinkhorn', ('x',), ('y',), flops=4 * elements, moved=24.0 * elements)
        return Ops(F=sweep, I={'x': None})


@base.operator
class Balance(base.Operator):
    """Of each sample, how many tokens go to each expert and the sum of its scores: [batch, 2, experts].

    Arguments: ``experts``, how tokens choose; ``map_of``, name of the router's map; ``together``: of all samples of a
    copy, over all ranks, [copies, 2, experts].
    """

    key = 'balance'
    primitives = {'balance': stream.AlongRows('Balance')}

    experts: Experts
    map_of: str
    together: bool = False

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """Two numbers of each expert."""
        return (1 if self.together else reads[0][0], 2, self.experts.count)

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
            F=Work('balance', ('x', f'={self.map_of}'), ('y',), flops=6 * local.elements('x'),
                   attributes={'score': self.experts.score, **given(together=self.together)}),
        )  # fmt: skip


@base.operator
class AuxLoss(base.SameShape, base.Operator):
    """Hands on a router's weights, and adds its auxiliary loss to the loss and to the gradient of its logits.

    coefficient · experts · Σ share of choices · mean score, over the experts (Fedus et al. 2022; Megatron-LM).
    Arguments: ``group``: over which tokens shares and means are taken, those of a ``rank`` and copy of a micro-batch,
    or of each ``sample``, or ``global``, those of all ranks in a copy of a micro-batch.
    """

    key = 'aux_loss'
    primitives = {'aux_loss': stream.AlongRows('AuxLoss')}
    roles = ('x', 'logits', 'balance')

    experts: Experts
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
        weight = self.coefficient * self.experts.count * local.loss_weight / (slices * local.copies)
        attributes: Attributes = {'score': self.experts.score, 'top_k': self.experts.top_k, 'group': self.group,
                            'tokens': tokens, 'sequence': local.shape('x')[1]}  # fmt: skip
        loss = Kept(role='loss', shape=(slices * local.copies,), layout=TensorLayout(local.world, (samples,)),
                    dtype='fp32')  # fmt: skip
        elements = local.elements('x')
        return Ops(
            F=Work('aux_loss', ('x', 'balance'), ('loss', 'y'), flops=4 * self.experts.count,
                   moved=0.0, attributes={**attributes, 'scale': weight}),
            I={
                'x': None,
                'logits': Work('aux_loss', ('logits', 'balance'), flops=8 * elements,
                               attributes={**attributes, 'scale': weight * local.loss_scale * local.share('logits')}),
            },
            kept=(loss,),
        )  # fmt: skip


# Experts of a mixture: tokens go to their slots, through grouped products, and back.


GROUPED_MATMUL = Primitive('GroupedMatMul', 'matrix')


def _slots(local: Local, role: str) -> Attributes:
    """Slots of an expert on one rank, for each sample, of the value that has them."""
    return {'slots': local.slice_shape(role)[2]}


@base.operator
class Dispatch(base.Operator):
    """x [batch, sequence, hidden] → [batch, experts, slots, hidden]: each token in a slot of each expert it goes to.

    Arguments:
        experts: how many.
        slots: of an expert, for a sample; as many as tokens: each has its own, and none is dropped. Of more tokens than
            slots the first are taken.
        filled: how full they are.
    """

    key = 'dispatch'
    primitives = {'dispatch': stream.AlongRows('Dispatch')}
    roles = ('x', 'weights')

    experts: int
    slots: int
    filled: Load
    map_of: str

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """Slots of all experts."""
        batch, _, hidden = reads[0]
        return (batch, self.experts, self.slots, hidden)

    def load(self, *reads: Load | None) -> Load | None:
        """As the router sends."""
        return self.filled

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Where the sequence is split, so are slots: each rank fills its own."""
        x, weights = reads
        inputs = (('b', 's', 'h'), ('b', 's', ONE))
        return Rule(name, inputs, ('b', 'e', 's', 'h'), (x, weights), self.result_shape(0, x), ('b', 'e', 's', 'h'), {})

    def ops(self, local: Local) -> Ops:
        """Copies of rows; the gradient adds them up."""
        source, attributes = f'={self.map_of}', _slots(local, 'y')
        moved = local.size('x') + local.size('y')
        elements = local.elements('y')
        return Ops(
            F=Work('dispatch', ('x', source), ('y',), moved=moved, attributes=attributes),
            I={'x': Work('dispatch', ('dy', source), flops=elements, moved=moved, attributes=attributes)},
        )


@base.operator
class Combine(base.Operator):
    """The results of a token's experts [batch, experts, slots, hidden], weighted and added: [batch, sequence, hidden].

    Arguments as of ``dispatch``.
    """

    key = 'combine'
    primitives = {'combine': stream.AlongRows('Combine')}
    roles = ('weights', 'z')

    map_of: str

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """A row for each token."""
        weights, z = reads
        return (*weights[:2], z[-1])

    def load(self, *reads: Load | None) -> Load | None:
        """Rows of tokens are full."""
        return None

    def axes(self, name: str, *reads: Shape) -> Rule:
        """As the weights lie."""
        weights, z = reads
        inputs = (('b', 's', ONE), ('b', ONE, 's', 'h'))
        return Rule(name, inputs, ('b', 's', 'h'), (weights, z), self.result_shape(0, weights, z), ('b', 's', 'h'), {})

    def ops(self, local: Local) -> Ops:
        """A product and a sum of each row that comes back; the backward reads these rows."""
        source, attributes = f'={self.map_of}', _slots(local, 'z')
        moved, elements = local.size('z') + local.size('y'), local.elements('z')
        return Ops(
            F=Work('combine', ('weights', 'z', source), ('y',), flops=2 * elements, moved=moved, attributes=attributes),
            I={
                'weights': Work('combine', ('dy', 'z', source), flops=2 * elements, moved=moved,
                                attributes={**attributes, 'of': 'weights'}, suffix='.weights'),
                'z': Work('combine', ('dy', 'weights', source), flops=elements, moved=moved,
                          attributes={**attributes, 'of': 'z'}, suffix='.rows'),
            },
        )  # fmt: skip


@base.operator
class GroupedProduct(base.Weighted, base.Unary):
    """Slots [batch, experts, slots, inputs] · an own weight of each expert [experts, outputs..., inputs].

    Arguments: ``split``: by degrees, ``outputs``, or ``inputs`` alone.
    """

    key = 'grouped_product'
    primitives = {'grouped_matmul': GROUPED_MATMUL}

    experts: int
    outputs: Shape
    inputs: int
    split: str = 'outputs'
    out_strategy: SplitCounts = ()
    out_layout: Aliases = ()

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """Slots of all outputs."""
        return (*reads[0][:-1], prod(self.outputs))

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Samples, experts, slots, inputs k and outputs n."""
        result = self.result_shape(0, *reads)
        inputs, shapes = (('b', 'e', 'c', 'k'), ('e', 'k', 'n')), (*reads, (self.experts, self.inputs, result[-1]))
        units = {'n': self.outputs[0], 'k': self.inputs}
        return Rule(name, inputs, ('b', 'e', 'c', 'n'), shapes, result, ('b', 'e', 'c', 'k', 'n'), {}, units)

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """A matrix for each expert."""
        return (Parameter('weight', (self.experts, *self.outputs, self.inputs)),)

    def steps(self, reads: tuple[str, ...], result: Shape) -> Iterator[base.Step]:
        """The product."""
        weight = Parameter('weight', (self.experts, self.inputs, prod(self.outputs)))
        yield base.Step(primitive=GROUPED_MATMUL, reads=(*reads, weight), shape=result)

    def ops(self, local: Local) -> Ops:
        """2·m·n·k operations in each phase; m counts the tokens of the fullest rank, operations those of the mean."""
        of_experts, in_axes, out_axes = local.inputs[1].dims
        dims = (of_experts, out_axes, *((),) * (len(self.outputs) - 1), in_axes)
        (weight,) = self.parameters(())
        placed = weight.on(TensorLayout(local.world, dims))
        groups = self.experts // size_of(of_experts)
        n, k = prod(self.outputs) // size_of(out_axes), self.inputs // size_of(in_axes)
        m = local.elements('x') // k
        # The rank that has most decides how long it takes; all ranks together do no more than all tokens need.
        flops = 2.0 * m * n * k / local.fullest('x')
        return Ops(
            F=Work('grouped_matmul', ('x', 'weight'), ('y',), flops=flops,
                   dims={'m': m, 'n': n, 'k': k, 'groups': groups}),
            I={'x': Work('grouped_matmul', ('dy', 'weight'), flops=flops,
                         dims={'m': m, 'n': k, 'k': n, 'groups': groups})},
            W=Work('grouped_matmul', ('dy', 'x'), flops=flops, dims={'m': n, 'n': k, 'k': m, 'groups': groups}),
            parameters=(placed,),
        )  # fmt: skip


@base.operator
class SigmoidGate(base.SameShape, base.Operator):
    """x [batch, sequence, hidden] · sigmoid of a number of each token: the gate of shared experts (Qwen 2 MoE)."""

    key = 'sigmoid_gate'
    primitives = {'sigmoid_gate': stream.AlongRows('SigmoidGate')}
    roles = ('x', 'gate')

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split by batch and by sequence."""
        x, gate = reads
        names = ('b', 's', 'h')
        fixed = {'h': 'is multiplied by one number'}
        return Rule(name, (names, ('b', 's', ONE)), names, (x, gate), x, names, fixed)

    def ops(self, local: Local) -> Ops:
        """A product an element; the gradient of the gate is a sum over features."""
        elements = local.elements('x')
        return Ops(
            F=Work('sigmoid_gate', ('x', 'gate'), ('y',), flops=elements),
            I={
                'x': Work('sigmoid_gate', ('dy', 'gate'), flops=elements, attributes={'of': 'x'}, suffix='.rows'),
                'gate': Work('sigmoid_gate', ('dy', 'x', 'gate'), flops=2 * elements,
                             attributes={'of': 'gate'}, suffix='.gate'),
            },
        )  # fmt: skip
