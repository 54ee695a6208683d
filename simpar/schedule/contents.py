"""What a schedule file may hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import Field, WithJsonSchema

from simpar.document import Bytes, Short
from simpar.hardware.expansion import Mode
from simpar.hardware.stack import MOST_QUEUES
from simpar.plan import Plan
from simpar.schedule.planner import Planner
from simpar.stacks import NONE
from simpar.workload import Workload

VERSION: Final = 1
MOST_DIFFERENCES: Final = 64
SWEEP_SCHEMA: Final[dict[str, Any]] = {
    'anyOf': [
        {'type': 'object', 'additionalProperties': {'type': 'array', 'minItems': 1}, 'minProperties': 1},
        {'type': 'array', 'items': {'type': 'object', 'minProperties': 1}, 'minItems': 1},
        {'type': 'null'},
    ]
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReference:
    """A profile by its name or path, and what is changed of it; `simpar.hardware` makes the cluster of it."""

    profile: Annotated[
        str,
        Field(
            min_length=1,
            max_length=4096,
            examples=['ascend910a-8'],
            description='name of a profile (`simpar profiles`), or a path, from the folder of this file',
        ),
    ]
    nodes: Annotated[int, Field(ge=1, le=2**16, description='number of nodes')] = 1
    devices: Annotated[int, Field(ge=0, le=2**16, description='devices used of each node; 0: all')] = 0
    slow: Annotated[
        dict[Annotated[int, Field(ge=0)], Annotated[float, Field(gt=0, le=1)]],
        Field(description='ranks whose device computes slower, and its share of the normal speed'),
    ] = field(default_factory=dict)
    spread: Annotated[
        float,
        Field(
            ge=0,
            le=0.2,
            examples=[0.015],
            description='standard deviation of what devices take for equal work, as a share of its mean; all wait for '
            'the slowest',
        ),
    ] = 0.0
    links: Annotated[
        dict[Annotated[str, Field(min_length=1, max_length=1000)], Annotated[float, Field(gt=0, le=1_000_000)]],
        Field(description='links of the profile, by name, and what their bandwidth is multiplied with'),
    ] = field(default_factory=dict)
    reserve: Annotated[
        Bytes,
        Field(description="of each device's memory: kept free for the framework's context, workspaces, fragmentation"),
    ] = 0.0
    stack: Annotated[
        str,
        Field(
            max_length=4096,
            examples=['torch-fsdp'],
            description='the framework that issues kernels, by name (docs/stacks.md) or path; none: the device alone; '
            'unless given, by the profile (docs/stacks.md)',
        ),
    ] = ''
    work_queues: Annotated[
        Annotated[int, Field(ge=1, le=MOST_QUEUES)] | None,
        Field(
            examples=[1],
            description='how many work queues of a device are used, as CUDA_DEVICE_MAX_CONNECTIONS says; '
            'unless given, as the stack says, or all that the device has',
        ),
    ] = None
    expansion_mode: Annotated[
        Mode | None,
        Field(
            description='how HCCL expands collectives, as HCCL_OP_EXPANSION_MODE says; '
            "unless given, as the stack says, or the profile's default",
        ),
    ] = None

    @property
    def has_stack(self) -> bool:
        """Whether a framework runs on it, not the device alone."""
        return self.stack not in ('', NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A schedule as it stands in a file."""

    simpar: Annotated[int, Field(ge=VERSION, le=VERSION, description='version of this format')]
    cluster: Annotated[ClusterReference, Short('profile'), Field(description='what it runs on')]
    workload: Annotated[Workload, Field(description='what one training step computes')]
    plan: Annotated[Plan, Field(description='how the workload is divided over the ranks')] = field(default_factory=Plan)
    against: Annotated[
        dict[str, Any] | None,
        Field(
            max_length=MOST_DIFFERENCES,
            description='dotted keys and their values in the baseline that gain is measured from; '
            'one copy and one tile unless given; {}: no baseline',
        ),
    ] = None
    sweep: Annotated[
        Any,
        WithJsonSchema(SWEEP_SCHEMA),
        Field(description='rows of `simpar sweep`: dotted keys with lists of values, or a list of mappings'),
    ] = None
    planner: Annotated[
        Planner | None, Field(description='what `simpar plan` may choose: keys of the plan, and when it is enough')
    ] = None
