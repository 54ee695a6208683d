"""Needs from dataflow: which slots must have finished before a slot may start, and no more of them than necessary.

A slot must come after the last writer of what it reads, and after the readers and the last writer of what it writes or
frees. Streams are in order, so a need that stream order or another need implies is left out (vector clocks over
streams). The list is walked twice: what the second step needs of the first are the carry needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simpar.program.op import OpClass
from simpar.program.tensor import PER_RANK, Tensor

Instance = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot before it is put into arrays.

    Arguments: ``after``, earlier slots that must have finished too, whatever the tensors say.
    """

    op_class: int
    stream: int
    micro_batch: int = 0
    copy: int = 0
    after: tuple[int, ...] = ()


@dataclass(slots=True)
class _History:
    """Who last wrote an instance of a tensor, and who has read it since."""

    writer: int = -1
    readers: list[int] = field(default_factory=list)


def instance(tensor: Tensor, micro_batch: int, copy: int) -> Instance:
    """The key of the buffer that a slot of this micro-batch and copy uses."""
    return (tensor.name, -1, -1) if tensor.kind in PER_RANK else (tensor.name, micro_batch, copy)


def derive(
    slots: list[Slot], op_classes: tuple[OpClass, ...], tensors: dict[str, Tensor], streams: int
) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Needs of every slot, and carry needs as pairs (slot, slot of the step before).

    Arguments: ``slots`` in issue order; ``streams``, how many streams there are.
    """
    count = len(slots)
    history: dict[Instance, _History] = {}
    clocks: list[list[int]] = []
    head = [[-1] * streams for _ in range(streams)]
    needs: list[list[int]] = [[] for _ in range(count)]
    carry: list[tuple[int, int]] = []
    for position in range(2 * count):
        slot = slots[position % count]
        clock = head[slot.stream][:]
        wanted = _touch(position, slot, op_classes[slot.op_class], tensors, history)
        wanted.update(position - position % count + earlier for earlier in slot.after)
        for need in sorted(wanted, reverse=True):
            if clock[slots[need % count].stream] >= need:
                continue
            clock = [max(pair) for pair in zip(clock, clocks[need], strict=True)]
            if position >= count and need < count:
                carry.append((position - count, need))
            elif position < count:
                needs[position].append(need)
        clock[slot.stream] = position
        clocks.append(clock)
        head[slot.stream] = clock
    return needs, sorted(carry)


def _touch(
    position: int, slot: Slot, op: OpClass, tensors: dict[str, Tensor], history: dict[Instance, _History]
) -> set[int]:
    """The slots that this one must come after; records what it reads, writes and frees."""
    before: set[int] = set()
    changed = op.writes + op.accumulates + op.frees
    for name in op.reads:
        past = history.setdefault(instance(tensors[name], slot.micro_batch, slot.copy), _History())
        before.add(past.writer)
        past.readers.append(position)
    for name in changed:
        past = history.setdefault(instance(tensors[name], slot.micro_batch, slot.copy), _History())
        before.update(past.readers)
        before.add(past.writer)
    for name in changed:
        history[instance(tensors[name], slot.micro_batch, slot.copy)] = _History(writer=position)
    return before - {-1, position}
