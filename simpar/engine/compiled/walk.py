"""Streams walk their ops: they wait for needs, and what ends lets others go on."""

from __future__ import annotations

from typing import Any

from simpar.engine.compiled.records import IDLE, NEXT_STEP, NONE, NUMBER, SEVERAL, World
from simpar.jit import part


@part
def waits(world: World, number: int, need: int) -> bool:
    """Whether a need of the op that heads a stream has not ended; the stream then waits for it."""
    if not need & SEVERAL:
        return _waits_for(world, number, need)
    stream, at = world.streams[number], need & NUMBER
    # What has ended once is not looked at again.
    while stream.checked < world.needs[at]:
        if _waits_for(world, number, world.needs[at + 1 + stream.checked]):
            return True
        stream.checked += 1
    stream.checked = 0
    return False


@part
def _waits_for(world: World, number: int, need: int) -> bool:
    """Whether one need has not ended."""
    stream, other = world.streams[number], need & NUMBER
    at = stream.step * world.per_step + other
    if need >= NEXT_STEP:
        # Before the first step everything has ended.
        if stream.step == 0:
            return False
        at -= world.per_step
    if world.end[at] >= 0.0:
        return False
    stream.behind = world.ops[other].waiter
    world.ops[other].waiter = number
    return True


@part
def finish(world: World, op: int, step: int) -> None:
    """End a node, and look at the streams that wait for it."""
    loop = world.loop[0]
    world.end[step * world.per_step + op] = loop.now
    waiter = world.ops[op].waiter
    world.ops[op].waiter = NONE
    while waiter != NONE:
        world.ready[loop.ready] = waiter
        loop.ready += 1
        waiter = world.streams[waiter].behind


@part
def go_on(world: World, stream: Any, following: int) -> bool:
    """Let the next op head a stream; return whether there is one."""
    stream.state = IDLE
    stream.op = following & NUMBER
    stream.step += following >= NEXT_STEP
    if stream.step < world.steps:
        return True
    world.loop[0].over += 1
    return False
