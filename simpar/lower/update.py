"""The update: it ends the step, a layer an op, in the order in which the backward finishes the layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from simpar.lower.clip import OVERFLOW, SQUARES, Check, check
from simpar.lower.muon import Sides, matrices, matrices_of, muon_ops
from simpar.lower.packed import MEMBERS
from simpar.lower.tape import Tape
from simpar.lower.update_shards import UpdateShard, local_elements
from simpar.program import OpClass, Tensor
from simpar.program.op import Attribute
from simpar.program.tensor import BYTES
from simpar.workload import Adam, AdamW, Momentum, Muon, Optimizer, Sgd, Workload

STATE = BYTES['fp32']
"""Bytes of an element of an optimizer's state."""
MASTER: Final = 'master'
"""The state that is the weight itself, in fp32."""


class _Rule(NamedTuple):
    """What an optimizer does to an element.

    Arguments: ``states`` of a weight, without its master; ``flops``, operations on an element.
    """

    operator: str
    states: tuple[str, ...]
    flops: int
    attributes: dict[str, Attribute]


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """What ends a step.

    Arguments: ``check`` of all gradients together; ``layers``, the ops of an update in order, by layer or matrix; the
    first frees the gradients.
    """

    check: Check
    layers: tuple[tuple[OpClass, ...], ...]

    def ops(self, held: frozenset[str]) -> tuple[OpClass, ...]:
        """The ops of a pipeline rank that holds these gradients when its sums are done."""
        return *self.check.ops(held), *(op for ops in self.layers if held.issuperset(ops[0].frees) for op in ops)


def updates(tape: Tape, workload: Workload, shards: Sequence[UpdateShard]) -> Updates:
    """All updates; states are registered as tensors."""
    layers: dict[str, list[UpdateShard]] = {}
    first: dict[str, int] = {}
    for shard in shards:
        # A stage boundary may stand within a part of a module: each stage updates what it holds.
        alone = first.setdefault(shard.layer, shard.stage) == shard.stage
        layers.setdefault(shard.layer if alone else f'{shard.layer}@{shard.stage}', []).append(shard)
    # The backward finishes the last layer first.
    known = matrices(tape) if isinstance(workload.optimizer, Muon) else {}
    ops = (one for layer, own in reversed(layers.items()) for one in _updates(tape, layer, own, known, workload))
    return Updates(check(tape, workload, shards), tuple(ops))


def _updates(
    tape: Tape, layer: str, shards: list[UpdateShard], known: Mapping[str, Sides], workload: Workload
) -> Iterator[tuple[OpClass, ...]]:
    """Of one layer: matrices each for itself, or those of a packed shard, all others in one op."""
    optimizer = workload.optimizer
    sides = [matrices_of(tape, shard, known) for shard in shards]
    if isinstance(optimizer, Muon):
        for shard, of in zip(shards, sides, strict=True):
            if of:
                states = tuple(_state(tape, kind, shard) for kind in _states(optimizer))
                yield muon_ops(tape, shard, of, states, workload, optimizer)
    others = [shard for shard, of in zip(shards, sides, strict=True) if not of]
    if others:
        yield (_update(tape, layer, others, workload),)


def _states(optimizer: Optimizer) -> tuple[str, ...]:
    states = _rule(optimizer).states
    return (*states, MASTER) if optimizer.master_weights else states


def _rule(optimizer: Optimizer) -> _Rule:
    rate: dict[str, Attribute] = {'learning_rate': optimizer.learning_rate}
    if isinstance(optimizer, Sgd):
        return _Rule('sgd', (), 2, rate)
    if isinstance(optimizer, Momentum | Muon):
        decay = optimizer.weight_decay
        options = {'momentum': optimizer.momentum, 'nesterov': optimizer.nesterov, 'weight_decay': decay}
        return _Rule('momentum', ('v',), 4 + 2 * optimizer.nesterov + 2 * (decay > 0), {**rate, **options})
    moments = {'beta1': optimizer.beta1, 'beta2': optimizer.beta2, 'epsilon': optimizer.epsilon}
    if isinstance(optimizer, Adam):
        return _Rule('adam', ('m', 'v'), 12, {**rate, **moments})
    return _Rule('adam', ('m', 'v'), 13, {**rate, **moments, 'weight_decay': optimizer.weight_decay})


def _update(tape: Tape, layer: str, shards: list[UpdateShard], workload: Workload) -> OpClass:
    """Reads gradients, weights, states, the count of updates where they can be left out, and the check's numbers."""
    optimizer, rule = workload.optimizer, _rule(workload.optimizer)
    names = tuple(shard.gradient.name for shard in shards)
    weights = tuple(shard.weight.name for shard in shards)
    kinds = _states(optimizer)
    states = tuple(_state(tape, kind, shard) for kind in kinds for shard in shards)
    attributes, numbers = dict(rule.attributes), []
    if optimizer.master_weights:
        attributes['master_weights'] = True
    if workload.clip_norm:
        attributes['clip_norm'] = workload.clip_norm
        numbers.append(SQUARES)
    if workload.loss_scale != 1:
        attributes['loss_scale'] = workload.loss_scale
        numbers.append(OVERFLOW)
        # Adam's bias correction needs the number of updates; without a loss scale that is the number of steps.
        states += (_count(tape, layer),) if isinstance(optimizer, Adam | AdamW) else ()
    elements = sum(local_elements(tape, shard.weight) for shard in shards)
    # Bytes an element: the gradient is read, states are read and written.
    moved = BYTES[shards[0].gradient.dtype] + 2 * STATE * len(kinds)
    # With master weights the weight itself is only written.
    moved += BYTES[tape.dtype] * (1 if optimizer.master_weights else 2)
    return OpClass(
        name=f'{layer}.update.U',
        kind='compute',
        operator=rule.operator,
        phase='U',
        # One more operation an element: the gradient is scaled by what the check found.
        flops=float(elements * (rule.flops + bool(numbers))),
        bytes=float(elements * moved),
        dtype=tape.dtype,
        reads=(*names, *weights, *states, *numbers),
        writes=(*weights, *states),
        frees=names,
        attributes=attributes,
        stage=shards[0].stage,
    )


def _state(tape: Tape, kind: str, shard: UpdateShard) -> str:
    """Register a state of a weight, in fp32 and sharded as the update has the weight."""
    name = f'{kind}:{shard.parameter}'
    members = shard.weight.members
    initial = 'zeros' if kind != MASTER else MEMBERS if members else tape.tensors[shard.parameter].initial
    like = shard.parameter if shard.parameter in tape.tensors else ''
    weight = shard.weight
    tape.tensors[name] = Tensor(name, 'state', weight.shape, 'fp32', weight.splits, (), None, initial, like, members)
    return name


def _count(tape: Tape, layer: str) -> str:
    """Register how often a layer was updated: steps whose gradients are not finite do not count."""
    name = f'updates:{layer}'
    tape.tensors[name] = Tensor(name, 'state', (1,), 'int64', initial='zeros')
    return name
