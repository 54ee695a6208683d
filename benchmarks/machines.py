"""The compiled machines beside the C++ reference, on the same arrays, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from benchmarks.laps import Contender, Laps, in_turns
from benchmarks.programs import Case, arranged
from benchmarks.reference import Arrays, Reference, fresh
from simpar.engine.compiled.kernels import events, recurrence
from simpar.engine.compiled.steps import steps_of
from simpar.engine.compiled.world import world_of
from simpar.engine.graph import Graph
from simpar.engine.node_costs import NodeCosts

LEAST: Final = 500_000
"""Slots of a lap."""


@dataclass(frozen=True, slots=True)
class Race:
    """One machine on one program.

    Arguments:
        slots: of all steps.
        memory: bytes of all arrays that the machine is given and works on.
        laps: of ``C++``, ``C++ again`` and ``compiled``.
    """

    slots: int
    memory: int
    laps: Laps

    def nanoseconds(self, name: str) -> float:
        """Of a slot and step, in the median."""
        return self.laps.of(name).median / self.slots * 1e9


def race_events(graph: Graph, costs: NodeCosts, links: int, reference: Reference, rounds: int) -> Race:
    """The event loop."""
    world = world_of(graph, costs, links)
    one, other = fresh(world), fresh(world)
    if reference.run_events(one) != events(other) or not np.array_equal(one.end, other.end):
        raise AssertionError('the event loop in C++ and the compiled one differ')
    return _race(world, reference.run_events, events, costs.issued.size, rounds)


def race_replay(graph: Graph, costs: NodeCosts, reference: Reference, rounds: int) -> Race:
    """The replay."""
    steps = steps_of(graph, costs)
    one, other = fresh(steps), fresh(steps)
    reference.run_replay(one)
    recurrence(*other)
    if not np.array_equal(one.time, other.time):
        raise AssertionError('the replay in C++ and the compiled one differ')
    return _race(steps, reference.run_replay, lambda given: recurrence(*given), costs.issued.size, rounds)


def races(case: Case, reference: Reference, rounds: int) -> tuple[Race, Race]:
    """Event loop and replay of a case: every rank, one step."""
    graph, costs, links = arranged(case, unfold=True)
    loop = race_events(graph, costs, links, reference, rounds)
    graph, costs, _ = arranged(case, unfold=True, effects=False)
    return loop, race_replay(graph, costs, reference, rounds)


def exponent(found: list[Race], name: str) -> float:
    """The power of its slots with which a machine's seconds grow: the slope of a line through their logarithms."""
    slots = np.log([race.slots for race in found])
    seconds = np.log([race.laps.of(name).median for race in found])
    slope: float = np.polyfit(slots, seconds, 1)[0].item()
    return slope


def _race(
    arrays: Arrays, cpp: Callable[[Arrays], object], compiled: Callable[[Arrays], object], slots: int, rounds: int
) -> Race:
    memory = sum(field.nbytes for field in arrays if isinstance(field, np.ndarray))
    runs = {'C++': cpp, 'C++ again': cpp, 'compiled': compiled}
    # What takes less than some ten milliseconds is run several times a lap.
    times = max(1, LEAST // slots)
    laps = in_turns({name: _contender(run, arrays, times) for name, run in runs.items()}, rounds)
    return Race(slots, memory, laps.divided(times))


def _contender(run: Callable[[Arrays], object], arrays: Arrays, times: int) -> Contender:
    """So many runs, each on arrays of its own, as it uses them up."""

    def repeat(given: list[Arrays]) -> None:
        for one in given:
            run(one)

    def prepare() -> Callable[[], object]:
        return partial(repeat, [fresh(arrays) for _ in range(times)])

    return prepare
