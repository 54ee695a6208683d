"""Figures: the timeline of one steady step."""

from simpar.plot.page import headline as headline
from simpar.plot.page import timeline as timeline
from simpar.plot.page import write_figure as write_figure

__all__ = ['headline', 'timeline', 'write_figure']
