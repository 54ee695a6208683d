"""Arrows from each send to its receive, between the ranks of one file."""

from __future__ import annotations

from collections.abc import Iterator

from simpar.kineto.rank import STREAMS, Event, Style, nanoseconds
from simpar.metrics import Meetings
from simpar.trace import Trace


def transfers(trace: Trace, ranks: list[int], style: Style) -> Iterator[Event]:
    """An arrow for each send of the last step whose receiver is shown too, at most ``most_arrows`` for a rank."""
    meetings = Meetings(trace.program)
    for rank in ranks:
        role = trace.program.role(rank)
        sends = [slot for slot in range(len(role)) if trace.program.op(role, slot).kind == 'send']
        pairs = [(slot, *meetings.of(rank, slot)[1]) for slot in sends]
        shown = [pair for pair in pairs if pair[1] in ranks][: style.most_arrows]
        for number, (slot, peer, receive) in enumerate(shown):
            identity = (style.first_pid + rank) * style.most_arrows + number
            arrow = {'cat': 'transfer', 'name': 'transfer', 'id': identity}
            yield {'ph': 's', **arrow, **_end(trace, rank, slot, style, at_end=False)}
            yield {'ph': 'f', 'bp': 'e', **arrow, **_end(trace, peer, receive, style, at_end=True)}


def _end(trace: Trace, rank: int, slot: int, style: Style, *, at_end: bool) -> Event:
    """Where an arrow begins, with the send, or ends, just inside of the receive."""
    rank_times = trace.times_of(rank)
    start, end = nanoseconds(float(rank_times.start_KS[-1, slot])), nanoseconds(float(rank_times.end_KS[-1, slot]))
    tid = STREAMS + int(trace.program.role(rank).stream[slot])
    return {'pid': style.first_pid + rank, 'tid': tid, 'ts': (max(start, end - 1) if at_end else start) / 1000}
