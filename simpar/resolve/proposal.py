"""Proposals: strategies lowered and simulated, so that searches are judged by the program that comes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from simpar.cost.formula import share
from simpar.cost.price import price
from simpar.engine import simulate
from simpar.hardware import Cluster
from simpar.lower import lower
from simpar.memory import framework_of, memory
from simpar.pipeline.orders import AUTOMATIC
from simpar.plan import Plan
from simpar.program import Program, Role
from simpar.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Strategies and what becomes of them.

    Arguments:
        name: who proposed them first.
        workload: with the strategies that its file lists.
        plan: with all other strategies.
        sent: bytes that the busiest rank sends in a step, in ring and pairwise form.
        step: predicted seconds.
        too_much: bytes that the fullest rank lacks.
        also: who else proposed them.
    """

    name: str
    workload: Workload
    plan: Plan
    sent: float
    step: float
    too_much: float
    also: tuple[str, ...] = ()


def weighed(name: str, workload: Workload, plan: Plan, cluster: Cluster) -> Proposal:
    """Lower, price and simulate strategies; raises ``Infeasible`` where they cannot be lowered.

    What the plan leaves to resolving besides is taken as it is by default: equal stages, 1F1B, a message a layer.
    """
    program = lower(workload, _decided(plan), cluster.world)
    trace = simulate(program, price(program, cluster))
    lacking = memory(trace, framework=framework_of(cluster)).peak - cluster.profile.device.memory.size.value
    return Proposal(
        name=name,
        workload=workload,
        plan=plan,
        sent=max(sent_bytes(program, role) for role in program.roles),
        step=trace.step,
        too_much=max(0.0, lacking),
    )


def least_first(objective: str) -> Callable[[Proposal], tuple[float, float, float]]:
    """The order of proposals: those that fit into memory first, then by the objective, then by the other."""

    def key(one: Proposal) -> tuple[float, float, float]:
        # The other objective breaks ties: several strategies often send the same bytes.
        second, third = (one.step, one.sent) if objective == 'time' else (one.sent, one.step)
        return one.too_much, second, third

    return key


def sent_bytes(program: Program, role: Role) -> float:
    """Bytes that a rank of a role sends in a step, its collectives in ring form and its all-to-alls pairwise."""
    total = 0.0
    for index in role.op_class.tolist():
        op = program.op_classes[index]
        if op.kind == 'collective':
            total += share('ring', op.operator, program.partitions[op.partition].size) * op.bytes
        elif op.kind == 'send':
            total += op.bytes
    return total


def _decided(plan: Plan) -> Plan:
    stages = () if isinstance(plan.stages, str) else plan.stages
    # An order that is still to be found has no actions to simulate; 1F1B has the same stages.
    order = '1f1b' if plan.order in AUTOMATIC and not plan.rows else plan.order
    fusion = 'layer' if plan.fusion == 'predicted' else plan.fusion
    return replace(plan, stages=stages, order=order, fusion=fusion)
