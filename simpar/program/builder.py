"""Builds a Program: append slots in issue order by the names of their op classes; needs come from dataflow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from simpar.errors import ProgramError
from simpar.program.needs import Slots, derive
from simpar.program.op import OpClass
from simpar.program.partition import Partition
from simpar.program.program import Program
from simpar.program.role import NONE, Role
from simpar.program.tensor import Tensor


class ProgramBuilder:
    """Collects tables and roles; ``build`` returns the frozen Program."""

    def __init__(self, world: int, partitions: Iterable[Partition] = ()) -> None:
        self._world = world
        self._partitions = {partition.name: partition for partition in partitions}
        self._op_classes: dict[str, OpClass] = {}
        self._index: dict[str, int] = {}
        self._tensors: dict[str, Tensor] = {}
        self._roles: list[tuple[str, tuple[str, ...], Slots, Sequence[int]]] = []

    def add_tensor(self, tensor: Tensor) -> Tensor:
        """Put a tensor into its table."""
        if tensor.name in self._tensors:
            raise ProgramError(f'two tensors are named {tensor.name!r}')
        self._tensors[tensor.name] = tensor
        return tensor

    def add_op_class(self, op: OpClass) -> OpClass:
        """Put an op class into its table."""
        if op.name in self._op_classes:
            raise ProgramError(f'two op classes are named {op.name!r}')
        self._index[op.name] = len(self._op_classes)
        self._op_classes[op.name] = op
        return op

    def add_role(
        self,
        name: str,
        ranks: Sequence[int],
        slots: Iterable[tuple[str, str, int, int] | tuple[str, str, int, int, tuple[int, ...]]],
        streams: tuple[str, ...],
    ) -> None:
        """Add a role of these ranks.

        Arguments: ``slots`` in issue order as (op class name, stream name, micro-batch, copy[, earlier slots that must
        have finished too]).
        """
        number = {stream: index for index, stream in enumerate(streams)}
        issued = list(slots)
        op_class = np.array([self._index[slot[0]] for slot in issued], dtype=np.int64)
        stream = np.array([number[slot[1]] for slot in issued], dtype=np.int64)
        micro_batch = np.array([slot[2] for slot in issued], dtype=np.int64)
        copy = np.array([slot[3] for slot in issued], dtype=np.int64)
        after = [(place, one) for place, slot in enumerate(issued) for many in slot[4:] for one in many]
        pairs = np.array(after, dtype=np.int64).reshape(-1, 2)
        self._roles.append((name, streams, Slots(op_class, stream, micro_batch, copy, pairs), ranks))

    def build(self, micro_batches: int = 1, copies: int = 1, notes: tuple[str, ...] = ()) -> Program:
        """The frozen Program, its needs derived."""
        role_of_rank = np.zeros(self._world, dtype=np.int32)
        for index, (*_, ranks) in enumerate(self._roles):
            role_of_rank[list(ranks)] = index
        return Program(
            roles=tuple(self._role(name, streams, slots) for name, streams, slots, _ in self._roles),
            role_of_rank=role_of_rank,
            partitions=dict(self._partitions),
            op_classes=tuple(self._op_classes.values()),
            tensors=tuple(self._tensors.values()),
            micro_batches=micro_batches,
            copies=copies,
            notes=notes,
        )

    def _role(self, name: str, streams: tuple[str, ...], slots: Slots) -> Role:
        pairs, carry = derive(slots, tuple(self._op_classes.values()), self._tensors, len(streams))
        needs = np.array(pairs, dtype=np.int32).reshape(-1, 2)
        first = np.diff(needs[:, 0], prepend=NONE) != 0
        need = np.full(len(slots), NONE, dtype=np.int32)
        need[needs[first, 0]] = needs[first, 1]
        return Role(
            name=name,
            streams=streams,
            op_class=slots.op_class.astype(np.uint32),
            micro_batch=slots.micro_batch.astype(np.uint16),
            copy=slots.copy.astype(np.uint16),
            stream=slots.stream.astype(np.uint16),
            need=need,
            more=needs[~first],
            carry=np.array(carry, dtype=np.int32).reshape(-1, 2),
        )
