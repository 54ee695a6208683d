"""sweep: a table of predictions over dotted keys of a schedule."""

from simpar.sweep.answer import Outcome, Result, SweepAnswer, predicted
from simpar.sweep.run import Sweep, load_sweep
