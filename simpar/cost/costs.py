"""Costs: what a cluster makes of a program's op classes. The engine sees a program and its costs, nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from simpar.hardware import Figure, Grade
from simpar.program import OpClass, Program

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Communication:
    """Isolated cost of one collective (or send and recv pair) in one group: it lasts ``alpha`` + ``transfer``.

    Arguments: ``alpha`` in seconds uses no link and is not stretched; while it transfers (``transfer`` seconds alone)
    it demands of each link the share given in ``links``, pairs (link index, demand), 0 < demand ≤ 1, multiples of 2⁻¹⁰.
    """

    alpha: float
    transfer: float
    links: Sequence[tuple[int, float]] = ()


def entry_of(entries: int, groups: int, group: int, position: int) -> int:
    """Which of an op class's entries is for a group, or for the pair of it whose sender has this position.

    Arguments: ``entries``, how many there are; ``groups`` of the op's partition.
    """
    return group if entries == groups else group * (entries // groups) + position


FREE: Final = 2.0
"""In the place of a speed: neither slows the other."""
MOST_KINDS: Final = 8
"""Kinds of communication, by what they take of their devices."""


@dataclass(frozen=True, slots=True, eq=False)
class Taking:
    """Communication that takes another share of its devices' units and memory than most.

    Arguments (C op classes):
        ops: shape [C], which it is, both ends of a message alike.
        beside: shape [C], speed of a compute op beside it.
        waiting_slows: while it waits for its peers, too.
    """

    ops: NDArray[np.bool_]
    beside: Array
    waiting_slows: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Costs:
    """Isolated seconds of every op class, and what slows what.

    Arguments (C op classes, indexed as in the program; times in seconds on the grid of 2⁻⁴⁰):
        compute: shape [C], isolated seconds on a device of nominal speed; 0 for communication.
        host: shape [C], seconds that the host takes to issue the op.
        beside_communication: shape [C], speed of a compute op while a collective runs on its device, 0 < speed ≤ 1.
        beside_compute: shape [C], highest speed of a collective while any of its devices computes, 0 < speed ≤ 1;
            ``FREE`` of what takes nothing of its devices, and slows no compute.
        communication: op class index → one ``Communication`` for each group of the op's partition; of a send, one for
            each group or one for each of its pairs, (group, position of the sender); see ``entry_of``.
        links: names of the links that ``Communication.links`` indexes.
        rank_speed: shape [world], 1 for a nominal device; compute lasts ``compute / rank_speed``.
        host_step: seconds that the host takes in each step before it issues anything.
        waits: where the host waits for the device, see ``simpar.engine.queues``; empty: nowhere.
        work_queues: how many a device has, see ``simpar.engine.queues``; 0: one for each stream.
        waiting_slows: whether what waits for its peers already slows compute.
        kinds: communication that takes another share of its devices than ``beside_communication`` says; at most seven.
        why: op class index → how its seconds came about, in words.
        grades: grade → seconds of one step's isolated work (a rank's) that rest on numbers of this grade.
    """

    compute: Array
    host: Array
    beside_communication: Array
    beside_compute: Array
    communication: Mapping[int, Sequence[Communication]]
    links: Sequence[str]
    rank_speed: Array
    host_step: float = 0.0
    waits: tuple[str, ...] = ()
    work_queues: int = 0
    waiting_slows: bool = False
    kinds: tuple[Taking, ...] = ()
    why: Mapping[int, str] = field(default_factory=dict)
    grades: dict[str, float] = field(default_factory=dict)

    @property
    def speeds(self) -> Array:
        """Shape [kinds, C], of a compute op beside communication of each kind; the first is that of most."""
        return np.stack((self.beside_communication, *(one.beside for one in self.kinds)))

    @property
    def taking(self) -> Ints:
        """Shape [C], of a communication its kind."""
        kinds = np.zeros(len(self.compute), dtype=np.int64)
        for number, one in enumerate(self.kinds, 1):
            kinds[one.ops] = number
        return kinds

    @property
    def waiting(self) -> tuple[bool, ...]:
        """Of each kind, whether what waits for its peers already slows compute."""
        return (self.waiting_slows, *(one.waiting_slows for one in self.kinds))

    def with_speeds(self, changed: Callable[[Array], Array]) -> Costs:
        """The same with other speeds of compute beside communication."""
        kinds = tuple([replace(one, beside=changed(one.beside)) for one in self.kinds])
        return replace(self, beside_communication=changed(self.beside_communication), kinds=kinds)

    def of_classes(self, again: Ints) -> Costs:
        """The costs of a table of op classes in which row i is what row ``again[i]`` was."""
        rows = enumerate(again.tolist())
        return replace(
            self,
            **{name: getattr(self, name)[again] for name in _COLUMNS},
            communication={row: self.communication[old] for row, old in rows if old in self.communication},
            kinds=tuple([replace(one, ops=one.ops[again], beside=one.beside[again]) for one in self.kinds]),
        )


MINOR: Final = 0.1
Part = tuple[float, tuple[Figure, ...]]
"""A term of a sum of seconds, and the figures that it rests on."""


def major(seconds: float, parts: Iterable[Part]) -> tuple[Figure, ...]:
    """The figures that decide how well a sum is known: those of terms of at least a tenth of it."""
    # A rough guess at a minor term does not make a sum rough.
    return tuple(figure for part, figures in parts if part >= MINOR * seconds for figure in figures)


@dataclass(frozen=True, slots=True)
class ComputeCost:
    """Isolated cost of a compute op on a device of nominal speed.

    Arguments: ``seconds``; ``best``, seconds if small operators were as efficient as the largest, at most ``seconds``;
    ``why``, how they came about; ``grade`` of the numbers used.
    """

    seconds: float
    best: float
    why: str
    grade: Grade


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """Isolated cost of a collective in one group.

    Arguments:
        alpha, transfer: seconds.
        best: seconds at the bandwidth of the largest messages without latency, at most their sum.
        links: pairs (channel, demand) as of ``Communication``.
        why: how they came about.
        grade: of the numbers used.
    """

    alpha: float
    transfer: float
    best: float
    links: Sequence[tuple[str, float]]
    why: str
    grade: Grade


class ComputeModel(Protocol):
    """Prices compute ops."""

    def seconds(self, op: OpClass) -> ComputeCost:
        """Isolated seconds of a compute op class."""
        ...


class CollectiveModel(Protocol):
    """Prices communication."""

    def cost(self, op: OpClass, ranks: Sequence[int]) -> CollectiveCost:
        """Isolated cost of a collective (or send and recv) in the group of these ranks."""
        ...


Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Groups in which a message lasts equally long, and demands the same of as many links.

    Arguments: ``rows``, shape [n]; ``links``, shape [n, k]; ``parts`` and ``widths`` as of ``Alike``.
    """

    rows: Ints
    alpha: float
    transfer: float
    links: Ints
    parts: tuple[float, ...]
    widths: tuple[int, ...]

    @property
    def demands(self) -> NDArray[np.float64]:
        """Of each of the k."""
        return np.repeat(np.array(self.parts, dtype=np.float64), self.widths)


class Entries(Sequence[Communication]):
    """One ``Communication`` for each group, or pair, made when it is asked for.

    Arguments: ``blocks``, which have every group once.
    """

    def __init__(self, blocks: tuple[Block, ...]) -> None:
        self.blocks = blocks

    @cached_property
    def place(self) -> tuple[Ints, Ints]:
        """For each group the number of its block, and its place there."""
        count = len(self)
        block, row = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        for number, one in enumerate(self.blocks):
            block[one.rows], row[one.rows] = number, np.arange(len(one.rows))
        return block, row

    @cached_property
    def _count(self) -> int:
        return sum(len(block.rows) for block in self.blocks)

    def __len__(self) -> int:
        # Of thousands of groups that lie unlike, counting them takes long, and answers ask for every op class.
        return self._count

    @overload
    def __getitem__(self, index: int) -> Communication: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Communication, ...]: ...
    def __getitem__(self, index: int | slice) -> Communication | tuple[Communication, ...]:
        if isinstance(index, slice):
            return tuple([self[one] for one in range(len(self))[index]])
        number, row = (numbers.item(range(len(self))[index]) for numbers in self.place)
        block = self.blocks[number]
        # Sorted, so that equal costs are equal whatever order their links were found in.
        links = tuple(sorted(zip(block.links[row].tolist(), block.demands.tolist(), strict=True)))
        return Communication(block.alpha, block.transfer, links)

    def lasts(self, group: int) -> tuple[float, float]:
        """Latency and transfer in a group."""
        block = self.blocks[self.place[0].item(group)]
        return block.alpha, block.transfer

    def __iter__(self) -> Iterator[Communication]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Entries):
            return isinstance(other, tuple) and tuple(self) == tuple(other)
        if len(self) != len(other):
            return False
        if len(self.blocks) == len(other.blocks) and all(map(_same, self.blocks, other.blocks)):
            return True
        # Of thousands of groups the first tells most often already that they differ.
        return self[0] == other[0] and all(map(np.array_equal, self._flat(), other._flat()))

    def __hash__(self) -> int:
        return hash((len(self), self[0]))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def _flat(self) -> tuple[NDArray[Any], ...]:
        """By group its latency and transfer; and all groups, links and demands, sorted: equal where all entries are."""
        lasts = np.array([(block.alpha, block.transfer) for block in self.blocks])[self.place[0]]
        each = [
            (np.repeat(block.rows, block.links.shape[1]), block.links.ravel(), np.tile(block.demands, len(block.rows)))
            for block in self.blocks
        ]
        groups, links, demands = (np.concatenate(column) for column in zip(*each, strict=True))
        order = np.lexsort((demands, links, groups))
        return lasts, groups[order], links[order], demands[order]

    def touching(self, among: NDArray[np.bool_]) -> tuple[Ints, Ints, NDArray[np.float64]]:
        """Groups, links and demands, wherever a group uses one of some links.

        Arguments: ``among``, of each link whether it is one of them.
        """
        triples = []
        for block in self.blocks:
            row, column = np.nonzero(among[block.links])
            triples.append((block.rows[row], block.links[row, column], block.demands[column]))
        groups, links, demands = (np.concatenate(each) for each in zip(*triples, strict=True))
        return groups, links, demands


def lasts(entries: Sequence[Communication], group: int) -> tuple[float, float]:
    """Latency and transfer of a message in a group."""
    if isinstance(entries, Entries):
        return entries.lasts(group)
    return entries[group].alpha, entries[group].transfer


def _same(one: Block, other: Block) -> bool:
    """Whether two blocks are equal as they stand."""
    fields = ((block.alpha, block.transfer, block.parts, block.widths) for block in (one, other))
    return len({*fields}) == 1 and np.array_equal(one.rows, other.rows) and np.array_equal(one.links, other.links)


_COLUMNS = ('compute', 'host', 'beside_communication', 'beside_compute')


def costs_to_dict(costs: Costs) -> dict[str, Any]:
    """All that a simulation needs, as lists and numbers; seconds."""
    # Groups mostly cost the same, so that each message stands once.
    number: dict[Communication, int] = {}
    of_op = {
        str(index): [number.setdefault(message, len(number)) for message in messages]
        for index, messages in costs.communication.items()
    }
    return {
        **{name: getattr(costs, name).tolist() for name in _COLUMNS},
        'messages': [[one.alpha, one.transfer, [list(link) for link in one.links]] for one in number],
        'communication': of_op,
        'links': list(costs.links),
        'rank_speed': costs.rank_speed.tolist(),
        'waiting_slows': costs.waiting_slows,
        **({'kinds': [_kind_to_dict(one) for one in costs.kinds]} if costs.kinds else {}),
        **({'work_queues': costs.work_queues} if costs.work_queues else {}),
    }


def _kind_to_dict(kind: Taking) -> dict[str, Any]:
    ops, beside = np.flatnonzero(kind.ops).tolist(), kind.beside.tolist()
    return {'ops': ops, 'beside': beside, 'waiting_slows': kind.waiting_slows}


def _kind(content: dict[str, Any], count: int) -> Taking:
    ops, beside = np.zeros(count, dtype=bool), _numbers(content['beside'], count, 'kinds')
    ops[content['ops']] = True
    if not ((beside > 0) & (beside <= 1)).all():
        raise ValueError('kinds: a speed is above 0 and at most 1')
    return Taking(ops, beside, bool(content['waiting_slows']))


def costs_from_dict(content: dict[str, Any], program: Program) -> Costs:
    """Read them back, for this program; raises ``ValueError`` saying what does not fit."""
    try:
        return _costs(content, program)
    except (TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f'cannot be read ({type(error).__name__}: {error})') from error


def _costs(content: dict[str, Any], program: Program) -> Costs:
    count = len(program.op_classes)
    compute, host, *speeds = (_numbers(content[name], count, name) for name in _COLUMNS)
    for name, beside in zip(_COLUMNS[2:], speeds, strict=True):
        if not ((beside > 0) & (beside <= 1)).all():
            raise ValueError(f'{name}: a speed is above 0 and at most 1')
    speed = _numbers(content['rank_speed'], program.world, 'rank_speed')
    if not (speed > 0).all():
        raise ValueError('rank_speed: a speed is above 0')
    links = tuple(map(str, content['links']))
    messages = [_message(*each, links=len(links)) for each in content['messages']]
    communication = {int(index): _entries(numbers, messages) for index, numbers in content['communication'].items()}
    _check_groups(communication, program)
    if not isinstance(queues := content.get('work_queues', 0), int) or queues < 0:
        raise ValueError('work_queues: not a number of queues')
    return Costs(
        compute=compute,
        host=host,
        beside_communication=speeds[0],
        beside_compute=speeds[1],
        communication=communication,
        links=links,
        rank_speed=speed,
        waiting_slows=bool(content['waiting_slows']),
        kinds=tuple([_kind(one, count) for one in content.get('kinds', [])[: MOST_KINDS - 1]]),
        # Files of before there were any have none.
        work_queues=queues,
    )


def _numbers(values: object, count: int, name: str) -> Array:
    numbers = np.array(values, dtype=np.float64)
    if numbers.shape != (count,):
        raise ValueError(f'{name}: has not {count} numbers')
    if not (np.isfinite(numbers) & (numbers >= 0)).all():
        raise ValueError(f'{name}: some number is below 0 or not finite')
    return numbers


def _message(alpha: float, transfer: float, shares: list[list[float]], *, links: int) -> Communication:
    link_shares = tuple((int(link), float(share)) for link, share in shares)
    fits = all(0 <= link < links and 0 < share <= 1 for link, share in link_shares)
    if not fits or not all(math.isfinite(time) and time >= 0 for time in (alpha, transfer)):
        raise ValueError('messages: some time or share of a link is out of range')
    return Communication(alpha=float(alpha), transfer=float(transfer), links=link_shares)


def _entries(numbers: list[int], messages: list[Communication]) -> tuple[Communication, ...]:
    if any(not 0 <= number < len(messages) for number in numbers):
        raise ValueError('communication: names a message that is not there')
    return tuple(messages[number] for number in numbers)


def _check_groups(communication: dict[int, tuple[Communication, ...]], program: Program) -> None:
    """Every op that communicates has a cost for each group, or for each of its pairs; receives may have none."""
    for index, op in enumerate(program.op_classes):
        if op.kind in ('collective', 'send'):
            groups = program.partitions[op.partition].groups_GP
            if len(communication.get(index, ())) not in (len(groups), groups.size):
                raise ValueError(f'communication: {op.name} has not one message a group')
