"""The inside of a template: needs among its own slots, derived once for all blocks that it is issued in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simpar.program.closure import NONE, Closure, Flags, latest
from simpar.program.template import EMPTY, Ints, Template
from simpar.program.touches import Touches, dataflow


@dataclass(frozen=True, slots=True, eq=False)
class Inner:
    """What is inside a template's blocks; slots are counted from the block's first.

    Arguments:
        count: shape [slots], needs of each slot.
        need: shape [needs], by slot, the latest first.
        clock: shape [slots, streams], the latest slot of every other stream that must have finished before each.
        behind: shape [slots, streams], whether a slot is on a stream or comes behind one that is.
        ahead: shape [slots, streams], whether a slot is on a stream or comes ahead of one that is.
        edge: shape [slots], whether a slot is the first or last of its stream.
        meets: shape [streams, streams], whether a need joins two.
    """

    count: Ints
    need: Ints
    clock: NDArray[np.int32]
    behind: Flags
    ahead: Flags
    edge: Flags
    meets: Flags


def inner(template: Template, touches: Touches, after: Ints, streams: int) -> Inner:
    """The inside of a template.

    Arguments: ``after``, shape [k, 2], pairs of slots that keep their order whatever the tensors say.
    """
    count, stream = len(template), template.stream
    later, before = EMPTY, EMPTY
    # On one stream, order implies every need.
    if (stream != stream[0]).any():
        later, before = _pairs(template, touches)
        later, before = latest(np.append(later, after[:, 0]), np.append(before, after[:, 1]), stream, streams)
    closure = Closure(stream, later, before, streams)
    # A need that another implies is left out once for all blocks of the template.
    kept = ~closure.implied(later, before)
    clock = closure.clock
    own = stream[:, None] == np.arange(streams)
    last = np.where(own, np.arange(count)[:, None], NONE).max(axis=0, initial=NONE)
    # The last slot of a stream knows most: what it does not know, none of the stream does.
    knows = np.where(last[:, None] >= 0, clock[last], NONE).T
    edge = np.zeros(count, dtype=bool)
    edge[last[last >= 0]] = True
    first = np.empty(streams, dtype=np.int64)
    # Of several assignments to one place numpy keeps the last, so that reversed order leaves the first slot of a
    # stream.
    first[stream[::-1]] = np.arange(count)[::-1]
    edge[first[stream]] = True
    meets = np.zeros((streams, streams), dtype=bool)
    meets[stream[later], stream[before]] = True
    return Inner(
        count=np.bincount(later[kept], minlength=count),
        need=before[kept],
        clock=clock,
        behind=own | (clock >= 0),
        ahead=own | (knows[stream] >= np.arange(count)[:, None]),
        edge=edge,
        meets=meets | meets.T,
    )


def _pairs(template: Template, touches: Touches) -> tuple[Ints, Ints]:
    """Pairs (slot, slot that it must come after) by tensors, within one block."""
    slot, touch = touches.of(template.op_class)
    tensor = touches.tensor[touch]
    return dataflow(slot, template.buffers(slot, tensor, touches.per_rank[tensor]), touches.changes[touch])
