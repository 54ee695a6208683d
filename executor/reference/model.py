"""What the reference knows of a kind of model: its inputs, its parameters and its loss, in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from simpar.workload import Workload

Parameters = dict[str, torch.Tensor]
Declared = tuple[str, tuple[int, ...], str]
"""Name, shape and draw of a parameter."""


class Slices(NamedTuple):
    """Slices of a sequence that ranks hold: ``parts``; ``balanced``, context ranks with chunks from both ends, or 0."""

    parts: int
    balanced: int


Input = tuple[str, str, tuple[int, ...], bool]
"""Name, draw, shape, and whether it holds integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfModel:
    """A kind of model.

    Arguments:
        inputs: the model's inputs and its target.
        loss: gives the loss of a copy from its inputs, its target, the keys that dropout draws from, and how many
            slices of a sequence ranks hold.
    """

    inputs: Callable[[Workload], tuple[Input, ...]]
    parameters: Callable[[Workload], Iterator[Declared]]
    loss: Callable[..., torch.Tensor]
