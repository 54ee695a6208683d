"""Bound: least seconds of a plan's step, without its program."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from simpar.planner.clock import Lasts, Parts, Timed, Work
from simpar.planner.pieces import SURELY, Block, Floats, Many, Span, Speeds, each_hidden, least_hidden
from simpar.planner.sample import Sample


def rest_of(sample: Sample, stages: list[list[int]], stage: int, kind: str, *, slowed: bool) -> Span | None:
    """What is surely behind what a stage receives: all layers but the first; None where nothing comes before that."""
    key = ('early', kind, slowed, stage == len(stages) - 1)
    if key not in sample.known:
        own = sample.stages - 1 if kind == 'F' else 0
        both = (sample.blocks, sample.mixed)
        blocks = [each.get((one, kind, slowed)) for one in {own, max(0, sample.stages - 2)} for each in both]
        sample.known[key] = any(block is not None and block.early for block in blocks)
    if not sample.known[key] or (kind == 'F' and stage == 0) or (kind != 'F' and stage == len(stages) - 1):
        return None
    layers = stages[stage]
    done = layers if kind == 'F' else layers[::-1]
    if len(done) < 2:
        return Span()
    fewer = [*stages]
    fewer[stage] = layers[1:] if kind == 'F' else layers[:-1]
    front, behind = pieces_of(sample, fewer, stage, kind, slowed=slowed)
    own = max(0, sample.stages - 2) if kind != 'F' else sample.stages - 1
    before = max(
        (block.before for one in (fewer[stage], layers) if (block := block_of_kind(sample, one, own, kind, slowed))),
        default=Span(),
    )
    # Without what stands before the first layer.
    return Span(front.chain - before.chain, ready=front.lead - before.lead) + behind


def block_of_kind(sample: Sample, layers: Sequence[int], own: int, kind: str, slowed: bool) -> Block | None:
    """The block of a stage of the small program, for a stage of these layers."""
    key = (own, kind, slowed)
    mixed = any(layer < sample.few.edge for layer in layers)
    return sample.mixed[key] if mixed and key in sample.mixed else sample.blocks.get(key)


def stage_span(sample: Sample, stages: list[list[int]], stage: int, kind: str, *, slowed: bool) -> Span:
    """Least seconds of a stage's action; arguments as of ``pieces_of``."""
    front, behind = pieces_of(sample, stages, stage, kind, slowed=slowed)
    return front + behind


def pieces_of(sample: Sample, stages: list[list[int]], stage: int, kind: str, *, slowed: bool) -> tuple[Span, Span]:
    """The same up to the stage's last layer, and from there on; stages of as many layers of each kind share it."""
    key = (kind, slowed, *alike(sample, stages, stage))
    return sample.once(key, lambda: _pieces_of(sample, stages, stage, kind, slowed=slowed))


def alike(sample: Sample, stages: list[list[int]], stage: int) -> tuple[bool, bool, int, int]:
    """What is the same of stages that do the same."""
    layers = stages[stage]
    return stage == 0, stage == len(stages) - 1, len(layers), bisect_left(layers, sample.few.edge)


def _pieces_of(sample: Sample, stages: list[list[int]], stage: int, kind: str, *, slowed: bool) -> tuple[Span, Span]:
    """Least seconds of a stage's action up to its last layer, and from there on.

    Arguments: ``stages``, the layers of each; ``kind``, F, B, I or W.
    """
    layers = stages[stage]
    first, last = stage == 0, stage == len(stages) - 1
    end = sample.stages - 1
    forward = kind == 'F'
    edge = sample.few.edge
    blocks = {own: block_of_kind(sample, layers, own, kind, slowed) for own in range(sample.stages)}

    def of(own: int) -> int:
        """The small program's stage whose layers are like a layer."""
        return 0 if own < edge else sample.stages - 2

    done = layers if forward else layers[::-1]
    begins = (0 if first else end) if forward else (end if last else of(done[0]) if done else end - 1)
    ends = (end if last else of(done[-1]) if done else 0) if forward else (0 if first else end)
    if not done:
        return Span(), Span()
    total = Span()
    if (block := blocks[begins]) is not None and ((forward and (first or done)) or last or begins != end):
        total = total + block.before
    for layer, behind in pairwise(done):
        block = blocks[of(layer)]
        if block is not None and block.layers:
            piece = block.layers[0]
            # No sample has a layer behind one of another kind: of its chain only computation is sure.
            total = total + (piece if of(layer) == of(behind) else piece.computed())
    block = blocks[ends]
    # The end of a stage that begins with a layer like the very first ones, and is not the first, is in no sample.
    if block is not None and not (not forward and not first and done[-1] < edge):
        return total, block.behind if len(done) > 1 else block.single
    return total, Span()


def least_works(sample: Sample, stages: list[list[int]], timed: Timed, travel: float) -> dict[Work, Lasts]:
    """Least seconds of what an order's tasks do.

    Arguments: ``stages``, the layers of each; ``travel``, seconds of a message between two stages.
    """
    known: dict[tuple[str, int, bool], Span] = {}

    def span(kind: str, stage: int, *, slowed: bool) -> Span:
        key = (kind, stage, slowed)
        if key not in known:
            known[key] = stage_span(sample, stages, stage, kind, slowed=slowed)
        return known[key]

    seconds = {}
    for work in timed.works:
        parts, slowed, *_ = work
        spans = [(kind, span(kind[0], stage, slowed=slowed)) for kind, stage in parts]
        forward = span('F', parts[0][1], slowed=slowed) if parts[0][0].endswith('+') else Span()
        rests = [rest_of(sample, stages, stage, kind[0], slowed=slowed) for kind, stage in parts]
        joint = joint_of(sample, stages, parts, slowed=slowed)
        lasts = _lasts(spans, rests, forward, sample.copies, travel, joint)
        if len(parts) > 1:
            beside = sum(span(kind[0], stage, slowed=True).busy for kind, stage in parts)
            lasts = lasts._replace(last=max(lasts.last, _hidden(sample, [one for _, one in spans], beside, slowed)))
        seconds[work] = _issued(lasts, work, sample, [one for _, one in spans])
    return seconds


def _lasts(
    spans: Sequence[tuple[str, Span]],
    rests: Sequence[Span | None],
    forward: Span,
    copies: int,
    travel: float,
    joint: Joint | None,
) -> Lasts:
    """How long a task lasts at least, and when at the earliest its result is with the neighbour.

    Arguments: ``spans`` of its parts, by kind; ``rests``, what of them is behind all that is received, where that is
    less; ``forward``, the span of the stage's forward where both are done as one; ``joint``, both in closer parts.
    """
    if len(spans) > 1:
        lasts = max(sum(one.busy for _, one in spans), *(one.chain for _, one in spans))
        ready = min(one.ready for _, one in spans) + travel
        # One part may go on while the other waits.
        return Lasts(
            lasts, ready, 0.0, min(_given(one, rest) for (_, one), rest in zip(spans, rests, strict=True)) + travel
        )
    kind, one = spans[0]
    if copies == 1 or not kind.endswith('+'):
        rest = rests[0] or one
        return Lasts(one.chain, one.ready + travel, min(rest.chain, one.chain), _given(one, rests[0]) + travel)
    # Copies of a forward and of its backward interleave.
    if joint is not None:
        last = joint.forward if kind == 'F+' else joint.backward
        return Lasts(last, one.ready + travel, last if rests[0] is None else 0.0, one.ready + travel)
    # Only the first copy is surely behind its own forward.
    if kind == 'F+':
        part = one.busy / copies
        return Lasts(part, part, part, part)
    last = one.busy + forward.busy * (1 - 1 / copies)
    return Lasts(last, one.ready + travel, last, one.ready + travel)


def _hidden(sample: Sample, spans: Sequence[Span], beside: float, slowed: bool) -> float:
    """Least seconds of actions that overlap, by their messages of one stream, which all computation may hide.

    Arguments: ``beside``, seconds of computation that is slowed all the time; ``slowed``, whether that of the spans is.
    """
    # A message's latency is not stretched beside computation, so none of it is taken to be.
    speeds = Speeds(1.0, 1.0, 1.0) if slowed else sample.speeds.unstretched
    return SURELY * least_hidden(sum(one.busy for one in spans), beside, sum(one.inside for one in spans), speeds)


def _issued(found: Lasts, work: Work, sample: Sample, spans: Sequence[Span]) -> Lasts:
    """The same with all that the host issues meanwhile. Argument: ``spans``, of the parts."""
    # Copies of a forward and of its backward are issued among each other.
    if not work.issued or (sample.copies > 1 and work.parts[0][0].endswith('+')):
        return found
    issued = SURELY * sum(one.issued for one in spans)
    return found._replace(last=max(found.last, issued), behind=max(found.behind, issued))


def held_up(works: Mapping[Work, Lasts], exposed: Mapping[tuple[str, int], float]) -> Mapping[Work, Lasts]:
    """The same where hosts wait for messages behind an action. Argument: ``exposed``, of these by kind and stage."""
    if not exposed:
        return works
    # What is given to other ranks does not wait for them.
    return {
        work: lasts._replace(last=lasts.last + more, behind=lasts.behind + more)
        for work, lasts in works.items()
        for more in [exposed.get(work.does, 0.0) if work.ended else 0.0]
    }


class Joint(NamedTuple):
    """Least seconds of a forward up to its last layer, and from there on until its backward, done as one, ends."""

    forward: float
    backward: float


def joint_of(sample: Sample, stages: list[list[int]], parts: Parts, *, slowed: bool) -> Joint | None:
    """Of a task that is a forward or the backward behind it; None where copies go apart, or nothing is joined.

    Copies that go through layers together are all in the last layer before one of them goes back, and all behind it
    before one of them is in the layer before.
    """
    kind, stage = parts[0]
    if len(parts) > 1 or not kind.endswith('+') or sample.copies == 1 or not sample.in_step:
        return None
    back = 'B' if kind == 'F+' else kind[0]
    mixed = {one for _, one, _ in sample.mixed} if stages[stage] and stages[stage][0] < sample.few.edge else set()
    if (sample.in_turn | mixed).intersection(('F', back)):
        return None
    front, behind = pieces_of(sample, stages, stage, 'F', slowed=slowed)
    whole = stage_span(sample, stages, stage, back, slowed=slowed)
    begin = _begin_of(sample, stages, stage, back, slowed=slowed)
    chain = behind.busy + begin.busy + whole.chain - begin.chain if begin else 0.0
    return Joint(front.chain, max(behind.busy + whole.busy, chain))


def _begin_of(sample: Sample, stages: list[list[int]], stage: int, kind: str, *, slowed: bool) -> Span | None:
    """A last stage's backward up to the second layer that it comes to; None where there is no such layer."""
    done, edge, end = stages[stage][::-1], sample.few.edge, sample.stages - 1
    blocks = [
        sample.blocks.get((own, kind, slowed)) for own in (end, 0 if done and done[0] < edge else max(0, end - 1))
    ]
    if len(done) < 2 or blocks[0] is None or blocks[1] is None or not blocks[1].layers:
        return None
    return blocks[0].before + blocks[1].layers[0]


def _given(one: Span, rest: Span | None) -> float:
    return one.ready if rest is None else min(rest.ready, one.ready)


def least_mean(sample: Sample, layers: int, shares: float, speeds: Speeds, *, chains: bool) -> float:
    """Least seconds of a step in any order: some rank does at least its even share of all work.

    Arguments:
        sample: of some samples of a step at once.
        shares: among how many pipelines and ranks of each they are shared out.
        chains: whether communication inside of layers is surely not hidden: one copy and no tiles.
    """
    total, slowed = Span(), Span()
    for kind in ('F', 'B'):
        total = total + stage_span(sample, [list(range(layers))], 0, kind, slowed=False)
        slowed = slowed + stage_span(sample, [list(range(layers))], 0, kind, slowed=True)
    # A message's latency is not stretched beside computation, so none of it is taken to be.
    hidden = least_hidden(total.busy, slowed.busy, total.wire, speeds.unstretched)
    return (total.chain if chains else hidden) / shares


def least_busy(
    sample: Sample, stages: list[list[int]], timed: Timed, copies: int, *, serial: bool = False
) -> dict[Work, Lasts]:
    """Least seconds of what an order's tasks do, by computation, and by what is sent inside of an action.

    Arguments:
        sample: of a micro-batch.
        copies: at most.
        serial: whether nothing is cut into more tiles than in the sample.
    """
    least = _Least(sample, stages)
    early = any(block.early for block in sample.blocks.values())
    seconds = {}
    for work in timed.works:
        parts, slowed, *_ = work
        each = [least(kind[0], stage, slowed) for kind, stage in parts]
        lasts = sum([one.busy for one in each])
        for (kind, _), one in zip(parts, each, strict=True):
            if kind in WHOLE:
                # However it is cut into copies and tiles, all of it is sent between an action's first op and its last.
                # What a copy does behind each other takes no less than its share of what all do.
                lasts = max(lasts, one.sent, one.chain * sample.copies / copies if serial else 0.0)
        # A gradient may be handed on before the weights' gradients are done, the first copy's before the others'.
        ready = min([one.ready for one in each]) / copies
        kind, stage = parts[0]
        if kind == 'F+':
            lasts = ready = lasts / copies
        elif kind.endswith('+'):
            lasts += least('F', stage, slowed).busy * (1 - 1 / copies)
        # What is made again comes before what is received is needed, and is not told apart here.
        free = early and (len(parts) > 1 or kind[0] in 'BI')
        found = Lasts(lasts, ready, 0.0 if free else lasts, 0.0 if free else ready)
        whole = [stage_span(sample, stages, stage, kind[0], slowed=False) for kind, stage in parts if kind in WHOLE]
        seconds[work] = _issued(found, work, sample, whole)
    return seconds


def least_slowed(sample: Sample, stages: list[list[int]], timed: Timed, micro_batches: int) -> list[float]:
    """Least seconds of each rank's computation, for more micro-batches than were walked.

    How many of a rank's actions do not surely run beside a message does not grow with the micro-batches: an order ends
    as it does with few of them. So as many are not slowed.
    """
    least = _Least(sample, stages)
    unslowed = timed.unslowed()
    # A rank alone awaits nobody.
    awaits = timed.ranks > 1
    total = [0.0] * timed.ranks
    for stage, rank in enumerate(timed.placement):
        total[rank] += sum(least(kind, stage, awaits).busy for kind in ('F', 'B')) * micro_batches
    for (kind, stage), count in unslowed.items():
        extra = least(kind, stage, awaits).busy - least(kind, stage, False).busy
        total[timed.placement[stage]] -= count * extra
    return total


WHOLE: Final = ('F', 'B')
"""Kinds of actions that are no part of something else."""


class Doing(NamedTuple):
    """Least seconds of an action.

    Arguments:
        busy: of its computation.
        chain: from its first op to its last; sent, with messages that are hidden as well as can be. Of a part of
            something else: none.
        ready: until its result may be ready; of a backward, until it comes to its last layer.
    """

    busy: float
    chain: float
    sent: float
    ready: float


class _Least:
    """Looks up what actions of stages last; stages that do the same share it with all plans of a sample."""

    def __init__(self, sample: Sample, stages: list[list[int]]) -> None:
        self._sample, self._stages = sample, stages
        self._alike = [alike(sample, stages, stage) for stage in range(len(stages))]

    def __call__(self, kind: str, stage: int, slowed: bool) -> Doing:
        key = ('doing', kind, slowed, self._alike[stage])
        return self._sample.once(key, lambda: self._doing(kind, stage, slowed))

    def _doing(self, kind: str, stage: int, slowed: bool) -> Doing:
        # The parts of a backward are told apart by what they compute.
        whole = kind if kind == 'F' else 'B'
        one = stage_span(self._sample, self._stages, stage, whole, slowed=slowed)
        busy = one.inputs if kind == 'I' else one.busy - one.inputs if kind == 'W' else one.busy
        front, _ = pieces_of(self._sample, self._stages, stage, whole, slowed=slowed)
        ready = one.busy if kind == 'F' else 0.0 if kind == 'W' else front.inputs
        if kind not in WHOLE:
            return Doing(busy, 0.0, 0.0, ready)
        beside = stage_span(self._sample, self._stages, stage, whole, slowed=True)
        # A message's latency is not stretched beside computation, so none of it is taken to be.
        speeds = Speeds(1.0, 1.0, 1.0) if slowed else self._sample.speeds.unstretched
        sent = SURELY * least_hidden(one.busy, beside.busy, one.inside, speeds)
        return Doing(busy, one.chain, sent, ready)


# Load: least seconds of a rank's outermost link, which all that the rank sends over it shares.
#
# Messages of different streams go at once, but no faster for it: at any time their speeds times their demands of a
# link sum up to 1 at most. So a step is no shorter than all transfers, each times its demand; latencies are left
# out.


@dataclass(frozen=True, slots=True)
class Sums:
    """What a rank does in a step, in any order.

    Arguments: ``alone``, ``slowed``, seconds of computation by itself, and beside messages; ``load``, of its link;
    ``wire``, of the messages of one stream inside of layers; ``issued``, of its host, which issues one op at a time.
    """

    alone: float
    slowed: float
    load: float
    wire: float = 0.0
    issued: float = 0.0

    def least(self, more: Many, speeds: Speeds, idle: Many = 0.0) -> Floats:
        """Least seconds of steps.

        Arguments: ``more``, seconds of the link for messages of weights and gradients; ``idle``, in which a rank surely
        computes nothing, and its host issues nothing.
        """
        # Two messages that are slowed beside computation may fill their link together.
        load = np.maximum(0.0, self.load + more - idle)
        sent = each_hidden(self.alone, self.slowed, load, speeds.unstretched)
        found: Floats = np.maximum(sent, self.issued) * SURELY + idle
        return found


def sums_of(sample: Sample, stages: list[list[int]], placement: Sequence[int], times: float) -> list[Sums]:
    """What each rank does with its stages in a step. Arguments: ``times``, how often it does what the sample does."""
    totals = [[0.0] * 5 for _ in range(max(placement) + 1)]
    for stage, rank in enumerate(placement):
        each = _of_stage(sample, stages, stage)
        totals[rank] = [total + one * times for total, one in zip(totals[rank], each, strict=True)]
    return [Sums(*one) for one in totals]


def _of_stage(sample: Sample, stages: list[list[int]], stage: int) -> tuple[float, ...]:
    """The same of one stage and micro-batch; stages of as many layers of each kind share it."""

    def sums() -> tuple[float, ...]:
        alone, slowed = (
            [stage_span(sample, stages, stage, kind, slowed=slow) for kind in ('F', 'B')] for slow in (False, True)
        )
        each = [
            (one.busy, other.busy, one.load, one.wire, one.issued) for one, other in zip(alone, slowed, strict=True)
        ]
        return tuple(map(sum, zip(*each, strict=True)))

    return sample.once(('sums', *alike(sample, stages, stage)), sums)
