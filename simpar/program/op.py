"""Tensors of a program and classes of its ops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

# A tensor of a program: its logical shape, which shard of it a rank holds, and how long it lives.

# A partition of the ranks into groups that communicate among themselves.


Ranks = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Ranks → (group, position), as one array.

    Arguments: ``name``; ``groups_GP``, shape [groups, size]: row g lists the ranks of group g by position.
    Every rank stands in exactly one group.
    """

    name: str
    groups_GP: Ranks

    @property
    def size(self) -> int:
        """Ranks in a group."""
        return int(self.groups_GP.shape[1])

    def place(self, rank: int) -> tuple[int, int]:
        """The group of a rank and its position there."""
        # Every rank stands in exactly one group, so that the first hit is the only one.
        group, position = np.argwhere(self.groups_GP == rank)[0]
        return int(group), int(position)

    def members(self, rank: int) -> tuple[int, ...]:
        """The ranks of this rank's group, by position."""
        return tuple(int(r) for r in self.groups_GP[self.place(rank)[0]])


def grid(world: int, degrees: dict[str, int]) -> dict[str, Partition]:
    """Partitions of ``world`` ranks laid out on a mesh.

    Arguments: ``degrees``, axis name → size, outermost first, as in torch's DeviceMesh: the last axis is that of
    neighbouring ranks. Their product must be ``world``. Axes of size 1 give no partition.
    """
    mesh = np.arange(world, dtype=np.int32).reshape(tuple(degrees.values()))
    partitions = {}
    for axis, (name, size) in enumerate(degrees.items()):
        if size > 1:
            # With its axis last, each row of the flattened mesh is one group by position.
            partitions[name] = Partition(name, np.moveaxis(mesh, axis, -1).reshape(-1, size))
    return partitions


TensorKind = Literal['parameter', 'gradient', 'state', 'input', 'activation', 'gathered', 'view']
KINDS: Final[tuple[TensorKind, ...]] = ('parameter', 'gradient', 'state', 'input', 'activation', 'gathered', 'view')
"""Gathered: a parameter, or the input of a full step, gathered from its shards for as long as it is used. View: a shard
of a full parameter, in the parameter's own memory."""
PER_RANK: Final = frozenset({'parameter', 'gradient', 'state', 'gathered', 'view'})
"""Kinds of which a rank holds one; of the others it holds one per micro-batch and copy."""

BYTES: Final = {'fp64': 8, 'fp32': 4, 'tf32': 4, 'fp16': 2, 'bf16': 2, 'fp8': 1, 'int64': 8, 'int32': 4, 'bool': 1}


class Split(NamedTuple):
    """A rank at position i of its group of ``partition`` holds the i-th of equal slices along ``dim``."""

    dim: int
    partition: str


@dataclass(frozen=True, slots=True)
class Tensor:
    """One logical tensor.

    Arguments:
        shape: the logical shape over all ranks and copies of one micro-batch.
        splits: applied in order.
        partial: the partitions over which the true value is still to be summed.
        batch_dim: inputs and activations are also split along it into the program's copies, after all splits; None:
            every copy sees the full tensor.
        initial: how a parameter or state is first filled, e.g. ``normal:0.02``, ``zeros``, ``ones``.
        like: the parameter that a gradient, state, gathered parameter or view belongs to. An input has it where it is
            that of a full step, of all micro-batches and copies, drawn as the input that it names.
        members: the tensors that a *packed* tensor of one dim holds: a rank's part of each of them, flattened, one
            behind the other, then zeros up to a length that the ranks of its split divide. A packed parameter or state
            whose ``initial`` is ``members`` is filled as its members would be.
        fill: the share of its elements that a device has in use, of the rank that has most: below 1 where it has room
            for more tokens than a router sends. Machines that compute hold all of it; prices and memory count this.
        host: it lies in the memory of the host.
        apart: members of a packed one lie in memory of their own: zeros behind them are there while it is gathered.
    """

    name: str
    kind: TensorKind
    shape: tuple[int, ...]
    dtype: str
    splits: tuple[Split, ...] = ()
    partial: tuple[str, ...] = ()
    batch_dim: int | None = None
    initial: str = ''
    like: str = ''
    members: tuple[str, ...] = ()
    fill: float = 1.0
    host: bool = False
    apart: bool = False

    def local_shape(self, partitions: Mapping[str, Partition], copies: int = 1) -> tuple[int, ...]:
        """Give the shape of the shard that one rank holds, of one copy where copies split it.

        Arguments: ``partitions``, by name, of the ranks that the tensor is split over.
        """
        shape = list(self.shape)
        for split in self.splits:
            shape[split.dim] //= partitions[split.partition].size
        if self.batch_dim is not None:
            # Copies come last: they split what a rank has left of the batch.
            shape[self.batch_dim] //= copies
        return tuple(shape)


def kind_number(tensor: Tensor) -> int:
    """The number of a tensor's kind in ``KINDS``."""
    return KINDS.index(tensor.kind)


def is_batched(tensor: Tensor) -> bool:
    """Whether copies split a tensor."""
    return tensor.batch_dim is not None


def is_per_rank(tensor: Tensor) -> bool:
    """Whether a rank has one of it, for all micro-batches and copies."""
    return tensor.kind in PER_RANK


def is_packed(tensor: Tensor) -> bool:
    """Whether a tensor is gathered into one buffer, padding and all."""
    return bool(tensor.members) and tensor.kind in ('parameter', 'view')


# An op class: what one kind of work does, for every micro-batch and copy that it is done for.

OpKind = Literal['compute', 'collective', 'send', 'recv']
Phase = Literal['F', 'I', 'W', 'U']
OP_KINDS: Final[tuple[OpKind, ...]] = ('compute', 'collective', 'send', 'recv')
PHASES: Final[tuple[Phase, ...]] = ('F', 'I', 'W', 'U')
Attribute = int | float | str | bool


@dataclass(frozen=True, slots=True)
class OpClass:
    """One row of the table of op classes.

    Arguments:
        name: unique, e.g. ``layer0.qkv.F``; spans are joined on it.
        kind: compute, collective, send or recv.
        operator: the kernel (``matmul``, ``attention``, ...) or the collective (``all_reduce``, ...).
        phase: F forward, I gradient of the input, W gradient of the weight, U update, as in the pipeline papers.
        dims: the local dims that cost tables are keyed by (m, n, k; batch, sequence, heads, ...), on one rank for one
        copy. flops: floating-point operations on one rank. bytes: compute: bytes moved to and from device memory on
        one rank. Communication: the full vector, i.e. the
            input of an all-reduce, reduce-scatter or all-to-all, the output of an all-gather, the message of a send.
        dtype: of the computation or the message.
        partition: the partition whose groups communicate; for compute, empty.
        peer: send and recv: offset of the peer's position in the group.
        reduce: ``sum`` or ``max`` for reducing collectives.
        reads, writes, accumulates, frees: names of tensors, in the order that the kernel takes and gives them.
            ``accumulates`` adds to the tensor where it exists and creates it where not; ``frees`` ends it after the op.
        attributes: what the kernel must know besides tensors, e.g. ``{'causal': True, 'dim': 1}``.
        stage: of the pipeline, that it belongs to.
    """

    name: str
    kind: OpKind
    operator: str
    phase: Phase
    dims: dict[str, int] = field(default_factory=dict)
    flops: float = 0.0
    bytes: float = 0.0
    dtype: str = 'fp32'
    partition: str = ''
    peer: int = 0
    reduce: str = ''
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    accumulates: tuple[str, ...] = ()
    frees: tuple[str, ...] = ()
    attributes: dict[str, Attribute] = field(default_factory=dict)
    stage: int = 0

    def freeing(self, frees: tuple[str, ...]) -> OpClass:
        """The same, which frees these tensors."""
        # ``replace`` of dataclasses takes three times as long, and lowering frees with every fourth op.
        return OpClass(
            self.name, self.kind, self.operator, self.phase, self.dims, self.flops, self.bytes, self.dtype,
            self.partition, self.peer, self.reduce, self.reads, self.writes, self.accumulates, frees, self.attributes,
            self.stage,
        )  # fmt: skip

    @property
    def part(self) -> Phase:
        """The phase whose action does it: what is recomputed belongs to the backward."""
        # A clone keeps phase F, as its kernel and its price are the forward's.
        return 'I' if 'recompute' in self.attributes else self.phase

    @property
    def cost_key(self) -> tuple[object, ...]:
        """What decides its isolated seconds: op classes with equal keys cost the same."""
        # Dicts of equal items compare equal in any order, tuples do not.
        dims = tuple(sorted(self.dims.items()))
        return (
            self.kind,
            self.operator,
            self.phase,
            dims,
            self.flops,
            self.bytes,
            self.dtype,
            self.partition,
            self.peer,
        )


def computes(op: OpClass) -> bool:
    """Whether an op is no communication."""
    return op.kind == 'compute'


def transfers(op: OpClass) -> bool:
    """Whether an op goes from one rank to another: a send or a receive."""
    return op.kind in ('send', 'recv')


def receives(op: OpClass) -> bool:
    """Whether an op is a receive."""
    return op.kind == 'recv'
