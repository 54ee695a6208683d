"""A dry run: what every rank of any cluster would ask of its devices, with tensors that have shapes and no numbers.

Each rank's host issues its steps as on real devices: the same kernels, the calls of ``torch.distributed`` to torch's
fake process group. Streams, events, memory and the meetings of collectives are those of virtual accelerators, which
stand for devices of another kind, and whose memory has no cells.
"""

import datetime
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from executor import virtual
from executor.devices import KINDS
from executor.devices.fused import dtypes
from executor.devices.issue import INPUT, DeviceMemory, Issuer
from executor.devices.open import Device, device_module
from executor.draws import single_thread
from executor.ranks.collectives import Messages
from executor.ranks.real import Native, Start, device_transports
from executor.state import Request
from executor.tensors import persistent, shape_of_step, torch_dtype
from executor.virtual.engine import state
from executor.virtual.tensor import KIND, VirtualTensor, dispatch, touches
from executor.virtual.transport import VirtualTransport, ends_of, watch_of
from executor.walk import Slot
from simpar.errors import Infeasible, ProgramError
from simpar.files import read_csv
from simpar.memory import memory, sequential
from simpar.program import OpClass, Program, Tensor
from simpar.size import Limit
from simpar.units import format_size, format_time

WHOLE: Final = 8
"""Ranks up to which all are issued; of more, those that differ."""
STEPS: Final = 2
"""One shows what a step needs of itself, the second what it needs of the one before."""
ROOM: Final = 100
"""Tasks of a slot at most, in the mean: no host waits before all have issued."""
WITHIN: Final = 0.01
"""How far bytes may be from those that the program says."""
SECONDS: Final = 8e-4
"""An op takes at least so long: those of examples/llama3_8b_h100.yaml took 2.0 ms each on a busy machine."""
Call = tuple[str, str]
"""An operation of torch and the dtype in which it computes."""
c10d = torch.ops.c10d


class Asked(TorchDispatchMode):  # type: ignore[misc]
    """What hosts ask of devices: operations go to virtual accelerators, and are counted by name and dtype.

    Arguments: ``kind``, of the devices that these stand for.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.calls: Counter[Call] = Counter()
        self.collectives = 0
        self.rank = 0
        self.slot: Slot | None = None
        self.end: VirtualTransport | None = None
        self._sends: list[tuple[torch.Tensor, int]] = []
        self._receives: list[tuple[torch.Tensor, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """One operation: issued to the current stream of its device, or done at once on the host."""
        kwargs = dict(kwargs or {})
        if func.namespace == 'c10d':
            return self._communicate(func, args)
        device = kwargs.get('device')
        if VirtualTensor not in types and not (isinstance(device, torch.device) and device.type == KIND):
            return func(*args, **kwargs)
        try:
            return dispatch(func, args, kwargs)
        except ProgramError as error:
            if self.slot is None:
                raise
            raise type(error)(f'{self.slot.op.name} on rank {self.rank}: {error}') from error

    def count(self, func: Any, leaves: list[Any], results: list[torch.Tensor]) -> None:
        """Count an operation that is issued, by the dtype in which it computes."""
        name = func._schema.name.partition('::')[2]
        # A fused kernel computes in the dtype of its operands, whatever statistics it reads.
        self.calls[name, _dtype(leaves[:1] if name in dtypes(self.kind) else leaves, results)] += 1

    def _communicate(self, func: Any, args: Sequence[Any]) -> Any:
        """A call of ``torch.distributed``: ranks meet on virtual streams; the fake group is through at once."""
        assert self.end is not None
        assert self.slot is not None
        name = func._schema.name.partition('::')[2]
        if name in MET:
            into, of = args[:2] if name != 'allreduce_' else (args[0][0], args[0][0])
            op = self.slot.op
            # What all ranks of a collective must have alike.
            form = MET[name], op.reduce, of.numel(), into.numel(), of.dtype, op.name, *self.slot.part
            self.end.take_seat(form, touches([of], [into]))
        elif name in ('send', 'recv_'):
            (self._sends if name == 'send' else self._receives).append((args[0][0], args[2]))
        else:
            raise ProgramError(f'{self.slot.op.name}: {func} is no call that a dry run knows')
        self.collectives += 1
        group = next(one for one in args if isinstance(one, torch.ScriptObject))
        # Of the fake group every call is over at once, whatever its tensors are.
        work = c10d.recv_([torch.empty(0)], group, 0, 0)
        return work if len(func._schema.returns) == 1 else (args[0], work)

    def flush(self) -> None:
        """Messages that belong together are one batch."""
        assert self.end is not None
        self.end.exchange(self._sends, self._receives)
        self._sends, self._receives = [], []


class Whole(TorchFunctionMode):  # type: ignore[misc]
    """Keeps whole what torch takes apart for devices that it does not know."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """One call of torch."""
        if func is torch.ops.aten._fused_rms_norm:
            return dispatch(func.default, args, {})
        return func(*args, **(kwargs or {}))


MET: Final = {
    'allreduce_': 'all_reduce',
    '_allgather_base_': 'all_gather',
    '_reduce_scatter_base_': 'reduce_scatter',
    'alltoall_base_': 'all_to_all',
}
"""Calls of ``torch.distributed`` → collectives; what comes is their first argument, what goes the second."""


def _dtype(leaves: list[Any], results: list[Any]) -> str:
    """The dtype in which an operation computes: what its tensors are promoted to, floating ones first."""
    found = [one.dtype for one in leaves if isinstance(one, torch.Tensor)] or [results[0].dtype]
    found = [one for one in found if one.is_floating_point] or found
    wide = found[0]
    for one in found[1:]:
        wide = torch.promote_types(wide, one)
    return str(wide).removeprefix('torch.')


@dataclass(frozen=True)
class Batched(Native):
    """A communicator of torch's fake group, whose batches of messages are told as such."""

    mode: Asked

    def exchange(self, sends: Messages, receives: Messages) -> None:
        """Send and receive at once, as one batch."""
        super().exchange(sends, receives)
        self.mode.flush()


class Counted(DeviceMemory):
    """A rank's memory that remembers the most bytes of tensors between two operations, inputs left out."""

    def __init__(self, *args: Any) -> None:
        self.most = self._live = 0
        self._uses: Counter[int] = Counter()
        super().__init__(*args)

    def free(self, op: OpClass, micro_batch: int, copy: int) -> None:
        """End what an op frees; until then it was there beside what the op made."""
        self.most = max(self.most, self._live)
        super().free(op, micro_batch, copy)

    def _hold(self, tensor: torch.Tensor, stream: int) -> torch.Tensor:
        super()._hold(tensor, stream)
        # Of a view of an input the owner is the input's.
        if self._owners[self.storage_of(tensor)][0] != INPUT:
            self._count(tensor, 1)
        return tensor

    def _let_go(self, tensor: torch.Tensor) -> None:
        if self._owners[self.storage_of(tensor)][0] != INPUT:
            self._count(tensor, -1)
        super()._let_go(tensor)

    def _count(self, tensor: Any, by: int) -> None:
        """One tensor more, or less, in some memory of the device."""
        if tensor.device != self._device.name:
            return
        key, size = self.storage_of(tensor), tensor.untyped_storage().nbytes()
        before = self._uses[key]
        self._uses[key] += by
        self._live += size * (bool(self._uses[key]) - bool(before))
        if not self._uses[key]:
            del self._uses[key]


class DryIssuer(Issuer):
    """A host whose device has no numbers."""

    memory_of = Counted


@dataclass(frozen=True, slots=True)
class RankBytes:
    """Bytes of a rank's tensors at most, between two operations, inputs left out.

    Arguments: ``program``, what the program says; ``device``, what there was; ``inside``, within operations, too.
    """

    rank: int
    program: int
    device: int
    inside: int

    @property
    def error(self) -> float:
        """How far the device's is from the program's."""
        return self.device / self.program - 1 if self.program else 0.0


@dataclass(frozen=True, slots=True)
class DryRun:
    """What was asked of devices.

    Arguments:
        kind: of the devices.
        ranks: those that were issued, of ``world``.
        calls: (operation, dtype) → how often.
        collectives: calls of ``torch.distributed``.
    """

    kind: str
    ranks: tuple[int, ...]
    world: int
    calls: Mapping[Call, int]
    collectives: int
    bytes: tuple[RankBytes, ...]

    @property
    def wrong(self) -> list[str]:
        """What would fail on devices, or is not what the program says."""
        torn = [one for one in self.bytes if abs(one.error) > WITHIN]
        return [
            *(f'no kernel of {self.kind} is known for {name} of {dtype} (dtypes.csv)' for name, dtype in self.without),
            *(
                f'rank {one.rank} holds {one.device:,} bytes of tensors, and the program says {one.program:,}'
                for one in torn
            ),
        ]

    @property
    def without(self) -> list[Call]:
        """Operations of which the table says that there is no kernel, or does not know; none where it knows nothing."""
        known = kernels(self.kind)
        return sorted(call for call in self.calls if call[1] not in known.get(call[0], ())) if known else []

    def to_dict(self) -> dict[str, Any]:
        """As one object."""
        calls = [{'operation': name, 'dtype': dtype, 'count': count} for (name, dtype), count in self.calls.items()]
        return {
            'device': self.kind,
            'ranks': list(self.ranks),
            'world': self.world,
            'operations': calls,
            'kernels': 'wrong' if self.without else 'in the table' if kernels(self.kind) else 'not known',
            'collectives': self.collectives,
            'bytes': [asdict(one) for one in self.bytes],
            'wrong': self.wrong,
        }

    def lines(self) -> list[str]:
        """As text for a person."""
        which = (
            'all' if len(self.ranks) == self.world else f'ranks {", ".join(map(str, self.ranks))}, which stand for all'
        )
        full = max(self.bytes, key=lambda one: one.device)
        known = (
            'all of them in the table of kernels' if kernels(self.kind) else 'whether there are kernels is not known'
        )
        known = f'{len(self.without)} not in the table of kernels' if self.without else known
        return [
            f'dry run on {self.kind}: {which} of {self.world} ranks, {STEPS} steps, without devices',
            f'{sum(self.calls.values())} operations, {len(self.calls)} by name and dtype: {known}',
            f'{self.collectives} calls of torch.distributed met their peers; no access without its event',
            f'memory of rank {full.rank}: {format_size(full.device)} of tensors ({full.error:+.2%} from the program)',
            f'its allocator: {format_size(full.inside)} with inputs, inside of kernels, and kept for other streams',
        ]


def kernels(kind: str) -> dict[str, frozenset[str]]:
    """Operation → dtypes for which a kind of device has kernels; empty: that is not known of the kind."""
    rows = read_csv(Path(__file__).parent.parent / 'devices' / 'dtypes.csv')
    found = {name: frozenset(row[kind].split()) for row in rows if kind in row for name in row['operations'].split()}
    return {**found, **dtypes(kind)} if found else {}


def dry_run(program: Program, kind: str = 'cuda', *, dtype: str = '', issuer: type[DryIssuer] = DryIssuer) -> DryRun:
    """Issue two steps of all ranks, or of those that differ, and hold them against one another.

    Arguments: ``dtype`` takes the place of every floating one.

    Raises ``ProgramError`` where an operation fails, a host would wait, ranks meet in different collectives or a tensor
    is used without the events that this needs (``Race``), ``Deadlock`` where no stream can go on.
    """
    try:
        # Places of tokens are found on the host: many small operations, which threads only hold up.
        with single_thread():
            return _issued_by_all(program, kind, dtype, issuer)
    finally:
        # Its devices have no memory: whoever comes next finds others.
        state.reset()


def _issued_by_all(program: Program, kind: str, dtype: str, issuer: type[DryIssuer]) -> DryRun:
    # Before anything else: torch must know the kind.
    device_module(kind)
    virtual.install()
    mode, ranks, issuers = Asked(kind), representatives(program), []
    engine = state.reset(asked=mode)
    engine.room = sum(len(program.role(rank)) for rank in ranks) * STEPS * ROOM
    request = Request(steps=STEPS, device=kind, transport='native', dtype=dtype)
    for number, (rank, ends) in enumerate(zip(ranks, ends_of(program, ranks), strict=True)):
        dist.init_process_group('fake', rank=rank, world_size=program.world)
        # Its groups are asked which devices they are for.
        if KIND not in (devices := dist.Backend.backend_capability['fake']):
            devices.append(KIND)
        try:
            issuers.append(_issued(program, request, rank, number, ends, mode, issuer))
        finally:
            dist.destroy_process_group()
    with mode, torch.no_grad():
        for one in issuers:
            one.finish()
    engine.races.check()
    issued = tuple(_bytes_of(program, issuers))
    return DryRun(kind, tuple(ranks), program.world, mode.calls, mode.collectives, issued)


def check_time(program: Program, limit: Limit) -> None:
    """Raises ``Infeasible`` where issuing a program takes longer than a limit, whatever its ops are."""
    count = sum(len(program.role(rank)) for rank in representatives(program)) * STEPS
    if count * SECONDS > limit.seconds:
        raise Infeasible(
            f'plan: a dry run of {count:,} ops takes at least {format_time(count * SECONDS)}, the limit is '
            f'{format_time(limit.seconds)}; take fewer micro-batches, copies, tiles or layers, or raise it, '
            f'e.g. --limit {2 * round(count * SECONDS)}s'
        )


def representatives(program: Program) -> list[int]:
    """All ranks of a small world; else the first of each role, and the last that the first rank meets in each group."""
    if program.world <= WHOLE:
        return list(range(program.world))
    first = {role: rank for rank, role in reversed(list(enumerate(program.role_of_rank.tolist())))}
    return sorted({*first.values(), *(part.members(0)[-1] for part in program.partitions.values())})


def _issued(
    program: Program,
    request: Request,
    rank: int,
    number: int,
    ends: Mapping[tuple[str, str], VirtualTransport],
    mode: Asked,
    issuer: type[DryIssuer],
) -> DryIssuer:
    """A rank's host that has issued all steps.

    Arguments: ``number``, of its device; ``ends``, where its calls meet those of others.
    """
    kind = replace(KINDS[request.device], backend='fake', pins=False)
    module = SimpleNamespace(**{**vars(virtual), 'device_count': lambda: program.world})
    device = Device(kind, module, torch.device(KIND, number))
    groups = device_transports(program, rank, device, {}, request, datetime.timedelta(minutes=1), {})
    natives = ((key, one) for key, one in groups.items() if isinstance(one, Native))
    transports = {key: Batched(one.group, one.members, one.position, mode) for key, one in natives}
    streams, touch = program.role(rank).streams, watch_of(program, rank)

    def watch(slot: Slot, step: int, stream: Any) -> None:
        mode.slot, mode.end = slot, ends.get((slot.op.partition, streams[slot.stream]))
        touch(slot, step, stream)

    mode.rank, mode.slot = rank, None
    with mode, Whole(), torch.no_grad(), warnings.catch_warnings():
        # Newer names of collectives are not in every torch that is supported.
        warnings.simplefilter('ignore', FutureWarning)
        host = issuer(_start(program, request, rank), device, transports, watch)
        for stream, name in zip(host.streams, streams, strict=True):
            stream.queue.name = f'{name} of rank {rank}'
        host.begin(state.engine.now, STEPS - 1)
        for step in range(STEPS):
            state.issuing = True
            host.issue(step)
            state.issuing = False
    return host


def _start(program: Program, request: Request, rank: int) -> Start:
    """What a rank begins with: parameters, states and batches without numbers."""
    start = Start.of(program, rank, request)

    def empty(tensor: Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=torch_dtype(tensor.dtype, start.dtype), device='meta')

    held = {tensor.name: empty(tensor, program.local_shape(tensor)) for tensor in persistent(program, rank)}
    inputs = (tensor for tensor in program.tensors if tensor.kind == 'input')
    batch = {one.like or one.name: empty(one, shape_of_step(program, one)) for one in inputs}
    return replace(start, held=held, batches=dict.fromkeys(range(STEPS), batch))


def _bytes_of(program: Program, hosts: Sequence[Issuer]) -> Iterator[RankBytes]:
    """For each rank what the program says, and what there was."""
    # Experts that drop no token have room for all of them here, however full it is; 8 bits are held in fp32.
    tensors = (
        replace(one, fill=1.0, dtype='fp32' if one.dtype == 'fp8' else one.dtype)
        if one.fill != 1 or one.dtype == 'fp8'
        else one
        for one in program.tensors
    )
    full = replace(program, tensors=tuple(tensors))
    said = memory(sequential(full))
    for number, host in enumerate(hosts):
        assert isinstance(host.memory, Counted)
        timeline = said.rank(host.start.rank).by_kind()
        kinds = [column for column, kind in enumerate(timeline.names) if kind != 'input']
        most = int(timeline.bytes[:, kinds].sum(axis=1).max())
        yield RankBytes(host.start.rank, most, host.memory.most, state.pools[number].peak)
