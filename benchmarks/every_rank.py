"""Every rank of GPT-3, none folded: the seconds of the event loop, and the memory of the whole process.

It runs in a process of its own, whose peak of memory is then its own: ``python -m benchmarks --every-rank``.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import NoReturn

import numpy as np

from benchmarks.programs import Case, gpt3
from simpar.engine.compiled.kernels import events
from simpar.engine.compiled.world import world_of
from simpar.engine.graph import Graph, graph_of
from simpar.engine.node_costs import node_costs
from simpar.engine.ops import ops_of
from simpar.engine.representatives import fold

PAST = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class EveryRank:
    """What one step of all ranks took.

    Arguments: ``seconds`` of CPU of the event loop with the arrays that it works on, ``all_seconds`` of the whole
    process; ``memory``, the most bytes that the process held.
    """

    ranks: int
    slots: int
    seconds: float
    all_seconds: float
    memory: int

    @property
    def microseconds(self) -> float:
        """Of a slot and step."""
        return self.seconds / self.slots * 1e6

    def __str__(self) -> str:
        return (
            f'{self.ranks:,} ranks, {self.slots:,} slots in one step: {self.microseconds:.3g} us a slot and step, '
            f'{self.memory / 1e9:.3g} GB at the peak, {self.all_seconds:.3g} s of CPU from the plan on'
        )


def every_rank(case: Case) -> EveryRank:
    """One step of every rank of a case with all effects, in this process."""
    program = case.program()
    costs = case.costs(program)
    representatives = fold(program, costs, True)
    found = graph_of(program, tuple(representatives.of_rank), compiled=True)
    assert found is not None, 'a plan ends'
    graph = _bare(found)
    # Kept for those who ask for the same graph again: here nobody does.
    graph_of.cache_clear()
    ops_of.cache_clear()
    del found
    by_node = node_costs(graph.ops, program, costs, representatives, 1)
    begin = time.process_time()
    world = world_of(graph, by_node, len(costs.links))
    events(world)
    seconds = time.process_time() - begin
    assert float(world.end.max()) > 0, 'the step takes time'
    # Linux tells KiB.
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return EveryRank(case.ranks, len(graph), seconds, time.process_time(), memory)


def apart(data: int = 8) -> EveryRank:
    """The same of GPT-3 in a process of its own. Arguments: ``data``, copies of the model."""
    command = [sys.executable, '-c', f'from benchmarks.every_rank import told; print(told({data}))']
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return EveryRank(**json.loads(answer))


def told(data: int) -> str:
    """What ``apart`` reads."""
    return json.dumps(asdict(every_rank(gpt3(data))))


def _bare(graph: Graph) -> Graph:
    """A graph without what only a trace, a replay or the order needs."""
    streams = graph.ops.streams
    ops = replace(graph.ops, meet=_past)
    # It is worked out once, and takes a sort of all ops.
    ops.__dict__['streams'] = streams
    return replace(graph, ops=ops, order=PAST, listed=_past)


def _past() -> NoReturn:
    raise AssertionError('it has been given up')
