"""What one rank holds over a steady step: bytes by kind, by operator, by slice; the peak and its op."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simpar.memory.lifetimes import NONE, Lifetimes, Moments, Window, changes
from simpar.program import KINDS as TENSOR_KINDS
from simpar.program import Program, Role, is_batched, kind_number, receives
from simpar.trace import RankTimes, Times

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Slice = tuple[int, int]
BUFFER: Final = 'buffer'
KINDS: Final = ('parameter', 'state', 'gradient', 'gathered', 'activation', 'input', BUFFER)
"""The kinds of a program's tensors, and the buffers of fused collectives, in the order in which they are told."""


_KINDS: Final = (*TENSOR_KINDS, BUFFER)
"""The same in the order of their numbers."""


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
        times: of the rank, the first of ``ranks`` that hold the same at the same times.
        begin: seconds of the trace at which its last step begins, which lasts ``step``.
        lives: what lives from which slot to which.
    """

    times: RankTimes = field(repr=False)
    ranks: int
    begin: float
    step: float
    program: Program
    lives: Lifetimes

    @property
    def rank(self) -> int:
        """The (first) rank."""
        return self.times.rank

    @property
    def role(self) -> Role:
        """The role whose slots live and die."""
        return self.program.role(self.rank)

    def by_kind(self) -> Timeline:
        """Bytes by kind."""
        return self._stack(*_labels(self._kinds, KINDS))

    def by_operator(self) -> Timeline:
        """Bytes by kind, activations by the operator that wrote them."""
        return self._stack(*_labels([self._operator(row) or kind for row, kind in enumerate(self._kinds)], ()))

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
        moments = self._moments()
        times, total = moments.times, moments.held(moments.change)
        most = total.max()
        full = np.flatnonzero(total == most)
        # Where the most is held over the end of the step, it began with a rise, not with the step.
        rises = full[total[full - 1] < most]
        return int(most), float(times[rises[0] if len(rises) else 0])

    @cached_property
    def peak(self) -> Peak:
        """The moment at which the rank holds most."""
        most, time = self._most
        activations = self._there & (self._numbers == _KINDS.index('activation'))
        passing = self._there & self._passing
        operators: dict[str, int] = {}
        each = [operators.setdefault(op.operator, len(operators)) for op in self.program.op_classes]
        operator = np.array(each, dtype=np.int64)
        wrote = operator[self.role.op_class[self.lives.writer[activations]]]
        size, copies = self.lives.bytes, self.program.copies
        slices = self.lives.micro_batch[passing] * copies + self.lives.copy[passing]
        names = list(operators)
        return Peak(
            bytes=most,
            time=time,
            action=self.peak_action,
            kinds=self.peak_kinds,
            operators={names[one]: held for one, held in _sums(wrote, size[activations])},
            slices={divmod(one, copies): held for one, held in _sums(slices, size[passing])},
        )

    @property
    def peak_action(self) -> str:
        """The op whose start brings the peak about, as of ``Peak``; operators and slices take longer to sum."""
        return self.program.action(self.role, self._brings(self._most[1]))

    @property
    def peak_kinds(self) -> dict[str, int]:
        """Bytes at the peak by kind, as of ``Peak``."""
        there = np.flatnonzero(self._there)
        return {_KINDS[kind]: held for kind, held in _sums(self._numbers[there], self.lives.bytes[there])}

    @cached_property
    def _there(self) -> Flags:
        """Which lives are there at the peak."""
        return self.there(self._most[1])

    def there(self, time: float) -> Flags:
        """Which lives are there just after a time."""
        # Looked up slot by slot, which are few beside lives.
        which, seconds = self._window.folded
        passed = which - (seconds <= time)
        end = self.lives.end + 2 * len(self.role)
        return self.lives.always | (passed.take(end) > passed.take(self._begin))

    def share_that_fits(self, size: float) -> float:
        """The largest share of the batch with which the step stays below ``size`` bytes; above 1 where more would fit.

        Parameters, gradients, states and buffers stay, activations and inputs grow with the batch. 0 where nothing
        fits. Not modelled: ops that begin and end in another order with another batch.
        """
        fixed, growing = self._fixed_and_growing
        if (fixed > size).any():
            return 0.0
        # Where nothing grows, any batch fits.
        room = np.divide(size - fixed, growing, out=np.full(len(growing), np.inf), where=growing > 0)
        return float(room.min())

    @property
    def peak_without_batch(self) -> int:
        """The most bytes that it holds of what does not grow with the batch."""
        return int(self._fixed_and_growing[0].max())

    @cached_property
    def _fixed_and_growing(self) -> tuple[Ints, Ints]:
        """Bytes over time that stay with any batch, and that grow with it."""
        # The last entry is for index -1: a buffer, which does not grow with the batch.
        sliced = np.append(self.program.tensor_column(is_batched, np.bool_), False)
        grows = self._passing & sliced.take(self.lives.tensor)
        moments = self._moments()
        growing = moments.held(changes(self.lives, self.lives.bytes * grows, self._window)[1])
        return moments.held(moments.change) - growing, growing

    @property
    def _passing(self) -> Flags:
        """Which lives belong to a micro-batch and end."""
        return np.asarray((self.lives.micro_batch != NONE) & ~self.lives.always)

    @cached_property
    def _numbers(self) -> Ints:
        """Shape [lives], the number of each one's kind in ``_KINDS``."""
        # The buffer comes last, so that its index -1 finds it.
        numbers = np.append(self.program.tensor_column(kind_number, np.int64), _KINDS.index(BUFFER))
        return numbers.take(self.lives.tensor)

    @cached_property
    def _kinds(self) -> list[str]:
        return [_KINDS[number] for number in self._numbers.tolist()]

    def _operator(self, row: int) -> str:
        """The operator that wrote a life, where it is an activation."""
        if self._kinds[row] != 'activation':
            return ''
        op_class = self.role.op_class.item(self.lives.writer.item(row))
        return self.program.op_classes[op_class].operator

    def _moments(self) -> Moments:
        # Not kept: of a long pipeline it is as large as the trace, and asked for once or twice.
        return Moments.of(*changes(self.lives, self.lives.bytes, self._window))

    @cached_property
    def _window(self) -> Window:
        """When slots start and end in the last step, and start in the one before."""
        begins_KS = self.times.start_KS[-2:]
        if self.program.receives:
            posted = self.program.op_column(receives, np.bool_)[self.role.op_class]
            # A receive is posted with a buffer to receive into.
            begins_KS = np.where(posted, self.times.arrive_KS[-2:], begins_KS)
        # With a single step, the step before is taken to be like it.
        earlier = begins_KS[0] if len(begins_KS) > 1 else begins_KS[-1] - self.step
        return Window(begins_KS[-1], earlier, self.times.end_KS[-1], self.begin, self.step)

    @cached_property
    def _begin(self) -> Ints:
        """Where each life begins, as an index into what a window has folded."""
        return self.lives.begin + len(self.role) * self.lives.before

    def _stack(self, labels: Ints, names: tuple[str, ...]) -> Timeline:
        """Bytes over time, summed by label."""
        moments = self._moments()
        each = (self.lives.bytes * (labels == number) for number in range(len(names)))
        held = [moments.held(changes(self.lives, size, self._window)[1]) for size in each]
        table = np.array(held, dtype=np.int64).reshape(len(names), len(moments.times))
        return Timeline(names, np.append(moments.times, self.step), table.T)

    def _brings(self, time: float) -> int:
        """The slot that allocates most at a time."""
        mine = (self._window.folded[1] == time).take(self._begin) & ~self.lives.always
        # The peak lasts from the step before: nothing begins at this moment.
        if not mine.any():
            return int(np.argmin(self._window.folded[1][: len(self.role)]))
        return int(np.argmax(np.bincount(self.lives.begin[mine], weights=self.lives.bytes[mine])))


def _labels(labels: list[str], names: tuple[str, ...]) -> tuple[Ints, tuple[str, ...]]:
    """Labels as numbers into names; without names given, those in use, in the order of the alphabet."""
    names = names or tuple(sorted(set(labels)))
    number = {name: index for index, name in enumerate(names)}
    return np.array([number[label] for label in labels], dtype=np.int64), names


def _sums(number: Ints, size: Ints) -> list[tuple[int, int]]:
    """The numbers, each with the sum of its sizes, largest first; of equal sums the one that comes first."""
    count = int(number.max(initial=NONE)) + 1
    total, first = np.zeros(count, dtype=np.int64), np.full(count, len(number))
    np.add.at(total, number, size)
    # Of equal places the last one assigned stays: reversed, that is the first.
    first[number[::-1]] = np.arange(len(number))[::-1]
    order = np.flatnonzero(first < len(number))
    order = order[np.lexsort((first[order], -total[order]))]
    return list(zip(order.tolist(), total[order].tolist(), strict=True))
