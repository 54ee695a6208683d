"""Prepared: the ops of all stages with shards, updates and recomputation, before they are put into an order.

Plans of a sweep often differ in what one of these passes does not look at. So each is told the keys that it looks at,
no others, and what it gave for equal ones is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, NamedTuple

from simpar.kept import Kept
from simpar.lower.forward_only import without_backward
from simpar.lower.fp8 import in_fp8
from simpar.lower.fusion import fusion_ids
from simpar.lower.loss_sum import sum_loss
from simpar.lower.muon import matrices
from simpar.lower.optimizer_parallel import Shards
from simpar.lower.overlap import overlap_of
from simpar.lower.recompute import recompute_of
from simpar.lower.recorded import READ as RECORDED
from simpar.lower.recorded import of_order, recorded
from simpar.lower.roles import StageOps, stages_of
from simpar.lower.shards import fusion_decides, shard, wanted_of
from simpar.lower.tape import Tape
from simpar.lower.tied import Exchange, exchange
from simpar.lower.update import Updates, updates
from simpar.lower.update_shards import update_shards, updated
from simpar.model.model import Graph
from simpar.pipeline.order import Order
from simpar.plan import Plan
from simpar.program import Tensor
from simpar.workload import Muon, Workload

_Keys = tuple[tuple[str, ...], Callable[[Plan], tuple[Any, ...]]]
"""Keys of a plan, and what reads them."""


def _keys(names: Collection[str]) -> _Keys:
    return tuple(names), attrgetter(*names)


_SHARDED: Final = RECORDED | {
    *('sum_loss', 'shard', 'gather', 'hsdp', 'zero', 'shard_form', 'shard_threshold', 'unsharded', 'accumulate'),
}
_UNFUSED: Final = _keys(_SHARDED)
"""Keys of a plan that sharding parameters looks at, beside those of fusion."""
_FUSED: Final = _keys(_SHARDED | {'fusion', 'fusion_ids'})
_STAGED: Final = _keys({'recompute', 'recompute_stages', 'recompute_communication', 'tiles', 'overlap'})
"""Keys that the ops of a stage depend on besides."""
_PLAN: Final = Plan()


def one_of_equal(workload: Workload) -> Workload:
    """The very same for equal workloads, as those of the rows of a sweep: all that is kept of it is found at once."""
    # In a tuple, since of the very same objects these are equal without a look into them.
    return _workloads.get((workload,), lambda: workload)


_workloads: Final[Kept[tuple[Workload], Workload]] = Kept(4)
_plans: Final[Kept[tuple[tuple[str, ...], tuple[Any, ...], dict[str, Any]], Plan]] = Kept(8)
"""Plans by the keys that they tell."""


class _Asked(NamedTuple):
    """What the tape depends on.

    Arguments: ``plan``, without the keys that nobody looks at; ``told``, whether its fusion is among the others.
    """

    workload: Workload
    plan: Plan
    world: int
    placement: tuple[int, ...]
    told: bool


class Sharded(NamedTuple):
    """A tape with shards and updates, and the graph that is on it; ``parameters`` in the order of their use."""

    tape: Tape
    graph: Graph
    parameters: tuple[str, ...]
    shards: Shards
    exchange: Exchange
    updates: Updates


class Prepared(NamedTuple):
    """What the passes before an order gave.

    Arguments: ``tape``, with the tensors of all ops; ``ids`` of layers, for ``fusion: ids``; ``stages``, their ops;
    ``forward``, whether there is no backward.
    """

    tape: Tape
    ids: dict[str, int]
    shards: Shards
    exchange: Exchange
    updates: Updates
    stages: list[StageOps]
    forward: bool


_sharded: Final[Kept[_Asked, Sharded | None]] = Kept(4)
_staged: Final[Kept[tuple[_Asked, tuple[object, ...]], tuple[Tape, list[StageOps]]]] = Kept(4)


def prepared(workload: Workload, plan: Plan, world: int, order: Order) -> Prepared:
    """The ops of the stages of an order; the caller may change the tape.

    Errors as of the passes.
    """
    asked = _Asked(workload, _only(plan, _UNFUSED), world, order.placement, told=False)
    found = _sharded.get(asked, lambda: _shard(asked))
    if found is None:
        asked = asked._replace(plan=_only(plan, _FUSED), told=True)
        found = _sharded.get(asked, lambda: _shard(asked))
        assert found is not None, 'what is told its fusion shards'
    ids = fusion_ids(workload, plan, found.parameters)
    tape, stages = _stages(asked, found, plan, order)
    return Prepared(tape.copy(), ids, found.shards, found.exchange, found.updates, stages, workload.phase == 'forward')


def _only(plan: Plan, keys: _Keys) -> Plan:
    """The plan with all other keys as they are by default, so that nothing can depend on them."""
    names, values = keys
    told, order = values(plan), of_order(plan)
    return _plans.get((names, told, order), lambda: replace(_PLAN, **dict(zip(names, told, strict=True)), **order))


def _shard(asked: _Asked) -> Sharded | None:
    """The tape with shards; None where fusion decides how parameters are sharded and was not told."""
    workload, plan, world, placement, told = asked
    tape, graph = recorded(workload, plan, world, placement)
    in_fp8(tape, workload, plan)
    if plan.sum_loss:
        sum_loss(tape)
    wanted = wanted_of(tape, plan)
    if not told and fusion_decides(plan, wanted):
        return None
    parameters = updated(tape)
    apart = matrices(tape) if isinstance(workload.optimizer, Muon) else ()
    shards = shard(tape, plan, fusion_ids(workload, plan, parameters), wanted, apart=apart)
    if workload.phase == 'forward':
        # Behind what counts the stages that a parameter is trained in: shards are those of training.
        without_backward(tape)
    _share(tape)
    exchanged = exchange(tape, shards)
    own = update_shards(tape, shards.owned)
    return Sharded(tape, graph, parameters, shards, exchanged, updates(tape, workload, own))


def _share(tape: Tape) -> None:
    """Let a tape have the very tensors of the one before where they are equal, as those of other copies are."""
    known = _shared[-1]
    for name, tensor in tape.tensors.items():
        one = known.get(name)
        if one is not None and one is not tensor and one == tensor:
            tape.tensors[name] = one
    # A new list each time, so that threads never see one that is half changed.
    _shared[:] = [dict(tape.tensors)]


_shared: Final[list[dict[str, Tensor]]] = [{}]
"""The tensors of the last tape."""


def _stages(asked: _Asked, found: Sharded, plan: Plan, order: Order) -> tuple[Tape, list[StageOps]]:
    """The ops of the stages, and the tape with their tensors."""
    done = frozenset((part.stage, part.kind) for row in order.actions for action in row for part in action.parts)
    told = _only(plan, _STAGED)

    def make() -> tuple[Tape, list[StageOps]]:
        tape = found.tape.copy()
        again = recompute_of(told, found.graph)
        return tape, stages_of(tape, len(order.placement), done, again, tiles=told.tiles, overlap=overlap_of(told))

    return _staged.get((asked, (told, done)), make)
