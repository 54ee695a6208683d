"""What if, on a recording: its kernels and messages replayed in their order, some of them longer or shorter."""

import re
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from math import prod
from typing import Final

import numpy as np

from simpar.errors import refusal
from simpar.traces.table import COMMUNICATION, COMPUTE, NANOSECOND, Kernels, RankTrace, whole

SAY: Final = (
    "write e.g. 'kernel=gemm:0.8', 'rank=3:1.2', 'link=0-1:2', 'message=all_?reduce:0.5', 'host:0', "
    "'hidden=all_?reduce'"
)
LIMITS: Final = (
    'replayed in recorded order from launches, streams and meetings: what shares a link or a core is as long as it was '
    'recorded, and memory is not asked'
)
MOST: Final = 1e3
_NAMED: Final = frozenset({'kernel', 'message', 'hidden'})
_NEAR: Final = 5_000
_SOON: Final = 50_000
"""Nanoseconds within which a kernel begins behind what it waited for on another stream, or is launched behind it."""
_OPEN: Final = 256
"""Kernels back in which what a kernel waited for is sought."""
_UPDATE = re.compile(r'adam|multi_tensor|optim|sgd|^U\d', re.IGNORECASE)
"""Names of kernels that need all gradients, so all messages before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is asked: ``factor``, how many times as long, on what the other fields choose.

    Arguments:
        what: ``kernel``, ``message``, ``rank``, ``link``, ``host`` or ``hidden``.
        pattern: of names, of ``kernel``, ``message`` and ``hidden``. ranks: of ``rank`` and ``link``.
    """

    what: str
    factor: float
    pattern: re.Pattern[str] | None = None
    ranks: tuple[int, ...] = ()


@dataclass(slots=True)
class _Node:
    """A kernel, or all ranks' kernels of one message.

    Arguments: ``seconds``, of a message from the last arrival; ``needs``, nodes and the seconds from their ends to its
    begin; ``begin``, where it needs nothing.
    """

    seconds: float
    name: str
    talks: bool
    begin: float
    ranks: list[int] = field(default_factory=list)
    needs: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Seconds of a step: as recorded, as replayed, and with a change; ``chosen``, kernels that it changes."""

    recorded: float
    replayed: float
    changed: float
    chosen: int


def change_of(text: str) -> Change:
    """A change as users write it. Raises ``ScheduleError``."""
    words, _, last = text.rpartition(':')
    if text.startswith('hidden='):
        words, last = text, '0'
    what, _, value = words.partition('=')
    try:
        factor = float(last)
        pattern = re.compile(value, re.IGNORECASE) if what in _NAMED else None
        ranks = tuple(map(int, value.split('-'))) if what in {'rank', 'link'} else ()
    except (ValueError, re.error):
        factor, pattern, ranks = -1.0, None, ()
    if 0 <= factor <= MOST and (ranks or (what in _NAMED and value) or words == 'host'):
        return Change(what=what, factor=factor, pattern=pattern, ranks=ranks)
    raise refusal(f'--what-if {text[:60]}', 'is no change that is known', SAY)


def what_if(traces: Sequence[RankTrace], changes: Sequence[Change]) -> WhatIf:
    """The step with some kernels, messages, ranks, links or gaps longer or shorter.

    A kernel begins when the one before it on its stream, what it waited for on other streams, and its host allow; a
    message, when its last rank has come. Gaps stay as long as recorded.
    Raises ``ScheduleError`` where no kernel is recorded, and for a change that changes nothing.
    Does not model: links that messages share anew, other orders of a pipeline, other sizes of micro-batches, memory.
    """
    tables = {trace.rank: kernels for trace in traces if (kernels := whole(trace)) is not None and len(kernels)}
    if not tables:
        raise refusal('--what-if', 'no kernel of a whole step was recorded', 'give other recordings')
    steps = max(1, len({int(step) for kernels in tables.values() for step in kernels.step.tolist()}))
    nodes = _nodes(tables)
    chosen = [_chosen(nodes, change) for change in changes]
    for change, mine in zip(changes, chosen, strict=True):
        if not mine:
            raise refusal(f'--what-if {change.what}', 'chooses nothing of this recording', SAY)
    recorded = float(np.median([kernels.end.max() - kernels.begin.min() for kernels in tables.values()])) * NANOSECOND
    replayed, changed = _replay(nodes, ()), _replay(nodes, list(zip(changes, chosen, strict=True)))
    if not (recorded and replayed):
        raise refusal('--what-if', 'the kernels of whole steps take no time', 'give other recordings')
    return WhatIf(
        recorded=recorded / steps, replayed=replayed / steps, changed=changed / steps, chosen=sum(map(len, chosen))
    )


def _chosen(nodes: Sequence[_Node], change: Change) -> set[int]:
    def is_it(node: _Node) -> bool:
        if change.what == 'rank':
            return not node.talks and node.ranks[0] in change.ranks
        if change.what == 'link':
            return node.talks and set(change.ranks) <= set(node.ranks)
        if change.what == 'host':
            return any(gap > 0 for _, gap in node.needs)
        talks = change.what != 'kernel'
        return node.talks == talks and change.pattern is not None and bool(change.pattern.search(node.name))

    return {at for at, node in enumerate(nodes) if is_it(node)}


def _replay(nodes: Sequence[_Node], changes: Sequence[tuple[Change, set[int]]]) -> float:
    """Seconds from the first begin to the last end."""
    end = [0.0] * len(nodes)
    try:
        order = list(
            TopologicalSorter({at: [one for one, _ in node.needs] for at, node in enumerate(nodes)}).static_order()
        )
    except CycleError:
        what = 'ranks met in different orders, so the recordings cannot be replayed'
        raise refusal('--what-if', what, 'give ranks of one job') from None
    for at in order:
        node, mine = nodes[at], [change for change, chosen in changes if at in chosen]
        gaps = prod(change.factor for change in mine if change.what == 'host')
        seconds = node.seconds * prod(change.factor for change in mine if change.what != 'host')
        end[at] = max((end[one] + gap * gaps for one, gap in node.needs), default=node.begin) + seconds
    return max(end) - min(node.begin for node in nodes if not node.needs)


def _nodes(tables: Mapping[int, Kernels]) -> list[_Node]:
    """All kernels of all ranks, the n-th message of a group on one rank with the n-th on the others."""
    met = _meetings(tables)
    nodes: list[_Node] = []
    numbers: dict[tuple[str, int], int] = {}
    for rank, kernels in tables.items():
        # Clocks are not compared: ranks begin together, as behind the last message of the step before.
        origin = int(kernels.begin[0])
        ended: list[tuple[int, int]] = []
        last: dict[str, tuple[int, int]] = {}
        messages: list[int] = []
        columns = (kernels.begin, kernels.end, kernels.launch, kernels.kind, kernels.stream, kernels.name, kernels.type)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for row, (begin, until, launch, kind, stream, name, type_name) in enumerate(rows):
            key = met[rank].get(row)
            at = numbers.setdefault(key, len(nodes)) if key else len(nodes)
            seconds = (until - begin) * NANOSECOND
            if at == len(nodes):
                nodes.append(
                    _Node(seconds, f'{name} {type_name}', kind == COMMUNICATION, (begin - origin) * NANOSECOND)
                )
            node = nodes[at]
            # The last rank that comes waits for nobody.
            node.seconds = min(node.seconds, seconds)
            node.ranks.append(rank)
            # A receive that is drawn from its peer's arrival on was posted when it was launched.
            posted = min(begin, launch) if kind == COMMUNICATION else begin
            node.needs += _needs(begin, launch, posted, last.get(stream), ended)
            if kind == COMPUTE and _UPDATE.search(f'{type_name} {name}'):
                node.needs += [(one, 0.0) for one in messages]
                messages.clear()
            if kind == COMMUNICATION:
                messages.append(at)
            last[stream] = (until, at)
            insort(ended, (until, at))
            del ended[:-_OPEN]
    return nodes


def _needs(
    begin: int, launch: int, posted: int, before: tuple[int, int] | None, ended: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, float]]:
    """What a kernel waited for: the one before on its stream, and one of another stream if it began right behind it."""
    place = bisect_right(ended, (begin, 2**62)) - 1
    other = ended[place] if place >= 0 else None
    waited = other is not None and (begin - other[0] <= _NEAR or 0 <= launch - other[0] <= _SOON)
    earlier = other if other and (waited or not before) else before
    if earlier:
        yield earlier[1], max(0, posted - earlier[0]) * NANOSECOND
    if before and before != earlier:
        yield before[1], 0.0


def _meetings(tables: Mapping[int, Kernels]) -> dict[int, dict[int, tuple[str, int]]]:
    """By rank and row, the message that it is: its group, and which one there."""
    rows: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, kernels in tables.items():
        for row in np.flatnonzero((kernels.kind == COMMUNICATION) & (kernels.group != '')).tolist():
            rows[str(kernels.group[row])][rank].append(row)
    meetings: dict[int, dict[int, tuple[str, int]]] = {rank: {} for rank in tables}
    for group, of_rank in rows.items():
        # Of other counts nobody knows which meets which.
        if len({len(one) for one in of_rank.values()}) == 1:
            for rank, mine in of_rank.items():
                meetings[rank].update({row: (group, number) for number, row in enumerate(mine)})
    return meetings
