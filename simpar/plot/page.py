"""The timeline of one steady step: of a plan below its baseline, on one scale, with the answer as its title.

A row is a stream of one rank. Compute is coloured by phase and shaded by copy; communication is grey where computation
hides it and hatched vermilion where it is exposed. Where a step has many ops, the window with most exposed
communication beside computing is shown larger; where it has too many to see, the step is drawn as shares over time. Of
a pipeline, all pipeline ranks are shown, action by action, unless one rank is asked for. matplotlib is imported when a
figure is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simpar import headline, metrics
from simpar.plot.frame import HATCH, MOST_ZOOMED, Page, left_edge, new_figure, title
from simpar.plot.panel import COLOURS, EASY, VISIBLE, Bar, Kind, Panel, View, view
from simpar.plot.pipeline_page import pipeline_timeline
from simpar.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

NAMES: Final[dict[Kind, str]] = {
    'F': 'forward', 'R': 'recomputed', 'I': 'gradient of the input', 'W': 'gradient of the weight', 'U': 'update',
    'hidden': 'communication under computation', 'exposed': 'exposed communication',
}  # fmt: skip
_ROW: Final = 0.4
"""Inches of a row."""
_RIGHT: Final = 0.985
_AVERAGED = 60
"""Shares over time are averaged over the longest step divided by this."""


def timeline(
    plan: Trace,
    baseline: Trace | None = None,
    *,
    names: tuple[str, str] = ('plan', 'baseline'),
    rank: int | None = None,
    marks: frozenset[tuple[int, int]] = frozenset(),
    answer: str = '',
) -> Figure:
    """The timeline of a plan and, above it, of its baseline.

    Arguments:
        names: what to call the plan and the baseline.
        rank: the rank whose streams are shown. Unless given, a pipeline shows all pipeline ranks, and other
            programs show the rank that ends last.
        marks: (rank, slot) of ops that are outlined on both sides, where one rank is shown.
        answer: the title, instead of which of the two is faster.
    """
    sides = [(plan, names[0])] if baseline is None else [(baseline, names[1]), (plan, names[0])]
    # One rank of a pipeline shows little; both sides are drawn alike if either is a pipeline.
    if rank is None and any(metrics.is_pipeline(trace.program) for trace, _ in sides):
        return pipeline_timeline(sides)
    views = [view(trace, name, rank, marks) for trace, name in sides]
    windows = _windows(views) if max(v.most_bars for v in views) > EASY else []
    edges = left_edge((name for v in views for name in v.streams), 9.0), _RIGHT
    page = Page([v.step for v in views], [len(v.streams) for v in views], _ROW, edges, windows)
    figure = new_figure(page.height)
    frames = page.frames(figure)
    averaged = max(page.steps) / _AVERAGED if max(v.most_bars for v in views) > VISIBLE else 0.0
    for index, frame in enumerate(frames):
        panel, zoomed = Panel(frame, views[index % len(views)]), index >= len(views)
        panel.draw(_heading(panel, averaged, zoomed=zoomed), 0.0 if zoomed else averaged)
    page.finish(frames)
    faster = headline.headline(*((v.name, v.step) for v in reversed(views)), exact=False)
    title(figure, answer or faster, _patches(views))
    return figure


def _windows(views: list[View]) -> list[tuple[float, float]]:
    """For each view a window of one length: of the last, the plan, where most communication is exposed, with few
    enough ops to see each; of the others, where they compute the same op. None where it would repeat the step."""
    # One length for all windows, so that bars can be compared.
    seconds = min(v.busy_stretch() for v in views)
    if seconds > MOST_ZOOMED * max(v.step for v in views):
        return []
    begin = views[-1].most_exposed(seconds)
    computed = (bar for bar in views[-1].bars if not bar.communicates and bar.start >= begin)
    first = min(computed, key=lambda bar: bar.start, default=None)
    begins = [*(_as_in(v, first, begin, seconds) for v in views[:-1]), begin]
    return [(one, one + seconds) for one in begins]


def _as_in(other: View, first: Bar | None, begin: float, seconds: float) -> float:
    """Where a window begins that shows the same op at the same place as one that begins at ``begin``."""
    same = [
        bar.start
        for bar in other.bars
        if first and (bar.name, bar.phase, bar.micro_batch) == (first.name, first.phase, first.micro_batch)
    ]
    if first is None or not same:
        return other.most_exposed(seconds)
    return max(0.0, min(min(same) - (first.start - begin), other.step - seconds))


def _patches(views: list[View]) -> list[Patch]:
    """The legend."""
    from matplotlib.patches import Patch

    bars = [bar for v in views for bar in v.bars]
    used = {bar.phase for bar in bars if not bar.communicates}
    if any(bar.communicates for bar in bars):
        used |= {'hidden', 'exposed'}
    patches = [
        Patch(facecolor=colour, label=NAMES[kind], edgecolor='white', hatch=HATCH if kind == 'exposed' else None)
        for kind, colour in COLOURS.items()
        if kind in used
    ]
    copies = max(v.copies for v in views)
    if copies > 1:
        lighter = 'lighter: copy 1' if copies == 2 else f'the lighter, the higher the copy, to {copies - 1}'
        patches.append(Patch(facecolor='#7FB8D8', label=lighter))
    if any(bar.marked for bar in bars):
        patches.append(Patch(facecolor='none', edgecolor='black', label='not as predicted'))
    return patches


def _heading(panel: Panel, averaged: float, *, zoomed: bool) -> str:
    """A panel's name and its figures."""
    v = panel.view
    if zoomed:
        window = panel.frame.window
        return f'{v.name}: the framed {headline.short_time(window[1] - window[0])}'
    figures = f'{v.name}: {headline.short_time(v.step)} a step'
    if v.metrics.communication:
        exposed = f'{headline.short_time(v.metrics.exposed)} ({v.metrics.exposed / v.step * 100:.0f} %)'
        figures += f', {exposed} of it exposed communication, overlap {v.metrics.overlap * 100:.0f} %'
    shares = f'; shares of time, averaged over {headline.short_time(averaged)}' if averaged else ''
    return f'{figures}; rank {v.rank}{shares}'
