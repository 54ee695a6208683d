"""Roles: the actions of a pipeline rank become its ops in issue order.

The copies of a micro-batch interleave inside its action; a forward and a backward interleave in an OVERLAP_F_B by the
same pass. A backward that directly follows its forward, as in the last stage, is one action with it. What a backward
recomputes belongs to its B, or to its I.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from simpar.lower.by_chunk import ByChunk
from simpar.lower.frees import add_frees
from simpar.lower.interleave import interleave, segments
from simpar.lower.issue import Block, Issue, Issued, Run
from simpar.lower.overlap import Overlap, recomputed_early
from simpar.lower.recompute import Recompute, check_recompute, is_recomputed, recomputed
from simpar.lower.tape import Tape
from simpar.lower.tiles import nothing_tiled, tiled
from simpar.pipeline.action import Action
from simpar.program import OpClass

COMPUTE_KINDS = frozenset({'F', 'B', 'I', 'W', 'OVERLAP_F_B'})
TRANSFERS = {'SEND_F': ('send', 'F'), 'RECV_F': ('recv', 'F'), 'SEND_B': ('send', 'I'), 'RECV_B': ('recv', 'I')}


@dataclass(frozen=True, slots=True)
class StageOps:
    """The ops of one stage for one copy of a micro-batch, by what an action of the pipeline does.

    Arguments:
        parts: F, B, I, W → ops in order.
        transfers: (send or recv, phase) → op.
        gathered: weights that several copies share and that are soon freed again.
        fill: whether W fills the time of sums.
    """

    parts: dict[str, tuple[OpClass, ...]]
    transfers: dict[tuple[str, str], OpClass]
    gathered: frozenset[str] = frozenset()
    fill: bool = True


def stages_of(
    tape: Tape,
    count: int,
    done: Collection[tuple[int, str]],
    recompute: Recompute | None = None,
    *,
    tiles: int = 1,
    overlap: Overlap | None = None,
) -> list[StageOps]:
    """The ops of every stage, each freeing what no later op of its stage reads; of every chunk of it, the first first.

    Arguments: ``count``, how many stages there are; ``done``, (stage, kind) of all actions that are done; ``tiles`` of
    a product and the collective next to it. Raises ``Infeasible`` where ``recompute`` names
    what is not there.
    """
    recompute, overlap = recompute or Recompute(), overlap or Overlap()
    check_recompute(recompute, tape.ops, count)
    ops: list[list[OpClass]] = [[] for _ in range(count)]
    for op in tape.ops:
        ops[op.stage].append(op)
    others = _read_elsewhere(ops)
    ready = []
    for stage, (mine, elsewhere) in enumerate(zip(ops, others, strict=True)):
        again = recomputed(tape, mine, elsewhere, recompute) if recompute.of_stage(stage) else mine
        ready.append(tiled(tape, again, elsewhere, tiles))
    made = [op for mine in ready for op in mine]
    tape.notes += nothing_tiled(made, tiles)
    if tape.mesh.sequence_chunks > 1:
        chunks = ByChunk.of(tape, made)
        each = [_stage_in_chunks(chunks, *stage, overlap) for stage in zip(ready, others, strict=True)]
        chunks.forget()
        return [part for parts in each for part in parts]
    return [
        _stage(tape, mine, elsewhere, overlap, split=(stage, 'I') in done, joint=(stage, 'B') in done)
        for stage, (mine, elsewhere) in enumerate(zip(ready, others, strict=True))
    ]


def _read_elsewhere(ops: Sequence[Sequence[OpClass]]) -> list[set[str]]:
    """For each stage what the others read."""
    reads = [{name for op in mine for name in op.reads} if len(ops) > 1 else set() for mine in ops]
    return [set().union(*(reads[:stage] + reads[stage + 1 :])) for stage in range(len(ops))]


def _stage(
    tape: Tape, ops: list[OpClass], elsewhere: set[str], overlap: Overlap, *, split: bool, joint: bool
) -> StageOps:
    """Where a stage does both B and I with W, the order of its readers differs, and so do the ops that free."""
    forward, backward, transfers = _parts(ops, overlap)
    inputs = [op for op in backward if op.phase != 'W']
    weights = [op for op in backward if op.phase == 'W']
    gathered = _gathered(tape)
    filled = [op for part in segments(backward, gathered, fill=overlap.fill) for op in part]
    # Frees follow from an order, so they are worked out for each order that the stage is done in.
    first = [op for part in segments(forward, gathered) for op in part]
    b = _freeing(tape, elsewhere, first, transfers, filled) if joint or not split else {}
    i = _freeing(tape, elsewhere, first, transfers, [*inputs, *weights]) if split else b
    b = b or i
    apart = i
    if b is not i:
        # Equal ops are shared; those that free otherwise in a split backward have a name of their own.
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


def _stage_in_chunks(chunks: ByChunk, ops: list[OpClass], elsewhere: set[str], overlap: Overlap) -> list[StageOps]:
    """The ops of a stage for each chunk of a sequence: what is freed follows from all of them together."""
    gathered, numbers = _gathered(chunks.tape), range(chunks.count)
    inputs = chunks.split(ops)
    of = [_parts(chunks.ops(ops, number), overlap) for number in numbers]
    of[0] = of[0]._replace(forward=[*inputs, *of[0].forward])

    def transfer(number: int, kind: str, phase: str) -> list[OpClass]:
        return [of[number].transfers[kind, phase]] if (kind, phase) in of[number].transfers else []

    ordered: list[OpClass] = []
    for number in numbers:
        forward = [op for part in segments(of[number].forward, gathered) for op in part]
        ordered += [*transfer(number, 'recv', 'F'), *forward, *transfer(number, 'send', 'F')]
    # Gradients come back from the last chunk to the first.
    for number in reversed(numbers):
        backward = [op for part in segments(of[number].backward, gathered, fill=overlap.fill) for op in part]
        ordered += [*transfer(number, 'recv', 'I'), *backward, *transfer(number, 'send', 'I')]
    elsewhere = elsewhere.union(*(chunks.names(sorted(elsewhere), number) for number in numbers))
    freeing = {op.name: op for op in add_frees(ordered, chunks.tape.tensors, elsewhere)}
    return [
        StageOps(
            parts={
                'F': tuple(freeing[op.name] for op in one.forward),
                'B': tuple(freeing[op.name] for op in one.backward),
            },
            transfers={key: freeing[op.name] for key, op in one.transfers.items()},
            gathered=gathered,
            fill=overlap.fill,
        )
        for one in of
    ]


class _Parts(NamedTuple):
    """The ops of a stage by what actions do with them."""

    forward: list[OpClass]
    backward: list[OpClass]
    transfers: dict[tuple[str, str], OpClass]


def _parts(ops: list[OpClass], overlap: Overlap) -> _Parts:
    forward: list[OpClass] = []
    backward: list[OpClass] = []
    transfers: dict[tuple[str, str], OpClass] = {}
    for op in ops:
        if op.kind in ('send', 'recv'):
            transfers[op.kind, op.phase] = op
        else:
            (backward if op.phase != 'F' or is_recomputed(op) else forward).append(op)
    return _Parts(forward, recomputed_early(backward) if overlap.recompute_early else backward, transfers)


def _gathered(tape: Tape) -> frozenset[str]:
    if tape.mesh.copies == 1:
        return frozenset()
    return frozenset(tensor.name for tensor in tape.tensors.values() if tensor.kind == 'gathered')


def _freeing(
    tape: Tape,
    elsewhere: set[str],
    forward: list[OpClass],
    transfers: dict[tuple[str, str], OpClass],
    backward: list[OpClass],
) -> dict[str, OpClass]:
    """The ops of a stage by name, with frees as of this order of its forward and its backward."""

    def transfer(kind: str, phase: str) -> list[OpClass]:
        return [transfers[kind, phase]] if (kind, phase) in transfers else []

    ordered = [*transfer('recv', 'F'), *forward, *transfer('send', 'F')]
    ordered += [*transfer('recv', 'I'), *backward, *transfer('send', 'I')]
    return {op.name: op for op in add_frees(ordered, tape.tensors, elsewhere)}


def issued(stages: Sequence[StageOps], row: Sequence[Action], copies: int, *, late: bool) -> Issued:
    """The ops of one pipeline rank in issue order.

    Arguments: ``row``, its actions; ``late``: receives wait for the computation before them, and so does a send that
    does not stand right behind what it sends.
    """
    blocks: list[Block] = []
    runs: dict[tuple[object, ...], Run] = {}
    computed: tuple[tuple[Action, ...], ...] = ()
    for actions in _threads(row):
        first = actions[0][0]
        if first.kind not in TRANSFERS:
            computed = actions
        waits = late and first.kind in TRANSFERS and not _sends_what_is_new(first, computed)
        if len(actions) == 1:
            micro_batches: tuple[int, ...] = (first.micro_batch or 0,)
            # Actions of one kind do the same for every micro-batch, so they share a run.
            key: tuple[object, ...] = (first.stage, first.kind, actions[0][-1].kind, waits)
        else:
            # Parts that are of one micro-batch have it once.
            parts = [one.micro_batch or 0 for one in chain(*actions)]
            micro_batches = tuple(dict.fromkeys(parts))
            key = (*[(one.stage, one.kind) for one in chain(*actions)], len(micro_batches))
        run = runs.get(key)
        if run is None:
            run = runs[key] = _run(stages, actions, micro_batches, copies, late=waits)
        blocks.append(Block(run, micro_batches))
    return Issued(tuple([block for block in blocks if block.run.issues]))


def _sends_what_is_new(action: Action, computed: Sequence[Sequence[Action]]) -> bool:
    """Whether an action sends a result of what was last computed."""
    kinds = {'SEND_F': ('F',), 'SEND_B': ('B', 'I')}.get(action.kind, ())
    return any(
        one.kind in kinds and (one.stage, one.micro_batch) == (action.stage, action.micro_batch)
        for one in chain(*computed)
    )


def _threads(row: Sequence[Action]) -> Iterator[tuple[tuple[Action, ...], ...]]:
    """What is interleaved: the two actions of an overlap, or one action, or a forward together with its backward.

    That is a backward right behind its forward, of the same stage and micro-batch.
    """
    before: Action | None = None
    for action in row:
        if before is not None:
            if _goes_back(before, action):
                yield ((before, action),)
                before = None
                continue
            yield ((before,),)
            before = None
        if action.kind == 'F':
            before = action
        elif action.sub_actions:
            yield tuple([(part,) for part in action.sub_actions])
        elif action.kind in COMPUTE_KINDS or action.kind in TRANSFERS:
            yield ((action,),)
    if before is not None:
        yield ((before,),)


def _goes_back(forward: Action, action: Action) -> bool:
    if action.kind not in ('B', 'I'):
        return False
    return action.stage == forward.stage and action.micro_batch == forward.micro_batch


def _run(
    stages: Sequence[StageOps],
    threads: Sequence[tuple[Action, ...]],
    micro_batches: tuple[int, ...],
    copies: int,
    *,
    late: bool,
) -> Run:
    """One thread for each copy; in an overlap, one for each copy of each part."""
    first = threads[0][0]
    if first.kind in TRANSFERS:
        # Of a stage below which nothing is trained no gradient goes back, whatever the order says.
        op = stages[first.stage].transfers.get(TRANSFERS[first.kind])
        return Run(() if op is None else tuple(Issue(op, 0, copy, late) for copy in range(copies)))
    found: list[list[list[Issue]]] = []
    for actions in threads:
        mine = [stages[action.stage] for action in actions]
        fill = all(stage.fill for stage in mine)
        ops = [op for stage, action in zip(mine, actions, strict=True) for op in stage.parts[action.kind]]
        parts = segments(ops, frozenset().union(*(stage.gathered for stage in mine)), fill=fill)
        part = micro_batches.index(actions[0].micro_batch or 0)
        found += [
            [[Issue(op, part, copy, not fill and _sums_input(op)) for op in segment] for segment in parts]
            for copy in range(copies)
        ]
    return Run(tuple(interleave(found)))


def _sums_input(op: OpClass) -> bool:
    """Whether an op sums or gathers gradients of activations."""
    return op.kind == 'collective' and op.phase == 'I'
