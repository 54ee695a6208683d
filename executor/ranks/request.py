"""What a rank is asked to run, and what it answers: requests, stretches of a training, outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

import torch

from executor import checkpoint, devices, draws
from simpar.cost.costs import Costs
from simpar.trace import Times


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
    batches: tuple[draws.Batch, ...] = ()
    losses: tuple[float, ...] = ()
    trained: checkpoint.Trained | None = None


INIT_TIMEOUT: Final = 60.0
Pair = tuple[float, float]


Compute = Literal['real', 'emulated']


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to run.

    Arguments:
        costs: seconds of every op, for emulated compute.
        dtype: takes the place of every floating dtype in real compute.
        keep: whether parameters and gradients come back.
        favour: whether communication goes first where both want one core.
        stretch: which part of a longer training this is.
        device: the kind of device; cpu: threads in place of its streams.
        transport: ``native``, the collectives of the device's own library; ``gloo``; empty: what suits the device.
        issue: ``eager``, op by op, or ``graph``, as captured graphs.
        work_queues: how many a device has, which streams share; 0: as the costs say, or one for each.
        room: bytes that a rank's device has for tensors; 0: as many as it needs.
        to_host: latency and bytes a second of a link to the host that is paced; none: as fast as memory copies.
    """

    compute: Compute = 'real'
    costs: Costs | None = None
    steps: int = 3
    seed: int = 0
    dtype: str = ''
    keep: bool = False
    favour: bool = False
    stretch: Stretch | None = None
    device: str = 'cpu'
    transport: str = ''
    issue: str = 'eager'
    work_queues: int = 0
    room: int = 0
    to_host: Pair | None = None

    @property
    def threads(self) -> bool:
        """Whether streams are threads, and collectives rings over gloo."""
        return devices.in_threads(self.device, self.transport)

    @property
    def queues(self) -> int:
        """How many work queues a device has; 0: one for each stream."""
        return self.work_queues or (self.costs.work_queues if self.costs else 0)

    def __post_init__(self) -> None:
        if self.compute == 'emulated' and self.costs is None:
            raise ValueError('emulated compute needs costs')


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rank saw: times since the program began, shape [steps, slots]; its shards of losses, parameters and
    gradients; ``notes``, what was logged on the way; ``written``, its part of a checkpoint."""

    arrive_KS: Times
    end_KS: Times
    notes: tuple[str, ...] = ()
    losses: list[dict[Part, torch.Tensor]] = field(default_factory=list)
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    written: str = ''


Part = tuple[str, int, int]
"""A tensor of one micro-batch and copy."""
