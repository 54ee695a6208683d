"""Recordings of profilers as tables of kernels, whatever wrote them; how busy ranks were, and who made whom wait."""

from simpar.traces.blame import Culprit, Waits, culprit_of, waits_of
from simpar.traces.formats import is_trace, read_traces
from simpar.traces.table import Figures, Kernels, RankTrace, figures, step_figures, whole

__all__ = [
    'Culprit', 'Figures', 'Kernels', 'RankTrace', 'Waits', 'culprit_of', 'figures', 'is_trace', 'read_traces',
    'step_figures', 'waits_of', 'whole',
]  # fmt: skip
