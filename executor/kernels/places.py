"""Places of tokens: those of a rank's part of a sequence, and their positions, which begin anew with each document."""

from __future__ import annotations

import torch

from executor.kernels.context import Context, position
from executor.sequence import in_sequence
from simpar.program import OpClass


def places(op: OpClass, where: Context, tokens: int) -> torch.Tensor:
    """The position of each of a rank's tokens, [tokens]: in its document, where ``attributes['documents']`` has some.

    Arguments: ``tokens`` of a sample on this rank.
    """
    own, lengths = held(op, where, tokens), _lengths(op)
    return own if lengths is None else own - (lengths.cumsum(0) - lengths)[_document(lengths, own)]


def held(op: OpClass, where: Context, tokens: int) -> torch.Tensor:
    """Which tokens of its sequence a rank has, [tokens], whichever way ranks share it."""
    partition = str(op.attributes.get('partition', ''))
    first = int(op.attributes.get('first', 0))
    return first + in_slice(op, position(op, where), tokens, where.size[partition] if partition else 1)


def in_slice(op: OpClass, number: int, tokens: int, slices: int) -> torch.Tensor:
    """Which tokens slice ``number`` of equal ``slices`` has."""
    index = torch.arange(tokens) + number * tokens
    return in_sequence(index, slices * tokens, int(op.attributes.get('balanced', 0)))


def in_order(op: OpClass, tokens: int) -> torch.Tensor:
    """The tokens of a whole sequence, in the order in which context ranks hold them."""
    return in_slice(op, 0, tokens, 1)


def document_of(op: OpClass, tokens: torch.Tensor) -> torch.Tensor:
    """The number of the document of each of some tokens; all 0 where there is one."""
    lengths = _lengths(op)
    return torch.zeros_like(tokens) if lengths is None else _document(lengths, tokens)


def _lengths(op: OpClass) -> torch.Tensor | None:
    text = str(op.attributes.get('documents', ''))
    return torch.tensor([int(length) for length in text.split()]) if text else None


def _document(lengths: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return torch.searchsorted(lengths.cumsum(0), tokens, right=True)
