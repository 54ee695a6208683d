"""Figures: the timeline of one steady step."""

from simpar.plot.frame import headline as headline
from simpar.plot.frame import write_figure as write_figure
from simpar.plot.page import timeline as timeline

__all__ = ['headline', 'timeline', 'write_figure']
