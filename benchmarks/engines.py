"""What surrounds the machines: SimPy, Python and compiled on one program; folded and unfolded; lowering; sweeps."""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from benchmarks.laps import Contender, Spread, in_turns, short, timed
from benchmarks.programs import Case, gpt3, sized
from simpar.engine import simulate
from simpar.engine.fold import fold
from simpar.engine.loop import events
from simpar.engine.ops import node_costs, nodes_of
from simpar.engine.queues import hosted
from simpar.engine.simulate import Engine, world_of
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
STAGES: Final = ('lower', 'price', 'fold', 'ops', 'costs', 'simulate')


def engines(*, quick: bool) -> Iterator[tuple[str, ...]]:
    """Microseconds a slot of the three engines on every rank of a case, one step; from its program to its trace."""
    case = sized(10**4 if quick else 10**5)
    program = case.program()
    slots = sum(len(program.roles[role]) for role in program.role_of_rank.tolist())
    for name, effects in (('all effects', True), ('no effects', False)):
        costs = case.costs(program, effects=effects)
        contenders: dict[str, Contender] = {}
        for label, engine in ENGINES.items():
            run = partial(simulate, program, costs, steps=1, unfold=True, engine=engine)
            contenders[label] = partial(_same, run)
        laps = in_turns(contenders, 3 if quick else 5)
        each = (str(laps.of(label).times(1e6 / slots)) for label in ENGINES)
        yield name, f'{slots:,}', *each, str(laps.speed('compiled', 'SimPy'))


def _same(run: Callable[[], object]) -> Callable[[], object]:
    return run


def stages(*, quick: bool) -> Iterator[tuple[str, ...]]:
    """CPU seconds of each stage of a case with all effects; those of the simulation in microseconds a slot, too."""
    micro_batches = 16 if quick else 192
    cases = {
        'GPT-3, folded': (gpt3(micro_batches=micro_batches), 5, None),
        'GPT-3 with 1,024 copies of the data, folded': (gpt3(1024, micro_batches), 3, None),
        'GPT-3 with one copy and 16 micro-batches, every rank': (gpt3(1, 16), 3, True),
    }
    for name, (case, rounds, unfold) in cases.items():
        (slots, *_), seconds = zip(*(lap(case, unfold) for _ in range(rounds)), strict=True)
        spreads = [Spread.of([*of]) for of in zip(*seconds, strict=True)]
        medians = (short(one.median) for one in spreads)
        yield name, f'{case.ranks:,}', f'{slots:,}', *medians, str(spreads[-1].times(1e6 / slots))


def swept(*, quick: bool) -> Iterator[tuple[str, ...]]:
    """Sweeps of ``SWEPT`` in one process, with compiled machines."""
    for name, keys in SWEEPS.items():
        sweep = load_sweep(SWEPT, ['against=null'], sweeps=keys)
        # What is done but once: machines are loaded, tables of the profile read.
        sweep.predict(jobs=1)
        seconds, count = timed(partial(sweep.predict, jobs=1), 3 if quick else 5), len(sweep.rows)
        yield name, str(count), str(seconds.times(1e3 / count)), short(count / seconds.median)


def lap(case: Case, unfold: bool | None, steps: int = 3) -> tuple[int, list[float]]:
    """Slots of all steps and representatives, and CPU seconds of each stage from a plan to its trace."""
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
