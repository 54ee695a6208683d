"""Sabotage of real runs: emulated compute, real messages over a paced network; `make prove NAME=verdict` does it."""

from dataclasses import replace

import numpy as np
from equipment.validation import Samples, kinds_of, program_of, sizes_around
from sabotage_kinds import Truth

from executor.ranks.rank import TOO_SLOW
from executor.state import Request
from simpar.cost.price import price
from simpar.diagnosis.causes import apart, changed, in_turn

STEPS = 12
RUNS = 3
"""Up to so many runs, where the executor says that the machine was too busy for the links."""


def slow_rank(bench, sites, rng, strength, step):
    rank = rng.randrange(sites.program.world)
    return _computing(bench, sites, sites.rank == rank, strength, f'rank {rank}')


def slow_op_kind(bench, sites, rng, strength, step):
    return _computing(bench, sites, _phase(sites, rng.choice('FIW')), strength, 'one phase')


def slow_op_kind_on_rank(bench, sites, rng, strength, step):
    rank = rng.randrange(sites.program.world)
    mask = _phase(sites, rng.choice('FIW')) & (sites.rank == rank)
    return _computing(bench, sites, mask, strength, f'one phase on rank {rank}')


def longer_messages(bench, sites, rng, strength, step):
    """Of one partition: every message is longer."""
    partition = rng.choice(sorted({op.partition for op in bench.program.op_classes} - {''}))
    return _longer(bench, sites, lambda op: op.partition == partition, strength, partition)


def slow_link(bench, sites, rng, strength, step):
    """Of a rank: what it sends goes at a lower rate."""
    rank = rng.randrange(sites.program.world)
    # A message between two is slower if this rank sends it, a collective if it takes part.
    mask = _sent(sites, rank)
    made, touched = apart(bench, sites, mask & (sites.rank == rank))
    return _narrower(made, touched.tolist(), strength), Truth('communication', f'link of rank {rank}', mask)


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
    return changed(bench, sites, mask, host=((1 + strength) * step - issues) / mask.sum()), Truth(
        'host', f'rank {rank}', ranks=(rank,)
    )


def slow_compute_beside(bench, sites, rng, strength, step):
    costs = bench.costs.with_speeds(lambda speed: speed / (1 + strength))
    return replace(bench, costs=costs), Truth('compute beside communication', 'everywhere')


# Written after the first nine had been run; class and place were fixed before the first run of these.


def slow_op(bench, sites, rng, strength, step):
    """One op class computes longer; of those that take longest, for small causes are not named."""
    seconds = np.bincount(sites.op, bench.costs.compute[sites.op], len(bench.program.op_classes))
    chosen = rng.choice(np.argsort(seconds)[-3:].tolist())
    mask = sites.op == chosen
    truth = Truth('compute', bench.program.op_classes[chosen].name, mask)
    return changed(bench, sites, mask, factor=1 + strength), truth


def slow_layer(bench, sites, rng, strength, step):
    """All that one layer computes; a mask that holds what is named, and nothing else."""
    layers = np.array([op.name.partition('.')[0] for op in bench.program.op_classes])[sites.op]
    layer = rng.choice(sorted({*layers[sites.computes].tolist()} - {'loss', 'relu0'}))
    return _computing(bench, sites, layers == layer, strength, 'one layer', within=True)


def longer_op(bench, sites, rng, strength, step):
    """The messages of one op."""
    ops = bench.program.op_classes
    chosen = rng.choice([op.name for op in ops if op.kind == 'collective'] or [ops[-1].name])
    if not any(op.kind == 'collective' for op in ops):
        return longer_messages(bench, sites, rng, strength, step)
    return _longer(bench, sites, lambda op: op.name == chosen, strength, chosen)


def slow_network(bench, sites, rng, strength, step):
    """All links at a lower rate."""
    narrow = _narrower(bench, bench.costs.communication, strength)
    return narrow, Truth('communication', 'all links', ~sites.computes)


def late_hosts(bench, sites, rng, strength, step):
    """Of all ranks."""
    mask = np.ones(len(sites.rank), dtype=bool)
    issues = bench.costs.host[sites.op].sum()
    each = (sites.program.world * (1 + strength) * step - issues) / mask.sum()
    return changed(bench, sites, mask, host=each), Truth('host', 'all ranks')


KINDS = [slow_rank, slow_op_kind, slow_op_kind_on_rank, longer_messages, slow_link, lost_overlap, lost_overlap_on_rank,
         late_host, slow_compute_beside, slow_op, slow_layer, longer_op, slow_network, late_hosts]  # fmt: skip


def _computing(bench, sites, mask, strength, what, **more):
    """Of some sites those that compute take longer."""
    mask = mask & sites.computes
    return changed(bench, sites, mask, factor=1 + strength), Truth('compute', what, mask, **more)


def _longer(bench, sites, of, strength, what):
    """Messages of some ops are longer."""
    ops = bench.program.op_classes
    made = tuple(replace(op, bytes=op.bytes * (1 + strength) // 64 * 64) if of(op) else op for op in ops)
    truth = Truth('communication', f'messages of {what}', np.array([*map(of, ops)])[sites.op])
    return replace(bench, program=bench.program.replace(op_classes=made)), truth


def _narrower(bench, classes, strength):
    """Messages of some op classes take less of their links."""
    communication = dict(bench.costs.communication)
    for index in classes:
        communication[index] = tuple(
            replace(one, links=tuple((link, share / (1 + strength)) for link, share in one.links))
            for one in communication[index]
        )
    return replace(bench, costs=replace(bench.costs, communication=communication))


def _sent(sites, rank):
    """The collectives that a rank takes part in, and the messages that it sends, on both ends."""
    kinds = np.array([op.kind for op in sites.program.op_classes])[sites.op]
    pairs = np.isin(kinds, ('send', 'recv'))
    sending = {*sites.channel[(kinds == 'send') & (sites.rank == rank)].tolist()}
    met = np.array([rank in ranks for ranks in sites.channels])
    return ~sites.computes & np.where(pairs, np.isin(sites.channel, [*sending]), met[sites.channel])


def _phase(sites, phase):
    return sites.computes & np.array([op.phase == phase for op in sites.program.op_classes])[sites.op]


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
