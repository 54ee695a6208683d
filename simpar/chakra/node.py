"""Nodes of a rank: read from its file, checked, and put in order."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from simpar.chakra import schema
from simpar.chakra.write import MOST_NODES
from simpar.errors import Problem, ScheduleError, shown_part
from simpar.files import read_regular

MOST_BYTES: Final = 2**28
MOST_SECONDS: Final = 1e9
MOST_WAITS: Final = 20_000_000
MOST_LETTERS: Final = 80
COMPUTES: Final = (schema.LOAD, schema.STORE, schema.COMPUTE)
ABOUT: Final = (0, schema.METADATA)
"""Types of nodes that do nothing: astra-sim ends them at once."""


class Recorded(NamedTuple):
    """A node: what it is, and which nodes of its rank it waits for."""

    id: int
    name: str
    kind: int
    waits: tuple[int, ...]
    seconds: float
    told: Mapping[str, object]

    @property
    def stream(self) -> str:
        """Where it runs: the host's nodes apart, all other computation in one queue, a queue for each group or pair."""
        if self.kind == schema.COLLECTIVE:
            return f'group {self.told.get("pg_name") or "of all"}'
        if self.kind in (schema.SEND, schema.RECV):
            return f'{self.told["comm_src"]} to {self.told["comm_dst"]} tag {self.told.get("comm_tag", 0)}'
        return 'host' if self.told.get('is_cpu_op') else 'compute'


def nodes_of(file: Path, rank: int, world: int) -> list[Recorded]:
    """The nodes of a rank's file, in an order in which none waits for a later one.

    What tells only about the trace is left out; whoever waits for it waits for what it waits for. Raises
    ``ScheduleError`` that names file and node.
    """
    return _handed_over(file, _ordered(file, _read(file, rank, world)))


def _read(file: Path, rank: int, world: int) -> list[Recorded]:
    try:
        nodes = list(islice(schema.unpacked(read_regular(file, MOST_BYTES)), MOST_NODES + 1))
    except ValueError as error:
        raise ScheduleError(Problem(str(file), f'is no Chakra trace: {error}')) from None
    except OSError as error:
        raise ScheduleError(Problem(str(file), f'cannot be read: {error.strerror or error}')) from None
    if len(nodes) > MOST_NODES:
        raise ScheduleError(Problem(str(file), f'more than {MOST_NODES:,} nodes'))
    found = []
    for node in nodes:
        # Who sends need not say from where, nor who receives to whom.
        told = {'comm_src': rank, 'comm_dst': rank, **schema.valued(node)}
        if wrong := _wrong(node.type, told, rank, world):
            raise ScheduleError(Problem(str(file), f'node {node.id}, {shown_part(node.name)}: {wrong}'))
        exact = told.get('seconds')
        seconds = exact if isinstance(exact, float) else node.duration_micros * 1e-6
        waits = tuple(dict.fromkeys([*node.data_deps, *node.ctrl_deps]))
        found.append(Recorded(node.id, node.name, node.type, waits, float(seconds), told))
    return found


def _wrong(kind: int, told: Mapping[str, object], rank: int, world: int) -> str:
    """Why a node cannot be replayed."""
    exact = told.get('seconds', 0.0)
    if isinstance(exact, float) and not 0 <= exact <= MOST_SECONDS:
        return f'seconds {exact} is no time of a step'
    if kind in (*COMPUTES, *ABOUT):
        return ''
    # They stand in names of streams, which errors print.
    if long := [key for key in ('pg_name', 'comm_tag') if len(str(told.get(key, ''))) > MOST_LETTERS]:
        return f'{long[0]} is longer than {MOST_LETTERS} letters'
    if kind == schema.COLLECTIVE:
        number = told.get('comm_type')
        known = type(number) is int and 0 <= number < len(schema.KINDS)
        return '' if known else 'comm_type is no collective'
    if kind not in (schema.SEND, schema.RECV):
        return f'type {kind} is none that is replayed'
    ends = [told[key] for key in ('comm_src', 'comm_dst')]
    # True is an integer to Python, and no rank.
    if not all(type(end) is int and 0 <= end < world for end in ends):
        return f'comm_src {shown_part(str(ends[0]))} or comm_dst {shown_part(str(ends[1]))} is none of {world} ranks'
    if ends[0] == ends[1]:
        return f'rank {rank} sends to itself'
    mine = ends[0] if kind == schema.SEND else ends[1]
    return '' if mine == rank else f'it stands in the file of rank {rank}, and is of rank {mine}'


def _ordered(file: Path, nodes: Sequence[Recorded]) -> list[Recorded]:
    """Nodes in an order in which none waits for a later one, by their numbers where they are free."""
    by_id = {node.id: node for node in nodes}
    if len(by_id) < len(nodes):
        raise ScheduleError(Problem(str(file), 'two nodes have one id'))
    left = {node.id: len(node.waits) for node in nodes}
    behind: dict[int, list[int]] = {}
    for node in nodes:
        for one in node.waits:
            if one not in by_id:
                what = f'node {node.id}, {shown_part(node.name)}, waits for node {one}, which is not there'
                raise ScheduleError(Problem(str(file), what))
            behind.setdefault(one, []).append(node.id)
    free = [number for number, count in left.items() if not count]
    heapq.heapify(free)
    found = []
    while free:
        found.append(by_id[heapq.heappop(free)])
        for one in behind.get(found[-1].id, ()):
            left[one] -= 1
            if not left[one]:
                heapq.heappush(free, one)
    if len(found) < len(nodes):
        stuck = next(number for number, count in left.items() if count)
        raise ScheduleError(Problem(str(file), f'nodes wait for each other in a circle, node {stuck} among them'))
    return found


def _handed_over(file: Path, nodes: Sequence[Recorded]) -> list[Recorded]:
    """Nodes of which none waits for one that tells about the trace, nor for a send without a duration.

    Such a send is handed to the network at once. What is behind either waits for what it waits for. Rings are written
    so: all ranks send before they receive, and would wait for each other for ever.
    """
    passed: dict[int, tuple[int, ...]] = {}
    found, total = [], 0
    for node in nodes:
        waits = tuple(dict.fromkeys(behind for one in node.waits for behind in passed.get(one, (one,))))
        total += len(waits)
        if total > MOST_WAITS:
            raise ScheduleError(Problem(str(file), f'its nodes wait for more than {MOST_WAITS:,} others'))
        about = node.kind in ABOUT
        if about or (node.kind == schema.SEND and not node.seconds):
            passed[node.id] = waits
        if not about:
            found.append(node._replace(waits=waits))
    return found
