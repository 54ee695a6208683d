"""What a framework holds beside the tensors of a program: structural facts of a stack, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from simpar.document import Bytes
from simpar.hardware.figure import Text

Name = Annotated[str, Field(min_length=1, max_length=64)]
PerElement = Annotated[float, Field(ge=-64, le=64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A buffer that is allocated at first use and never given back.

    Arguments:
        bytes: of each; ``on``, by patterns of names of devices, in small letters, where it is another size there.
        count: how many, e.g. of cuBLAS one for each thread that calls it.
        when: an option of the run that it needs, e.g. ``deterministic``; ``unless``, one that rules it out.
    """

    bytes: Bytes
    source: Text
    on: Mapping[Name, Bytes] = field(default_factory=dict)
    count: Annotated[int, Field(ge=1, le=64)] = 1
    when: str = ''
    unless: str = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Bytes beside an operator's own tensors, for each element of the first tensor that it reads, or that it writes.

    Arguments:
        operators: their kernels, e.g. ``cross_entropy``; ``named``, a pattern of the names of their ops.
        of: which tensor's elements count.
        kept: from the begin of the forward to the end of the backward; ``forward``, ``backward``: while that runs.
            Less than 0 where a framework frees, or writes in place, what a program holds.
        on: patterns of names of devices that have it; empty: all.
        standing: one buffer for all of them, as large as the largest needs, that is never given back, ``kept`` bytes an
            element.
    """

    operators: tuple[Name, ...]
    source: Text
    of: Literal['read', 'write'] = 'read'
    named: Name = '*'
    kept: PerElement = 0.0
    forward: PerElement = 0.0
    backward: PerElement = 0.0
    on: tuple[Name, ...] = ()
    standing: bool = False
    when: str = ''
    unless: str = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class StackMemory:
    """What a framework allocates, keeps and reserves.

    Arguments:
        options: those that a run has that does not tell, e.g. ``attention-auto``; docs/memory.md lists them.
        gradients: ``contiguous``: one buffer, never given back, in which gradients are reduce-scattered in place.
        gradient_copies: bytes for each gradient of 16 bits, of copies that the update makes and that stay until the
            next step.
        mask: bytes for each pair of tokens of a sample, of the mask that comes with every micro-batch of ``samples``.
        boundary: tensors of the size of what a stage receives that stay between steps, for each chunk.
    """

    source: Text
    options: tuple[Name, ...] = ()
    workspaces: Mapping[Name, Workspace] = field(default_factory=dict)
    beside: Mapping[Name, Beside] = field(default_factory=dict)
    gradients: Literal['freed', 'contiguous'] = 'freed'
    gradient_copies: Annotated[int, Field(ge=0, le=8)] = 0
    boundary: Annotated[int, Field(ge=0, le=64)] = 0
    mask: Annotated[int, Field(ge=0, le=8)] = 0
