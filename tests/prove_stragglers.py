"""Recordings of drawn stragglers on 4 and 8 ranks: whether the first sentence of `simpar trace` names rank and cause.

    python tests/prove_stragglers.py [--draws 1] [--clean 4] [--seed 2042] [--runs] [--write PAGE]

A case is a run with noise (`sabotage_machine`), or with --runs one of the executor with emulated compute over gloo, in
which something is made slow. Its ranks are written as Kineto files, and what is asked of those knows nothing else. A
draw counts if the step is 4 % longer by it, else another one is drawn. The right answer is fixed by what was done.
Answers stand in the folder, one file for a seed and a commit: a proof that was interrupted goes on behind them.
"""

import random
import tempfile
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import sabotage_runs
from equipment.validation import emulated_cluster
from equipment.validation_cases import network
from proof import Journal, arguments, commit, end, page_head, table
from sabotage_kinds import Truth
from sabotage_machine import Machine, Setup, measured, noisy

from executor.ranks.pool import Pool
from simpar import Plan, price
from simpar.commands.trace import sentence_of
from simpar.diagnosis.causes import Bench, changed
from simpar.diagnosis.places import sites_of
from simpar.hardware.net import parse_net
from simpar.kineto import write_kineto
from simpar.lower import lower
from simpar.predict import followed
from simpar.traces import culprit_of, read_traces, waits_of

STEPS = 10
LEAST = 0.04
TRIES = 12
"""Draws of a kind on a plan, of which the first that costs enough counts; a plan may have none."""
PLANS = {
    4: [Plan(data=4), Plan(tensor=2, data=2), Plan(pipeline=2, data=2, micro_batches=4)],
    8: [
        Plan(data=8, zero=2),
        Plan(pipeline=2, tensor=2, data=2, micro_batches=4),
        Plan(pipeline=4, data=2, micro_batches=8),
        Plan(tensor=2, data=4, zero=3),
    ],
}  # fmt: skip
RUNS = [(4, Plan(data=4)), (4, Plan(pipeline=2, data=2, micro_batches=4)), (8, Plan(data=8))]
"""Plans that the executor runs."""


class Bed(Setup):
    """A schedule on so many ranks, with what it takes there."""

    def machine(self):
        return Machine.of(self.program, self.costs, STEPS, self.step)

    def classes(self, machine, rank):
        return [machine.program.op_classes[int(index)] for index in machine.program.roles[rank].op_class]

    def computes(self, machine, rank):
        return np.array([op.kind == 'compute' for op in self.classes(machine, rank)])


def slow_rank(bed, machine, rng, strength):
    rank = int(rng.integers(bed.world))
    machine.compute[rank] *= 1 + strength
    return {rank}, {'computes'}


def slow_family(bed, machine, rng, strength):
    """Kernels of one operator on one rank, of those that take a tenth of what it computes."""
    rank = int(rng.integers(bed.world))
    names = np.array([op.name.rpartition('.')[0].partition('.')[2] + op.phase for op in bed.classes(machine, rank)])
    seconds = machine.compute[rank].mean(axis=0)
    big = [n for n in set(names[seconds > 0]) if 0.05 < seconds[names == n].sum() / seconds.sum() < 0.5]
    machine.compute[rank][:, names == rng.choice(sorted(big))] *= 1 + 4 * strength
    return {rank}, {'kernel'}


def slow_link(bed, machine, rng, strength):
    """Between two ranks, or in one group, of a partition that has several."""
    parts = [name for name, part in bed.program.partitions.items() if 1 < part.size < bed.world
             and any(op.partition == name for op in machine.program.op_classes)]  # fmt: skip
    if not parts:
        return None
    part = bed.program.partitions[rng.choice(sorted(parts))]
    group = rng.choice(part.groups_GP).tolist()
    for rank in group:
        mine = [op.partition == part.name for op in bed.classes(machine, rank)]
        machine.transfer[rank][:, mine] *= 1 + 6 * strength
        machine.alpha[rank][:, mine] *= 1 + 6 * strength
    return set(group), {'link'}


def _late(bed, machine, rank, where, strength):
    """The host of a rank needs longer than a step, all of it before some ops."""
    machine.host[rank][:] = 0
    machine.host[rank][:, where] = bed.step * (1 + strength) / np.count_nonzero(where)


def late_entry(bed, machine, rng, strength):
    rank = int(rng.integers(bed.world))
    talks = np.array([op.kind == 'collective' for op in bed.classes(machine, rank)])
    _late(bed, machine, rank, talks, strength)
    return {rank}, {'entry', 'host'}


def loading(bed, machine, rng, strength):
    rank = int(rng.integers(bed.world))
    first = np.arange(machine.host[rank].shape[1]) == 0
    _late(bed, machine, rank, first, strength)
    return {rank}, {'input'}


def slow_host(bed, machine, rng, strength):
    rank = int(rng.integers(bed.world))
    _late(bed, machine, rank, bed.computes(machine, rank), strength)
    return {rank}, {'host'}


def pause(bed, machine, rng, strength):
    """Once or twice, longer than the host is ahead."""
    rank = int(rng.integers(bed.world))
    machine.host[rank][:] = 0
    steps = sorted(rng.choice(np.arange(2, STEPS - 1), int(rng.integers(1, 3)), replace=False).tolist())
    before = 0
    for step in steps:
        slot = int(rng.integers(1, machine.host[rank].shape[1]))
        machine.host[rank][step, slot] += (step + 1 - before) * bed.step + STEPS * strength * bed.step / len(steps)
        before = step + 1
    return {rank}, {'pause'}


def samples(bed, machine, rng, strength):
    """Lengths of samples: forward and backward of a micro-batch take longer together, on all stages."""
    data = bed.plan.data
    length = np.exp(rng.normal(0, strength, (STEPS, data, 64)))
    for rank in range(bed.world):
        role = machine.program.roles[rank]
        mine = machine.program.partitions.get('data')
        place = int(mine.place(rank)[1]) if mine is not None else 0
        sampled = np.array([op.phase in 'FIW' for op in bed.classes(machine, rank)]) & bed.computes(machine, rank)
        machine.compute[rank][:, sampled] *= length[:, place][:, role.micro_batch[sampled]]
    return set(), {'samples'}


def throttled(bed, machine, rng, strength):
    """A rank that is slow from some step on."""
    rank, since = int(rng.integers(bed.world)), int(rng.integers(STEPS // 3, STEPS // 2))
    machine.compute[rank][since:] *= 1 + 2 * strength
    return {rank}, {'computes'}


def slow_node(bed, machine, rng, strength):
    """Two ranks of eight, or one of four, in everything that they compute and say."""
    first = int(rng.integers(bed.world // 2)) * 2
    ranks = {first, first + 1} if bed.world > 4 else {first}
    for rank in ranks:
        machine.compute[rank] *= 1 + strength
    return ranks, {'computes'}


KINDS = [slow_rank, slow_family, slow_link, late_entry, loading, slow_host, pause, samples, throttled, slow_node]


def drawn(bed, kind, rng):
    """A run of a kind that makes the step longer, and what must be named; None where the plan has no such kind."""
    for _ in range(TRIES):
        machine, strength = bed.machine(), float(rng.uniform(0.1, 0.5))
        truth = kind(bed, machine, rng, strength) if kind else None
        if kind and truth is None:
            return None
        noisy(machine, rng)
        trace = measured(machine, bed.program)
        if not kind or trace.step_times[2:].mean() > (1 + LEAST) * bed.step:
            return trace, truth
    return None


def late_entries(bench, sites, rng, strength, step):
    """The host of a rank needs longer than a step, all of it before what it says to others."""
    mask = (sites.rank == rng.randrange(sites.program.world)) & ~sites.computes
    return changed(bench, sites, mask, host=(1 + strength) * step / mask.sum()), Truth('host', 'late entries', mask)


def late_input(bench, sites, rng, strength, step):
    """The host of a rank needs longer than a step, all of it before the first op of a step."""
    rank = rng.randrange(sites.program.world)
    mask = np.arange(len(sites.rank)) == np.flatnonzero(sites.rank == rank)[0]
    return changed(bench, sites, mask, host=(1 + strength) * step), Truth('host', f'input of rank {rank}', mask)


def slow_nodes(bench, sites, rng, strength, step):
    """Two ranks of eight, or one of four, in everything that they compute."""
    first = 2 * rng.randrange(sites.program.world // 2)
    ranks = [first, first + 1][: sites.program.world // 4]
    mask = sites.computes & np.isin(sites.rank, ranks)
    return changed(bench, sites, mask, factor=1 + strength), Truth('compute', 'a node', mask)


RAN = {
    sabotage_runs.slow_rank: {'computes'},
    sabotage_runs.slow_op_kind_on_rank: {'computes', 'kernel'},
    sabotage_runs.late_host: {'host', 'entry'},
    late_entries: {'entry', 'host'},
    late_input: {'input'},
    slow_nodes: {'computes'},
}
"""What is done to runs of the executor, and what it may be called; a phase of small kernels has no name of its own."""


def ran(world, plan, options, rng):
    """Name, truth, and what makes the trace, of runs of the executor: emulated compute, a paced network."""
    net = parse_net('paced:150mbit,200us')
    program = lower(network(8192, width=512, inner=1024), plan, world)
    costs = price(program, emulated_cluster(net, world))
    bench, sites, step = Bench(program, costs), sites_of(program), followed(program, costs, 3).step
    with Pool(world, net=net, timeout=120, pinned=False) as pool:
        for kind in [None] * options.clean + [*RAN] * options.draws:
            draws = (kind(bench, sites, rng, rng.uniform(0.2, 0.5), step) for _ in range(TRIES if kind else 0))
            clear = (one for one in draws if followed(one[0].program, one[0].costs, 3).step > (1 + LEAST) * step)
            made, truth = next(clear, (bench, None))
            if kind and truth is None:
                continue
            ranks = set(truth.ranks or np.unique(sites.rank[truth.mask]).tolist()) if kind else set()
            yield (
                kind.__name__ if kind else 'clean',
                (ranks, RAN[kind]) if kind else None,
                partial(run, pool, made, program),
            )


def run(pool, made, program):
    """The trace of a run of the executor; None where the machine was too busy for it."""
    trace, busy = sabotage_runs.measure(pool, made, program)
    return None if busy else trace


def asked(trace, folder):
    """What `simpar trace` says of the files."""
    for old in Path(folder).glob('*.json'):
        old.unlink()
    write_kineto(Path(folder), trace)
    traces = read_traces(Path(folder))
    culprit = culprit_of(traces)
    return culprit, sentence_of(traces, culprit, waits_of(traces), [])


def right(culprit, truth):
    ranks, causes = truth
    return culprit is not None and culprit.cause in causes and (not ranks or set(culprit.ranks) == ranks)


def main():
    options = arguments(
        __doc__,
        draws=(1, 'of each kind on each schedule'),
        clean=(4, 'clean runs of each schedule'),
        seed=2042,
        runs=(False, 'runs of the executor instead: 4 and 8 processes'),
        folder=(Path('out/stragglers'), 'where answers are kept'),
        write=(Path, 'where the page goes'),
    )
    journal = Journal(options.folder / f'{options.seed}-{commit()}-{"runs" if options.runs else "simulated"}.jsonl')
    known, begun = len(journal.rows), time.process_time()
    for number, case in enumerate(cases(options)):
        row = journal.rows[number] if number < known else journal.add(**answer(*case))
        print(number + 1, *row.values(), sep=' | ', flush=True)
    text, held = page(options, journal.rows, time.process_time() - begun)
    raise SystemExit(end(text, options.write, held))


def answer(name, plan, truth, make):
    """Whether the first sentence on a recording is right, None where the machine was too busy; and the sentence."""
    with tempfile.TemporaryDirectory() as folder:
        trace = make()
        culprit, said = asked(trace, folder) if trace else (None, 'too busy')
    good = None if trace is None else culprit is None if truth is None else right(culprit, truth)
    return {'straggler': name, 'plan': f'{plan}', 'right': good, 'said': said}


def cases(options):
    """Name, plan, truth and what makes the trace; a clean one has no truth."""
    if options.runs:
        for world, plan in RUNS:
            for name, truth, make in ran(world, plan, options, random.Random(options.seed)):
                yield name, plan, truth, make
        return
    rng = np.random.default_rng(options.seed)
    for bed in (Bed(world, plan) for world, plans in PLANS.items() for plan in plans):
        for kind in [None] * options.clean + KINDS * options.draws:
            case = drawn(bed, kind, rng)
            if case is not None:
                trace, truth = case
                yield kind.__name__ if kind else 'clean', bed.plan, truth, partial(lambda trace: trace, trace)


def page(options, answers, seconds):
    """The page, and whether what must hold does."""
    ended = [one for one in answers if one['right'] is not None]
    clean = [one['right'] for one in ended if one['straggler'] == 'clean']
    found = defaultdict(list)
    for one in ended:
        if one['straggler'] != 'clean':
            found[one['straggler']].append(one['right'])
    every = [one for each in found.values() for one in each]
    head = page_head(
        'stragglers', of_runs=' of runs' * options.runs, name=f'stragglers{"-runs" * options.runs}', seed=options.seed,
        seconds=seconds, named=sum(every), every=len(every), share=np.mean(every), blamed=clean.count(False),
        clean=len(clean), busy=len(answers) - len(ended),
    )  # fmt: skip
    kinds = ((kind.replace('_', ' '), sum(each), len(each)) for kind, each in found.items())
    wrong = ((one['straggler'], one['plan'], one['said']) for one in ended if not one['right'])
    lines = [*table('straggler | named | of', kinds), '', '## What was named wrongly', '']
    lines += table('straggler | plan | first sentence', wrong)
    return head + '\n'.join(lines) + '\n', bool(np.mean(every) >= 0.9 and clean.count(False) <= 1)


if __name__ == '__main__':
    main()
