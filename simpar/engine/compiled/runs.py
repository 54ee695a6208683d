"""Runs: compute ops, one behind the other on a stream, that only wait for one another; they are one event."""

from __future__ import annotations

from simpar.engine.compiled.heap import push
from simpar.engine.compiled.records import CHAINED, PLANNED, ROUND, World
from simpar.jit import part


@part
def plan(world: World, number: int, slow: bool) -> None:
    """Work out when the ops of a run end, from the one in progress on, and schedule the end of the last.

    Arguments: ``slow``, whether communication slows the device now.
    """
    stream, now = world.streams[number], world.loop[0].now
    stream.slowed, stream.since = slow, now
    base = stream.step * world.per_step
    last = stream.op
    op = world.ops[last]
    time = now + (stream.remaining / op.beside if slow else stream.remaining) + ROUND - ROUND
    more = 1
    while op.meeting == CHAINED and more < PLANNED:
        # What the host has not issued by then starts later.
        if world.issued[base + op.next] > time:
            break
        world.end[base + last] = time
        last = op.next
        op = world.ops[last]
        time = time + (op.seconds / op.beside if slow else op.seconds) + ROUND - ROUND
        more += 1
    stream.last = last
    push(world.heap, world.streams, world.loop[0], number, time)


@part
def replan(world: World, number: int) -> None:
    """Settle the work done of a run and plan the rest, if its speed changes."""
    stream, now = world.streams[number], world.loop[0].now
    slow = world.devices[stream.device].communicating > 0
    # Bitwise the same speed: the plan holds, and so does its event.
    if slow == stream.slowed:
        return
    base = stream.step * world.per_step
    # Ops of the run that have ended keep their ends; the one in progress is settled, the rest planned anew.
    while stream.op != stream.last and world.end[base + stream.op] <= now:
        stream.since = world.end[base + stream.op]
        stream.op = world.ops[stream.op].next
        stream.remaining = world.ops[stream.op].seconds
    speed = 1.0 if slow else world.ops[stream.op].beside
    stream.remaining = max(stream.remaining - speed * (now - stream.since), 0.0)
    plan(world, number, slow)
