"""Touches: which tensors op classes read and change, and which instances of them slots use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from simpar.program.csr import Csr
from simpar.program.op import OpClass
from simpar.program.tensor import PER_RANK, Tensor, is_per_rank

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
NONE = -1
Instance = tuple[str, int, int]


def instance(tensor: Tensor, micro_batch: int, copy: int) -> Instance:
    """The key of the buffer that a slot of this micro-batch and copy uses."""
    return (tensor.name, -1, -1) if tensor.kind in PER_RANK else (tensor.name, micro_batch, copy)


@dataclass(frozen=True, eq=False)
class Touches:
    """What op classes do to tensors.

    Arguments:
        named: as of ``named_by``.
        per_rank: by tensor: whether a rank has one of it, for all micro-batches and copies.
    """

    named: Csr
    per_rank: Flags


def named_by(op_classes: Iterable[OpClass], tensors: Sequence[Tensor]) -> Csr:
    """For each op class four lists: the numbers of the tensors that it reads, writes, accumulates to and frees."""
    number = {tensor.name: place for place, tensor in enumerate(tensors)}
    lists = [names for op in op_classes for names in (op.reads, op.writes, op.accumulates, op.frees)]
    item = np.array(list(map(number.__getitem__, chain.from_iterable(lists))), dtype=np.int64)
    return Csr.counted(np.array(list(map(len, lists)), dtype=np.int64), item)


def touches_of(named: Csr, tensors: Sequence[Tensor]) -> Touches:
    """The touches of op classes. Arguments: ``named``, as of ``named_by`` with these tensors."""
    return Touches(named, np.array([is_per_rank(tensor) for tensor in tensors], dtype=bool))
