"""Facts: what a lowered program has, of all that keys of a schedule are about."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from simpar.lower.given import has_strategies
from simpar.lower.loss_sum import TOTAL
from simpar.lower.mesh import CONTEXT
from simpar.lower.recompute import is_recomputed
from simpar.lower.tiles import JOIN
from simpar.lower.update_shards import layer_of
from simpar.plan import Plan
from simpar.program import OpClass, Program
from simpar.resolve.settle import recomputes
from simpar.schedule import Schedule
from simpar.workload import Workload


def facts_of(schedule: Schedule, workload: Workload, plan: Plan, program: Program) -> Facts:
    """The facts of a program. Arguments: ``workload`` and ``plan``, those of the schedule with every choice made."""
    return Facts(program=program, workload=workload, workload_asked=schedule.workload, asked=schedule.plan, plan=plan)


@dataclass(frozen=True, kw_only=True, eq=False)
class Facts:
    """A program, and the workload and plan that it was lowered from.

    Arguments: ``workload_asked`` and ``asked``, as the user wrote them; ``workload`` and ``plan``, with every choice
    made.
    """

    program: Program
    workload: Workload
    workload_asked: Workload
    asked: Plan
    plan: Plan

    @cached_property
    def _communication(self) -> list[OpClass]:
        return [op for op in self.program.op_classes if op.kind != 'compute']

    @property
    def communicates(self) -> bool:
        """Whether any rank sends anything."""
        return bool(self._communication)

    @cached_property
    def sends(self) -> bool:
        """Whether stages send to one another."""
        return any(op.kind == 'send' for op in self._communication)

    @cached_property
    def one_stage(self) -> bool:
        """Whether the model is in one stage."""
        return not any(op.stage for op in self.program.op_classes) and self.plan.pipeline == 1

    @cached_property
    def sums_gradients(self) -> bool:
        """Whether gradients of parameters are summed over ranks."""
        # Collectives of W are sums of gradients; those of F and I are over activations.
        return any(op.kind == 'collective' and op.phase == 'W' for op in self._communication)

    @cached_property
    def scatters_activations(self) -> bool:
        """Whether degrees alone make a sum of activations leave each rank a slice, as sequence parallelism does."""
        if has_strategies(self.workload, self.plan):
            return False
        return any(op.operator == 'reduce_scatter' and op.phase == 'F' for op in self._communication)

    @cached_property
    def moves_activations(self) -> bool:
        """Whether strategies that a search found move activations, which without it and degrees no rank sends."""
        asked = self.asked.tensor == 1 and not has_strategies(self.workload_asked, self.asked)
        among = {op.phase for op in self._communication if op.kind == 'collective'}
        return asked and not self.gathered and bool(among & {'F', 'I'})

    @cached_property
    def exchanges(self) -> bool:
        """Whether any redistribution is an all-to-all."""
        # Heads are exchanged among context ranks by another key.
        return any(op.operator == 'all_to_all' and op.partition != CONTEXT for op in self._communication)

    @cached_property
    def sharded(self) -> bool:
        """Whether optimizer parallelism shards any parameter."""
        return any(tensor.kind in ('gathered', 'view') and tensor.like for tensor in self.program.tensors)

    @cached_property
    def gathered(self) -> bool:
        """Whether weights are gathered where they are used."""
        return any(tensor.kind == 'gathered' and tensor.like for tensor in self.program.tensors)

    @property
    def asks_shards(self) -> bool:
        """Whether the plan asks for optimizer parallelism."""
        return self.plan.hsdp != 'off' or self.plan.zero > 0 or bool(self.plan.shard)

    @cached_property
    def asks_recompute(self) -> bool:
        """Whether the plan, or a mark of a layer, asks for recomputation."""
        return recomputes(self.workload, self.plan)

    @cached_property
    def recomputed(self) -> frozenset[str]:
        """The layers of which an op runs again."""
        return frozenset(layer_of(op.name) for op in self.program.op_classes if is_recomputed(op))

    @cached_property
    def tiled(self) -> bool:
        """Whether any product is in tiles."""
        return any(op.operator == JOIN for op in self.program.op_classes)

    @cached_property
    def sums_loss(self) -> bool:
        """Whether the loss is summed for display."""
        return TOTAL in self.program.tensor

    @cached_property
    def draws_weights(self) -> bool:
        """Whether any parameter begins with numbers of a normal distribution."""
        return any(tensor.initial.startswith('normal') for tensor in self.program.tensors if tensor.kind == 'parameter')

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of all parameters."""
        return tuple(tensor.name for tensor in self.program.tensors if tensor.kind == 'parameter')
