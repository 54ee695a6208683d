"""Strategies of a model's operators: those that a user gave, and those that a search finds for the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simpar.hardware import Cluster
from simpar.lower.graph.record import has_strategies
from simpar.plan import Plan
from simpar.workload import Workload

if TYPE_CHECKING:
    from simpar.resolve.proposal import Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategies:
    """A workload and a plan whose strategies are all there.

    Arguments:
        origins: by name of a layer in programs, where its strategy comes from.
        proposals: of an exact search, all that were counted in their programs, the best first.
        bound: of an exact search, the least bytes that a device sends, summed over operators of all stages, no biases.
        seconds: of a search by time, the least sum of seconds, one op after the other.
    """

    workload: Workload
    plan: Plan
    origins: Mapping[str, str] = field(default_factory=dict)
    proposals: tuple[Proposal, ...] = ()
    bound: float | None = None
    seconds: float | None = None


def find_strategies(workload: Workload, plan: Plan, cluster: Cluster) -> Strategies:
    """The workload, and the plan, with strategies for operators and the loss, where ``plan.search`` asks for them.

    Layers that have one keep it. MindSpore's searches choose as the compiler does, whatever it costs; ``exact`` takes
    the least of the best few by bytes, MindSpore's choices and plain data × tensor layouts, each lowered, by bytes or
    by predicted step, of those that fit into memory. A search sees one copy of a micro-batch.
    Devices that are no power of two, which MindSpore's searches do not take: the odd factor splits samples, and the
    search splits the rest. Raises ``Infeasible`` where no strategies can be lowered, ``ScheduleError`` where the search
    does not take the strategies that are given.
    """
    if plan.search == 'none' and not has_strategies(workload, plan):
        return Strategies(workload=workload, plan=plan)
    # The searches take longer to import than most models to lower.
    from simpar.resolve.strategies import searched

    return searched(workload, plan, cluster)
