"""Optimizer parallelism: states, gradients and weights are sharded over the data ranks (ZeRO, Rajbhandari et al. 2020).

Whatever is sharded, an update works on shards alone. A gradient's shard has the gradient's name, the full gradient is
``NAME.whole``. A sharded weight has the parameter's name, what is gathered of it is ``NAME.gathered``. Of a weight that
stays full, ``NAME.piece`` is the shard that this rank updates. A flat message has the name of its bucket in theirs.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from math import prod
from typing import Final, Literal

from simpar.errors import Infeasible, Problem
from simpar.keys import conflicts_of
from simpar.layout import minus
from simpar.lower.issue import divided
from simpar.lower.tape import Tape, layer_of, local_elements, local_shape
from simpar.plans import Plan
from simpar.program import BYTES, Attribute, OpClass, Partition, Split, Tensor
from simpar.workload import Muon, Workload

# Fusion: which gradients, and which weights, travel as one message.
#
# Facts about MindSpore's ``comm_fusion``: by size, ids are given from the first parameter on, and a message stays below
# the size; by index, gradients are counted from the one that the backward finishes first.


AUTO: Final = 64.0 * 2**20
"""Bytes that MindSpore's automatic fusion stays below."""
ALONE: Final = 0
"""The id of what is not fused."""
UNMARKED: Final = 1
"""MindSpore's id of a layer without a mark."""
DDP: Final = (2.0**20, 25 * 2.0**20)
"""Bytes at which torch's DDP closes its first and its later buckets (torch/nn/parallel/distributed.py, 2.13)."""
ROOT: Final = 0
"""FSDP2's group of what is in no block: its root module has it."""
_BLOCK: Final = re.compile(r'layer\d+')


def fuse(
    parameters: Sequence[str], size: Mapping[str, float], plan: Plan, ids: Mapping[str, int], scope: str = ''
) -> dict[str, list[str]]:
    """Buckets by name, in the order of their first parameters.

    Arguments:
        parameters: in the order in which they are used.
        size: bytes of each; only looked at where ``by_size``.
        ids: by layer, for ``fusion: ids``.
        scope: what names begin with, unless they are those of a layer or a parameter.
    """
    keys = _keys(parameters, size, plan, ids)
    buckets: dict[str, list[str]] = {}
    for name, key in zip(parameters, keys, strict=True):
        buckets.setdefault(key if isinstance(key, str) else f'{scope}bucket{key}', []).append(name)
    return buckets


def by_size(plan: Plan) -> bool:
    """Whether messages are fused by their size."""
    return plan.fusion in ('auto', 'ddp') or isinstance(plan.fusion, float | int)


def _keys(
    parameters: Sequence[str], size: Mapping[str, float], plan: Plan, ids: Mapping[str, int]
) -> Sequence[str | int]:
    """A layer, a parameter, or a number."""
    fusion = plan.fusion
    if fusion == 'layer':
        return [layer_of(name) for name in parameters]
    if fusion == 'none':
        return parameters
    if fusion in ('all', 'stage'):
        # Whoever fuses by stages asks for each apart.
        return [0] * len(parameters)
    if fusion == 'fsdp':
        blocks = [_BLOCK.match(name) for name in parameters]
        # A chain of layers without blocks: each is wrapped.
        return [block[0] if block else ROOT for block in blocks] if any(blocks) else list(map(layer_of, parameters))
    if fusion == 'ddp':
        # A bucket takes gradients as they are ready.
        return _by_size([size[name] for name in reversed(parameters)], DDP, below=False)[::-1]
    if fusion == 'ids':
        # Id 0 is not fused: such a parameter is a bucket of its own.
        return [ids[layer_of(name)] or name for name in parameters]
    if isinstance(fusion, tuple):
        splits = sorted(fusion)
        # Counted from the last parameter, whose gradient the backward finishes first.
        return [bisect_right(splits, len(parameters) - 1 - place) for place in range(len(parameters))]
    limit = AUTO if isinstance(fusion, str) else fusion
    # At the limit already a message is closed: recorded buckets stay below it.
    return _by_size([size[name] for name in parameters], (limit, limit), below=True)


def _by_size(sizes: Sequence[float], limits: tuple[float, float], *, below: bool) -> list[int]:
    """Buckets by the limits of the first and of the later ones.

    Arguments: ``below``: a bucket stays below, unless its only tensor does not; else the one that reaches it closes it.
    """
    keys: list[int] = []
    key, held = 0, 0.0
    for size in sizes:
        if below and held and held + size >= limits[min(key, 1)]:
            key, held = key + 1, 0.0
        keys.append(key)
        held += size
        if not below and held >= limits[min(key, 1)]:
            key, held = key + 1, 0.0
    return keys


def fusion_ids(workload: Workload, plan: Plan, parameters: Iterable[str]) -> dict[str, int]:
    """The id of every layer, from the plan or the marks of a network's layers.

    Raises ``Infeasible`` where the plan's ids are not as many as the layers.
    """
    if plan.fusion != 'ids':
        return {}
    layers = list(dict.fromkeys(map(layer_of, parameters)))
    if plan.fusion_ids:
        if len(plan.fusion_ids) != len(layers):
            raise Infeasible(
                f'plan.fusion_ids lists {len(plan.fusion_ids)} ids, but {len(layers)} layers have parameters '
                f'({", ".join(layers[:8])}{", ..." if len(layers) > 8 else ""}); list {len(layers)} ids'
            )
        return dict(zip(layers, plan.fusion_ids, strict=True))
    marks = {name: operator.comm_fusion for name, operator in workload.model.operators.items()}
    return {layer: UNMARKED if (mark := marks.get(layer)) is None else mark for layer in layers}


Gather = Literal['after-update', 'on-use', 'on-use-twice']
Part = Literal['state', 'gradients', 'weights']
Form = Literal['dim', 'padded', 'flat', 'owned']
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


def conflicts(workload: Workload, plan: Plan) -> Iterator[Problem]:
    """What does not fit together between the keys of a plan, and with its optimizer."""
    preset, muon = _preset(plan), isinstance(workload.optimizer, Muon)
    yield from conflicts_of('shards', plan=plan, choice=choice_of(plan), muon=muon)
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
        owned: each of its matrices lies whole on one rank of a shard group.
        stage: whose backward adds to the gradient; the first, for a weight that two use.
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
    owned: bool = False
    stage: int = -1

    @property
    def name(self) -> str:
        """The name of its update: of its buffer, or its parameter."""
        return self.flat or self.parameters[0]

    @property
    def packed(self) -> bool:
        """Whether what is sharded is flattened and padded, so that all of it is gathered or nothing."""
        return bool(self.weight.members)

    @property
    def layer(self) -> str:
        """The layer that it is updated with; a flat message of one layer belongs to that."""
        layers = {layer_of(name) for name in self.parameters}
        return layers.pop() if len(layers) == 1 else self.bucket


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
        shards = (self.of[name] for name in parameters)
        # The first parameter names a shard: those of a flat message share one.
        return tuple({shard.parameters[0]: shard for shard in shards}.values())

    @property
    def gathers_on_use(self) -> bool:
        """Whether operators read gathered weights."""
        return 'weights' in self.choice.parts

    def by_partition(self, parameters: Iterable[str]) -> dict[str, list[str]]:
        """Those of the parameters that are sharded, by their shard groups; only these travel together."""
        groups: dict[str, list[str]] = {}
        for name in parameters:
            if name in self.of:
                groups.setdefault(self.of[name].partition, []).append(name)
        return groups

    def with_flat(self, buckets: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """Messages by name, where flat ones, which cannot be parted or joined, are taken out of the others.

        Arguments: ``buckets``, parameters that the plan would fuse.
        """
        messages: dict[str, list[str]] = {}
        for bucket, members in buckets.items():
            for name in members:
                shard = self.of.get(name)
                if shard is not None and shard.bucket:
                    messages[shard.bucket] = list(shard.parameters)
                else:
                    messages.setdefault(bucket, []).append(name)
        return messages

    def held(self, accumulated: Iterable[str]) -> frozenset[str]:
        """The gradients that a rank has when its sums are done, of those that its ops add to."""
        return frozenset([self._summed.get(name, name) for name in accumulated])

    @cached_property
    def _summed(self) -> dict[str, str]:
        """By full gradient the shard that comes of its sum."""
        return {full.name: shard.gradient.name for shard in self.all for full in shard.fulls}


def message_sizes(tape: Tape, plan: Plan, shards: Shards, parameters: Iterable[str]) -> dict[str, float]:
    """Bytes that fusion by size counts of each parameter; nothing where it does not count them.

    A full gradient or weight, as far as tensor ranks have it; with MindSpore's levels what it counts, the shard.
    """
    sizes = {}
    for name in parameters if by_size(plan) else ():
        gradient, shard = tape.tensors[f'd:{name}'], shards.of.get(name)
        if shard is not None and (plan.hsdp == 'off' or shard.bucket):
            gradient = shard.fulls[shard.parameters.index(name)]
        sizes[name] = size_of(tape, [gradient])
    return sizes


def split_dims(shards: Sequence[Shard]) -> dict[str, Attribute]:
    """The dims that a message splits its tensors along: one number, or where they differ one for each in a text."""
    dims = [shard.dim for shard in shards]
    return {'dim': dims[0] if len(set(dims)) == 1 else ' '.join(map(str, dims))}


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


# Over which ranks optimizer parallelism shards a parameter: those that hold the same slice of it.


def partial_gradients(tape: Tape) -> set[str]:
    """Parameters whose gradients are also to be summed over the tensor ranks, where these shard nothing."""
    if not tape.degrees or not tape.axes.tensor:
        return set()
    copies, tensor = tape.axes.replicas, tape.axes.tensor
    return {name for name, axes in tape.pending.items() if minus(axes, copies) or axes == tensor}


def sharding(tape: Tape, parameter: str) -> tuple[str, str]:
    """The partition that a parameter can be sharded over, and the one over which shards are replicated.

    Empty: none. Raises ``Infeasible`` where the group does not divide the ranks with the same slice.
    """
    experts = tape.axes.expert
    # The data ranks that share experts may hold different ones of it.
    if tape.degrees and not (experts and experts in tape.layouts[parameter].dims):
        return tape.mesh.sharding
    mirror = tape.groups(tape.axes.expert_data if tape.degrees else tape.layouts[parameter].unsharded_axes)
    size = min(tape.shard_group or mirror.size, mirror.size)
    divided('shard_group', size, mirror.size, f'ranks with the same slice of {parameter}', 'a divisor, or 0 for all')
    if size in (1, mirror.size):
        return (tape.registered(mirror) if size > 1 else ''), ''
    groups = mirror.groups_GP.reshape(-1, mirror.size // size, size)
    # Neighbours shard, those at equal places replicate, as in ``Mesh.partitions``.
    near = Partition(f'{mirror.name}.shard', groups.reshape(-1, size))
    far = Partition(f'{mirror.name}.replica', groups.swapaxes(1, 2).reshape(-1, mirror.size // size))
    return tape.registered(near), tape.registered(far)


def neighbours(tape: Tape, partition: str, size: int) -> str:
    """The partition of second shards: so many neighbours of a group. Raises ``Infeasible`` where they do not divide."""
    groups = tape.partitions[partition].groups_GP
    divided('second_shards', size, groups.shape[1], 'ranks of a shard group', 'a divisor, or 0 for none')
    return tape.registered(Partition(f'{partition}.near', groups.reshape(-1, size)))


# Packed shards: equal ranges of parameters that are flattened and padded, as FSDP2, FSDP1 and Megatron-LM have them.
#
# The length of a *padded* parameter is a whole number of rows for every rank, as torch.chunk deals them out: rank i
# has rows i·c to (i + 1)·c, c = ⌈rows / ranks⌉, the last ones fewer or none, and zeros in their place. The length of
# a *flat* message is the sum of its parameters' elements, up to the next multiple of the ranks. Zeros stay zeros: no
# gradient is added to them, and no optimizer moves a weight of 0 whose gradient and states are 0.


MEMBERS = 'members'
"""How a packed weight is first filled: as its members."""


def output_dims(tape: Tape) -> dict[str, int]:
    """How many leading dims of parameters of products are outputs: torch has them as one dim, its rows."""
    telling = (op for op in (*tape.ops, *tape.casts) if 'outputs' in op.attributes)
    return {name: int(op.attributes['outputs']) for op in telling for name in op.reads}


def _register(
    tape: Tape, tensors: Sequence[Tensor], groups: tuple[str, str], length: int, names: tuple[str, str], *,
    weights: bool,
) -> Shard:  # fmt: skip
    """Put the packed weight and gradient, and what is full, on the tape.

    Arguments: ``length``, elements of all shards of a group, padding and all; ``names`` of weight and gradient.
    """
    gathered = tuple(
        replace(tensor, name=f'{tensor.name}.gathered', kind='gathered', like=tensor.name) if weights else tensor
        for tensor in tensors
    )
    # A flat buffer belongs to no single parameter.
    like = tensors[0].name if len(tensors) == 1 else ''
    splits = (Split(0, groups[0]),)
    weight = Tensor(
        name=names[0],
        kind='parameter' if weights else 'view',
        shape=(length,),
        dtype=tensors[0].dtype,
        splits=splits,
        initial=MEMBERS if weights else '',
        like='' if weights else like,
        members=tuple(tensor.name for tensor in gathered),
    )
    gradient = Tensor(
        name=names[1],
        kind='gradient',
        shape=(length,),
        dtype=tape.tensors[f'd:{tensors[0].name}'].dtype,
        splits=splits,
        like=like,
        members=tuple(f'd:{tensor.name}.whole' for tensor in tensors),
    )
    return _registered(tape, tensors, weight, gradient, gathered, 0, groups)


def _registered(
    tape: Tape, tensors: Sequence[Tensor], weight: Tensor, gradient: Tensor, gathered: Sequence[Tensor], dim: int,
    groups: tuple[str, str],
) -> Shard:  # fmt: skip
    """Put a shard, and what is full of it, on the tape."""
    fulls = tuple([replace(tape.tensors[f'd:{one.name}'], name=f'd:{one.name}.whole') for one in tensors])
    for made in (*fulls, gradient, weight, *gathered):
        tape.tensors[made.name] = made
    return Shard(
        parameters=tuple(tensor.name for tensor in tensors),
        weight=weight,
        gradient=gradient,
        fulls=fulls,
        gathered=tuple(tensor.name for tensor in gathered),
        dim=dim,
        partition=groups[0],
        replica=groups[1],
    )


# Sharding of parameters: which are sharded, in which form, and the tensors that this puts on the tape.
#
# ``dim`` shards a parameter into equal slices of one dim; what does not divide stays full. The other two forms divide
# everything, for they pad: ``padded`` each parameter's rows, ``flat`` the parameters of a message in one buffer.
# ``owned`` is flat, but that ranges of Muon's matrices end where a matrix ends.


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parameter that the plan wants sharded.

    Arguments:
        groups: as ``sharding`` gives them.
        size: ranks of a shard group.
        dim: the dim that ``size`` divides; None: it divides none.
    """

    tensor: Tensor
    groups: tuple[str, str]
    size: int
    dim: int | None


def shard(
    tape: Tape, plan: Plan, ids: Callable[[], Mapping[str, int]], *, apart: Mapping[str, tuple[int, int]] | None = None
) -> Shards:
    """Shard what a plan wants sharded: replaces tensors of the tape, and what its ops read and add to.

    Parameters that are too small or named by the plan stay full; with ``dim`` also those that do not divide, with a
    note. Arguments: ``ids`` of layers, asked for only where fusion decides; ``apart``, matrices with an
    update of their own, by how many leading dims count them, and how many are rows: none shares a flat message with
    others, as no group of parameters does in DeepSpeed.
    """
    choice = choice_of(plan)
    if not choice.parts:
        return Shards(choice=choice)
    wanted = {one.tensor.name: one for one in _wanted(tape, choice)}
    # Told before anything is made: with ``padded`` and ``flat`` one uneven member decides for its message.
    uneven = {name for name, one in wanted.items() if one.dim is None}
    made: dict[str, Shard] = {}
    if choice.form != 'dim' and (choice.everywhere or uneven):
        outputs = output_dims(tape)
        for bucket, names in _messages(tape, plan, ids(), wanted, apart or {}):
            # A preset takes its system's form where a message needs it: where all divides, both send the same bytes.
            if choice.everywhere or not uneven.isdisjoint(names):
                made |= _packed(tape, choice, bucket, [wanted[name] for name in names], outputs, apart or {})
    tape.notes += _full([wanted[name] for name in wanted if name in uneven - made.keys()], tape)
    for name, one in wanted.items():
        if name not in made and name not in uneven:
            made[name] = _by_dim(tape, one, weights='weights' in choice.parts)
    shards = Shards(choice=choice, of={name: made[name] for name in wanted if name in made})
    _rename(tape, shards)
    return shards


def _wanted(tape: Tape, choice: Choice) -> Iterator[Wanted]:
    for tensor in list(tape.tensors.values()):
        # What has no gradient is a constant.
        trained = tensor.kind == 'parameter' and f'd:{tensor.name}' in tape.tensors
        small = bool(choice.threshold) and size_of(tape, [tensor]) < choice.threshold
        if trained and not small and not any(fnmatchcase(tensor.name, pattern) for pattern in choice.unsharded):
            groups = sharding(tape, tensor.name)
            if groups[0]:
                size = tape.partitions[groups[0]].size
                yield Wanted(tensor, groups, size, _dim(local_shape(tape, tensor), size))


def _dim(local: tuple[int, ...], size: int) -> int | None:
    """The dim to shard: the first; where a weight has more than two, whose first are its outputs, any that divides."""
    # The first dim, as MindSpore and FSDP shard; queries, keys and values by heads have several that are outputs.
    dims = range(len(local)) if len(local) > 2 else range(1)
    return next((dim for dim in dims if local[dim] % size == 0), None)


def _full(wanted: Sequence[Wanted], tape: Tape) -> Iterator[str]:
    """A note for what cannot be sharded; one for all layers that are alike."""
    alike: dict[tuple[str, tuple[int, ...], int], list[str]] = {}
    for one in wanted:
        key = (re.sub(r'\d+', '*', one.tensor.name), local_shape(tape, one.tensor), one.size)
        alike.setdefault(key, []).append(one.tensor.name)
    for (pattern, local, size), names in alike.items():
        who = f'{names[0]} stays' if len(names) == 1 else f'{pattern} ({len(names)} of them) stay'
        has = ' × '.join(map(str, local)) if len(local) > 2 else f'{local[0]} rows'
        yield f'{who} unsharded on every data rank: {has} are not divisible by a shard group of {size}'


def _messages(
    tape: Tape, plan: Plan, ids: Mapping[str, int], wanted: Mapping[str, Wanted], apart: Mapping[str, tuple[int, int]]
) -> Iterator[tuple[str, list[str]]]:
    """Parameters that are reduced and gathered as one message, as far as the plan fuses them, by its name.

    They belong to one stage and are sharded over the same groups. What two stages use is a message of its own, for
    both hold it.
    """
    stages = {tape.tensors[name].like: {op.stage for op in ops} for name, ops in tape.adders().items()}
    by_group: dict[tuple[int, str, str, bool], list[str]] = {}
    for name, one in wanted.items():
        alone = name if len(stages[name]) > 1 else ''
        # One message has one group of ranks, is ready in one stage, and is updated by one rule.
        by_group.setdefault((min(stages[name]), one.groups[0], alone, name in apart), []).append(name)
    # Fusion by size counts gradients, which may be wider than weights.
    size = {name: size_of(tape, [tape.tensors[f'd:{name}']]) for name in wanted}
    several = tape.mesh.stages > 1
    for (stage, _, alone, of_own), names in by_group.items():
        if plan.shard_form == 'owned' and of_own:
            yield from _dealt_out(tape, [wanted[name] for name in names], apart)
            continue
        # Not the names of other messages: those are counted without regard to what is used in two stages.
        scope = f'stage{stage}.packed.' if several else 'packed.'
        for bucket, members in fuse(names, size, plan, ids, scope).items():
            yield alone or (f'{bucket}.apart' if of_own else bucket), members


def _dealt_out(
    tape: Tape, wanted: Sequence[Wanted], apart: Mapping[str, tuple[int, int]]
) -> Iterator[tuple[str, list[str]]]:
    """Messages of matrices that are alike, one for each rank of a shard group, in the order of their use.

    As KellerJordan/Muon does (muon.py, ``params[base_i + rank]`` and the gather of a round). Megatron-LM's layout fills
    buckets with unlike ones (d98e8a64, layer_wise_optimizer.py), and its ranks own whole matrices, too.
    """
    alike: dict[tuple[object, ...], list[Wanted]] = {}
    for one in wanted:
        alike.setdefault((one.tensor.shape, one.tensor.splits, apart[one.tensor.name]), []).append(one)
    for same in alike.values():
        first = same[0].tensor
        many = prod(local_shape(tape, first)[: apart[first.name][0]])
        each = max(1, same[0].size // many)
        for begin in range(0, len(same), each):
            names = [one.tensor.name for one in same[begin : begin + each]]
            yield f'{names[0]}.owned', names


def _packed(
    tape: Tape, choice: Choice, bucket: str, wanted: Sequence[Wanted], outputs: Mapping[str, int],
    apart: Mapping[str, tuple[int, int]],
) -> dict[str, Shard]:  # fmt: skip
    """The shards of a message: of each parameter by rows, or of all in one buffer.

    Does not model: what Megatron-LM and DeepSpeed align besides, for the sake of kernels and links
    (docs/optimizer_parallel.md).
    """
    weights, (size, groups) = 'weights' in choice.parts, (wanted[0].size, wanted[0].groups)
    tensors, found = [one.tensor for one in wanted], dict[str, Shard]()
    for tensor in tensors if choice.form == 'padded' else ():
        # A weight that has several dims of outputs, as queries, keys and values by heads, has rows of all of them.
        local, dims = local_shape(tape, tensor), outputs.get(tensor.name, 1)
        # Rounded up to whole rows for every rank, padding and all, as FSDP2 allocates.
        length = -(-prod(local[:dims]) // size) * size * prod(local[dims:])
        names = (tensor.name if weights else f'{tensor.name}.piece', f'd:{tensor.name}')
        found[tensor.name] = _register(tape, [tensor], groups, length, names, weights=weights)
    if found:
        return found
    sides = apart.get(tensors[0].name) if choice.form == 'owned' else None
    each = size if sides is None else size * prod(local_shape(tape, tensors[0])[sides[0] :])
    # One padding behind all of them: parameters may lie across the borders of ranks.
    length = -(-sum(local_elements(tape, tensor) for tensor in tensors) // each) * each
    flat = f'{bucket}.flat.{groups[0]}'
    shard = _register(
        tape, tensors, groups, length, (flat if weights else f'{flat}.piece', f'd:{flat}'), weights=weights
    )
    # The buffer holds the gradients' sums; the tensors that it replaces are left out of the program.
    tape.replaced.update(f'{mark}{tensor.name}' for tensor in tensors for mark in (('d:', '') if weights else ('d:',)))
    shard = replace(shard, bucket=bucket, flat=flat, owned=sides is not None)
    if shard.owned:
        shard = replace(shard, weight=replace(shard.weight, apart=True))
        tape.tensors[shard.weight.name] = shard.weight
    return dict.fromkeys(shard.parameters, shard)


def _by_dim(tape: Tape, wanted: Wanted, *, weights: bool) -> Shard:
    """Register a parameter's equal shards and what is full of it."""
    tensor, name = wanted.tensor, wanted.tensor.name
    assert wanted.dim is not None
    split = (Split(wanted.dim, wanted.groups[0]),)
    gradient = tape.tensors[f'd:{name}']
    weight, gathered = replace(tensor, splits=tensor.splits + split), tensor
    if weights:
        gathered = replace(tensor, name=f'{name}.gathered', kind='gathered', initial='', like=name)
    else:
        weight = replace(weight, name=f'{name}.piece', kind='view', initial='', like=name)
    sharded = replace(gradient, splits=gradient.splits + split)
    return _registered(tape, [tensor], weight, sharded, [gathered], wanted.dim, wanted.groups)


def _rename(tape: Tape, shards: Shards) -> None:
    """Have ops read what is gathered, and add to full gradients."""
    reads: dict[str, str] = {}
    adds: dict[str, str] = {}
    for one in shards.all:
        for name, full, gathered in zip(one.parameters, one.fulls, one.gathered, strict=True):
            adds[f'd:{name}'] = full.name
            if gathered != name:
                reads[name] = gathered
    # In place: others hold the list.
    tape.ops[:] = [_renamed(op, reads, adds) for op in tape.ops]


def _renamed(op: OpClass, reads: Mapping[str, str], adds: Mapping[str, str]) -> OpClass:
    if op.phase == 'U' or (reads.keys().isdisjoint(op.reads) and adds.keys().isdisjoint(op.accumulates)):
        return op
    accumulates = tuple([adds.get(name, name) for name in op.accumulates])
    return replace(op, reads=tuple([reads.get(name, name) for name in op.reads]), accumulates=accumulates)
