"""The simulator: a Program and its Costs become a Trace."""

from simpar.engine.simulate import simulate, step_ends
