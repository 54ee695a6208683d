"""Kernels: what every operator does in every phase, on torch tensors, as docs/architecture.md lists them.

A kernel takes the tensors that its op class reads, in order, and gives those that it writes, then those to be added to
what it accumulates. It never changes what it reads, but for updates, which work in place.
"""

from __future__ import annotations

from executor.kernels import (
    attention,
    chunk_attention,
    clip,
    context_attention,
    context_unfused,
    convolution,
    cross_entropy,
    dropout,
    embedding,
    experts,
    gated,
    latent,
    linear,
    loss,
    muon,
    norm,
    optimizer_parallel,
    pointwise,
    qk_norm,
    reduction,
    rotary,
    router,
    shape,
    tiles,
    torch_call,
    unfused,
    update,
)
from executor.kernels.context import Context as Context
from executor.kernels.context import Kernel as Kernel
from executor.kernels.context import context as context
from executor.kernels.loss import LOSSES as LOSSES
from simpar.errors import ProgramError
from simpar.program import OpClass

KERNELS: dict[tuple[str, str], Kernel] = {
    **linear.KERNELS,
    **convolution.KERNELS,
    **attention.KERNELS,
    **chunk_attention.KERNELS,
    **context_attention.KERNELS,
    **context_unfused.KERNELS,
    **unfused.KERNELS,
    **dropout.KERNELS,
    **norm.KERNELS,
    **pointwise.KERNELS,
    **gated.KERNELS,
    **rotary.KERNELS,
    **qk_norm.KERNELS,
    **router.KERNELS,
    **experts.KERNELS,
    **latent.KERNELS,
    **reduction.KERNELS,
    **shape.KERNELS,
    **embedding.KERNELS,
    **loss.KERNELS,
    **cross_entropy.KERNELS,
    **clip.KERNELS,
    **optimizer_parallel.KERNELS,
    **tiles.KERNELS,
    **update.KERNELS,
    **muon.KERNELS,
    **torch_call.KERNELS,
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
        known = f'phases {", ".join(phases)}' if phases else 'operators ' + ', '.join(sorted({o for o, _ in KERNELS}))
        raise ProgramError(f'{op.name}: no kernel for {op.operator!r} in phase {op.phase}; there are {known}') from None
