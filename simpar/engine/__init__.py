"""The simulator: a Program and its Costs become a Trace."""

from simpar.engine.simulate import simulate as simulate
from simpar.engine.simulate import step_ends as step_ends

__all__ = ['simulate', 'step_ends']
