"""Needs from dataflow: which slots must have finished before a slot may start, and no more of them than necessary.

A slot must come after the last writer of what it reads, and after the readers and the last writer of what it writes or
frees. Streams are in order, so a need that stream order or another need implies is left out (vector clocks over
streams). Two steps are looked at: what the second needs of the first are the carry needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simpar.program.op import OpClass
from simpar.program.tensor import PER_RANK, Tensor

Instance = tuple[str, int, int]
Ints = NDArray[np.int64]
Pairs = list[tuple[int, int]]
"""(slot, a slot that must have finished before)."""
Wanted = list[tuple[int, ...]]
"""For each slot those that it must come after."""
Clock = list[int]
"""For each stream the last slot that is known to have finished; -1: none."""
NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """The slots of a role in issue order, before their needs are known; columns of shape [slots].

    Arguments: ``after``, shape [k, 2], pairs (slot, an earlier one that must have finished too, whatever the tensors
    say).
    """

    op_class: Ints
    stream: Ints
    micro_batch: Ints
    copy: Ints
    after: Ints

    def __len__(self) -> int:
        return len(self.op_class)


def instance(tensor: Tensor, micro_batch: int, copy: int) -> Instance:
    """The key of the buffer that a slot of this micro-batch and copy uses."""
    return (tensor.name, -1, -1) if tensor.kind in PER_RANK else (tensor.name, micro_batch, copy)


def derive(
    slots: Slots, op_classes: Sequence[OpClass], tensors: Mapping[str, Tensor], streams: int
) -> tuple[Pairs, Pairs]:
    """Needs, by slot, the latest first; and carry needs as pairs (slot, slot of the step before), sorted.

    Arguments: ``streams``, how many streams there are.
    """
    count = len(slots)
    slot, before = _dataflow(slots, op_classes, tensors)
    same = slot < count
    wanted = _by_slot(
        np.append(slot[same], slots.after[:, 0]), np.append(before[same], slots.after[:, 1]), slots.stream, streams
    )
    carried = (slot >= count) & (before < count)
    wanted_before = _by_slot(slot[carried] - count, before[carried], slots.stream, streams)
    stream = slots.stream.tolist()
    needs, clocks = _needs(wanted, stream, streams)
    carry = _carry(wanted_before, needs, clocks, stream, streams)
    return [(slot, need) for slot, own in enumerate(needs) for need in own], carry


def _touches(slots: Slots, op_classes: Sequence[OpClass], tensors: Mapping[str, Tensor]) -> tuple[Ints, Ints, Ints]:
    """What slots do to instances, in issue order: slot, instance, 1 where the slot changes it; reads come first."""
    used, kind_of = np.unique(slots.op_class, return_inverse=True)
    number: dict[str, int] = {}
    rows = []
    for op in (op_classes[index] for index in used.tolist()):
        names = (*op.reads, *op.writes, *op.accumulates, *op.frees)
        rows.append(
            [(number.setdefault(name, len(number)), place >= len(op.reads)) for place, name in enumerate(names)]
        )
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    count = lengths[kind_of]
    slot = np.repeat(np.arange(len(slots)), count)
    within = np.arange(len(slot)) - np.repeat(np.cumsum(count) - count, count)
    flat = np.array([touch for row in rows for touch in row], dtype=np.int64).reshape(-1, 2)
    tensor, changes = flat[np.repeat((np.cumsum(lengths) - lengths)[kind_of], count) + within].T
    part = slots.micro_batch * (slots.copy.max(initial=0) + 1) + slots.copy
    per_rank = np.array([tensors[name].kind in PER_RANK for name in number], dtype=bool)
    return slot, tensor * (part.max(initial=0) + 1) + np.where(per_rank[tensor], 0, part[slot]), changes


def _dataflow(slots: Slots, op_classes: Sequence[OpClass], tensors: Mapping[str, Tensor]) -> tuple[Ints, Ints]:
    """All pairs (slot, slot that it must come after) of two steps, whose slots are numbered on."""
    slot, key, changes = (np.concatenate((column, column)) for column in _touches(slots, op_classes, tensors))
    slot[len(slot) // 2 :] += len(slots)
    order = np.argsort(key, kind='stable')
    # Behind the last touch stands one of no instance, for those that have no change before or behind them.
    slot, key, changes = slot[order], np.append(key[order], NONE), changes[order]
    change = np.append(np.flatnonzero(changes), len(slot))
    done = np.cumsum(changes)
    last, following = change[done - changes - 1], change[done]
    changed = key[:-1] == key[last]
    read = (key[:-1] == key[following]) & (changes == 0)
    return (
        np.concatenate((slot[changed], slot[following[read]])),
        np.concatenate((slot[last[changed]], slot[read])),
    )


def _by_slot(slot: Ints, before: Ints, stream: Ints, streams: int) -> Wanted:
    """For each slot those that it must come after, the latest of each other stream, the latest first."""
    other = stream[slot] != stream[before]
    slot, before = slot[other], before[other]
    order = np.lexsort((before, stream[before], slot))
    slot, before = slot[order], before[order]
    key = slot * streams + stream[before]
    latest = np.diff(key, append=NONE) != 0
    slot, before = slot[latest], before[latest]
    order = np.lexsort((-before, slot))
    flat = before[order].tolist()
    bounds = np.searchsorted(slot[order], np.arange(len(stream) + 1)).tolist()
    return [tuple(flat[begin:end]) for begin, end in pairwise(bounds)]


def _needs(wanted: Wanted, stream: list[int], streams: int) -> tuple[Wanted, list[Clock]]:
    """Those of the wanted that no other implies; and each slot's clock."""
    head = [[NONE] * streams for _ in range(streams)]
    clocks: list[Clock] = []
    needs = []
    for on, before in zip(stream, wanted, strict=True):
        clock, own = head[on], []
        for need in before:
            if clock[stream[need]] < need:
                clock = _merge(clock, clocks[need], stream[need], need)
                own.append(need)
        needs.append(tuple(own))
        clocks.append(clock)
        head[on] = clock
    return needs, clocks


def _carry(wanted: Wanted, needs: Wanted, before: list[Clock], stream: list[int], streams: int) -> Pairs:
    """Those of the wanted of the step before that no other implies; clocks are of that step.

    Arguments: ``before``, the clocks at its end.
    """
    count = len(stream)
    head = [[NONE] * streams for _ in range(streams)]
    for slot, on in enumerate(stream):
        head[on] = before[slot]
    clocks: list[Clock] = []
    carry = []
    for slot, (on, own) in enumerate(zip(stream, needs, strict=True)):
        clock = head[on]
        for need in own:
            clock = _merge(clock, clocks[need], stream[need], count)
        for need in wanted[slot]:
            if clock[stream[need]] < need:
                clock = _merge(clock, before[need], stream[need], need)
                carry.append((slot, need))
        clocks.append(clock)
        head[on] = clock
    return sorted(carry)


def _merge(clock: Clock, other: Clock, stream: int, slot: int) -> Clock:
    """What is known by who knows two clocks and that a slot has finished."""
    merged = list(map(max, clock, other))
    merged[stream] = slot
    return merged
