"""Overlap passes: what may run beside what, switched as in MindSpore's ``parallel_speed_up.json``.

They change the order in which ops are issued, never the ops. Which are on by themselves is the framework's: a stack
says it. Two of them are what ``reduce_gradients`` and ``prefetch`` say otherwise; a plan that lists passes has those
that it lists and no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from simpar.errors import Problem
from simpar.lower.recompute import is_recomputed
from simpar.plan import Plan
from simpar.program import OpClass

MATMUL_GRAD: Final = 'matmul_grad_comm_overlap'
GRAD_COMM: Final = 'enable_grad_comm_opt'
OPT_SHARD: Final = 'enable_opt_shard_comm_opt'
RECOMPUTE_COMM: Final = 'recompute_comm_overlap'


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How a stage's ops are ordered.

    Arguments:
        fill: gradients of weights fill the time in which the gradient of their layer's input is summed; else that sum
            waits for them.
        recompute_early: what is recomputed stands before the op that waits for a sum; else where it is needed.
    """

    fill: bool = True
    recompute_early: bool = False


def overlap_of(plan: Plan) -> Overlap:
    """What the plan's passes say of the order in a stage."""
    if isinstance(plan.overlap, str):
        return Overlap()
    return Overlap(fill=MATMUL_GRAD in plan.overlap, recompute_early=RECOMPUTE_COMM in plan.overlap)


def with_passes(plan: Plan) -> Plan:
    """The plan with what its passes say of the sums of gradients and the gathers of weights in their own keys."""
    if isinstance(plan.overlap, str):
        return plan
    return replace(
        plan,
        reduce_gradients='overlapped' if GRAD_COMM in plan.overlap else 'end',
        prefetch=plan.prefetch if OPT_SHARD in plan.overlap else 0,
    )


def passes_beside(passes: Sequence[str], said: Mapping[str, Any]) -> tuple[str, ...]:
    """The passes of a framework where a file lists none, with those that its own keys switch on.

    Arguments: ``passes``, on by themselves; ``said``, keys of the plan that the file has, by name.
    Example: of no passes and ``{'reduce_gradients': 'overlapped'}``, ``('enable_grad_comm_opt',)``.
    """
    on = {GRAD_COMM: said.get('reduce_gradients') == 'overlapped', OPT_SHARD: bool(said.get('prefetch'))}
    return (*passes, *(name for name, is_on in on.items() if is_on and name not in passes))


def overlap_conflicts(plan: Plan) -> Iterator[Problem]:
    """Keys that say otherwise than a pass that is listed."""
    if GRAD_COMM in plan.overlap and plan.reduce_gradients == 'end':
        yield Problem(
            ('plan', 'reduce_gradients'), f'end, but {GRAD_COMM} is among plan.overlap', 'leave out one of both'
        )
    if OPT_SHARD in plan.overlap and not plan.prefetch:
        yield Problem(('plan', 'prefetch'), f'0, but {OPT_SHARD} is among plan.overlap', 'write 1 or more')


def recomputed_early(ops: Sequence[OpClass]) -> list[OpClass]:
    """The ops of a backward, what is recomputed moved before the last op before it that waits for a collective.

    So it runs while a sum travels that it has nothing to do with; what it makes lives that much longer.
    """
    found: list[OpClass] = []
    arriving: set[str] = set()
    waiting: int | None = None
    for op in ops:
        # Moved up in order, one behind the other: a clone may read what the clone before it made.
        if is_recomputed(op) and waiting is not None:
            found.insert(waiting, op)
            waiting += 1
            continue
        if op.kind == 'compute' and op.phase != 'W' and not arriving.isdisjoint(op.reads):
            # From here on the sum has been waited for.
            waiting, arriving = len(found), set()
        # Only these are in the chain of gradients; a gather for W is waited for by W alone.
        if op.kind == 'collective' and op.phase == 'I':
            arriving.update(op.writes)
        found.append(op)
    return found
