"""Trace: when every op of a few steps arrived, started and ended; what every machine returns and all answers read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.program import OpClass, Program, Role

Times = NDArray[np.float64]


class Span(NamedTuple):
    """One op of one step on one rank; times in seconds."""

    slot: int
    op: OpClass
    stream: str
    micro_batch: int
    copy: int
    arrive: float
    start: float
    end: float


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """The spans of one simulated or measured rank.

    Arguments: ``rank``, the (first) rank that it stands for; ``arrive_KS``, ``start_KS``, ``end_KS``, seconds, shape
    [steps, slots of the rank's role]. A simulated collective starts when its last participant has arrived.
    """

    rank: int
    arrive_KS: Times
    start_KS: Times
    end_KS: Times


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """All spans of some steps, run back to back.

    Arguments: ``lane_of_rank``, shape [world], index into ``lanes``: ranks that behave alike share a lane.
    """

    program: Program
    origin: Literal['simulated', 'emulated', 'measured']
    lanes: tuple[Lane, ...]
    lane_of_rank: NDArray[np.int32]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.lanes[0].end_KS.shape[0])

    @property
    def step_ends(self) -> Times:
        """Shape [steps]: when the last op of each step ended, over all ranks."""
        return np.asarray(np.max([lane.end_KS.max(axis=1) for lane in self.lanes], axis=0), dtype=np.float64)

    @property
    def step_times(self) -> Times:
        """Shape [steps]: end(k) − end(k−1); the first is the cold step."""
        return np.diff(self.step_ends, prepend=0.0)

    @property
    def step(self) -> float:
        """Seconds of the last step, end(k) − end(k−1)."""
        return float(self.step_times[-1])

    @property
    def cold_step(self) -> float:
        """Seconds until the first step has ended."""
        return float(self.step_ends[0])

    def first(self, steps: int) -> Trace:
        """The trace without what comes after so many steps."""
        lanes = (replace(lane, arrive_KS=lane.arrive_KS[:steps], start_KS=lane.start_KS[:steps],
                         end_KS=lane.end_KS[:steps]) for lane in self.lanes)  # fmt: skip
        return replace(self, lanes=tuple(lanes))

    def lane(self, rank: int) -> Lane:
        """The lane of a rank."""
        return self.lanes[int(self.lane_of_rank[rank])]

    def role(self, lane: Lane) -> Role:
        """The role whose slots a lane's columns are."""
        return self.program.role(lane.rank)

    def spans(self, rank: int, step: int = -1) -> Iterator[Span]:
        """The spans of a rank in one step, in issue order."""
        lane = self.lane(rank)
        role = self.role(lane)
        times = zip(
            lane.arrive_KS[step].tolist(), lane.start_KS[step].tolist(), lane.end_KS[step].tolist(), strict=True
        )
        for slot, (arrive, start, end) in enumerate(times):
            yield Span(
                slot=slot,
                op=self.program.op(role, slot),
                stream=role.streams[int(role.stream[slot])],
                micro_batch=int(role.micro_batch[slot]),
                copy=int(role.copy[slot]),
                arrive=arrive,
                start=start,
                end=end,
            )
