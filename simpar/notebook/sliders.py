"""Sliders: keys of a case that one drags, and the step follows; the picture comes when one lets go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from simpar.case import Case
from simpar.errors import SimparError
from simpar.notebook.cards import card
from simpar.units import format_time

_MISSING: Final = 'sliders need ipywidgets: pip install ipywidgets'


class Sliders:
    """Widgets for some keys of a case; ``box`` is what a notebook shows.

    Arguments: ``values`` by key, each in the order that its slider has them.
    """

    def __init__(self, case: Case, values: Mapping[str, Sequence[Any]]) -> None:
        widgets = _widgets()
        self.case = case
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
        found = [name for name in (key, f'plan.{key}', f'cluster.{key}', f'workload.{key}')
                 if self.case.schedule.value(name) is not None]  # fmt: skip
        return self.case.schedule.value(found[0]) if found else None

    def changed(self) -> Case:
        """The case as the sliders stand; the case itself where they stand as it does."""
        changes = {key: slider.value for key, slider in self.chosen.items() if slider.value != self._now(key)}
        return self.case.what_if(**changes) if changes else self.case

    def follow(self) -> None:
        """Predict the step alone: fast enough to drag."""
        try:
            # Without a baseline nothing is explained, which takes most of the time.
            seconds = replace(self.changed(), baseline=None).predict(tell=False).step
        except SimparError as wrong:
            self.step.value = f'<pre>{wrong}</pre>'
            return
        self.step.value = f'<b style="font-size:1.3em">{format_time(seconds)}</b> a step'

    def explain(self) -> None:
        """The whole answer, with gain over the case as it was."""
        try:
            self.answer.value = card(self.changed().predict())
        except SimparError as wrong:
            self.answer.value = f'<pre>{wrong}</pre>'

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.box)


def sliders(case: Case, **values: Sequence[Any]) -> Sliders:
    """Sliders for keys of a case.

    Raises ``ImportError`` without ipywidgets.
    Example: ``sliders(case, copies=[1, 2, 4], nodes=[1, 2, 4, 8])``.
    """
    return Sliders(case, values)


def _widgets() -> Any:
    try:
        import ipywidgets
    except ImportError:
        raise ImportError(_MISSING) from None
    return ipywidgets
