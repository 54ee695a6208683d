"""The event loop as a kernel.

A stream has at most one op in progress, so what goes on is kept by stream, not by op; of what communicates, by the
stream of the op that leads its node. A stream has at most one event, so the heap is as long as there are streams.
Arithmetic and instants are those of ``event_loop``; the order in which things of one instant are looked at is not, for
no result depends on it.
"""
# The kernel is long: numba inlines no closure, and calls that pass forty arrays would cost more than the work.

from __future__ import annotations

from typing import Final

import numpy as np

from simpar.engine.compiled.heap import push, sift_down
from simpar.engine.compiled.jit import Array, kernel
from simpar.engine.compiled.speeds import fill
from simpar.engine.compiled.touch import touch_computing, touch_transferring

HELPERS: Final = '2e9f10a039dcca75'
"""Of heap.py, jit.py, speeds.py and touch.py, as a test says it: numba's cache on disk looks at this file alone."""
ROUND: Final = 2.0**12
"""As in ``event_loop``: added and taken away again, it rounds a lesser time to the grid."""
NONE: Final = -1
STATIC: Final = np.dtype(
    [
        ('seconds', 'f8'), ('alpha', 'f8'), ('beside', 'f8'), ('node', 'i4'), ('stream', 'i4'),
        ('representative', 'i4'), ('kind', 'i4'), ('first_after', 'i4'), ('after', 'i4'), ('first_member', 'i4'),
        ('members', 'i4'), ('computes', 'i4'), ('free', 'i4'),
    ]
)  # fmt: skip
"""What is known of an op and, at its number, of a node: 64 bytes, one line of a cache.

Of an op its ``node``, ``stream``, ``representative`` and whether it ``computes``. Of a node its costs; the row of its
loads, ``kind``, -1 where it has none; where the ops behind it and its own ops begin, and how many there are.
"""

# What a stream's event means.
_ISSUED: Final = 0
_LATENT: Final = 1
_ENDS: Final = 2
_MEETS: Final = 3
"""No event: it waits for its peers."""


@kernel
def events(
    steps: int,
    waiting_slows: bool,
    static: Array,
    ops_item: Array,
    after_item: Array,
    waits_first: Array,
    waits_other: Array,
    load_start: Array,
    load_link: Array,
    load_demand: Array,
    streams: int,
    compute_start: Array,
    compute_item: Array,
    comm_start: Array,
    comm_item: Array,
    link_count: int,
    issued: Array,
    end: Array,
) -> int:
    """Write when each node ends, shape [steps, N]; return how many ended.

    Arguments, by op or node of one step where nothing else is said:
        static: of type ``STATIC``.
        ops_item, after_item: of nodes their ops, and the ops that come after them, + N where in the next step.
        waits_first, waits_other: how many nodes an op comes after, in the first step and in others.
        load_start, load_link, load_demand: rows of loads.
        streams: how many there are. compute_start, compute_item; comm_start, comm_item: of each representative those
            that ever compute, and that ever communicate.
        issued: shape [steps, N], when hosts have issued ops.
    """
    count = len(static)
    waits = np.empty((steps, count), dtype=np.int32)
    waits[0] = waits_first
    for step in range(1, steps):
        waits[step] = waits_other
    # By node: how many of its ops have not arrived in the step that it is in; steps of a node never overlap.
    missing = np.empty(count, dtype=np.int32)
    for node in range(count):
        missing[node] = static[node].members
    # by stream; current and step tell the op that heads it
    current, step_of = np.full(streams, NONE, dtype=np.int64), np.zeros(streams, dtype=np.int64)
    meaning = np.zeros(streams, dtype=np.int8)
    remaining, speed = np.zeros(streams), np.zeros(streams)
    since, top = np.zeros(streams), np.zeros(streams)
    slowed = np.zeros(streams, dtype=np.bool_)
    computing = np.zeros(streams, dtype=np.bool_)
    transfers = np.full(streams, NONE, dtype=np.int64)
    on_links = np.zeros(streams, dtype=np.bool_)
    marked = np.zeros(streams, dtype=np.bool_)
    touched, begun = np.empty(streams, dtype=np.int64), np.empty(streams, dtype=np.int64)
    touched_count, begun_count = 0, 0
    # the heap
    time, heap = np.zeros(streams), np.empty(streams, dtype=np.int64)
    place = np.full(streams, NONE, dtype=np.int64)
    size = 0
    # by representative
    communicating = np.zeros(len(compute_start) - 1, dtype=np.int64)
    computing_count = np.zeros(len(compute_start) - 1, dtype=np.int64)
    transfer_count = np.zeros(len(compute_start) - 1, dtype=np.int64)
    # by stream, its flow's entries on links: as many as the widest load
    widest = 0
    for row in range(len(load_start) - 1):
        widest = max(widest, load_start[row + 1] - load_start[row])
    entries = np.arange(streams + 1) * widest
    entry_link = np.full(streams * widest, NONE, dtype=np.int64)
    entry_demand = np.zeros(streams * widest)
    entry_stream = np.empty(streams * widest, dtype=np.int64)
    for stream in range(streams):
        for entry in range(entries[stream], entries[stream + 1]):
            entry_stream[entry] = stream
    entry_next = np.full(streams * widest, NONE, dtype=np.int64)
    entry_before = np.full(streams * widest, NONE, dtype=np.int64)
    head = np.full(link_count, NONE, dtype=np.int64)
    links = np.empty(link_count, dtype=np.int64)
    on_link = np.zeros(link_count, dtype=np.bool_)
    left, share, demands = np.zeros(link_count), np.zeros(link_count), np.zeros(link_count)
    flows = np.empty(streams, dtype=np.int64)
    in_flows = np.zeros(streams, dtype=np.bool_)
    speeds = np.zeros(streams)
    # ops that have arrived, and streams that end, at this instant
    arrived, arrived_step = np.empty(streams, dtype=np.int64), np.empty(streams, dtype=np.int64)
    arrived_count = 0
    for op in range(count):
        if waits[0, op] == 0:
            arrived[arrived_count], arrived_step[arrived_count] = op, 0
            arrived_count += 1
    now = 0.0
    ended = 0
    while True:
        # Everything of this instant: arrivals, and what ends with them.
        while True:
            if arrived_count:
                arrived_count -= 1
                own, step = arrived[arrived_count], arrived_step[arrived_count]
                op = static[own]
                stream = op.stream
                current[stream], step_of[stream] = own, step
                # The host may be behind the device: an op cannot start before it has been launched.
                issue = issued[step, own]
                if issue > now:
                    meaning[stream] = _ISSUED
                    size = push(time, heap, place, size, stream, issue)
                    continue
            elif size and time[heap[0]] == now:
                stream = heap[0]
                place[stream] = NONE
                size -= 1
                if size:
                    sift_down(time, heap, place, size, 0, heap[size])
                own, step = current[stream], step_of[stream]
                op = static[own]
                if meaning[stream] == _ENDS:
                    # The end of a compute op, or of the node that this stream leads, whose number is the op's.
                    end[step, own] = now
                    ended += 1
                    speed[stream] = 0.0
                    if op.computes:
                        if computing[stream]:
                            computing[stream] = False
                            device = op.representative
                            computing_count[device] -= 1
                            if computing_count[device] == 0 and transfer_count[device]:
                                touched_count = touch_transferring(
                                    device, comm_start, comm_item, transfers, marked, touched, touched_count
                                )
                        current[stream] = NONE
                    else:
                        if on_links[stream]:
                            on_links[stream] = False
                            for entry in range(entries[stream], entries[stream + 1]):
                                link = entry_link[entry]
                                if link < 0:
                                    break
                                before, behind = entry_before[entry], entry_next[entry]
                                if before >= 0:
                                    entry_next[before] = behind
                                else:
                                    head[link] = behind
                                if behind >= 0:
                                    entry_before[behind] = before
                                # Their ceilings are as before, but their shares are not.
                                other = head[link]
                                while other >= 0:
                                    neighbour = entry_stream[other]
                                    top[neighbour] = 0.0
                                    if not marked[neighbour]:
                                        marked[neighbour] = True
                                        touched[touched_count] = neighbour
                                        touched_count += 1
                                    other = entry_next[other]
                        for index in range(op.first_member, op.first_member + op.members):
                            member = static[ops_item[index]]
                            device, of_member = member.representative, member.stream
                            if transfers[of_member] >= 0:
                                transfers[of_member] = NONE
                                transfer_count[device] -= 1
                            current[of_member] = NONE
                            communicating[device] -= 1
                            if communicating[device] == 0:
                                touched_count = touch_computing(
                                    device, compute_start, compute_item, computing, marked, touched, touched_count
                                )
                    for index in range(op.first_after, op.first_after + op.after):
                        later, then = after_item[index], step
                        if later >= count:
                            later, then = later - count, step + 1
                            if then == steps:
                                continue
                        left_of = waits[then, later] - 1
                        waits[then, later] = left_of
                        if left_of == 0:
                            arrived[arrived_count], arrived_step[arrived_count] = later, then
                            arrived_count += 1
                    continue
            else:
                break
            # An op that the host has issued, at the head of its stream; or a node whose latency is over.
            device = op.representative
            if op.computes:
                lasts = op.seconds
                if lasts == 0.0:
                    meaning[stream] = _ENDS
                    size = push(time, heap, place, size, stream, now)
                    continue
                if computing_count[device] == 0 and transfer_count[device]:
                    touched_count = touch_transferring(
                        device, comm_start, comm_item, transfers, marked, touched, touched_count
                    )
                computing_count[device] += 1
                computing[stream] = True
                remaining[stream] = lasts
                meaning[stream] = _ENDS
                begun[begun_count] = stream
                begun_count += 1
                continue
            node = op.node
            leader = static[node]
            lead = leader.stream
            begins = now
            if meaning[stream] != _LATENT:
                missing[node] -= 1
                meaning[stream] = _MEETS
                # NCCL's kernels spin while they wait for peers, and so slow compute before they transfer anything.
                if waiting_slows:
                    communicating[device] += 1
                    if communicating[device] == 1:
                        touched_count = touch_computing(
                            device, compute_start, compute_item, computing, marked, touched, touched_count
                        )
                if missing[node]:
                    continue
                missing[node] = leader.members
                if not waiting_slows:
                    for index in range(leader.first_member, leader.first_member + leader.members):
                        device = static[ops_item[index]].representative
                        communicating[device] += 1
                        if communicating[device] == 1:
                            touched_count = touch_computing(
                                device, compute_start, compute_item, computing, marked, touched, touched_count
                            )
                begins = now + leader.alpha
                since[lead], remaining[lead], speed[lead] = begins, leader.seconds, 0.0
                if leader.seconds == 0.0:
                    meaning[lead] = _ENDS
                    size = push(time, heap, place, size, lead, begins)
                    continue
                # Only what has links waits for its latency by an event: from then on others must share with it.
                if leader.kind >= 0 and begins > now:
                    meaning[lead] = _LATENT
                    size = push(time, heap, place, size, lead, begins)
                    continue
            # It transfers.
            meaning[lead] = _ENDS
            row = leader.kind
            if row >= 0:
                top[lead] = 0.0
                on_links[lead] = True
                at = entries[lead]
                for index in range(load_start[row], load_start[row + 1]):
                    link = load_link[index]
                    entry_link[at], entry_demand[at] = link, load_demand[index]
                    entry_before[at], entry_next[at] = NONE, head[link]
                    if head[link] >= 0:
                        entry_before[head[link]] = at
                    head[link] = at
                    at += 1
                if at < entries[lead + 1]:
                    entry_link[at] = NONE
            # A collective that compute does not slow need not hear of it.
            if leader.beside < 1.0:
                for index in range(leader.first_member, leader.first_member + leader.members):
                    member = static[ops_item[index]]
                    transfers[member.stream] = lead
                    transfer_count[member.representative] += 1
            if not marked[lead]:
                marked[lead] = True
                touched[touched_count] = lead
                touched_count += 1
        # Speeds are solved when the instant is over: what ends and begins at once must not look like a change.
        for index in range(begun_count):
            stream = begun[index]
            op = static[current[stream]]
            slow = communicating[op.representative] > 0
            slowed[stream], since[stream] = slow, now
            lasts = remaining[stream] / op.beside if slow else remaining[stream]
            size = push(time, heap, place, size, stream, now + lasts + ROUND - ROUND)
        begun_count = 0
        flow_count = 0
        for index in range(touched_count):
            stream = touched[index]
            marked[stream] = False
            # Touched and ended at the same instant; or a new op heads the stream, which looked by itself.
            if current[stream] < 0 or meaning[stream] != _ENDS:
                continue
            op = static[current[stream]]
            if op.computes:
                if not computing[stream]:
                    continue
                slow = communicating[op.representative] > 0
                if slow == slowed[stream]:
                    continue
                before_speed = 1.0 if slow else op.beside
                remaining[stream] = max(remaining[stream] - before_speed * (now - since[stream]), 0.0)
                slowed[stream], since[stream] = slow, now
                lasts = remaining[stream] / op.beside if slow else remaining[stream]
                size = push(time, heap, place, size, stream, now + lasts + ROUND - ROUND)
                continue
            if op.seconds == 0.0:
                continue
            ceiling = 1.0
            for item in range(op.first_member, op.first_member + op.members):
                if computing_count[static[ops_item[item]].representative]:
                    ceiling = op.beside
                    break
            if not on_links[stream]:
                if ceiling != speed[stream]:
                    if now > since[stream]:
                        remaining[stream] = max(remaining[stream] - speed[stream] * (now - since[stream]), 0.0)
                        since[stream] = now
                    speed[stream] = ceiling
                    size = push(
                        time, heap, place, size, stream, since[stream] + remaining[stream] / ceiling + ROUND - ROUND
                    )
            elif ceiling != top[stream]:
                top[stream] = ceiling
                flows[flow_count] = stream
                flow_count += 1
        touched_count = 0
        if flow_count:
            flow_count = fill(
                flows, flow_count, head, entry_next, entry_stream, entries, entry_link, entry_demand, links, on_link,
                in_flows, left, share, demands, top, speeds,
            )  # fmt: skip
            for index in range(flow_count):
                stream = flows[index]
                if speeds[stream] != speed[stream]:
                    if now > since[stream]:
                        remaining[stream] = max(remaining[stream] - speed[stream] * (now - since[stream]), 0.0)
                        since[stream] = now
                    speed[stream] = speeds[stream]
                    due = since[stream] + remaining[stream] / speed[stream] + ROUND - ROUND
                    size = push(time, heap, place, size, stream, due)
        if not size:
            return ended
        now = time[heap[0]]
