"""Tensors that a torch module has: its weights and constants, by their names in programs.

A process is given them by ``provide``; its children find the file that ``SIMPAR_GIVEN`` names.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import torch

from executor.result import Result
from simpar.errors import ProgramError
from simpar.janitor import remove_at_the_end
from simpar.torch_module.names import module_tensors

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


def keep(tensors: Mapping[str, torch.Tensor]) -> None:
    """Give this process and those that it starts these tensors, until it ends."""
    _known.update(tensors)
    folder = tempfile.mkdtemp(prefix='simpar-module-')
    remove_at_the_end(Path(folder))
    path = Path(folder) / 'given.pt'
    torch.save(dict(tensors), path)
    os.environ[VARIABLE] = str(path)


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


AnyResult = TypeVar('AnyResult', bound=Result)


def by_module(result: AnyResult) -> AnyResult:
    """A result whose parameters and gradients have the module's own names."""
    gradients = module_tensors({name.removeprefix('d:'): of for name, of in result.gradients.items()})
    return replace(
        result,
        parameters=module_tensors(result.parameters),
        gradients={f'd:{name}': of for name, of in gradients.items()},
    )


def module_of(options: argparse.Namespace) -> str:
    """The graph of the module that ``--module`` names, whose tensors are kept; empty: there is no flag."""
    if not options.module:
        return ''
    # Exporting imports much of torch, which others do without.
    from simpar.torch_module.flag import imported

    found = imported(options.module, options.seed)
    keep(found.weights)
    return found.graph
