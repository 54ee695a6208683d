"""Stack: what a training framework makes of a device; what each part is used for is said in ``simpar.cost.stack``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from simpar.hardware.expansion import Mode
from simpar.hardware.figure import Figure, Grade, ShareFigure, Text, TimeFigure
from simpar.hardware.stack_memory import StackMemory

Wait = Literal['receive', 'pass', 'batch', 'norm', 'step']
Count = Annotated[int, Field(ge=0, le=1000)]
Bytes = Annotated[float, Field(ge=0, le=1000)]
MOST_QUEUES: Final = 2**16
"""Work queues that a file may ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """What an operator launches in a phase beside the one kernel that a profile prices.

    Arguments:
        kernels: in all; 0: it is not launched at all, or is part of another operator's kernel.
        calls: what else the host does meanwhile, each as long as a launch.
        passes: how often it moves the bytes of the operator, of a streaming one.
        result, left, right: of a product of [m, k] with [k, n], bytes that further kernels move for each element of its
            result, its left and its right operand.
        multiple: of a product of attention: holds where heads × samples of a rank are a multiple of it; elsewhere the
            entry with ``.odd`` behind its key.
    """

    kernels: Count
    source: Text
    calls: Count = 0
    passes: Bytes = 1.0
    result: Bytes = 0.0
    left: Bytes = 0.0
    right: Bytes = 0.0
    multiple: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimes:
    """Seconds of the host: for a kernel ``forward`` and ``backward``, and of each ``step`` beside all launches."""

    forward: TimeFigure
    backward: TimeFigure
    step: TimeFigure


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Where the host waits for the device: behind a ``receive``, about each ``pass``, where it reads a ``batch``, at
    the ``norm`` of gradients, at the end of each ``step``."""

    at: tuple[Wait, ...]
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkQueues:
    """How many work queues of a device the framework uses."""

    count: Annotated[int, Field(ge=1, le=MOST_QUEUES)]
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class TileStreams:
    """On how many streams the tiles of a product take turns, so that as many run side by side."""

    count: Annotated[int, Field(ge=1, le=64)]
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class TileCall:
    """One call of the host issues all tiles of a product; what the library calls for each, in C++.

    Arguments: ``product`` and ``message``, calls of the driver for the product of each further tile and for each tile's
    message; ``each``, seconds of one.
    """

    each: TimeFigure
    product: Count
    message: Count
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpansionMode:
    """The mode in which the library expands the framework's collectives."""

    mode: Mode
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernel:
    """The kernel of fused attention: ``share`` of the peak forward; ``backward``, its time over the forward's."""

    share: ShareFigure
    backward: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A training framework of some year written down.

    Arguments:
        title: what it is called in an answer, as in "… as MindSpeed-LLM runs it"; empty: its name.
        extends: the stack that it differs from.
        schedule: dotted keys that a schedule on this stack has where it is silent, with their values: of the plan,
            ``workload.optimizer``, ``workload.clip_norm`` and ``workload.gradients``.
        model: keys of the models that its published rows are of, where these are silent; no schedule takes them.
        source: where these were read.
        waiting: whether a message that waits for its peer slows kernels, in place of what the profile says.
        work_queues: how many of a device's it uses; none: all.
        tile_streams: of ``plan.tiles``; none: one tile behind the other.
        tile_call: by which tiles are issued; none: the host issues each as it would the product.
        expansion_mode: of the library; none: its default.
        launches: what operators launch, by ``operator.PHASE``; others launch one kernel that moves their bytes.
        memory: what it holds beside the tensors of a program.
    """

    format: Literal[1]
    name: Text
    description: Text
    source: Text
    title: str = ''
    extends: str = ''
    schedule: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    host: HostTimes | None = None
    waits: Waits | None = None
    work_queues: WorkQueues | None = None
    tile_streams: TileStreams | None = None
    tile_call: TileCall | None = None
    expansion_mode: ExpansionMode | None = None
    attention: AttentionKernel | None = None
    launches: Mapping[str, Launches] = field(default_factory=dict)
    waiting: bool | None = None
    memory: StackMemory | None = None

    @property
    def called(self) -> str:
        """What an answer calls it."""
        return self.title or self.name

    @property
    def of_rows(self) -> dict[str, Any]:
        """Dotted keys that a published row of this framework has where it is silent: of schedule and of model."""
        return {**self.schedule, **{f'workload.transformer.{key}': value for key, value in self.model.items()}}


__all__ = [
    'AttentionKernel',
    'ExpansionMode',
    'Grade',
    'HostTimes',
    'Launches',
    'Stack',
    'StackMemory',
    'TileCall',
    'TileStreams',
    'Waits',
    'WorkQueues',
]
