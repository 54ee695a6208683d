"""What some training steps gave, full tensors by name: the common word of all machines and of the reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
