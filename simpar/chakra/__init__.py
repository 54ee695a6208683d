"""Chakra execution traces: one file a rank, with the ops of a step and what each waits for; written, and replayed."""

from simpar.chakra.read import Replayed as Replayed
from simpar.chakra.read import is_chakra as is_chakra
from simpar.chakra.read import read_chakra as read_chakra
from simpar.chakra.write import write_chakra as write_chakra

__all__ = ['Replayed', 'is_chakra', 'read_chakra', 'write_chakra']
