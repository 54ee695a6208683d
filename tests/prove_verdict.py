"""The first sentence of `simpar measure` on sabotaged real runs: eight schedules, five draws each.

    python tests/prove_verdict.py --seed 2043 [--only 0 3] [--every-kind] [--write PAGE]

With ``--every-kind`` each schedule has all fourteen kinds, and two clean runs of which no cause may be named.

Each schedule is a file in the folder; a run that was interrupted, or of some of them, goes on with those that are
missing. A sentence is right where it names class and place of the sabotage, or where all figures agree and it names no
cause; and where it says of the step, the overlap and the exposed communication what two numbers of each say.
"""

import os
import random
import time
from functools import partial
from pathlib import Path

import sabotage_runs as runs
from equipment.validation import CalibratedCollectives, emulated_cluster
from equipment.validation_cases import network
from proof import arguments, end, kept, page_head, table
from prove_evidence import commit, cores
from sabotage_kinds import right

from executor.ranks.pool import Pool
from simpar import Plan, price, simulate
from simpar.comparison import AGREES, Gain, compare, side_of, verdict
from simpar.diagnosis.causes import Bench
from simpar.diagnosis.places import sites_of
from simpar.hardware.net import parse_net
from simpar.lower import lower

KINDS = (runs.slow_link, runs.lost_overlap, runs.slow_op, runs.slow_rank, runs.longer_messages)
PLANS = {
    2: [Plan(tensor=2, copies=2), Plan(data=2), Plan(pipeline=2, micro_batches=4), Plan(data=2, zero=3)],
    4: [
        *(Plan(tensor=4, copies=2), Plan(data=4), Plan(pipeline=2, data=2, micro_batches=4)),
        Plan(tensor=2, data=2, copies=2),
    ],
}
WANTED = 0.9


def main():
    """Run what is missing, then print the page as Markdown."""
    options = arguments(
        __doc__, only={'type': int, 'nargs': '+', 'default': list(range(8))}, seed=2043, net='paced:150mbit,200us',
        every_kind=False,
        folder=(Path('out/verdict'), 'where finished schedules are kept'), write=(Path, 'where the page goes'),
    )  # fmt: skip
    os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')
    every = [(ranks, plan) for ranks, plans in PLANS.items() for plan in plans]
    parts = []
    for number, (ranks, plan) in enumerate(every):
        file = options.folder / f'{options.seed}-{number}.json'
        if file.exists() or number in options.only:
            parts.append(kept(file, partial(part, options, number, ranks, plan)))
    text, held = page(options, parts)
    raise SystemExit(end(text, options.write, held))


def part(options, number, ranks, plan):
    """Sabotaged runs of one schedule, each with its first sentence."""
    begun, net, rng = time.monotonic(), parse_net(options.net), random.Random(f'{options.seed} {number}')
    name = ', '.join(f'{key} {value}' for key, value in vars_of(plan).items())
    program, hardware = lower(network(256, width=512, inner=1024), plan, ranks), emulated_cluster(net, ranks)
    told = []
    with Pool(ranks, net=net, timeout=60, pinned=ranks <= cores()) as pool:
        lines = runs.calibrate(pool, {name: program}, hardware, ranks)
        sites, given = sites_of(program), price(program, hardware)
        costs = price(program, hardware, collective=CalibratedCollectives(lines))
        predicted = simulate(program, costs)
        for kind in (None, None, *runs.KINDS) if options.every_kind else KINDS:
            strength, bench, truth = rng.uniform(0.1, 0.5), Bench(program, given), None
            if kind:
                bench, truth = kind(bench, sites, rng, strength, predicted.step)
            trace, busy = runs.measure(pool, bench, program)
            side = side_of(name, predicted, trace, compare(predicted, trace, costs=costs))
            found = side.comparison.diagnosis
            cause = found.causes[0] if found.causes else None
            agree = agreeing(side)
            if truth is None:
                is_right = cause is None or cause.kind == 'busy'
            else:
                is_right = all(agree) if cause is None else right(truth, cause, sites, predicted)
            told.append({
                'what': f'{kind.__name__}: {truth.what}, {strength:.0%}' if truth else 'clean', 'busy': busy,
                'right': bool(is_right),
                'said': verdict(Gain(plan=side)),
            })  # fmt: skip
    return {'name': name, 'ranks': ranks, 'commit': commit(), 'runs': told, 'seconds': time.monotonic() - begun}


def vars_of(plan):
    """What a plan sets."""
    return {key: value for key in ('tensor', 'data', 'pipeline', 'copies', 'zero', 'micro_batches')
            if (value := getattr(plan, key)) != getattr(Plan(), key)}  # fmt: skip


def agreeing(side):
    """Whether step, overlap and exposed communication agree, by the figures alone."""
    one, other = side.predicted, side.measured
    return (
        abs(side.comparison.step.predicted / side.comparison.step.measured - 1) <= AGREES,
        abs(one.overlap - other.overlap) <= AGREES,
        abs(one.exposed - other.exposed) <= AGREES * other.step,
    )


def page(options, parts):
    """The page in Markdown, and whether enough sentences are right."""
    runs = [(one, run) for one in parts for run in one['runs']]
    every = [(one, run) for one, run in runs if not run['busy']]
    count = sum(run['right'] for _, run in every)
    head = page_head(
        'verdict', count=count, every=len(every), schedules=len(parts), seed=options.seed, cores=cores(),
        commits=', '.join(sorted({one['commit'] for one in parts})), net=options.net, runs=len(runs),
        minutes=sum(one['seconds'] for one in parts) / 60, busy=len(runs) - len(every),
    )  # fmt: skip
    rows = (
        (one['name'], one['ranks'], run['what'], 'yes' if run['right'] else '**no**', run['said']) for one, run in every
    )
    heads = 'schedule | ranks | sabotage | right | first sentence'
    return head + '\n'.join([*table(heads, rows), '']), count >= WANTED * len(every)


if __name__ == '__main__':
    main()
