"""lower: shard → copies → gradient sums and update → streams."""

from __future__ import annotations

from simpar.lower.frees import add_frees
from simpar.lower.interleave import interleave, segments
from simpar.lower.issue import Issue
from simpar.lower.mesh import mesh_of
from simpar.lower.network import network
from simpar.lower.optimizer import place, reductions, updates
from simpar.lower.tape import Tape
from simpar.lower.transformer import transformer
from simpar.plan import Plan
from simpar.program import Program, ProgramBuilder
from simpar.workload import Network, Workload

COMPUTE = 'compute'


def lower(workload: Workload, plan: Plan, world: int) -> Program:
    """What every one of ``world`` ranks does in one training step.

    Raises ``Infeasible`` where degrees, ranks and batch do not fit.
    Does not model: the sum of the loss over ranks for display, data loading, mixed-precision master weights.
    """
    mesh = mesh_of(plan, world, workload.batch)
    tape = Tape(mesh, workload.precision, late=plan.reduce == 'late')
    summed = plan.copies_loss == 'sum'
    if isinstance(workload.model, Network):
        network(tape, workload, workload.model, summed=summed)
    else:
        transformer(tape, workload, workload.model, sequence_parallel=plan.sequence_parallel, summed=summed)
    freed = {op.name: op for op in add_frees([op for part in segments(tape.ops) for op in part], tape.tensors)}
    parts = segments([freed[op.name] for op in tape.ops])
    threads = [[[Issue(op, 0, copy) for op in part] for part in parts] for copy in range(mesh.copies)]
    order = place(interleave(threads), reductions(tape))
    order += [Issue(op) for op in updates(tape, workload.optimizer)]
    return _assemble(tape, order, plan)


def _assemble(tape: Tape, order: list[Issue], plan: Plan) -> Program:
    """One role for all ranks; a stream for each partition that communicates, unless all share one."""
    builder = ProgramBuilder(tape.mesh.world, tape.partitions.values())
    for tensor in tape.tensors.values():
        builder.add_tensor(tensor)
    for op in {issue.op.name: issue.op for issue in order}.values():
        builder.add_op_class(op)
    single = plan.streams == 'single'
    slots = [
        (issue.op.name, COMPUTE if single else issue.op.partition or COMPUTE, issue.micro_batch, issue.copy)
        for issue in order
    ]
    used = {stream for _, stream, _, _ in slots}
    streams = tuple(stream for stream in (COMPUTE, *tape.partitions) if stream in used)
    builder.add_role('all', range(tape.mesh.world), slots, streams)
    return builder.build(copies=plan.copies, notes=tuple(tape.notes))
