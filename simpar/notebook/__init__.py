"""Notebooks: cards that answers show themselves as, tables of pandas, a table of several cases, sliders."""

from simpar.notebook.cards import card
from simpar.notebook.compared import Compared, compare_cases
from simpar.notebook.frames import to_dataframe
from simpar.notebook.sliders import sliders
