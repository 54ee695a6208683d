"""Kinds of sabotage on a `Machine`, each with the class and place that a diagnosis has to name.

Classes, fixed beforehand: kinds that leave one signature are one class.
    compute         ops that compute take longer: a slow rank, kind of op, phase or single op
    communication   ops that communicate take longer: a slow link or group, longer messages, latency
    overlap         streams that run in turn: one queue for some streams, everywhere or on one rank
    compute beside communication, communication beside compute      they slow each other more than predicted
    host            ops are issued late, everywhere or on one rank
    busy            a rank's ops vary from step to step: something else runs there
A place is right where it covers the same sites, or at least 95 % of their time and no more than 105 %; of overlap,
host and busy where the ranks are the same, and the streams of a lost overlap.
"""

from dataclasses import dataclass, replace

import numpy as np

from simpar.diagnosis.places import own_times
from simpar.program import Csr

LEAST_SHARE = 0.1
"""Share of the compute, or of the communication, of the ranks concerned, that a kind of op must have to be chosen."""


CLASSES = {'latency': 'communication', 'pause': 'host'}
"""A kind that the diagnosis tells apart, though it is one class with another."""


@dataclass(frozen=True)
class Truth:
    """What was done: class and place; ``what`` in words; ``within``: a part of the place is right, too."""

    kind: str
    what: str
    mask: object = None
    ranks: tuple = ()
    streams: frozenset = frozenset()
    within: bool = False


def slow_rank(machine, sites, rng, strength):
    rank = int(rng.integers(machine.program.world))
    machine.compute[rank] *= 1 + strength
    return Truth('compute', f'rank {rank}', sites.computes & (sites.rank == rank))


def slow_op_kind(machine, sites, rng, strength):
    return _slow_kind(machine, sites, rng, strength, lambda op: op.operator)


def slow_phase(machine, sites, rng, strength):
    return _slow_kind(machine, sites, rng, strength, lambda op: op.phase)


def slow_op(machine, sites, rng, strength):
    return _slow_kind(machine, sites, rng, strength, lambda op: op.name)


def slow_op_kind_on_rank(machine, sites, rng, strength):
    rank = int(rng.integers(machine.program.world))
    return _slow_kind(machine, sites, rng, strength, lambda op: op.operator, rank)


def slow_link_of_rank(machine, sites, rng, strength):
    rank = int(rng.integers(machine.program.world))
    met = np.array([rank in ranks for ranks in sites.channels])
    mask = ~sites.computes & met[sites.channel]
    return _transfer(machine, sites, mask, strength, f'links of rank {rank}')


def slow_group(machine, sites, rng, strength):
    channel = int(rng.integers(len(sites.channels)))
    ranks = {*sites.channels[channel]}
    met = np.array([{*one} <= ranks for one in sites.channels])
    return _transfer(machine, sites, ~sites.computes & met[sites.channel], strength, f'links between {sorted(ranks)}')


def slow_partition(machine, sites, rng, strength):
    name, mask = _communicating(machine, sites, rng, lambda op: op.partition)
    return _transfer(machine, sites, mask, strength, name)


def longer_messages(machine, sites, rng, strength):
    name, mask = _communicating(machine, sites, rng, lambda op: (op.partition, op.operator, op.phase))
    return _transfer(machine, sites, mask, strength, f'messages of {name}')


def latency(machine, sites, rng, strength):
    name, mask = _communicating(machine, sites, rng, lambda op: op.partition)
    mean = np.mean(np.concatenate([(a + t)[0][m] for a, t, m in _by_rank(machine, sites, mask)]))
    for rank, mine in enumerate(split(sites, mask)):
        machine.alpha[rank][:, mine] += strength * mean
    return Truth('communication', f'latency of {name}', mask)


def lost_overlap(machine, sites, rng, strength):
    return _in_turn(machine, range(machine.program.world), sites.streams, ())


def lost_overlap_on_rank(machine, sites, rng, strength):
    rank = int(rng.integers(machine.program.world))
    return _in_turn(machine, [rank], machine.program.roles[rank].streams, (rank,))


def serialised_streams(machine, sites, rng, strength):
    one, two = rng.choice(len(sites.streams), 2, replace=False)
    return _in_turn(machine, range(machine.program.world), (sites.streams[one], sites.streams[two]), ())


def compute_beside(machine, sites, rng, strength):
    machine.costs = machine.costs.with_speeds(lambda speed: speed / (1 + strength))
    return Truth('compute beside communication', 'everywhere')


def communication_beside(machine, sites, rng, strength):
    machine.costs = replace(machine.costs, beside_compute=machine.costs.beside_compute / (1 + strength))
    return Truth('communication beside compute', 'everywhere')


def late_host(machine, sites, rng, strength):
    return _late(machine, sites, strength, range(machine.program.world), ())


def late_host_of_rank(machine, sites, rng, strength):
    rank = int(rng.integers(machine.program.world))
    return _late(machine, sites, strength, [rank], (rank,))


def busy_core(machine, sites, rng, strength):
    """Another process takes half of the rank's time in bursts: while it runs, ops take twice as long."""
    rank = int(rng.integers(machine.program.world))
    seconds = machine.compute[rank]
    ends = np.cumsum(seconds.ravel())
    # Bursts of a thirtieth of a step, as slices of a scheduler are of milliseconds; so many that compute takes
    # 1 + strength times as long on average.
    burst = seconds.sum(axis=1).mean() / 30
    edges = []
    time = 0.0
    while time < ends[-1]:
        time += rng.exponential(burst * (1 - strength) / strength)
        length = rng.exponential(burst)
        edges.append((time, time + length))
        time += length
    begins = ends - seconds.ravel()
    hit = sum(np.clip(np.minimum(ends, until) - np.maximum(begins, since), 0, None) for since, until in edges)
    machine.compute[rank] = seconds + hit.reshape(seconds.shape)
    return Truth('busy', f'rank {rank}', ranks=(rank,))


KINDS = [
    slow_rank, slow_op_kind, slow_op_kind_on_rank, slow_phase, slow_op, slow_link_of_rank, slow_group, slow_partition,
    longer_messages, latency, lost_overlap, lost_overlap_on_rank, serialised_streams, compute_beside,
    communication_beside, late_host, late_host_of_rank, busy_core,
]  # fmt: skip


def split(sites, mask):
    """The part of a mask on each rank."""
    return [mask[begin:end] for begin, end in zip(sites.first[:-1], sites.first[1:], strict=True)]


def slower(times, sites, mask, strength):
    """Spans of all ranks take longer."""
    for of_rank, mine in zip(times, split(sites, mask), strict=True):
        of_rank[:, mine] *= 1 + strength


def _by_rank(machine, sites, mask):
    return zip(machine.alpha, machine.transfer, split(sites, mask), strict=True)


def _slow_kind(machine, sites, rng, strength, of, rank=None):
    ops = machine.program.op_classes
    on = sites.computes & ((sites.rank == rank) if rank is not None else True)
    seconds = np.concatenate([one[0] for one in machine.compute])
    names = np.array([of(op) for op in ops])[sites.op]
    weight = {name: seconds[on & (names == name)].sum() / seconds[on].sum() for name in {*names[on].tolist()}}
    chosen = _large(rng, weight)
    mask = on & (names == chosen)
    slower(machine.compute, sites, mask, strength)
    return Truth('compute', chosen if rank is None else f'{chosen} on rank {rank}', mask)


def _large(rng, weight):
    """One of those that are at least a tenth of all."""
    least = min(LEAST_SHARE, max(weight.values()))
    return str(rng.choice(sorted(name for name, share in weight.items() if share >= least)))


def _communicating(machine, sites, rng, of):
    """A kind of communication that is at least a tenth of all."""
    ops = machine.program.op_classes
    names = [str(of(op)) if op.kind != 'compute' else '' for op in ops]
    # A send and its receive are one message, of one name.
    names = np.array([name.replace('recv', 'send') for name in names])[sites.op]
    seconds = np.concatenate([(a + t)[0] for a, t in zip(machine.alpha, machine.transfer, strict=True)])
    weight = {name: seconds[names == name].sum() / seconds.sum() for name in {*names.tolist()} - {''}}
    chosen = _large(rng, weight)
    return chosen, names == chosen


def _transfer(machine, sites, mask, strength, what):
    slower(machine.transfer, sites, mask, strength)
    return Truth('communication', what, mask)


def _late(machine, sites, strength, ranks, named):
    # Issuing takes 1 + strength times as long as the step does, on the rank with most ops.
    issues, ops = zip(
        *((machine.host[rank].sum(axis=1).mean(), machine.host[rank].shape[1]) for rank in ranks), strict=True
    )
    later = ((1 + strength) * machine.step - max(issues)) / max(ops)
    for rank in ranks:
        machine.host[rank] += later
    return Truth('host', f'host of {named or "all ranks"}', ranks=named)


def _in_turn(machine, ranks, streams, named):
    roles = [*machine.program.roles]
    for rank in ranks:
        role = roles[rank]
        slots = [slot for slot in range(len(role)) if role.streams[role.stream[slot]] in streams]
        if len(slots) > 1:
            pairs = np.concatenate((role.need.pairs(), [*zip(slots[1:], slots[:-1], strict=True)]))
            carry = np.concatenate((role.carry.pairs(), [(slots[0], slots[-1])]))
            roles[rank] = replace(
                role,
                need=Csr.of(pairs[:, 0], pairs[:, 1], len(role)),
                carry=Csr.of(carry[:, 0], carry[:, 1], len(role)),
            )
    machine.program = machine.program.replace(roles=tuple(roles))
    return Truth('overlap', f'{streams} of {named or "all ranks"}', ranks=named, streams=frozenset(streams))


def right(truth, cause, sites, predicted):
    """Whether a cause has the class and the place of the truth."""
    if cause is None or CLASSES.get(cause.kind, cause.kind) != truth.kind:
        return False
    if truth.mask is None and truth.within:
        return bool(cause.place.ranks) and {*cause.place.ranks} <= {*truth.ranks}
    if truth.mask is None:
        return {*cause.place.ranks} == {*truth.ranks} and {*cause.place.streams} == truth.streams
    named, seconds = cause.among(sites), own_times(predicted, sites).run[-1]
    both = seconds[named & truth.mask].sum()
    if truth.within:
        return both >= 0.95 * seconds[named].sum()
    return both >= 0.95 * max(seconds[named].sum(), seconds[truth.mask].sum())
