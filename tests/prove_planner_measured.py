"""`make prove-planner-measured`: what the planner picks, beside other plans that are measured on the same links.

Four models on four ranks over gloo, compute emulated, messages held back as on links of 100 MB/s and 1 ms. The planner
searches a space of each. Beside its pick, the plans that come next by prediction and plans that are drawn are run, all
of them in every round, in a new order each; which these are is decided before anything is measured. Of the rounds of a
plan the shortest step counts: others on the machine only ever lengthen one. Rounds are kept in a folder as they end, so
that a run that was interrupted goes on. Ends with an error where the pick is more than 2 % behind the fastest.
"""

import argparse
import contextlib
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from proof import arguments, commit, steady_steps, table
from tables import load_tree

from executor.ranks.pool import Pool
from executor.state import Request
from simpar.case import Case, case_of, cluster_of, on_net
from simpar.errors import SimparError
from simpar.files import write_atomically
from simpar.hardware.net import Net, parse_net
from simpar.planner.answer import USUAL, Answer, answer_of, told
from simpar.planner.judge import Judge
from simpar.planner.search import Path as Place
from simpar.planner.search import Search
from simpar.planner.space import Space, refused, space_of
from simpar.schedule import Schedule, load_schedule
from simpar.schedule.contents import Planner
from simpar.sweep.answer import Figures, Outcome, infeasible
from simpar.units import format_time

NET, RANKS, STEPS, BEHIND = 'paced:100MB/s,1ms', 4, 5, 0.02
NEXT, DRAWN, FAR = 6, 8, 2.0
"""Plans beside the pick: the fastest others by prediction, and drawn ones that are not so many times as slow."""
SLOW = 0.006
"""Devices are slow, so that their compute is as long as messages of links that one machine can pace."""
CLUSTER = {'profile': 'a100-sxm-8', 'devices': RANKS, 'stack': 'none'}
"""The executor is no framework."""
MODELS: dict[str, dict[str, Any]] = load_tree(__file__, 'MODELS')
KEYS: dict[str, Any] = load_tree(__file__, 'KEYS')


@dataclass(frozen=True)
class Chosen:
    """A plan that is measured: what it is called, its case on the shaped links, its predicted step."""

    name: str
    case: Case
    step: float


def main() -> int:
    options = arguments(
        __doc__,
        rounds=2,
        seed=2026,
        models=(','.join(MODELS), 'names, with commas between them'),
        next=NEXT,
        drawn=DRAWN,
        net=NET,
        folder=Path('out/planner_measured'),
    )
    options.folder.mkdir(parents=True, exist_ok=True)
    print(f'commit {commit()}, seed {options.seed}, {options.net}, {options.rounds} rounds of {STEPS} steps\n')
    behind = {}
    with Pool(RANKS, net=parse_net(options.net), timeout=60.0, pinned=True) as pool:
        for name in options.models.split(','):
            begun = time.monotonic()
            behind[name] = _model(name, options, pool)
            took = f'{time.monotonic() - begun:.0f} s'
            print(f'{name}: the pick is {behind[name]:.1%} behind the fastest; {took}\n', flush=True)
    return 4 if max(behind.values()) > BEHIND else 0


def _model(name: str, options: argparse.Namespace, pool: Pool) -> float:
    """Plan, measure, print the table; by what share the pick is behind the fastest."""
    plans, count = _plans(name, options)
    samples = _measured(plans, options, pool, options.folder / f'{name}-{options.seed}.json')
    best = min(min(samples[one.case.program.hash]) for one in plans)
    print(f'### {name}: {count} plans, of which {len(plans)} are measured\n')
    rows = []
    for one in plans:
        took = min(samples[one.case.program.hash])
        shown = f'**{one.name}**' if one is plans[0] else one.name
        times = format_time(one.step), format_time(took), f'{one.step / took - 1:+.1%}'
        rows.append((shown, *times, f'{took / best - 1:.1%}'))
    print(*table('plan | predicted | measured | error | behind the fastest', rows), '', sep='\n', flush=True)
    return min(samples[plans[0].case.program.hash]) / best - 1


def _plans(name: str, options: argparse.Namespace) -> tuple[list[Chosen], int]:
    """The pick first, those that come next by prediction, and drawn ones; how many plans the space has."""
    net = parse_net(options.net)
    space = _space(name)
    answer = planned(space, net)
    pick = answer.choice
    assert pick is not None
    # All that the space has, predicted: the search has looked at few of them.
    every = sorted(
        (one for one in _every(space, net) if one.case.schedule != pick.schedule), key=lambda one: (one.step, one.name)
    )
    own = _case(pick.schedule, net)
    own_step, seen = pick.step, {own.program.hash}
    others = [one for one in every if not (one.case.program.hash in seen or seen.add(one.case.program.hash))]
    near, rest = others[: options.next], [one for one in others[options.next :] if one.step < FAR * own_step]
    drawn = random.Random(options.seed).sample(rest, min(options.drawn, len(rest)))
    first = Chosen(_words(space, pick.schedule), own, pick.step)
    assert first.step <= every[0].step * (1 + answer.margin)
    return [first, *near, *drawn], len(every) + 1


def planned(space: Space, net: Net) -> Answer:
    """The planner's answer on the shaped links."""

    def evaluate(paths: Sequence[Place]) -> Iterator[tuple[Place, Outcome]]:
        yield from ((path, _outcome(space.schedule(path), net)) for path in paths)

    shaped = _case(space.schedule((0,) * len(space.keys)), net).cluster
    return answer_of(space, Search(space, Judge(space, shaped), evaluate).run(), USUAL)


def _every(space: Space, net: Net) -> Iterator[Chosen]:
    for path in product(*(range(len(values)) for values in space.values)):
        if any(refused(space, path[: depth + 1]) for depth in range(len(path))):
            continue
        # An order may ask for more micro-batches than there are.
        with contextlib.suppress(SimparError):
            case = _case(space.schedule(path), net)
            yield Chosen(_words(space, case.schedule), case, case.predict(tell=False).step)


def _case(schedule: Schedule, net: Net) -> Case:
    return on_net(case_of(schedule), net)


def _outcome(schedule: Schedule, net: Net) -> Outcome:
    try:
        found = _case(schedule, net).predict(tell=False)
    except SimparError as error:
        return infeasible(error)
    figures = Figures(step=found.step, compute=0.0, exposed=0.0, idle=0.0, bubble=None, grades={}, notes=found.notes)
    return Outcome(figures=figures, peak=found.memory.peak, device=found.device_memory)


def _space(name: str) -> Space:
    schedule = load_schedule(
        {
            'simpar': 1,
            'cluster': {**CLUSTER, 'slow': dict.fromkeys(range(RANKS), SLOW)},
            'workload': {'transformer': MODELS[name], 'batch': 8, 'precision': 'bf16', 'optimizer': 'adam'},
        }
    )
    keys = KEYS if 'experts' in MODELS[name] else {**KEYS, 'plan.expert': [1]}
    return space_of(replace(schedule, planner=Planner(keys=keys)), cluster_of(schedule).world)


def _words(space: Space, schedule: Schedule) -> str:
    plan = schedule.plan
    values = {key: getattr(plan, key) for key in ('data', *space.keys)}
    simple = type(plan)()
    idle = ('order',) if plan.pipeline == 1 else ()
    return told({key: one for key, one in values.items() if key not in idle and one != getattr(simple, key)})


def _measured(plans: Sequence[Chosen], options: argparse.Namespace, pool: Pool, file: Path) -> dict[str, list[float]]:
    """Seconds of a steady step of each round of each plan; a round that stands in the file is not run again."""
    kept: dict[str, list[float]] = json.loads(file.read_text()) if file.exists() else {}
    samples = {one.case.program.hash: kept.get(one.case.program.hash, []) for one in plans}
    order, shuffled = list(plans), random.Random(options.seed)
    # The first round opens connections.
    for turn in range(-1, options.rounds):
        shuffled.shuffle(order)
        missing = [one for one in order if len(samples[one.case.program.hash]) < options.rounds]
        for one in missing if turn < 0 else [one for one in missing if len(samples[one.case.program.hash]) <= turn]:
            costs = one.case.predict(tell=False).costs
            request = Request(compute='emulated', costs=costs, steps=STEPS if turn >= 0 else 1)
            print(f'round {turn + 1} of {options.rounds}: {one.name}', file=sys.stderr, flush=True)
            execution = pool.perform(one.case.program, request)
            if turn >= 0:
                samples[one.case.program.hash].append(median(steady_steps(execution)))
        write_atomically(file, json.dumps({**kept, **samples}) + '\n')
    return samples


if __name__ == '__main__':
    sys.exit(main())
