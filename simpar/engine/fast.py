"""Fast machines: `replay` and the event loop compiled by numba, where it is installed and where that repays."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simpar.engine.graph import Graph
from simpar.engine.node_costs import NodeCosts
from simpar.engine.ops import Ops
from simpar.errors import SimparError
from simpar.program import Csr
from simpar.trace import Times

LOADED: Final = 2_000
LOADS: Final = 20_000
COMPILES: Final = 2_000_000
"""From how many slots of all steps on compiled machines repay: where they are loaded; where they are on the disk and
loading takes half a second, which the several simulations of a prediction share; where they must be compiled."""

_walked: Final = [0]
"""Slots that plain Python has simulated in this process."""


@cache
def is_installed() -> bool:
    """Whether numba is there; it is not imported."""
    return importlib.util.find_spec('numba') is not None


@cache
def is_compiled() -> bool:
    """Whether numba has written the kernels beside their files once, perhaps from an older source."""
    # The folder where numba writes if it may; of another, only numba itself could tell, and importing it takes long.
    return any((Path(__file__).parent / 'compiled' / '__pycache__').glob('events.events-*.nbi'))


def repays(slots: int, *, asked: bool) -> bool:
    """Whether to run compiled.

    Arguments: ``slots``, of all steps and representatives; ``asked``, whether the user asked for it.
    Raises ``SimparError`` where it is asked for and numba is not there.
    """
    if asked and not is_installed():
        raise SimparError('the compiled machines need numba, which is not installed; write: pip install numba')
    if asked or 'simpar.engine.compiled.events' in sys.modules:
        return asked or slots >= LOADED
    # As many again are likely to follow: who has walked so far, as in a sweep, goes on.
    _walked[0] += slots
    return is_installed() and max(slots, _walked[0] / 2) >= (LOADS if is_compiled() else COMPILES)


def replay(graph: Graph, costs: NodeCosts) -> Times:
    """As `simpar.engine.replay.replay`, to the bit."""
    from simpar.engine.compiled.order import recurrence

    before = graph.before_in_order
    end = np.zeros_like(costs.issued)
    lasts = (costs.alpha + costs.seconds)[graph.order]
    recurrence(graph.order, before.start, before.item, graph.latest(costs.issued), lasts, end)
    return end


def run_events(graph: Graph, costs: NodeCosts, links: int) -> Times:
    """As `simpar.engine.event_loop.run_events`, to the bit."""
    from simpar.engine.compiled.events import events

    waits_first, waits_other = graph.waiting
    pairs = [pair for load in costs.loads for pair in load]
    end = np.full(costs.issued.shape, -1.0)
    ended = events(
        len(costs.issued), costs.waiting_slows, _static(graph, costs), graph.members.item, graph.followers.item,
        waits_first, waits_other,
        np.array([*accumulate(map(len, costs.loads), initial=0)], dtype=np.int64),
        np.array([link for link, _ in pairs], dtype=np.int64), np.array([demand for _, demand in pairs], dtype=float),
        graph.ops.first_stream[-1], *_streams(graph.ops, computes=True), *_streams(graph.ops, computes=False), links,
        costs.issued, end,
    )  # fmt: skip
    assert ended == len(costs.issued) * len(graph.order), 'a graph without circles ends'
    return end


def _static(graph: Graph, costs: NodeCosts) -> NDArray[np.void]:
    """What the event loop knows of ops and nodes, in one line of a cache each."""
    from simpar.engine.compiled.events import STATIC

    static = np.zeros(len(graph), dtype=STATIC)
    static['seconds'], static['alpha'], static['beside'] = costs.seconds, costs.alpha, costs.beside
    static['node'], static['kind'] = graph.node, costs.kind
    ops = graph.ops
    static['stream'], static['representative'], static['computes'] = ops.stream, ops.representative, ops.computes
    for rows, first, count in ((graph.followers, 'first_after', 'after'), (graph.members, 'first_member', 'members')):
        static[first], static[count] = rows.start[:-1], np.diff(rows.start)
    return static


def _streams(ops: Ops, *, computes: bool) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Of each representative the streams that ever compute, or communicate: where they begin, and which."""
    used = np.zeros(ops.first_stream[-1], dtype=bool)
    used[ops.stream[ops.computes == computes]] = True
    streams = np.flatnonzero(used)
    owner = np.searchsorted(ops.first_stream, streams, side='right') - 1
    found = Csr.of(owner, streams, len(ops.roles))
    return found.start, found.item
