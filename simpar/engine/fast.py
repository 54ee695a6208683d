"""Fast machines: `replay` and the event loop compiled by numba, where it is installed and where that repays."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

from simpar.engine.graph import Graph
from simpar.engine.node_costs import NodeCosts
from simpar.errors import SimparError
from simpar.machine_code import is_started, loader
from simpar.trace import Times

LOADED: Final = 2_000
LOADS: Final = 12_000
COMPILES: Final = 500_000
"""From how many slots of all steps on compiled machines repay: where they are loaded; where they are on the disk and
loading takes an eighth of a second, which all simulations of a prediction share; where they must be compiled, which
takes as long as so many slots take in plain Python (30 µs each)."""

_walked: Final = [0]
"""Slots that plain Python has simulated in this process."""
_follow: Final = [1]
"""How many simulations stand behind one, as far as the caller has told."""


@cache
def is_installed() -> bool:
    """Whether numba is there; it is not imported."""
    return importlib.util.find_spec('numba') is not None


@cache
def is_compiled() -> bool:
    """Whether the kernels, as their sources are, have been compiled once."""
    from simpar.engine.compiled.kernels import events

    return events.is_kept


def repays(slots: int, *, asked: bool) -> bool:
    """Whether to run compiled.

    Arguments: ``slots``, of all steps and representatives; ``asked``, whether the user asked for it.
    Raises ``SimparError`` where it is asked for and numba is not there.
    """
    if asked and not is_installed():
        raise SimparError('the compiled machines need numba, which is not installed; write: pip install numba')
    if asked or is_started():
        return asked or slots >= LOADED
    # A prediction simulates several times, so its first one stands for five. Whoever has walked for as long as loading
    # takes, as a sweep has, is likely to go on.
    _walked[0] += slots
    likely = max(slots * _follow[0], _walked[0] / 5)
    return is_installed() and likely >= LOADS and (likely >= COMPILES or is_compiled())


@contextmanager
def many_follow(simulations: int) -> Iterator[None]:
    """Let each simulation stand for so many like it, so that compiling repays for smaller ones."""
    before, _follow[0] = _follow[0], simulations
    try:
        yield
    finally:
        _follow[0] = before


def make_ready(slots: int) -> None:
    """Load the compiled machines, or have the next simulation compile them, where many simulations will follow.

    Arguments: ``slots``, of all steps of one of them; small ones are as quick without.
    """
    if is_installed() and slots >= LOADS:
        loader()


def replay(graph: Graph, costs: NodeCosts) -> Times:
    """As `simpar.engine.replay.replay`, to the bit."""
    from simpar.engine.compiled.kernels import recurrence
    from simpar.engine.compiled.steps import steps_of

    steps = steps_of(graph, costs)
    recurrence(*steps)
    return steps.time.reshape(costs.issued.shape)


def arrivals(graph: Graph, issued: Times, end: Times) -> Times:
    """As `simpar.engine.graph.Graph.arrivals`, to the bit."""
    from simpar.engine.compiled.kernels import arrive

    ops, time = graph.ops, issued.copy()
    rows = ops.need.start, ops.need.item, ops.carry.start, ops.carry.item, ops.streams.start, ops.streams.item
    arrive(graph.node, *rows, end, time)
    return time


def run_events(graph: Graph, costs: NodeCosts, links: int) -> Times:
    """As `simpar.engine.event_loop.run_events`, to the bit."""
    from simpar.engine.compiled.kernels import events
    from simpar.engine.compiled.world import world_of

    world = world_of(graph, costs, links)
    walked = world.loop['ready'].item()
    if events(world) != walked:
        # Graphs with circles are sorted out before; this would be an error of the kernel.
        raise RuntimeError('the compiled event loop stopped before all streams had ended')
    return world.end.reshape(costs.issued.shape)
