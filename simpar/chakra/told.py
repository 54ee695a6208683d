"""The answer of a replay of Chakra's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from simpar.chakra.read import read_chakra
from simpar.engine import simulate
from simpar.metrics import metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A step of recorded nodes.

    Arguments: ``ranks``, ``nodes`` of all ranks; ``step`` seconds, and of them, means over ranks, those of
    ``compute``, of communication that is ``exposed``, and ``idle``; ``silent``, nodes that communicate in no time.
    """

    ranks: int
    nodes: int
    step: float
    compute: float
    communication: float
    exposed: float
    idle: float
    silent: int


def replayed(path: Path) -> Told:
    """Replay a job in Chakra's files; arguments and errors as of ``read_chakra``, and ``Deadlock``."""
    job = read_chakra(path)
    trace = simulate(job.program, job.costs, steps=1)
    found = metrics(trace).cold
    return Told(
        ranks=job.program.world,
        nodes=sum(map(len, job.program.roles)),
        step=found.step,
        compute=found.compute,
        communication=found.communication,
        exposed=found.exposed,
        idle=found.idle,
        silent=job.silent,
    )
