"""A tensor of a program: its logical shape, how a rank's piece is cut out of it, and how long it lives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

TensorKind = Literal['parameter', 'gradient', 'state', 'input', 'activation', 'gathered', 'view']
KINDS: Final[tuple[TensorKind, ...]] = ('parameter', 'gradient', 'state', 'input', 'activation', 'gathered', 'view')
"""Gathered: a parameter, or the input of a whole step, made whole of its pieces for as long as it is used. View: a
piece of a whole parameter, in the parameter's own memory."""
PER_RANK: Final = frozenset({'parameter', 'gradient', 'state', 'gathered', 'view'})
"""Kinds of which a rank holds one; of the others it holds one per micro-batch and copy."""

BYTES: Final = {'fp64': 8, 'fp32': 4, 'tf32': 4, 'fp16': 2, 'bf16': 2, 'int64': 8, 'int32': 4, 'bool': 1}


@dataclass(frozen=True, slots=True)
class Split:
    """A rank at position i of its group of ``partition`` holds the i-th of equal slices along ``dim``."""

    dim: int
    partition: str


@dataclass(frozen=True, slots=True)
class Tensor:
    """One logical tensor.

    Arguments: ``shape``, the logical shape over all ranks and copies of one micro-batch; ``splits``, applied in order;
    ``partial``, the partitions over which the true value is still to be summed; inputs and activations are also cut
    along ``batch_dim`` into the program's copies, after all cuts (None: every copy sees the whole).
    ``initial`` names how a parameter or state is first filled, e.g. ``normal:0.02``, ``zeros``, ``ones``.
    ``like`` names the parameter that a gradient, state, gathered parameter or view belongs to; an input has it where it
    is that of a whole step, all micro-batches and copies, drawn as the input that it names.
    ``members`` are the tensors that a *packed* tensor of one dim holds: what a rank has of each of them, flattened, one
    behind the other, then zeros up to the length that the group of its cut divides. A packed parameter or state whose
    ``initial`` is ``members`` is filled as its members would be.
    """

    name: str
    kind: TensorKind
    shape: tuple[int, ...]
    dtype: str
    splits: tuple[Split, ...] = ()
    partial: tuple[str, ...] = ()
    batch_dim: int | None = None
    initial: str = ''
    like: str = ''
    members: tuple[str, ...] = ()
