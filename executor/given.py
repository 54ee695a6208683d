"""Tensors that a torch module has: its weights and constants, by their names in programs.

A process is given them by ``provide``; its children find the file that ``SIMPAR_GIVEN`` names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import torch

from simpar.errors import ProgramError

VARIABLE: Final = 'SIMPAR_GIVEN'
_known: dict[str, torch.Tensor] = {}
_read: set[str] = set()


def given(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of the module; raises ``ProgramError`` where there is none of this name and shape."""
    path = os.environ.get(VARIABLE, '')
    if name not in _known and path and path not in _read:
        _read.add(path)
        _known.update(torch.load(path, weights_only=True))
    found = _known.get(name)
    if found is None:
        raise ProgramError(
            f'{name}: the values of the module are not known here; pass --module package:function, and build it with '
            'weights, not on the meta device'
        )
    if tuple(found.shape) != shape:
        raise ProgramError(f'{name}: the module has shape {list(found.shape)}, its graph says {list(shape)}')
    return found.detach().to(dtype)


@contextmanager
def provided(tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Within it programs of this process find these tensors."""
    before = dict(_known)
    _known.update(tensors)
    try:
        yield
    finally:
        _known.clear()
        _known.update(before)
