"""Figures: the timeline of one steady step."""

from simpar.plot.frame import write_figure as write_figure
from simpar.plot.page import timeline as timeline

__all__ = ['timeline', 'write_figure']
