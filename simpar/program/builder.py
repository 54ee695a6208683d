"""Builds a Program: append slots in issue order by the names of their op classes; needs come from dataflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from simpar.errors import ProgramError
from simpar.program.needs import derive
from simpar.program.op import OpClass
from simpar.program.program import Program
from simpar.program.role import Role, Slots, plain_slots
from simpar.program.tensor import Partition, Tensor
from simpar.program.touches import Touches, touches_of


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
        rows = [(self._index[slot[0]], number[slot[1]], slot[2], slot[3]) for slot in issued]
        after = [(place, one) for place, slot in enumerate(issued) for many in slot[4:] for one in many]
        # reshape keeps four columns where there are no slots at all.
        op_class, stream, micro_batch, copy = np.array(rows, dtype=np.int64).reshape(-1, 4).T
        pairs = np.array(after, dtype=np.int64).reshape(-1, 2)
        self.add_slots(name, ranks, plain_slots(op_class, stream, micro_batch, copy, pairs), streams)

    def add_slots(self, name: str, ranks: Sequence[int], slots: Slots, streams: tuple[str, ...]) -> None:
        """Add a role of these ranks whose slots are templates, block after block.

        Arguments: ``slots``, whose op classes are numbered as they were added, see ``index``; and its streams as here.
        """
        self._roles.append((name, streams, slots, ranks))

    @property
    def index(self) -> Mapping[str, int]:
        """By name, the number of each op class in its table."""
        return self._index

    def build(
        self, micro_batches: int = 1, copies: int = 1, notes: tuple[str, ...] = (), *, batched: bool = False
    ) -> Program:  # fmt: skip
        """The frozen Program, its needs derived."""
        role_of_rank = np.zeros(self._world, dtype=np.int32)
        for index, (*_, ranks) in enumerate(self._roles):
            # Lowering names every rank; one that a hand-made program leaves out falls to the first role.
            role_of_rank[list(ranks)] = index
        tables = Program(
            roles=(),
            role_of_rank=role_of_rank,
            partitions=dict(self._partitions),
            op_classes=tuple(self._op_classes.values()),
            tensors=tuple(self._tensors.values()),
            micro_batches=micro_batches,
            copies=copies,
            notes=notes,
            batched=batched,
        )
        touches = touches_of(tables.named, tables.tensors)
        return tables.with_roles([_role(name, streams, slots, touches) for name, streams, slots, _ in self._roles])


def _role(name: str, streams: tuple[str, ...], slots: Slots, touches: Touches) -> Role:
    need, carry = derive(slots, touches, len(streams))
    return Role(name, streams, *slots.columns, need, carry)
