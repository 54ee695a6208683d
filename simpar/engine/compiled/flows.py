"""Transfers on links: they come and go, and what shares a link has max-min fair speeds."""

from __future__ import annotations

import numpy as np

from simpar.engine.compiled.heap import push
from simpar.engine.compiled.records import NONE, ROUND, World
from simpar.engine.compiled.touch import touch
from simpar.jit import part


@part
def join_links(world: World, number: int, load: int) -> None:
    """Let the transfer that a stream leads come onto its links."""
    flow, at = world.flows[number], number * world.widest
    flow.top = 0.0
    flow.links = world.load_start[load + 1] - world.load_start[load]
    for index in range(world.load_start[load], world.load_start[load + 1]):
        entry, link = world.entries[at], world.links[world.load_link[index]]
        entry.demand, entry.link, entry.stream = world.load_demand[index], world.load_link[index], number
        entry.before, entry.behind = NONE, link.head
        if link.head != NONE:
            world.entries[link.head].before = at
        link.head = at
        at += np.uint64(1)


@part
def leave_links(world: World, number: int) -> None:
    """Take the transfer that a stream leads off its links."""
    begin = number * world.widest
    for at in range(begin, begin + world.flows[number].links):
        entry = world.entries[at]
        link = world.links[entry.link]
        if entry.before != NONE:
            world.entries[entry.before].behind = entry.behind
        else:
            link.head = entry.behind
        if entry.behind != NONE:
            world.entries[entry.behind].before = entry.before
        # Their ceilings are as before, but their shares are not.
        other = link.head
        while other != NONE:
            neighbour = world.entries[other].stream
            world.flows[neighbour].top = 0.0
            touch(world, neighbour)
            other = world.entries[other].behind
    world.flows[number].links = 0


@part
def has_links_alone(world: World, number: int) -> bool:
    """Whether no other flow is on any link of this one."""
    begin = number * world.widest
    for at in range(begin, begin + world.flows[number].links):
        entry = world.entries[at]
        if entry.before != NONE or entry.behind != NONE:
            return False
    return True


@part
def speed_alone(world: World, number: int) -> float:
    """Its speed then."""
    begin = number * world.widest
    speed: float = world.flows[number].top
    for at in range(begin, begin + world.flows[number].links):
        speed = min(speed, 1.0 / world.entries[at].demand)
    return speed


@part
def set_speed(world: World, number: int, speed: float) -> None:
    """Settle the work done of the transfer that a stream leads, and schedule its end."""
    stream, now = world.streams[number], world.loop[0].now
    # Bitwise the same speed keeps its end.
    if speed == stream.speed:
        return
    if now > stream.since:
        # Rounding may leave a tiny negative rest, and no op may end before now.
        stream.remaining = max(stream.remaining - stream.speed * (now - stream.since), 0.0)
        stream.since = now
    stream.speed = speed
    push(world.heap, world.streams, world.loop[0], number, stream.since + stream.remaining / speed + ROUND - ROUND)
