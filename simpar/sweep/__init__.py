"""sweep: a table of predictions over dotted keys of a schedule."""

from simpar.sweep.answer import Result as Result
from simpar.sweep.answer import SweepAnswer as SweepAnswer
from simpar.sweep.outcome import Outcome as Outcome
from simpar.sweep.outcome import predicted as predicted
from simpar.sweep.sweep import Sweep as Sweep
from simpar.sweep.sweep import load_sweep as load_sweep

__all__ = ['Outcome', 'Result', 'Sweep', 'SweepAnswer', 'load_sweep', 'predicted']
