"""Kinds of sabotage that were written after the diagnosis was frozen; class and place were fixed before the first run.

``ONCE_UNSEEN`` came after the first freeze. Of its runs 44 % were named right, and then the diagnosis learned of layers,
of sets of ranks and of ops that begin late.
    hot_rank        compute: a rank whose compute slows in the second half of each step; the rank
    slow_layer      compute: all ops of one layer; ops of that layer, and no others
    slow_node       compute: ranks 2 and 3; these ranks
    late_input      host: a rank waits for its input before the first op of each step; the rank
    wrong_dtype     communication: the messages of one op are longer; the op
    flapping_link   communication: a partition is slow in two steps of three; the partition
"""

import re
from dataclasses import replace

import numpy as np
from sabotage_kinds import LEAST_SHARE, Truth, split


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
    for times, mine in zip(machine.compute, split(sites, mask), strict=True):
        times[:, mine] *= 1 + strength
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
    for times, mine in zip(machine.transfer, split(sites, mask), strict=True):
        times[:, mine] *= 1 + strength
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
