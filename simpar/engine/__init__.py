"""The simulator: a Program and its Costs become a Trace."""

from simpar.engine.simulate import simulate as simulate

__all__ = ['simulate']
