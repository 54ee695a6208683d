"""Lazy: what draws an answer in a notebook, imported when it is asked for, as it stands many floors above."""

import importlib
from collections.abc import Sequence
from typing import Any


def card(answer: Any) -> str:
    """The HTML as which Jupyter shows an answer, a case or a profile."""
    # By name: Jupyter asks the value itself.
    shown: str = importlib.import_module('simpar.notebook.cards').card(answer)
    return shown


def dataframe(answer: Any, *kind: str) -> Any:
    """The table of pandas of an answer, of a kind where it has several."""
    return importlib.import_module('simpar.notebook.frames').to_dataframe(answer, *kind)


class Card:
    """An answer that Jupyter shows as a card."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return card(self)


class Table(Card):
    """The same, which is a table of pandas, too."""

    __slots__ = ()

    def to_dataframe(self) -> Any:
        """A table of pandas, a row for each part of the answer."""
        return dataframe(self)


def interactive(answer: Any, ranks: Sequence[int]) -> Any:
    """What a notebook shows of an answer to zoom in and to point at."""
    return importlib.import_module('simpar.notebook.sliders').Interactive(answer, tuple(ranks))


def why_not(case: Any) -> Any:
    """Which overlaps pay in a case."""
    return importlib.import_module('simpar.sweep.why_not').why_not(case)
