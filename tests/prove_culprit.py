"""Sabotage by simulation: which class and place the diagnosis names first; writes docs/proofs/diagnosis_proof.md.

python tests/prove_culprit.py [--draws 4] [--seed 0] [--write]
"""

import re
import time
from collections import defaultdict
from dataclasses import replace

import numpy as np
from proof import ROOT, arguments, end, page_head, table
from sabotage_kinds import KINDS, LEAST_SHARE, Truth, right, slower, split
from sabotage_machine import Machine, Setup, measured, noisy

from simpar import Plan
from simpar.diagnosis import diagnose, sentence
from simpar.diagnosis.places import sites_of

# Kinds of sabotage that were written after the diagnosis was frozen; class and place were fixed before the first run.


def hot_rank(machine, sites, rng, strength):
    rank = int(rng.integers(machine.program.world))
    half = machine.compute[rank].shape[1] // 2
    machine.compute[rank][:, half:] *= 1 + strength
    return Truth('compute', f'rank {rank}, in the second half of a step', ranks=(rank,))


def slow_layer(machine, sites, rng, strength):
    names = [re.match(r'layer\d+', op.name) for op in machine.program.op_classes]
    layers = np.array([match[0] if match else '' for match in names])[sites.op]
    layer = str(rng.choice(sorted({*layers.tolist()} - {''})))
    mask = sites.computes & (layers == layer)
    slower(machine.compute, sites, mask, strength)
    return Truth('compute', f'all of {layer}', mask, within=True)


def slow_node(machine, sites, rng, strength):
    for rank in (2, 3):
        machine.compute[rank] *= 1 + strength
    return Truth('compute', 'ranks 2 and 3', sites.computes & np.isin(sites.rank, (2, 3)))


def late_input(machine, sites, rng, strength):
    """The first op waits; ``machine.input`` is taken out of its run when the trace is cut."""
    rank = int(rng.integers(machine.program.world))
    # The first op that computes: a message that is awaited needs no input.
    first = int(np.flatnonzero(split(sites, sites.computes)[rank])[0])
    machine.late = rank, first, strength * machine.step
    machine.compute[rank][:, first] += strength * machine.step
    return Truth('host', f'input of rank {rank}', ranks=(rank,))


def wrong_dtype(machine, sites, rng, strength):
    ops = machine.program.op_classes
    seconds = np.concatenate([(a + t)[0] for a, t in zip(machine.alpha, machine.transfer, strict=True)])
    weight = np.bincount(sites.op, np.where(sites.computes, 0.0, seconds), len(ops))
    weight[[op.kind != 'collective' for op in ops]] = 0
    chosen = int(rng.choice(np.flatnonzero(weight >= min(LEAST_SHARE * weight.sum(), weight.max()))))
    mask = sites.op == chosen
    slower(machine.transfer, sites, mask, strength)
    return Truth('communication', f'messages of {ops[chosen].name}', mask)


def flapping_link(machine, sites, rng, strength):
    ops = machine.program.op_classes
    partition = str(rng.choice(sorted({op.partition for op in ops} - {''})))
    mask = np.array([op.partition == partition for op in ops])[sites.op]
    slow = rng.random(machine.steps) < 2 / 3
    for times, mine in zip(machine.transfer, split(sites, mask), strict=True):
        times[np.ix_(slow, mine)] *= 1 + strength
    return Truth('communication', f'{partition}, in two steps of three', mask)


ONCE_UNSEEN = [hot_rank, slow_layer, slow_node, late_input, wrong_dtype, flapping_link]


def without_input(machine, trace):
    """The trace in which what waits for its input arrives late, and does not run longer."""
    if machine.late is None:
        return trace
    rank, slot, seconds = machine.late
    lanes = [*trace.representatives]
    times = lanes[rank]
    arrive, start = times.arrive_KS.copy(), times.start_KS.copy()
    waits = seconds / machine.compute[rank][:, slot]
    start[:, slot] += waits * (times.end_KS[:, slot] - start[:, slot])
    arrive[:, slot] = start[:, slot]
    lanes[rank] = replace(times, arrive_KS=arrive, start_KS=start)
    return replace(trace, representatives=tuple(lanes))


def gc_pause(machine, sites, rng, strength):
    """Busy: in every step another op of one rank takes very long; the rank."""
    rank = int(rng.integers(machine.program.world))
    computing = np.flatnonzero(split(sites, sites.computes)[rank])
    for step in range(machine.steps):
        machine.compute[rank][step, rng.choice(computing)] += strength * machine.step
    return Truth('busy', f'rank {rank}', ranks=(rank,))


def slow_micro_batch(machine, sites, rng, strength):
    """Compute: the first half of what each rank computes, as with cold caches; anywhere, on all ranks."""
    for rank, mine in enumerate(split(sites, sites.computes)):
        machine.compute[rank][:, np.flatnonzero(mine)[: mine.sum() // 2]] *= 1 + strength
    return Truth('compute', 'the first half of a step')


def slow_backward_on_node(machine, sites, rng, strength):
    """Compute: the gradients of ranks 0 and 1; these ranks, phases I and W."""
    phases = np.array([op.phase for op in machine.program.op_classes])[sites.op]
    mask = sites.computes & np.isin(sites.rank, (0, 1)) & np.isin(phases, ('I', 'W'))
    slower(machine.compute, sites, mask, strength)
    return Truth('compute', 'gradients of ranks 0 and 1', mask, within=True)


def large_messages(machine, sites, rng, strength):
    """Communication: messages that are longer than most take longer, as after a change of algorithm; these ops."""
    size = np.array([op.bytes if op.kind != 'compute' else 0.0 for op in machine.program.op_classes])[sites.op]
    mask = size >= np.median(size[size > 0])
    slower(machine.transfer, sites, mask, strength)
    return Truth('communication', 'long messages', mask, within=True)


def late_hosts_of_node(machine, sites, rng, strength):
    """Host: the hosts of ranks 2 and 3 share cores and issue late; one or both of these ranks."""
    for rank in (2, 3):
        later = ((1 + strength) * machine.step - machine.host[rank].sum(axis=1).mean()) / machine.host[rank].shape[1]
        machine.host[rank] += later
    return Truth('host', 'hosts of ranks 2 and 3', ranks=(2, 3), within=True)


UNSEEN = [gc_pause, slow_micro_batch, slow_backward_on_node, large_messages, late_hosts_of_node]
"""Written after the second freeze."""


PAGE = ROOT / 'docs' / 'proofs' / 'diagnosis_proof.md'
PLANS = {
    'tensor 2 × data 2, two copies': Plan(tensor=2, data=2, copies=2),
    'pipeline 2 × tensor 2, 4 micro-batches': Plan(pipeline=2, tensor=2, micro_batches=4),
    'ZeRO-3 over 4': Plan(data=4, zero=3),
}
ALL = KINDS + ONCE_UNSEEN + UNSEEN
STEPS = 12
CLEAN = 7
"""Clean runs of each schedule: 21 in all."""


class Bed(Setup):
    """One schedule with its prediction, on which sabotage is done."""

    def __init__(self, name):
        super().__init__(4, PLANS[name], layers=2, batch=16)
        self.name, self.sites = name, sites_of(self.program)

    def run(self, kind, rng):
        """The truth, the strength and the diagnosis of one run; clean without a kind."""
        machine = Machine.of(self.program, self.costs, STEPS, self.step)
        strength = float(rng.uniform(0.1, 0.5))
        noisy(machine, rng)
        truth = kind(machine, self.sites, rng, strength) if kind else None
        trace = without_input(machine, measured(machine, self.program))
        return truth, strength, diagnose(self.program, self.costs, trace)

    def right(self, truth, found):
        """Whether the first cause has the class and the place of the truth."""
        return right(truth, found.causes[0] if found.causes else None, self.sites, self.predicted)


def main():
    options = arguments(
        __doc__,
        draws=(4, 'strengths of each kind on each schedule'),
        seed=0,
        write=(False, 'write docs/proofs/diagnosis_proof.md'),
    )
    rng, begun = np.random.default_rng(options.seed), time.process_time()
    found, wrong, clean = defaultdict(list), [], []
    for bed in map(Bed, PLANS):
        for _ in range(CLEAN):
            _, _, diagnosis = bed.run(None, rng)
            clean += [sentence(diagnosis)] if diagnosis.causes else []
        for kind in ALL:
            for _ in range(options.draws):
                truth, strength, diagnosis = bed.run(kind, rng)
                found[kind].append(bed.right(truth, diagnosis))
                if not found[kind][-1]:
                    wrong.append((f'{kind.__name__}: {truth.what}', bed.name, f'{strength:.0%}', sentence(diagnosis)))
        print(bed.name, sum(map(sum, found.values())), sum(map(len, found.values())), flush=True)
    text = report(options, found, wrong, clean, time.process_time() - begun)
    every = [one for each in found.values() for one in each]
    raise SystemExit(end(text, PAGE if options.write else None, np.mean(every) >= 0.9 and len(clean) <= 1))


def report(options, found, wrong, clean, seconds):
    """The page in Markdown."""
    every, unseen = ([one for kind in kinds for one in found[kind]] for kinds in (ALL, UNSEEN))
    head = page_head(
        'culprit', seed=options.seed, seconds=seconds, right=sum(every), every=len(every), share=np.mean(every),
        unseen_right=sum(unseen), unseen=len(unseen), unseen_share=np.mean(unseen), runs=CLEAN * len(PLANS),
        clean=len(clean),
    )  # fmt: skip
    kinds = [(kind.__name__, sum(each), len(each), written(kind)) for kind, each in found.items()]
    lines = table('kind | right | of | written', [*kinds, *((f'clean: {text}', '', '', '') for text in clean)])
    lines += ['', '## What was named wrongly', '', *table('sabotage | schedule | strength | first line', wrong), '']
    return head + '\n'.join(lines)


def written(kind):
    """When a kind was written."""
    after = {**dict.fromkeys(ONCE_UNSEEN, 'after the first freeze'), **dict.fromkeys(UNSEEN, 'after the second freeze')}
    return after.get(kind, 'with the diagnosis')


if __name__ == '__main__':
    main()
