"""Stack: what a training framework makes of a device; what each part is used for is said in ``simpar.cost.compute``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from simpar.document import Bytes
from simpar.hardware.profile import Figure, Mode, ShareFigure, Text, TimeFigure, Waiting

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
        weights: ``cast``: the 16-bit shards of gathered weights are made of fp32 ones for each gather, and not kept.
        update: bytes for each number of the fp32 weights, of what the update holds while it runs.
        fragmentation: share of what tensors hold that the allocator keeps beside and can give to none.
    """

    source: Text
    options: tuple[Name, ...] = ()
    workspaces: Mapping[Name, Workspace] = field(default_factory=dict)
    beside: Mapping[Name, Beside] = field(default_factory=dict)
    gradients: Literal['freed', 'contiguous'] = 'freed'
    gradient_copies: Annotated[int, Field(ge=0, le=8)] = 0
    boundary: Annotated[int, Field(ge=0, le=64)] = 0
    mask: Annotated[int, Field(ge=0, le=8)] = 0
    weights: Literal['kept', 'cast'] = 'kept'
    update: Annotated[int, Field(ge=0, le=16)] = 0
    fragmentation: ShareFigure | None = None


Wait = Literal['receive', 'gather', 'pass', 'batch', 'balance', 'norm', 'step']
Count = Annotated[int, Field(ge=0, le=1000)]
Amount = Annotated[float, Field(ge=0, le=1000)]
MOST_QUEUES: Final = 2**16
"""Work queues that a file may ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """What an operator launches in a phase beside the one kernel that a profile prices.

    Arguments:
        kernels: in all; 0: it is not launched at all, or is part of another operator's kernel.
        calls: what else the host does meanwhile, each as long as a launch, or where a device calls its kernels itself,
            as a small kernel; ``ranks``, of a collective, further ones for each rank of its group.
        passes: how often it moves the bytes of the operator, of a streaming one; of a collective, of its message, once
            as a message.
        result, left, right: of a product of [m, k] with [k, n], bytes that further kernels move for each element of its
            result, its left and its right operand.
        blocks: of attention of a part of a sequence with keys of several ranks, block by block: bytes that joining its
            results, or adding up gradients, moves for each element of the result and each further rank.
        sent: of a message of attention of such a part: how often it goes for each query head that shares a key head.
        multiple: of a product of attention: holds where heads × samples of a rank are a multiple of it; elsewhere the
            entry with ``.odd`` behind its key.
    """

    kernels: Count
    source: Text
    calls: Count = 0
    ranks: Count = 0
    passes: Amount = 1.0
    result: Amount = 0.0
    left: Amount = 0.0
    right: Amount = 0.0
    blocks: Amount = 0.0
    sent: Amount = 0.0
    multiple: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimes:
    """Seconds of the host: for a kernel ``forward`` and ``backward``, and of each ``step`` beside all launches."""

    forward: TimeFigure
    backward: TimeFigure
    step: TimeFigure


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Where the host waits for the device: behind a ``receive``, before a ``gather`` of weights, about each ``pass``,
    where it reads a ``batch``, behind each sweep of Sinkhorn's ``balance``, at the ``norm`` of gradients, at the end of
    each ``step``."""

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
class CapturedGraphs:
    """What is captured once and launched as graphs: its kernels take the host ``each``, and nothing calls them.

    Arguments: ``ops``, patterns of their names, collectives too.
    """

    ops: tuple[Name, ...]
    each: TimeFigure
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDispatch:
    """How tokens go to their experts: once to each node that has one of them, and from there to its devices.

    Arguments: ``ops``, patterns of names of the all-to-alls that go so.
    """

    ops: tuple[Name, ...]
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpansionMode:
    """The mode in which the library expands the framework's collectives."""

    mode: Mode
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelYear:
    """Of which year the framework's kernels for products are."""

    year: Annotated[int, Field(ge=2000, le=2100)]
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernel:
    """The kernel of fused attention.

    Arguments:
        share: of the peak forward, ``on`` some devices another, by patterns of their names; none: the device's own.
        backward: its time over the forward's.
        parts: whether it runs on the parts of a sequence that context ranks have, too.
        tables: whether it goes before a table of attention that the device has; else only where there is none.
    """

    backward: Figure
    share: ShareFigure | None = None
    on: Mapping[Name, ShareFigure] = field(default_factory=dict)
    parts: bool = False
    tables: bool = True

    def share_on(self, device: str) -> ShareFigure | None:
        """Of the peak of a device; none: its own."""
        shares = (share for pattern, share in self.on.items() if fnmatchcase(device.lower(), pattern))
        return next(shares, self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Keys of a schedule that hold beside the others where it has some values itself; both by dotted keys."""

    where: dict[str, Any]
    schedule: dict[str, Any]
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A training framework of some year written down.

    Arguments:
        title: what it is called in an answer, as in "… as MindSpeed-LLM runs it"; empty: its name.
        extends: the stack that it differs from.
        schedule: dotted keys that a schedule on this stack has where it is silent, with their values: of the plan,
            ``workload.optimizer``, ``workload.clip_norm`` and ``workload.gradients``.
        cases: further keys, each where a schedule says what they belong to.
        model: keys of the models that its published rows are of, where these are silent; no schedule takes them.
        source: where these were read.
        waiting: whether what waits for its peers slows kernels, in place of what the profile says.
        work_queues: how many of a device's it uses; none: all.
        tile_streams: of ``plan.tiles``; none: one tile behind the other.
        tile_call: by which tiles are issued; none: the host issues each as it would the product.
        graphs: what is launched as captured graphs; none: kernel by kernel.
        dispatch: by which tokens go to experts; none: a token goes once to each of its experts.
        expansion_mode: of the library; none: its default.
        sunk: whether the whole step is one graph on the device, as HCCL's graph mode has it.
        kernels: of which year they are, as devices tell clocks apart (``device.newer``); none: older than all of these.
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
    cases: tuple[Case, ...] = ()
    model: dict[str, Any] = field(default_factory=dict)
    host: HostTimes | None = None
    waits: Waits | None = None
    work_queues: WorkQueues | None = None
    tile_streams: TileStreams | None = None
    tile_call: TileCall | None = None
    graphs: CapturedGraphs | None = None
    dispatch: TokenDispatch | None = None
    expansion_mode: ExpansionMode | None = None
    attention: AttentionKernel | None = None
    kernels: KernelYear | None = None
    launches: Mapping[str, Launches] = field(default_factory=dict)
    waiting: Waiting | None = None
    sunk: bool = False
    memory: StackMemory | None = None

    @property
    def called(self) -> str:
        """What an answer calls it."""
        return self.title or self.name

    def keys_of(self, value_of: Callable[[str], Any]) -> dict[str, Any]:
        """Dotted keys with the values that a schedule has where it is silent.

        Arguments: ``value_of``, what the schedule says itself of a key.
        """
        keys = dict(self.schedule)
        for case in self.cases:
            if all(value_of(key) == value for key, value in case.where.items()):
                keys |= case.schedule
        return keys

    def of_rows(self, value_of: Callable[[str], Any]) -> dict[str, Any]:
        """As of a published row of this framework, with keys of its model."""
        return {**self.keys_of(value_of), **{f'workload.transformer.{key}': value for key, value in self.model.items()}}
