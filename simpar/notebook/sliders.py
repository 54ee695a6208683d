"""Sliders: keys of a case that one drags, and the step follows; and the answer's page, to zoom in and point at ops."""

import asyncio
import base64
import contextlib
import gzip
import html
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from simpar import errors, predict, units
from simpar.case import Case, case_of
from simpar.notebook.cards import card
from simpar.page import answer_page
from simpar.schedule.schedule import with_changes

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


Place = tuple[Any, ...]
_MISSING: Final = 'sliders need ipywidgets: pip install ipywidgets'
_STEPS: Final = 3
"""That are simulated, as `Case.predict` does: the step is the one that the explanation tells."""
_QUICK: Final = 0.4
"""Seconds of a prediction; where one took longer, none is made ahead."""
_PAUSE: Final = 0.2
"""Seconds of rest before a neighbour is predicted ahead: whoever goes on dragging must not wait for it."""


class Sliders:
    """Widgets for some keys of a case; ``box`` is what a notebook shows.

    Arguments: ``values`` by key, each in the order that its slider has them.
    """

    def __init__(self, case: Case, values: Mapping[str, Sequence[Any]]) -> None:
        widgets = _widgets()
        self.case = case
        # By text: values may be lists, which have no hash.
        self._known: dict[str, str] = {}
        self._took = 0.0
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

    @property
    def place(self) -> Place:
        """Where the sliders stand: their values, in their order."""
        return tuple(slider.value for slider in self.chosen.values())

    def _changes(self, place: Place) -> dict[str, Any]:
        return {key: value for key, value in zip(self.chosen, place, strict=True) if value != self._now(key)}

    def changed(self) -> Case:
        """The case as the sliders stand; the case itself where they stand as it does."""
        changes = self._changes(self.place)
        return self.case.what_if(**changes) if changes else self.case

    def follow(self) -> None:
        """Predict the step alone: fast enough to drag."""
        self.step.value = self._told(self.place)
        self._later()

    def _told(self, place: Place) -> str:
        """The step at a place, or why there is none; each is worked out once."""
        if repr(place) not in self._known:
            began = time.monotonic()
            self._known[repr(place)] = self._predicted(self._changes(place))
            self._took = time.monotonic() - began
        return self._known[repr(place)]

    def _predicted(self, changes: Mapping[str, Any]) -> str:
        try:
            # Without a baseline: the case as it was is neither lowered nor simulated again.
            own = replace(with_changes(self.case.schedule, changes), against={}) if changes else None
            case = case_of(own, session=self.case.session) if own else self.case
            seconds = predict.step_of(case.program, case.cluster, steps=_STEPS)
        except errors.SimparError as wrong:
            return f'<pre>{html.escape(str(wrong))}</pre>'
        return f'<b style="font-size:1.3em">{units.format_time(seconds)}</b> a step'

    def _later(self) -> None:
        """Where a notebook's loop runs, predict one neighbour when it has nothing else to do."""
        # Outside of a notebook there is no loop.
        with contextlib.suppress(RuntimeError):
            # A long prediction would keep the user waiting, whose next wish may be another.
            if self._took < _QUICK:
                asyncio.get_running_loop().call_later(_PAUSE, self._ahead)

    def _ahead(self) -> None:
        for place in self._neighbours():
            if repr(place) not in self._known:
                self._told(place)
                # What the user does meanwhile comes first.
                self._later()
                return

    def _neighbours(self) -> Iterator[Place]:
        """The places that one step of one slider leads to."""
        here = self.place
        for number, slider in enumerate(self.chosen.values()):
            at = slider.index
            for value in (*slider.options[at + 1 : at + 2], *slider.options[max(at - 1, 0) : at]):
                yield (*here[:number], value, *here[number + 1 :])

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


def _widgets() -> Any:
    try:
        import ipywidgets
    except ImportError:
        raise ImportError(_MISSING) from None
    return ipywidgets
