"""Every rank of GPT-3, none folded: the seconds of the event loop, and the memory of the whole process.

It runs in a process of its own, whose peak of memory is then its own: ``python -m benchmarks --every-rank``.
"""

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from benchmarks.programs import Case, gpt3
from simpar.engine.fold import fold
from simpar.engine.loop import events
from simpar.engine.ops import node_costs, nodes_of
from simpar.engine.queues import hosted
from simpar.engine.simulate import world_of


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
    ops = hosted(program, representatives, costs.waits, costs.work_queues)
    node = nodes_of(ops)
    assert node is not None, 'a plan ends'
    by_node = node_costs(ops, program, costs, representatives, 1)
    begin = time.process_time()
    world = world_of(ops, node, by_node, len(costs.links))
    events(world)
    seconds = time.process_time() - begin
    assert float(world.end.max()) > 0, 'the step takes time'
    # Linux tells KiB.
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return EveryRank(case.ranks, len(ops), seconds, time.process_time(), memory)


def apart(data: int = 8) -> EveryRank:
    """The same of GPT-3 in a process of its own. Arguments: ``data``, copies of the model."""
    command = [sys.executable, '-c', f'from benchmarks.every_rank import told; print(told({data}))']
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return EveryRank(**json.loads(answer))


def told(data: int) -> str:
    """What ``apart`` reads."""
    return json.dumps(asdict(every_rank(gpt3(data))))
