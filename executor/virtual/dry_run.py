"""A dry run: what every rank of any cluster would ask of its devices, with tensors that have shapes and no numbers.

Each rank's host issues its steps as on real devices: the same kernels, the calls of ``torch.distributed`` to torch's
fake process group, tensors under ``FakeTensorMode`` on the device itself. Streams, events, memory and the meetings of
collectives are those of virtual accelerators, whose tasks do nothing.
"""

import datetime
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

from executor import virtual
from executor.devices import KINDS
from executor.devices.fused import dtypes
from executor.devices.issue import INPUT, DeviceMemory, Issuer
from executor.devices.open import Device, device_module
from executor.kernels import Context
from executor.ranks.collectives import Messages
from executor.ranks.real import Computation, Native, Start, Transport, device_transports, transfer
from executor.state import Request
from executor.tensors import persistent, shape_of_step, torch_dtype
from executor.virtual.engine import HostLease, Pool, state
from executor.virtual.tensor import READ_BY_HOST, Form, flat, form_of, touches, unflat, written
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
"""An op takes at least so long: those of examples/llama3_8b_h100.yaml took 1.9 ms each under a profiler."""
storage = DeviceMemory.storage_of
Tensors = list[torch.Tensor]
Call = tuple[str, str]
"""An operation of torch and the dtype in which it computes."""
aten = torch.ops.aten
c10d = torch.ops.c10d


@dataclass(frozen=True, slots=True)
class Folded:
    """What a kernel, or a collective with all that goes before and behind it, asked for, of tensors of some forms.

    Arguments:
        forms: of its results; places, in which of their ``sizes``, bytes of memory, each of them is.
        beside: the most bytes that it held beside these.
        met: of a collective, its form.
    """

    device: torch.device
    forms: tuple[Form, ...]
    places: tuple[int, ...]
    sizes: tuple[int, ...]
    calls: Counter[Call]
    beside: int
    met: tuple[object, ...]


class FakeDevices(FakeTensorMode):  # type: ignore[misc]
    """Tensors on a device have no numbers; those of the host stay real, for shapes follow from some of them.

    Arguments: ``kind``, of the device. ``calls`` counts operations by name and dtype.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.kind = kind
        self.calls: Counter[Call] = Counter()
        self.collectives = 0
        self.slot: Slot | None = None
        self.end: VirtualTransport | None = None
        self.changed: set[int] = set()
        self.deriving = self._plain = self._without_device = False
        self.met: tuple[object, ...] = ()
        self._sends: list[tuple[torch.Tensor, int]] = []
        self._receives: list[tuple[torch.Tensor, int]] = []

    @property
    def avoid_device_init(self) -> bool:
        """Whether torch must not ask for the device; virtual accelerators, which it knows, are none of this kind."""
        return not torch.get_device_module(self.kind).is_available()

    @contextmanager
    def plain(self, *, without_device: bool = False) -> Iterator[None]:
        """Within it, all tensors are without numbers, and nothing is issued; or tensors are as torch has them."""
        before = self._plain, self._without_device
        self._plain, self._without_device = True, without_device
        try:
            yield
        finally:
            self._plain, self._without_device = before

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """One operation: issued to the current stream of its device, or done at once on the host."""
        kwargs = dict(kwargs or {})
        if self._without_device:
            return func(*args, **kwargs)
        if self._plain:
            return super().__torch_dispatch__(func, types, args, kwargs)
        if func.namespace == 'c10d':
            return self._communicate(func, args)
        if func is aten.is_pinned.default:
            return False
        if func is aten._pin_memory.default:
            return args[0]
        leaves, shape = flat(args, kwargs)
        fakes = [leaf for leaf in leaves if isinstance(leaf, FakeTensor)]
        named = [torch.device(leaf).type for leaf in leaves if isinstance(leaf, torch.device)]
        if self.deriving and ('meta' in named or any(hasattr(leaf, 'twin') for leaf in leaves)):
            return self._twice(func, leaves, shape)
        if not fakes and self.kind not in named:
            return func(*args, **kwargs)
        ours = [leaf for leaf in fakes if self._is_ours(leaf)]
        if state.issuing and ours and (func in READ_BY_HOST or 'cpu' in named):
            raise ProgramError(f'{func} is {READ}')
        if state.issuing and func is aten.copy_.default and _blocks(*args, **kwargs):
            raise ProgramError(f'{func} between host and device {BLOCKS}')
        with self.plain():
            output = super().__torch_dispatch__(func, types, args, kwargs)
        results = [one for one in (output if isinstance(output, tuple | list) else [output]) if self._is_ours(one)]
        if ours or results:
            self._issue(func, leaves, shape, ours, results)
        return output

    def _made(self, template: Folded) -> list[torch.Tensor]:
        """New tensors of known forms: by torch's own rules each would take ten times as long."""
        with self.plain(without_device=True):
            stores = [torch.empty(size, dtype=torch.uint8, device='meta').untyped_storage() for size in template.sizes]
            made = [
                torch.empty(0, dtype=form.dtype, device='meta').set_(stores[place], form.offset, form.size, form.stride)
                for form, place in zip(template.forms, template.places, strict=True)
            ]
        return [FakeTensor(self, one, template.device) for one in made]

    def bare(self, tensor: torch.Tensor) -> torch.Tensor:
        """What autograd, which asks for a device, sees of a tensor: its form; ``twin`` is the tensor."""
        with self.plain(without_device=True):
            meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device='meta')
        meta.twin = tensor
        return meta

    def _twice(self, func: Any, leaves: list[Any], shape: Any) -> Any:
        """An operation of a derivative: on what autograd sees, and on the tensors of the device that stand behind."""
        here = torch.device(self.kind, state.device)
        seen, behind = list(leaves), list(leaves)
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                seen[place] = leaf if hasattr(leaf, 'twin') else self.bare(leaf)
                behind[place] = seen[place].twin
            elif isinstance(leaf, torch.device):
                behind[place] = here
        args, kwargs = unflat(seen, shape)
        outputs = func(*args, **kwargs)
        args, kwargs = unflat(behind, shape)
        with self:
            twins = func(*args, **kwargs)
        for one, twin in zip(*((of,) if isinstance(of, torch.Tensor) else of for of in (outputs, twins)), strict=True):
            if isinstance(one, torch.Tensor):
                one.twin = twin
        return outputs

    def again(self, template: Folded, reads: list[torch.Tensor]) -> list[torch.Tensor]:
        """What a kernel or a collective gave before for tensors of the same forms, as one task."""
        device = torch.device('virtual', template.device.index)
        queue = state.current_queue(device)
        pool = state.pool_of(device, queue)
        beside = pool.lease(template.beside, queue) if template.beside else None
        leases = [pool.lease(size, queue) for size in template.sizes]
        results = self._made(template)
        for one, form, place in zip(results, template.forms, template.places, strict=True):
            one.lease, one.form = leases[place], form
        self.calls.update(template.calls)
        if template.met:
            assert self.end is not None
            self.end.take_seat((*template.met, *self._named()), touches(reads, results))
            self.collectives += 1
        else:
            queue.issue('a kernel as before', _nothing, touches(reads, results))
        del beside
        return results

    def as_one(self, func: Any, args: Sequence[Any]) -> Any:
        """An operation that a torch without CUDA takes apart before anybody sees it."""
        with self.plain():
            output = func(*args)
        leaves, shape = flat(args, {})
        results = [output] if isinstance(output, torch.Tensor) else list(output)
        self._issue(func, leaves, shape, [one for one in leaves if self._is_ours(one)], results)
        return output

    def _is_ours(self, one: Any) -> bool:
        """Whether it is of the device, or of the host's memory that devices copy to and from."""
        return isinstance(one, FakeTensor) and (one.device.type == self.kind or hasattr(one, 'lease'))

    def empty_on_host(self, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Pinned memory of the host, without numbers."""
        with self.plain():
            made = torch.empty(size, dtype=dtype)
        made.lease, made.form = HostLease(made.nbytes, state.engine.races, 'meta'), form_of(made)
        return made

    def _issue(self, func: Any, leaves: list[Any], shape: Any, ours: list[torch.Tensor], results: list[Any]) -> None:
        """A task that does nothing, with what it reads and writes."""
        there = [one.device.index for one in (*ours, *results) if one.device.type == self.kind]
        device = torch.device('virtual', (*there, state.device)[0])
        queue = state.current_queue(device)
        leases = {storage(one): one.lease for one in ours}
        fresh = []
        for one in results:
            if not hasattr(one, 'lease'):
                key = storage(one)
                if key not in leases:
                    leases[key] = state.pool_of(device, queue).lease(one.untyped_storage().nbytes(), queue)
                    fresh.append(one)
                one.lease, one.form = leases[key], form_of(one)
        changed = written(func, leaves, shape)
        if not fresh and not changed:
            return
        self.changed.update(storage(leaves[place]) for place in changed if self._is_ours(leaves[place]))
        name = func._schema.name.partition('::')[2]
        # A fused kernel computes in the dtype of its operands, whatever statistics it reads.
        self.calls[name, _dtype(leaves[:1] if name in dtypes(self.kind) else leaves, results)] += 1
        reads = [one for place, one in enumerate(leaves) if self._is_ours(one) and place not in changed]
        writes = [leaves[place] for place in changed if self._is_ours(leaves[place])]
        queue.issue(str(func), _nothing, touches(reads, [*writes, *fresh]))

    def _communicate(self, func: Any, args: Sequence[Any]) -> Any:
        """A call of ``torch.distributed``: ranks meet on virtual streams; the fake group is through at once."""
        assert self.end is not None
        assert self.slot is not None
        name = func._schema.name.partition('::')[2]
        if name in MET:
            into, of = args[:2] if name != 'allreduce_' else (args[0][0], args[0][0])
            op = self.slot.op
            self.met = MET[name], op.reduce, of.numel(), into.numel(), of.dtype
            self.end.take_seat((*self.met, *self._named()), touches([of], [into]))
        elif name in ('send', 'recv_'):
            (self._sends if name == 'send' else self._receives).append((args[0][0], args[2]))
        else:
            raise ProgramError(f'{self.slot.op.name}: {func} is no call that a dry run knows')
        self.collectives += 1
        group = next(one for one in args if isinstance(one, torch.ScriptObject))
        # Of the fake group every call is over at once, whatever its tensors are.
        work = c10d.recv_([torch.empty(0)], group, 0, 0)
        return work if len(func._schema.returns) == 1 else (args[0], work)

    def _named(self) -> tuple[object, ...]:
        """What all ranks of a collective must have alike beside its form."""
        assert self.slot is not None
        return self.slot.op.name, *self.slot.part

    def flush(self) -> None:
        """Messages that belong together are one batch."""
        assert self.end is not None
        self.end.exchange(self._sends, self._receives)
        self._sends, self._receives = [], []


MET: Final = {
    'allreduce_': 'all_reduce',
    '_allgather_base_': 'all_gather',
    '_reduce_scatter_base_': 'reduce_scatter',
    'alltoall_base_': 'all_to_all',
}
"""Calls of ``torch.distributed`` → collectives; what comes is their first argument, what goes the second."""
READ: Final = 'read by the host inside of a step; a device would stand still meanwhile'
BLOCKS: Final = 'has the host wait for the device inside of a step; copy without blocking'
NUMBERS: Final = {
    torch.Tensor.item,
    torch.Tensor.tolist,
    torch.Tensor.__float__,
    torch.Tensor.__int__,
    torch.Tensor.__bool__,
}
GUARDED: Final = {torch.Tensor.copy_: aten.copy_.default, torch.Tensor.__invert__: aten.bitwise_not.default}
"""Methods whose first step is to ask for the device → what they do then."""


class Indexed(TorchFunctionMode):  # type: ignore[misc]
    """Brackets, copies, numbers, derivatives: torch's own methods ask for a device first, and there is none."""

    def __init__(self, mode: FakeDevices) -> None:
        super().__init__()
        self.mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Brackets around a tensor on a device, and copies of it; all else as it is."""
        if func in NUMBERS and state.issuing and args[0].device.type != 'cpu':
            raise ProgramError(f'a number is {READ}')
        if func is torch.Tensor.requires_grad_ and isinstance(args[0], FakeTensor):
            self.mode.deriving = True
            return self.mode.bare(args[0]).requires_grad_()
        if func is torch.autograd.grad:
            return self._derivatives(*args, **(kwargs or {}))
        if func in (aten._fused_rms_norm, aten.silu_backward):
            return self.mode.as_one(func.default, args)
        if func in GUARDED:
            return GUARDED[func](*args, **(kwargs or {}))
        if func is torch.Tensor.contiguous:
            return args[0] if args[0].is_contiguous() else args[0].clone(memory_format=torch.contiguous_format)
        if func not in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) or args[0].device.type == 'cpu':
            return func(*args, **(kwargs or {}))
        part, places = _part(args[0], args[1] if isinstance(args[1], tuple) else (args[1],))
        picks = any(place is not None for place in places)
        if func is torch.Tensor.__getitem__:
            return aten.index.Tensor(part, places) if picks else part
        value = args[2] if isinstance(args[2], torch.Tensor) else torch.full((), args[2], dtype=part.dtype)
        return aten.index_put_.default(part, places, value) if picks else aten.copy_.default(part, value, True)

    def _derivatives(self, of: Any, by: Any, grad_outputs: Any, **how: Any) -> list[torch.Tensor]:
        """Those of autograd, which sees tensors without a device; what it leaves out is zero."""
        weights = [
            self.mode.bare(one) for one in ([grad_outputs] if isinstance(grad_outputs, torch.Tensor) else grad_outputs)
        ]
        gradients = torch.autograd.grad(of, by, weights, **how)
        self.mode.deriving = False
        return [torch.zeros_like(one.twin) if d is None else d.twin for one, d in zip(by, gradients, strict=True)]


def _part(x: torch.Tensor, index: tuple[Any, ...]) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """What slices and numbers leave of a tensor, and for each of its dims the places that are picked along it."""
    places: list[torch.Tensor | None] = []
    for at, one in enumerate(index):
        if one is Ellipsis:
            behind = sum(other is not None for other in index[at + 1 :])
            places += [None] * (x.dim() - len(places) - behind)
        elif isinstance(one, torch.Tensor):
            places.append(one)
        elif isinstance(one, int):
            x = x.select(len(places), one)
        else:
            dim = len(places)
            x = x.unsqueeze(dim) if one is None else aten.slice.Tensor(x, dim, one.start, one.stop, one.step or 1)
            places.append(None)
    return x, places


def _blocks(into: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> bool:
    """Whether the host waits for a copy: one between it and a device that was not told otherwise."""
    return not non_blocking and into.device.type != source.device.type and source.dim() > 0


def _nothing() -> None:
    pass


def _dtype(leaves: list[Any], results: list[Any]) -> str:
    """The dtype in which an operation computes: what its tensors are promoted to, floating ones first."""
    candidates = [one.dtype for one in leaves if isinstance(one, torch.Tensor)] or [results[0].dtype]
    candidates = [one for one in candidates if one.is_floating_point] or candidates
    wide = candidates[0]
    for one in candidates[1:]:
        wide = torch.promote_types(wide, one)
    return str(wide).removeprefix('torch.')


@dataclass(frozen=True)
class Batched(Native):
    """A communicator of torch's fake group, whose batches of messages are told as such."""

    mode: FakeDevices

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

    @staticmethod
    def storage_of(tensor: Any) -> int:
        """The same, sooner than torch tells."""
        return id(tensor.lease)

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
        key, size = self.storage_of(tensor), tensor.lease.asked
        before = self._uses[key]
        self._uses[key] += by
        self._live += size * (bool(self._uses[key]) - bool(before))
        if not self._uses[key]:
            del self._uses[key]


class FoldedComputation(Computation):
    """Kernels and collectives that a rank asks for again, of tensors of the same forms, are issued as one task."""

    mode: FakeDevices

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._known: dict[Hashable, Folded] = {}

    def run_kernel(self, index: int, where: Context, reads: list[torch.Tensor]) -> list[torch.Tensor]:
        """What the kernel of an op class gives; the first of each kind is issued call by call."""
        op = self._start.program.op_classes[index]
        return self._folded(op, reads, lambda: Computation.run_kernel(self, index, where, reads))

    def communicate(self, slot: Slot, step: int, transport: Transport) -> None:
        """Carry out a collective as a kernel is run; messages are issued call by call, for they come in batches."""
        op = slot.op
        if op.kind != 'collective' or op.operator == 'send_recv':
            super().communicate(slot, step, transport)
            return
        reads = self.reads(slot, step)
        self.keep(slot, self._folded(op, reads, lambda: transfer(op, transport, reads, [])))

    def _folded(self, op: OpClass, reads: list[Any], issued: Callable[[], Tensors]) -> Tensors:
        """What an op gives. Argument: ``issued``, which issues it call by call."""
        program, device = self._start.program, self.where.device
        attributes = tuple(item for item in sorted(op.attributes.items()) if item[0] != 'site')
        forms = tuple(program.local_shape(program.tensor[name]) for name in op.writes + op.accumulates)
        key = op.operator, op.phase, op.dtype, op.partition, op.reduce, attributes, forms, *(one.form for one in reads)
        template = self._known.get(key)
        if template is not None:
            return self.mode.again(template, reads)
        pool, calls = state.pools[device.index], self.mode.calls.copy()
        begun, peak, pool.peak = pool.allocated, pool.peak, pool.allocated
        self.mode.changed.clear()
        self.mode.met = ()
        results = issued()
        inside, pool.peak = pool.peak - begun, max(peak, pool.peak)
        before, made = set(map(storage, reads)), list(dict.fromkeys(map(storage, results)))
        # One that changes what it reads, or gives a part of it, is issued in full each time.
        if results and not before & {*made, *self.mode.changed}:
            sizes = {storage(one): one.untyped_storage().nbytes() for one in results}
            self._known[key] = Folded(
                device,
                tuple(map(form_of, results)),
                tuple(made.index(storage(one)) for one in results),
                tuple(sizes[one] for one in made),
                self.mode.calls - calls,
                max(inside - sum(sizes.values()), 0),
                self.mode.met,
            )
        return results


class DryIssuer(Issuer):
    """A host whose device has no numbers."""

    memory_of = Counted
    computation_of = FoldedComputation


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
        table = kernels(self.kind)
        return sorted(call for call in self.calls if call[1] not in table.get(call[0], ())) if table else []

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
        coverage = (
            'all of them in the table of kernels' if kernels(self.kind) else 'whether there are kernels is not known'
        )
        coverage = f'{len(self.without)} not in the table of kernels' if self.without else coverage
        return [
            f'dry run on {self.kind}: {which} of {self.world} ranks, {STEPS} steps, without devices',
            f'{sum(self.calls.values())} operations, {len(self.calls)} by name and dtype: {coverage}',
            f'{self.collectives} calls of torch.distributed met their peers; no access without its event',
            f'memory of rank {full.rank}: {format_size(full.device)} of tensors ({full.error:+.2%} from the program)',
            f'its allocator: {format_size(full.inside)} with inputs, inside of kernels, and kept for other streams',
        ]


def kernels(kind: str) -> dict[str, frozenset[str]]:
    """Operation → dtypes for which a kind of device has kernels; empty: that is not known of the kind."""
    rows = read_csv(Path(__file__).parent.parent / 'devices' / 'dtypes.csv')
    table = {name: frozenset(row[kind].split()) for row in rows if kind in row for name in row['operations'].split()}
    return {**table, **dtypes(kind)} if table else {}


def dry_run(program: Program, kind: str = 'cuda', *, dtype: str = '', issuer: type[DryIssuer] = DryIssuer) -> DryRun:
    """Issue two steps of all ranks, or of those that differ, and hold them against one another.

    Arguments: ``dtype`` takes the place of every floating one.

    Raises ``ProgramError`` where an operation fails, a host would wait, ranks meet in different collectives or a tensor
    is used without the events that this needs (``Race``), ``Deadlock`` where no stream can go on.
    """
    try:
        return _issued_by_all(program, kind, dtype, issuer)
    finally:
        # Its devices have no memory: whoever comes next finds others.
        state.reset()


def _issued_by_all(program: Program, kind: str, dtype: str, issuer: type[DryIssuer]) -> DryRun:
    # Before anything else: torch must know the kind.
    device_module(kind)
    virtual.install()
    engine, ranks = state.reset(), representatives(program)
    engine.room = sum(len(program.role(rank)) for rank in ranks) * STEPS * ROOM
    mode, issuers = FakeDevices(kind), []
    request = Request(steps=STEPS, device=kind, transport='native', dtype=dtype)
    for number, (rank, ends) in enumerate(zip(ranks, ends_of(program, ranks), strict=True)):
        state.pools[number] = Pool('meta')
        dist.init_process_group('fake', rank=rank, world_size=program.world)
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
    mode: FakeDevices,
    issuer: type[DryIssuer],
) -> DryIssuer:
    """A rank's host that has issued all steps.

    Arguments: ``number``, of its device; ``ends``, where its calls meet those of others.
    """
    kind = replace(KINDS[request.device], backend='fake')
    own = {'device_count': lambda: program.world, 'empty_on_host': mode.empty_on_host}
    module = SimpleNamespace(**{**vars(virtual), **own})
    device = Device(kind, module, torch.device(kind.name, number))
    groups = device_transports(program, rank, device, {}, request, datetime.timedelta(minutes=1), {})
    natives = ((key, one) for key, one in groups.items() if isinstance(one, Native))
    transports = {key: Batched(one.group, one.members, one.position, mode) for key, one in natives}
    streams, touch = program.role(rank).streams, watch_of(program, rank)

    def watch(slot: Slot, step: int, stream: Any) -> None:
        mode.slot, mode.end = slot, ends.get((slot.op.partition, streams[slot.stream]))
        touch(slot, step, stream)

    with mode, Indexed(mode), torch.no_grad(), warnings.catch_warnings():
        # Newer names of collectives are not in every torch that is supported.
        warnings.simplefilter('ignore', FutureWarning)
        with mode.plain():
            start = _start(program, request, rank)
        host = issuer(start, device, transports, watch)
        assert isinstance(host.computation, FoldedComputation)
        host.computation.mode = mode
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
        return torch.empty(shape, dtype=torch_dtype(tensor.dtype, start.dtype))

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
