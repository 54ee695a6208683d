"""Meetings: collectives, and sends with their receives, from the first arrival to their end."""

from __future__ import annotations

from typing import Any

from simpar.engine.compiled.flows import join_links, leave_links
from simpar.engine.compiled.heap import push
from simpar.engine.compiled.records import LATENT, MEETS, NONE, TRANSFERS, World
from simpar.engine.compiled.touch import occupy, touch, vacate
from simpar.engine.compiled.walk import finish, go_on
from simpar.jit import part


@part
def meet(world: World, number: int, meeting: Any) -> None:
    """Let a stream arrive at a meeting, and start that with its latency when all have arrived."""
    world.streams[number].state = MEETS
    meeting.missing -= 1
    # Kernels that spin while they wait for peers slow compute before they transfer anything.
    if world.waiting_slows:
        occupy(world, world.streams[number].device)
    if meeting.missing:
        return
    meeting.missing = meeting.members
    if not world.waiting_slows:
        for index in range(meeting.first, meeting.first + meeting.members):
            occupy(world, world.streams[world.members[index]].device)
    lead, now = world.streams[meeting.lead], world.loop[0].now
    lead.since, lead.remaining, lead.speed = now + meeting.alpha, world.ops[meeting.op].seconds, 0.0
    # Only what has links waits for its latency by an event: from then on others must share with it.
    if lead.remaining > 0.0 and (meeting.load == NONE or lead.since == now):
        transfer(world, meeting.lead, meeting)
    else:
        lead.state = LATENT if lead.remaining > 0.0 else TRANSFERS
        push(world.heap, world.streams, world.loop[0], meeting.lead, lead.since)


@part
def transfer(world: World, number: int, meeting: Any) -> None:
    """Let a meeting use its links and devices."""
    lead = world.streams[number]
    lead.state, lead.slowing = TRANSFERS, 0
    if meeting.load != NONE:
        join_links(world, number, meeting.load)
    # A collective that compute does not slow need not hear of it.
    if world.ops[meeting.op].beside < 1.0:
        for index in range(meeting.first, meeting.first + meeting.members):
            member = world.streams[world.members[index]]
            member.lead = number
            device = world.devices[member.device]
            device.transferring += 1
            lead.slowing += device.computing > 0
    touch(world, number)


@part
def end_meeting(world: World, number: int) -> None:
    """End the meeting that a stream leads, and look at its streams."""
    lead, loop = world.streams[number], world.loop[0]
    meeting = world.meetings[world.ops[lead.op].meeting]
    finish(world, lead.op, lead.step)
    if world.flows[number].links:
        leave_links(world, number)
    for index in range(meeting.first, meeting.first + meeting.members):
        member = world.streams[world.members[index]]
        device = world.devices[member.device]
        if member.lead != NONE:
            member.lead = NONE
            device.transferring -= 1
        vacate(world, device)
        if go_on(world, member, world.ops[member.op].next):
            world.ready[loop.ready] = world.members[index]
            loop.ready += 1
