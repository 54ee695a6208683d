"""What the event loop reads and keeps: records, so that a look at one thing touches one line of a cache."""

from typing import Any, Final, NamedTuple

import numpy as np

from simpar.kernels import Array

OP: Final = np.dtype(
    [
        ('seconds', 'f8'), ('speeds', 'u4'), ('free', 'u4'), ('need', 'u4'), ('next', 'u4'), ('meeting', 'u4'),
        ('waiter', 'u4'),
    ]
)  # fmt: skip
"""An op: isolated seconds; the place of its speeds; a need; the next on its stream; its meeting; who waits.

``waiter`` is the first stream that waits for its end, and names the next of them by ``behind``.
"""
MEETING: Final = np.dtype(
    [
        ('alpha', 'f8'), ('op', 'u4'), ('lead', 'u4'), ('load', 'u4'), ('first', 'u4'), ('members', 'u4'),
        ('missing', 'u4'), ('kind', 'u4'), ('waits', 'u4'),
    ]
)  # fmt: skip
"""A communication: its latency; the op that has its costs, and the stream of that; its row of loads; its kind, and
whether it slows computing while it waits for its peers.

Its streams are so many ``members`` from ``first`` on. How many are ``missing`` is counted once for all steps, for steps
of a meeting never overlap.
"""
DEVICE: Final = np.dtype(
    [
        ('computing', 'u4'), ('communicating', 'u4'), ('transferring', 'u4'), ('first_compute', 'u4'),
        ('first_communication', 'u4'), ('end', 'u4'),
    ]
)  # fmt: skip
"""A representative: how many of its streams compute; a bit for each kind of communication that goes on; how many
streams transfer; where those that ever do are listed."""
STREAM: Final = np.dtype(
    [
        ('since', 'f8'), ('remaining', 'f8'), ('speed', 'f8'), ('op', 'u4'), ('last', 'u4'), ('step', 'u4'),
        ('place', 'u4'), ('lead', 'u4'), ('behind', 'u4'), ('slowing', 'u4'), ('device', 'u4'), ('state', 'u1'),
        ('slowed', 'u1'), ('computing', 'u1'), ('marked', 'u1'), ('checked', 'u4'),
    ]
)  # fmt: skip
"""A stream, of which one op is in progress at most.

The op had ``remaining`` isolated seconds at ``since`` and goes on at ``speed``. ``op`` heads the stream, in ``step``;
``last`` is the last op that is planned. ``place``, on the heap; ``lead``, the stream whose transfer it takes part in;
``behind``, the next stream that waits for the same; ``slowing``, how many devices of its transfer compute; ``checked``,
how many needs of its head have ended for sure.
"""
EVENT: Final = np.dtype([('time', 'f8'), ('stream', 'u4'), ('free', 'u4')])
FLOW: Final = np.dtype([('top', 'f8'), ('speed', 'f8'), ('links', 'u4'), ('solved', 'u4')])
"""The transfer that a stream leads: its ceiling when it was last solved; its fair speed; on how many links it is."""
ENTRY: Final = np.dtype([('demand', 'f8'), ('link', 'u4'), ('before', 'u4'), ('behind', 'u4'), ('stream', 'u4')])
"""A flow on a link, and its neighbours there."""
LINK: Final = np.dtype([('left', 'f8'), ('share', 'f8'), ('demand', 'f8'), ('head', 'u4'), ('seen', 'u4')])
LOOP: Final = np.dtype(
    [('now', 'f8'), ('size', 'u4'), ('ready', 'u4'), ('begun', 'u4'), ('touched', 'u4'), ('over', 'u4'), ('free', 'u4')]
)
"""The time; the lengths of the heap and of lists; how many streams are over."""


class World(NamedTuple):
    """What the event loop works on: what it is given, which it uses up, and what it keeps.

    Arguments:
        steps: how many.
        per_step: how many ops a step has.
        kinds: of communication, by what it takes of its devices.
        widest: how many links a flow has at most; those of stream s begin at s · widest.
        speeds: of an op at a place, 2^kinds numbers: of one that computes, beside each set of kinds, by their bits; of
            a communication, the second is its highest beside computing.
        going: of each device, how many communications of each kind go on.
        ready, begun, touched: lists of streams: to look at; which began to compute at this instant; to solve.
        members: the streams of all meetings.
        needs: lists of needs, each behind its length.
        load_start, load_link, load_demand: rows of loads.
        beside: of each device its streams that ever compute, and then those that ever communicate.
        launches: whether hosts issue ops at times of their own; they do not where they are ops themselves.
        issued: shape [steps · per_step], when they have issued ops; empty where they do not.
        end: of the same shape; where negative, no end is known yet.
        flowing, found: lists of the streams and links whose shares are being solved.
    """

    steps: int
    per_step: np.uint64
    kinds: np.uint64
    launches: bool
    widest: np.uint64
    speeds: Array
    going: Array
    ops: Array
    meetings: Array
    members: Array
    needs: Array
    load_start: Array
    load_link: Array
    load_demand: Array
    devices: Array
    beside: Array
    issued: Array
    end: Array
    streams: Array
    heap: Array
    flows: Array
    entries: Array
    links: Array
    ready: Array
    begun: Array
    touched: Array
    flowing: Array
    found: Array
    loop: Any
