"""What one rank holds over a steady step: bytes by kind, by operator, by slice; the peak and its op."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simpar.distinct import distinct
from simpar.memory.lifetimes import NONE, Lifetimes
from simpar.program import Program, Role
from simpar.program.rows import column, stand
from simpar.program.tensor import KINDS as TENSOR_KINDS
from simpar.trace import RankTimes, Times

Ints = NDArray[np.int64]
Slice = tuple[int, int]
Key = TypeVar('Key')
BUFFER: Final = 'buffer'
KINDS: Final = ('parameter', 'state', 'gradient', 'gathered', 'activation', 'input', BUFFER)
"""The kinds of a program's tensors, and the buffers of fused collectives, in the order in which they are told."""


class Live(NamedTuple):
    """A tensor that a rank holds at some time; ``micro_batch`` and ``copy`` are -1 where it belongs to none."""

    tensor: str
    kind: str
    operator: str
    micro_batch: int
    copy: int
    bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Bytes over the time of a step.

    Arguments:
        names: the names of the columns.
        times: seconds from the step's begin, shape [n + 1], from 0 to the step's length.
        bytes: shape [n, columns], held between a time and the next.
    """

    names: tuple[str, ...]
    times: Times
    bytes: Ints

    @property
    def total(self) -> Ints:
        """Shape [n]: all columns together."""
        return np.asarray(self.bytes.sum(axis=1))

    def at(self, time: float) -> dict[str, int]:
        """What is held just after a time."""
        row = self.bytes[int(np.searchsorted(self.times[:-1], time, side='right')) - 1].tolist()
        return dict(zip(self.names, row, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The moment at which a rank holds most.

    Arguments:
        bytes: held then. time: seconds from the step's begin, the first time that it comes to this.
        action: the op whose start brings it about (the one that allocates most, where several start at once).
        kinds: bytes by kind; operators: of the activations, bytes by the operator that wrote them.
        slices: of activations and inputs that do not live always, bytes by (micro-batch, copy).
    """

    bytes: int
    time: float
    action: str
    kinds: dict[str, int]
    operators: dict[str, int]
    slices: dict[Slice, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class RankMemory:
    """What a rank holds over the last step of a trace.

    Arguments:
        rank: the (first) rank; ``ranks``, how many hold the same at the same times; ``step``, seconds.
        lives: what lives from which slot to which.
        since, until: seconds from the step's begin, shape [lives], folded into the step.
        wraps: shape [lives], how often a life runs over the end of the step; 1 for what lives always.
        starts: seconds at which the slots start (receives: arrive), folded into the step, shape [slots].
    """

    rank: int
    ranks: int
    step: float
    program: Program
    role: Role
    lives: Lifetimes
    since: Times
    until: Times
    wraps: Ints
    starts: Times = field(repr=False)

    def by_kind(self) -> Timeline:
        """Bytes by kind."""
        return self._stack(*_labels(self._kinds, KINDS))

    def by_operator(self) -> Timeline:
        """Bytes by kind, activations by the operator that wrote them."""
        return self._stack(*_labels([self._operator(row) or kind for row, kind in enumerate(self._kinds)], ()))

    def by_slice(self) -> Timeline:
        """Bytes of activations and inputs that do not live always; columns are named ``micro-batch.copy``."""
        mine = np.flatnonzero(self._passing)
        pairs = [f'{self.lives.micro_batch[row]}.{self.lives.copy[row]}' for row in mine.tolist()]
        return self._stack(*_labels(pairs, ()), mine)

    def live(self, time: float) -> list[Live]:
        """Every tensor that is held just after a time, as rows of name, kind, writer's operator and bytes."""
        return [self._told(row) for row in np.flatnonzero(self._count(time)).tolist()]

    @property
    def always(self) -> int:
        """Bytes that are held at all times."""
        return int(self.lives.bytes[self.lives.always].sum())

    @property
    def peak_bytes(self) -> int:
        """Bytes that it holds at the peak."""
        return self._most[0]

    @cached_property
    def _most(self) -> tuple[int, float]:
        """How many bytes it holds at most, and when."""
        held = self._stack(np.zeros(len(self.lives), dtype=np.int64), ('',))
        total, times = held.bytes[:, 0], held.times
        # Where the most is held over the end of the step, it began with a rise, not with the step.
        rises = (total == total.max()) & (np.roll(total, 1) < total)
        return int(total.max()), float(times[int(np.argmax(rises))])

    @cached_property
    def peak(self) -> Peak:
        """The moment at which the rank holds most."""
        most, time = self._most
        there = self._count(time) > 0
        rows, passing = np.flatnonzero(there).tolist(), np.flatnonzero(there & self._passing).tolist()
        size, kinds = self.lives.bytes, self._kinds
        operators = {row: self._operator(row) for row in rows}
        micro_batch, copy = self.lives.micro_batch, self.lives.copy
        return Peak(
            bytes=most,
            time=time,
            action=self.program.action(self.role, self._brings(time)),
            kinds=_sums((kinds[row], size.item(row)) for row in rows),
            operators=_sums((operators[row], size.item(row)) for row in rows if operators[row]),
            slices=_sums(((micro_batch.item(row), copy.item(row)), size.item(row)) for row in passing),
        )

    def share_that_fits(self, size: float) -> float:
        """The largest share of the batch with which the step stays below ``size`` bytes; above 1 where more would fit.

        Parameters, gradients, states and buffers stay, activations and inputs grow with the batch. 0 where nothing
        fits. Not modelled: ops that begin and end in another order with another batch.
        """
        fixed, growing = self._fixed_and_growing()
        if (fixed > size).any():
            return 0.0
        # Where nothing grows, any batch fits.
        room = np.divide(size - fixed, growing, out=np.full(len(growing), np.inf), where=growing > 0)
        return float(room.min())

    @property
    def peak_without_batch(self) -> int:
        """The most bytes that it holds of what does not grow with the batch."""
        return int(self._fixed_and_growing()[0].max())

    def _fixed_and_growing(self) -> tuple[Ints, Ints]:
        """Bytes over time that stay with any batch, and that grow with it."""
        # The last entry is for index -1: a buffer, which does not grow with the batch.
        sliced = np.append(column(self.program.tensors, lambda tensor: tensor.batch_dim is not None, np.bool_), False)
        grows = self._passing & sliced[self.lives.tensor]
        held = self._stack(grows.astype(np.int64), ('fixed', 'growing')).bytes
        return held[:, 0], held[:, 1]

    @property
    def _passing(self) -> NDArray[np.bool_]:
        """Which lives belong to a micro-batch and end."""
        return np.asarray((self.lives.micro_batch != NONE) & ~self.lives.always)

    @cached_property
    def _kinds(self) -> list[str]:
        kinds = (*TENSOR_KINDS, BUFFER)
        # The buffer comes last, so that its index -1 finds it.
        numbers = np.append(
            column(self.program.tensors, lambda one: kinds.index(one.kind), np.int64), len(TENSOR_KINDS)
        )
        return [kinds[number] for number in numbers[self.lives.tensor].tolist()]

    def _operator(self, row: int) -> str:
        """The operator that wrote a life, where it is an activation."""
        if self._kinds[row] != 'activation':
            return ''
        op_class = self.role.op_class.item(self.lives.writer.item(row))
        return stand(self.program.op_classes, op_class).operator

    def _told(self, row: int) -> Live:
        """A life in words."""
        lives, tensor = self.lives, int(self.lives.tensor[row])
        return Live(
            tensor=BUFFER if tensor == NONE else self.program.tensors[tensor].name,
            kind=self._kinds[row],
            operator=self._operator(row),
            micro_batch=int(lives.micro_batch[row]),
            copy=int(lives.copy[row]),
            bytes=int(lives.bytes[row]),
        )

    def _stack(self, labels: Ints, names: tuple[str, ...], rows: slice | Ints = slice(None)) -> Timeline:
        """Bytes of some lives over time, summed by label."""
        since, until, size = self.since[rows], self.until[rows], self.lives.bytes[rows]
        # The times at which something begins or ends.
        edges = distinct(np.concatenate(([0.0], since, until)))
        held = np.zeros((len(edges), len(names)), dtype=np.int64)
        # ``add.at``, not ``+=``: several lives may begin at one edge, and indexed addition would count one of them.
        np.add.at(held, (np.searchsorted(edges, since), labels), size)
        np.subtract.at(held, (np.searchsorted(edges, until), labels), size)
        # What lives over the end of the step is there at its begin.
        np.add.at(held[0], labels, size * self.wraps[rows])
        return Timeline(names, np.append(edges, self.step), np.cumsum(held, axis=0))

    def _count(self, time: float) -> Ints:
        """How often each life is there just after a time."""
        return np.asarray(self.wraps + (self.since <= time) - (self.until <= time))

    def _brings(self, time: float) -> int:
        """The slot that allocates most at a time."""
        slots = self.lives.begin[(self.since == time) & ~self.lives.always]
        size = self.lives.bytes[(self.since == time) & ~self.lives.always]
        # The peak lasts from the step before: nothing begins at this moment.
        if not len(slots):
            return int(np.argmin(self.starts))
        return int(np.argmax(np.bincount(slots, weights=size)))


def rank_memory(
    program: Program, rank_times: RankTimes, ranks: int, lives: Lifetimes, window: tuple[float, float]
) -> RankMemory:
    """What a representative rank holds over its last step, whose ``window`` is (begin, end) in the trace's seconds."""
    begin, end = window
    step = end - begin
    role = program.role(rank_times.rank)
    receives = _receives(program)[role.op_class]
    # A receive is posted with a buffer to receive into.
    begins_KS = np.where(receives, rank_times.arrive_KS, rank_times.start_KS)
    starts, ends = begins_KS[-1], rank_times.end_KS[-1]
    # With a single step, the step before is taken to be like it.
    earlier = begins_KS[-2] if len(begins_KS) > 1 else starts - step
    since = np.where(lives.before, earlier[lives.begin], starts[lives.begin])
    first, since = fold(np.where(lives.always, begin, since) - begin, step)
    last, until = fold(np.where(lives.always, end, ends[lives.end]) - begin, step)
    return RankMemory(
        rank=rank_times.rank,
        ranks=ranks,
        step=step,
        program=program,
        role=role,
        lives=lives,
        since=since,
        until=until,
        wraps=last - first,
        starts=fold(starts - begin, step)[1],
    )


@lru_cache(maxsize=2)
def _receives(program: Program) -> NDArray[np.bool_]:
    """Shape [op classes], which are receives; all ranks ask."""
    return column(program.op_classes, lambda op: op.kind == 'recv', np.bool_)


def fold(times: Times, step: float) -> tuple[Ints, Times]:
    """Times as (which step, seconds from its begin)."""
    if step <= 0:
        return np.zeros(len(times), dtype=np.int64), np.zeros(len(times))
    which = np.floor(times / step)
    # Rounding of the quotient can put a time into a neighbouring step; the remainder shows it.
    rest = times - which * step
    which += (rest >= step).astype(float) - (rest < 0)
    return which.astype(np.int64), times - which * step


def _labels(labels: list[str], names: tuple[str, ...]) -> tuple[Ints, tuple[str, ...]]:
    """Labels as numbers into names; without names given, those in use, in the order of the alphabet."""
    names = names or tuple(sorted(set(labels)))
    number = {name: index for index, name in enumerate(names)}
    return np.array([number[label] for label in labels], dtype=np.int64), names


def _sums(rows: Iterable[tuple[Key, int]]) -> dict[Key, int]:
    """Sums by key, largest first."""
    sums: dict[Key, int] = {}
    for key, size in rows:
        sums[key] = sums.get(key, 0) + size
    # Sorting is stable, so equal sums stay in the order of the tensors.
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
