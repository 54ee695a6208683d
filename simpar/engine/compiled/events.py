"""The event loop as a kernel: its arithmetic and instants are those of ``event_loop``.

A stream has at most one op in progress, so what goes on is kept by stream; of a communication, by the stream of the op
that has its costs, which leads it. A stream has at most one event. It walks its ops itself: where a need of its head
has not ended, it waits in a list at what it needs. The order in which things of one instant are looked at is not that
of ``event_loop``, for no result depends on it.
"""

from __future__ import annotations

from typing import Final

from simpar.engine.compiled.heap import pop, push
from simpar.engine.compiled.meetings import end_meeting, meet, transfer
from simpar.engine.compiled.records import BEGUN, CHAINED, ISSUED, LATENT, NONE, RUNS, World
from simpar.engine.compiled.solve import solve
from simpar.engine.compiled.touch import begin_computing, end_computing
from simpar.engine.compiled.walk import finish, go_on, waits
from simpar.jit import kernel, part

HELPERS: Final = 'd08741290bae2600'
"""Of the files without this line, as a test says it: numba's cache on disk looks at a kernel's own file alone."""


@kernel
def events(world: World) -> int:
    """Write when each node ends; return how many streams came to their end."""
    loop, heap, streams = world.loop[0], world.heap, world.streams
    while True:
        # Everything of this instant: arrivals, and what ends with them.
        while True:
            if loop.ready:
                loop.ready -= 1
                number = world.ready[loop.ready]
                starts = True
            elif loop.size and heap[0].time == loop.now:
                number = pop(heap, streams, loop)
                starts = _happen(world, number)
            else:
                break
            if starts:
                _advance(world, number)
            stream = streams[number]
            # What follows on the stream has started, so that op after op does not look like a change to the device.
            if stream.computing and stream.state not in (BEGUN, RUNS):
                stream.computing = 0
                end_computing(world, world.devices[stream.device])
        # Speeds are solved when the instant is over: what ends and begins at once must not look like a change.
        solve(world)
        if not loop.size:
            over: int = loop.over
            return over
        loop.now = heap[0].time


@part
def _happen(world: World, number: int) -> bool:
    """Let a stream's event happen; return whether another op heads the stream, which may go on."""
    stream = world.streams[number]
    if stream.state == RUNS:
        finish(world, stream.last, stream.step)
        return go_on(world, stream, world.ops[stream.last].next)
    if stream.state == ISSUED:
        return _start(world, number)
    if stream.state == LATENT:
        transfer(world, number, world.meetings[world.ops[stream.op].meeting])
    else:
        end_meeting(world, number)
    return False


@part
def _advance(world: World, number: int) -> None:
    """Let a stream go on as far as it comes at this instant."""
    stream = world.streams[number]
    while True:
        need = world.ops[stream.op].need
        if need != NONE and waits(world, number, need):
            return
        # The host may be behind the device: an op cannot start before it has been launched.
        issue = world.issued[stream.step * world.per_step + stream.op]
        if issue > world.loop[0].now:
            stream.state = ISSUED
            push(world.heap, world.streams, world.loop[0], number, issue)
            return
        if not _start(world, number):
            return


@part
def _start(world: World, number: int) -> bool:
    """Start the op that heads a stream; return whether it took no time, and another heads the stream."""
    stream = world.streams[number]
    op = world.ops[stream.op]
    if op.meeting < CHAINED:
        meet(world, number, world.meetings[op.meeting])
        return False
    if op.seconds == 0.0:
        finish(world, stream.op, stream.step)
        return go_on(world, stream, op.next)
    if not stream.computing:
        stream.computing = 1
        begin_computing(world, world.devices[stream.device])
    stream.remaining, stream.state = op.seconds, BEGUN
    loop = world.loop[0]
    world.begun[loop.begun] = number
    loop.begun += 1
    return False
