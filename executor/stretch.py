"""A stretch: the steps of a training from one checkpoint to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from executor.trained import Trained

Batch = Mapping[str, torch.Tensor]
"""The inputs of one step in full, by the names that they have in the program."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Arguments:
    first: the number of its first step.
    source: the folder of the checkpoint that it begins from; empty: from the stretch before, or from the seed.
    save: the folder of the checkpoint that it ends with; empty: none.
    batches: the user's, one a step; empty: drawn from the seed.
    losses: of the steps before it.
    trained: what its training trains.
    """

    first: int = 0
    source: str = ''
    save: str = ''
    batches: tuple[Batch, ...] = ()
    losses: tuple[float, ...] = ()
    trained: Trained | None = None
