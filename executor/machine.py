"""What the streams of one rank run on: ``Machine`` is the seam between real and emulated compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from executor.collectives import Channel
from simpar.program import OpClass


@dataclass(frozen=True, slots=True)
class Work:
    """One op of one step on one rank.

    Arguments:
        index: the number of the op class in the program.
        channel: the channel to the op's group, None for compute.
    """

    op: OpClass
    index: int
    slot: int
    step: int
    micro_batch: int
    copy: int
    channel: Channel | None = None


class Machine(Protocol):
    """Runs ops for the streams; every method is called from several threads at once."""

    def begin(self, moment: float) -> None:
        """The program begins."""

    def arrive(self, work: Work, ready: float) -> float:
        """When an op arrives whose needs and stream were done at ``ready``; returns no earlier than that."""

    def compute(self, work: Work, arrived: float) -> float:
        """Run a compute op; returns its end."""

    def communicate(self, work: Work, arrived: float) -> float:
        """Run a collective, send or receive; returns its end."""
