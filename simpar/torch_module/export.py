"""Runs torch.export on a module, for two counts of samples, so that it is known which dims count samples."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simpar.errors import Problem, ScheduleError

if TYPE_CHECKING:
    import torch

COUNTS = (3, 5)
"""Samples of the two exports."""


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """One export: the program, and by the name of a node the shape of its value."""

    program: Any
    nodes: tuple[Any, ...]


def traced(
    module: torch.nn.Module, inputs: Sequence[Any], named: Mapping[str, Any], samples: int
) -> Traced:
    """Export a module for so many samples; raises ``ScheduleError`` with what torch says where it cannot be."""
    import torch

    # The first input tells how many samples the examples have; what has another dim 0 has no samples.
    batch = next((one.shape[0] for one in (*inputs, *named.values()) if getattr(one, 'ndim', 0)), 0)
    arguments = tuple(_of(one, batch, samples) for one in inputs)
    keywords = {name: _of(one, batch, samples) for name, one in named.items()}
    try:
        with warnings.catch_warnings():
            # Warnings of torch about its own internals; what is wrong with the module is an exception.
            warnings.simplefilter('ignore')
            program = torch.export.export(module, arguments, keywords, strict=False)
            # No operator is decomposed, but changes in place become values.
            program = program.run_decompositions({})
    except Exception as error:
        # Whatever a module's own code raises is the user's; torch's reasons begin with a line that says them.
        said = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        what = f'torch.export cannot follow it: {type(error).__name__}: {said}'
        instead = 'make control flow independent of values; pass example inputs that the module takes'
        raise ScheduleError(Problem(type(module).__name__, what, instead)) from None
    return Traced(program, tuple(program.graph.nodes))


def _of(value: Any, batch: int, samples: int) -> Any:
    """An example input with so many samples in the place of a batch."""
    import torch

    if isinstance(value, torch.Tensor) and value.ndim and value.shape[0] == batch:
        return value[:1].expand(samples, *value.shape[1:]).clone()
    return value
