"""Strategies on the tape: what ``lower`` assembles in the place of degrees, for networks whose layers have any."""

from __future__ import annotations

from math import prod

from simpar.errors import Infeasible
from simpar.layout import Layout
from simpar.lower.mesh import Mesh
from simpar.lower.stages import layer_stages
from simpar.lower.strategy.graph import Lowering
from simpar.lower.strategy.move import Mover
from simpar.lower.strategy.tape import LaidTape
from simpar.model import Network
from simpar.plan import Plan
from simpar.workload import Workload


def has_strategies(workload: Workload) -> bool:
    """Whether any layer of a network, or its loss, carries a strategy, or has to be lowered as if it did."""
    model = workload.model
    if not isinstance(model, Network):
        return False
    given = (getattr(layer, 'strategy', ()) or getattr(layer, 'layout', ()) for layer in model.layers)
    of_loss = bool(workload.loss_strategy) or workload.loss_operators != 'one'
    return any(given) or of_loss or model.is_graph


def lay_out(workload: Workload, plan: Plan, world: int, placement: tuple[int, ...]) -> LaidTape:
    """One copy of a micro-batch of a network cut by strategies over the ranks of a stage, forward and backward.

    Arguments: ``world``, ranks of all stages; ``placement``, stage → pipeline rank. Raises ``Infeasible`` where a
    strategy does not fit its operator, the batch or the ranks, or where the plan asks for degrees beside strategies.
    """
    model = workload.model
    if not isinstance(model, Network):
        raise Infeasible('strategies are for a network; a transformer takes degrees')
    if plan.redistribution == 'predicted':
        raise Infeasible('plan.redistribution: predicted is still to be resolved (simpar resolve)')
    ranks = _ranks(plan, world)
    _refuse(workload, plan, ranks)
    mesh = Mesh(
        data=ranks,
        tensor=1,
        copies=plan.copies,
        pipeline=plan.pipeline,
        micro_batches=plan.micro_batches,
        placement=placement,
    )
    tape = LaidTape(
        mesh, workload.precision, workload.gradients or '', shard_group=plan.shard_group, names=_matrix(plan, ranks)
    )
    lowering = Lowering(
        tape=tape,
        mover=Mover(tape, plan.redistribution, plan.all_to_all),
        workload=workload,
        model=model,
        batch=workload.batch // plan.micro_batches,
        stages=layer_stages(model, mesh.stages, () if isinstance(plan.stages, str) else plan.stages),
        full_batch=plan.dataset == 'full-batch',
        summed=plan.copies_loss == 'sum',
    )
    lowering.network()
    return tape


def _ranks(plan: Plan, world: int) -> int:
    """Ranks of one stage."""
    if world % plan.pipeline:
        raise Infeasible(f'plan.pipeline: {world} ranks cannot be cut into {plan.pipeline} equal stages')
    return world // plan.pipeline


def _matrix(plan: Plan, ranks: int) -> Layout | None:
    """The device matrix of a stage, if layouts have one."""
    sizes = tuple(plan.device_matrix.values())
    if not sizes:
        return None
    if ranks % prod(sizes):
        shown = ' × '.join(f'{name} {size}' for name, size in plan.device_matrix.items())
        raise Infeasible(f'plan.device_matrix: {shown} is {prod(sizes)} ranks, which do not divide {ranks}')
    return Layout(sizes, tuple(plan.device_matrix), ranks)


def _refuse(workload: Workload, plan: Plan, ranks: int) -> None:
    """Degrees; ``data`` may be all ranks of a stage, which is what it is filled in with."""
    for key, asked in {'data': plan.data not in (0, 1, ranks), 'tensor': plan.tensor > 1}.items():
        if asked:
            raise Infeasible(f'plan.{key}: goes with degrees, but layers of the network have strategies; leave it out')
    slices = plan.micro_batches * plan.copies
    if workload.batch % slices:
        raise Infeasible(
            f'a batch of {workload.batch} cannot be cut into micro_batches {plan.micro_batches} × copies '
            f'{plan.copies} equal slices; choose a multiple of {slices}'
        )
