"""Notebooks: cards that answers show themselves as, tables of pandas, answers side by side, sliders, and a page.

Cards have one screen each; large ones stay small, on the screen and in the file.
"""

from __future__ import annotations

import base64
import functools
import gzip
import html
import importlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from simpar import errors, hardware, metrics, predict, report, trace_files, units
from simpar.case import Case, case_of, names_of
from simpar.comparison import Comparison, render_comparison
from simpar.comparison import compare as compare_traces
from simpar.page.page import answer_page, table_html, why_html
from simpar.planner import plan, render
from simpar.planner.answer import Answer, Robustness, words
from simpar.schedule.schedule import with_changes
from simpar.sweep.answer import SweepAnswer
from simpar.sweep.table import best_summary, cells_of, heads_of, short_keys, shown
from simpar.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE: Final = (
    '<style>.simpar table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:inline-block;'
    'vertical-align:top;margin:0 40px 8px 0}.simpar td,.simpar th{text-align:right;padding:2px 0 2px 18px;'
    'white-space:nowrap}.simpar td:first-child,.simpar th:first-child{text-align:left;padding-left:0}'
    '.simpar i{display:inline-block;height:9px;background:#0a7d4f}.simpar i.loss{background:#b3431b}</style>'
)
_DPI: Final = 75
"""Of pictures in cards: about 60 KB each."""
_MOST_ROWS: Final = 100
"""Rows of a sweep that a card shows."""


def card(answer: Any) -> str:
    """An answer as HTML; raises ``TypeError`` for what is none."""
    return f'<div class="simpar">{_STYLE}{_body(answer)}</div>'


@functools.singledispatch
def _body(answer: Any) -> str:
    raise TypeError(f'{type(answer).__name__} has no card')


@_body.register
def _(prediction: predict.Prediction) -> str:
    """Headline, picture, figures and why."""
    parts = [
        f'<p><b>{html.escape(report.answer(prediction))}</b></p>',
        image_of(prediction.timeline()),
        '<p><small><code>.interactive()</code>: zoom in, and point at ops</small></p>',
        f'<div>{table_html(report.figures(prediction))}{why_html(prediction)}</div>',
        f'<p>{html.escape(prediction.critical_path.summary)}</p>',
        *(f'<p>Note: {html.escape(note)}</p>' for note in prediction.notes),
    ]
    return ''.join(parts)


@_body.register
def _(case: Case) -> str:
    """What is asked: model, plan, cluster and the size of the program."""
    mine, _ = case.names
    slots = sum(len(role) for role in case.program.roles)
    of_devices = f'{case.cluster.world} × {case.cluster.profile.device.name}'
    rows = {
        'cluster': of_devices,
        'parameters': f'{case.parameters:,}',
        'batch': f'{case.workload.batch} samples',
        'plan': mine,
        'program': f'{len(case.program.roles)} roles, {slots:,} ops, {case.program.hash[:12]}',
    }
    if case.baseline:
        rows['baseline'] = case.names[1]
    body = ''.join(f'<tr><td>{html.escape(key)}</td><td>{html.escape(value)}</td></tr>' for key, value in rows.items())
    return f'<p><b>A case</b>: <code>.predict()</code> answers it</p><table><tbody>{body}</tbody></table>'


@_body.register
def _(profile: hardware.Profile) -> str:
    """The device and its links, each number with its grade."""
    device = profile.device
    rows = [('device', device.name, ''), ('devices a node', str(profile.devices), '')]
    rows += [(f'matrix, {kind}', f'{one.value / 1e12:.4g} TFLOP/s', one.grade) for kind, one in device.matrix.items()]
    rows.append(('memory', f'{device.memory.size.value / 1e9:.4g} GB', device.memory.size.grade))
    rows += [(link.name, f'{link.bandwidth.value / 1e9:.4g} GB/s', link.bandwidth.grade) for link in profile.links]
    body = ''.join(f'<tr>{"".join(f"<td>{html.escape(cell)}</td>" for cell in row)}</tr>' for row in rows)
    return f'<p><b>{html.escape(profile.name)}</b></p><table><tbody>{body}</tbody></table>'


@_body.register
def _(answer: SweepAnswer) -> str:
    """The table; the fastest row is bold."""
    heads = [*short_keys(answer.keys).values(), *heads_of(answer)]
    head = ''.join(f'<th>{html.escape(text)}</th>' for text in heads)
    rows = ''.join(_row(answer, place, len(heads)) for place in range(min(len(answer.results), _MOST_ROWS)))
    left = len(answer.results) - _MOST_ROWS
    more = f'<p>{left} more rows: see <code>to_dataframe</code></p>' if left > 0 else ''
    table = f'<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<p><b>{html.escape(best_summary(answer))}</b></p>{table}{more}'


def _row(answer: SweepAnswer, place: int, columns: int) -> str:
    result = answer.results[place]
    settings = [shown(result.settings[key]) if key in result.settings else '' for key in answer.keys]
    figures = cells_of(answer, result) or [result.outcome.reason]
    cells = [html.escape(text) for text in (*settings, *figures)]
    cells += [''] * (columns - len(cells))
    weight = ' style="font-weight:bold"' if place == answer.best else ''
    return f'<tr{weight}>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def image_of(figure: Figure) -> str:
    """A figure as a small PNG inside of HTML."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png', dpi=_DPI)
    return f'<img style="max-width:100%" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


# Planned: the best plan as a card, with front and why; numbers of devices beside one another.


@_body.register
def answer_html(answer: Answer) -> str:
    """Headline, what is proven, ranking and front."""
    choice = answer.choice
    if choice is None:
        return '<p><b>No plan is known to fit</b></p>'
    head = f'<p><b>{html.escape(words(choice))}</b>: {units.format_time(choice.step)} a step</p>'
    table = cells_html(render.ranking_cells(answer))
    return f'{head}<p>{html.escape(render.proven(answer))}</p>{table}{image_of(render.front_picture(answer))}'


@_body.register
def planned_html(planned: plan.Planned) -> str:
    """The answer, why the runner-up loses, and what happens where something is worse."""
    parts = [answer_html(planned.answer)]
    if planned.why and planned.why.baseline:
        rival = html.escape(planned.why.baseline.name)
        parts.append(f'<p>Why the runner-up loses, which has {rival}:</p><div>{why_html(planned.why)}</div>')
    if planned.robustness:
        parts.append(robust_html(planned.robustness))
    return ''.join(parts)


@_body.register
def robust_html(robustness: Robustness) -> str:
    """A row for everything that is made worse."""
    return f'<p>If something is worse:</p>{cells_html(render.robust_cells(robustness))}'


@_body.register
def sizes_html(sizes: plan.Sizes) -> str:
    """A row for each number of devices, and their front."""
    picture = image_of(render.sizes_picture(sizes)) if sizes.front else ''
    return f'{cells_html(render.size_cells(sizes))}{picture}'


def cells_html(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the first of which are heads."""
    head = ''.join(f'<th>{html.escape(cell)}</th>' for cell in rows[0])
    lines = (''.join(f'<td>{html.escape(cell)}</td>' for cell in row) for row in rows[1:])
    body = ''.join(f'<tr>{line}</tr>' for line in lines)
    return f'<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


# Tables of pandas: spans, streams, memory, or the rows of a sweep.

Kind = Literal['streams', 'spans', 'memory']


@functools.singledispatch
def to_dataframe(answer: Any, kind: Kind = 'streams') -> Any:
    """A ``pandas.DataFrame`` of an answer, in seconds and bytes.

    Arguments: ``kind``, of a prediction: ``streams`` of every rank that differs; ``spans``, the ops of the last step;
    ``memory``, bytes by kind over the step, of the fullest rank.
    Raises ``ImportError`` without pandas, ``TypeError`` for what is no answer, ``ValueError`` for another kind.
    """
    raise TypeError(f'no table of {type(answer).__name__}; give a prediction or the answer of a sweep')


@to_dataframe.register
def _(prediction: predict.Prediction, kind: Kind = 'streams') -> Any:
    pandas = _pandas()
    if kind == 'streams':
        return pandas.DataFrame(
            {
                'rank': rank.rank, 'stands_for': rank.ranks, 'stream': one.stream, 'busy': one.busy,
                'waiting': one.waiting, 'idle': one.idle, 'hidden': _hidden(rank, one), 'ops': one.ops,
            }
            for rank in prediction.metrics.steady.ranks
            for one in rank.streams
        )  # fmt: skip
    if kind == 'spans':
        return pandas.DataFrame(
            {
                'rank': times.rank, 'op': span.op.name, 'kind': span.op.kind, 'phase': span.op.phase,
                'stream': span.stream, 'micro_batch': span.micro_batch, 'copy': span.copy, 'arrive': span.arrive,
                'start': span.start, 'end': span.end,
            }
            for times in prediction.trace.representatives
            for span in prediction.trace.spans(times.rank)
        )  # fmt: skip
    if kind == 'memory':
        line = prediction.memory.fullest.by_kind()
        return pandas.DataFrame(line.bytes, columns=list(line.names)).assign(time=line.times[:-1])
    raise ValueError(f'no table {kind!r}; write streams, spans or memory')


@to_dataframe.register
def _(answer: SweepAnswer) -> Any:
    return _pandas().DataFrame(
        {
            **result.settings, 'step': result.step, 'gain': result.gain, 'memory': result.outcome.peak or None,
            'reason': result.outcome.reason,
        }
        for result in answer.results
    )  # fmt: skip


@to_dataframe.register
def _(answer: Answer) -> Any:
    return _pandas().DataFrame(
        {
            **one.settings, 'plan.data': one.schedule.plan.data, 'step': one.step, 'peak': one.peak,
            'bound': one.bound, 'alike': one.step <= answer.ranking[0].step * (1 + answer.margin),
            'front': one in answer.front, 'choice': one is answer.choice,
        }
        for one in answer.ranking
    )  # fmt: skip


@to_dataframe.register
def _(found: plan.Sizes) -> Any:
    return _pandas().DataFrame(
        {
            'devices': one.devices, 'step': one.choice.step if one.choice else None, 'time': one.time,
            found.unit: one.cost, 'gap': one.answer.gap, 'front': one in found.front,
            **(one.choice.settings if one.choice else {}),
        }
        for one in found.found
    )  # fmt: skip


def _hidden(rank: metrics.RankMetrics, stream: metrics.StreamMetrics) -> float | None:
    """The share of a communicator's seconds that computation hides; None for compute, and for sends and receives."""
    exposed, seconds = rank.exposed_by.get(stream.stream), stream.busy + stream.waiting
    return 1 - exposed / seconds if exposed is not None and seconds else None


def _pandas() -> Any:
    return _installed('pandas', 'tables of pandas')


def _installed(name: str, what: str) -> Any:
    """A module that not everybody has. Raises ``ImportError``."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(f'{what} need {name}: pip install {name}') from None


# Compared: cases or predictions side by side, or a prediction beside a measurement, as tables that show themselves.


@dataclass(frozen=True, slots=True)
class Compared:
    """Predictions side by side; the fastest is marked."""

    predictions: tuple[predict.Prediction, ...]

    @property
    def fastest(self) -> predict.Prediction:
        """The one with the shortest step, of those that fit if any does."""
        return min(self.predictions, key=lambda one: (not one.fits, one.step))

    def __str__(self) -> str:
        return report.render_parts([self._answer(), '', report.figures_of(self.predictions)], colour=False, width=120)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f'<p><b>{html.escape(self._answer())}</b></p>{table_html(report.figures_of(self.predictions))}'

    def _answer(self) -> str:
        best = self.fastest
        return f'fastest of {len(self.predictions)}: {best.name}, {units.format_time(best.step)} a step'


def compare(first: Case | predict.Prediction, *others: Case | predict.Prediction | str | Path) -> Compared | Measured:
    """Cases and predictions side by side; or one of them beside a measurement, which is a path.

    Raises ``ScheduleError`` for a measurement of another program.
    Example: ``compare(case, case.what_if(copies=4))``, ``compare(case, 'measured.json')``.
    """
    files = [one for one in others if isinstance(one, str | Path)]
    if not files:
        return compare_cases(first, *(one for one in others if not isinstance(one, str | Path)))
    if len(others) > 1:
        raise TypeError('a measurement stands beside one case or prediction; compare each by itself')
    prediction = first.predict() if isinstance(first, Case) else first
    saved = trace_files.load_trace(Path(files[0]))
    comparison = compare_traces(prediction.trace, saved, costs=prediction.costs)
    return Measured(prediction.trace, trace_files.to_trace(saved, prediction.program), comparison)


def compare_cases(*answers: Case | predict.Prediction) -> Compared:
    """Cases or predictions side by side; cases are predicted. Raises ``ValueError`` without any.

    Example: ``compare_cases(case, case.what_if(copies=4))``.
    """
    if not answers:
        raise ValueError('nothing to compare; give cases or predictions')
    cases = [one for one in answers if isinstance(one, Case)]
    predictions = [one.predict() if isinstance(one, Case) else one for one in answers]
    if len(cases) == len(predictions):
        names = names_of(cases)
    else:
        same = [one.name for one in predictions]
        names = [name if same.count(name) == 1 else f'{name} ({index})' for index, name in enumerate(same, 1)]
    return Compared(tuple(replace(one, name=name) for one, name in zip(predictions, names, strict=True)))


# Measured: a prediction beside a measurement of the same program, as a picture and a table that show themselves.


@dataclass(frozen=True, slots=True)
class Measured:
    """A prediction and a measurement; ``comparison`` has the errors and the cause."""

    predicted: Trace
    measured: Trace
    comparison: Comparison

    def timeline(self) -> Figure:
        """The measured step below the predicted one; what differs by its own doing is outlined."""
        return difference_picture(self.predicted, self.measured, self.comparison)

    def __str__(self) -> str:
        return render_comparison(self.comparison, colour=False)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f'{image_of(self.timeline())}<pre>{html.escape(str(self))}</pre>'


def difference_picture(predicted: Trace, measured: Trace, comparison: Comparison, title: str = '') -> Figure:
    """The picture of a comparison: a title of its own or the cause above it, and outlined where that lies."""
    from simpar.plot import timeline

    marks = comparison.diagnosis.marks if comparison.diagnosis else frozenset()
    last = max(measured.representatives, key=lambda times: float(times.end_KS[-1].max()))
    return timeline(
        # Up to the step that counts: the last one may have been disturbed.
        measured.first(measured.that_counts + 1),
        predicted,
        names=(comparison.origin, 'predicted'),
        # At which the cause lies, else one that ends last.
        rank=min((rank for rank, _ in marks), default=last.rank),
        marks=marks,
        answer=title or comparison.cause,
    )


# The answer's page inside of a notebook, to zoom in and point at ops.

_FRAME: Final = (
    '<iframe title="timeline" style="width:100%;height:{height}px;border:0" srcdoc="'
    "<script>const packed = Uint8Array.from(atob('{packed}'), one => one.charCodeAt(0));"
    "new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'))).text()"
    '.then(page => {{ document.open(); document.write(page); document.close(); }});</script>"></iframe>'
)
"""The page is packed, so that the notebook's file stays small: to about a fifth."""
_HEIGHT: Final = 640
"""Pixels; the page scrolls inside."""


@dataclass(frozen=True, slots=True)
class Interactive:
    """A prediction's page as the last value of a notebook's cell; it needs a notebook that is trusted.

    Arguments: ``ranks`` whose ops are shown; empty: a few that differ.
    """

    prediction: predict.Prediction
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        world = self.prediction.program.world
        if wrong := [rank for rank in self.ranks if not 0 <= rank < world]:
            raise ValueError(f'there is no rank {wrong[0]}; write ranks from 0 to {world - 1}')

    def _repr_html_(self) -> str:
        page = answer_page(self.prediction, ranks=self.ranks).encode()
        # Without a date, so that the same answer gives the same bytes.
        packed = base64.b64encode(gzip.compress(page, mtime=0)).decode()
        return _FRAME.format(height=_HEIGHT, packed=packed)


# Sliders: keys of a case that one drags, and the step follows; the explanation comes when one asks for it.


_STEPS: Final = 3
"""That are simulated, as `Case.predict` does: the step is the one that the explanation tells."""


class Sliders:
    """Widgets for some keys of a case; ``box`` is what a notebook shows.

    Arguments: ``values`` by key, each in the order that its slider has them.
    """

    def __init__(self, case: Case, values: Mapping[str, Sequence[Any]]) -> None:
        widgets = _installed('ipywidgets', 'sliders')
        self.case = case
        # By text: values may be lists, which have no hash.
        self._known: dict[str, str] = {}
        self.step = widgets.HTML()
        self.answer = widgets.HTML()
        self.chosen = {key: self._slider(widgets, key, list(each)) for key, each in values.items()}
        more = widgets.Button(description='explain')
        more.on_click(lambda _: self.explain())
        self.box = widgets.VBox([*self.chosen.values(), self.step, more, self.answer])
        for slider in self.chosen.values():
            slider.observe(lambda _: self.follow(), names='value')
        self.follow()

    def _slider(self, widgets: Any, key: str, values: list[Any]) -> Any:
        now = self._now(key)
        options = values if now is None or now in values else [now, *values]
        start = now if now in options else options[0]
        return widgets.SelectionSlider(options=options, value=start, description=key.rpartition('.')[2])

    def _now(self, key: str) -> Any:
        keys = [name for name in (key, f'plan.{key}', f'cluster.{key}', f'workload.{key}')
                 if self.case.schedule.value(name) is not None]  # fmt: skip
        return self.case.schedule.value(keys[0]) if keys else None

    def _changes(self) -> dict[str, Any]:
        return {key: slider.value for key, slider in self.chosen.items() if slider.value != self._now(key)}

    def changed(self) -> Case:
        """The case as the sliders stand; the case itself where they stand as it does."""
        changes = self._changes()
        return self.case.what_if(**changes) if changes else self.case

    def follow(self) -> None:
        """Predict the step alone: fast enough to drag."""
        changes = self._changes()
        # Each is worked out once.
        if repr(changes) not in self._known:
            self._known[repr(changes)] = self._predicted(changes)
        self.step.value = self._known[repr(changes)]

    def _predicted(self, changes: Mapping[str, Any]) -> str:
        try:
            # Without a baseline: the case as it was is neither lowered nor simulated again.
            own = replace(with_changes(self.case.schedule, changes), against={}) if changes else None
            case = case_of(own, session=self.case.session) if own else self.case
            seconds = predict.step_of(case.program, case.cluster, steps=_STEPS)
        except errors.SimparError as wrong:
            return f'<pre>{html.escape(str(wrong))}</pre>'
        return f'<b style="font-size:1.3em">{units.format_time(seconds)}</b> a step'

    def explain(self) -> None:
        """The whole answer, with gain over the case as it was."""
        try:
            self.answer.value = card(self.changed().predict())
        except errors.SimparError as wrong:
            self.answer.value = f'<pre>{html.escape(str(wrong))}</pre>'

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.box)


def sliders(case: Case, **values: Sequence[Any]) -> Sliders:
    """Sliders for keys of a case.

    Raises ``ImportError`` without ipywidgets.
    Example: ``sliders(case, copies=[1, 2, 4], nodes=[1, 2, 4, 8])``.
    """
    return Sliders(case, values)
