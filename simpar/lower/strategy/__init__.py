"""Lowering of strategies: each operator cut as it says, and what brings tensors from one layout to the next."""

from simpar.lower.strategy.lower import has_strategies as has_strategies
from simpar.lower.strategy.lower import lower_strategies as lower_strategies

__all__ = ['has_strategies', 'lower_strategies']
