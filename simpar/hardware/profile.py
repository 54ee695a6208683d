"""Profile: devices, hosts and links of a cluster written down; what a number is used for is said in ``simpar.cost``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from simpar import document, lazy

Grade = Literal['measured', 'vendor', 'literature', 'estimate', 'claim']
# A source must not be empty: a number of unknown origin is what profiles are against.
Text = Annotated[str, Field(min_length=1, max_length=1000)]
GRADES: Final[tuple[Grade, ...]] = ('measured', 'vendor', 'literature', 'estimate', 'claim')
"""How a number is known, best first; a claim is announced, and nobody could look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number with its source in words and its grade; the value in SI units."""

    value: float
    source: Text
    grade: Grade


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsFigure(Figure):
    """Floating-point operations a second."""

    value: document.Flops


@dataclass(frozen=True, slots=True, kw_only=True)
class RateFigure(Figure):
    """Bytes a second."""

    value: document.Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFigure(Figure):
    """Bytes."""

    value: document.Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeFigure(Figure):
    """Seconds."""

    value: document.Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFigure(Figure):
    """A part of a whole, more than 0 and at most 1."""

    # 0 is refused: seconds are divided by shares.
    value: Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFigure(Figure):
    """A positive number without a unit."""

    value: Annotated[float, Field(gt=0)]


def worst(figures: Iterable[Figure | Grade]) -> Grade:
    """The grade of what rests on all of these."""
    grades = [figure.grade if isinstance(figure, Figure) else figure for figure in figures]
    # What rests on no figure at all, as a view that costs nothing, is exact.
    return max(grades, key=GRADES.index, default='measured')


def figures_of(value: Any, key: str = '') -> Iterator[tuple[str, Figure]]:
    """Every number of a profile with its dotted key."""
    # A figure is a dataclass, too, so it is looked for first.
    if isinstance(value, Figure):
        yield key, value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from figures_of(part, f'{key}.{name}' if key else str(name))
    elif isinstance(value, tuple):
        for index, part in enumerate(value):
            yield from figures_of(part, f'{key}[{getattr(part, "name", index)}]')
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            yield from figures_of(part, f'{key}.{field.name}' if key else field.name)


Mode = Literal['host', 'ai_cpu', 'aiv', 'ccu', 'symmetric', 'copy_engine']
"""The words of HCCL_OP_EXPANSION_MODE; NCCL's kernels over symmetric memory, and its copies by engines."""
Collective = Literal['all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'send_recv']


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """What a running collective takes of each of its devices in one mode; no mode takes of the cube units.

    Arguments:
        source: who moves the data, and where that was read.
        bandwidth: share of the memory's bandwidth that it takes; none: as ``slow_down.memory`` says.
        cores: vector cores that it takes at least, by operator; of those that are not there, none.
        ranks_a_core: groups of more ranks than these for each of the cores take one more core for each so many ranks.
    """

    source: Text
    bandwidth: ShareFigure | None = None
    cores: Mapping[Collective, NumberFigure] = field(default_factory=dict)
    ranks_a_core: NumberFigure | None = None

    def cores_of(self, operator: str, ranks: int) -> int:
        """Vector cores that a collective of so many ranks takes."""
        cores = {str(name): figure.value for name, figure in self.cores.items()}.get(operator, 0.0)
        more = math.ceil(ranks / self.ranks_a_core.value) if cores and self.ranks_a_core else 0
        return max(math.ceil(cores), more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """What collectives take by mode.

    Arguments: ``default``, the mode that ``slow_down`` was told of, in use unless a user or a stack says another;
    ``vector_cores`` of a device.
    """

    default: Mode
    modes: Mapping[Mode, DeviceUse]
    vector_cores: NumberFigure | None = None


Dtype = Literal['fp64', 'fp32', 'tf32', 'fp16', 'bf16', 'fp8']
Issue = Literal['eager', 'graph', 'sink']
Algorithm = Literal['ring', 'mesh', 'halving_doubling', 'nhr', 'nvls']
Tuning = Literal[
    'none', 'volta', 'ampere', 'hopper', 'blackwell', 'ascend910a', 'ascend910b', 'ascend910c', 'ascend950'
]
Devices = Annotated[int, Field(ge=1, le=2**20)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """How the rate of matrix products falls with their size, where no table says it.

    Arguments:
        share: of the matrix peak that large products reach.
        half_area: m × n at which they reach half of that.
        half_depth: k at which they do.
        fp8: share of the matrix peak that large products of 8 bits reach; none: ``share``.
    """

    share: ShareFigure
    half_area: NumberFigure
    half_depth: NumberFigure
    fp8: ShareFigure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """``share`` of the matrix peak that the forward reaches; ``backward``, its time over the forward's."""

    share: ShareFigure
    backward: NumberFigure


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Device memory: ``bandwidth`` is nominal, ``share`` of it what streaming kernels reach.

    Arguments: ``size``, what the runtime offers all processes; ``context``, what of it a process takes that is in no
    allocator: the runtime's own context and the buffers of the communication library.
    """

    size: SizeFigure
    bandwidth: RateFigure
    share: ShareFigure
    context: SizeFigure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Seconds that a kernel takes on the device however little it does: matrix products and attention, all others."""

    matrix: TimeFigure
    memory: TimeFigure


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The clock that kernels since some year keep under load, as a device has it for older ones."""

    since: Annotated[int, Field(ge=2000, le=2100)]
    sustained: ShareFigure
    power_bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator (or one core of a CPU): peaks by data type, memory, and how far kernels get.

    Arguments:
        sustained: the clock that matrix units keep under load over that of short measurements; it holds where a stack
            is named.
        power_bound: ``sustained`` is the clock of a device that does nothing but large products, as its power allows;
            a step that uses less keeps more (``simpar.predict``). Else it holds whatever a step does.
        newer: both, by the year of kernels, from the oldest on; a stack says of which year its kernels are.
        bins: how many times as fast the fastest part that is sold under this name is as the slowest; none: all alike.
        multiprocessors: how many tiles of a product run at once, one on each; none: not known.
        work_queues: how many work queues it has at most; none: no bound is known.
    """

    name: Text
    # By data type, as peaks do not follow from the width alone (tf32).
    matrix: Mapping[Dtype, FlopsFigure]
    vector: Mapping[Dtype, FlopsFigure]
    memory: Memory
    kernel: Kernel
    matmul: Matmul
    attention: Attention
    sustained: ShareFigure | None = None
    power_bound: bool = False
    newer: tuple[Kernels, ...] = ()
    bins: NumberFigure | None = None
    multiprocessors: NumberFigure | None = None
    work_queues: NumberFigure | None = None

    def with_kernels(self, year: int) -> Device:
        """The device as kernels of a year find it."""
        changes = [one for one in self.newer if one.since <= year]
        if not changes:
            return self
        return dataclasses.replace(self, sustained=changes[-1].sustained, power_bound=changes[-1].power_bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """How fast the software stack issues ops: op by op, from a captured graph, or a graph that has sunk to the device.

    Arguments: ``mode`` in use; ``issue``, seconds an op in each mode.
    """

    mode: Issue
    issue: Mapping[Issue, TimeFigure]

    @property
    def seconds(self) -> TimeFigure:
        """Seconds to issue one op in the mode in use."""
        return self.issue[self.mode]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One level of the network, in both directions at once.

    Arguments:
        name: e.g. ``nvlink``.
        devices: how many neighbouring devices it joins; 0, all.
        per: what has a channel of its own: each ``device`` (its port), each ``pair`` of devices (a full mesh), or each
            ``node`` (one network card for all its devices).
        bandwidth: of one channel in one direction, nominal; ``share`` of it that transfers reach.
        card_share: share of a lower bandwidth than this one, where nothing but the link sets the pace.
        latency: seconds of one step of an algorithm.
        algorithm: of collectives: from how many members on → its name.
        sharing: ``shared``: transfers at once share the bandwidth; ``fatpipe``: each has it for itself.
    """

    name: Text
    devices: Annotated[int, Field(ge=0, le=2**20)]
    per: Literal['device', 'pair', 'node']
    bandwidth: RateFigure
    share: ShareFigure
    latency: TimeFigure
    # Libraries change their algorithm with the size of the group, so that bounds are part of the link.
    algorithm: Annotated[Mapping[int, Algorithm], Field(min_length=1)]
    sharing: Literal['shared', 'fatpipe'] = 'shared'
    card_share: ShareFigure | None = None

    @property
    def rate(self) -> float:
        """Bytes a second that transfers reach on one channel in one direction."""
        # Nominal and reached are kept apart, as they have different sources and grades.
        return self.bandwidth.value * self.share.value

    def algorithm_for(self, members: int) -> Algorithm:
        """What the library does between this many members."""
        # Below the smallest bound its algorithm holds, too: a profile need not begin at 2.
        return self.algorithm[max((least for least in self.algorithm if least <= members), default=min(self.algorithm))]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """What a device copies over to its host's memory and back, both ways at once.

    Arguments: ``name``, e.g. ``PCIe 5 x16``; ``bandwidth`` one way, nominal; ``share`` of it that large copies from
    pinned memory reach; ``latency`` of a copy.
    """

    name: Text
    bandwidth: RateFigure
    share: ShareFigure
    latency: TimeFigure


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """The collective library.

    Arguments:
        across: groups that span several levels of links: ``flat``, one ring through all of them at once (NCCL), or
            ``phases``, level by level, one after the other (HCCL).
        start: seconds of a collective however small, beside the latency of its steps.
        inline: data types that are reduced on the way, at no cost; others pass ``reduce`` (bytes a second of results).
        exchange: all-reduces of up to so many bytes are exchanged: each rank sends all of its own to every other, in
            one step.
        tuning: the row of NCCL's tables, or the device of HCCL's rules, by which algorithm and protocol are chosen by
            size and ranks; ``none``: what a link names, at its best.
    """

    name: Text
    across: Literal['flat', 'phases']
    start: TimeFigure
    inline: tuple[Dtype, ...] = ('fp64', 'fp32', 'tf32', 'fp16', 'bf16')
    reduce: RateFigure | None = None
    exchange: SizeFigure | None = None
    tuning: Tuning = 'none'


Waiting = bool | Literal['collectives', 'messages']
"""What slows kernels while it waits for its peers: all, nothing, or of two kinds one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowDown:
    """Speeds, of 1, beside one another.

    Arguments:
        matrix: speed of matrix products and attention while a collective runs on their device.
        memory: speed of all other kernels meanwhile.
        collective: speed of a collective while one of its devices computes.
        waiting: whether what waits for its peers slows kernels too; ``collectives`` or ``messages``, these alone.
    """

    matrix: ShareFigure
    memory: ShareFigure
    collective: ShareFigure
    waiting: Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A CSV file of measurements beside the profile (``.gz``: gzipped); ``dtype`` of the kernels in it."""

    file: Text
    source: Text
    grade: Grade
    # Tables of products and attention must have one; what is bound by memory or links goes by its bytes.
    dtype: Dtype | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Measured tables; see docs/proofs/profiles.md for their columns."""

    matmul: TableFile | None = None
    attention: TableFile | None = None
    operator: TableFile | None = None
    collective: TableFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(lazy.Card):
    """A kind of cluster written down.

    Arguments:
        devices: how many are in a node.
        expansion: what a running collective takes of a device by the mode of the library; none: it has one mode.
        links: levels of the network, from the innermost outwards.
        host_link: each device's to its host; none: not known.
        net: the shaped network that the tables of collectives were measured on, e.g. ``paced:1gbit,50us``.
        extends: the profile that it differs from, by name or path.
    """

    # A later form of profiles would have another number, and be refused by this reader with a clear word.
    format: Literal[1]
    name: Text
    description: Text
    devices: Devices
    device: Device
    host: Host
    # Topology and costs count on one level at least.
    links: Annotated[tuple[Link, ...], Field(min_length=1)]
    library: Library
    slow_down: SlowDown
    expansion: Expansion | None = None
    host_link: HostLink | None = None
    tables: Tables = field(default_factory=Tables)
    net: str = ''
    extends: str = ''

    def __repr__(self) -> str:
        # Its figures alone would be 6,000 characters.
        return f'Profile({self.name!r}, devices={self.devices!r})'
