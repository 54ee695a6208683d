"""Which ranks and links behave alike, by hashes: the colour refinement of ``representatives`` for many thousand ranks.

A colour is a hash of 64 bits, and a rank's next colour is the hash of its own and of the sum of those of all that it
exchanges, so that no list is made for a rank. Two unlike ranks of 131,072 would have equal hashes in one case of a
thousand million; all others are told apart as by lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from simpar.cost.costs import Entries
from simpar.program import Program

Hashes = NDArray[np.uint64]
Colours = list[int]
_MOST: Final = 4


class _Known(NamedTuple):
    """What has been found, and what of."""

    speed: NDArray[np.float64]
    links: int
    entries: Mapping[int, Entries]
    colours: tuple[Colours, Colours]


_KNOWN: Final[WeakKeyDictionary[Program, list[_Known]]] = WeakKeyDictionary()


class Placed(Protocol):
    """A partition: ``ranks``, shape [groups, size]."""

    ranks: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class _Exchanges:
    """What ranks do together, and lies alike.

    Arguments (n exchanges):
        kind: equal for exchanges that the same op classes ask for, and that last as long.
        ranks: shape [n, ranks]; of a send, the sender and then the receiver.
        links: shape [n, k]; ``demands``, shape [k], equal numbers for equal demands.
    """

    kind: int
    ranks: NDArray[np.int64]
    sends: bool
    links: NDArray[np.int64]
    demands: NDArray[np.int64]


def hashed_colours(
    program: Program, speed: NDArray[np.float64], links: int, entries: Mapping[int, Entries], groups: Mapping[str, Any]
) -> tuple[Colours, Colours]:
    """The colours of ranks and links, numbered by first occurrence.

    Arguments: ``entries``, by op class; ``groups``, of each partition, as `Placed`.
    """
    known = _KNOWN.setdefault(program, [])
    for one in known:
        # Most ablations change seconds, and not which of them are equal.
        if one.links == links and np.array_equal(one.speed, speed) and _tell_alike(one.entries, entries):
            return one.colours
    colours = _refined(program, speed, links, _exchanges(program, entries, groups))
    known.append(_Known(speed, links, entries, colours))
    del known[:-_MOST]
    return colours


def _tell_alike(one: Mapping[int, Entries], other: Mapping[int, Entries]) -> bool:
    """Whether costs are equal where others are, and ask the same links for demands that are equal where theirs are."""
    # Op classes of one cost key share their entries: which of them do must be the same, and each is looked at once.
    pairs = {(id(by_group), id(other[index])): index for index, by_group in one.items() if index in other}
    if one.keys() != other.keys() or not len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}):
        return False
    return all(_tells_as(one[index], other[index]) for index in pairs.values())


def _tells_as(one: Entries, other: Entries) -> bool:
    """Whether costs are equal in the same groups, and so are their demands of the same links."""
    return (
        len(one.blocks) == len(other.blocks)
        and _lasting(one) == _lasting(other)
        and _demands(one) == _demands(other)
        and all(a.tells_as(b) for a, b in zip(one.blocks, other.blocks, strict=True))
    )


def _alike(entries: Mapping[int, Entries]) -> dict[int, Entries]:
    """For each op class the first costs that tell the same."""
    found: list[Entries] = []
    first: dict[int, Entries] = {}
    for by_group in entries.values():
        if id(by_group) not in first:
            same = next((one for one in found if _tells_as(one, by_group)), by_group)
            first[id(by_group)] = same
            if same is by_group:
                found.append(by_group)
    return {index: first[id(by_group)] for index, by_group in entries.items()}


def _lasting(entries: Entries) -> list[int]:
    """For each block the first one that lasts as long."""
    first: dict[tuple[float, float], int] = {}
    return [first.setdefault((block.alpha, block.transfer), number) for number, block in enumerate(entries.blocks)]


def _demands(entries: Entries) -> list[list[int]]:
    """For each block the numbers of its parts: equal ones for equal demands, in whichever block."""
    number: dict[float, int] = {}
    return [[number.setdefault(part, len(number)) for part in block.parts] for block in entries.blocks]


def _exchanges(program: Program, entries: Mapping[int, Entries], groups: Mapping[str, Placed]) -> list[_Exchanges]:
    """The exchanges of all ranks; op classes whose costs tell the same ask for the same ones."""
    entries = _alike(entries)
    kinds, ops = program.cost_kinds[0].tolist(), program.cost_kinds[1]
    roles_of: dict[tuple[bool, str, int, int], tuple[Entries, dict[int, None]]] = {}
    for number, role in enumerate(program.roles):
        for index in np.flatnonzero(np.bincount(role.op_class)).tolist():
            op = ops[kinds[index]]
            # A receive is the other end of a send, and would only count it twice.
            if op.kind in {'collective', 'send'}:
                key = (op.kind == 'send', op.partition, op.peer, id(entries[index]))
                roles_of.setdefault(key, (entries[index], {}))[1][number] = None
    found: list[_Exchanges] = []
    for (sends, partition, peer, _), (by_group, roles) in roles_of.items():
        ranks = groups[partition].ranks
        mine: NDArray[np.bool_] = np.zeros(len(program.roles), dtype=np.bool_)
        mine[list(roles)] = True
        own = np.asarray(mine[program.role_of_rank[ranks]], dtype=np.bool_)
        # Of a send, for each pair; of a collective, for each group of which any rank asks for it.
        asked: NDArray[np.bool_] = own.ravel() if sends else np.asarray(own.any(axis=1))
        met = np.stack((ranks, np.roll(ranks, -peer, axis=1)), axis=-1).reshape(-1, 2) if sends else ranks
        # Costs may be by group where pairs of a group cost the same.
        each = len(met) // len(by_group)
        begin = len(found)
        for block, lasting, parts in zip(by_group.blocks, _lasting(by_group), _demands(by_group), strict=True):
            rows = block.rows if each == 1 else (block.rows[:, None] * each + np.arange(each)).ravel()
            links = block.links if each == 1 else np.repeat(block.links, each, axis=0)
            wanted = asked[rows]
            exchanges = met[rows[wanted]].astype(np.int64)
            demands = np.repeat(np.array(parts, dtype=np.int64), block.widths)
            found.append(_Exchanges(begin + lasting, exchanges, sends, links[wanted], demands))
    return found


def _refined(
    program: Program, speed: NDArray[np.float64], links: int, exchanges: list[_Exchanges]
) -> tuple[Colours, Colours]:
    ranks = _mixed(program.role_of_rank.astype(np.uint64) * _ODD + _mixed(speed.astype(np.float64).view(np.uint64)))
    over = _mixed(np.zeros(links, dtype=np.uint64))
    count = (0, 0)
    while True:
        now = (len(_values(ranks)), len(_values(over)))
        # Refining only ever splits, so that as many colours are the same colours.
        if now == count:
            return _by_first(ranks), _by_first(over)
        count = now
        ranks, over = _finer(ranks, over, exchanges)


def _finer(ranks: Hashes, over: Hashes, exchanges: list[_Exchanges]) -> tuple[Hashes, Hashes]:
    """The next colours of ranks and links."""
    by_rank, by_link = np.zeros_like(ranks), np.zeros_like(over)
    for one in exchanges:
        sides = ranks[one.ranks]
        # A collective does not depend on who of its ranks is who, but a send does.
        among = sides[:, 0] * _ODD + _mixed(sides[:, 1]) if one.sends else _mixed(sides).sum(axis=1, dtype=np.uint64)
        demands = one.demands.astype(np.uint64) * _ODD
        through = _mixed(over[one.links] + demands).sum(axis=1, dtype=np.uint64)
        colour = _mixed(_mixed(among) + _mixed(through * _ODD) + np.uint64(one.kind))
        if one.sends:
            # A rank may send to several, and receive from several: the sum counts all.
            _add(by_rank, one.ranks[:, 0], _mixed(colour + np.uint64(1)))
            _add(by_rank, one.ranks[:, 1], _mixed(colour + np.uint64(2)))
        else:
            _add(by_rank, one.ranks, _mixed(colour)[:, None])
        if one.links.size:
            _add(by_link, one.links, _mixed(colour[:, None] + demands))
    return _mixed(ranks * _ODD + _mixed(by_rank)), _mixed(over * _ODD + _mixed(by_link))


def _add(total: Hashes, place: NDArray[np.int64], values: Hashes) -> None:
    """Add values at places, of which several may be equal; sums wrap around."""
    np.add.at(total, place, values)


_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


def _mixed(values: Hashes) -> Hashes:
    """Every bit of a number depends on all of its bits (SplitMix64, Steele, Lea and Flood 2014)."""
    mixed = values + _ODD
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _values(hashes: Hashes) -> Hashes:
    """The values that occur."""
    ordered = np.sort(hashes)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def _by_first(hashes: Hashes) -> Colours:
    """Numbers by first occurrence."""
    values = _values(hashes)
    which = np.searchsorted(values, hashes)
    first = np.full(len(values), len(hashes))
    np.minimum.at(first, which, np.arange(len(hashes)))
    number = np.empty(len(values), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(values))
    found: Colours = number[which].tolist()
    return found
