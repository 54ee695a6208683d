"""The timeline of a page: the ops of some ranks and the actions of a pipeline, as columns of whole ticks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from simpar.metrics import is_pipeline
from simpar.plot.pipeline_view import Box, pipeline_view
from simpar.plot.view import Bar, view
from simpar.predict import Prediction
from simpar.trace import Trace

Columns = dict[str, Any]
TICKS: Final = 2**22
"""Ticks of a step: finer than a pixel, whatever is zoomed to."""
MOST_SPANS: Final = 30_000
"""Ops of one side that a page holds: about 20 bytes each."""
MOST_RANKS: Final = 4
"""Ranks of one side whose ops it holds; of a pipeline, whose actions stand above, the first and the last."""


def timeline_of(prediction: Prediction, unit: float, ranks: Sequence[int] = ()) -> Columns:
    """What the page draws of one side.

    Arguments: ``unit``, seconds of a tick; ``ranks`` to show, unless a few that differ shall be chosen.
    """
    trace = prediction.trace
    ops: dict[str, int] = {}
    shown, left = _shown(trace, ranks)
    groups = [_rank(trace, rank, ops, unit) for rank in shown]
    return {
        'name': prediction.name,
        'step': round(prediction.step / unit),
        'boxes': _boxes(trace, unit) if is_pipeline(trace.program) else [],
        'groups': groups,
        'left': left,
        'ops': _told(prediction, ops),
    }


def _shown(trace: Trace, asked: Sequence[int]) -> tuple[list[int], int]:
    """The ranks whose ops are shown, those that tell most first, and how many that differ are not."""
    shown: list[int] = []
    spans = 0
    for rank in _asked(trace, asked) or _telling(trace):
        spans += trace.times_of(rank).end_KS.shape[1]
        if shown and spans > MOST_SPANS:
            break
        shown.append(rank)
    seen = {int(trace.representative_of_rank[rank]) for rank in shown}
    return shown, len(trace.representatives) - len(seen)


def _asked(trace: Trace, ranks: Sequence[int]) -> list[int]:
    """Those that it has: a baseline may have fewer ranks than the plan."""
    return [rank for rank in ranks if 0 <= rank < trace.program.world]


def _telling(trace: Trace) -> list[int]:
    """Ranks that differ, the most telling first; of a pipeline the first and the last."""
    if is_pipeline(trace.program):
        return [trace.representatives[0].rank, trace.representatives[-1].rank]
    # Who ends last holds the step up, and is what one looks at.
    ranked = sorted(trace.representatives, key=lambda one: -float(one.end_KS[-1].max()))
    return [one.rank for one in ranked[:MOST_RANKS]]


def _rank(trace: Trace, rank: int, ops: dict[str, int], unit: float) -> Columns:
    """A rank's streams; ``ops`` is filled with the names of what runs on them."""
    seen = view(trace, '', rank)
    alike = int((trace.representative_of_rank == trace.representative_of_rank[rank]).sum()) - 1
    rows: list[list[Bar]] = [[] for _ in seen.streams]
    for bar in seen.bars[:MOST_SPANS]:
        rows[bar.row].append(bar)
    return {
        'label': f'rank {rank}' + (f' and {alike} like it' if alike else ''),
        'cut': len(seen.bars) > MOST_SPANS,
        'rows': [
            {'label': stream, **_columns(bars, ops, unit)} for stream, bars in zip(seen.streams, rows, strict=True)
        ],
    }


def _columns(bars: list[Bar], ops: dict[str, int], unit: float) -> Columns:
    """Bars in order of time: begin, wait for peers and run in ticks; op, copy."""
    ordered = sorted(bars, key=lambda bar: bar.arrive)
    begins = [round(bar.arrive / unit) for bar in ordered]
    starts = [round(bar.start / unit) for bar in ordered]
    return {
        'begin': begins,
        'wait': [start - begin for start, begin in zip(starts, begins, strict=True)],
        'run': [round(bar.end / unit) - start for bar, start in zip(ordered, starts, strict=True)],
        'op': [ops.setdefault(bar.name, len(ops)) for bar in ordered],
        'copy': [-1 if bar.copy is None else bar.copy for bar in ordered],
        'micro_batch': [bar.micro_batch for bar in ordered],
    }


def _boxes(trace: Trace, unit: float) -> list[Columns]:
    """The pipeline ranks with their actions."""
    rows = []
    for number, row in enumerate(pipeline_view(trace, '').rows):
        stages = ', '.join(map(str, row.stages))
        rows.append(
            {
                'label': f'{number}: stage{"s" if len(row.stages) > 1 else ""} {stages}',
                'begin': [round(box.begin / unit) for box in row.boxes],
                'run': [round(box.end / unit) - round(box.begin / unit) for box in row.boxes],
                'kind': [box.labels[-1].kind for box in row.boxes],
                'text': [_text(box) for box in row.boxes],
                'exposed': [[round(left / unit), round((right - left) / unit)] for left, right in row.between.tolist()],
            }
        )
    return rows


def _text(box: Box) -> str:
    return ' + '.join(f'{one.stage}{one.kind}{one.micro_batch}' for one in box.labels)


def _told(prediction: Prediction, ops: Mapping[str, int]) -> list[list[str]]:
    """For each op that is shown: name, phase or ``communication``, and how its seconds came about."""
    numbers = {op.name: index for index, op in enumerate(prediction.program.op_classes) if op.name in ops}
    return list(_lines(prediction, ops, numbers))


def _lines(prediction: Prediction, ops: Mapping[str, int], numbers: Mapping[str, int]) -> Iterator[list[str]]:
    for name in ops:
        op = prediction.program.op_classes[numbers[name]]
        kind = op.phase if op.kind == 'compute' else 'communication'
        yield [name, kind, op.operator, prediction.costs.why.get(numbers[name], '')]
