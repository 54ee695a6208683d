"""One copy of a micro-batch on the tape: the model's graph, placed by degrees and strategies."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import NamedTuple

from simpar.errors import Infeasible
from simpar.layout import Layout
from simpar.lower.degrees import Degrees
from simpar.lower.forward import Forward
from simpar.lower.given import has_strategies, with_strategies
from simpar.lower.mesh import Mesh, mesh_of
from simpar.lower.move import Mover
from simpar.lower.place import Placer
from simpar.lower.repeat import NotRepeated
from simpar.lower.sequence_chunks import one_chunk
from simpar.lower.stages import stages_of
from simpar.lower.tape import Tape
from simpar.lower.two_homes import mirror_inputs
from simpar.model.model import Graph
from simpar.pipeline.dualpipe import TWO_HOMES
from simpar.plan import Plan
from simpar.workload import Transformer, Workload


class Recorded(NamedTuple):
    """A tape, and the graph that is on it."""

    tape: Tape
    graph: Graph


def record(workload: Workload, plan: Plan, world: int, placement: tuple[int, ...], *, repeats: bool = True) -> Recorded:
    """The ops of one copy of a micro-batch, forward and backward.

    Arguments:
        workload, plan: what is recorded, and how it is split.
        world: ranks of all stages.
        placement: stage → pipeline rank, shape [stages].
        repeats: equal layers are recorded once.

    Raises ``Infeasible`` where degrees or a strategy do not fit the operator, the batch or the ranks.
    """
    if plan.redistribution == 'predicted':
        raise Infeasible('plan.redistribution: predicted is still to be resolved (simpar resolve)')
    by_strategies = _by_strategies(workload, plan)
    # What a strategy cannot say lies by degrees then: parts of a sequence, experts, the samples of both directions.
    of_degrees = isinstance(workload.model, Transformer) and (
        plan.context > 1 or plan.order == TWO_HOMES or workload.model.experts is not None
    )
    if by_strategies and plan.context > 1 and not of_degrees:
        raise Infeasible('plan.context: context ranks share the sequence of a transformer')
    mesh = (
        _mesh_of_strategies(workload, plan, world, placement)
        if by_strategies and not of_degrees
        else mesh_of(plan, world, workload.batch, placement)
    )
    mixed = by_strategies and (plan.tensor > 1 or of_degrees)
    tape = Tape(
        mesh,
        workload.precision,
        workload.gradients or '',
        # Strategies have replicas hold partial sums of gradients, as MindSpore does: these are summed late.
        early=plan.reduce == 'early' and not by_strategies,
        degrees=not by_strategies,
        names=_matrix(plan, mesh),
        shard_group=plan.shard_group,
    )
    given = () if isinstance(plan.stages, str) else plan.stages
    graph = workload.model.graph(workload.batch // plan.micro_batches, digits=workload.data == 'mnist')
    graph = replace(graph, nodes=with_strategies(graph.nodes, plan))
    if plan.sequence_chunks > 1:
        graph = one_chunk(graph, plan.sequence_chunks)
    placer = Placer(tape.world, mesh.copies)
    degrees = None
    if mixed or not by_strategies:
        degrees = Degrees(
            placer,
            tape.data_axes,
            tape.tensor_axes,
            plan.sequence_parallel,
            tape.expert_axes,
            context=tape.context_axes,
            restores=by_strategies and of_degrees,
        )
    forward = Forward(
        tape=tape,
        mover=Mover(tape, plan.redistribution, plan.all_to_all) if by_strategies else Mover(tape),
        placer=placer,
        degrees=degrees,
        workload=workload,
        nodes=graph.nodes,
        stages=stages_of(workload.model, mesh.stages, given),
        sources=graph.sources,
        shapes=graph.shapes,
        deviation=graph.deviation,
        drawn_labels=graph.drawn_labels,
        full_batch=plan.dataset == 'full-batch' and by_strategies,
        summed=plan.copies_loss == 'sum',
        repeats=repeats,
        context_kind=plan.context_kind,
        scatter_gather=plan.scatter_gather,
    )
    try:
        forward.run()
    # The tape is half written by then: it begins anew, with no layer taken for another.
    except NotRepeated:
        return record(workload, plan, world, placement, repeats=False)
    if mesh.mirrored:
        mirror_inputs(tape)
    tape.forget()
    return Recorded(tape, graph)


def _by_strategies(workload: Workload, plan: Plan) -> bool:
    """Whether layouts come from strategies: given ones, or by batch for a graph without degrees."""
    return has_strategies(workload, plan) or (workload.model.by_batch and plan.tensor == 1)


def _mesh_of_strategies(workload: Workload, plan: Plan, world: int, placement: tuple[int, ...]) -> Mesh:
    if world % plan.pipeline:
        raise Infeasible(f'plan.pipeline: {world} ranks cannot be split into {plan.pipeline} equal stages')
    # Strategies tell themselves what splits samples: data is what tensor leaves of a stage.
    ranks = world // plan.pipeline
    if plan.data > 1 and plan.data * plan.tensor != ranks:
        raise Infeasible(
            f'plan.data: data {plan.data} × tensor {plan.tensor} are not the {ranks} ranks of a stage; leave data out'
        )
    if ranks % plan.tensor:
        raise Infeasible(f'plan.tensor: {plan.tensor} does not divide the {ranks} ranks of a stage')
    slices = plan.micro_batches * plan.copies
    if workload.batch % slices:
        raise Infeasible(
            f'a batch of {workload.batch} cannot be split into micro_batches {plan.micro_batches} × copies '
            f'{plan.copies} equal slices; choose a multiple of {slices}'
        )
    return Mesh(
        data=ranks // plan.tensor,
        tensor=plan.tensor,
        copies=plan.copies,
        pipeline=plan.pipeline,
        micro_batches=plan.micro_batches,
        placement=placement,
    )


def _matrix(plan: Plan, mesh: Mesh) -> Layout | None:
    """The device matrix of a stage, if layouts have one."""
    sizes, ranks = tuple(plan.device_matrix.values()), mesh.replicas * mesh.tensor
    if not sizes:
        return None
    if ranks % prod(sizes):
        shown = ' × '.join(f'{name} {size}' for name, size in plan.device_matrix.items())
        raise Infeasible(f'plan.device_matrix: {shown} is {prod(sizes)} ranks, which do not divide {ranks}')
    return Layout(sizes, tuple(plan.device_matrix), ranks)
