"""The programs that are timed: GPT-3 of 175 billion weights, and transformers whose slots grow by tens."""

from dataclasses import dataclass
from typing import Final

from simpar.cost.costs import Costs
from simpar.cost.price import price
from simpar.hardware import Cluster
from simpar.lower import lower
from simpar.plans import Plan
from simpar.predict import EFFECTS
from simpar.profiles import cluster, load_profile
from simpar.program import Program
from simpar.workload import Transformer, Workload

GPT3: Final = Transformer(layers=96, hidden=12288, heads=96, vocab=51200, sequence=2048, tied=True)
SIZES: Final = {10**4: (2, 4, 2, 8, 8), 10**5: (4, 4, 4, 10, 16), 10**6: (4, 8, 8, 25, 32)}
"""By about how many slots: tensor, pipeline, data, micro-batches, layers; every rank is simulated."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is simulated: a workload by a plan on a cluster."""

    workload: Workload
    plan: Plan
    hardware: Cluster

    @property
    def ranks(self) -> int:
        """How many."""
        return self.plan.tensor * self.plan.pipeline * self.plan.data

    def program(self) -> Program:
        """What every rank does."""
        return lower(self.workload, self.plan, self.ranks)

    def costs(self, program: Program, *, effects: bool = True) -> Costs:
        """What that costs; ``effects``, whether all of them are priced in or none."""
        return price(program, self.hardware, EFFECTS[-1 if effects else 0][1])


def gpt3(data: int = 8, micro_batches: int = 192) -> Case:
    """GPT-3 with tensor 8, pipeline 16, sequence parallelism and selective recompute on A100s, 8 in a server."""
    plan = Plan(
        tensor=8, pipeline=16, data=data, micro_batches=micro_batches, sequence_parallel=True, recompute='selective'
    )
    workload = Workload(model=GPT3, batch=micro_batches * data, precision='bf16')
    return Case(workload, plan, cluster(load_profile('a100-sxm-8'), nodes=16 * data))


def sized(slots: int) -> Case:
    """A transformer whose ranks have about so many slots; one of ``SIZES``."""
    tensor, pipeline, data, micro_batches, layers = SIZES[slots]
    model = Transformer(layers=layers, hidden=4096, heads=32, vocab=51200, sequence=2048)
    plan = Plan(tensor=tensor, pipeline=pipeline, data=data, micro_batches=micro_batches, sequence_parallel=True)
    workload = Workload(model=model, batch=micro_batches * data, precision='bf16')
    return Case(workload, plan, cluster(load_profile('h100-sxm-8'), nodes=tensor * pipeline * data // 8))
