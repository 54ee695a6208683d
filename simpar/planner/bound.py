"""Bound: least seconds of a plan's step, without its program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from simpar.planner.clock import Lasts, Timed, Work
from simpar.planner.pieces import SURELY, Floats, Many, Span, Speeds, each_hidden, least_hidden
from simpar.planner.stage import Stage, hidden

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
    given = min(
        one.ready if rest is None else min(rest.ready, one.ready) for one, rest in zip(spans, rests, strict=True)
    )
    (kind, stage), one, rest = parts[0], spans[0], rests[0]
    ready, copies = min(each.ready for each in spans) + travel, stage.sample.copies
    if len(parts) > 1:
        beside = sum(own.span(does[0], slowed=True).busy for does, own in parts)
        sent = hidden(stage.sample, spans, beside, slowed=slowed)
        last = max(sum(each.busy for each in spans), *(each.chain for each in spans), sent)
        # One part may go on while the other waits.
        return Lasts(last, ready, 0.0, given + travel)
    if copies == 1 or not kind.endswith('+'):
        return Lasts(one.chain, ready, min((rest or one).chain, one.chain), given + travel)
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


def _issued(found: Lasts, work: Work, spans: Sequence[Span], copies: int) -> Lasts:
    """The same with all that the host issues meanwhile. Argument: ``spans``, of the parts."""
    # Copies of a forward and of its backward are issued among each other.
    if not work.issued or (copies > 1 and work.parts[0][0].endswith('+')):
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
        found = Lasts(lasts, ready, 0.0 if free else lasts, 0.0 if free else ready)
        whole = [stage.span(kind[0], slowed=False) for kind, stage in parts if kind in WHOLE]
        seconds[work] = _issued(found, work, whole, sample.copies)
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
        found: Floats = np.maximum(sent, self.issued) * SURELY + idle
        return found


def sums_of(stages: Sequence[Stage], placement: Sequence[int], times: float) -> list[Sums]:
    """What each rank does with its stages in a step. Arguments: ``times``, how often it does what the sample does."""
    totals = [[0.0] * 5 for _ in range(max(placement) + 1)]
    for stage, rank in zip(stages, placement, strict=True):
        totals[rank] = [total + one * times for total, one in zip(totals[rank], stage.sums(), strict=True)]
    return [Sums(*one) for one in totals]
