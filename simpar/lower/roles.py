"""Roles: the actions of a pipeline rank become its ops in issue order.

The copies of a micro-batch interleave inside its action; a forward and a backward interleave in an OVERLAP_F_B by the
same pass. A backward that directly follows its forward, as in the last stage, is one action with it. What a backward
recomputes belongs to its B, or to its I.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from simpar.lower.frees import add_frees
from simpar.lower.interleave import interleave, segments
from simpar.lower.issue import Issue
from simpar.lower.overlap import Overlap, recomputed_early
from simpar.lower.recompute import Recompute, check_recompute, is_recomputed, recomputed
from simpar.lower.tape import Tape
from simpar.lower.tiles import nothing_tiled, tiled
from simpar.pipeline.action import Action
from simpar.pipeline.order import Order
from simpar.program import OpClass

COMPUTE_KINDS = frozenset({'F', 'B', 'I', 'W', 'OVERLAP_F_B'})
TRANSFERS = {'SEND_F': ('send', 'F'), 'RECV_F': ('recv', 'F'), 'SEND_B': ('send', 'I'), 'RECV_B': ('recv', 'I')}


@dataclass(frozen=True, slots=True)
class StageOps:
    """The ops of one stage for one copy of a micro-batch, by what an action of the pipeline does.

    Arguments: ``parts``: F, B, I, W → ops in order; ``transfers``: (send or recv, phase) → op; ``gathered``, weights
    that several copies share and that are soon freed again; ``fill``: W fills.
    """

    parts: dict[str, tuple[OpClass, ...]]
    transfers: dict[tuple[str, str], OpClass]
    gathered: frozenset[str] = frozenset()
    fill: bool = True


def stages_of(
    tape: Tape,
    order: Order,
    recompute: Recompute | None = None,
    *,
    tiles: int = 1,
    overlap: Overlap | None = None,
) -> list[StageOps]:
    """The ops of every stage, each freeing what no later op of its stage reads.

    Arguments: ``tiles`` of a product and the collective next to it. Raises ``Infeasible`` where ``recompute`` names
    what is not there.
    """
    recompute, overlap = recompute or Recompute(), overlap or Overlap()
    check_recompute(recompute, tape.ops, len(order.placement))
    split = {part.stage for row in order.actions for action in row for part in action.parts if part.kind == 'I'}
    whole = {part.stage for row in order.actions for action in row for part in action.parts if part.kind == 'B'}
    ops: list[list[OpClass]] = [[] for _ in order.placement]
    for op in tape.ops:
        ops[op.stage].append(op)
    reads = [{name for op in mine for name in op.reads} for mine in ops]
    found = []
    made: list[OpClass] = []
    for stage, mine in enumerate(ops):
        elsewhere = set().union(*(names for other, names in enumerate(reads) if other != stage))
        done = recomputed(tape, mine, elsewhere, recompute) if recompute.of_stage(stage) else mine
        cut = tiled(tape, done, elsewhere, tiles)
        made += cut
        found.append(_stage(tape, cut, elsewhere, overlap, split=stage in split, whole=stage in whole))
    tape.notes += nothing_tiled(made, tiles)
    return found


def _stage(
    tape: Tape, ops: list[OpClass], elsewhere: set[str], overlap: Overlap, *, split: bool, whole: bool
) -> StageOps:
    """Where a stage does both B and I with W, the order of its readers differs, and so do the ops that free."""
    forward = [op for op in ops if op.phase == 'F' and not (_transfers(op) or is_recomputed(op))]
    backward = [op for op in ops if (op.phase != 'F' or is_recomputed(op)) and not _transfers(op)]
    backward = recomputed_early(backward) if overlap.recompute_early else backward
    transfers: dict[tuple[str, str], OpClass] = {(op.kind, op.phase): op for op in ops if _transfers(op)}
    inputs = [op for op in backward if op.phase != 'W']
    weights = [op for op in backward if op.phase == 'W']
    gathered = _gathered(tape)
    filled = [op for part in segments(backward, gathered, fill=overlap.fill) for op in part]
    b = _freeing(tape, elsewhere, forward, transfers, filled) if whole or not split else {}
    i = _freeing(tape, elsewhere, forward, transfers, [*inputs, *weights]) if split else b
    b = b or i
    names = {op.name for op in ops if b[op.name] != i[op.name]}
    apart = {name: replace(i[name], name=f'{name}.split') if name in names else i[name] for name in i}
    return StageOps(
        parts={
            'F': tuple(b[op.name] for op in forward),
            'B': tuple(b[op.name] for op in backward),
            'I': tuple(apart[op.name] for op in inputs),
            'W': tuple(apart[op.name] for op in weights),
        },
        transfers={key: b[op.name] for key, op in transfers.items()},
        gathered=gathered,
        fill=overlap.fill,
    )


def _gathered(tape: Tape) -> frozenset[str]:
    if tape.mesh.copies == 1:
        return frozenset()
    return frozenset(tensor.name for tensor in tape.tensors.values() if tensor.kind == 'gathered')


def _transfers(op: OpClass) -> bool:
    return op.kind in ('send', 'recv')


def _freeing(
    tape: Tape,
    elsewhere: set[str],
    forward: list[OpClass],
    transfers: dict[tuple[str, str], OpClass],
    backward: list[OpClass],
) -> dict[str, OpClass]:
    """The ops of a stage by name, with frees as of this order."""

    def transfer(kind: str, phase: str) -> list[OpClass]:
        return [transfers[kind, phase]] if (kind, phase) in transfers else []

    filled = [op for part in segments(forward, _gathered(tape)) for op in part]
    ordered = [*transfer('recv', 'F'), *filled, *transfer('send', 'F')]
    ordered += [*transfer('recv', 'I'), *backward, *transfer('send', 'I')]
    return {op.name: op for op in add_frees(ordered, tape.tensors, elsewhere)}


def issues(stages: Sequence[StageOps], row: Sequence[Action], copies: int, *, late: bool) -> list[Issue]:
    """The ops of one pipeline rank in issue order.

    Arguments: ``row``, its actions; ``late``: receives wait for the computation before them.
    """
    found: list[Issue] = []
    cut: dict[tuple[tuple[int, str], ...], list[list[OpClass]]] = {}
    for together in _merged(row):
        first = together[0]
        if first.kind in TRANSFERS:
            kind, phase = TRANSFERS[first.kind]
            op = stages[first.stage].transfers[kind, phase]
            micro_batch = first.micro_batch or 0
            found += [Issue(op, micro_batch, copy, late=late and kind == 'recv') for copy in range(copies)]
        elif first.kind in COMPUTE_KINDS:
            found += interleave(list(_threads(stages, together, copies, cut)))
    return found


def _merged(row: Sequence[Action]) -> Iterator[tuple[Action, ...]]:
    """Actions, a forward together with the backward right behind it of the same stage and micro-batch."""
    index = 0
    while index < len(row):
        pair = tuple(row[index : index + 2])
        same = len(pair) == 2 and (pair[0].stage, pair[0].micro_batch) == (pair[1].stage, pair[1].micro_batch)
        if same and pair[0].kind == 'F' and pair[1].kind in ('B', 'I'):
            yield pair
            index += 2
        else:
            yield pair[:1]
            index += 1


def _threads(
    stages: Sequence[StageOps],
    together: tuple[Action, ...],
    copies: int,
    cut: dict[tuple[tuple[int, str], ...], list[list[OpClass]]],
) -> Iterator[list[list[Issue]]]:
    """One thread for each copy; in an overlap, one for each copy of each part.

    Arguments: ``cut``, segments by the stages and kinds of a thread's parts; grows, as all micro-batches are cut alike.
    """
    for parts in [(part,) for part in together[0].parts] if together[0].sub_actions else [together]:
        kinds = tuple((part.stage, part.kind) for part in parts)
        fill = all(stages[stage].fill for stage, _ in kinds)
        if kinds not in cut:
            ops = [op for stage, kind in kinds for op in stages[stage].parts[kind]]
            cut[kinds] = segments(ops, frozenset().union(*(stages[stage].gathered for stage, _ in kinds)), fill=fill)
        micro_batch = parts[0].micro_batch or 0
        for copy in range(copies):
            yield [[Issue(op, micro_batch, copy, not fill and _sums_input(op)) for op in part] for part in cut[kinds]]


def _sums_input(op: OpClass) -> bool:
    """Whether an op sums or gathers gradients of activations."""
    return op.kind == 'collective' and op.phase == 'I'
