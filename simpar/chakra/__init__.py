"""Chakra execution traces: one file a rank, with the ops of a step and what each waits for; written, and replayed."""

from simpar.chakra.read import Replayed, is_chakra, read_chakra
from simpar.chakra.write import write_chakra
