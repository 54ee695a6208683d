"""A kernel bound to its place in a program: results come out in the shapes and dtypes of the program's tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from executor.kernels.context import Context, Kernel
from executor.packing import Packing
from executor.tensors import torch_dtype
from simpar.errors import ProgramError
from simpar.program import OpClass, Program

Bound = Callable[[Context, list[torch.Tensor]], list[torch.Tensor]]


def bind(program: Program, op: OpClass, kernel: Kernel, dtype: torch.dtype | None = None) -> Bound:
    """The kernel of ``op`` as a function (context, what it reads) → what it writes, then what it adds.

    Arguments: ``dtype`` takes the place of every floating dtype of the program. The kernel is told how many ``rows`` of
    a weight the rank has, and given packed what it shares out. The function raises ``ProgramError`` where tensors have
    other shapes than the program says.
    """
    tensors = [program.tensor[name] for name in op.writes + op.accumulates]
    forms = [(program.local_shape(tensor), torch_dtype(tensor.dtype, dtype)) for tensor in tensors]
    if op.phase == 'W' and len(forms) == 1 and forms[0][0]:
        # A weight's gradient cannot tell from its inputs how many rows this rank's weight has.
        op = replace(op, attributes={'rows': forms[0][0][0], **op.attributes})

    packing = Packing.of(program, op)

    def run(where: Context, reads: list[torch.Tensor]) -> list[torch.Tensor]:
        try:
            results = kernel(op, where, packing.packed(reads))
            return [_formed(result, *form) for result, form in zip(results, forms, strict=True)]
        # What torch raises on wrong shapes; it names neither the op nor the rank.
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            shapes = ', '.join(str(tuple(tensor.shape)) for tensor in reads)
            raise ProgramError(f'{op.name} on rank {where.rank}: {error}; it read {shapes}') from error

    return run


def _formed(result: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return result if result.shape == shape and result.dtype == dtype else result.reshape(shape).to(dtype)
