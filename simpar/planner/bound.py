"""Bound: what stages of a plan last and hold at least, and with them a step, without its program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar

import numpy as np

from simpar.planner.clock import Lasts, Timed, Work
from simpar.planner.pieces import SURELY, Block, Floats, Many, Span, Speeds, each_hidden, least_hidden
from simpar.planner.sample import STANDING, Sample, Standing

P = ParamSpec('P')
T = TypeVar('T')


def once(work: Callable[Concatenate[Stage, P], T]) -> Callable[Concatenate[Stage, P], T]:
    """What is worked out of a stage, the first time that it is asked for of any that is alike."""

    def found(stage: Stage, /, *asked: P.args, **named: P.kwargs) -> T:
        key = (work, stage, asked, *named.items())
        return stage.sample.once(key, lambda: work(stage, *asked, **named))

    return found


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


class Kept(NamedTuple):
    """Bytes of a micro-batch's activations in a stage.

    Arguments:
        total: between its forward and its backward.
        most: at the peak of both.
        joined: at the end of a forward that its backward follows at once; part, of all copies, one.
        waits: between the gradients of inputs and those of weights.
        head: beside ``total`` at the fullest op behind all layers.
    """

    total: float = 0.0
    most: float = 0.0
    joined: float = 0.0
    waits: float = 0.0
    part: float = 1.0
    head: float = 0.0


class Stage(NamedTuple):
    """A stage of a plan, by all that matters of it.

    Arguments: ``first``, ``last``, whether it is that of the pipeline; ``early``, how many layers it has of the kind of
    the model's first ones, where that is another, and ``late``, of the others, which stand behind. ``kind`` of a
    method: F, B, I or W.
    """

    sample: Sample
    first: bool
    last: bool
    early: int
    late: int

    @property
    def layers(self) -> int:
        """How many it has."""
        return self.early + self.late

    @property
    def end(self) -> int:
        """The small program's last stage. The one before has layers like the late ones, the first like the early."""
        return self.sample.stages - 1

    def _without(self, kind: str) -> Stage:
        """The stage without the layer that an action does first."""
        early = self.early > 0 if kind == 'F' else not self.late
        return self._replace(early=self.early - early, late=self.late - (not early))

    def block(self, own: int, kind: str, slowed: bool) -> Block | None:
        """The block of a stage of the small program, for this one's layers."""
        key = (own, kind, slowed)
        return self.sample.mixed[key] if self.early and key in self.sample.mixed else self.sample.blocks.get(key)

    @once
    def pieces(self, kind: str, *, slowed: bool) -> tuple[Span, Span]:
        """Least seconds of an action up to its last layer, and from there on."""
        # By layer, the small program's stage whose layers are like it.
        done = [0] * self.early + [self.end - 1] * self.late
        if not done:
            return Span(), Span()
        forward = kind == 'F'
        done = done if forward else done[::-1]
        if forward:
            begins, ends = 0 if self.first else self.end, self.end if self.last else done[-1]
        else:
            begins, ends = self.end if self.last else done[0], 0 if self.first else self.end
        blocks = [self.block(own, kind, slowed) for own in range(self.end + 1)]
        total = Span()
        if (block := blocks[begins]) is not None:
            total = total + block.before
        for layer, behind in pairwise(done):
            block = blocks[layer]
            if block is not None and block.layers:
                piece = block.layers[0]
                # No sample has a layer behind one of another kind: of its chain only computation is sure.
                total = total + (piece if layer == behind else piece.computed())
        block = blocks[ends]
        # The end of a stage that begins with a layer like the very first ones, and is not the first, is in no sample.
        if block is not None and (forward or self.first or not self.early):
            return total, block.behind if len(done) > 1 else block.single
        return total, Span()

    def span(self, kind: str, *, slowed: bool) -> Span:
        """Least seconds of an action."""
        front, behind = self.pieces(kind, slowed=slowed)
        return front + behind

    @once
    def rest(self, kind: str, *, slowed: bool) -> Span | None:
        """What is surely behind what it receives: all layers but the first; None where nothing comes before that."""
        both, own = (self.sample.blocks, self.sample.mixed), self.end if kind == 'F' else 0
        blocks = [each.get((one, kind, slowed)) for one in (own, self.end - 1) for each in both]
        if (self.first if kind == 'F' else self.last) or not any(block and block.early for block in blocks):
            return None
        if self.layers < 2:
            return Span()
        fewer = self._without(kind)
        front, behind = fewer.pieces(kind, slowed=slowed)
        own = self.end if kind == 'F' else self.end - 1
        blocks = [one.block(own, kind, slowed) for one in (fewer, self)]
        before = max((block.before for block in blocks if block), default=Span())
        # Without what stands before the first layer.
        return Span(front.chain - before.chain, ready=front.lead - before.lead) + behind

    @once
    def joint(self, kind: str, *, slowed: bool) -> float | None:
        """Least seconds of a forward up to its last layer (F+), or from there on until its backward, done as one, ends.

        None where copies go apart, or nothing is joined. Copies that go through layers together are all in the last
        layer before one of them goes back, and all behind it before one of them is in the layer before.
        """
        back, sample = 'B' if kind == 'F+' else kind[0], self.sample
        mixed = {one for _, one, _ in sample.mixed} if self.early else set()
        if not sample.in_step or (sample.in_turn | mixed).intersection(('F', back)):
            return None
        front, behind = self.pieces('F', slowed=slowed)
        if kind == 'F+':
            return front.chain
        whole, chain = self.span(back, slowed=slowed), 0.0
        # Up to the second layer that the backward comes to.
        last, second = (sample.blocks.get((own, back, slowed)) for own in (self.end, self.end - 1 if self.late else 0))
        if self.layers > 1 and last and second and second.layers:
            begin = last.before + second.layers[0]
            chain = behind.busy + begin.busy + whole.chain - begin.chain
        return max(behind.busy + whole.busy, chain)

    @once
    def doing(self, kind: str, *, slowed: bool) -> Doing:
        """Least seconds of an action, by what it computes."""
        # The parts of a backward are told apart by what they compute.
        whole = kind if kind == 'F' else 'B'
        one = self.span(whole, slowed=slowed)
        busy = one.inputs if kind == 'I' else one.busy - one.inputs if kind == 'W' else one.busy
        front, _ = self.pieces(whole, slowed=slowed)
        ready = one.busy if kind == 'F' else 0.0 if kind == 'W' else front.inputs
        if kind != whole:
            return Doing(busy, 0.0, 0.0, ready)
        beside = self.span(whole, slowed=True).busy
        return Doing(busy, one.chain, hidden(self.sample, [one], beside, slowed=slowed), ready)

    @once
    def sums(self) -> tuple[float, ...]:
        """What a micro-batch adds to the ``Sums`` of its rank."""
        alone, slowed = ([self.span(kind, slowed=slow) for kind in ('F', 'B')] for slow in (False, True))
        each = [
            (one.busy, other.busy, one.load, one.wire, one.issued) for one, other in zip(alone, slowed, strict=True)
        ]
        return tuple(map(sum, zip(*each, strict=True)))

    @once
    def standing(self) -> tuple[Standing, Standing]:
        """Bytes of weights, states and gradients, of experts and of all else."""
        held, sums = self.sample.held, [Standing(), Standing()]
        parts = [
            (next(iter(held[own].layers.values())), count)
            for own, count in ((0, self.early), (self.end - 1, self.late))
        ]
        rest = [held[own].rest for own, there in ((0, self.first), (self.end, self.last)) if there]
        for pair, count in [*parts, *((pair, 1) for pair in rest)]:
            sums = [one.plus(more, count) for one, more in zip(sums, pair, strict=True)]
        if self.first and self.last:
            sums[0] = sums[0].plus(twice(self.sample), -1)
        return sums[0], sums[1]

    @once
    def kept(self, copies: int) -> Kept:
        """What a micro-batch keeps. Argument: ``copies``, at most, where that is open: more than the sample has."""
        if not self.layers:
            return Kept()
        sample, held = self.sample, self.sample.held
        each = [held[0]] * self.early + [held[self.end - 1]] * self.late
        # A last stage whose layers are all early ends as its first ones do.
        final = held[self.end] if self.last and self.late else each[-1]
        outer = held[0].others if self.first else held[1].received
        outer += held[self.end].others if self.last else 0.0
        inner = sum(one.inner for one in each[:-1])
        total = outer + inner + final.end
        like = held[self.end] if self.last else final
        # Copies that go one after the other hold less at the peak of a single layer than at that of two, as in the
        # sample.
        known = self.layers > 1 or sample.copies == 1
        part = 1 / max(sample.copies, copies)
        # Copies of a forward and of its backward interleave: in step, one is ahead of others in the last layer alone.
        in_step = sample.in_step and sample.copies >= copies
        joined = inner + (total - inner) * part if in_step else total * part
        waits = sum(one.waits[0] for one in each[:-1]) + final.waits[1]
        most = total + (max(0.0, like.most - like.kept) if known else 0.0)
        head = max(0.0, like.head - like.kept) if self.last else 0.0
        return Kept(total, most, joined, waits, part, head)


def hidden(sample: Sample, spans: Sequence[Span], beside: float, *, slowed: bool) -> float:
    """Least seconds of actions that overlap, by their messages of one stream, which all computation may hide.

    Arguments: ``beside``, seconds of computation that is slowed all the time; ``slowed``, whether that of the spans is.
    """
    # A message's latency is not stretched beside computation, so none of it is taken to be.
    speeds = Speeds(1.0, 1.0, 1.0) if slowed else sample.speeds.unstretched
    return SURELY * least_hidden(sum(one.busy for one in spans), beside, sum(one.inside for one in spans), speeds)


def twice(sample: Sample) -> Standing:
    """Bytes of what the first and the last stage both hold, once where one rank holds both: tied weights."""
    first, last = sample.held[0].alone, sample.held[-1].alone
    sums = dict.fromkeys(STANDING, 0.0)
    for (name, kind), size in first.items():
        if (name, kind) in last:
            sums[kind] += min(size, last[name, kind])
    return Standing(**sums)


def whole_of(sample: Sample, layers: int) -> Stage:
    """A model's layers in one stage."""
    return Stage(sample, True, True, sample.few.edge, layers - sample.few.edge)


Part = tuple[str, Stage]
"""Kind and stage of a part of a task, as of ``clock.Parts``."""


def least_works(stages: Sequence[Stage], timed: Timed, travel: float) -> dict[Work, Lasts]:
    """Least seconds of what an order's tasks do. Argument: ``travel``, seconds of a message between two stages."""
    seconds = {}
    for work in timed.works:
        parts = [(kind, stages[at]) for kind, at in work.parts]
        spans = [stage.span(kind[0], slowed=work.slowed) for kind, stage in parts]
        lasts = _lasts(parts, spans, travel, slowed=work.slowed)
        seconds[work] = _issued(lasts, work, spans, stages[0].sample.copies)
    return seconds


def _lasts(parts: Sequence[Part], spans: Sequence[Span], travel: float, *, slowed: bool) -> Lasts:
    """How long a task lasts at least, and when at the earliest its result is with the neighbour.

    Arguments: ``spans`` of its parts.
    """
    rests = [stage.rest(kind[0], slowed=slowed) for kind, stage in parts]
    handover = min(
        one.ready if rest is None else min(rest.ready, one.ready) for one, rest in zip(spans, rests, strict=True)
    )
    (kind, stage), one, rest = parts[0], spans[0], rests[0]
    ready, copies = min(each.ready for each in spans) + travel, stage.sample.copies
    if len(parts) > 1:
        beside = sum(own.span(does[0], slowed=True).busy for does, own in parts)
        sent = hidden(stage.sample, spans, beside, slowed=slowed)
        last = max(sum(each.busy for each in spans), *(each.chain for each in spans), sent)
        # One part may go on while the other waits.
        return Lasts(last, ready, 0.0, handover + travel)
    if copies == 1 or not kind.endswith('+'):
        return Lasts(one.chain, ready, min((rest or one).chain, one.chain), handover + travel)
    # Copies of a forward and of its backward interleave.
    joint = stage.joint(kind, slowed=slowed)
    if joint is not None:
        return Lasts(joint, ready, joint if rest is None else 0.0, ready)
    # Only the first copy is surely behind its own forward.
    if kind == 'F+':
        part = one.busy / copies
        return Lasts(part, part, part, part)
    last = one.busy + stage.span('F', slowed=slowed).busy * (1 - 1 / copies)
    return Lasts(last, ready, last, ready)


def _issued(lasts: Lasts, work: Work, spans: Sequence[Span], copies: int) -> Lasts:
    """The same with all that the host issues meanwhile. Argument: ``spans``, of the parts."""
    # Copies of a forward and of its backward are issued among each other.
    if not work.issued or (copies > 1 and work.parts[0][0].endswith('+')):
        return lasts
    issued = SURELY * sum(one.issued for one in spans)
    return lasts._replace(last=max(lasts.last, issued), behind=max(lasts.behind, issued))


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


def least_mean(stage: Stage, shares: float, *, chains: bool) -> float:
    """Least seconds of a step in any order: some rank does at least its even share of all work.

    Arguments:
        stage: all layers, of some samples of a step at once.
        shares: among how many pipelines and ranks of each they are shared out.
        chains: whether communication inside of layers is surely not hidden: one copy and no tiles.
    """
    total, slowed = (stage.span('F', slowed=slow) + stage.span('B', slowed=slow) for slow in (False, True))
    # A message's latency is not stretched beside computation, so none of it is taken to be.
    least = least_hidden(total.busy, slowed.busy, total.wire, stage.sample.speeds.unstretched)
    return (total.chain if chains else least) / shares


WHOLE: Final = ('F', 'B')
"""Kinds of actions that are no part of something else."""


def least_busy(stages: Sequence[Stage], timed: Timed, copies: int, *, serial: bool) -> dict[Work, Lasts]:
    """Least seconds of what an order's tasks do, by computation, and by what is sent inside of an action.

    Arguments:
        stages: of a micro-batch.
        copies: at most.
        serial: whether nothing is cut into more tiles than in the sample.
    """
    sample = stages[0].sample
    early = any(block.early for block in sample.blocks.values())
    seconds = {}
    for work in timed.works:
        parts = [(kind, stages[at]) for kind, at in work.parts]
        each = [stage.doing(kind[0], slowed=work.slowed) for kind, stage in parts]
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
            lasts += stage.doing('F', slowed=work.slowed).busy * (1 - 1 / copies)
        # What is made again comes before what is received is needed, and is not told apart here.
        free = early and (len(parts) > 1 or kind[0] in 'BI')
        task_lasts = Lasts(lasts, ready, 0.0 if free else lasts, 0.0 if free else ready)
        whole = [stage.span(kind[0], slowed=False) for kind, stage in parts if kind in WHOLE]
        seconds[work] = _issued(task_lasts, work, whole, sample.copies)
    return seconds


def least_slowed(stages: Sequence[Stage], timed: Timed, micro_batches: int) -> list[float]:
    """Least seconds of each rank's computation, for more micro-batches than were walked.

    How many of a rank's actions do not surely run beside a message does not grow with the micro-batches: an order ends
    as it does with few of them. So as many are not slowed.
    """
    # A rank alone awaits nobody.
    awaits = timed.ranks > 1
    total = [0.0] * timed.ranks
    for stage, rank in zip(stages, timed.placement, strict=True):
        total[rank] += sum(stage.doing(kind, slowed=awaits).busy for kind in ('F', 'B')) * micro_batches
    for (kind, at), count in timed.unslowed().items():
        extra = stages[at].doing(kind, slowed=awaits).busy - stages[at].doing(kind, slowed=False).busy
        total[timed.placement[at]] -= count * extra
    return total


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
        seconds: Floats = np.maximum(sent, self.issued) * SURELY + idle
        return seconds


def sums_of(stages: Sequence[Stage], placement: Sequence[int], times: float) -> list[Sums]:
    """What each rank does with its stages in a step. Arguments: ``times``, how often it does what the sample does."""
    totals = [[0.0] * 5 for _ in range(max(placement) + 1)]
    for stage, rank in zip(stages, placement, strict=True):
        totals[rank] = [total + one * times for total, one in zip(totals[rank], stage.sums(), strict=True)]
    return [Sums(*one) for one in totals]
