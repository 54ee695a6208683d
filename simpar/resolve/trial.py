"""Trial: what a plan that leaves nothing open comes to, so that resolving may choose among several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simpar.cost.price import price
from simpar.engine import simulate
from simpar.hardware import Cluster
from simpar.lower import lower
from simpar.memory import framework_of, memory
from simpar.plan import Plan
from simpar.workload import Workload

_STEPS: Final = 4
"""The last has no follower whose computation slows its last messages, so it is the one before that counts."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A plan, its predicted step, and the bytes that it lacks on its fullest rank."""

    plan: Plan
    step: float
    too_much: float

    @property
    def rank(self) -> tuple[float, float]:
        """What is smaller is better: that it fits, then that it is fast."""
        return self.too_much, self.step


def tried(workload: Workload, plan: Plan, cluster: Cluster) -> Trial:
    """Simulate a plan; raises what ``lower`` and ``simulate`` raise."""
    program = lower(workload, plan, cluster.world)
    trace = simulate(program, price(program, cluster), steps=_STEPS)
    too_much = memory(trace, framework=framework_of(cluster)).peak - cluster.profile.device.memory.size.value
    return Trial(plan, float(trace.step_times[-2]), max(0.0, too_much))
