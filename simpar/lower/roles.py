"""Roles: the actions of a pipeline rank become its ops in issue order.

The copies of a micro-batch interleave inside its action; a forward and a backward interleave in an OVERLAP_F_B by the
same pass. A backward that directly follows its forward, as in the last stage, is one action with it. What a backward
recomputes belongs to its B, or to its I.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any, Final, NamedTuple, TypeVar

from simpar import errors, keys, plans
from simpar.lower.graph.chunks import ByChunk
from simpar.lower.issue import EXPERT, Block, Issue, Issued, Run
from simpar.lower.passes import offload, recompute
from simpar.lower.tape import Tape, layer_of
from simpar.model.model import Graph
from simpar.pipeline import order, orders
from simpar.program import COPY, OpClass, Tensor

# Overlap passes: what may run beside what, switched as in MindSpore's ``parallel_speed_up.json``.
#
# They change the order in which ops are issued, never the ops. Which are on by themselves is the framework's: a stack
# says it. Two of them are what ``reduce_gradients`` and ``prefetch`` say otherwise; a plan that lists passes has those
# that it lists and no others.


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
        pairs: a forward beside a backward: ``none``, ``overlap`` or ``memory``, see ``pair_up``.
        delayed: gradients of weights hold up no all-to-all of a pair.
        behind: the last of them stand behind a stage's send.
        experts: all-to-alls of experts alone end the parts of a layer.
    """

    fill: bool
    recompute_early: bool
    pairs: str
    delayed: bool
    behind: bool
    experts: bool = False


def overlap_of(plan: plans.Plan) -> Overlap:
    """What the plan's passes say of the order in a stage."""
    fill = isinstance(plan.overlap, str) or MATMUL_GRAD in plan.overlap
    delayed = plan.weight_gradients == 'delayed'
    return Overlap(
        fill=fill,
        recompute_early=RECOMPUTE_COMM in plan.overlap,
        pairs=plan.pairs,
        delayed=delayed,
        # Computation between the messages of one exchange would wait for half of it, and ranks for each other.
        behind=delayed and plan.exchange != 'fused',
    )


def with_passes(plan: plans.Plan) -> plans.Plan:
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


def plan_conflicts(plan: plans.Plan) -> Iterator[errors.Problem]:
    """Keys of a plan that do not go together, by the table of conflicts."""
    return keys.conflicts_of('plan', plan=plan, automatic=orders.AUTOMATIC)


def recomputed_early(ops: Sequence[OpClass]) -> list[OpClass]:
    """The ops of a backward, what is recomputed moved before the last op before it that waits for a collective.

    So it runs while a sum travels that it has nothing to do with; what it makes lives that much longer.
    """
    new_order: list[OpClass] = []
    arriving: set[str] = set()
    waiting: int | None = None
    for op in ops:
        # Moved up in order, one behind the other: a clone may read what the clone before it made.
        if recompute.is_recomputed(op) and waiting is not None:
            new_order.insert(waiting, op)
            waiting += 1
            continue
        if op.kind == 'compute' and op.phase != 'W' and not arriving.isdisjoint(op.reads):
            # From here on the sum has been waited for.
            waiting, arriving = len(new_order), set()
        # Only these are in the chain of gradients; a gather for W is waited for by W alone.
        if op.kind == 'collective' and op.phase == 'I':
            arriving.update(op.writes)
        new_order.append(op)
    return new_order


# Interleaving: threads of ops run segment by segment, so that one's communication hides under another's computation.
#
# A thread is one copy's ops in an action, or those of one of two overlapped actions. A segment ends where compute
# must wait for a collective of the same segment. The gradients of weights (W) are nobody's input until the update, so
# they fill: each is issued at the head of the segment after its own, while that segment's collective travels.
# MindSpore orders the forward alike (``micro_interleaved_order_control``) and leaves the backward free.


Item = TypeVar('Item')


def segments(ops: Sequence[OpClass], gathered: Collection[str] = (), *, fill: bool = True) -> list[list[OpClass]]:
    """Split one thread's ops where computation waits for communication, and let W fill.

    Arguments: ``ops`` in order, without gradient reductions and updates; ``gathered``, weights that all threads share
    and that are soon freed again: a segment reads those of one layer; without ``fill`` W stays where it is.
    """
    parts: list[list[OpClass]] = [[]]
    arriving: set[str] = set()
    layer = ''
    for op in ops:
        used = next((layer_of(name) for name in op.reads if name in gathered), layer) if gathered else layer
        # A W is no reason to stop: it fills.
        waits = op.kind == 'compute' and op.phase != 'W' and not arriving.isdisjoint(op.reads)
        # Also where another layer's weights begin: threads would else hold two layers' at once.
        if waits or (used != layer and layer):
            parts.append([])
            arriving = set()
        layer = used
        parts[-1].append(op)
        # A layer waits for its fetch, but is no other segment for it: gradients of weights stay where they are.
        if op.kind != 'compute' and op.operator != COPY:
            arriving.update(op.writes)
    return _fill(parts) if fill else parts


def _fill(parts: list[list[OpClass]]) -> list[list[OpClass]]:
    filled: list[list[OpClass]] = []
    late: list[OpClass] = []
    for segment in parts[:-1]:
        filled.append([*late, *(op for op in segment if not _fills(op))])
        # W is held over to the next segment's head, where the collective of this one travels.
        late = [op for op in segment if _fills(op)]
    return [*filled, [*late, *parts[-1]]]


def _fills(op: OpClass) -> bool:
    return op.kind == 'compute' and op.phase == 'W'


def interleave(threads: Sequence[Sequence[Sequence[Item]]]) -> list[Item]:
    """Issue order of threads, each a list of segments: segment k of every thread before segment k + 1 of any."""
    # Threads need not be equally long: a forward overlaps a longer backward.
    rounds = zip_longest(*threads, fillvalue=())
    return [item for together in rounds for segment in together for item in segment]


# Pairs: a forward beside a backward, layer by layer, as Megatron-LM's combined 1F1B and MindSpeed's moe-fb-overlap do.
#
# Layers of the forward ascend and meet those of the backward, which descend. A layer is in parts: attention up to the
# dispatch of tokens, experts up to their combination, and what is behind; the backward has the same from the end. So
# the all-to-all of one travels under a part of the other, as in TransformerLayerSchedulePlan.run of NVIDIA/Megatron-LM
# (model_chunk_schedule_plan.py, d98e8a64). Without ranks of experts every wait for a collective ends a part.


Part = list[OpClass]
_LAYER: Final = re.compile(r'(?:d:)?((?:\w+\.)*?\w*\d)\.')
_ATTENDED: Final = '.residual1'
"""Of a layer without experts, what attention ends with."""


class Layered(NamedTuple):
    """A forward or a backward: its parts before the first layer, those of each layer, and those behind the last."""

    before: list[Part]
    layers: list[list[Part]]
    behind: list[Part]

    @property
    def parts(self) -> list[Part]:
        """All parts in order."""
        return [*self.before, *chain.from_iterable(self.layers), *self.behind]


def layered(ops: Sequence[OpClass], overlap: Overlap) -> Layered:
    """The ops of a forward or a backward by layers, each gradient of weights in the first part that can compute it."""
    layers: list[str] = ['']
    parts: list[Part] = [[]]
    mixtures = {_layer(op) for op in ops if op.partition == EXPERT}
    arriving: set[str] = set()
    # By tensor, the part that may read it.
    ready: dict[str, int] = {}
    turned = False
    for op in ops:
        if _fills(op):
            here = len(parts) - 1
            own = min(here, max((ready[name] for name in op.reads if name in ready), default=here))
            parts[own].append(op)
            ready |= dict.fromkeys(op.writes, own)
            continue
        layer = _layer(op)
        dense = overlap.experts and layer not in mixtures
        turns = dense and (turned or (op.name.startswith('d:') and _ATTENDED in op.name))
        if parts[-1] and (layer != layers[-1] or turns or not arriving.isdisjoint(op.reads)):
            parts.append([])
            layers.append(layer)
            arriving = set()
        layers[-1] = layer
        parts[-1].append(op)
        ends = _ends(op, overlap)
        ready |= dict.fromkeys(op.writes, len(parts) - 1 + ends)
        arriving.update(op.writes if ends else ())
        turned = dense and op.phase == 'F' and op.name.endswith(f'{_ATTENDED}.F')
    return _by_layer(layers, [_with_weights(part, overlap) for part in parts])


def _layer(op: OpClass) -> str:
    match = _LAYER.match(op.name)
    return match[1] if match else ''


def _ends(op: OpClass, overlap: Overlap) -> bool:
    return op.kind == 'collective' and (not overlap.experts or op.partition == EXPERT)


def _with_weights(part: Part, overlap: Overlap) -> Part:
    """A part with gradients of weights at its end where they are delayed, else before the all-to-alls at its end."""
    at = next((place for place, op in enumerate(part) if op.partition == EXPERT), len(part))
    before, after = ([], part) if overlap.delayed else (part[:at], part[at:])
    weights, others = [op for op in after if _fills(op)], [op for op in after if not _fills(op)]
    return [*others, *weights] if overlap.delayed else [*before, *weights, *others]


def _by_layer(names: Sequence[str], parts: Sequence[Part]) -> Layered:
    inside = [place for place, name in enumerate(names) if name]
    if not inside:
        return Layered([], [[part] for part in parts], [])
    layers: list[list[Part]] = []
    for place in range(inside[0], inside[-1] + 1):
        # What stands between two layers goes with the first.
        if names[place] and (place == inside[0] or names[place] != names[place - 1]):
            layers.append([])
        layers[-1].append(parts[place])
    return Layered(list(parts[: inside[0]]), layers, list(parts[inside[-1] + 1 :]))


def pair_up(forwards: Sequence[Layered], backwards: Sequence[Layered], *, memory: bool) -> list[tuple[int, Part]]:
    """The parts of threads in issue order, each with the number of its thread, the forwards' first.

    Of each layer a backward's part stands before the forward's, whose computation its all-to-all travels under.
    Arguments: ``memory``: a backward's layer ends before the second part of the forward's begins.
    """
    threads = list(enumerate((*forwards, *backwards)))
    pairs = [(thread, part) for thread, one in threads for part in one.before]
    for number in range(max(len(one.layers) for _, one in threads)):
        placed: list[tuple[tuple[bool, int, bool, int], Part]] = []
        for thread, one in threads:
            parts = one.layers[number] if number < len(one.layers) else []
            ahead = thread < len(forwards)
            # The backward of a layer without experts has no combination to begin with.
            first = 1 if len(parts) == len(('feed-forward', 'attention')) and not ahead else 0
            for place, part in enumerate(parts, first):
                placed.append(((memory and ahead and place > 0, place, ahead, thread), part))
        pairs += [(at[-1], part) for at, part in sorted(placed, key=lambda one: one[0])]
    return pairs + [(thread, part) for thread, one in threads for part in one.behind]


# Frees: an activation ends with the last op of its copy that reads it, so that memory is known and reuse is checked.
#
# A free must wait for all readers. Where a collective and a computation read the same tensor, the free moves on to the
# computation that waits for that collective anyway. So frees never add a need.


_Life = tuple[int, list[int]]
"""A tensor from an op that writes it anew to the next that does so: the op that begins it, and those that read it."""


def add_frees(ops: Sequence[OpClass], tensors: Mapping[str, Tensor], elsewhere: Collection[str] = ()) -> list[OpClass]:
    """The same ops, each freeing the activations that no later one of its copy reads; the loss stays.

    An op that writes a tensor without reading it begins a new life of it: before, the tensor may be gone.
    Arguments: ``ops`` of one copy in issue order; ``elsewhere``, what other stages of the rank read, and end.
    """
    lives = _lives(ops)
    ends: dict[int, list[str]] = {}
    for name, mine in lives.items():
        if tensors[name].kind == 'activation' and name != 'loss' and name not in elsewhere:
            for place, (first, readers) in enumerate(mine):
                # Most are read once, and end there.
                end = readers[0] if len(readers) == 1 else _end(ops, lives, mine, place) if readers else first
                ends.setdefault(end, []).append(name)
    return [op.freeing((*op.frees, *ends[i])) if i in ends else op for i, op in enumerate(ops)]


def _lives(ops: Sequence[OpClass]) -> dict[str, list[_Life]]:
    """The lives of every tensor, in order."""
    lives: dict[str, list[_Life]] = {}
    for index, op in enumerate(ops):
        reads = op.reads
        for name in reads if len(reads) < 2 else dict.fromkeys(reads):
            mine = lives.get(name)
            if mine is None:
                lives[name] = [(index, [index])]
            else:
                mine[-1][1].append(index)
        # Written without being read: a new life. Read and written, as an in-place sum, it lives on.
        for name in op.writes:
            if name not in reads:
                lives.setdefault(name, []).append((index, []))
    return lives


def _end(ops: Sequence[OpClass], lives: Mapping[str, Sequence[_Life]], mine: Sequence[_Life], place: int) -> int:
    """The op that may end a life, one of a tensor's: its last reader, or the computation that waits for it."""
    readers = mine[place][1]
    collectives = [index for index in readers if ops[index].kind != 'compute']
    # Computations alone are in stream order; of collectives alone the last must wait for the others anyway.
    if not collectives or len(collectives) == len(readers):
        return max(readers)
    # Of what a collective wrote, the first op that reads it.
    written = [(index, life) for index in collectives for name in ops[index].writes for life in lives.get(name, ())]
    end = max([*readers, *(later[0] for index, (first, later) in written if first == index and later)])
    # The op that waits may come after the tensor is written anew; it must not free that.
    until = mine[place + 1][0] if place + 1 < len(mine) else len(ops)
    # Where W is apart it comes behind the send, which may then not end what W reads.
    late = ops[end].kind == 'send' and any(ops[index].phase == 'W' for index in readers)
    return end if end < until and not late else max(readers)


COMPUTE_KINDS = frozenset({'F', 'B', 'I', 'W', 'OVERLAP_F_B'})
TRANSFERS = {'SEND_F': ('send', 'F'), 'RECV_F': ('recv', 'F'), 'SEND_B': ('send', 'I'), 'RECV_B': ('recv', 'I')}


@dataclass(frozen=True, slots=True)
class StageOps:
    """The ops of one stage for one copy of a micro-batch, by what an action of the pipeline does.

    Arguments:
        parts: F, B, I, W → ops in order.
        transfers: (send or recv, phase) → op.
        gathered: weights that several copies share and that are soon freed again.
        overlap: how its ops are ordered.
        behind: gradients of weights of a B that come behind its SEND_B.
    """

    parts: dict[str, tuple[OpClass, ...]]
    transfers: dict[tuple[str, str], OpClass]
    gathered: frozenset[str]
    overlap: Overlap
    behind: tuple[OpClass, ...] = ()


def stages_of(
    tape: Tape, plan: plans.Plan, graph: Graph, count: int, done: Collection[tuple[int, str]]
) -> list[StageOps]:
    """The ops of every stage, each freeing what no later op of its stage reads; of every chunk of it, the first first.

    Arguments: ``count``, how many stages there are; ``done``, (stage, kind) of all actions that are done. Raises
    ``Infeasible`` where the plan names what is not there.
    """
    again, tiles = recompute.recompute_of(plan, graph), plan.tiles
    leaves = offload.offload_of(plan, graph) if any(op.phase != 'F' for op in tape.ops) else None
    overlap = replace(overlap_of(plan), experts=any(op.partition == EXPERT for op in tape.ops))
    recompute.check_recompute(again, tape.ops, count)
    ops: list[list[OpClass]] = [[] for _ in range(count)]
    for op in tape.ops:
        ops[op.stage].append(op)
    others = _read_elsewhere(ops)
    ready = []
    for stage, (mine, elsewhere) in enumerate(zip(ops, others, strict=True)):
        own = recompute.recomputed(tape, mine, elsewhere, again) if again.of_stage(stage) else mine
        own = recompute.tiled(tape, own, elsewhere, tiles)
        ready.append(offload.offloaded(tape, own, elsewhere, leaves) if leaves else own)
    made = [op for mine in ready for op in mine]
    tape.notes += recompute.nothing_tiled(made, tiles)
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
    filled = _in_order(backward, gathered, overlap)
    # Frees follow from an order, so they are worked out for each order that the stage is done in.
    first = _in_order(forward, gathered, replace(overlap, fill=True))
    behind = _behind(filled, overlap) if overlap.behind and ('send', 'I') in transfers else []
    last = {op.name for op in behind}
    filled = [op for op in filled if op.name not in last]
    b = _freeing(tape, elsewhere, _Parts(first, filled, transfers), behind) if joint or not split else {}
    i = _freeing(tape, elsewhere, _Parts(first, [*inputs, *weights], transfers)) if split else b
    b = b or i
    apart = i
    if b is not i:
        # Equal ops are shared; those that free otherwise in a split backward have a name of their own.
        names = {op.name for op in ops if b[op.name] != i[op.name]}
        apart = {name: replace(i[name], name=f'{name}.split') if name in names else i[name] for name in i}
    return StageOps(
        parts={
            'F': tuple(b[op.name] for op in forward),
            'B': tuple(b[op.name] for op in backward if op.name not in last),
            'I': tuple(apart[op.name] for op in inputs),
            'W': tuple(apart[op.name] for op in weights),
        },
        transfers={key: b[op.name] for key, op in transfers.items()},
        gathered=gathered,
        overlap=overlap,
        behind=tuple(b[op.name] for op in behind),
    )


def _in_order(ops: Sequence[OpClass], gathered: Collection[str], overlap: Overlap) -> list[OpClass]:
    """The ops of a forward or a backward as they are issued where nothing interleaves with them."""
    parts = segments(ops, gathered, fill=overlap.fill) if overlap.pairs == 'none' else layered(ops, overlap).parts
    return [op for part in parts for op in part]


def _behind(ops: Sequence[OpClass], overlap: Overlap) -> list[OpClass]:
    """The gradients of weights in the last part of a backward that has some: of the attention of a first layer."""
    parts = layered(ops, replace(overlap, experts=True)).parts
    weights = ([op for op in part if _fills(op)] for part in reversed(parts))
    return next(filter(None, weights), [])


def _stage_in_chunks(chunks: ByChunk, ops: list[OpClass], elsewhere: set[str], overlap: Overlap) -> list[StageOps]:
    """The ops of a stage for each chunk of a sequence: what is freed follows from all of them together."""
    gathered, numbers = _gathered(chunks.tape), range(chunks.count)
    inputs = chunks.split(ops)
    of = [_parts(chunks.ops(ops, number), overlap) for number in numbers]
    of[0] = of[0]._replace(forward=[*inputs, *of[0].forward])

    ordered: list[OpClass] = []
    for one in of:
        forward = _in_order(one.forward, gathered, replace(overlap, fill=True))
        ordered += _between(one.transfers, 'F', forward)
    # Gradients come back from the last chunk to the first.
    for one in reversed(of):
        ordered += _between(one.transfers, 'I', _in_order(one.backward, gathered, overlap))
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
            overlap=overlap,
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
            (backward if op.phase != 'F' or recompute.is_recomputed(op) else forward).append(op)
    return _Parts(forward, recomputed_early(backward) if overlap.recompute_early else backward, transfers)


def _gathered(tape: Tape) -> frozenset[str]:
    if tape.mesh.copies == 1:
        return frozenset()
    return frozenset(tensor.name for tensor in tape.tensors.values() if tensor.kind == 'gathered')


def _freeing(tape: Tape, elsewhere: set[str], of: _Parts, behind: Sequence[OpClass] = ()) -> dict[str, OpClass]:
    """The ops of a stage by name, with frees as of this order of its forward and its backward."""
    ordered = [*_between(of.transfers, 'F', of.forward), *_between(of.transfers, 'I', of.backward), *behind]
    return {op.name: op for op in add_frees(ordered, tape.tensors, elsewhere)}


def _between(transfers: Mapping[tuple[str, str], OpClass], phase: str, ops: Sequence[OpClass]) -> list[OpClass]:
    """The ops of a forward or a backward between what they wait for and what they send."""
    received, sent = ([transfers[key] for key in ((kind, phase),) if key in transfers] for kind in ('recv', 'send'))
    return [*received, *ops, *sent]


def issued(stages: Sequence[StageOps], row: Sequence[order.Action], copies: int, *, late: bool) -> Issued:
    """The ops of one pipeline rank in issue order.

    Arguments: ``row``, its actions; ``late``: receives wait for the computation before them, and so does a send that
    does not stand right behind what it sends.
    """
    blocks: list[Block] = []
    runs: dict[tuple[object, ...], Run] = {}
    computed: tuple[tuple[order.Action, ...], ...] = ()
    # Where I and W are apart, W has its own place.
    whole = {(part.stage, part.micro_batch) for action in row for part in action.parts if part.kind == 'B'}
    for actions in _threads(row):
        first = actions[0][0]
        if first.kind not in TRANSFERS:
            computed = actions
        waits = late and first.kind in TRANSFERS and not _sends_what_is_new(first, computed)
        behind = first.kind == 'SEND_B' and (first.stage, first.micro_batch) in whole
        if len(actions) == 1:
            micro_batches: tuple[int, ...] = (first.micro_batch or 0,)
            # Actions of one kind do the same for every micro-batch, so they share a run.
            key: tuple[object, ...] = (first.stage, first.kind, actions[0][-1].kind, waits, behind)
        else:
            # Parts that are of one micro-batch have it once.
            parts = [one.micro_batch or 0 for one in chain(*actions)]
            micro_batches = tuple(dict.fromkeys(parts))
            key = (*[(one.stage, one.kind) for one in chain(*actions)], len(micro_batches))
        run = runs.get(key)
        if run is None:
            run = runs[key] = _run(stages, actions, micro_batches, copies, late=waits, behind=behind)
        blocks.append(Block(run, micro_batches))
    return Issued(tuple([block for block in blocks if block.run.issues]))


def _sends_what_is_new(action: order.Action, computed: Sequence[Sequence[order.Action]]) -> bool:
    """Whether an action sends a result of what was last computed."""
    kinds = {'SEND_F': ('F',), 'SEND_B': ('B', 'I')}.get(action.kind, ())
    return any(
        one.kind in kinds and (one.stage, one.micro_batch) == (action.stage, action.micro_batch)
        for one in chain(*computed)
    )


def _threads(row: Sequence[order.Action]) -> Iterator[tuple[tuple[order.Action, ...], ...]]:
    """What is interleaved: the two actions of an overlap, or one action, or a forward together with its backward.

    That is a backward right behind its forward, of the same stage and micro-batch.
    """
    before: order.Action | None = None
    for action in row:
        if before is not None:
            goes_back = action.kind in ('B', 'I') and action.stage == before.stage
            if goes_back and action.micro_batch == before.micro_batch:
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


def _run(
    stages: Sequence[StageOps],
    threads: Sequence[tuple[order.Action, ...]],
    micro_batches: tuple[int, ...],
    copies: int,
    *,
    late: bool,
    behind: bool,
) -> Run:
    """One thread for each copy; in an overlap, one for each copy of each part."""
    first = threads[0][0]
    if first.kind in TRANSFERS:
        # Of a stage below which nothing is trained no gradient goes back, whatever the order says.
        op = stages[first.stage].transfers.get(TRANSFERS[first.kind])
        sent = () if op is None else tuple(Issue(op, 0, copy, late) for copy in range(copies))
        weights = stages[first.stage].behind if behind else ()
        return Run((*sent, *(Issue(op, 0, copy) for op in weights for copy in range(copies))))
    if stages[first.stage].overlap.pairs != 'none':
        return _paired(stages, threads, micro_batches, copies)
    by_thread: list[list[list[Issue]]] = []
    for actions in threads:
        mine = [stages[action.stage] for action in actions]
        fill = all(stage.overlap.fill for stage in mine)
        ops = [op for stage, action in zip(mine, actions, strict=True) for op in stage.parts[action.kind]]
        parts = segments(ops, frozenset().union(*(stage.gathered for stage in mine)), fill=fill)
        part = micro_batches.index(actions[0].micro_batch or 0)
        by_thread += [
            [[Issue(op, part, copy, _late(op, fill=fill)) for op in segment] for segment in parts]
            for copy in range(copies)
        ]
    return Run(tuple(interleave(by_thread)))


def _paired(
    stages: Sequence[StageOps], threads: Sequence[tuple[order.Action, ...]], micro_batches: tuple[int, ...], copies: int
) -> Run:
    """The parts of layers of a forward and a backward in turns; of one alone, those of its copies."""
    overlap = stages[threads[0][0].stage].overlap
    forwards, backwards = ([one for one in threads if (one[0].kind == 'F') is ahead] for ahead in (True, False))
    of: list[tuple[int, int, Layered]] = []
    for actions in (*forwards, *backwards):
        ops = [op for action in actions for op in stages[action.stage].parts[action.kind]]
        part = micro_batches.index(actions[0].micro_batch or 0)
        of += [(part, copy, layered(ops, overlap)) for copy in range(copies)]
    count = len(forwards) * copies
    layers = [one for _, _, one in of]
    issues = [
        Issue(op, of[thread][0], of[thread][1], _holds(op, overlap))
        for thread, part in pair_up(layers[:count], layers[count:], memory=overlap.pairs == 'memory')
        for op in part
    ]
    return Run(tuple(issues))


def _late(op: OpClass, *, fill: bool) -> bool:
    """Whether an op waits for the computation before it: a fetch, and a sum where nothing fills its time."""
    return offload.is_fetch(op) or (not fill and _sums_input(op))


def _holds(op: OpClass, overlap: Overlap) -> bool:
    """Whether a collective waits for the gradients of weights before it."""
    return _sums_input(op) and not (overlap.delayed if op.partition == EXPERT else overlap.fill)


def _sums_input(op: OpClass) -> bool:
    """Whether an op sums or gathers gradients of activations."""
    return op.kind == 'collective' and op.phase == 'I'
