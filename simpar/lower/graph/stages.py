"""Stages: which layers of the model each stage of the pipeline holds."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from simpar import keys, plans, program
from simpar.errors import Infeasible, Problem
from simpar.layout import Axis, TensorLayout, merged, size_of
from simpar.lower.graph.chunks import of_any_chunk
from simpar.lower.graph.move import Mover
from simpar.lower.graph.place import left_of
from simpar.lower.issue import PIPELINE, expert_stride
from simpar.lower.passes.optimizer_parallel import Shards
from simpar.lower.tape import Tape, Value, local_elements
from simpar.model.model import Model
from simpar.pipeline import order, zero_bubble
from simpar.workload import Workload


def stage_of_layer(layers: int, stages: int, per_stage: tuple[int, ...]) -> tuple[int, ...]:
    """For each layer, its stage.

    Arguments: ``per_stage``, layers of each stage; empty: equal counts, the first stages one more where these
    do not divide.
    Raises ``Infeasible`` where the counts are not those of the stages and layers.
    """
    counts = per_stage or tuple(layers // stages + (stage < layers % stages) for stage in range(stages))
    if len(counts) != stages:
        raise Infeasible(
            f'plan.stages lists {len(counts)} stages, but the pipeline has {stages}; list {stages} counts of layers'
        )
    if sum(counts) != layers:
        raise Infeasible(
            f'plan.stages lists {sum(counts)} layers, but the model has {layers}; choose counts whose sum is {layers}'
        )
    return tuple(stage for stage, count in enumerate(counts) for _ in range(count))


def marked_stages(marks: Sequence[int | None], stages: int) -> tuple[int, ...]:
    """For each layer, its stage by marks, each of which holds until the next; empty without marks.

    Raises ``Infeasible`` where marks go back, leave a stage out or go beyond the last.
    """
    if all(mark is None for mark in marks):
        return ()
    by_layer: list[int] = []
    for mark in marks:
        by_layer.append(mark if mark is not None else by_layer[-1] if by_layer else 0)
    if by_layer != sorted(by_layer) or set(by_layer) != set(range(stages)):
        raise Infeasible(f'pipeline_stage marks give {by_layer}, but must rise from 0 to {stages - 1} without a gap')
    return tuple(by_layer)


def stages_of(model: Model, stages: int, per_stage: Sequence[int]) -> tuple[int, ...]:
    """For each operator of a model its stage: by marks, or by counts.

    Arguments: ``per_stage``, of each stage how many layers it holds, or what else people count in the model; empty:
    equal counts. What stands before the first is in the first stage, what stands behind the last in the last. Raises
    ``Infeasible`` where these do not fit.
    """
    marked = marked_stages([node.operator.pipeline_stage for node in model.nodes], stages)
    if marked:
        return marked
    unit = unit_of(model, stages, per_stage)
    count = model.counts[unit]
    # Operators before the first unit have the number −1, those behind the last have its count.
    place = {-1: 0, count: stages - 1, **dict(enumerate(stage_of_layer(count, stages, tuple(per_stage))))}
    return tuple(place[number] for number in model.counted[unit])


def unit_of(model: Model, stages: int, per_stage: Sequence[int]) -> str:
    """What stages are counted in: what there are as many of as ``per_stage``, else what there are enough of."""
    counts = model.counts
    fit = [name for name, count in counts.items() if sum(per_stage) == count]
    # From the last: stages of a network count dense layers where there are enough of them.
    enough = [name for name in reversed(counts) if counts[name] >= stages]
    return next(iter(fit if per_stage else enough), next(reversed(counts)))


# DualPipe: micro-batches run through the pipeline both ways at once, so that every stage has two homes.
#
# Pipeline rank r of p holds stage r for one direction and stage p − 1 − r for the other. So do its mirror p − 1 − r,
# with the directions the other way round: both hold the same weights. A mirrored pair is therefore lowered as two
# data ranks of one place of ``dualpipe-v`` on p / 2 places. What is different is where a micro-batch goes from the
# first half of the stages to the second: to the mirror, and its gradient back. Both do so at once, so it is one
# exchange. (DeepSeek-V3, arXiv 2412.19437, 3.2.1, and github.com/deepseek-ai/DualPipe.)


MIRROR = 'mirror'
"""The two homes of a stage."""
MIRRORED = 'data.mirrored'
"""Data ranks, each at the place of its mirror: whose samples the second half of the stages works on."""


def has_two_homes(plan: plans.Plan) -> bool:
    """Whether micro-batches go both ways."""
    return plan.order == zero_bubble.TWO_HOMES and not plan.rows and plan.pipeline > 1


def two_homes_fit(workload: Workload, plan: plans.Plan) -> Iterator[Problem]:
    """Counts that do not halve, and what is not built beside it."""
    for name, count in (('pipeline', plan.pipeline), ('micro_batches', plan.micro_batches)):
        if count % 2:
            what = f'{count} is odd, and dualpipe has as many of them for each direction'
            yield Problem(('plan', name), what, 'write an even number, or order: dualpipe-v')
    if plan.micro_batches < 2 * plan.pipeline:
        what = f'{plan.micro_batches} micro-batches, but dualpipe needs two for each of {plan.pipeline} pipeline ranks'
        yield Problem(('plan', 'micro_batches'), what, f'write at least {2 * plan.pipeline}')
    yield from keys.conflicts_of('dualpipe', plan=plan, model=workload.model)


def order_of_a_half(plan: plans.Plan) -> order.Order:
    """What each place of two mirrored pipeline ranks does."""
    return zero_bubble.dualpipe_v(plan.pipeline // 2, plan.micro_batches // 2)


def folded(workload: Workload, plan: plans.Plan, world: int) -> plans.Plan:
    """The plan with mirrored pipeline ranks as data ranks. Raises ``Infeasible`` where something does not fit."""
    if not has_two_homes(plan):
        # Rows, or one rank, in the order's place.
        return replace(plan, order=plans.Plan().order) if plan.order == zero_bubble.TWO_HOMES else plan
    for problem in two_homes_fit(workload, plan):
        raise Infeasible(str(problem))
    data = plan.data or max(1, world // (plan.context * plan.tensor * plan.pipeline))
    expert_stride(plan, data)
    return in_both_directions(replace(plan, data=data))


def in_both_directions(plan: plans.Plan) -> plans.Plan:
    """The degrees of a plan by samples that are worked on together: those of both directions, half as often."""
    if not has_two_homes(plan):
        return plan
    data, halves = 2 * max(1, plan.data), (plan.pipeline // 2, plan.micro_batches // 2)
    return replace(plan, data=data, pipeline=halves[0], micro_batches=halves[1])


def _mirrors(tape: Tape) -> str:
    """The partition of the pairs; it has a stream of its own, so that no sum of gradients is in the way."""
    mesh = tape.mesh
    pairs = tape.groups(merged([Axis(2, mesh.data // 2 * mesh.context * mesh.tensor)]))
    return tape.registered(program.Partition(MIRROR, pairs.groups_GP))


def _to_mirror(tape: Tape, out: Sequence[Value], into: Sequence[Value], phase: program.Phase) -> None:
    """Exchange values with those of the mirror."""
    for own, other in zip(out, into, strict=True):
        tape.register(other, dtype=tape.tensors[own.name].dtype)
        tape.emit_collective('send_recv', phase, _mirrors(tape), own.name, other.name)


def mirror_inputs(tape: Tape) -> None:
    """Have the second half of the stages read the samples of the mirror.

    Inputs that both halves read, as the keys of dropout, would have to be drawn twice: they are refused.
    """
    half, size, samples = tape.mesh.stages // 2, tape.mesh.data, tape.partition(tape.axes.data)
    for name, tensor in list(tape.tensors.items()):
        stages = [op.stage for op in tape.ops if name in op.reads] if tensor.kind == 'input' else []
        if not stages or max(stages) < half:
            continue
        assert min(stages) >= half, f'both directions read {name}'
        groups = tape.partitions[samples].groups_GP
        places = [(place + size // 2) % size for place in range(size)]
        mirrored = tape.registered(program.Partition(MIRRORED, groups[:, places]))
        splits = [one._replace(partition=mirrored) if one.partition == samples else one for one in tensor.splits]
        tape.tensors[name] = replace(tensor, splits=tuple(splits))


# Stage boundaries: the values that later stages read go on in one message, and their gradients come back in one.


def send_to_next_stage(tape: Tape, values: Sequence[Value], chunks: Mover | None = None) -> list[Value]:
    """Go on in the next stage: every rank sends its shards of the values there, and gets their gradients back.

    Where both stages are on one rank, nothing is sent. Arguments: ``chunks``, who makes and gathers what a tensor rank
    sends of a value that all of them hold (Megatron-LM's scatter_gather_tensors_in_pipeline); none: all send all of it.
    """
    sender, receiver = tape.stage, tape.stage + 1
    stays = tape.mesh.pipeline_rank(sender) == tape.mesh.pipeline_rank(receiver)
    if stays and not tape.mesh.mirrored:
        return _stay(tape, values)
    arrived = [one.like(f'{one.name}.received')._replace(needs_gradient=one.needs_gradient) for one in values]
    if stays:
        _to_mirror(tape, values, arrived, 'F')
        tape.stage = receiver
    else:
        _in_chunks(tape, values, arrived, 'F', (sender, receiver), chunks)

    def backward() -> None:
        gradients = [(value, tape.pop(one)) for value, one in zip(values, arrived, strict=True)]
        pairs = [(value, one) for value, one in gradients if one is not None and value.needs_gradient]
        sent = pairs if stays else [(value, _own(tape, one)) for value, one in pairs]
        if not sent:
            return
        # Names differ by the way that layouts came about, as they did when each had a tape of its own: spans and
        # goldens join on them.
        ending = '@mirror' if stays else '@stage' if tape.degrees else '.back'
        returned, gone = [one.like(f'd:{value.name}{ending}') for value, one in sent], [one for _, one in sent]
        if stays:
            _to_mirror(tape, gone, returned, 'I')
        else:
            _in_chunks(tape, gone, returned, 'I', (receiver, sender), chunks)
        for (value, _), gradient in zip(sent, returned, strict=True):
            tape.accumulate(value, gradient)

    tape.on_backward(backward)
    return arrived


def _stay(tape: Tape, values: Sequence[Value]) -> list[Value]:
    """Hand the values to the next stage of the same rank.

    A stage frees what it alone reads. So a value that this stage's backward reads too is copied.
    """
    # What this stage's backward reads must not end with the later stage's last reader.
    copies = [_copied(tape, value) if value.name in tape.saved else value for value in values]
    tape.stage += 1
    for value in copies:
        tape.backward_of(value, partial(_returned, tape, value))
    return copies


def _returned(tape: Tape, value: Value, gradient: Value) -> None:
    """Hand the gradient to the earlier stage of the same rank.

    The parts were summed in the later stage, so that this stage frees them. A tensor that two stages read would be
    freed by neither.
    """
    tape.accumulate(value, _own(tape, gradient))


def _own(tape: Tape, gradient: Value) -> Value:
    """The gradient, or a copy of one that an operator hands on to several values as it is, as a sum does.

    The stage's other operators read it, too, in a split backward even behind the send. So no op could free it.
    """
    if tape.backward.handed_on[gradient.name] < 2:
        return gradient
    name = f'{gradient.name}.copy'
    names = {op.name for op in tape.ops}
    # A value that goes on over several stages is copied in each, and a redistribution may have copied it, too.
    while name in tape.tensors or f'{name}.I' in names:
        name = f'{name}.copy'
    return _copy(tape, gradient.like(name), gradient, 'I')


def _copy(tape: Tape, copied: Value, of: Value, phase: program.Phase) -> Value:
    tape.register(copied)
    tape.emit_compute(copied.name, 'scale', phase, [of.name], [copied.name], attributes={'factor': 1.0})
    return copied


def _copied(tape: Tape, value: Value) -> Value:
    copied = value.like(f'{value.name}.copy')._replace(needs_gradient=value.needs_gradient)
    tape.backward_of(_copy(tape, copied, value, 'F'), lambda gradient: tape.accumulate(value, gradient))
    return copied


def _in_chunks(
    tape: Tape,
    values: Sequence[Value],
    arrived: Sequence[Value],
    phase: program.Phase,
    stages: tuple[int, int],
    by: Mover | None,
) -> None:
    """Send values between two stages, each tensor rank its chunk of what all of them hold, which is gathered there."""
    sent, come = list(values), list(arrived)
    for place, value in enumerate(values if by else ()):
        layout = _chunk(tape, value)
        if by and layout:
            sent[place] = by.in_layout(value, layout, f'{value.name}.chunk', phase)
            come[place] = arrived[place].like(f'{arrived[place].name}.chunk', layout)
    for value, one in zip(sent, come, strict=True):
        # A mask or an index goes on in its own type, not in the tape's.
        tape.register(one, dtype=tape.tensors[value.name].dtype)
    names, into = (tuple(one.name for one in many) for many in (sent, come))
    # An offset, not a rank, so that all ranks of a stage share the op.
    source, target = map(tape.mesh.pipeline_rank, stages)
    ops = _message(tape, names, into, phase, (target - source, source - target))
    # The receive is emitted last: the tape goes on in the stage that it leads to.
    for tape.stage, op in zip(stages, ops, strict=True):
        tape.emit(op)
    for one, chunk in zip(arrived, come, strict=True):
        if by and chunk is not one:
            by.in_layout(chunk, one.layout, one.name, phase)


def _chunk(tape: Tape, value: Value) -> TensorLayout | None:
    """The layout of a tensor rank's chunk: along the first dim behind the batch that divides; None where none does."""
    layout = value.layout
    if layout.partial or size_of(tape.axes.tensor) == 1 or left_of(tape.axes.tensor, layout.replicated_axes) != ():
        return None
    for dim in range(1, len(value.shape)):
        axes = (*layout.dims[dim], *tape.axes.tensor)
        if value.shape[dim] % size_of(axes) == 0:
            return TensorLayout(layout.world, (*layout.dims[:dim], axes, *layout.dims[dim + 1 :]))
    return None


def _message(
    tape: Tape, names: tuple[str, ...], into: tuple[str, ...], phase: program.Phase, peers: tuple[int, int],
    mark: str = '', stage: int = 0,
) -> tuple[program.OpClass, program.OpClass]:  # fmt: skip
    """A send of tensors and its receive, whose peers stand so far on. Arguments: ``mark``, more of their names."""
    send = program.OpClass(
        name=f'{names[0]}.send{mark}.{phase}',
        kind='send',
        operator='send',
        phase=phase,
        bytes=float(sum(map(tape.held_bytes, names))),
        dtype=tape.tensors[names[0]].dtype,
        partition=PIPELINE,
        peer=peers[0],
        reads=names,
        stage=stage,
    )
    name = f'{names[0]}.recv{mark}.{phase}'
    return send, replace(send, name=name, kind='recv', operator='recv', peer=peers[1], reads=(), writes=into)


# A tied embedding: the first stage embeds with the weight that the last stage's head multiplies with.
#
# Where both stages are on one rank, it is one parameter. Else each has a copy, and both send their gradients to each
# other and add them, so that both copies are updated alike. One end sends first and the other receives first, so that
# they do not wait for each other where all is on one stream.


@dataclass(frozen=True, slots=True)
class End:
    """What a pipeline rank issues for a gradient that another one has, too.

    Arguments: ``gradient``, its name; ``adders``, the rank's own ops that add to it; ``ops``, send, receive and
    addition.
    """

    gradient: str
    adders: frozenset[str]
    ops: tuple[program.OpClass, ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """All gradients that two pipeline ranks have, in an order that is the same on both."""

    ends: tuple[End, ...] = ()

    def ops(self, held: Collection[str], issued: Iterable[program.OpClass]) -> tuple[program.OpClass, ...]:
        """What a pipeline rank issues behind its own sums of the gradients.

        Arguments: ``held``, gradients that the rank adds to; ``issued``, its ops so far.
        """
        ends = [end for end in self.ends if end.gradient in held]
        # In a split backward the op that adds may have a name of its own, and so has that of a chunk.
        names = {of_any_chunk(op.name.removesuffix('.split')) for op in issued} if ends else set()
        return tuple(op for end in ends if not names.isdisjoint(end.adders) for op in end.ops)


def exchange(tape: Tape, shards: Shards) -> Exchange:
    """The exchange of every gradient, or of its shard, that two pipeline ranks accumulate.

    Raises ``Infeasible`` where more than two do.
    """
    ends: list[End] = []
    for gradient, ops in tape.adders().items():
        places: dict[int, list[program.OpClass]] = {}
        for op in ops:
            places.setdefault(tape.mesh.pipeline_rank(op.stage), []).append(op)
        # On one pipeline rank all stages add to one gradient, and nothing has to travel.
        if len(places) == 1:
            continue
        if len(places) > 2:
            weight = gradient.removeprefix('d:')
            raise Infeasible(
                f'plan.pipeline: not yet: {weight} is read on {len(places)} pipeline ranks, and a weight is shared '
                f'by two at most; write a lower degree, or stages that hold modules of further tokens with the head'
            )
        (shard,) = shards.held([gradient])
        one, other = places
        for index, (place, offset) in enumerate(((one, other - one), (other, one - other))):
            own = places[place]
            made = _end(tape, shard, index, offset, own[0].stage)
            ends.append(End(shard, frozenset(op.name for op in own), made))
    return Exchange(tuple(ends))


def _end(tape: Tape, gradient: str, index: int, offset: int, stage: int) -> tuple[program.OpClass, ...]:
    tensor = tape.tensors[gradient]
    other = f'{gradient}.other{index}'
    # An activation, so that it is freed by the addition; batch_dim None, as it is one for the whole step.
    tape.tensors[other] = replace(tensor, name=other, kind='activation', like='', batch_dim=None, members=())
    send, receive = _message(tape, (gradient,), (other,), 'W', (offset, offset), str(index), stage)
    add = program.OpClass(
        name=f'{gradient}.add{index}.W',
        kind='compute',
        operator='add',
        phase='W',
        flops=float(local_elements(tape, tensor)),
        bytes=3 * send.bytes,
        dtype=tensor.dtype,
        reads=(gradient, other),
        writes=(gradient,),
        frees=(other,),
        stage=stage,
    )
    # One end receives first: on a single stream two blocking sends would wait for each other for ever.
    return (receive, send, add) if index else (send, receive, add)
