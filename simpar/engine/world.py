"""What the event loop reads and keeps: records, so that a look at one thing touches one line of a cache."""

from typing import Any, Final, NamedTuple

import numpy as np

from simpar.kernels import Array


def record(**fields: tuple[str, ...]) -> np.dtype[Any]:
    """A record of fields, by their type in the words of numpy."""
    return np.dtype([(name, kind) for kind, names in fields.items() for name in names])


OP: Final = record(f8=('seconds',), u4=('speeds', 'free', 'need', 'next', 'meeting', 'waiter'))
"""An op: isolated seconds; the place of its speeds; a need; the next on its stream; its meeting; who waits.

``waiter`` is the first stream that waits for its end, and names the next of them by ``behind``.
"""
MEETING: Final = record(f8=('alpha',), u4=('op', 'lead', 'load', 'first', 'members', 'missing', 'kind', 'waits'))
"""A communication: its latency; the op that has its costs, and the stream of that; its row of loads; its kind, and
whether it slows computing while it waits for its peers.

Its streams are so many ``members`` from ``first`` on. How many are ``missing`` is counted once for all steps, for steps
of a meeting never overlap.
"""
DEVICE: Final = record(u4=('computing', 'communicating', 'transferring', 'first_compute', 'first_communication', 'end'))
"""A representative: how many of its streams compute; a bit for each kind of communication that goes on; how many
streams transfer; where those that ever do are listed."""
STREAM: Final = record(
    f8=('since', 'remaining', 'speed'),
    u4=('op', 'last', 'step', 'place', 'lead', 'behind', 'slowing', 'device', 'checked'),
    u1=('state', 'slowed', 'computing', 'marked'),
)
"""A stream, of which one op is in progress at most.

The op had ``remaining`` isolated seconds at ``since`` and goes on at ``speed``. ``op`` heads the stream, in ``step``;
``last`` is the last op that is planned. ``place``, on the heap; ``lead``, the stream whose transfer it takes part in;
``behind``, the next stream that waits for the same; ``slowing``, how many devices of its transfer compute; ``checked``,
how many needs of its head have ended for sure.
"""
EVENT: Final = record(f8=('time',), u4=('stream', 'free'))
FLOW: Final = record(f8=('top', 'speed'), u4=('links', 'solved'))
"""The transfer that a stream leads: its ceiling when it was last solved; its fair speed; on how many links it is."""
ENTRY: Final = record(f8=('demand',), u4=('link', 'before', 'behind', 'stream'))
"""A flow on a link, and its neighbours there."""
LINK: Final = record(f8=('left', 'share', 'demand'), u4=('head', 'seen'))
LOOP: Final = record(f8=('now',), u4=('size', 'ready', 'begun', 'touched', 'over', 'free'))
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
