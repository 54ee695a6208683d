"""Strategies on the tape: what ``lower`` assembles in the place of degrees, for networks whose layers have any."""

from __future__ import annotations

from simpar.errors import Infeasible
from simpar.lower.mesh import Mesh
from simpar.lower.stages import marked_stages, stage_of_layer
from simpar.lower.strategy.move import Mover
from simpar.lower.strategy.network import Lowering
from simpar.lower.strategy.tape import LaidTape
from simpar.plan import Plan
from simpar.workload import Dense, Network, Relu, Workload


def has_strategies(workload: Workload) -> bool:
    """Whether any layer of a network, or its loss, carries a strategy."""
    model = workload.model
    if not isinstance(model, Network):
        return False
    given = (layer.strategy for layer in model.layers if isinstance(layer, Dense | Relu))
    return any(given) or bool(workload.loss_strategy)


def lay_out(workload: Workload, plan: Plan, world: int, placement: tuple[int, ...]) -> LaidTape:
    """One copy of a micro-batch of a network cut by strategies over the ranks of a stage, forward and backward.

    Arguments: ``world``, ranks of all stages; ``placement``, stage → pipeline rank. Raises ``Infeasible`` where a
    strategy does not fit its operator, the batch or the ranks, or where the plan asks for degrees beside strategies.
    """
    model = workload.model
    if not isinstance(model, Network):
        raise Infeasible('strategies are for a network; a transformer takes degrees')
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
    tape = LaidTape(mesh, workload.precision, workload.gradients or '', shard_group=plan.shard_group)
    lowering = Lowering(
        tape=tape,
        mover=Mover(tape, plan.redistribution, plan.all_to_all),
        workload=workload,
        batch=workload.batch // plan.micro_batches,
        stages=_stages(model, plan, mesh.stages),
        full_batch=plan.dataset == 'full-batch',
        summed=plan.copies_loss == 'sum',
    )
    lowering.network(model)
    return tape


def _ranks(plan: Plan, world: int) -> int:
    """Ranks of one stage."""
    if world % plan.pipeline:
        raise Infeasible(f'plan.pipeline: {world} ranks cannot be cut into {plan.pipeline} equal stages')
    return world // plan.pipeline


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


def _stages(model: Network, plan: Plan, stages: int) -> tuple[int, ...]:
    """The stage of each dense layer."""
    marks = [layer.pipeline_stage for layer in model.layers if isinstance(layer, Dense)]
    given = () if isinstance(plan.stages, str) else plan.stages
    return marked_stages(marks, stages) or stage_of_layer(len(marks), stages, given)
