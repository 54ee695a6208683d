"""A rank's tensors on a device, and when the host may drop them.

Allocators of devices give memory back to the stream that it was allocated on, as soon as the host drops the tensor. So
a tensor that the program has freed on one stream is kept until the stream that will reuse its memory was made to wait
for that: this is known from the program's needs alone, and the host waits for nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from executor.devices.open import Device
from executor.ranks.real import FedMemory, Start
from simpar.program import Instance, OpClass, instance

Pair = tuple[torch.Tensor, torch.Tensor]
INPUT: Final = -1
"""The owner of inputs: the stream that copies them, whose memory is kept until the step is over."""


@dataclass(slots=True)
class Dropped:
    """Tensors that the program has freed, by the stream that owns their memory, until that stream may reuse it.

    Arguments: ``known``, shape [2 × slots, streams], as of ``validate.clocks``; ``slots`` of a step.
    """

    known: NDArray[np.int64]
    slots: int
    _waiting: dict[int, list[tuple[int, int, torch.Tensor]]] = field(default_factory=dict)

    def add(self, owner: int, stream: int, position: int, tensor: torch.Tensor) -> None:
        """Freed by the op at a position, of all steps, on a stream."""
        self._waiting.setdefault(owner, []).append((stream, position, tensor))

    def reusable(self, owner: int, step: int, slot: int) -> Iterator[torch.Tensor]:
        """Give up what an op on the owning stream may reuse: whatever freed it is over when the op starts."""
        waiting = self._waiting.get(owner)
        if not waiting:
            return
        # In the second of two steps: positions of the first are those of the step before.
        row, shift = self.known[self.slots + slot], (step - 1) * self.slots
        kept = []
        for entry in waiting:
            stream, position, tensor = entry
            last = int(row[stream])
            if stream == owner or (last >= 0 and last + shift >= position):
                yield tensor
            else:
                kept.append(entry)
        self._waiting[owner] = kept

    def over(self, position: int) -> Iterator[torch.Tensor]:
        """Give up what ops before a position have freed, once the host knows that all of them are over."""
        for owner, waiting in self._waiting.items():
            yield from (tensor for _, at, tensor in waiting if at < position)
            self._waiting[owner] = [entry for entry in waiting if entry[1] >= position]


class DeviceMemory(FedMemory):
    """The tensors of one rank.

    Arguments: ``known``, what each slot knows to be over, see ``Dropped``.
    """

    def __init__(self, start: Start, device: Device, known: NDArray[np.int64]) -> None:
        super().__init__(start)
        self._first = start.first
        self._device = device
        self._dropped = Dropped(known, len(start.program.role(start.rank)))
        # By storage: the stream that owns it, and how many tensors here share it.
        self._owners: dict[int, list[int]] = {}
        self._inputs: dict[int, list[torch.Tensor]] = {}
        self._place = (0, 0)
        for key, tensor in self._tensors.items():
            self._tensors[key] = self._hold(tensor.to(device.name), 0)

    def feed(self, step: int) -> list[torch.Tensor]:
        """Copy a step's inputs to the device, on the current stream; where they are.

        Arguments: ``step``, counted from the first of the run, as everywhere on a device.
        """
        copied = self._inputs[step] = []
        for key, shard in self.shards(step):
            moved = shard.to(self._device.name, non_blocking=True)
            copied.append(moved)
            old = self._tensors.get(key)
            self._tensors[key] = self._hold(moved, INPUT)
            self._drawn[key] = self._first + step
            if old is not None:
                self._release(old)
        return copied

    def shards(self, step: int) -> Iterator[tuple[Instance, torch.Tensor]]:
        """A step's inputs on the host, in memory from which a copy is asynchronous."""
        number = self._first + step
        for tensor, micro_batch, copy in self._inputs_of_step():
            shard = self._feed.pop(((tensor.name, micro_batch, copy), number), None)
            if shard is None:
                shard = self._start.shard(tensor, number, micro_batch, copy)
            yield instance(tensor, micro_batch, copy), shard.pin_memory() if self._device.kind.pins else shard

    def restored(self, before: Mapping[Instance, torch.Tensor], live: Container[Instance]) -> Iterator[Pair]:
        """Have tensors in the places of before again: of each that has moved and is live, where it is and was.

        Tensors that are not live at the beginning of a step are forgotten.
        """
        for key, tensor in list(self._tensors.items()):
            old = before.get(key)
            if old is tensor:
                continue
            del self._tensors[key]
            if old is not None and key in live:
                yield tensor, old
                self._tensors[key] = self._hold(old, 0)
            self._release(tensor)
        for key in before.keys() - self._tensors.keys():
            self._tensors[key] = self._hold(before[key], 0)

    def instances(self) -> dict[Instance, torch.Tensor]:
        """All tensors that there are."""
        return dict(self._tensors)

    def at(self, step: int, slot: int, stream: int) -> None:
        """The next op to be issued; what it may reuse is dropped."""
        self._place = (step * self._dropped.slots + slot, stream)
        for tensor in self._dropped.reusable(stream, step, slot):
            self._release(tensor)

    def over(self, step: int) -> None:
        """The host knows that a step is over."""
        self._inputs.pop(step, None)
        for tensor in self._dropped.over((step + 1) * self._dropped.slots):
            self._release(tensor)

    def keep(self, op: OpClass, micro_batch: int, copy: int, results: Sequence[torch.Tensor]) -> None:
        """Store what an op gives, as of ``Memory``; what it replaces was freed by it."""
        for index, (name, result) in enumerate(zip(op.writes + op.accumulates, results, strict=True)):
            key = instance(self._program.tensor[name], micro_batch, copy)
            old = self._tensors.get(key)
            if index >= len(op.writes) and old is not None:
                old.add_(result)
                continue
            self._tensors[key] = self._hold(result, self._place[1])
            if old is not None:
                self._let_go(old)

    def free(self, op: OpClass, micro_batch: int, copy: int) -> None:
        """End what an op frees, as of ``Memory``, though its memory may stay for a while."""
        ended = [instance(self._program.tensor[name], micro_batch, copy) for name in op.frees]
        tensors = [self._tensors.get(key) for key in ended]
        super().free(op, micro_batch, copy)
        for tensor in tensors:
            if tensor is not None:
                self._let_go(tensor)

    def _find(self, op: OpClass, name: str, micro_batch: int, copy: int, step: int) -> torch.Tensor:
        key: Instance = instance(self._program.tensor[name], micro_batch, copy)
        try:
            return self._tensors[key]
        except KeyError:
            raise self._absent(op, 'reads', key) from None

    def _hold(self, tensor: torch.Tensor, stream: int) -> torch.Tensor:
        entry = self._owners.setdefault(storage(tensor), [stream, 0])
        entry[1] += 1
        return tensor

    def _let_go(self, tensor: torch.Tensor) -> None:
        """Drop a tensor as soon as its memory may be reused."""
        owner = self._owners[storage(tensor)][0]
        position, stream = self._place
        # What is on the stream that owns the memory is over when the next op there starts.
        if owner in (stream, INPUT):
            self._release(tensor)
        else:
            self._dropped.add(owner, stream, position, tensor)

    def _release(self, tensor: torch.Tensor) -> None:
        key = storage(tensor)
        self._owners[key][1] -= 1
        if not self._owners[key][1]:
            del self._owners[key]


def storage(tensor: torch.Tensor) -> int:
    """What tells whether two tensors share memory."""
    return int(tensor.untyped_storage()._cdata)
