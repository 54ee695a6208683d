"""simulate: the spans of a program, by the fastest machine that gives those of the reference to the bit."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from simpar.cost.costs import Costs
from simpar.engine import fast
from simpar.engine.device import Observer
from simpar.engine.event_loop import run_events
from simpar.engine.graph import Graph, graph_of
from simpar.engine.node_costs import node_costs
from simpar.engine.replay import replay
from simpar.engine.representatives import Representatives, fold
from simpar.program import Program
from simpar.trace import RankTimes, Times, Trace

Engine = Literal['auto', 'simpy', 'python', 'compiled']


def simulate(
    program: Program,
    costs: Costs,
    *,
    steps: int = 3,
    unfold: bool | None = None,
    observe: Observer | None = None,
    engine: Engine = 'auto',
) -> Trace:
    """The Trace of a program on a cluster.

    Arguments:
        steps: how many steps run back to back, without a barrier.
        unfold: True, simulate every rank; False, one rank for each role; None, as few ranks as tell all, exactly.
            The spans do not depend on it, to the bit.
        observe: called whenever speeds have been solved; by the reference alone.
        engine: ``simpy``, the reference; ``python``, a recurrence where nothing slows anything and an event loop
            without objects elsewhere, both over a graph of ops; ``compiled``, the same by numba; ``auto``, one of the
            last two, whichever is sooner done. The spans do not depend on it, to the bit (below 2¹² s, where doubles
            hold the grid of times and a bit more).

    Raises ``Deadlock`` where the program cannot finish, ``ValueError`` where ``unfold=False`` would not be exact,
    ``SimparError`` where numba is asked for and not installed.
    Speeds are max-min fair (see ``fair_speeds``). Does not model noise, nor how many ops a queue holds.
    """
    walked = _walked(program, costs, steps, unfold, observe, engine)
    return walked if isinstance(walked, Trace) else _trace(program, walked)


def step_ends(program: Program, costs: Costs, *, steps: int = 3) -> Times:
    """When each step ends over all ranks, shape [steps]: as of the Trace, without one.

    Arguments and errors as of `simulate`.
    """
    walked = _walked(program, costs, steps, None, None, 'auto')
    # At the number of what is no node nothing ends.
    return walked.step_ends if isinstance(walked, Trace) else np.asarray(walked.end.max(axis=1))


class _Walked(NamedTuple):
    """A simulation on arrays: when hosts issued ops and nodes ended, shape [steps, N]; whether that was compiled."""

    representatives: Representatives
    graph: Graph
    issued: Times
    end: Times
    compiled: bool


def _walked(
    program: Program, costs: Costs, steps: int, unfold: bool | None, observe: Observer | None, engine: Engine
) -> _Walked | Trace:
    """A simulation; the Trace of the reference, where that is what runs."""
    if steps < 1:
        raise ValueError(f'cannot simulate {steps} steps; write 1 or more')
    representatives = fold(program, costs, unfold)
    # Observers are told of every solution of speeds, which only the reference makes in full.
    asked = 'simpy' if observe else engine
    # What is asked for is checked first: numba is not everywhere.
    slots = sum(len(program.roles[program.role_of_rank[ranks[0]]]) for ranks in representatives.ranks)
    compiled = asked in {'auto', 'compiled'} and fast.repays(steps * slots, asked=asked == 'compiled')
    graph = (
        None
        if asked == 'simpy'
        else graph_of(
            program, tuple(representatives.of_rank), waits=costs.waits, queues=costs.work_queues, compiled=compiled
        )
    )
    if graph is None:
        # SimPy is imported only where it runs: it costs more than most simulations.
        from simpar.engine.reference import run

        return run(program, costs, representatives, steps, observe)
    by_node = node_costs(graph.ops, program, costs, representatives, steps)
    # Where nothing can slow anything, times are one maximum after the other, and no clock is needed.
    if by_node.interferes:
        end = (fast.run_events if compiled else run_events)(graph, by_node, len(costs.links))
    else:
        end = (fast.replay if compiled else replay)(graph, by_node)
    return _Walked(representatives, graph, by_node.issued, end, compiled)


def _trace(program: Program, walked: _Walked) -> Trace:
    """The Trace that follows from when nodes end."""
    graph, end, ranks = walked.graph, walked.end, walked.representatives.ranks
    arrive = fast.arrivals(graph, walked.issued, end) if walked.compiled else graph.arrivals(walked.issued, end)
    start = arrive
    if not graph.ops.alone:
        # ``take``, not an index of two dims: that would lay the steps of an op beside each other, and answers read by
        # step.
        start, end = (times.take(graph.node, axis=1) for times in (graph.latest(arrive), end))
    bounds = graph.ops.first.tolist()
    of_one = [tuple(times[:, begin:until] for times in (arrive, start, end)) for begin, until in pairwise(bounds)]
    return Trace(
        program,
        'simulated',
        tuple(RankTimes(own[0], *times) for own, times in zip(ranks, of_one, strict=False)),
        np.array(walked.representatives.of_rank, dtype=np.int32),
    )
