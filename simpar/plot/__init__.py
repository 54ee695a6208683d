"""Figures: the timeline of one steady step."""

from simpar.plot.frame import write_figure
from simpar.plot.page import timeline
