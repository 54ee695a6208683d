"""Inputs of a full step, gathered once and then split on every rank, as MindSpore's compiler does.

Where the data set is sharded over the ranks, a rank has a slice of the step's batch, and micro-batches and copies are
taken from the gathered one. Does not model: copies of micro-batches without a pipeline, each of which the compiler
would gather by itself; here, too, all are gathered at once.
"""

from __future__ import annotations

from simpar.layout import operators, replicated
from simpar.lower.issue import Issue, Issued, block_of
from simpar.lower.tape import Tape
from simpar.lower.value import Value
from simpar.program import OpClass


def gathered_input(tape: Tape, name: str, shape: tuple[int, ...], drawn: str, dtype: str) -> Value | None:
    """Register an input that is gathered in full; None where no ranks can shard a step's batch.

    Arguments: ``shape`` of a micro-batch.
    """
    full = (shape[0] * tape.mesh.micro_batches, *shape[1:])
    slices = max(count for count in range(1, tape.world + 1) if tape.world % count == 0 == full[0] % count)
    if slices == 1:
        return None
    counts = (slices, *(1,) * (len(shape) - 1))
    sliced = operators.elementwise(name, full).sharded((counts,), tape.world).output
    own = Value(f'{name}.step', full, sliced, needs_gradient=False)
    every = Value(f'{name}.whole', full, replicated(tape.world, len(shape)), needs_gradient=False)
    # ``like`` has it drawn as the micro-batches would be, so that every plan trains on the same samples.
    tape.register(own, 'input', dtype, batch_dim=None, initial=drawn, like=name)
    tape.register(every, 'gathered', dtype, batch_dim=None)
    tape.once.append(
        OpClass(
            name=f'{every.name}.all_gather.F',
            kind='collective',
            operator='all_gather',
            phase='F',
            bytes=float(tape.held_bytes(every.name)),
            dtype=dtype,
            partition=tape.partition(sliced.dims[0]),
            reads=(own.name,),
            writes=(every.name,),
            attributes={'dim': 0},
            stage=tape.stage,
        )
    )
    x = tape.register(Value(name, shape, replicated(tape.world, len(shape)), needs_gradient=False), dtype=dtype)
    attributes = {'micro_batches': tape.mesh.micro_batches, 'copies': tape.mesh.copies}
    moved = 2.0 * tape.held_bytes(name)
    tape.emit_compute(f'{name}.take', 'take', 'F', [every.name], [name], moved=moved, attributes={**attributes})
    return x


def once_a_step(tape: Tape, order: Issued, place: int) -> Issued:
    """The ops of a pipeline rank, behind those that it does once, whose results end with their last readers."""
    mine = [op for op in tape.once if tape.mesh.pipeline_rank(op.stage) == place]
    if not mine:
        return order
    wanted = {name for op in mine for name in op.writes}
    last: dict[str, int] = {}
    for at, op in order.last():
        for name in wanted.intersection(op.reads):
            # A run may stand last in several blocks; the latest counts.
            last[name] = max(at, last.get(name, 0))
    ends: dict[int, list[Issue]] = {}
    for op in mine:
        (full,) = op.writes
        end = OpClass(
            name=f'{full}.reshard.F',
            kind='compute',
            operator='reshard',
            phase='F',
            dtype=op.dtype,
            frees=op.writes,
            stage=op.stage,
        )
        ends.setdefault(last[full] + 1, []).append(Issue(end))
    return Issued((block_of(Issue(op) for op in mine), *order.inserted(ends).blocks))
