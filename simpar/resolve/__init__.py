"""Resolving: the only step that asks a profile. It makes every choice that a plan leaves open, and a plan again."""

from simpar.resolve.resolve import resolve
from simpar.resolve.strategies import Strategies, find_strategies
