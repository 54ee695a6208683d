"""settle: what presets and automatic values come to, written out, so that nothing empty or 0 means "choose"."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simpar.lower.lower import order_of
from simpar.lower.optimizer_parallel import Part, choice_of
from simpar.lower.stages import stage_of_layer
from simpar.model import Network
from simpar.plan import Plan
from simpar.resolve.times import layers_of
from simpar.workload import Transformer, Workload

_PARTS: Final[tuple[Part, ...]] = ('state', 'gradients', 'weights')


def settled_plan(workload: Workload, plan: Plan) -> Plan:
    """The plan with chunks, stages and what its presets of optimizer parallelism shard, gather and accumulate.

    Arguments: ``plan``, whose data degree is filled in and whose searches are done. The program stays the same.
    Raises what ``order_of`` raises. Presets stay beside what they come to: fusion by size reads ``hsdp`` itself.
    """
    return _sharded(_staged(workload, plan))


def _staged(workload: Workload, plan: Plan) -> Plan:
    """The plan with the chunks of its order and the layers of each stage; stages that marks tell stay with them."""
    stages = order_of(plan).stages
    plan = replace(plan, chunks=stages // plan.pipeline)
    if not plan.recompute_stages and recomputes(workload, plan):
        plan = replace(plan, recompute_stages=tuple(range(stages)))
    if plan.stages or marked(workload):
        return plan
    layers = layers_of(workload)
    if isinstance(workload.model, Network) and layers < stages:
        layers = len(workload.model.layers)
    of_layer = stage_of_layer(layers, stages, ())
    return replace(plan, stages=tuple(of_layer.count(stage) for stage in range(stages)))


def marked(workload: Workload) -> bool:
    """Whether layers say by marks which stage they are in."""
    layers = workload.model.layers if isinstance(workload.model, Network) else ()
    return any(getattr(layer, 'pipeline_stage', None) is not None for layer in layers)


def recomputes(workload: Workload, plan: Plan) -> bool:
    """Whether a plan, or marks of layers, ask for recomputation in any stage."""
    layers = workload.model.layers if isinstance(workload.model, Network) else ()
    return plan.recompute not in ('none', ()) or any(layer.recompute for layer in layers)


def _sharded(plan: Plan) -> Plan:
    choice = choice_of(plan)
    if not choice.parts:
        return plan
    return replace(
        plan,
        shard=tuple(part for part in _PARTS if part in choice.parts),
        gather=choice.gather,
        shard_group=plan.shard_group or plan.data,
        shard_threshold=float(choice.threshold),
        accumulate='sharded' if choice.sharded else 'full',
    )


def settled_workload(workload: Workload) -> Workload:
    """The workload with its widths, heads, shape of a sample and precision of gradients; the program stays the same.

    A layer without a strategy stays without: it lies as what it reads does, which a strategy cannot always say.
    """
    model = workload.model
    if isinstance(model, Transformer):
        model = replace(model, ffn=model.ffn_width, kv_heads=model.key_value_heads)
    elif model.is_graph:
        # An input would make a graph of a chain, whose operators are lowered otherwise.
        model = replace(model, input=model.sample)
    return replace(workload, model=model, gradients=workload.gradients or workload.precision)
