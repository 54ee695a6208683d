"""Notebooks: cards that answers show themselves as, tables of pandas, a table of several cases, sliders."""

from simpar.notebook.cards import card as card
from simpar.notebook.compared import Compared as Compared
from simpar.notebook.compared import compare_cases as compare_cases
from simpar.notebook.frames import to_dataframe as to_dataframe
from simpar.notebook.sliders import sliders as sliders

__all__ = ['Compared', 'card', 'compare_cases', 'sliders', 'to_dataframe']
