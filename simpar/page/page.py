"""The page: the answer's texts, tables, timeline and memory put into one HTML file that stands alone."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from simpar import keys, memory, metrics, predict, report
from simpar.headline import short_time
from simpar.memory.rank import KINDS
from simpar.plot import panel, pipeline_panel
from simpar.trace import Trace

if TYPE_CHECKING:
    from rich.table import Table


Columns = dict[str, Any]
TICKS: Final = 2**22
"""Ticks of a step: finer than a pixel, whatever is zoomed to."""
MOST_SPANS: Final = 30_000
"""Ops of one side that a page holds, about 20 bytes each; of a rank that has more, neighbours are one bar."""
_SEVERAL: Final = 'several ops, '
"""How the name of such a bar begins; its kind follows."""
MOST_RANKS: Final = 4
"""Ranks of one side whose ops it holds; of a pipeline, whose actions stand above, the first and the last."""


def timeline_of(prediction: predict.Prediction, unit: float, ranks: Sequence[int] = ()) -> Columns:
    """What the page draws of one side.

    Arguments: ``unit``, seconds of a tick; ``ranks`` to show, unless a few that differ shall be chosen.
    """
    trace = prediction.trace
    ops: dict[str, int] = {}
    selection, left = _selection(trace, ranks)
    groups = [_rank(trace, rank, ops, unit) for rank in selection]
    return {
        'name': prediction.name,
        'step': round(prediction.step / unit),
        'boxes': _boxes(trace, unit) if metrics.is_pipeline(trace.program) else [],
        'groups': groups,
        'left': left,
        'ops': list(_lines(prediction, ops)),
    }


def _selection(trace: Trace, ranks: Sequence[int]) -> tuple[list[int], int]:
    """The ranks whose ops are shown, those that tell most first, and how many that differ are not."""
    selection: list[int] = []
    spans = 0
    # A baseline may have fewer ranks than the plan.
    for rank in [rank for rank in ranks if 0 <= rank < trace.program.world] or _telling(trace):
        spans += trace.times_of(rank).end_KS.shape[1]
        if selection and spans > MOST_SPANS:
            break
        selection.append(rank)
    seen = {int(trace.representative_of_rank[rank]) for rank in selection}
    return selection, len(trace.representatives) - len(seen)


def _telling(trace: Trace) -> list[int]:
    """Ranks that differ, the most telling first; of a pipeline the first and the last."""
    if metrics.is_pipeline(trace.program):
        return [trace.representatives[0].rank, trace.representatives[-1].rank]
    # Who ends last holds the step up, and is what one looks at.
    ranked = sorted(trace.representatives, key=lambda one: -float(one.end_KS[-1].max()))
    return [one.rank for one in ranked[:MOST_RANKS]]


def _rank(trace: Trace, rank: int, ops: dict[str, int], unit: float) -> Columns:
    """A rank's streams; ``ops`` is filled with the names of what runs on them."""
    seen = panel.view(trace, '', rank)
    alike = int((trace.representative_of_rank == trace.representative_of_rank[rank]).sum()) - 1
    bars = _few(seen.bars, seen.step)
    return {
        'label': f'rank {rank}' + (f' and {alike} like it' if alike else ''),
        'merged': len(bars) < len(seen.bars),
        'rows': [
            {'label': stream, **_columns([bar for bar in bars if bar.row == row], ops, unit)}
            for row, stream in enumerate(seen.streams)
        ],
    }


def _few(bars: Sequence[panel.Bar], step: float) -> Sequence[panel.Bar]:
    """Bars of a rank as a page has room for: where there are too many, those of a kind with short pauses become one."""
    pause = step / 2**13
    while len(bars) > MOST_SPANS and pause < step:
        merged: list[panel.Bar] = []
        for bar in sorted(bars, key=lambda one: (one.row, one.arrive)):
            last = merged[-1] if merged else None
            if last and last[:3] == bar[:3] and bar.arrive - last.end <= pause:
                name = f'{_SEVERAL}{"communication" if bar.communicates else bar.phase}'
                merged[-1] = last._replace(end=max(last.end, bar.end), name=name, copy=None, micro_batch=-1)
            else:
                merged.append(bar)
        bars, pause = merged, 2 * pause
    return bars


def _columns(bars: list[panel.Bar], ops: dict[str, int], unit: float) -> Columns:
    """Bars in order of time: begin, wait for peers and run in ticks; op, copy."""
    ordered = sorted(bars, key=lambda bar: bar.arrive)
    times = np.array([(bar.arrive, bar.start, bar.end) for bar in ordered]).reshape(-1, 3)
    return {
        **timed(times.T, unit),
        'op': [ops.setdefault(bar.name, len(ops)) for bar in ordered],
        'copy': [-1 if bar.copy is None else bar.copy for bar in ordered],
        'micro_batch': [bar.micro_batch for bar in ordered],
    }


def timed(times: Any, unit: float) -> Columns:
    """Begin, wait for peers and run of ops, in ticks. Arguments: ``times``, when they arrive, start and end."""
    ticks = np.diff(np.rint(np.asarray(times) / unit).astype(np.int64), axis=0, prepend=0)
    return dict(zip(('begin', 'wait', 'run'), ticks.tolist(), strict=True))


def _boxes(trace: Trace, unit: float) -> list[Columns]:
    """The pipeline ranks with their actions, and the parts of these with their place in a box's height."""
    rows = []
    seen = pipeline_panel.pipeline_view(trace, '')
    for number, row in enumerate(seen.rows):
        parts = [
            (*_ticks(part.begin, part.end, unit), layer.kind, sum(one.share for one in part.layers[:at]), layer.share)
            for box in row.boxes
            for part in box.parts
            for at, layer in enumerate(part.layers)
        ]
        widest = [max(box.parts, key=lambda one: one.end - one.begin, default=box) for box in row.boxes]
        rows.append(
            {
                'label': pipeline_panel.row_name(seen, number, 0.0),
                'begin': [round(box.begin / unit) for box in row.boxes],
                'run': [_ticks(box.begin, box.end, unit)[1] for box in row.boxes],
                'kind': [box.labels[-1].kind for box in row.boxes],
                'text': [_text(box) for box in row.boxes],
                'words': [_ticks(one.begin, one.end, unit) for one in widest],
                'parts': [(begin, run, kind, round(top, 3), round(high, 3)) for begin, run, kind, top, high in parts],
                'exposed': [_ticks(left, right, unit) for left, right in row.between.tolist()],
            }
        )
    return rows


def _ticks(begin: float, end: float, unit: float) -> tuple[int, int]:
    """When something begins and how long it lasts."""
    return round(begin / unit), round(end / unit) - round(begin / unit)


def _text(box: pipeline_panel.Box) -> str:
    return ' + '.join(f'{one.stage}{one.kind}{one.micro_batch}' for one in box.labels)


def _lines(prediction: predict.Prediction, ops: Mapping[str, int]) -> Iterator[list[str]]:
    """For each op that is shown: name, phase or ``communication``, and how its seconds came about."""
    numbers = {op.name: index for index, op in enumerate(prediction.program.op_classes) if op.name in ops}
    for name in ops:
        if name.startswith(_SEVERAL):
            yield [name.partition(',')[0], name.removeprefix(_SEVERAL), '', '']
            continue
        op = prediction.program.op_classes[numbers[name]]
        kind = panel.phase_of(op) if op.kind == 'compute' else 'communication'
        yield [name, kind, op.operator, prediction.costs.why.get(numbers[name], '')]


# The memory of a page: bytes that the fullest rank holds over a step, by what they are.


MOST_POINTS: Final = 1500
"""Moments of a step that are drawn: about as many as a screen has pixels."""
MOST_LAYERS: Final = 11
"""Kinds of memory that are told apart; the others are one."""
OTHERS: Final = 'others'


def layers_of(sides: Sequence[predict.Prediction]) -> list[str]:
    """Names of the layers, from the bottom: what stays, then what takes most at some time; the same for all sides."""
    most: dict[str, int] = {}
    for line in (side.memory.fullest.by_operator() for side in sides):
        for name, held in zip(line.names, line.bytes.max(axis=0).tolist(), strict=True):
            most[name] = max(most.get(name, 0), held)
    chosen = sorted(most, key=lambda name: -most[name])[:MOST_LAYERS]
    return [*sorted(chosen, key=lambda name: name not in KINDS), OTHERS]


def memory_of(prediction: predict.Prediction, names: Sequence[str], unit: float) -> dict[str, Any]:
    """What the page draws of one side; arguments: names of the layers, seconds of a tick."""
    rank = prediction.memory.fullest
    times, held = _layers(rank, names)
    return {
        'name': prediction.name,
        'step': round(prediction.step / unit),
        'device': prediction.device_memory,
        'words': f'{memory.peak_summary(rank, prediction.room)}.',
        'times': [round(time / unit) for time in times],
        'layers': [{'name': name, 'bytes': column} for name, column in zip(names, held, strict=True)],
        'peak': {'time': round(rank.peak.time / unit), 'bytes': rank.peak.bytes, 'op': rank.peak.action},
    }


def _layers(rank: memory.RankMemory, names: Sequence[str]) -> tuple[list[float], list[list[int]]]:
    """Moments, and bytes of each layer from that moment on."""
    line = rank.by_operator()
    columns = {name: np.zeros(len(line.bytes), dtype=np.int64) for name in names}
    for name, held in zip(line.names, line.bytes.T, strict=True):
        columns[name if name in columns else OTHERS] += held
    moments = _moments(line.total)
    return line.times[:-1][moments].tolist(), [column[moments].tolist() for column in columns.values()]


def _moments(total: Any) -> Any:
    """Which moments to draw: of each stretch the fullest, so that no peak is lost."""
    if len(total) <= MOST_POINTS:
        return np.arange(len(total))
    parts = np.array_split(np.arange(len(total)), MOST_POINTS)
    return np.array([part[int(np.argmax(total[part]))] for part in parts])


_HERE: Final = Path(__file__).parent
_MOST_PARTS: Final = 12
"""Parts of the critical path that are told apart."""


def answer_page(
    prediction: predict.Prediction,
    *,
    schedule: str = '',
    notes: Iterable[str] = (),
    ranks: Sequence[int] = (),
    headline: str = '',
    about: str = '',
    measured: str = '',
    overlaps: str = '',
) -> str:
    """The answer as an HTML page that stands alone.

    Arguments:
        schedule: the file's text, shown at the end.
        notes: what the reader should know besides the prediction's notes.
        ranks: whose ops are shown; unless given, a few that differ.
        headline: in place of the prediction's own.
        about: the model and the date, in words.
        measured, overlaps: HTML of tables that stand before the predicted figures.
    Does not show: ops of more ranks, or of longer steps, than a page of 3 MB holds; it says which.
    Example: ``Path('answer.html').write_text(answer_page(case.predict()))``.
    """
    sides = [prediction, *([prediction.baseline] if prediction.baseline else [])]
    unit = max(side.step for side in sides) / TICKS
    layers = layers_of(sides)
    data = {
        'unit': unit,
        'sides': [timeline_of(side, unit, ranks) for side in sides],
        'path': list(prediction.critical_path.shares.items())[:_MOST_PARTS],
        'memory': [memory_of(side, layers, unit) for side in sides],
    }
    notes = [*prediction.notes, *notes]
    main = template('page').substitute(
        measured=f'<div><h2>Predicted and measured</h2>{measured}</div>' if measured else '',
        overlaps=f'<div><h2>Which overlap pays</h2>{overlaps}</div>' if overlaps else '',
        figures=table_html(report.six(prediction)),
        every=table_html(report.figures(prediction)),
        why=f'<div><h2>Why</h2>{why}</div>' if (why := why_html(prediction)) else '',
        path=html.escape(prediction.critical_path.summary),
        streams=table_html(report.streams(prediction)),
        grades=html.escape(report.grades_line(prediction)),
        many=str(len(notes)),
        notes=''.join(f'<p>{html.escape(note)}</p>' for note in notes),
        schedule=html.escape(schedule),
    )
    lines, footer = ''.join(_lines_of(prediction, about)), f'Program {prediction.program.hash}. '
    return framed(main, headline or report.answer(prediction, exact=False), data, 'memory', lines=lines, footer=footer)


def framed(
    main: str, headline: str, data: Mapping[str, object], *scripts: str, lines: str = '', footer: str = ''
) -> str:
    """A page that stands alone. Arguments: HTML of its ``main`` part and of ``lines`` below the headline; ``scripts``
    beside that of timelines, by name; what they draw as ``data``.
    """
    return template('frame').substitute(
        main=main,
        headline=html.escape(headline),
        lines=lines,
        footer=footer,
        style=(_HERE / 'page.css').read_text(encoding='utf-8'),
        script=''.join((_HERE / f'{name}.js').read_text(encoding='utf-8') for name in ('page', *scripts)),
        # A name may hold </script>, which would end the data.
        data=json.dumps(data, separators=(',', ':'), allow_nan=False).replace('<', '\\u003c'),
    )


def template(name: str) -> Template:
    """A part of a page, by its name."""
    return Template((_HERE / f'{name}.html').read_text(encoding='utf-8'))


def _lines_of(prediction: predict.Prediction, about: str) -> Iterator[str]:
    """What stands below the headline: the interval, what the answer is of, and one warning."""
    from simpar import __version__

    for line in report.interval_lines(prediction):
        yield f'<p>{html.escape(line)}</p>'
    world = prediction.program.world
    facts = [about, f'{world} × {prediction.profile.device.name} ({prediction.profile.name})', f'simpar {__version__}']
    yield f'<p class="hint">{html.escape(" · ".join(fact for fact in facts if fact))}</p>'
    for line in (keys.without_effect_line(prediction.without_effect), *prediction.beside_stack):
        if line:
            yield f'<p class="warning">{html.escape(line)}</p>'


def table_html(table: Table) -> str:
    """A table of the screen as one of the page."""
    # A column of sentences has as many lines as they need: on one line the page would be wider than its window.
    kinds = [' class="words"' if at and one.justify == 'left' else '' for at, one in enumerate(table.columns)]
    named = zip(kinds, table.columns, strict=True)
    heads = ''.join(f'<th{kind}>{html.escape(str(column.header))}</th>' for kind, column in named)
    rows = zip(*(column.cells for column in table.columns), strict=True)
    body = ''.join(
        f'<tr>{"".join(f"<td{kind}>{_cell(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))}</tr>'
        for row in rows
    )
    return f'<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'


def _cell(cell: object) -> str:
    # Blanks at the front show that a row is a part of the one above.
    text = str(cell)
    return '&nbsp;' * (len(text) - len(text.lstrip())) + html.escape(text.lstrip())


def why_html(prediction: predict.Prediction) -> str:
    """The gain as bars that add up."""
    baseline = prediction.baseline
    if baseline is None:
        return ''
    largest = max((abs(row.seconds) for row in prediction.explanation), default=0.0)
    rows = ''.join(_bar(row, largest) for row in prediction.explanation)
    together = f'<tr class="strong"><td>together</td><td>{_signed(baseline.step - prediction.step)}</td><td></td></tr>'
    heads = '<th>effect</th><th>saves</th><th class="bar"></th>'
    return f'<table><thead><tr>{heads}</tr></thead><tbody>{rows}{together}</tbody></table>'


def _bar(row: predict.Contribution, largest: float) -> str:
    width = round(150 * abs(row.seconds) / largest) if largest else 0
    bar = f'<i class="{"loss" if row.seconds < 0 else "gain"}" style="width:{width}px"></i>'
    cells = f'<td>{html.escape(row.effect)}</td><td>{_signed(row.seconds)}</td>'
    return f'<tr>{cells}<td class="bar" style="text-align:left">{bar}</td></tr>'


def _signed(seconds: float) -> str:
    return f'{"+" if seconds > 0 else "−"}{short_time(abs(seconds))}' if seconds else '0'
