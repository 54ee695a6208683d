"""Attention by torch's own fused kernel, where the device has one and it can do what the op asks for.

The results are those of ``attention``; the scores of a whole sequence are never held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from executor.devices.kinds import KINDS
from executor.kernels.precision import wide
from simpar.program import OpClass

ASKS_MORE: Final = frozenset({'window', 'softcap', 'documents', 'balanced', 'value_dim', 'dropout'})
"""Attributes that torch's kernels do not know."""


def fused(op: OpClass, qkv: torch.Tensor) -> str:
    """The name of torch's kernel for an op on the device of what it reads; empty: there is none."""
    kind = KINDS.get(qkv.device.type)
    return '' if kind is None or ASKS_MORE & op.attributes.keys() else kind.attention


def forward(
    name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """y [B, H, S, D] and lse [B, H, S].

    Arguments: ``q`` [B, H, S, D], ``k`` and ``v`` [B, G, S, D], where H is a multiple of G.
    """
    k, v = _for_all(k, q), _for_all(v, q)
    y, lse = _kernel(name)(q, k, v, 0.0, causal, scale=scale)[:2]
    return y, lse


def backward(
    name: str,
    dy: torch.Tensor,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    y: torch.Tensor,
    lse: torch.Tensor,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk and dv in the shapes of q, k and v.

    Arguments: ``tensors``, q, k and v as the forward read them.
    """
    q, k, v = tensors
    everywhere = _for_all(k, q), _for_all(v, q)
    dq, dk, dv = _kernel(f'{name}_backward')(dy, q, *everywhere, y, wide(lse), 0.0, causal, scale=scale)
    return dq, _of_group(dk, k), _of_group(dv, v)


def _kernel(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(torch.ops.aten, name)
    return found


def _for_all(k: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Keys or values of groups, one for every query head."""
    queries = q.shape[1] // k.shape[1]
    return k if queries == 1 else k.repeat_interleave(queries, 1)


def _of_group(dk: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The sum over the query heads of each group."""
    return dk if dk.shape == k.shape else dk.unflatten(1, (k.shape[1], -1)).sum(2)
