"""Own times: what of a step is an op's own doing, and not waiting for another op or rank.

An op is ready when what it needs and the op before it on its stream have ended. Two times are its own: the delay from
then until it arrives (its host issues it late, or something unknown to the Program held it back), and its run, from
the last participant's arrival to its end. Every other difference between two traces follows from these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simpar.diagnosis.sites import Ints, Sites
from simpar.program import Role
from simpar.trace import RankTimes, Times, Trace


@dataclass(frozen=True, slots=True, eq=False)
class Own:
    """Seconds of each site; shape [steps, N] or [N]."""

    delay: Times
    run: Times


def own_times(trace: Trace, sites: Sites) -> Own:
    """The own times of all steps, shape [steps, N].

    Arguments: ``sites`` of the program whose needs count; the trace has the same slots.
    """
    program = sites.program
    found: dict[tuple[int, int], tuple[Times, Times]] = {}
    each = []
    for rank in range(program.world):
        role = int(program.role_of_rank[rank])
        key = int(trace.representative_of_rank[rank]), role
        if key not in found:
            found[key] = _of_rank(trace.times_of(rank), program.roles[role])
        each.append(found[key])
    return Own(*(np.concatenate(parts, axis=1) for parts in zip(*each, strict=True)))


def steady(trace: Trace, sites: Sites) -> Own:
    """The own times of the last step that has a follower, shape [N]."""
    own = own_times(trace, sites)
    return Own(own.delay[-2], own.run[-2])


def _of_rank(times: RankTimes, role: Role) -> tuple[Times, Times]:
    delay = np.maximum(times.arrive_KS - _ready(times.end_KS, role), 0.0)
    return delay, times.end_KS - times.start_KS


def _ready(end: Times, role: Role) -> Times:
    """When the needs of each slot and the slot before it on its stream have ended."""
    # A row for each slot: ``maximum.at`` is quick along the first axis.
    ends, ready = end.T, np.zeros_like(end.T)
    before, tail = _stream_order(role)
    follows = before >= 0
    ready[follows] = ends[before[follows]]
    np.maximum.at(ready, role.need.row, ends[role.need.item])
    # The first slot of a stream follows the stream's last slot of the step before.
    heads = np.flatnonzero(~follows)
    ready[heads, 1:] = np.maximum(ready[heads, 1:], ends[tail[role.stream[heads]], :-1])
    carried = np.zeros_like(ready[:, 1:])
    np.maximum.at(carried, role.carry.row, ends[role.carry.item][:, :-1])
    ready[:, 1:] = np.maximum(ready[:, 1:], carried)
    return ready.T


def _stream_order(role: Role) -> tuple[Ints, Ints]:
    """For each slot the one before it on its stream, or -1; for each stream its last slot."""
    before = np.full(len(role), -1, dtype=np.int64)
    tail = np.full(len(role.streams), -1, dtype=np.int64)
    for stream, slots in enumerate(role.by_stream().rows()):
        before[list(slots[1:])] = slots[:-1]
        tail[stream] = slots[-1] if slots else -1
    return before, tail
