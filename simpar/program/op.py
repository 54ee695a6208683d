"""An op class: what one kind of work does, for every micro-batch and copy that it is done for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

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
