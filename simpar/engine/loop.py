"""The event loop as a kernel: what ``reference`` does on a SimPy clock, over records.

At one instant all completions and arrivals come first, then the speeds of what they touched are solved anew. A speed
that does not change bitwise keeps its completion. A stream has at most one op in progress, so what goes on is kept by
stream; of a communication, by the stream of the op that has its costs, which leads it. A stream has at most one event.
It walks its ops itself: where a need of its head has not ended, it waits in a list at what it needs. The order in which
things of one instant are looked at is not that of ``reference``, for no result depends on it.

Numbers are unsigned, as a number that may be negative costs a test at every look; `NONE` stands where there is none.
"""

from typing import Any, Final

import numpy as np

from simpar.engine.world import World
from simpar.kernels import Array, kernel, part, uncounted

NONE: Final = 0xFFFFFFFF
NEXT_STEP: Final = 1 << 31
"""Added to the op that is next on a stream: it is one of the next step. Added to a need: it is of the step before."""
SEVERAL: Final = 1 << 30
"""Added where an op has several needs: to their place in the list of needs, where they stand behind their count."""
NUMBER: Final = SEVERAL - 1
"""What is left of a number without what was added; so many ops a step has at most."""
COMPUTES: Final = NONE
CHAINED: Final = NONE - 1
"""In the place of a meeting: the op computes, and so does the next on its stream, which waits for it alone. Either
nobody else waits for it, or nothing slows it, so that it is known ahead when it ends."""
PLANNED: Final = 16
"""Of how many ops, one behind the other on a stream, the ends are worked out at once."""
ROUND: Final = 2.0**12
"""Added to a lesser time and taken away again, it rounds that to the grid of 2⁻⁴⁰ s: a double has 53 bits."""

# What a stream does: nothing, or it waits for a need; it waits for its host, for its peers, for the latency of its
# meeting; it leads a meeting that transfers; it computes, from this instant on or an earlier one; it waits for a need
# of which it is known when that ends.
IDLE: Final = 0
ISSUED: Final = 1
MEETS: Final = 2
LATENT: Final = 3
TRANSFERS: Final = 4
BEGUN: Final = 5
RUNS: Final = 6
DUE: Final = 7


# Unsigned, so that places are: numbers that may be negative cost a test at every look.
_ZERO: Final = np.uint64(0)
_ONE: Final = np.uint64(1)
_TWO: Final = np.uint64(2)


@part
def rise(heap: Array, streams: Array, at: Any, stream: int, time: float) -> None:
    """Let an event rise from a place of the heap."""
    while at > _ZERO:
        above = (at - _ONE) >> _ONE
        other = heap[above]
        if other.time <= time:
            break
        heap[at].time, heap[at].stream = other.time, other.stream
        streams[other.stream].place = at
        at = above
    heap[at].time, heap[at].stream = time, stream
    streams[stream].place = at


@part
def sink(heap: Array, streams: Array, size: int, at: Any, stream: int, time: float) -> None:
    """Let an event sink from a place of the heap."""
    # Behind the last event stands one that never comes, so that every event above it has two below.
    heap[size].time = np.inf
    while True:
        below = _TWO * at + _ONE
        if below >= size:
            break
        # A sum and no branch, which would be guessed wrong half of the time.
        below += np.uint64(heap[below + _ONE].time < heap[below].time)
        other = heap[below]
        if other.time >= time:
            break
        heap[at].time, heap[at].stream = other.time, other.stream
        streams[other.stream].place = at
        at = below
    heap[at].time, heap[at].stream = time, stream
    streams[stream].place = at


@part
def push(heap: Array, streams: Array, loop: Any, stream: int, time: float) -> None:
    """Put a stream's event on the heap, or move it."""
    at = streams[stream].place
    if at == NONE:
        rise(heap, streams, loop.size, stream, time)
        loop.size += 1
    elif time < heap[at].time:
        rise(heap, streams, at, stream, time)
    else:
        sink(heap, streams, loop.size, at, stream, time)


@part
def pop(heap: Array, streams: Array, loop: Any) -> int:
    """Take the first event off the heap; return its stream."""
    first: int = heap[0].stream
    streams[first].place = NONE
    loop.size -= 1
    last = heap[loop.size]
    if loop.size:
        sink(heap, streams, loop.size, _ZERO, last.stream, last.time)
    return first


@part
def touch(world: World, number: int) -> None:
    """Touch a stream."""
    stream = world.streams[number]
    if not stream.marked:
        stream.marked = 1
        loop = world.loop[0]
        world.touched[loop.touched] = number
        loop.touched += 1


@part
def touch_computing(world: World, device: Any) -> None:
    """Touch what computes on a device."""
    for index in range(device.first_compute, device.first_communication):
        stream = world.beside[index]
        if world.streams[stream].computing:
            touch(world, stream)


@part
def occupy(world: World, number: int, kind: int, change: int) -> None:
    """Let one more communication of a kind slow a device's compute, or one less. Arguments: ``change``, 1 or -1."""
    at = number * world.kinds + kind
    world.going[at] += change
    # The first begins to slow it, the last ends that.
    if world.going[at] == int(change > 0):
        device = world.devices[number]
        device.communicating ^= 1 << kind
        touch_computing(world, device)


@part
def compute(world: World, device: Any, change: int) -> None:
    """Let one more stream of a device compute, which slows transfers, or one less. Arguments: ``change``, 1 or -1."""
    device.computing += change
    if device.computing == int(change > 0) and device.transferring:
        for index in range(device.first_communication, device.end):
            lead = world.streams[world.beside[index]].lead
            if lead != NONE:
                world.streams[lead].slowing += change
                if world.streams[lead].slowing == int(change > 0):
                    touch(world, lead)


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
    end = world.end[at]
    if end > world.loop[0].now:
        wait_until(world, number, end)
        return True
    if end >= 0.0:
        return False
    stream.behind = world.ops[other].waiter
    world.ops[other].waiter = number
    return True


@part
def wait_until(world: World, number: int, time: float) -> None:
    """Let a stream look again at a time at what it waits for."""
    world.streams[number].state = DUE
    push(world.heap, world.streams, world.loop[0], number, time)


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


@part
def plan(world: World, number: int, since: float) -> None:
    """Work out when the ops of a run end, from the one in progress on, and schedule the end of the last.

    Arguments: ``since``, from when on the first of them goes at its speed.
    """
    stream, beside = world.streams[number], world.devices[world.streams[number].device].communicating
    stream.slowed, stream.since = beside, since
    base = stream.step * world.per_step
    last = stream.op
    op = world.ops[last]
    time = since + stream.remaining / world.speeds[op.speeds + beside] + ROUND - ROUND
    more = 1
    while op.meeting == CHAINED and more < PLANNED:
        # What the host has not issued by then starts later.
        if world.launches and world.issued[base + op.next] > time:
            break
        world.end[base + last] = time
        waiter = op.waiter
        op.waiter = NONE
        while waiter != NONE:
            following = world.streams[waiter].behind
            wait_until(world, waiter, time)
            waiter = following
        last = op.next
        op = world.ops[last]
        time = time + op.seconds / world.speeds[op.speeds + beside] + ROUND - ROUND
        more += 1
    stream.last = last
    push(world.heap, world.streams, world.loop[0], number, time)


@part
def replan(world: World, number: int) -> None:
    """Settle the work done of a run and plan the rest, if its speed changes."""
    stream, now = world.streams[number], world.loop[0].now
    beside = world.devices[stream.device].communicating
    # The same kinds: the plan holds, and so does its event.
    if beside == stream.slowed:
        return
    base = stream.step * world.per_step
    # Ops of the run that have ended keep their ends; the one in progress is settled, the rest planned anew.
    while stream.op != stream.last and world.end[base + stream.op] <= now:
        stream.since = world.end[base + stream.op]
        stream.op = world.ops[stream.op].next
        stream.remaining = world.ops[stream.op].seconds
    at = world.ops[stream.op].speeds
    speed = world.speeds[at + stream.slowed]
    since = stream.since
    # Bitwise the same speed keeps its end.
    if speed != world.speeds[at + beside]:
        stream.remaining, since = max(stream.remaining - speed * (now - since), 0.0), now
    plan(world, number, since)


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


@part
def component(
    flowing: Array, count: int, group_links: Array, widest: np.uint64, flows: Array, entries: Array, links: Array
) -> tuple[int, int]:
    """Find all that share links with some flows, directly or through others; return how many flows and links.

    Arguments:
        flowing: streams that lead flows, ``count`` of them at first; written behind them.
        group_links: where links are written.
    """
    found_links = 0
    for place in range(count):
        flows[flowing[place]].solved = 1
    # The list grows while it is walked: a breadth-first search.
    place = 0
    while place < count:
        begin = flowing[place] * widest
        for at in range(begin, begin + flows[flowing[place]].links):
            link = links[entries[at].link]
            if link.seen:
                continue
            link.seen, link.left = 1, 1.0
            group_links[found_links] = entries[at].link
            found_links += 1
            other = link.head
            while other != NONE:
                neighbour = entries[other].stream
                if not flows[neighbour].solved:
                    flows[neighbour].solved = 1
                    flowing[count] = neighbour
                    count += 1
                other = entries[other].behind
        place += 1
    for place in range(found_links):
        links[group_links[place]].seen = 0
    for place in range(count):
        flows[flowing[place]].solved = 0
    return count, found_links


@part
def fill(
    flowing: Array, rising: int, group_links: Array, widest: np.uint64, flows: Array, entries: Array, links: Array
) -> int:
    """Let flows rise until one meets its top or a link is full, and fix the speeds of those; return how many rise on.

    Arguments: ``rising``, how many of ``flowing`` rise, in front; ``group_links``, the links of all, and no others.
    """
    for place in range(len(group_links)):
        links[group_links[place]].demand = 0.0
    level = np.inf
    for place in range(rising):
        begin = flowing[place] * widest
        level = min(level, flows[flowing[place]].top)
        for at in range(begin, begin + flows[flowing[place]].links):
            links[entries[at].link].demand += entries[at].demand
    for place in range(len(group_links)):
        link = links[group_links[place]]
        link.share = np.inf
        if link.demand > 0.0:
            link.share = link.left / link.demand
            level = min(level, link.share)
        link.demand = 0.0
    rest = 0
    for place in range(rising):
        stream = flowing[place]
        flow, begin = flows[stream], stream * widest
        fixed = flow.top <= level
        for at in range(begin, begin + flow.links):
            # No tolerance: the level is one of these shares, to the bit.
            fixed = fixed or links[entries[at].link].share <= level
        if fixed:
            flow.speed = level
            for at in range(begin, begin + flow.links):
                links[entries[at].link].demand += entries[at].demand
        else:
            flowing[place] = flowing[rest]
            flowing[rest] = stream
            rest += 1
    for place in range(len(group_links)):
        link = links[group_links[place]]
        # Once a level, so that no result depends on the order of flows.
        if link.demand > 0.0:
            link.left -= level * link.demand
    return rest


@part
def meet(world: World, number: int, meeting: Any) -> None:
    """Let a stream arrive at a meeting, and start that with its latency when all have arrived."""
    world.streams[number].state = MEETS
    meeting.missing -= 1
    # Kernels that spin while they wait for peers slow compute before they transfer anything.
    takes = world.speeds[world.ops[meeting.op].speeds + _ONE] <= 1.0
    if meeting.waits and takes:
        occupy(world, world.streams[number].device, meeting.kind, 1)
    if meeting.missing:
        return
    meeting.missing = meeting.members
    if takes and not meeting.waits:
        for index in range(meeting.first, meeting.first + meeting.members):
            occupy(world, world.streams[world.members[index]].device, meeting.kind, 1)
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
    if world.speeds[world.ops[meeting.op].speeds + _ONE] < 1.0:
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
        if world.speeds[world.ops[meeting.op].speeds + _ONE] <= 1.0:
            occupy(world, member.device, meeting.kind, -1)
        if go_on(world, member, world.ops[member.op].next):
            world.ready[loop.ready] = world.members[index]
            loop.ready += 1


@part
def solve(world: World) -> None:
    """Solve the speeds of what began at this instant, and anew of what may now go faster or must go slower."""
    loop = world.loop[0]
    for index in range(loop.begun):
        number = world.begun[index]
        stream = world.streams[number]
        stream.state = RUNS
        plan(world, number, loop.now)
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
            ceiling = world.speeds[world.ops[stream.op].speeds + _ONE] if stream.slowing else 1.0
            if not world.flows[number].links:
                set_speed(world, number, ceiling)
            elif ceiling != world.flows[number].top:
                world.flows[number].top = ceiling
                world.flowing[flowing] = number
                flowing += 1
    loop.touched = 0
    if flowing:
        _share(world, flowing)


@part
def _share(world: World, count: int) -> None:
    """Give fair speeds to the first flows in the list, and to all that share links with them."""
    flows, entries, links, widest = world.flows, world.entries, world.links, world.widest
    count, link_count = component(world.flowing, count, world.found, widest, flows, entries, links)
    rising = count
    while rising:
        rising = fill(world.flowing, rising, world.found[:link_count], widest, flows, entries, links)
    for index in range(count):
        set_speed(world, world.flowing[index], flows[world.flowing[index]].speed)


@kernel
def events(world: World) -> int:
    """Write when each node ends; return how many streams came to their end."""
    return _run(uncounted(world))


@part
def _run(world: World) -> int:
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
                compute(world, world.devices[stream.device], -1)
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
    if stream.state == DUE:
        return True
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
        if world.launches and world.issued[stream.step * world.per_step + stream.op] > world.loop[0].now:
            stream.state = ISSUED
            issue = world.issued[stream.step * world.per_step + stream.op]
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
        compute(world, world.devices[stream.device], 1)
    stream.remaining, stream.state = op.seconds, BEGUN
    loop = world.loop[0]
    world.begun[loop.begun] = number
    loop.begun += 1
    return False


@kernel
def arrange_ops(
    node: Array, leads: Array, computes: Array, need_start: Array, need_item: Array, carry_start: Array,
    carry_item: Array, stream_start: Array, stream_item: Array, row: Array, seconds: Array, place: Array,
    speeds: Array, columns: int, needed: Array, ops: Array, needs: Array, streams: Array,
) -> None:  # fmt: skip
    """Write ops, their lists of needs, and the first op of each stream; meetings are numbered by the ops that lead.

    Arguments, by op where nothing else is said:
        node: as of ``nodes_of``; leads to stream_item: as of ``Ops``.
        row: as of ``NodeCosts``; seconds: of its rows; place: of their speeds.
        speeds: as of ``World``, columns of them.
        needed: is used up.
        ops, needs, streams: as of ``World``.
    """
    meetings, at = 0, 0
    for number in range(len(ops)):
        op = ops[number]
        op.seconds, op.speeds, op.waiter = seconds[row[number]], place[row[number]], NONE
        if leads[number]:
            op.meeting = meetings
            meetings += 1
        first, first_carried = need_start[number], carry_start[number]
        several, carried = need_start[number + 1] - first, carry_start[number + 1] - first_carried
        op.need = NONE
        if several + carried > 1:
            op.need = SEVERAL + at
            needs[at] = several + carried
            at += 1
        for index in range(several + carried):
            if index < several:
                need = node[need_item[first + index]]
                needed[need] = True
            else:
                need = node[carry_item[first_carried + index - several]]
                needed[need] = True
                need += NEXT_STEP
            if several + carried > 1:
                needs[at] = need
                at += 1
            else:
                op.need = need
    for stream in range(len(stream_start) - 1):
        begin, end = stream_start[stream], stream_start[stream + 1]
        if begin < end:
            streams[stream].op = stream_item[begin]
        for index in range(begin, end):
            number = stream_item[index]
            op = ops[number]
            following = stream_item[index + 1] if index + 1 < end else stream_item[begin]
            op.next = following if index + 1 < end else NEXT_STEP + following
            if not computes[number]:
                op.meeting = ops[node[number]].meeting
            else:
                alone = index + 1 < end and computes[following] and ops[following].need == NONE
                # The last of its speeds is that beside all kinds at once.
                free = speeds[op.speeds + columns - 1] == 1.0
                op.meeting = CHAINED if alone and (free or not needed[number]) else COMPUTES


@kernel
def arrange_meetings(
    ops: Array, node: Array, stream: Array, row: Array, alpha: Array, load: Array, taking: Array, waits: Array,
    first_stream: Array, kinds: Array, meetings: Array, members: Array, devices: Array, beside: Array, streams: Array,
    ready: Array,
) -> int:  # fmt: skip
    """Write meetings with their streams, and devices with theirs; return how many streams have ops, and are ready.

    Arguments:
        ops, streams: as ``arrange_ops`` writes them.
        node, stream: of each op; row: as of ``NodeCosts``; alpha, load, taking: of its rows; waits: of each kind.
        first_stream: of each device, and at last how many streams there are.
        kinds: of each stream, 1 where it ever computes, + 2 where it ever communicates; 0 at first.
        meetings to ready: as of ``World``.
    """
    for number in range(len(ops)):
        which = ops[number].meeting
        if which >= CHAINED:
            kinds[stream[number]] |= 1
            continue
        kinds[stream[number]] |= 2
        meeting = meetings[which]
        meeting.members += 1
        if node[number] == number:
            meeting.op, meeting.lead, meeting.alpha = number, stream[number], alpha[row[number]]
            meeting.load = load[row[number]] if load[row[number]] >= 0 else NONE
            meeting.kind = taking[row[number]]
            meeting.waits = waits[meeting.kind]
    first = 0
    for which in range(len(meetings)):
        meetings[which].first = first
        first += meetings[which].members
    for number in range(len(ops)):
        if ops[number].meeting < CHAINED:
            meeting = meetings[ops[number].meeting]
            # Counted up to all members, which is where a simulation begins.
            members[meeting.first + meeting.missing] = stream[number]
            meeting.missing += 1
    at, busy = 0, 0
    for number in range(len(devices)):
        device = devices[number]
        device.first_compute = at
        for one in range(first_stream[number], first_stream[number + 1]):
            streams[one].device = number
            if kinds[one]:
                ready[busy] = one
                busy += 1
            if kinds[one] & 1:
                beside[at] = one
                at += 1
        device.first_communication = at
        for one in range(first_stream[number], first_stream[number + 1]):
            if kinds[one] & 2:
                beside[at] = one
                at += 1
        device.end = at
    return busy
