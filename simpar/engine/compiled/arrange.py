"""Records of a graph, as the event loop walks them."""

from __future__ import annotations

from typing import Final

from simpar.engine.compiled.records import CHAINED, COMPUTES, NEXT_STEP, NONE, SEVERAL
from simpar.jit import Array, kernel, part

HELPERS: Final = 'd08741290bae2600'
"""Of the files without this line, as a test says it: numba's cache on disk looks at a kernel's own file alone."""


@kernel
def arrange(
    node: Array, leads: Array, computes: Array, need_start: Array, need_item: Array, carry_start: Array,
    carry_item: Array, stream: Array, stream_start: Array, stream_item: Array, first_stream: Array, row: Array,
    seconds: Array, beside: Array, alpha: Array, load: Array, needed: Array, kinds: Array, ops: Array, needs: Array,
    meetings: Array, members: Array, devices: Array, on_device: Array, streams: Array, ready: Array,
) -> int:  # fmt: skip
    """Write all that the event loop begins with; return how many streams have ops.

    Arguments: node to first_stream: as of ``Ops`` and ``Graph``. row to load: as of ``NodeCosts``. needed, kinds: of
    each op and stream zeros, which are used up. ops to ready: as of ``World``, ``on_device`` its ``beside``.
    """
    for number in range(len(devices)):
        for one in range(first_stream[number], first_stream[number + 1]):
            head = streams[one]
            head.op, head.device, head.place, head.lead, head.behind = NONE, number, NONE, NONE, NONE
    _arrange_ops(
        node, leads, computes, need_start, need_item, carry_start, carry_item, stream_start, stream_item, row, seconds,
        beside, needed, ops, needs, streams,
    )  # fmt: skip
    _arrange_meetings(ops, node, stream, row, alpha, load, first_stream, kinds, meetings, members, devices, on_device)
    busy = 0
    for one in range(len(streams)):
        if streams[one].op != NONE:
            ready[busy] = one
            busy += 1
    return busy


@part
def _arrange_ops(
    node: Array,
    leads: Array,
    computes: Array,
    need_start: Array,
    need_item: Array,
    carry_start: Array,
    carry_item: Array,
    stream_start: Array,
    stream_item: Array,
    row: Array,
    seconds: Array,
    beside: Array,
    needed: Array,
    ops: Array,
    needs: Array,
    streams: Array,
) -> None:
    """Write ops, their lists of needs, and the first op of each stream; meetings are numbered by the ops that lead.

    Arguments, by op where nothing else is said:
        node, leads, computes; rows of needs, and of needs of the step before: as of ``Ops`` and ``Graph``.
        stream_start, stream_item: of each stream its ops; of none behind the last that has any.
        row: as of ``NodeCosts``; seconds, beside: of its rows.
        needed: is used up.
    """
    meetings, at = 0, 0
    for number in range(len(ops)):
        op = ops[number]
        op.seconds, op.beside, op.waiter = seconds[row[number]], beside[row[number]], NONE
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
            elif index + 1 < end and computes[following] and ops[following].need == NONE and not needed[number]:
                op.meeting = CHAINED
            else:
                op.meeting = COMPUTES


@part
def _arrange_meetings(
    ops: Array,
    node: Array,
    stream: Array,
    row: Array,
    alpha: Array,
    load: Array,
    first_stream: Array,
    kinds: Array,
    meetings: Array,
    members: Array,
    devices: Array,
    beside: Array,
) -> None:
    """Write meetings with their streams, and devices with theirs.

    Arguments:
        ops: as ``_arrange_ops`` writes them.
        node, stream: of each op; row: as of ``NodeCosts``; alpha, load: of its rows.
        first_stream: of each device, and at last how many streams there are.
        kinds: of each stream, 1 where it ever computes, + 2 where it ever communicates; 0 at first.
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
    at = 0
    for number in range(len(devices)):
        device = devices[number]
        device.first_compute = at
        for one in range(first_stream[number], first_stream[number + 1]):
            if kinds[one] & 1:
                beside[at] = one
                at += 1
        device.first_communication = at
        for one in range(first_stream[number], first_stream[number + 1]):
            if kinds[one] & 2:
                beside[at] = one
                at += 1
        device.end = at
