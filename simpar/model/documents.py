"""Packed documents: a sample of several, of which no token sees another's, and each of which begins at position 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from simpar.model.ops import Attributes, text

DIM: Final = 'documents_of_'
"""What the names of dims begin with that count documents by their length."""


def packed(documents: int | Sequence[int], sequence: int) -> tuple[int, ...]:
    """The lengths of a sample's documents; one of them fills it: nothing is packed.

    Arguments: ``documents``, lengths, or one for all but the last, which takes what is left; 0: one document.
    """
    if not isinstance(documents, int):
        lengths = tuple(documents)
    elif 0 < documents < sequence:
        full, left = divmod(sequence, documents)
        lengths = (documents,) * full + ((left,) if left else ())
    else:
        lengths = ()
    return lengths if len(lengths) > 1 else ()


def told(documents: Sequence[int]) -> Attributes:
    """What a kernel must know; nothing where nothing is packed."""
    return {'documents': text(documents)} if documents else {}


def dims_of(documents: Sequence[int]) -> dict[str, int]:
    """How many documents there are of each length, as dims of an op."""
    return {f'{DIM}{length}': count for length, count in sorted(Counter(documents).items())}


def counts_of(dims: Mapping[str, int]) -> dict[int, int]:
    """By length how many documents a sample has, from an op's dims; else one."""
    found = {int(name.removeprefix(DIM)): count for name, count in dims.items() if name.startswith(DIM)}
    return found or {dims['sequence']: 1}


def seen(counts: Mapping[int, int], window: int, sequence: int) -> float:
    """Pairs of tokens of which one sees the other, as a share of those of one causal document of the same sequence.

    Arguments: ``counts`` of documents by length; ``window``, how many tokens one sees, itself and those before it; 0:
    all of its document.
    """
    bands = ((count, length, _band(min(window or length, length) / length)) for length, count in counts.items())
    return sum(count * (length / sequence) ** 2 * band for count, length, band in bands)


def _band(share: float) -> float:
    # Without a window half of a square; with one a band of its width, less the triangle before the first token.
    return share * (2 - share)
