"""What training steps gave: losses, full parameters, the gradients of the last step; in memory, and as a file."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from simpar.errors import Problem, ScheduleError
from simpar.files import read_regular, write_atomically


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Arguments:
    losses: one a step.
    parameters: after the last step.
    gradients: those of the last step.
    """

    losses: tuple[float, ...]
    parameters: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]


FORMAT: Final = 'simpar state 1'
MOST_BYTES: Final = 2**36


def save_state(path: str | os.PathLike[str], result: Result, *, program: str, seed: int) -> None:
    """Write a result as a dict of tensors and plain values, whole or not at all.

    Arguments:
        program: the hash of the program that was run.
        seed: of weights and data.
    Read it with ``load_state``, or with ``torch.load(path, weights_only=True)``.
    """
    content = {
        'format': FORMAT,
        'program': program,
        'seed': seed,
        'losses': list(result.losses),
        'parameters': {name: tensor.contiguous() for name, tensor in result.parameters.items()},
        'gradients': {name: tensor.contiguous() for name, tensor in result.gradients.items()},
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_atomically(Path(path), buffer.getvalue())


def load_state(path: str | os.PathLike[str]) -> Result:
    """Read what ``save_state`` wrote; raises ``ScheduleError`` for another file, and ``OSError``."""
    try:
        # Tensors and plain values only: a file that is read must not run code.
        found = torch.load(io.BytesIO(read_regular(path, MOST_BYTES)), weights_only=True)
    except (pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _wrong(path, f'cannot be read: {reason[:100]}') from None
    if not isinstance(found, dict) or found.get('format') != FORMAT:
        raise _wrong(path, 'is not the state of a run')
    return Result(tuple(found['losses']), found['parameters'], found['gradients'])


def _wrong(path: str | os.PathLike[str], what: str) -> ScheduleError:
    return ScheduleError(Problem(str(path), what, 'write it with --save-state'))
