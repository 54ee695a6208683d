"""What a recorded job would take if some of its ops were like all others: what stragglers cost, and which ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from simpar.engine.simulate import step_ends
from simpar.recording.durations import alike_seconds, own_seconds
from simpar.recording.job import Array, Ints, RecordedJob
from simpar.recording.program import Replayed, to_program

WORST: Final = 0.03
"""The share of workers whose part of the slowdown is told, as in the paper."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some ops of a job, and the mean step with only these as recorded and all others alike."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggling:
    """What a recorded job would take.

    Arguments (means over steps, in seconds):
        steps: numbers of the recorded steps.
        recorded: as recorded. replayed: without gaps between ops. alike: with every op as long as its kind usually is.
        families, data_ranks, stages: what each kind of op, data rank and stage costs, longest first.
        worst: the workers that cost most, WORST of all. without: the mean step if these were like all others.
        scaled: the mean step with the changes that were asked for; None where nothing was.
    """

    steps: tuple[int, ...]
    recorded: float
    replayed: float
    alike: float
    families: tuple[Part, ...]
    data_ranks: tuple[Part, ...]
    stages: tuple[Part, ...]
    worst: tuple[str, ...]
    without: float
    scaled: float | None = None

    @property
    def slowdown(self) -> float:
        """How many times as long as with all ops alike."""
        return self.replayed / self.alike

    @property
    def explained(self) -> float:
        """The share of the slowdown that is gone without the worst workers."""
        return (self.replayed - self.without) / (self.replayed - self.alike) if self.replayed > self.alike else 0.0


@dataclass(frozen=True)
class _Machine:
    """A job on the simulator: the mean step under other seconds."""

    replayed: Replayed
    progress: Callable[[int, int], None]
    of: int
    done: list[int]

    def mean(self, own_KN: Array) -> float:
        """Seconds of the mean step. Arguments: ``own_KN``, shape [steps, ops]; equal steps are replayed once."""
        found: dict[bytes, float] = {}
        ends = []
        for own in own_KN:
            key = own.tobytes()
            if key not in found:
                found[key] = float(step_ends(self.replayed.program, self.replayed.costs(own), steps=1)[0])
            ends.append(found[key])
        self.done[0] += 1
        self.progress(self.done[0], self.of)
        return float(np.mean(ends))


def straggling(
    job: RecordedJob,
    scale: Sequence[tuple[Ints, float]] = (),
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Straggling:
    """What stragglers cost a recorded job, by the definitions of Lin et al. 2025.

    Arguments: ``scale``, numbers of ops and how many times as long they are to last; ``progress``, told of replays.
    The job is replayed as a Program of its ops. An op starts when what it waits for has ended, without gaps.
    Does not model what is not recorded: the host, loading of data, ranks that are not in the file.
    """
    own = own_seconds(job)
    alike = np.broadcast_to(alike_seconds(job, own), own.shape)
    groups = [_families(job), _data_ranks(job), _stages(job)]
    machine = _Machine(to_program(job), progress, sum(map(len, groups)) + 3 + bool(scale), [0])
    replayed, ideal = machine.mean(own), machine.mean(alike)
    found = [tuple(_longest(machine, own, alike, group)) for group in groups]
    worst = _worst(job, found[1], found[2])
    chosen = np.isin(_worker(job), [data * job.stages + stage for data, stage in worst])
    return Straggling(
        steps=job.steps,
        recorded=float(job.step_seconds.mean()),
        replayed=replayed,
        alike=ideal,
        families=found[0],
        data_ranks=found[1],
        stages=found[2],
        worst=tuple(f'data {data}, stage {stage}' for data, stage in worst),
        without=machine.mean(np.where(chosen, alike, own)),
        scaled=machine.mean(_scaled(own, scale)) if scale else None,
    )


def _longest(machine: _Machine, own: Array, alike: Array, group: dict[str, Ints]) -> Iterator[Part]:
    """The mean step with each part alone as recorded, longest first."""
    parts = []
    for name, chosen in group.items():
        kept = alike.copy()
        kept[:, chosen] = own[:, chosen]
        parts.append(Part(name, machine.mean(kept)))
    yield from sorted(parts, key=lambda part: -part.seconds)


def _families(job: RecordedJob) -> dict[str, Ints]:
    return {name: job.where([op.of.family == name for op in job.ops]) for name in job.families()}


def _data_ranks(job: RecordedJob) -> dict[str, Ints]:
    return {f'data {rank}': job.where([op.data == rank for op in job.ops]) for rank in range(job.data)}


def _stages(job: RecordedJob) -> dict[str, Ints]:
    return {f'stage {stage}': job.where([op.stage == stage for op in job.ops]) for stage in range(job.stages)}


def _worker(job: RecordedJob) -> Ints:
    return np.array([op.data * job.stages + op.stage for op in job.ops])


def _worst(job: RecordedJob, data_ranks: Sequence[Part], stages: Sequence[Part]) -> list[tuple[int, int]]:
    """The workers that cost most: a worker costs the lesser of what its data rank and its stage cost."""
    cost = {part.name: part.seconds for part in (*data_ranks, *stages)}
    workers = [(data, stage) for data in range(job.data) for stage in range(job.stages)]
    workers.sort(key=lambda worker: -min(cost[f'data {worker[0]}'], cost[f'stage {worker[1]}']))
    # At least one, of few workers too.
    return workers[: -int(-len(workers) * WORST // 1)]


def _scaled(own: Array, scale: Sequence[tuple[Ints, float]]) -> Array:
    changed = own.copy()
    for chosen, factor in scale:
        changed[:, chosen] *= factor
    return changed
