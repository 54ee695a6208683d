"""lower: shard → copies → pipeline → gradient sums and update → streams."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Final

import numpy as np

from simpar.collector import without_collector
from simpar.errors import Infeasible
from simpar.kept import Facts, Kept, Same
from simpar.lower.feed import once_a_step
from simpar.lower.forward_only import forward_order, used
from simpar.lower.fp8 import cast_weights
from simpar.lower.gathers import Gathers
from simpar.lower.gradients import Reductions
from simpar.lower.issue import Issue, Issued
from simpar.lower.mesh import Mesh
from simpar.lower.optimizer_parallel import conflicts
from simpar.lower.overlap import overlap_conflicts, with_passes
from simpar.lower.prepared import Prepared, one_of_equal, prepared
from simpar.lower.roles import issued
from simpar.lower.sequence_chunks import sequence_chunks_fit
from simpar.lower.slots import slots_of
from simpar.lower.streams import Streams
from simpar.lower.two_homes import folded, has_two_homes, order_of_a_half
from simpar.pipeline.action import Action, Kind
from simpar.pipeline.checks import check_order
from simpar.pipeline.communication import with_communication
from simpar.pipeline.exchange import in_exchanges
from simpar.pipeline.order import Order, Row
from simpar.pipeline.orders import named_order
from simpar.pipeline.rows import order_of_rows
from simpar.plan import Plan
from simpar.program import Program, ProgramBuilder, Tensor
from simpar.workload import Workload


def lower(workload: Workload, plan: Plan, world: int, order: Order | None = None) -> Program:
    """What every one of ``world`` ranks does in one training step.

    Arguments: ``order``, of the pipeline's actions, in place of the one that the plan names.
    Raises ``Infeasible`` where degrees, ranks, batch and order do not fit, ``ScheduleError`` where the order is
    unknown, wrong or cannot have these counts. Does not model: data loading.
    """
    # What is still to be predicted needs prices, and a Program knows no cluster.
    for key, open_ in (('fusion', plan.fusion == 'predicted'), ('search', plan.search != 'none')):
        if open_:
            raise Infeasible(f'plan.{key}: {getattr(plan, key)} is still to be resolved (simpar resolve)')
    for problem in (*conflicts(plan), *overlap_conflicts(plan), *sequence_chunks_fit(workload, plan)):
        raise Infeasible(str(problem))
    # After the conflicts: these are told in the words that the user wrote.
    plan = with_passes(plan)
    if isinstance(plan.stages, str):
        raise Infeasible(f'plan.stages: {plan.stages} is still to be resolved (simpar resolve)')
    workload = one_of_equal(workload)
    with without_collector():
        if order is None:
            # Before the order: it has counts that this checks.
            told, order = folded(workload, plan, world), order_of(plan)
        else:
            told, order = replace(plan, order=Plan().order), _fitting(order, plan)
        if workload.phase == 'forward':
            order = forward_order(order)
        order = with_messages(order, plan)
        return _Assembly(prepared(workload, told, world, order), told).program(order)


def with_messages(order: Order, plan: Plan) -> Order:
    """The order with its sends and receives; one from a file may have its own already."""
    if order.communicates:
        return order
    # On a single stream messages of one exchange would wait for one another.
    if plan.exchange == 'fused' and plan.streams != 'single' and order.stages > order.ranks:
        exchanged = in_exchanges(order)
        if exchanged is not None:
            return exchanged
    return with_communication(order, 'late' if receives_late(plan) else 'early')


def receives_late(plan: Plan) -> bool:
    """Whether receives wait for the computation before them: one exchange begins with that computation's sends."""
    return plan.receive == 'late' or plan.exchange == 'fused'


def order_of(plan: Plan) -> Order:
    """The order that a plan names; on one rank and stage, each micro-batch's forward and backward in turn."""
    if plan.rows:
        return _counted(order_of_rows(plan.rows), plan)
    # Without a pipeline each micro-batch's backward follows its forward, so that activations of one are kept at most.
    if plan.pipeline == 1 and plan.chunks <= 1:
        kinds: tuple[Kind, ...] = ('F', 'B')
        row = [Action(0, kind, micro_batch) for micro_batch in range(plan.micro_batches) for kind in kinds]
        return Order((tuple(row),), (0,), plan.micro_batches)
    if has_two_homes(plan):
        return order_of_a_half(plan)
    return named_order(plan.order, plan.pipeline, plan.micro_batches, plan.chunks, plan.sequence_chunks)


def _fitting(order: Order, plan: Plan) -> Order:
    """An order that is right and has the plan's counts."""
    return check_order(_counted(order, plan))


def _counted(order: Order, plan: Plan) -> Order:
    """An order that has the plan's counts."""
    for what, has, wants in (
        ('sequence chunks', order.sequence_chunks, plan.sequence_chunks),
        ('pipeline ranks', order.ranks, plan.pipeline),
        ('micro-batches', order.micro_batches // order.sequence_chunks, plan.micro_batches),
    ):
        if has != wants:
            raise Infeasible(f'the order has {has} {what}, but the plan {wants}; choose the same number')
    return order


_tables: Final[Kept[tuple[tuple[Tensor, ...]], tuple[Tensor, ...]]] = Kept(4)
"""The very table of tensors for programs with equal ones, as rows of a sweep are that recompute alike."""
_issues: Final[Kept[tuple[Same, Row, int, bool], Issued]] = Kept(4)


_added: Final[Facts[Issued, frozenset[str]]] = Facts(
    lambda order: frozenset(name for op in order.ops() for name in op.accumulates), 8
)
"""The gradients that the ops of a rank add to."""


class _Assembly:
    """Puts tables and roles together; for one call of ``lower``."""

    def __init__(self, of: Prepared, plan: Plan) -> None:
        self.tape = of.tape
        self.mesh: Mesh = of.tape.mesh
        self.plan = plan
        # A batched send/recv; one pipeline rank sends nothing to another.
        self._batched = plan.exchange == 'fused' and plan.pipeline > 1
        self.forward = of.forward
        self.shards = of.shards
        self.exchange = of.exchange
        self.updates = of.updates
        self.stages = of.stages
        self.gathers = Gathers(self.tape, plan, self.shards, of.ids)
        self.reductions = Reductions(self.tape, plan, self.shards, of.ids)

    def program(self, order: Order) -> Program:
        finished = [self._finish(self._issued(row), place) for place, row in enumerate(order.by_chunk)]
        # Behind all that registers tensors and partitions.
        builder = ProgramBuilder(self.mesh.world, self.tape.partitions.values())
        touched = used(op for found in finished for op in found.ops()) if self.forward else None
        # Members of a flat buffer have no memory of their own.
        tensors = [tensor for name, tensor in self.tape.tensors.items() if name not in self.tape.replaced]
        table = tuple([tensor for tensor in tensors if touched is None or tensor.name in touched])
        builder.add_tensors(_tables.get((table,), lambda: table))
        # Pipeline ranks issue ops of the same name that are equal; the table has each once.
        ops = list(chain.from_iterable(found.ops() for found in finished))
        builder.add_op_classes(dict(zip([op.name for op in ops], ops, strict=True)))
        ranks = np.arange(self.mesh.world).reshape(self.mesh.pipeline, -1)
        for place, found in enumerate(finished):
            # Role names stand in traces and tables.
            name = 'all' if self.mesh.pipeline == 1 else f'pipeline{place}'
            streams = Streams(self.mesh, self.plan, place)
            slots = slots_of(found, builder.index, streams, batched=self._batched)
            builder.add_slots(name, ranks[place].tolist(), slots, streams.names)
        # A note for every layer would say the same many times.
        notes = tuple(dict.fromkeys(self.tape.notes))
        return builder.build(self.mesh.micro_batches, self.mesh.copies, notes, batched=self._batched)

    def _issued(self, row: Row) -> Issued:
        """The ops of a pipeline rank without what its parameters need, which rows of a sweep often have in common."""
        late, copies = receives_late(self.plan), self.mesh.copies
        return _issues.get((Same(self.stages), row, copies, late), lambda: issued(self.stages, row, copies, late=late))

    def _finish(self, found: Issued, place: int) -> Issued:
        """Add to a pipeline rank's ops what its parameters need.

        Weights are gathered where they are used. Gradients are summed behind the last op that adds to them. A gradient
        that two pipeline ranks hold is exchanged. Updates end the step.
        """
        if self.forward:
            return once_a_step(self.tape, cast_weights(self.tape, self.gathers.on_use(found), place), place)
        held = self.shards.held(_added(found))
        order = self.reductions.place(self.gathers.on_use(found), place)
        order = order.behind([Issue(op) for op in self.exchange.ops(held, order.ops())])
        scope = f'pipeline{place}.' if self.mesh.pipeline > 1 else ''
        order = order.behind(self.gathers.after_update(self.updates.ops(held), scope))
        return once_a_step(self.tape, cast_weights(self.tape, order, place), place)
