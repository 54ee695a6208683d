"""Optimizer parallelism: states, gradients and weights are sharded over the data ranks (ZeRO, Rajbhandari et al. 2020).

Whatever is sharded, an update works on shards alone. A gradient's shard has the gradient's name, the full gradient is
``NAME.whole``. A sharded weight has the parameter's name, what is gathered of it is ``NAME.gathered``. Of a weight that
stays full, ``NAME.piece`` is the shard that this rank updates. A flat message has the name of its bucket in theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

from simpar.errors import Problem
from simpar.lower.fusion import by_size
from simpar.lower.tape import Tape
from simpar.lower.update_shards import Owned, layer_of, local_elements
from simpar.plan import Plan
from simpar.program import Tensor
from simpar.program.op import Attribute
from simpar.program.tensor import BYTES

Gather = Literal['after-update', 'on-use', 'on-use-twice']
Part = Literal['state', 'gradients', 'weights']
Form = Literal['dim', 'padded', 'flat']
LEVELS: Final[dict[str, tuple[tuple[Part, ...], Gather]]] = {
    'level1': (('state', 'weights'), 'on-use'),
    'level2': (('state', 'gradients', 'weights'), 'on-use'),
    'level3': (('state', 'gradients', 'weights'), 'on-use-twice'),
}
"""MindSpore's levels: from the first on, weights are sharded."""
STAGES: Final[dict[int, tuple[tuple[Part, ...], Gather]]] = {
    1: (('state',), 'after-update'),
    2: (('state', 'gradients'), 'after-update'),
    3: (('state', 'gradients', 'weights'), 'on-use-twice'),
}
"""ZeRO's stages."""
FORMS: Final[dict[int, Form]] = {1: 'flat', 2: 'flat', 3: 'padded'}
"""Of ZeRO's stages: as Megatron-LM and DeepSpeed shard states and gradients, and as FSDP2 shards weights."""
THRESHOLD: Final = 64 * 1024
"""Bytes below which MindSpore leaves a parameter full, unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a plan shards, with its presets worked out.

    Arguments:
        threshold: in bytes.
        sharded: gradients are reduce-scattered every micro-batch.
        form: of shards in messages that do not divide by a dim, or ``everywhere``.
    """

    parts: frozenset[Part] = frozenset()
    gather: Gather = 'after-update'
    threshold: float = 0.0
    unsharded: tuple[str, ...] = ()
    sharded: bool = False
    form: Form = 'dim'
    everywhere: bool = False


def choice_of(plan: Plan) -> Choice:
    """What the keys of a plan come to."""
    # A preset says both; what a plan writes beside it can only agree: see ``conflicts``.
    parts, gather = _preset(plan) or (plan.shard, plan.gather)
    # MindSpore's default goes with its levels; ZeRO shards everything.
    threshold = THRESHOLD if plan.hsdp != 'off' else 0.0
    return Choice(
        parts=frozenset(parts),
        # Sharded weights must be gathered before they are read; full ones only after the update.
        gather=gather or ('on-use' if 'weights' in parts else 'after-update'),
        threshold=threshold if plan.shard_threshold is None else plan.shard_threshold,
        unsharded=plan.unsharded,
        sharded=plan.accumulate == 'sharded' if plan.accumulate else 'gradients' in parts,
        form=plan.shard_form or (FORMS.get(plan.zero, 'dim') if plan.hsdp == 'off' else 'dim'),
        everywhere=bool(plan.shard_form),
    )


def conflicts(plan: Plan) -> Iterator[Problem]:
    """What does not fit together between the keys of a plan."""
    preset = _preset(plan)
    # Both may be written where they mean the same.
    if plan.hsdp != 'off' and plan.zero and LEVELS[plan.hsdp] != STAGES[plan.zero]:
        yield Problem(('plan', 'zero'), f'zero {plan.zero} shards otherwise than hsdp {plan.hsdp}', 'write one of both')
    if preset is not None:
        name = f'hsdp {plan.hsdp}' if plan.hsdp != 'off' else f'zero {plan.zero}'
        if plan.shard and set(plan.shard) != set(preset[0]):
            yield Problem(('plan', 'shard'), f'{name} shards {", ".join(preset[0])}', 'leave it out')
        if plan.gather and plan.gather != preset[1]:
            yield Problem(('plan', 'gather'), f'{name} gathers {preset[1]}', 'leave it out')
        return
    if plan.shard and 'state' not in plan.shard:
        yield Problem(('plan', 'shard'), f'{" and ".join(plan.shard)} sharded, but no state', 'add state')
    if plan.shard and plan.gather and (plan.gather == 'after-update') == ('weights' in plan.shard):
        there = 'are sharded' if 'weights' in plan.shard else 'stay unsharded'
        other = 'on-use' if 'weights' in plan.shard else 'after-update'
        yield Problem(('plan', 'gather'), f'weights {there}, which cannot be gathered {plan.gather}', f'write {other}')


def _preset(plan: Plan) -> tuple[tuple[Part, ...], Gather] | None:
    return LEVELS.get(plan.hsdp) or STAGES.get(plan.zero)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One parameter that is sharded, or the parameters of a flat message.

    Arguments:
        weight, gradient: the shards that the update works on.
        fulls: the full gradients that W adds to, one for each of ``parameters``.
        gathered: the full weights that operators read, one for each of ``parameters``.
        dim: the dim that is split last, over ``partition``, the shard groups.
        replica: the partition over whose ranks shards are replicated; empty: none.
        bucket, flat: names of a flat message and of its buffer; empty: it is none.
    """

    parameters: tuple[str, ...]
    weight: Tensor
    gradient: Tensor
    fulls: tuple[Tensor, ...]
    gathered: tuple[str, ...]
    dim: int
    partition: str
    replica: str
    bucket: str = ''
    flat: str = ''

    @property
    def packed(self) -> bool:
        """Whether what is sharded is flattened and padded, so that all of it is gathered or nothing."""
        return bool(self.weight.members)

    @property
    def own(self) -> Owned:
        """What the update of a rank works on; a flat message of one layer belongs to that."""
        layers = {layer_of(name) for name in self.parameters}
        layer = layers.pop() if len(layers) == 1 else self.bucket
        return Owned(self.weight, self.gradient, self.fulls, self.flat, layer)


@dataclass(frozen=True, kw_only=True, eq=False)
class Shards:
    """All that is sharded.

    Arguments: ``of``, by parameter.
    """

    choice: Choice
    of: Mapping[str, Shard] = field(default_factory=dict)

    @cached_property
    def all(self) -> tuple[Shard, ...]:
        """Each once, in the order of their first parameters."""
        return self.each(self.of)

    def each(self, parameters: Iterable[str]) -> tuple[Shard, ...]:
        """The shards of parameters that are sharded, each once."""
        found = (self.of[name] for name in parameters)
        # The first parameter names a shard: those of a flat message share one.
        return tuple({shard.parameters[0]: shard for shard in found}.values())

    @property
    def gathers_on_use(self) -> bool:
        """Whether operators read gathered weights."""
        return 'weights' in self.choice.parts

    def by_partition(self, parameters: Iterable[str]) -> dict[str, list[str]]:
        """Those of the parameters that are sharded, by their shard groups; only these travel together."""
        found: dict[str, list[str]] = {}
        for name in parameters:
            if name in self.of:
                found.setdefault(self.of[name].partition, []).append(name)
        return found

    def with_flat(self, buckets: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """Messages by name, where flat ones, which cannot be parted or joined, are taken out of the others.

        Arguments: ``buckets``, parameters that the plan would fuse.
        """
        found: dict[str, list[str]] = {}
        for bucket, members in buckets.items():
            for name in members:
                shard = self.of.get(name)
                if shard is not None and shard.bucket:
                    found[shard.bucket] = list(shard.parameters)
                else:
                    found.setdefault(bucket, []).append(name)
        return found

    @property
    def owned(self) -> dict[str, Owned]:
        """What the update of each parameter works on."""
        own = {shard.parameters[0]: shard.own for shard in self.all}
        return {name: own[shard.parameters[0]] for name, shard in self.of.items()}

    def held(self, accumulated: Iterable[str]) -> frozenset[str]:
        """The gradients that a rank has when its sums are done, of those that its ops add to."""
        return frozenset([self._summed.get(name, name) for name in accumulated])

    @cached_property
    def _summed(self) -> dict[str, str]:
        """By full gradient the shard that comes of its sum."""
        return {full.name: shard.gradient.name for shard in self.all for full in shard.fulls}


def message_sizes(tape: Tape, plan: Plan, shards: Shards, parameters: Iterable[str]) -> dict[str, float]:
    """Bytes that fusion by size counts of each parameter; nothing where it does not count them."""
    return {name: _message_size(tape, plan, shards, name) for name in parameters} if by_size(plan) else {}


def _message_size(tape: Tape, plan: Plan, shards: Shards, parameter: str) -> float:
    """A full gradient or weight, as far as tensor ranks have it; with MindSpore's levels what it counts, the shard."""
    size = size_of(tape, [tape.tensors[f'd:{parameter}']])
    if parameter not in shards.of or (plan.hsdp != 'off' and not shards.of[parameter].bucket):
        return size
    shard = shards.of[parameter]
    return size_of(tape, [shard.fulls[shard.parameters.index(parameter)]])


def split_dims(shards: Sequence[Shard]) -> dict[str, Attribute]:
    """The dims that a message splits its tensors along: one number, or where they differ one for each in a text."""
    found = [shard.dim for shard in shards]
    return {'dim': found[0] if len(set(found)) == 1 else ' '.join(map(str, found))}


def message_bytes(tape: Tape, tensors: Sequence[Tensor]) -> float:
    """Bytes of the unsharded form of some shards, padding and all: what is gathered of them, or scattered into them."""
    # The last split is the shard group's; those before are the tensor ranks', who gather nothing here.
    sizes = tape.partitions
    return float(
        sum([local_elements(tape, one) * BYTES[one.dtype] * sizes[one.splits[-1].partition].size for one in tensors])
    )


def size_of(tape: Tape, tensors: Sequence[Tensor]) -> float:
    """Bytes of what one rank holds of tensors."""
    return float(sum([local_elements(tape, tensor) * BYTES[tensor.dtype] for tensor in tensors]))
