"""Needs from dataflow: which slots must have finished before a slot may start, and no more of them than necessary.

A slot must come after the last writer of what it reads, and after the readers and the last writer of what it writes or
frees. A need that stream order or other needs imply is left out, so needs are the transitive reduction of that order.
Two steps are looked at: what the second needs of the first are the carry needs.

Needs inside of a block are derived once for its template. Those between blocks meet in a *frame*: the slots that have
such needs, and the first and last slot of each stream in every block, joined by what the inside of blocks implies. Of a
few slots both steps are looked at in one go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from simpar.machine_code import is_started
from simpar.program.between import Between, Pairs
from simpar.program.closure import NONE, Closure, Flags, latest
from simpar.program.csr import Csr
from simpar.program.inner import Inner, inner
from simpar.program.template import EMPTY, Ints, Slots, Template
from simpar.program.touches import Touches, dataflow

SMALL: Final = 2048
"""Up to so many slots needs are found sooner without the templates; they are the same."""
_CELLS: Final = 2**20
"""Up to so many pairs of a buffer and a stream the kernel looks at."""


def derive(slots: Slots, touches: Touches, streams: int) -> tuple[Csr, Csr]:
    """Needs by slot, the latest first; and carry needs by slot, slots of the step before, the earliest first.

    Arguments: ``touches`` of the op classes; ``streams``, how many streams there are.
    """
    if not len(slots):
        return Csr.of(EMPTY, EMPTY, 0), Csr.of(EMPTY, EMPTY, 0)
    if len(slots) > SMALL:
        return by_template(slots, touches, streams)
    return compiled(slots, touches, streams) if is_started() else at_once(slots, touches, streams)


def at_once(slots: Slots, touches: Touches, streams: int) -> tuple[Csr, Csr]:
    """The same, where every slot is looked at by itself."""
    count, template = len(slots), slots.as_one().templates[0]
    later, before = _shared(template, touches)
    again = np.concatenate((slots.after, slots.after + count)).T
    later, before = np.append(later, again[0]), np.append(before, again[1])
    # Slots without pairs only stand between others of their stream.
    stays = np.zeros(2 * count, dtype=bool)
    stays[later] = stays[before] = True
    members, number = np.flatnonzero(stays), np.cumsum(stays) - 1
    stream = np.append(template.stream, template.stream)[members]
    later, before = latest(number[later], number[before], stream, streams)
    kept = ~Closure(stream, later, before, streams).implied(later, before)
    later, before = members[later[kept]], members[before[kept]]
    # A need between slots of the second step is known from the first.
    own, carried = later < count, (later >= count) & (before < count)
    # Carry needs are kept by the earliest slot, the one that ends first in the step before.
    order = np.flatnonzero(carried)[np.argsort(before[carried], kind='stable')]
    return Csr.of(later[own], before[own], count), Csr.of(later[order] - count, before[order], count)


def compiled(slots: Slots, touches: Touches, streams: int) -> tuple[Csr, Csr]:
    """The same as of ``at_once``, by a kernel."""
    from simpar.program.kernels import find_needs

    count, own = len(slots), slots.columns
    copies = int(own.copy.max()) + 1
    instances = (int(slots.micro_batches.max()) + 1) * copies
    buffers = len(touches.per_rank) * instances
    # One stream has no needs, and would be another kind of array.
    if streams == 1 or streams * buffers > _CELLS:
        return at_once(slots, touches, streams)
    # A buffer has the last touch of each stream and the last change; behind all slots, streams have what they know.
    shapes = (buffers, streams + 1), (2 * count, streams), (2 * count + streams, streams)
    touched, latest_of, clock = (np.full(shape, NONE, dtype=np.int32) for shape in shapes)
    kept = np.empty((2 * count, streams), dtype=bool)
    starts, items = np.empty((2, count + 1), dtype=np.int32), np.empty((2, count * streams), dtype=np.int32)
    needs = find_needs(
        *own, touches.named.start, touches.named.item, touches.per_rank, slots.after.ravel(), copies, instances,
        touched, latest_of, clock, kept, starts[0], items[0], starts[1], items[1],
    )  # fmt: skip
    carried = starts.item(-1)
    return Csr(starts[0].copy(), items[0, :needs].copy()), Csr(starts[1].copy(), items[1, :carried].copy())


def _shared(template: Template, touches: Touches) -> tuple[Ints, Ints]:
    """Pairs (slot, slot that it must come after) by what slots of several streams touch, in two steps."""
    slot, touch = touches.of(template.op_class)
    tensor, stream = touches.tensor[touch], template.stream[slot]
    one = np.zeros(len(touches.per_rank), dtype=np.int64)
    one[tensor] = stream
    shared = np.zeros(len(one), dtype=bool)
    shared[tensor[stream != one[tensor]]] = True
    # On one stream, order implies every need.
    mine = shared[tensor]
    slot, tensor, changes = slot[mine], tensor[mine], touches.changes[touch[mine]]
    key = template.buffers(slot, tensor, touches.per_rank[tensor])
    return dataflow(np.append(slot, slot + len(template)), np.append(key, key), np.append(changes, changes))


def by_template(slots: Slots, touches: Touches, streams: int) -> tuple[Csr, Csr]:
    """The same, where what blocks of one template have in common is found once."""
    after = _after(slots)
    insides = [inner(template, touches, own, streams) for template, own in zip(slots.templates, after, strict=True)]
    between = Between(slots, touches, insides, streams)
    needs, carried = _Frame(slots, insides, between, streams).kept(*between.pairs())
    return _with(_inside(slots, insides), *needs), Csr.of(*carried, len(slots))


def _after(slots: Slots) -> list[Ints]:
    """For each template the pairs of slots that keep their order whatever the tensors say."""
    found = [np.zeros((0, 2), dtype=np.int64)] * len(slots.templates)
    if len(slots.after):
        block = np.searchsorted(slots.start, slots.after, side='right') - 1
        first = np.empty(len(slots.templates), dtype=np.int64)
        first[slots.which[::-1]] = np.arange(len(slots.which))[::-1]
        for number, one in enumerate(first.tolist()):
            # Pairs inside of a block are equal in all blocks of a template, so those of its first block are enough.
            found[number] = slots.after[(block == one).all(axis=1)] - slots.start[one]
    return found


def _inside(slots: Slots, insides: Sequence[Inner]) -> Csr:
    """The needs inside of all blocks."""
    lengths = np.array([len(of.need) for of in insides], dtype=np.int64)[slots.which]
    need = slots.spread([of.need for of in insides]) + np.repeat(slots.start[:-1], lengths)
    return Csr.counted(slots.spread([of.count for of in insides]), need)


def _with(inside: Csr, slot: Ints, before: Ints) -> Csr:
    """Needs of earlier blocks put behind those of the own block, which are all later."""
    if not len(slot):
        return inside
    # The latest first: whoever waits looks at it first, and mostly need not look at the others.
    order = np.lexsort((-before, slot))
    slot, before = slot[order], before[order]
    count = inside.count + np.bincount(slot, minlength=len(inside))
    return Csr.counted(count, np.insert(inside.item, inside.start[slot + 1], before))


class _Frame:
    """Tells which pairs of slots of different blocks are needs.

    Its members are numbered in issue order; those of the second step are numbered on.
    """

    def __init__(self, slots: Slots, insides: Sequence[Inner], between: Between, streams: int) -> None:
        self._slots = slots
        self._insides = insides
        self._between = between
        self._streams = streams

    def kept(self, later: Ints, before: Ints) -> tuple[Pairs, Pairs]:
        """The needs among pairs of slots; and the carry needs, as pairs of slots of their own steps."""
        if not len(later):
            return (EMPTY, EMPTY), (EMPTY, EMPTY)
        slot, block, stream, joined = self._members(later, before)
        count, slots = len(slot), len(self._slots)
        step = later >= slots
        later = np.searchsorted(slot, later - slots * step) + count * step
        before = np.searchsorted(slot, before)
        # Needs inside the second step are the same as in the first; with both, a path through either is seen.
        again = np.column_stack((later[~step], before[~step])) + count
        later, before = np.concatenate((joined, joined + count, again, np.column_stack((later, before)))).T
        stream = np.append(stream, stream)
        later, before = latest(later, before, stream, self._streams)
        closure = Closure(stream, later, before, self._streams)
        # A need between slots of the second step is known from the first.
        kept = ~closure.implied(later, before) & (before < count)
        # Carry needs are kept by the earliest slot, the one that ends first in the step before.
        order = np.argsort(before[kept], kind='stable')
        later, before = later[kept][order], before[kept][order]
        carried = later >= count
        # Pairs of one block came into the frame only to carry paths; its needs are known from the template.
        apart = ~carried & (block[later % count] != block[before])
        return (slot[later[apart]], slot[before[apart]]), (slot[later[carried] - count], slot[before[carried]])

    def _members(self, later: Ints, before: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """The slots that have pairs and the edges of all blocks: slots, blocks, streams; and who comes after whom."""
        slots, between = self._slots, self._between
        ends = np.append(between.in_template(later), between.in_template(before))
        stays = np.concatenate([of.edge for of in self._insides])
        stays[ends] = True
        # Most streams of communication are joined to compute alone; a frame without them is small.
        stays &= ~self._aside(between.stream[ends])[between.stream]
        bounds = slots.base.tolist()
        places, joined = [], []
        for of, begin, end in zip(self._insides, bounds[:-1], bounds[1:], strict=True):
            places.append(np.flatnonzero(stays[begin:end]))
            joined.append(_joined(of, places[-1], between.stream[begin:end]))
        count = np.array([len(own) for own in places], dtype=np.int64)[slots.which]
        block = np.repeat(np.arange(len(count)), count)
        place = slots.spread(places)
        pairs = np.array([len(own) for own in joined], dtype=np.int64)[slots.which]
        first = np.repeat(np.cumsum(count) - count, pairs)
        after = np.concatenate([joined[template] for template in slots.which.tolist()]) + first[:, None]
        stream = between.stream[slots.base[slots.which][block] + place]
        return slots.start[block] + place, block, stream, after

    def _aside(self, busy: Ints) -> Flags:
        """Streams that need not be in the frame: without pairs, and joined to one other stream alone.

        A path that leaves that one for a while would have come as far without.
        """
        partners = np.logical_or.reduce([of.meets for of in self._insides]).sum(axis=1)
        # A stream with pairs of its own always stays.
        partners[busy] = self._streams
        return np.asarray(partners <= 1)


def _joined(of: Inner, places: Ints, stream: Ints) -> Ints:
    """Pairs of members of a block, numbered from its first: the latest on each stream that must come before.

    Arguments: ``places``, members among the slots of the block; ``stream``, of those slots.
    """
    clock = of.clock[places]
    member, on = np.nonzero((clock >= 0) & (stream[places, None] != np.arange(clock.shape[1])))
    if not len(member):
        return np.zeros((0, 2), dtype=np.int64)
    number = np.full(of.clock.shape, NONE, dtype=np.int64)
    number[places, stream[places]] = np.arange(len(places))
    # For each slot the latest member at or before it on each stream, by number.
    number = np.maximum.accumulate(number, axis=0)
    # At least the first slot of a stream is a member, unless none of them is.
    before = number[clock[member, on], on]
    there = before != NONE
    return np.column_stack((member[there], before[there]))
