"""The update: it ends the step, a layer an op, in the order in which the backward finishes the layers."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from simpar.lower.passes.optimizer_parallel import MEMBERS, Shard, Shards, output_dims
from simpar.lower.tape import Tape, local_elements, local_shape, summed
from simpar.model.operators import priced
from simpar.program import BYTES, Attribute, OpClass, Partition, Split, Tensor
from simpar.workload import Adam, AdamW, Momentum, Muon, Optimizer, Sgd, Workload

_compute = partial(OpClass, kind='compute', phase='U')

# What a rank's update reads and writes of every parameter: its shard, or all of it without optimizer parallelism.


def updated(tape: Tape) -> tuple[str, ...]:
    """All parameters that ops add to, in the order in which the forward uses them."""
    adds = {tape.tensors[name].like for name in tape.adders()}
    return tuple([parameter for parameter in tape.tensors if parameter in adds])


def update_shards(tape: Tape, shards: Shards) -> list[Shard]:
    """What a rank updates of all parameters, in the order in which the forward uses them; a message with its first."""
    # The backward goes from the last stage to the first, so that of two users the first stage stays.
    adds = {tape.tensors[name].like: op.stage for op in tape.ops for name in op.accumulates}
    by_name: dict[str, Shard] = {}
    for parameter in updated(tape):
        shard = shards.of.get(parameter) or _whole(tape, parameter)
        by_name.setdefault(shard.name, replace(shard, stage=adds[parameter]))
    return list(by_name.values())


def _whole(tape: Tape, parameter: str) -> Shard:
    """A parameter of which every rank updates all."""
    weight, full = tape.tensors[parameter], tape.tensors[f'd:{parameter}']
    return Shard(parameters=(parameter,), weight=weight, gradient=full, fulls=(full,), gathered=(parameter,), dim=0,
                 partition='', replica='')  # fmt: skip


# What updates must know of all gradients together: their norm, to clip by it, and whether all of them are finite.
#
# Every rank looks at the gradients that it holds, and one message of a number or two over all ranks follows, for which
# every update waits. It stands on the critical path: nothing is left to hide it.


WORLD: Final = 'world'
"""All ranks in one group."""
SQUARES: Final = 'gradients.squares'
OVERFLOW: Final = 'gradients.overflow'


class _Gradient(NamedTuple):
    """What one rank has of a gradient; ``ranks``, how many have the same shard of it, as ``square_sum`` reads it."""

    ranks: str
    elements: int
    bytes: int
    stage: int


@dataclass(frozen=True, slots=True)
class Check:
    """The look at all gradients once their sums are done; nothing without ``numbers``.

    Arguments:
        numbers: tensors that the check writes and updates read.
        gradients: what a rank has of each, by name.
        look: the op that every rank does; the gradients that it reads are filled in for each rank.
        reduction: the message over all ranks, where there are several.
        staged: whether ranks differ by their stages.
    """

    numbers: tuple[str, ...] = ()
    gradients: dict[str, _Gradient] = field(default_factory=dict)
    look: OpClass | None = None
    reduction: OpClass | None = None
    staged: bool = False

    def ops(self, held: Collection[str]) -> list[OpClass]:
        """What a pipeline rank that holds these gradients issues before its updates; one with none takes part too."""
        if self.look is None:
            return []
        look = self._filled(self.look, tuple(name for name in self.gradients if name in held))
        return [look] if self.reduction is None else [look, self.reduction]

    def _filled(self, look: OpClass, names: tuple[str, ...]) -> OpClass:
        mine = [self.gradients[name] for name in names]
        # Unique, for the last stage of a pipeline rank is on no other; a tied weight counts to the first.
        stage = max((gradient.stage for gradient in mine), default=0)
        where = '' if not self.staged else f'.stage{stage}' if mine else '.none'
        squares, checks = SQUARES in self.numbers, OVERFLOW in self.numbers
        return replace(
            look,
            name=f'gradients.{look.operator}{where}.U',
            flops=float(sum(gradient.elements for gradient in mine) * (2 * squares + checks)),
            bytes=float(sum(gradient.bytes for gradient in mine)),
            reads=names,
            attributes=({**look.attributes, 'ranks': ' '.join(one.ranks for one in mine)} if squares else {}),
            stage=stage,
        )


def _numbers(workload: Workload) -> tuple[str, ...]:
    """The numbers of the check that updates read."""
    return ((SQUARES,) if workload.clip_norm else ()) + ((OVERFLOW,) if workload.loss_scale != 1 else ())


def _scaling(workload: Workload) -> dict[str, Attribute]:
    """What updates do with them."""
    clip: dict[str, Attribute] = {'clip_norm': workload.clip_norm} if workload.clip_norm else {}
    return clip | ({'loss_scale': workload.loss_scale} if workload.loss_scale != 1 else {})


def check(tape: Tape, workload: Workload, shards: Sequence[Shard]) -> Check:
    """The check that clipping and a loss scale need; its numbers are registered as tensors.

    They are never freed, as the loss is not: 4 bytes each. Does not model: a step without an update, which nobody can
    foresee; all are priced.
    """
    numbers = _numbers(workload)
    # Without clipping and scaling no update waits for others, and nothing is emitted.
    if not numbers:
        return Check()
    # A sum of squares of 16-bit gradients would be lost in 16 bits.
    dtype = 'fp64' if tape.gradients == 'fp64' else 'fp32'
    for name in numbers:
        tape.tensors[name] = Tensor(name, 'activation', (1,), dtype)
    look = _compute(
        name='',
        operator='square_sum' if workload.clip_norm else 'finite_check',
        dtype=tape.gradients,
        writes=numbers,
        attributes={'loss_scale': workload.loss_scale} if workload.loss_scale != 1 else {},
    )
    return Check(numbers, _gradients(tape, shards), look, _reduction(tape, numbers, dtype), tape.mesh.pipeline > 1)


def _gradients(tape: Tape, shards: Sequence[Shard]) -> dict[str, _Gradient]:
    """By name; every element of a gradient lies on as many ranks as hold the same shard of it."""
    adders = tape.adders().items()
    on = {tape.tensors[name].like: {tape.mesh.pipeline_rank(op.stage) for op in ops} for name, ops in adders}
    # Ranks of one pipeline rank: all of them hold something of each of its parameters.
    each = tape.mesh.world // tape.mesh.pipeline
    gradients = {}
    for shard in shards:
        gradient = shard.gradient
        elements = local_elements(tape, gradient)
        runs = _runs(tape, shard, {full.like: len(on[full.like]) * each for full in shard.fulls})
        gradients[gradient.name] = _Gradient(runs, elements, elements * BYTES[gradient.dtype], shard.stage)
    return gradients


def _runs(tape: Tape, shard: Shard, holders: Mapping[str, int]) -> str:
    """How many ranks have the same shard of a gradient; where members of a packed one differ, for how many elements.

    Arguments: ``holders``, ranks that have any shard of a parameter.
    """
    if not shard.gradient.members:
        parts = prod(tape.partitions[split.partition].size for split in shard.gradient.splits)
        return str(next(iter(holders.values())) // parts)
    partition = shard.gradient.splits[-1].partition
    runs: list[tuple[int, int]] = []
    for full in shard.fulls:
        parts = prod(tape.partitions[split.partition].size for split in full.splits) * tape.partitions[partition].size
        ranks, elements = holders[full.like] // parts, local_elements(tape, full)
        # Neighbours with equal counts are one run: the text stays short for packed messages of a thousand parameters.
        before = runs.pop()[1] if runs and runs[-1][0] == ranks else 0
        runs.append((ranks, before + elements))
    if len(runs) == 1:
        return str(runs[0][0])
    return '+'.join(f'{ranks}x{elements}' for ranks, elements in runs) + f'@{partition}'


def _reduction(tape: Tape, numbers: tuple[str, ...], dtype: str) -> OpClass | None:
    """One message over all ranks."""
    world = tape.mesh.world
    if world == 1:
        return None
    tape.partitions[WORLD] = Partition(WORLD, np.arange(world, dtype=np.int32).reshape(1, -1))
    size = float(len(numbers) * BYTES[dtype])
    return summed('gradients.all_reduce.U', 'U', WORLD, numbers, size, dtype)


# Muon's update of a matrix: its momentum, gathers of what ranks hold of that, and the update of a rank's own shard.
#
# Newton–Schulz needs the full matrix. Every rank gathers it and orthogonalises all of it, the same work on each: what
# distributed Muon is in its simplest form. A weight of experts is a matrix for each of them: a rank gathers those of
# its own experts. Packed shards are gathered as one message; each matrix of it is orthogonalised, and the rank's
# share of all changes is packed again. Does not model: matrices dealt out to ranks, each orthogonalised on one.


ITERATIONS: Final = 5
"""Of Newton and Schulz, as Jordan et al. 2024 do."""
GROUPED: Final = 'grouped_matmul'
"""The op class of a weight that is a matrix for each expert."""


class Sides(NamedTuple):
    """Which dims of a weight are what to Muon.

    Arguments: ``many``, how many leading dims count matrices; ``rows``, how many dims behind these are rows.
    """

    many: int
    rows: int

    def within(self, tensor: Tensor) -> tuple[Split, ...]:
        """The splits that go through a matrix."""
        return tuple(split for split in tensor.splits if split.dim >= self.many)


def matrices(tape: Tape) -> dict[str, Sides]:
    """Parameters that Muon sees as matrices.

    The weights of products and convolutions: what nothing but these add gradients to, and has dims of inputs.
    """
    # What is gathered of a weight is read in its place.
    outputs = {(tape.tensors[name].like or name): count for name, count in output_dims(tape).items()}
    by_name = {}
    for gradient, ops in tape.adders().items():
        operators, dims, name = (
            {op.operator for op in ops},
            len(tape.tensors[gradient].shape),
            tape.tensors[gradient].like,
        )
        # Grouped products have a matrix for each expert; inputs are their last dim.
        sides = Sides(1, dims - 2) if operators == {GROUPED} else Sides(0, outputs.get(name, 1))
        # A tied weight is an embedding too, and a bias has the dims of the outputs alone.
        if operators <= priced('matrix') and dims > sum(sides):
            by_name[name] = sides
    return by_name


def matrices_of(tape: Tape, shard: Shard, matrix_sides: Mapping[str, Sides]) -> dict[str, Sides]:
    """The matrices of a shard by what a rank reads of them in full: one, or those that it packs; empty: none."""
    if not shard.weight.members:
        return {shard.name: matrix_sides[shard.name]} if shard.name in matrix_sides else {}
    named = {name: tape.tensors[name].like or name for name in shard.weight.members}
    return {name: matrix_sides[like] for name, like in named.items() if like in matrix_sides}


def muon_ops(
    tape: Tape,
    shard: Shard,
    sides: Mapping[str, Sides],
    states: tuple[str, ...],
    workload: Workload,
    optimizer: Muon,
) -> tuple[OpClass, ...]:
    """The ops that update one matrix, or those of a packed shard; the first frees its gradient.

    What they hand on is registered. Arguments: ``sides`` as ``matrices_of`` gives them; ``states``, the momentum and,
    with ``master_weights``, the master.
    """
    # 16 bits of fp16 have no range for gradients that are no longer scaled.
    dtype = 'fp32' if shard.gradient.dtype == 'fp16' else shard.gradient.dtype
    change = (
        _stack(tape, shard, dtype, next(iter(sides.values())))
        if shard.owned
        else Tensor(
            f'u:{shard.name}.share' if shard.weight.members else f'u:{shard.name}',
            'gathered',
            shard.weight.shape,
            dtype,
            splits=shard.weight.splits,
            members=tuple(f'u:{name}' for name in shard.weight.members),
        )
    )
    tape.tensors[change.name] = change
    momentum = _momentum(tape, shard, change, states[0], workload, optimizer)
    if change.members:
        packed = _packed(tape, shard, change, sides)
        share = (change, packed[-1].writes[0])
        return momentum, *packed, _muon_update(tape, shard, share, None, states[1:], workload, optimizer)
    of = next(iter(sides.values()))
    of = Sides(1, of.rows) if shard.owned else of
    gathers = tuple(_gathers(tape, change, shard.name, of, shard.stage))
    full = gathers[-1].writes[0] if gathers else change.name
    return momentum, *gathers, _muon_update(tape, shard, (change, full), of, states[1:], workload, optimizer)


def _stack(tape: Tape, shard: Shard, dtype: str, sides: Sides) -> Tensor:
    """The change of a rank's own matrices, one behind the other: what stands flat in the shard."""
    one = tape.tensors[shard.weight.members[0]]
    inner = tuple(Split(1 + split.dim - sides.many, split.partition) for split in sides.within(one))
    count = shard.weight.shape[0] // prod(local_shape(tape, one)[sides.many :])
    shape = (count, *one.shape[sides.many :])
    return Tensor(f'u:{shard.name}', 'gathered', shape, dtype, splits=(*shard.weight.splits, *inner))


def _momentum(tape: Tape, shard: Shard, change: Tensor, state: str, workload: Workload, optimizer: Muon) -> OpClass:
    numbers = _numbers(workload)
    elements = local_elements(tape, change)
    # The gradient is read, the state read and written, the change written.
    moved = BYTES[shard.gradient.dtype] + 2 * BYTES['fp32'] + BYTES[change.dtype]
    return _compute(
        name=f'{shard.name}.momentum.U',
        operator='muon_momentum',
        flops=float(elements * (2 + 2 * optimizer.nesterov + bool(numbers))),
        bytes=float(elements * moved),
        dtype=tape.dtype,
        reads=(shard.gradient.name, state, *numbers),
        writes=(state, change.name),
        frees=(shard.gradient.name,),
        attributes={'momentum': optimizer.momentum, 'nesterov': optimizer.nesterov, **_scaling(workload)},
        stage=shard.stage,
    )


def _gathers(tape: Tape, change: Tensor, parameter: str, sides: Sides, stage: int) -> Iterator[OpClass]:
    """An all-gather for each split of matrices; the last split first, as it lies within the others."""
    held = change
    for last in reversed(sides.within(change)):
        splits = tuple(split for split in held.splits if split != last)
        made = replace(held, name=f'{change.name}.{last.partition}', splits=splits)
        tape.tensors[made.name] = made
        yield _all_gather(parameter, held, (made.name,), last, local_elements(tape, made), stage)
        held = made


def _all_gather(
    parameter: str, held: Tensor, writes: tuple[str, ...], split: Split, elements: int, stage: int
) -> OpClass:
    """What ranks hold of a change, gathered along a split; ``elements`` of what is made."""
    return OpClass(
        name=f'{parameter}.change.{split.partition}.all_gather.U',
        kind='collective',
        operator='all_gather',
        phase='U',
        bytes=float(elements * BYTES[held.dtype]),
        dtype=held.dtype,
        partition=split.partition,
        reads=(held.name,),
        writes=writes,
        frees=(held.name,),
        attributes={'dim': split.dim},
        stage=stage,
    )


def _packed(tape: Tape, shard: Shard, change: Tensor, sides: Mapping[str, Sides]) -> tuple[OpClass, ...]:
    """Gather the momenta of a packed shard, orthogonalise each, and pack this rank's share of all changes."""
    (split,) = shard.weight.splits
    changes, ops = list[Tensor](), list[OpClass]()
    for name, member in zip(shard.weight.members, change.members, strict=True):
        unsharded = Tensor(member, 'gathered', tape.tensors[name].shape, change.dtype, splits=tape.tensors[name].splits)
        made = replace(unsharded, name=f'c:{name}')
        tape.tensors |= {unsharded.name: unsharded, made.name: made}
        changes.append(made)
        gathers = tuple(_gathers(tape, unsharded, name, sides[name], shard.stage))
        full = gathers[-1].writes[0] if gathers else unsharded.name
        ops += [*gathers, _change(tape, made, full, sides[name], shard.stage)]
    share = replace(change, name=f'c:{shard.name}.share', members=tuple(made.name for made in changes))
    tape.tensors[share.name] = share
    gather = _all_gather(shard.name, change, change.members, split, change.shape[0], shard.stage)
    pack = _compute(
        name=f'{shard.name}.change.piece.U',
        operator='piece',
        dtype=change.dtype,
        reads=share.members,
        writes=(share.name,),
        frees=share.members,
        attributes={'dim': 0, 'partition': split.partition},
        stage=shard.stage,
    )
    return gather, *ops, pack


def _change(tape: Tape, made: Tensor, full: str, sides: Sides, stage: int) -> OpClass:
    """Newton–Schulz of the full matrix, of which a rank keeps what it has of the weight."""
    return _compute(
        name=f'{made.name}.U',
        operator='muon_change',
        reads=(full,),
        writes=(made.name,),
        frees=(full,),
        stage=stage,
        attributes=_matrix_attributes(sides, made),
        **_work(tape, full, sides, 0.0),
    )


def _muon_update(
    tape: Tape, shard: Shard, changes: tuple[Tensor, str], sides: Sides | None, masters: tuple[str, ...],
    workload: Workload, optimizer: Muon,
) -> OpClass:  # fmt: skip
    """Newton–Schulz of the full matrix; the shard that this rank has of it changes the weight.

    Arguments: ``changes``, what the rank has, and its name in full; ``sides``, None: it is packed, and worked out.
    """
    weight, (held, full) = shard.weight, changes
    elements, written = local_elements(tape, weight), _written(weight, masters)
    worked_out = {
        'flops': float(elements * 3),
        'bytes': float(elements * (written + BYTES[tape.tensors[full].dtype])),
        'dtype': tape.dtype,
    }
    numbers = (OVERFLOW,) if workload.loss_scale != 1 else ()
    return _compute(
        name=f'{shard.name}.update.U',
        operator='muon' if sides else 'muon_step',
        reads=(full, weight.name, *masters, *numbers),
        writes=(weight.name, *masters),
        frees=(full,),
        attributes=_rates(optimizer, masters, workload) | (_matrix_attributes(sides, held) if sides else {}),
        stage=shard.stage,
        **(_work(tape, full, sides, float(elements * written)) if sides else worked_out),
    )


def _work(tape: Tape, full: str, sides: Sides, written: float) -> dict[str, Any]:
    """What Newton–Schulz takes of all matrices that a rank has.

    Arguments: ``written``, bytes beside the iterations. A = X·Xᵀ, A·A and the product of their sum with X are counted;
    what is done element by element is not.
    """
    tensor = tape.tensors[full]
    shape = local_shape(tape, tensor)
    ends = sides.many, sum(sides)
    count, *both = prod(shape[: ends[0]]), prod(shape[ends[0] : ends[1]]), prod(shape[ends[1] :])
    short, long = min(both), max(both)
    times = ITERATIONS * count
    return {
        'dims': {'short': short, 'long': long, 'iterations': times},
        'flops': float(times * (4 * short**2 * long + 2 * short**3)),
        'bytes': float(times * BYTES[tensor.dtype] * (4 * short * long + 5 * short**2) + written),
        'dtype': tensor.dtype,
    }


def _matrix_attributes(sides: Sides, held: Tensor) -> dict[str, Attribute]:
    """What kernels must know of a matrix, and which part of it a rank has."""
    splits = sides.within(held)
    return {
        'rows': sides.rows,
        **({'many': sides.many} if sides.many else {}),
        'iterations': ITERATIONS,
        'splits': ' '.join(str(split.dim) for split in splits),
        'partitions': ' '.join(split.partition for split in splits),
    }


def _rates(optimizer: Muon, masters: tuple[str, ...], workload: Workload) -> dict[str, Attribute]:
    """What kernels must know of the rule."""
    return {
        'learning_rate': optimizer.learning_rate,
        'weight_decay': optimizer.weight_decay,
        **({'master_weights': True} if masters else {}),
        **({'loss_scale': workload.loss_scale} if workload.loss_scale != 1 else {}),
    }


def _written(weight: Tensor, masters: tuple[str, ...]) -> int:
    """Bytes an element: without masters the weight is read and written, with them written and the master both."""
    return BYTES[weight.dtype] * (1 if masters else 2) + 2 * BYTES['fp32'] * len(masters)


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


def updates(tape: Tape, workload: Workload, shards: Sequence[Shard]) -> Updates:
    """All updates; states are registered as tensors."""
    layers: dict[str, list[Shard]] = {}
    first: dict[str, int] = {}
    for shard in shards:
        # A stage boundary may stand within a part of a module: each stage updates what it holds.
        alone = first.setdefault(shard.layer, shard.stage) == shard.stage
        layers.setdefault(shard.layer if alone else f'{shard.layer}@{shard.stage}', []).append(shard)
    # The backward finishes the last layer first.
    matrix_sides = matrices(tape) if isinstance(workload.optimizer, Muon) else {}
    ops = (one for layer, own in reversed(layers.items()) for one in _updates(tape, layer, own, matrix_sides, workload))
    return Updates(check(tape, workload, shards), tuple(ops))


def _updates(
    tape: Tape, layer: str, shards: list[Shard], matrix_sides: Mapping[str, Sides], workload: Workload
) -> Iterator[tuple[OpClass, ...]]:
    """Of one layer: matrices each for itself, or those of a packed shard, all others in one op."""
    optimizer = workload.optimizer
    sides = [matrices_of(tape, shard, matrix_sides) for shard in shards]
    if isinstance(optimizer, Muon):
        for shard, of in zip(shards, sides, strict=True):
            if of:
                states = tuple(_state(tape, kind, shard, optimizer) for kind in _states(optimizer))
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


def _update(tape: Tape, layer: str, shards: list[Shard], workload: Workload) -> OpClass:
    """Reads gradients, weights, states, the count of updates where they can be left out, and the check's numbers."""
    optimizer, rule = workload.optimizer, _rule(workload.optimizer)
    names = tuple(shard.gradient.name for shard in shards)
    weights = tuple(shard.weight.name for shard in shards)
    kinds = _states(optimizer)
    states = tuple(_state(tape, kind, shard, optimizer) for kind in kinds for shard in shards)
    master: dict[str, Attribute] = {'master_weights': optimizer.master_weights} if optimizer.master_weights else {}
    numbers = _numbers(workload)
    # Adam's bias correction needs the number of updates; without a loss scale that is the number of steps.
    if workload.loss_scale != 1 and isinstance(optimizer, Adam | AdamW):
        states += (_count(tape, layer),)
    elements = sum(local_elements(tape, shard.weight) for shard in shards)
    # Bytes an element: the gradient is read, states are read and written.
    moved = BYTES[shards[0].gradient.dtype] + 2 * sum(BYTES[_state_dtype(tape, kind, optimizer)] for kind in kinds)
    # With full master weights the weight itself is only written.
    moved += BYTES[tape.dtype] * (1 if optimizer.master_weights is True else 2)
    return _compute(
        name=f'{layer}.update.U',
        operator=rule.operator,
        # One more operation an element: the gradient is scaled by what the check found.
        flops=float(elements * (rule.flops + bool(numbers))),
        bytes=float(elements * moved),
        dtype=tape.dtype,
        reads=(*names, *weights, *states, *numbers),
        writes=(*weights, *states),
        frees=names,
        attributes={**rule.attributes, **master, **_scaling(workload)},
        stage=shards[0].stage,
    )


def _state_dtype(tape: Tape, kind: str, optimizer: Optimizer) -> str:
    """The precision of a state; a shared master is what 16 bits of a weight lack, in as many bits."""
    if kind == MASTER:
        return tape.dtype if optimizer.master_weights == 'shared' else 'fp32'
    return optimizer.moments if isinstance(optimizer, Adam | AdamW) else 'fp32'


def _state(tape: Tape, kind: str, shard: Shard, optimizer: Optimizer) -> str:
    """Register a state of a weight, sharded as the update has the weight."""
    name = f'{kind}:{shard.name}'
    members = shard.weight.members
    full = kind == MASTER and optimizer.master_weights is True
    initial = 'zeros' if not full else MEMBERS if members else tape.tensors[shard.name].initial
    like = shard.name if shard.name in tape.tensors else ''
    weight = shard.weight
    dtype = _state_dtype(tape, kind, optimizer)
    tape.tensors[name] = Tensor(name, 'state', weight.shape, dtype, weight.splits, (), None, initial, like, members)
    return name


def _count(tape: Tape, layer: str) -> str:
    """Register how often a layer was updated: steps whose gradients are not finite do not count."""
    name = f'updates:{layer}'
    tape.tensors[name] = Tensor(name, 'state', (1,), 'int64', initial='zeros')
    return name
