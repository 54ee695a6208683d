"""Speeds, solved when an instant is over."""

from __future__ import annotations

from simpar.engine.compiled.flows import has_links_alone, set_speed, speed_alone
from simpar.engine.compiled.records import RUNS, TRANSFERS, World
from simpar.engine.compiled.runs import plan, replan
from simpar.engine.compiled.speeds import component, fill
from simpar.jit import part


@part
def solve(world: World) -> None:
    """Solve the speeds of what began at this instant, and anew of what may now go faster or must go slower."""
    loop = world.loop[0]
    for index in range(loop.begun):
        number = world.begun[index]
        stream = world.streams[number]
        stream.state = RUNS
        plan(world, number, world.devices[stream.device].communicating > 0)
    loop.begun = 0
    flowing = 0
    for index in range(loop.touched):
        number = world.touched[index]
        stream = world.streams[number]
        stream.marked = 0
        if stream.state == RUNS:
            replan(world, number)
        # One that transfers nothing has no speed.
        elif stream.state == TRANSFERS and world.ops[stream.op].seconds > 0.0:
            ceiling = world.ops[stream.op].beside if stream.slowing else 1.0
            if not world.flows[number].links:
                set_speed(world, number, ceiling)
            elif ceiling != world.flows[number].top:
                world.flows[number].top = ceiling
                world.flowing[flowing] = number
                flowing += 1
    loop.touched = 0
    # The general solution gives the same to the bit, by a longer way.
    if flowing == 1 and has_links_alone(world, world.flowing[0]):
        set_speed(world, world.flowing[0], speed_alone(world, world.flowing[0]))
    elif flowing:
        _share(world, flowing)


@part
def _share(world: World, count: int) -> None:
    """Give fair speeds to the first flows in the list, and to all that share links with them."""
    flows, entries, links, widest = world.flows, world.entries, world.links, world.widest
    count, found = component(world.flowing, count, world.found, widest, flows, entries, links)
    rising = count
    while rising:
        rising = fill(world.flowing, rising, world.found[:found], widest, flows, entries, links)
    for index in range(count):
        set_speed(world, world.flowing[index], flows[world.flowing[index]].speed)
