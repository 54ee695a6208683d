"""Load: least seconds of a rank's outermost link, which all that the rank sends over it shares.

Messages of different streams go at once, but no faster for it: at any time their speeds times their demands of a link
sum up to 1 at most. So a step is no shorter than all transfers, each times its demand; latencies are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simpar.planner.bound import alike, stage_span
from simpar.planner.hiding import SURELY, Speeds, least_hidden
from simpar.planner.sample import Sample


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

    def least(self, more: float, speeds: Speeds) -> float:
        """Least seconds of a step. Arguments: ``more``, seconds of the link for messages of weights and gradients."""
        # Two messages that are slowed beside computation may fill their link together.
        sent = least_hidden(self.alone, self.slowed, self.load + more, speeds.unstretched) * SURELY
        return max(sent, self.issued * SURELY)


def sums_of(sample: Sample, stages: list[list[int]], placement: Sequence[int], times: float) -> list[Sums]:
    """What each rank does with its stages in a step. Arguments: ``times``, how often it does what the sample does."""
    totals = [[0.0] * 5 for _ in range(max(placement) + 1)]
    for stage, rank in enumerate(placement):
        each = _of_stage(sample, stages, stage)
        totals[rank] = [total + one * times for total, one in zip(totals[rank], each, strict=True)]
    return [Sums(*one) for one in totals]


def _of_stage(sample: Sample, stages: list[list[int]], stage: int) -> tuple[float, ...]:
    """The same of one stage and micro-batch; stages of as many layers of each kind share it."""
    key = ('sums', *alike(sample, stages, stage))
    found: tuple[float, ...] | None = sample.known.get(key)
    if found is None:
        alone, slowed = (
            [stage_span(sample, stages, stage, kind, slowed=slow) for kind in ('F', 'B')] for slow in (False, True)
        )
        found = sample.known[key] = (
            sum(one.busy for one in alone),
            sum(one.busy for one in slowed),
            sum(one.load for one in alone),
            sum(one.wire for one in alone),
            sum(one.issued for one in alone),
        )
    return found
