"""What surrounds the machines: SimPy, Python and compiled on one program; folded and unfolded; lowering; sweeps."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from benchmarks.laps import Laps, Spread, in_turns, timed
from benchmarks.programs import Case
from simpar.engine import simulate
from simpar.engine.fold import fold
from simpar.engine.loop import events
from simpar.engine.ops import node_costs, nodes_of
from simpar.engine.queues import hosted
from simpar.engine.simulate import Engine, world_of
from simpar.program import Program
from simpar.sweep import load_sweep

ENGINES: Final[dict[str, Engine]] = {'SimPy': 'simpy', 'Python': 'python', 'compiled': 'compiled'}
SWEPT: Final = Path(__file__).parent.parent / 'examples' / 'transformer_h100_7b.yaml'
SWEEPS: Final[Mapping[str, tuple[str, ...]]] = {
    'ZeRO, recomputation, fusion': (),
    'ZeRO, recomputation, fusion, copies': (
        'plan.zero=0,1,2,3',
        'plan.recompute=none,selective,[layer*.gelu,layer*.norm*],full',
        'plan.fusion=layer,auto,all',
        'plan.copies=1,2',
    ),
    'the speed of a link, so that only prices change': (
        f'cluster.links.infiniband={",".join(str(1 / 4 + n / 128) for n in range(96))}',
    ),
}
"""What rows differ in, and the keys of the sweep; none: those of the file."""
Swept = dict[str, tuple[int, Spread]]
"""Of each sweep its rows, and the CPU seconds of all."""


@dataclass(frozen=True, slots=True)
class Stages:
    """From a plan to its trace, CPU seconds of each stage.

    Arguments: ``slots``, of all steps and representatives. ``simulation``, the machine with the arrays it works on.
    """

    ranks: int
    slots: int
    lowering: Spread
    pricing: Spread
    folding: Spread
    ops: Spread
    costs: Spread
    simulation: Spread

    @property
    def microseconds(self) -> Spread:
        """Of the simulation, a slot and step."""
        return self.simulation.times(1e6 / self.slots)


def slots_of(program: Program) -> int:
    """How many slots all ranks have in a step."""
    return sum(len(program.roles[role]) for role in program.role_of_rank.tolist())


def engines(case: Case, rounds: int, *, effects: bool) -> tuple[int, Laps]:
    """Slots and laps of the three engines on every rank of a case, one step; from its program to its trace."""
    program = case.program()
    costs = case.costs(program, effects=effects)

    def contender(engine: Engine) -> Callable[[], Callable[[], object]]:
        return lambda: lambda: simulate(program, costs, steps=1, unfold=True, engine=engine)

    return slots_of(program), in_turns({name: contender(engine) for name, engine in ENGINES.items()}, rounds)


def stages(case: Case, rounds: int, *, unfold: bool | None = None, steps: int = 3) -> Stages:
    """The stages of a case with all effects."""
    found = [_lap(case, unfold, steps) for _ in range(rounds)]
    slots, _ = found[0]
    seconds = map(list, zip(*(laps for _, laps in found), strict=True))
    return Stages(case.ranks, slots, *map(Spread.of, seconds))


def swept(rounds: int) -> Swept:
    """Sweeps of ``SWEPT`` in one process, with compiled machines."""
    found = {}
    for name, keys in SWEEPS.items():
        sweep = load_sweep(SWEPT, ['against=null'], sweeps=keys)
        # What is done but once: machines are loaded, tables of the profile read.
        sweep.predict(jobs=1)
        found[name] = len(sweep.rows), timed(partial(sweep.predict, jobs=1), rounds)
    return found


def _lap(case: Case, unfold: bool | None, steps: int) -> tuple[int, list[float]]:
    """Slots of all steps, and CPU seconds of each stage."""
    ends = [time.process_time()]
    program = case.program()
    ends.append(time.process_time())
    costs = case.costs(program)
    ends.append(time.process_time())
    representatives = fold(program, costs, unfold)
    ends.append(time.process_time())
    ops = hosted(program, representatives, costs.waits, costs.work_queues)
    node = nodes_of(ops)
    ends.append(time.process_time())
    assert node is not None, 'a plan ends'
    by_node = node_costs(ops, program, costs, representatives, steps)
    ends.append(time.process_time())
    events(world_of(ops, node, by_node, len(costs.links)))
    ends.append(time.process_time())
    return by_node.issued.size, [end - begin for begin, end in pairwise(ends)]
