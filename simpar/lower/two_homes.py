"""DualPipe: micro-batches run through the pipeline both ways at once, so that every stage has two homes.

Pipeline rank r of p holds stage r for one direction and stage p − 1 − r for the other. So do its mirror p − 1 − r, with
the directions the other way round: both hold the same weights. A mirrored pair is therefore lowered as two data ranks
of one place of ``dualpipe-v`` on p / 2 places. What is different is where a micro-batch goes from the first half of the
stages to the second: to the mirror, and its gradient back. Both do so at once, so it is one exchange.
(DeepSeek-V3, arXiv 2412.19437, 3.2.1, and github.com/deepseek-ai/DualPipe.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simpar.errors import Infeasible, Problem
from simpar.layout.axis import Axis, merged
from simpar.lower.tape import Tape
from simpar.lower.value import Value
from simpar.pipeline.dualpipe import TWO_HOMES, dualpipe_v
from simpar.pipeline.order import Order
from simpar.plan import Plan
from simpar.program import OpClass, Partition
from simpar.program.op import Phase
from simpar.workload import Transformer, Workload

MIRROR = 'mirror'
"""The two homes of a stage."""
MIRRORED = 'data.mirrored'
"""Data ranks, each at the place of its mirror: whose samples the second half of the stages works on."""


def has_two_homes(plan: Plan) -> bool:
    """Whether micro-batches go both ways."""
    return plan.order == TWO_HOMES and not plan.rows and plan.pipeline > 1


def two_homes_fit(workload: Workload, plan: Plan) -> Iterator[Problem]:
    """Counts that do not halve, and what is not built beside it."""
    for name, count in (('pipeline', plan.pipeline), ('micro_batches', plan.micro_batches)):
        if count % 2:
            what = f'{count} is odd, and dualpipe has as many of them for each direction'
            yield Problem(('plan', name), what, 'write an even number, or order: dualpipe-v')
    if plan.micro_batches < 2 * plan.pipeline:
        what = f'{plan.micro_batches} micro-batches, but dualpipe needs two for each of {plan.pipeline} pipeline ranks'
        yield Problem(('plan', 'micro_batches'), what, f'write at least {2 * plan.pipeline}')
    if plan.stages == 'balanced':
        yield Problem(('plan', 'stages'), 'not yet beside dualpipe', 'write counts, or leave it out')
    if not isinstance(workload.model, Transformer) or plan.search != 'none':
        what = 'dualpipe is built for a transformer whose strategies are given, not searched'
        yield Problem(('plan', 'order'), what, 'write dualpipe-v with half the pipeline ranks and twice the data ranks')
    elif workload.model.dropout:
        what = 'not yet beside dualpipe: both directions would draw masks of their own'
        yield Problem(('workload', 'transformer', 'dropout'), what, 'write 0, or order: dualpipe-v')


def order_of_a_half(plan: Plan) -> Order:
    """What each place of two mirrored pipeline ranks does."""
    return dualpipe_v(plan.pipeline // 2, plan.micro_batches // 2)


def folded(workload: Workload, plan: Plan, world: int) -> Plan:
    """The plan with mirrored pipeline ranks as data ranks. Raises ``Infeasible`` where something does not fit."""
    if not has_two_homes(plan):
        # Rows, or one rank, in the order's place.
        return replace(plan, order=Plan().order) if plan.order == TWO_HOMES else plan
    for problem in two_homes_fit(workload, plan):
        raise Infeasible(str(problem))
    data = plan.data or max(1, world // (plan.context * plan.tensor * plan.pipeline))
    if data % plan.expert:
        raise Infeasible(
            f'plan.expert: {plan.expert} does not divide the {data} data ranks; choose a divisor of {data}'
        )
    return in_both_directions(replace(plan, data=data))


def in_both_directions(plan: Plan) -> Plan:
    """The degrees of a plan by samples that are worked on together: those of both directions, half as often."""
    if not has_two_homes(plan):
        return plan
    data, halves = 2 * max(1, plan.data), (plan.pipeline // 2, plan.micro_batches // 2)
    return replace(plan, data=data, pipeline=halves[0], micro_batches=halves[1])


def sent_to_mirror(tape: Tape, values: Sequence[Value]) -> list[Value]:
    """Go on in the next stage, whose place is the same, at the mirror: values there, and gradients back."""
    arrived = [value.like(f'{value.name}.received') for value in values]
    arrived = [one._replace(needs_gradient=value.needs_gradient) for one, value in zip(arrived, values, strict=True)]
    for value, one in zip(values, arrived, strict=True):
        tape.register(one, dtype=tape.tensors[value.name].dtype)
        _exchange(tape, value, one, 'F')
    tape.stage += 1

    def backward() -> None:
        gradients = [(value, tape.pop(one)) for value, one in zip(values, arrived, strict=True)]
        for value, gradient in gradients:
            if gradient is not None and value.needs_gradient:
                returned = tape.register(gradient.like(f'd:{value.name}@mirror'))
                _exchange(tape, gradient, returned, 'I')
                tape.accumulate(value, returned)

    tape.on_backward(backward)
    return arrived


def _exchange(tape: Tape, out: Value, into: Value, phase: Phase) -> None:
    tape.emit(
        OpClass(
            name=f'{into.name}.send_recv.{phase}',
            kind='collective',
            operator='send_recv',
            phase=phase,
            bytes=float(tape.held_bytes(out.name)),
            dtype=tape.tensors[out.name].dtype,
            partition=_mirrors(tape),
            reads=(out.name,),
            writes=(into.name,),
            stage=tape.stage,
        )
    )


def _mirrors(tape: Tape) -> str:
    """The partition of the pairs; it has a stream of its own, so that no sum of gradients is in the way."""
    mesh = tape.mesh
    pairs = tape.groups(merged([Axis(2, mesh.data // 2 * mesh.context * mesh.tensor)]))
    return tape.registered(Partition(MIRROR, pairs.groups_GP))


def mirror_inputs(tape: Tape) -> None:
    """Have the second half of the stages read the samples of the mirror.

    Inputs that both halves read, as the keys of dropout, would have to be drawn twice: they are refused.
    """
    half, size, samples = tape.mesh.stages // 2, tape.mesh.data, tape.partition(tape.data_axes)
    for name, tensor in list(tape.tensors.items()):
        stages = [op.stage for op in tape.ops if name in op.reads] if tensor.kind == 'input' else []
        if not stages or max(stages) < half:
            continue
        assert min(stages) >= half, f'both directions read {name}'
        groups = tape.partitions[samples].groups_GP
        places = [(place + size // 2) % size for place in range(size)]
        mirrored = tape.registered(Partition(MIRRORED, groups[:, places]))
        splits = [one._replace(partition=mirrored) if one.partition == samples else one for one in tensor.splits]
        tape.tensors[name] = replace(tensor, splits=tuple(splits))
