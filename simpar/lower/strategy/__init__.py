"""Lowering of strategies: each operator cut as it says, and what brings tensors from one layout to the next."""

from simpar.lower.strategy.lower import has_strategies as has_strategies
from simpar.lower.strategy.lower import lay_out as lay_out

__all__ = ['has_strategies', 'lay_out']
