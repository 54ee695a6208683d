"""Places of tokens: a rank's part of a sequence, in which positions begin anew with each document that is packed."""

from __future__ import annotations

import torch

from executor.kernels.context import Context, position
from simpar.program import OpClass


def places(op: OpClass, where: Context, tokens: int) -> torch.Tensor:
    """The position of each of a rank's tokens, [tokens]: in its document, where ``attributes['documents']`` has some.

    Arguments: ``tokens`` of a sample on this rank.
    """
    # With a part of the sequence, positions begin further down.
    own = torch.arange(tokens) + position(op, where) * tokens
    lengths = _lengths(op)
    return own if lengths is None else own - (lengths.cumsum(0) - lengths)[_document(lengths, own)]


def documents(op: OpClass, tokens: int) -> torch.Tensor:
    """The number of each token's document, [tokens]; all 0 where there is one."""
    lengths = _lengths(op)
    return torch.zeros(tokens, dtype=torch.int64) if lengths is None else _document(lengths, torch.arange(tokens))


def _lengths(op: OpClass) -> torch.Tensor | None:
    text = str(op.attributes.get('documents', ''))
    return torch.tensor([int(length) for length in text.split()]) if text else None


def _document(lengths: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return torch.searchsorted(lengths.cumsum(0), tokens, right=True)
