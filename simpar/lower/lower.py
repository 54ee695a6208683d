"""lower: shard → copies → pipeline → gradient sums and update → streams."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from simpar import errors, plans
from simpar.lower import issue, roles
from simpar.lower.graph import chunks, loss, record
from simpar.lower.graph.stages import Exchange, exchange, folded, has_two_homes, order_of_a_half
from simpar.lower.passes import fp8, messages, offload
from simpar.lower.passes.optimizer_parallel import Shards, conflicts, fusion_ids, shard
from simpar.lower.passes.update import Updates, matrices, update_shards, updated, updates
from simpar.lower.tape import Tape
from simpar.model.model import Graph
from simpar.pipeline import checks, orders, zero_bubble
from simpar.pipeline.messages import in_exchanges, with_communication
from simpar.pipeline.order import SHARDING, Action, Kind, Order
from simpar.program import OpClass, Program, ProgramBuilder
from simpar.session import Session
from simpar.workload import Muon, Workload

# ``phase: forward``: the forward alone, as of prefill or an evaluation; no backward, no sums of gradients, no update.
#
# Each micro-batch goes forward in the order in which it would in training; what only a backward reads is freed at once.
# Does not model: a head for the last token alone, caches of keys and values, kernels that write less where nothing is
# trained.


_FORWARD = frozenset({'F', 'SEND_F', 'RECV_F'})


def forward_order(order: Order) -> Order:
    """The same order without backwards, and without what travels for them."""
    parts = ([part for action in row for part in action.parts if part.kind in _FORWARD] for row in order.actions)
    rows = tuple(map(tuple, parts))
    return Order(rows, order.placement, order.micro_batches, order.sequence_chunks)


def used(ops: Iterable[OpClass]) -> Collection[str]:
    """The tensors that some ops touch; gradients and states are then left out of a program."""
    return {name for op in ops for name in (*op.reads, *op.writes, *op.accumulates, *op.frees)}


def lower(
    workload: Workload, plan: plans.Plan, world: int, order: Order | None = None, *, session: Session | None = None
) -> Program:
    """What every one of ``world`` ranks does in one training step.

    Arguments: ``order``, of the pipeline's actions, in place of the one that the plan names; ``session`` of a caller
    that lowers many plans alike.
    Raises ``Infeasible`` where degrees, ranks, batch and order do not fit, ``ScheduleError`` where the order is
    unknown, wrong or cannot have these counts. Does not model: data loading.
    """
    # What is still to be predicted needs prices, and a Program knows no cluster.
    for key, open_ in (('fusion', plan.fusion == 'predicted'), ('search', plan.search != 'none')):
        if open_:
            raise errors.Infeasible(f'plan.{key}: {getattr(plan, key)} is still to be resolved (simpar resolve)')
    for problem in (
        *conflicts(workload, plan),
        *roles.plan_conflicts(plan),
        *chunks.sequence_chunks_fit(workload, plan),
    ):
        raise errors.Infeasible(str(problem))
    # After the conflicts: these are told in the words that the user wrote.
    plan = roles.with_passes(plan)
    if isinstance(plan.stages, str):
        raise errors.Infeasible(f'plan.stages: {plan.stages} is still to be resolved (simpar resolve)')
    if order is None:
        # Before the order: it has counts that this checks.
        folded_plan, order = folded(workload, plan, world), order_of(plan)
        way = zero_bubble.TWO_HOMES if has_two_homes(plan) else plans.Plan().order
    else:
        # An order that is right and has the plan's counts.
        folded_plan, order, way = plan, checks.check_order(_counted(order, plan)), plans.Plan().order
    # From here on the order itself is what counts, and of its name whether stages have two homes.
    plan = replace(folded_plan, order=way, pairs=folded_plan.pairs if order.overlaps else 'none')
    if workload.phase == 'forward':
        # Without an update every step has the same weights, and none is a first one.
        plan, order = replace(plan, second_shards=0), forward_order(order)
    order = with_messages(order, plan)
    return _program(workload, plan, world, order, session or Session())


def with_messages(order: Order, plan: plans.Plan) -> Order:
    """The order with its sends and receives; one from a file may have its own already."""
    if order.communicates:
        return order
    # On a single stream messages of one exchange would wait for one another.
    if plan.exchange == 'fused' and plan.streams != 'single' and order.stages > order.ranks:
        exchanged = in_exchanges(order)
        if exchanged is not None:
            return exchanged
    return with_communication(order, 'late' if receives_late(plan) else 'early')


def receives_late(plan: plans.Plan) -> bool:
    """Whether receives wait for the computation before them: one exchange begins with that computation's sends."""
    return plan.receive == 'late' or plan.exchange == 'fused'


def order_of(plan: plans.Plan) -> Order:
    """The order that a plan names; on one rank and stage, each micro-batch's forward and backward in turn."""
    if plan.rows:
        return _counted(checks.order_of_rows(plan.rows), plan)
    # Without a pipeline each micro-batch's backward follows its forward, so that activations of one are kept at most.
    if plan.pipeline == 1 and plan.chunks <= 1:
        if plan.pairs != 'none':
            return orders.named_order('1f1b', 1, plan.micro_batches, pairs=True)
        kinds: tuple[Kind, ...] = ('F', 'B')
        row = [Action(0, kind, micro_batch) for micro_batch in range(plan.micro_batches) for kind in kinds]
        return Order((tuple(row),), (0,), plan.micro_batches)
    if has_two_homes(plan):
        return order_of_a_half(plan)
    counts = plan.pipeline, plan.micro_batches, plan.chunks, plan.sequence_chunks
    return orders.named_order(plan.order, *counts, pairs=plan.pairs != 'none')


def _counted(order: Order, plan: plans.Plan) -> Order:
    """An order that has the plan's counts."""
    for what, has, wants in (
        ('sequence chunks', order.sequence_chunks, plan.sequence_chunks),
        ('pipeline ranks', order.ranks, plan.pipeline),
        ('micro-batches', order.micro_batches // order.sequence_chunks, plan.micro_batches),
    ):
        if has != wants:
            raise errors.Infeasible(f'the order has {has} {what}, but the plan {wants}; choose the same number')
    return order


# passes before an order: plans of a sweep often differ in what one of these does not look at


class Sharded(NamedTuple):
    """A tape with shards and updates, and the graph that is on it; ``parameters`` in the order of their use."""

    tape: Tape
    graph: Graph
    parameters: tuple[str, ...]
    shards: Shards
    exchange: Exchange
    updates: Updates


def sharded(
    plan: plans.Plan, workload: Workload, world: int, placement: tuple[int, ...], session: Session
) -> Sharded:  # fmt: skip
    """Record a copy of a micro-batch, and shard its parameters. Arguments: ``placement``, stage → pipeline rank."""
    recording: record.Recorded = session.of_plan(
        record.record, plan, workload=workload, world=world, placement=placement
    )
    tape = recording.tape.copy()
    fp8.in_fp8(tape, workload, plan)
    if plan.sum_loss:
        loss.sum_loss(tape)
    parameters = updated(tape)
    apart = matrices(tape) if isinstance(workload.optimizer, Muon) else {}
    shards = shard(tape, plan, lambda: fusion_ids(workload, plan, parameters), apart=apart)
    if recording.graph.frozen and ('weights' in shards.choice.parts or workload.fp8 != 'none'):
        at, remedy = ('plan.zero', '2, or less') if workload.fp8 == 'none' else ('workload.fp8', 'none')
        raise errors.Infeasible(
            f'{at}: not yet beside workload.transformer.lora, whose weights are whole; write {remedy}'
        )
    if workload.phase == 'forward':
        # Behind what counts the stages that a parameter is trained in: shards are those of training.
        tape.ops[:] = [op for op in tape.ops if op.phase == 'F']
    exchanged = exchange(tape, shards)
    own = update_shards(tape, shards)
    return Sharded(tape, recording.graph, parameters, shards, exchanged, updates(tape, workload, own))


def staged(
    plan: plans.Plan, of: Sharded, stages: int, done: Collection[tuple[int, str]]
) -> tuple[Tape, list[roles.StageOps]]:
    """A tape with the tensors of all ops, and the ops of its stages. Arguments: ``done`` as of ``roles.stages_of``."""
    tape = of.tape.copy()
    return tape, roles.stages_of(tape, plan, of.graph, stages, done)


def _program(workload: Workload, plan: plans.Plan, world: int, order: Order, session: Session) -> Program:
    """Puts tables and roles together."""
    of: Sharded = session.of_plan(
        sharded, plan, workload=workload, world=world, placement=order.placement, session=session
    )
    done = frozenset((part.stage, part.kind) for row in order.actions for action in row for part in action.parts)
    shared, stages = session.of_plan(staged, plan, of=of, stages=len(order.placement), done=done)
    tape: Tape = shared.copy()
    if what := ', '.join(sorted({kind for _, kind in done if kind in SHARDING})):
        tape.notes.append(
            f'{what} of the order are not followed: plan.zero, plan.gather and plan.reduce_gradients count'
        )
    mesh, forward, ids = tape.mesh, workload.phase == 'forward', fusion_ids(workload, plan, of.parameters)
    gathers = messages.Gathers(tape, plan, of.shards, ids)
    reductions = messages.Reductions(tape, plan, of.shards, ids)
    finished = []
    for place, row in enumerate(order.by_chunk):
        rank_order = gathers.on_use(roles.issued(stages, row, mesh.copies, late=receives_late(plan)))
        if not forward:
            rank_order = _updated(rank_order, place, plan, tape, of, gathers, reductions)
        cast = messages.once_a_step(tape, rank_order, place, tape.casts, first=False)
        finished.append(messages.once_a_step(tape, cast, place, tape.once, first=True))
    # Behind all that registers tensors and partitions.
    builder = ProgramBuilder(mesh.world, tape.partitions.values())
    touched = used(op for rank_order in finished for op in rank_order.ops()) if forward else None
    # Members of a flat buffer have no memory of their own.
    for name, tensor in tape.tensors.items():
        if name not in tape.replaced and (touched is None or name in touched):
            builder.add_tensor(tensor)
    # Pipeline ranks issue ops of the same name that are equal but for their stage; the table has each once.
    once: dict[str, OpClass] = {}
    for op in chain.from_iterable(rank_order.ops() for rank_order in finished):
        if (other := once.get(op.name, op)) is not op and replace(other, stage=op.stage) != op:
            raise errors.ProgramError(f'pipeline ranks have unlike ops by the name {op.name!r}')
        once[op.name] = op
    for op in once.values():
        builder.add_op_class(op)
    ranks = np.arange(mesh.world).reshape(mesh.pipeline, -1)
    # A batched send/recv; one pipeline rank sends nothing to another.
    batched = plan.exchange == 'fused' and plan.pipeline > 1
    for place, rank_order in enumerate(finished):
        # Role names stand in traces and tables.
        name = 'all' if mesh.pipeline == 1 else f'pipeline{place}'
        streams = issue.Streams(mesh, plan, place)
        slots = issue.slots_of(rank_order, builder.index, streams, batched=batched)
        builder.add_slots(name, ranks[place].tolist(), slots, streams.names)
    # A note for every layer would say the same many times.
    return builder.build(mesh.micro_batches, mesh.copies, tuple(dict.fromkeys(tape.notes)), batched=batched)


def _updated(
    rank_order: issue.Issued, place: int, plan: plans.Plan, tape: Tape, of: Sharded, gathers: messages.Gathers,
    reductions: messages.Reductions,
) -> issue.Issued:  # fmt: skip
    """Add to a pipeline rank's ops what its parameters need, beside the gathers of weights where they are used.

    Gradients are summed behind the last op that adds to them. A gradient that two pipeline ranks hold is exchanged.
    Updates end the step.
    """
    held = of.shards.held({name for op in rank_order.ops() for name in op.accumulates})
    order = reductions.place(rank_order, place)
    order = order.behind([issue.Issue(op) for op in of.exchange.ops(held, order.ops())])
    scope = f'pipeline{place}.' if tape.mesh.pipeline > 1 else ''
    updates = gathers.after_update(of.updates.ops(held), scope)
    if offload.STATES in plan.offload:
        updates = offload.with_states_on_host(tape, updates, plan.offload_parts)
    order = order.behind(updates)
    return order.behind(gathers.ends(order, scope))
