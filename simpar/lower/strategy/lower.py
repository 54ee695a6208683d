"""lower, for networks with strategies: shard → copies → gradient sums and update → streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simpar.errors import Infeasible, ProgramError
from simpar.lower.fusion import fuse, fusion_ids
from simpar.lower.issue import Issue
from simpar.lower.pieces import pieces
from simpar.lower.recompute import recompute_of
from simpar.lower.roles import issues, stages_of
from simpar.lower.strategy.move import Mover
from simpar.lower.strategy.network import Lowering
from simpar.lower.strategy.tape import LaidTape
from simpar.lower.update import updates
from simpar.pipeline.action import Action, Kind
from simpar.pipeline.order import Order
from simpar.plan import Plan
from simpar.program import OpClass, Program, ProgramBuilder
from simpar.workload import Dense, Network, Relu, Workload

COMPUTE = 'compute'


def has_strategies(workload: Workload) -> bool:
    """Whether any layer of a network carries a strategy."""
    model = workload.model
    return isinstance(model, Network) and any(
        isinstance(layer, Dense | Relu) and bool(layer.strategy) for layer in model.layers
    )


def lower_strategies(workload: Workload, plan: Plan, world: int) -> Program:
    """What every one of ``world`` ranks does in one training step of a network cut by strategies.

    Raises ``Infeasible`` where a strategy does not fit its operator, the batch or the ranks, or where the plan asks for
    degrees beside strategies. Does not model: pipelines, optimizer parallelism, clipping, a loss scale; the sum of the
    loss over ranks for display.
    """
    model = workload.model
    if not isinstance(model, Network):
        raise Infeasible('strategies are for a network; a transformer takes degrees')
    _refuse(workload, plan, world)
    tape = LaidTape(world, plan.copies, plan.micro_batches, workload.precision, workload.gradients or '')
    lowering = Lowering(
        tape=tape,
        mover=Mover(tape, plan.redistribution, plan.all_to_all),
        workload=workload,
        batch=workload.batch // plan.micro_batches,
        full_batch=plan.dataset == 'full-batch',
        summed=plan.copies_loss == 'sum',
    )
    lowering.network(model)
    return _program(tape, workload, plan)


def _refuse(workload: Workload, plan: Plan, world: int) -> None:
    """Whatever does not go together with strategies; ``data`` may be all ranks, which is what it is filled in with."""
    degrees = {'data': plan.data not in (0, 1, world), 'tensor': plan.tensor > 1, 'pipeline': plan.pipeline > 1}
    others = {'hsdp': plan.hsdp != 'off', 'zero': plan.zero > 0, 'shard': bool(plan.shard), 'rows': bool(plan.rows)}
    for key, asked in {**degrees, **others}.items():
        if asked:
            raise Infeasible(f'plan.{key}: goes with degrees, but layers of the network have strategies; leave it out')
    if workload.clip_norm or workload.loss_scale != 1:
        raise Infeasible('workload: clip_norm and loss_scale do not go with strategies; leave them out')
    slices = plan.micro_batches * plan.copies
    if workload.batch % slices:
        raise Infeasible(
            f'a batch of {workload.batch} cannot be cut into micro_batches {plan.micro_batches} × copies '
            f'{plan.copies} equal slices; choose a multiple of {slices}'
        )


def _program(tape: LaidTape, workload: Workload, plan: Plan) -> Program:
    kinds: tuple[Kind, ...] = ('F', 'B')
    row = tuple(Action(0, kind, micro_batch) for micro_batch in range(plan.micro_batches) for kind in kinds)
    stages = stages_of(tape, Order((row,), (0,), plan.micro_batches), recompute_of(workload, plan))
    own = pieces(tape)
    update = updates(tape, workload, own)
    ids = fusion_ids(workload, plan, [piece.parameter for piece in own])
    found = issues(stages, row, plan.copies, late=False)
    order = _with_mirrors(found, _mirrors(tape, plan, ids), end=plan.reduce_gradients == 'end')
    held = {name for issue in found for name in issue.op.accumulates}
    order += [Issue(op) for op in update.ops(held)]
    builder = ProgramBuilder(tape.world, tape.partitions.values())
    for tensor in tape.tensors.values():
        builder.add_tensor(tensor)
    added: dict[str, OpClass] = {}
    for issue in order:
        if added.setdefault(issue.op.name, issue.op) is not issue.op:
            raise ProgramError(f'two op classes are named {issue.op.name!r}; give the layers different names')
    for op in added.values():
        builder.add_op_class(op)
    streams = [_stream(issue.op, plan) for issue in order]
    slots = [(issue.op.name, on, issue.micro_batch, issue.copy) for issue, on in zip(order, streams, strict=True)]
    builder.add_role('all', range(tape.world), slots, tuple(dict.fromkeys([COMPUTE, *streams])))
    return builder.build(plan.micro_batches, plan.copies, tuple(dict.fromkeys(tape.notes)))


def _stream(op: OpClass, plan: Plan) -> str:
    return COMPUTE if op.kind == 'compute' or plan.streams == 'single' else op.partition


def _mirrors(tape: LaidTape, plan: Plan, ids: Mapping[str, int]) -> list[OpClass]:
    """The sums of gradients over all ranks that have the same piece of their parameter."""
    over: dict[str, list[str]] = {}
    for tensor in list(tape.tensors.values()):
        if tensor.kind == 'gradient':
            partition = tape.mirror(tape.layout_of(tensor))
            over.setdefault(partition, []).append(tensor.like)
    found = []
    for partition, parameters in over.items():
        if partition:
            size = {name: float(tape.held_bytes(f'd:{name}')) for name in parameters}
            for bucket, members in fuse(parameters, size, plan, ids).items():
                found.append(_mirror(tape, bucket, partition, [f'd:{name}' for name in members]))
    return found


def _mirror(tape: LaidTape, bucket: str, partition: str, gradients: Sequence[str]) -> OpClass:
    return OpClass(
        name=f'{bucket}.gradients.{partition}.all_reduce.W',
        kind='collective',
        operator='all_reduce',
        phase='W',
        bytes=float(sum(map(tape.held_bytes, gradients))),
        dtype=tape.gradients,
        partition=partition,
        reduce='sum',
        reads=tuple(gradients),
        writes=tuple(gradients),
    )


def _with_mirrors(order: Sequence[Issue], mirrors: Sequence[OpClass], *, end: bool) -> list[Issue]:
    """Every sum right behind the last op that adds to one of its gradients; with ``end`` behind the backward."""
    last = {name: index for index, issue in enumerate(order) for name in issue.op.accumulates}
    behind: dict[int, list[Issue]] = {}
    for op in mirrors:
        index = len(order) - 1 if end else max(last[name] for name in op.reads)
        behind.setdefault(index, []).append(Issue(op))
    return [one for index, issue in enumerate(order) for one in (issue, *behind.get(index, ()))]
