"""The two seams of costs: what prices a compute op, and what prices a collective in one group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from simpar.hardware import Grade
from simpar.program import OpClass


@dataclass(frozen=True, slots=True)
class ComputeCost:
    """Isolated cost of a compute op on a device of nominal speed.

    Arguments: ``seconds``; ``best``, seconds if small operators were as efficient as the largest, at most ``seconds``;
    ``why``, how they came about; ``grade`` of the numbers used.
    """

    seconds: float
    best: float
    why: str
    grade: Grade


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """Isolated cost of a collective in one group.

    Arguments:
        alpha, transfer: seconds.
        best: seconds at the bandwidth of the largest messages without latency, at most their sum.
        links: pairs (channel, demand) as of ``Communication``.
        why: how they came about.
        grade: of the numbers used.
    """

    alpha: float
    transfer: float
    best: float
    links: Sequence[tuple[str, float]]
    why: str
    grade: Grade


class ComputeModel(Protocol):
    """Prices compute ops."""

    def seconds(self, op: OpClass) -> ComputeCost:
        """Isolated seconds of a compute op class."""
        ...


class CollectiveModel(Protocol):
    """Prices communication."""

    def cost(self, op: OpClass, ranks: Sequence[int]) -> CollectiveCost:
        """Isolated cost of a collective (or send and recv) in the group of these ranks."""
        ...
