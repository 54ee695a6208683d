"""Sabotage of real runs: emulated compute, real messages over a paced network; which class and place is named first.

    python tests/prove_culprit_runs.py --seed 2040 [--ranks 2 4] [--draws 1] [--clean 7] [--write PAGE]

Each schedule on so many ranks is a file in the folder; a run that was interrupted goes on with those that are missing,
on the same commit.
"""

import itertools
import json
import os
import random
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
from equipment.validation import CalibratedCollectives, Samples, emulated_cluster, kinds_of, program_of, sizes_around
from equipment.validation_cases import network
from proof import arguments
from prove_evidence import commit, cores
from sabotage_kinds import Truth, right

from executor.ranks.pool import Pool
from executor.ranks.rank import TOO_SLOW
from executor.ranks.request import Request
from simpar.cost.price import price
from simpar.diagnosis import diagnose, sentence
from simpar.diagnosis.causes import Bench, apart, in_turn, later, longer
from simpar.diagnosis.places import sites_of
from simpar.engine import simulate
from simpar.files import write_atomically
from simpar.hardware.net import parse_net
from simpar.lower import lower
from simpar.plans import Plan

STEPS = 12
RUNS = 3
"""Up to so many runs, where the executor says that the machine was too busy for the links."""


def slow_rank(bench, sites, rng, strength, step):
    rank = rng.randrange(sites.program.world)
    mask = sites.computes & (sites.rank == rank)
    return longer(bench, sites, mask, 1 + strength), Truth('compute', f'rank {rank}', mask)


def slow_op_kind(bench, sites, rng, strength, step):
    mask = _phase(sites, rng.choice('FIW'))
    return longer(bench, sites, mask, 1 + strength), Truth('compute', 'one phase', mask)


def slow_op_kind_on_rank(bench, sites, rng, strength, step):
    rank = rng.randrange(sites.program.world)
    mask = _phase(sites, rng.choice('FIW')) & (sites.rank == rank)
    return longer(bench, sites, mask, 1 + strength), Truth('compute', f'one phase on rank {rank}', mask)


def longer_messages(bench, sites, rng, strength, step):
    """Of one partition: every message is longer."""
    ops = bench.program.op_classes
    partition = rng.choice(sorted({op.partition for op in ops} - {''}))
    ops = tuple(
        replace(op, bytes=op.bytes * (1 + strength) // 64 * 64) if op.partition == partition else op for op in ops
    )
    mask = np.array([op.partition == partition for op in ops])[sites.op]
    return replace(bench, program=bench.program.replace(op_classes=ops)), Truth(
        'communication', f'messages of {partition}', mask
    )


def slow_link(bench, sites, rng, strength, step):
    """Of a rank: what it sends goes at a lower rate."""
    rank = rng.randrange(sites.program.world)
    # A message between two is slower if this rank sends it, a collective if it takes part.
    mask = _sent(sites, rank)
    made, touched = apart(bench, sites, mask & (sites.rank == rank))
    communication = dict(made.costs.communication)
    for index in touched.tolist():
        communication[index] = tuple(
            replace(one, links=tuple((link, share / (1 + strength)) for link, share in one.links))
            for one in communication[index]
        )
    return replace(made, costs=replace(made.costs, communication=communication)), Truth(
        'communication', f'link of rank {rank}', mask
    )


def lost_overlap(bench, sites, rng, strength, step):
    return in_turn(bench, range(sites.program.world), sites.streams), Truth(
        'overlap', 'all', streams=frozenset(sites.streams)
    )


def lost_overlap_on_rank(bench, sites, rng, strength, step):
    rank = rng.randrange(sites.program.world)
    return in_turn(bench, [rank], sites.streams), Truth(
        'overlap', f'rank {rank}', ranks=(rank,), streams=frozenset(sites.streams)
    )


def late_host(bench, sites, rng, strength, step):
    rank = rng.randrange(sites.program.world)
    mask = sites.rank == rank
    issues = bench.costs.host[sites.op[mask]].sum()
    return later(bench, sites, mask, ((1 + strength) * step - issues) / mask.sum()), Truth(
        'host', f'rank {rank}', ranks=(rank,)
    )


def slow_compute_beside(bench, sites, rng, strength, step):
    costs = replace(bench.costs, beside_communication=bench.costs.beside_communication / (1 + strength))
    return replace(bench, costs=costs), Truth('compute beside communication', 'everywhere')


# Written after the first nine had been run; class and place were fixed before the first run of these.


def slow_op(bench, sites, rng, strength, step):
    """One op class computes longer; of those that take longest, for small causes are not named."""
    seconds = np.bincount(sites.op, bench.costs.compute[sites.op], len(bench.program.op_classes))
    chosen = rng.choice(np.argsort(seconds)[-3:].tolist())
    mask = sites.op == chosen
    return longer(bench, sites, mask, 1 + strength), Truth('compute', bench.program.op_classes[chosen].name, mask)


def slow_layer(bench, sites, rng, strength, step):
    """All that one layer computes; a mask that holds what is named, and nothing else."""
    layers = np.array([op.name.partition('.')[0] for op in bench.program.op_classes])[sites.op]
    mask = sites.computes & (layers == rng.choice(sorted({*layers[sites.computes].tolist()} - {'loss', 'relu0'})))
    return longer(bench, sites, mask, 1 + strength), Truth('compute', 'one layer', mask, within=True)


def longer_op(bench, sites, rng, strength, step):
    """The messages of one op."""
    ops = bench.program.op_classes
    chosen = rng.choice([op.name for op in ops if op.kind == 'collective'] or [ops[-1].name])
    if not any(op.kind == 'collective' for op in ops):
        return longer_messages(bench, sites, rng, strength, step)
    made = tuple(replace(op, bytes=op.bytes * (1 + strength) // 64 * 64) if op.name == chosen else op for op in ops)
    mask = np.array([op.name == chosen for op in ops])[sites.op]
    truth = Truth('communication', f'messages of {chosen}', mask)
    return replace(bench, program=bench.program.replace(op_classes=made)), truth


def slow_network(bench, sites, rng, strength, step):
    """All links at a lower rate."""
    communication = {
        index: tuple(
            replace(one, links=tuple((link, share / (1 + strength)) for link, share in one.links)) for one in entries
        )
        for index, entries in bench.costs.communication.items()
    }
    return replace(bench, costs=replace(bench.costs, communication=communication)), Truth(
        'communication', 'all links', ~sites.computes
    )


def late_hosts(bench, sites, rng, strength, step):
    """Of all ranks."""
    mask = np.ones(len(sites.rank), dtype=bool)
    issues = bench.costs.host[sites.op].sum()
    each = (sites.program.world * (1 + strength) * step - issues) / mask.sum()
    return later(bench, sites, mask, each), Truth('host', 'all ranks')


KINDS = [slow_rank, slow_op_kind, slow_op_kind_on_rank, longer_messages, slow_link, lost_overlap, lost_overlap_on_rank,
         late_host, slow_compute_beside, slow_op, slow_layer, longer_op, slow_network, late_hosts]  # fmt: skip


def _sent(sites, rank):
    """The collectives that a rank takes part in, and the messages that it sends, on both ends."""
    kinds = np.array([op.kind for op in sites.program.op_classes])[sites.op]
    pairs = np.isin(kinds, ('send', 'recv'))
    sending = {*sites.channel[(kinds == 'send') & (sites.rank == rank)].tolist()}
    met = np.array([rank in ranks for ranks in sites.channels])
    return ~sites.computes & np.where(pairs, np.isin(sites.channel, [*sending]), met[sites.channel])


def _phase(sites, phase):
    return sites.computes & np.array([op.phase == phase for op in sites.program.op_classes])[sites.op]


def schedules(world):
    """Three schedules whose steps take 0.1 to 0.5 s on the network that is the default."""
    small = network(256, width=512, inner=1024)
    plans = [Plan(tensor=world, copies=2), Plan(data=world), Plan(pipeline=2, data=world // 2, micro_batches=4)]
    names = [f'tensor {world}, two copies', f'data {world}', f'pipeline 2 × data {world // 2}']
    return {name: lower(small, plan, world) for name, plan in zip(names, plans, strict=True)}


def main():
    """Run what is missing, then print the page as Markdown."""
    options = arguments(
        __doc__,
        ranks={'type': int, 'nargs': '+', 'default': [2, 4]},
        draws=(1, 'strengths of each kind on each schedule'),
        clean=(7, 'clean runs of each schedule'),
        seed=0,
        net='paced:150mbit,200us',
        folder=(Path('out/culprit'), 'where finished schedules are kept'),
        write=(Path, 'where the page goes'),
    )
    os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')
    options.folder.mkdir(parents=True, exist_ok=True)
    parts, code = [], commit()
    for ranks, number in itertools.product(options.ranks, range(3)):
        file = options.folder / f'{options.seed}-{ranks}-{number}-{code}.json'
        if not file.exists():
            write_atomically(file, json.dumps(part(options, ranks, number)) + '\n')
        parts.append(json.loads(file.read_text(encoding='utf-8')))
        print(parts[-1]['name'], f'on {ranks} ranks: load {parts[-1]["load"]:.1f}', flush=True)
    text, held = page(options, parts, code)
    if options.write:
        write_atomically(options.write, text)
    print(text)
    raise SystemExit(0 if held else 4)


def part(options, ranks, number):
    """All kinds of sabotage, and clean runs, on one schedule."""
    begun, net = time.monotonic(), parse_net(options.net)
    rng, hardware = random.Random(f'{options.seed} {ranks} {number}'), emulated_cluster(net, ranks)
    name, program = list(schedules(ranks).items())[number]
    runs = []
    with Pool(ranks, net=net, timeout=60, pinned=ranks <= cores()) as pool:
        lines = calibrate(pool, {name: program}, hardware, ranks)
        sites, given = sites_of(program), price(program, hardware)
        costs = price(program, hardware, collective=CalibratedCollectives(lines))
        predicted = simulate(program, costs)
        for kind in [None] * options.clean + KINDS * options.draws:
            strength, bench, truth = rng.uniform(0.1, 0.5), Bench(program, given), None
            if kind:
                bench, truth = kind(bench, sites, rng, strength, predicted.step)
            trace, busy = measure(pool, bench, program)
            run = {'kind': kind.__name__ if kind else 'clean', 'what': f'{truth.what}, {strength:.0%}' if truth else ''}
            # The run itself says so before anybody looks for a cause.
            run['busy'] = busy
            if not busy:
                diagnosis = diagnose(program, costs, trace)
                cause = diagnosis.causes[0] if diagnosis.causes else None
                run['right'] = bool(right(truth, cause, sites, predicted)) if truth else cause is None
                run |= {'ratio': diagnosis.measured / diagnosis.predicted, 'said': sentence(diagnosis)}
                run['called'] = cause.kind if cause else ''
            runs.append(run)
    load, seconds = os.getloadavg()[0], time.monotonic() - begun
    return {'ranks': ranks, 'name': name, 'step': predicted.step, 'runs': runs, 'load': load, 'seconds': seconds}


def page(options, parts, code):
    """The page in Markdown, and whether what must hold does on each number of ranks."""
    loads = [one['load'] for one in parts]
    text = [
        '# Sabotage of real runs',
        '',
        f'`make prove-culprit-runs` wrote this page: seed {options.seed}, commit {code},',
        f'{sum(one["seconds"] for one in parts) / 60:.0f} minutes on {cores()} cores,',
        f'whose load was {min(loads):.1f} to {max(loads):.1f}.',
        f'Three schedules over `{options.net}`: compute is emulated, messages are real,',
        'communication is calibrated in the same run.',
        '[Diagnosis](../diagnosis.md) says what is drawn, and when a place is right.',
        '',
        '| ranks | right | of | clean and named | of | told as too busy |',
        '|---|---|---|---|---|---|',
    ]
    held = True
    for ranks in dict.fromkeys(one['ranks'] for one in parts):
        runs = [run for one in parts if one['ranks'] == ranks for run in one['runs']]
        told = [run for run in runs if not run['busy']]
        bad = [run['right'] for run in told if run['kind'] != 'clean']
        clean = [run for run in told if run['kind'] == 'clean']
        named = [run for run in clean if not run['right']]
        held &= np.mean(bad) >= 0.9 and len(named) <= 1 and all(run['called'] == 'busy' for run in named)
        cells = (ranks, f'{sum(bad)} ({np.mean(bad):.0%})', len(bad), len(named), len(clean), len(runs) - len(told))
        text.append('| ' + ' | '.join(map(str, cells)) + ' |')
    return '\n'.join([*text, *tables(parts)]) + '\n', bool(held)


def tables(parts):
    """How often each kind was named, and what was named wrongly."""
    text, found = ['', '| kind | right | of |', '|---|---|---|'], defaultdict(list)
    for run in (run for one in parts for run in one['runs'] if not run['busy']):
        found[run['kind']].append(run['right'])
    text += [f'| {kind} | {sum(each)} | {len(each)} |' for kind, each in found.items()]
    text += ['', '## What was named wrongly', '']
    text += ['| sabotage | schedule | step ÷ predicted | first line |', '|---|---|---|---|']
    text += [
        f'| {run["kind"]}: {run["what"]} | {one["name"]} | {run["ratio"]:.2f} | {run["said"]} |'
        for one in parts
        for run in one['runs']
        if not run['busy'] and not run['right']
    ]
    return text


def measure(pool, bench, program):
    """The trace of a run of the bench, as one of the program, and whether the machine was too busy in every one."""
    request = Request(compute='emulated', costs=bench.costs, steps=STEPS)
    for _ in range(RUNS):
        execution = pool.perform(bench.program, request)
        if busy := any(note.startswith(TOO_SLOW) for note in execution.notes):
            continue
        break
    return replace(execution.trace, program=program), busy


def calibrate(pool, programs, hardware, world):
    """Lines of seconds over bytes, measured on the same pool."""
    lines = {}
    for kind, used in kinds_of(programs.values()).items():
        program, samples = program_of(kind, sizes_around(used), world), Samples()
        for turn in range(4):
            execution = pool.perform(program, Request(compute='emulated', costs=price(program, hardware), steps=3))
            if turn:
                samples.add(execution)
        lines[kind] = samples.fit()
    return lines


if __name__ == '__main__':
    main()
