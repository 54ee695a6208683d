"""Kernels: what every operator does in every phase, on torch tensors, as docs/proofs/kernels.md lists them.

A kernel takes the tensors that its op class reads, in order, and gives those that it writes, then those to be added to
what it accumulates. It never changes what it reads, but for updates, which work in place.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch

from executor.kernels import attention, linear, loss, mixture, norm, pointwise, torch_call, update
from executor.kernels.context import DROPOUT, Context, Kernel, context
from executor.kernels.loss import LOSSES
from executor.tensors import Packing, torch_dtype
from simpar.errors import ProgramError
from simpar.program import OpClass, Program

FAMILIES: Final = (linear, attention, norm, pointwise, mixture, loss, update, torch_call)
__all__ = ['KERNELS', 'LOSSES', 'Bound', 'Context', 'bind', 'context', 'kernel']
KERNELS: Final[dict[tuple[str, str], Kernel]] = {
    **DROPOUT,
    **{key: kernel for family in FAMILIES for key, kernel in family.KERNELS.items()},
}
"""(operator, phase) → kernel."""


def kernel(op: OpClass) -> Kernel:
    """The kernel of an op class.

    Raises: ProgramError where there is none.
    """
    try:
        return KERNELS[op.operator, op.phase]
    except KeyError:
        # A known operator in a wrong phase is another mistake than an unknown operator.
        phases = sorted(phase for operator, phase in KERNELS if operator == op.operator)
        choices = f'phases {", ".join(phases)}' if phases else 'operators ' + ', '.join(sorted({o for o, _ in KERNELS}))
        raise ProgramError(
            f'{op.name}: no kernel for {op.operator!r} in phase {op.phase}; there are {choices}'
        ) from None


# A kernel bound to its place in a program: results come out in the shapes and dtypes of the program's tensors.

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
            results = kernel(op, where, *packing.packed(reads))
            return [_formed(result, *form) for result, form in zip(results, forms, strict=True)]
        # What torch raises on wrong shapes; it names neither the op nor the rank.
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            shapes = ', '.join(str(tuple(tensor.shape)) for tensor in reads)
            raise ProgramError(f'{op.name} on rank {where.rank}: {error}; it read {shapes}') from error

    return run


def _formed(result: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return result if result.shape == shape and result.dtype == dtype else result.reshape(shape).to(dtype)
