"""settle: what presets and automatic values come to, written out, so that nothing empty or 0 means "choose"."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simpar.lower.graph.record import has_strategies
from simpar.lower.graph.stages import stage_of_layer, unit_of
from simpar.lower.lower import order_of
from simpar.lower.passes.optimizer_parallel import Part, choice_of
from simpar.pipeline.zero_bubble import TWO_HOMES
from simpar.plans import Plan
from simpar.workload import Workload

_PARTS: Final[tuple[Part, ...]] = ('state', 'gradients', 'weights')


def settled_plan(workload: Workload, plan: Plan) -> Plan:
    """The plan with chunks, stages and what its presets of optimizer parallelism shard, gather and accumulate.

    Arguments: ``plan``, whose data degree is filled in and whose searches are done. The program stays the same.
    Raises what ``order_of`` raises. Presets stay beside what they come to: fusion by size reads ``hsdp`` itself.
    """
    return _sharded(workload, _staged(workload, plan))


def _staged(workload: Workload, plan: Plan) -> Plan:
    """The plan with the chunks of its order and the layers of each stage; stages that marks tell stay with them."""
    stages = order_of(plan).stages
    plan = replace(plan, chunks=stages // plan.pipeline)
    if not plan.recompute_stages and recomputes(workload, plan):
        plan = replace(plan, recompute_stages=tuple(range(stages)))
    # Marks decide before counts do: counts beside them would say nothing.
    if plan.stages or marked(workload):
        return plan
    model = workload.model
    of_layer = stage_of_layer(model.counts[unit_of(model, stages, ())], stages, ())
    return replace(plan, stages=tuple(of_layer.count(stage) for stage in range(stages)))


def marked(workload: Workload) -> bool:
    """Whether layers say by marks which stage they are in."""
    return any(operator.pipeline_stage is not None for operator in workload.model.operators.values())


def recomputes(workload: Workload, plan: Plan) -> bool:
    """Whether a plan, or marks of layers, ask for recomputation in any stage."""
    marks = (operator.recompute for operator in workload.model.operators.values())
    return plan.recompute not in ('none', ()) or any(marks)


def _sharded(workload: Workload, plan: Plan) -> Plan:
    choice = choice_of(plan)
    if not choice.parts:
        return plan
    return replace(
        plan,
        shard=tuple(part for part in _PARTS if part in choice.parts),
        gather=choice.gather,
        shard_group=plan.shard_group or _holders(workload, plan),
        shard_threshold=float(choice.threshold),
        accumulate='sharded' if choice.sharded else 'full',
    )


def settled_workload(workload: Workload) -> Workload:
    """The workload with its widths, heads, shape of a sample and precision of gradients; the program stays the same.

    A layer without a strategy stays without: it lies as what it reads does, which a strategy cannot always say.
    """
    return replace(workload, model=workload.model.settled(), gradients=workload.gradients or workload.precision)


def _holders(workload: Workload, plan: Plan) -> int:
    """Ranks that hold the same slice of a parameter."""
    if has_strategies(workload, plan):
        return plan.data * plan.tensor
    # With two homes the mirrored pipeline rank holds it too.
    return plan.data * plan.context * (2 if plan.order == TWO_HOMES else 1)
