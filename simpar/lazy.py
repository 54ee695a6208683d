"""Lazy: what draws an answer in a notebook, imported when it is asked for, as it stands many floors above."""

import importlib
from typing import Any


def notebook() -> Any:
    """The module that draws answers, cases and profiles."""
    return importlib.import_module('simpar.notebook')


def why_not(case: Any) -> Any:
    """Which overlaps pay in a case."""
    return importlib.import_module('simpar.sweep.why_not').why_not(case)


class Card:
    """An answer that Jupyter shows as a card."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        # By name: Jupyter asks the value itself.
        card: str = notebook().card(self)
        return card


class Table(Card):
    """The same, which is a table of pandas, too."""

    __slots__ = ()

    def to_dataframe(self) -> Any:
        """A table of pandas, a row for each part of the answer."""
        return notebook().to_dataframe(self)
