"""Kinds of sabotage that were written after the diagnosis was frozen; class and place were fixed before the first run.

``ONCE_UNSEEN`` came after the first freeze. Of its runs 44 % were named right. Then the diagnosis learned of layers,
of sets of ranks and of ops that begin late, and was frozen again.
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
    for times, mine in zip(machine.compute, split(sites, mask), strict=True):
        times[:, mine] *= 1 + strength
    return Truth('compute', 'gradients of ranks 0 and 1', mask, within=True)


def large_messages(machine, sites, rng, strength):
    """Communication: messages that are longer than most take longer, as after a change of algorithm; these ops."""
    size = np.array([op.bytes if op.kind != 'compute' else 0.0 for op in machine.program.op_classes])[sites.op]
    mask = size >= np.median(size[size > 0])
    for times, mine in zip(machine.transfer, split(sites, mask), strict=True):
        times[:, mine] *= 1 + strength
    return Truth('communication', 'long messages', mask, within=True)


def late_hosts_of_node(machine, sites, rng, strength):
    """Host: the hosts of ranks 2 and 3 share cores and issue late; one or both of these ranks."""
    for rank in (2, 3):
        later = ((1 + strength) * machine.step - machine.host[rank].sum(axis=1).mean()) / machine.host[rank].shape[1]
        machine.host[rank] += later
    return Truth('host', 'hosts of ranks 2 and 3', ranks=(2, 3), within=True)


UNSEEN = [gc_pause, slow_micro_batch, slow_backward_on_node, large_messages, late_hosts_of_node]
"""Written after the second freeze."""
