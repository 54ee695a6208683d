"""The page of a recording: the ranks' timelines of one step side by side, on one clock."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np

from simpar.page.page import MOST_SPANS, TICKS, framed, template, timed
from simpar.traces import Figures, RankTrace, figures, whole
from simpar.traces.blame import Meeting, meetings_of
from simpar.traces.table import COMMUNICATION, COPY, NANOSECOND, Ints, Kernels
from simpar.units import format_time

Columns = dict[str, Any]
_PHASE = re.compile(r'([FBIWUR])\d*')
_SHOWN: Final = 16
"""Ranks whose timelines stand side by side; nobody reads more."""
_HEADS: Final = ('span', 'computing', 'communication', 'exposed', 'overlapped', 'copies', 'idle')


def ranks_page(traces: Sequence[RankTrace], headline: str, first: Sequence[int] = ()) -> str:
    """An HTML page that stands alone: the last whole step that all ranks have, a row for each stream.

    A message is a thin line while it waits for the last of its ranks, and a bar when it runs.
    Arguments: ``headline``, a sentence; ``first``, ranks that are shown in any case.
    Does not show: more than a few ranks, nor more than ``MOST_SPANS`` kernels; those whose figures differ come first,
    and it says how many are left out.
    """
    name, tables = _step(traces)
    cells = {rank: _cells(figures(tables[rank])) for rank in sorted(tables)}
    unlike = {one: rank for rank, one in reversed(cells.items())}
    ranks = sorted(tables, key=lambda rank: (rank not in first, unlike[cells[rank]] != rank, rank))
    many = np.cumsum([len(tables[rank]) for rank in ranks])
    # Of many ranks, timelines that are alike are drawn once, and a second as a peer where all are.
    most = len(ranks) if len(ranks) <= _SHOWN else min(_SHOWN, len({*unlike.values(), *first} & {*tables}))
    selection = sorted(ranks[: max(2, min(most, int((many <= MOST_SPANS).sum())))])
    meetings = list(meetings_of(tables))
    clock = _clocks(tables, meetings)
    begin = min(int(tables[rank].begin.min()) - clock[rank] for rank in tables)
    end = max(int(tables[rank].end.max()) - clock[rank] for rank in tables)
    unit = max(1, end - begin) / TICKS
    last = _arrivals(tables, meetings, clock)
    ops: dict[tuple[str, str, str], int] = {}
    side = {
        'name': f'step {name}' if name else 'the recording',
        'step': round((end - begin) / unit),
        'boxes': [],
        'groups': [
            {
                'label': f'rank {rank}',
                'merged': False,
                'rows': list(_rows(tables[rank], last[rank] - begin, begin + clock[rank], unit, ops)),
            }
            for rank in selection
        ],
        'left': 0,
        'ops': [[*op, ''] for op in ops],
    }
    drawn = {cells[rank] for rank in selection}
    left, other = len(tables) - len(selection), sum(cell not in drawn for cell in cells.values())
    more = f'{left:,} more ranks are not drawn; {f"{other:,} of them differ" if other else "each is like one that is"}.'
    main = template('ranks').substitute(figures=_table(cells), left=more if left else '')
    return framed(main, headline, {'unit': unit * NANOSECOND, 'sides': [side], 'path': [], 'memory': []})


def _step(traces: Sequence[RankTrace]) -> tuple[str, dict[int, Kernels]]:
    """Name and kernels of the last step that all ranks have; of all that was recorded where they have none."""
    tables = {trace.rank: kernels for trace in traces if (kernels := whole(trace)) is not None and len(kernels)}
    steps = [
        [name for at, name in enumerate(trace.steps) if (tables[trace.rank].step == at).any()]
        for trace in traces
        if trace.rank in tables
    ]
    common = [name for name in steps[0] if all(name in mine for mine in steps)] if steps else []
    if not common:
        return '', tables
    of_step = {
        trace.rank: tables[trace.rank].of(tables[trace.rank].step == trace.steps.index(common[-1]))
        for trace in traces
        if trace.rank in tables
    }
    return common[-1], of_step


def _clocks(tables: Mapping[int, Kernels], meetings: Sequence[Meeting]) -> dict[int, int]:
    """How much later each rank's clock is; of ranks that meet nobody, as if all began together."""
    clocks: dict[int, int] = {}
    for rank, kernels in tables.items():
        if rank in clocks:
            continue
        clocks[rank] = int(kernels.begin.min())
        waiting = [rank]
        while waiting:
            base = waiting.pop()
            for one in meetings:
                if base in one.ranks:
                    own = int(one.shift[one.ranks.index(base)])
                    shifts = dict(zip(one.ranks, one.shift.tolist(), strict=True))
                    new = {other: clocks[base] + shift - own for other, shift in shifts.items() if other not in clocks}
                    clocks |= new
                    waiting += new
    return clocks


def _arrivals(tables: Mapping[int, Kernels], meetings: Sequence[Meeting], clock: Mapping[int, int]) -> dict[int, Ints]:
    """When the last rank of each kernel's collective came, on the common clock; its own begin for all others."""
    arrivals = {rank: kernels.begin - clock[rank] for rank, kernels in tables.items()}
    for one in meetings:
        came = np.max([arrivals[rank][rows] for rank, rows in zip(one.ranks, one.rows, strict=True)], axis=0)
        for rank, rows in zip(one.ranks, one.rows, strict=True):
            until = tables[rank].end[rows] - clock[rank]
            arrivals[rank][rows] = np.clip(came, arrivals[rank][rows], until)
    return arrivals


def _rows(
    kernels: Kernels, start: Ints, origin: int, unit: float, ops: dict[tuple[str, str, str], int]
) -> Iterator[Columns]:
    """The streams of a rank, those that compute first; ``ops`` is filled with the names of what runs on them."""
    computes = {
        stream: bool((kernels.kind[kernels.stream == stream] != COMMUNICATION).any())
        for stream in set(kernels.stream.tolist())
    }
    for stream in sorted(computes, key=lambda one: (not computes[one], len(one), one)):
        mine = np.flatnonzero(kernels.stream == stream)
        times = (kernels.begin[mine] - origin, start[mine], kernels.end[mine] - origin)
        triples = zip(*(column[mine].tolist() for column in (kernels.name, kernels.kind, kernels.type)), strict=True)
        nothing = [-1] * len(mine)
        yield {
            'label': f'stream {stream}' if stream else 'messages',
            **timed(times, unit),
            'op': [ops.setdefault(_op(*one), len(ops)) for one in triples],
            'copy': nothing,
            'micro_batch': nothing,
        }


def _op(name: str, kind: int, type_name: str) -> tuple[str, str, str]:
    """Name, what colours it, and its operator."""
    if kind == COMMUNICATION:
        return name, 'communication', type_name
    phase = _PHASE.fullmatch(type_name)
    return (
        name,
        'copy' if kind == COPY else phase[1].replace('B', 'I') if phase else 'compute',
        '' if phase else type_name,
    )


def _cells(times: Figures) -> str:
    return ''.join(f'<td>{format_time(getattr(times, head))}</td>' for head in _HEADS)


def _table(cells: Mapping[int, str]) -> str:
    heads = ''.join(f'<th>{head}</th>' for head in ('rank', *_HEADS))
    # Neighbours with equal figures are one row: of a prediction most are.
    order = {rank: rank - at for at, rank in enumerate(cells)}
    alike = (list(ranks) for _, ranks in groupby(cells, key=lambda rank: (cells[rank], order[rank])))
    rows = (f'<tr><td>{" to ".join(map(str, sorted({one[0], one[-1]})))}</td>{cells[one[0]]}</tr>' for one in alike)
    return f'<table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
