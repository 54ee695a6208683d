"""Memory of ranks over a step, with what a framework holds besides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.errors import Infeasible
from simpar.hardware import Beside, Cluster, StackMemory
from simpar.memory.lifetimes import ALWAYS, NONE, Lifetimes, lifetimes
from simpar.memory.rank import RankMemory
from simpar.program import BYTES, OpClass, Program, Role, Tensor
from simpar.trace import RankTimes, Trace
from simpar.units import format_size

# Framework: what a stack holds beside a program's tensors, as further lives of a role; no seconds.

HALF: Final = ('fp16', 'bf16')
_BACKWARD: Final = dict.fromkeys(('ce_max', 'ce_sum', 'ce_loss'), 'cross_entropy')
"""Of a kernel of a sharded loss, the one whose backward is that of all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A stack's memory on a device, with the options that a run has.

    Arguments: ``without``, names of facts to leave out: of workspaces, of what is beside operators, or ``gradients``,
    ``gradient_copies``, ``boundary``.
    """

    facts: StackMemory
    device: str
    options: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()

    def told(self, name: str, when: str, unless: str) -> bool:
        """Whether a fact holds here."""
        return name not in self.without and (not when or when in self.options) and unless not in {*self.options} - {''}

    @property
    def contiguous(self) -> bool:
        """Whether gradients lie in one buffer that is never given back."""
        return self.facts.gradients == 'contiguous' and 'gradients' not in self.without

    @property
    def reserved(self) -> int:
        """Bytes of workspaces."""
        device = self.device.lower()
        total = 0.0
        for name, one in self.facts.workspaces.items():
            if self.told(name, one.when, one.unless):
                sizes = [size for pattern, size in one.on.items() if fnmatchcase(device, pattern)]
                total += one.count * (sizes or [one.bytes])[0]
        return int(total)

    def beside(self) -> Iterator[Beside]:
        """What is held beside operators here."""
        device = self.device.lower()
        for name, one in self.facts.beside.items():
            on = not one.on or any(fnmatchcase(device, pattern) for pattern in one.on)
            if on and self.told(name, one.when, one.unless):
                yield one


def framework_of(cluster: Cluster) -> Framework | None:
    """What the stack of a cluster holds on its devices, with the options that the stack takes for granted."""
    facts = cluster.stack.memory if cluster.stack else None
    if facts is None:
        return None
    return Framework(facts=facts, device=cluster.profile.device.name, options=frozenset(facts.options))


class _Life(NamedTuple):
    bytes: int
    begin: int = NONE
    end: int = NONE
    before: bool = False


def with_framework(lives: Lifetimes, program: Program, role: Role, framework: Framework) -> Lifetimes:
    """The lives as a framework has them: what it allocates in place takes no memory, what it adds are further lives."""
    names = {tensor.name for tensor in program.tensors}
    gathered = {name.removesuffix('.gathered') for name in names if name.endswith('.gathered')}
    cast = framework.facts.weights == 'cast' and framework.told('weights', '', '')

    def is_nothing(one: Tensor) -> bool:
        if one.kind == 'parameter':
            return cast and one.name in gathered and f'master:{one.name}' in names
        return framework.contiguous and one.kind == 'gradient' and f'{one.name}.whole' in names and not shards(one)

    def shards(one: Tensor) -> bool:
        # Of gathered weights the buffer is of shards, and full gradients come and go.
        return one.kind == 'gradient' and one.name.removeprefix('d:') in gathered

    # Which lives are of such tensors; those of no tensor are not.
    nothing, standing = (
        np.append(np.array([of(one) for one in program.tensors], dtype=bool), False)[lives.tensor]
        for of in (is_nothing, shards)
    )
    standing &= framework.contiguous
    begin, end = (np.where(standing, NONE, side) for side in (lives.begin, lives.end))
    lives = replace(lives, bytes=np.where(nothing, 0, lives.bytes), begin=begin, end=end)
    rows = [(one.bytes, one.begin, one.end, one.before) for one in _added(lives, program, role, framework) if one.bytes]
    size, begin, end, before = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return lives.more(size, begin, end, before > 0)


def lasting(framework: Framework | None, program: Program) -> frozenset[str]:
    """Kinds of tensors that a framework never gives back."""
    sharded = any(tensor.kind == 'gathered' and tensor.name.endswith('.gathered') for tensor in program.tensors)
    return frozenset({'gradient'} if framework and framework.contiguous and not sharded else ())


def _added(lives: Lifetimes, program: Program, role: Role, framework: Framework) -> Iterator[_Life]:
    facts = framework.facts
    yield _Life(framework.reserved)
    if 'boundary' not in framework.without:
        yield _Life(facts.boundary * _received(program, role))
    updates = np.flatnonzero(program.op_column(_updates, np.bool_)[role.op_class]).tolist()
    if updates and facts.gradient_copies and 'gradient_copies' not in framework.without:
        # What the update makes and the next step's begin gives back.
        yield _Life(facts.gradient_copies * _elements(lives, program, _is_half_gradient), updates[0], 0, before=True)
    if updates and facts.update and framework.told('update', '', ''):
        # What the update of all weights holds while it runs.
        yield _Life(facts.update * _elements(lives, program, _is_momentum), updates[0], updates[-1])
    if facts.mask and framework.told('mask', '', 'no-mask'):
        yield _Life(facts.mask * _pairs(program))
    for one in framework.beside():
        yield from _of_operators(program, role, one)


def _updates(op: OpClass) -> bool:
    return op.kind == 'compute' and op.phase == 'U'


def _elements(lives: Lifetimes, program: Program, wanted: Callable[[Tensor], bool]) -> int:
    """How many numbers the wanted tensors of a role have on a rank."""
    own = [index for index in np.unique(lives.tensor[lives.tensor != NONE]).tolist() if wanted(program.tensors[index])]
    return sum(int(program.sizes[index]) // BYTES[program.tensors[index].dtype] for index in own)


def _is_momentum(one: Tensor) -> bool:
    """Whether it is a state that each fp32 weight has which a role updates."""
    return one.kind == 'state' and one.name.startswith('m:')


def _is_half_gradient(one: Tensor) -> bool:
    """Whether it is a gradient of 16 bits that the role updates: of its shards, where it has them."""
    return one.kind == 'gradient' and one.dtype in HALF and not one.name.endswith('.whole')


def _pairs(program: Program) -> int:
    """Pairs of tokens of a micro-batch: samples × a rank's tokens × sequence, of its integers [samples, sequence]."""
    sizes = [
        (*tensor.local_shape(program.partitions, program.copies), tensor.shape[1])
        for tensor in program.tensors
        if tensor.kind == 'input' and tensor.dtype.startswith('int') and len(tensor.shape) == 2
    ]
    return max((samples * tokens * sequence for samples, tokens, sequence in sizes), default=0)


def _received(program: Program, role: Role) -> int:
    """Bytes of what a role receives in forwards, of one micro-batch, all chunks together."""
    used = {index: program.op_classes[index] for index in np.unique(role.op_class).tolist()}
    receives = [op for op in used.values() if op.kind == 'recv' and op.phase == 'F']
    return sum(int(op.bytes) for op in receives)


def _of_operators(program: Program, role: Role, beside: Beside) -> Iterator[_Life]:
    """Lives of what a framework holds beside operators: pairs of a forward and a backward, and each of them alone."""
    numbers = {tensor.name: index for index, tensor in enumerate(program.tensors)}
    open_: dict[tuple[str, int, int], tuple[int, int]] = {}
    backward = {_BACKWARD.get(operator, operator) for operator in beside.operators}
    largest = 0

    def named(op: OpClass) -> bool:
        own = beside.operators if op.phase == 'F' else backward
        return op.operator in own and op.kind == 'compute' and fnmatchcase(op.name, beside.named)

    # Of millions of slots a few hundred are of such an operator.
    of = np.array([named(op) for op in program.op_classes], dtype=bool)
    for slot in np.flatnonzero(of[role.op_class]).tolist():
        op = program.op_classes[role.op_class[slot]]
        micro_batch, copy = int(role.micro_batch[slot]), int(role.copy[slot])
        key = (_layer(op), micro_batch, copy)
        if op.phase == 'F':
            tensor = numbers[(op.reads if beside.of == 'read' else op.writes)[0]]
            size = int(program.sizes[tensor]) // BYTES[program.tensors[tensor].dtype]
            largest = max(largest, size)
            yield _Life(int(beside.forward * size), slot, slot)
            open_.setdefault(key, (slot, size))
        elif op.phase == 'I' and key in open_:
            begin, size = open_.pop(key)
            yield _Life(int(beside.kept * size) * (not beside.standing), begin, slot)
            yield _Life(int(beside.backward * size), slot, slot)
    if beside.standing:
        yield _Life(int(beside.kept * largest))


def _layer(op: OpClass) -> str:
    """What forward and backward of an operator have in common: the layer's name, or ``loss``."""
    return op.name.partition('.')[0]


# Memory of all ranks over the last step of a trace; whether it fits, how surely that is known, and what would fit.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Memory:
    """What the ranks hold over a step.

    Arguments:
        step: seconds.
        ranks: one for each representative rank of the trace.
        representative_of_rank: shape [world], index into ``ranks``.
        host: bytes that the fullest rank has on its host at its peak there.
    """

    step: float
    ranks: tuple[RankMemory, ...]
    representative_of_rank: NDArray[np.int32]
    host: int = 0

    def __repr__(self) -> str:
        return f'Memory(peak={self.peak!r}, rank={self.fullest.rank}, ranks={len(self.representative_of_rank)})'

    @property
    def fullest(self) -> RankMemory:
        """The (first) rank whose peak is highest."""
        return max(self.ranks, key=lambda rank: rank.peak_bytes)

    @property
    def peak(self) -> int:
        """Bytes that the fullest rank holds at its peak."""
        return self.fullest.peak_bytes

    def rank(self, rank: int) -> RankMemory:
        """What a rank holds, or the rank that stands for it."""
        return self.ranks[int(self.representative_of_rank[rank])]

    def share_that_fits(self, size: float) -> float:
        """The largest share of the batch with which every rank stays below ``size`` bytes; see ``RankMemory``."""
        return min(rank.share_that_fits(size) for rank in self.ranks)


def memory(
    trace: Trace, *, always: Collection[str] = ALWAYS, flattened: bool = False, framework: Framework | None = None
) -> Memory:
    """What every rank holds over the last step of a trace, as its steady state has it.

    A tensor is held from the start of the op that first writes it to the end of the op that frees it: the outputs of
    collectives from the moment at which all participants have arrived, those of receives from the moment at which they
    are posted. An input is held from the first compute op of
    its micro-batch to its last reader. Ops of the last step that ran before its window, under the end of the step
    before, are counted at the window's end, as in ``metrics``; what is written in one step and freed in the next is
    counted over the boundary.
    Arguments: ``always`` and ``flattened`` as of ``lifetimes``; ``framework``, what a stack holds besides, and whether
    its gradients live always.
    Raises ``ProgramError`` where an op reads or frees what nothing has written.
    Not modelled: without a framework, workspaces of kernels and libraries; fragmentation, an allocator that frees in
    issue order.
    """
    counts = np.bincount(trace.representative_of_rank, minlength=len(trace.representatives)).tolist()
    end = float(trace.step_ends[-1])
    # The last step, as in ``metrics``: it is the one in the steady state.
    begin = end - trace.step
    kinds = frozenset(always) | lasting(framework, trace.program)
    by_role: dict[Role, Lifetimes] = {}
    ranks = []
    for times, count in zip(trace.representatives, counts, strict=True):
        role = trace.role(times)
        # Hundreds of ranks often share a role.
        if role not in by_role:
            lives = lifetimes(trace.program, role, always=kinds, flattened=flattened)
            by_role[role] = with_framework(lives, trace.program, role, framework) if framework else lives
        lives = by_role[role]
        ranks.append(
            RankMemory(times=times, ranks=count, begin=begin, step=end - begin, program=trace.program, lives=lives)
        )
    beside = _on_host(trace, begin, end - begin)
    return Memory(step=trace.step, ranks=tuple(ranks), representative_of_rank=trace.representative_of_rank, host=beside)


def _on_host(trace: Trace, begin: float, step: float) -> int:
    """Bytes that the fullest rank has on its host; most programs have none there."""
    program, most = trace.program, 0
    if any(tensor.host for tensor in program.tensors):
        for times in trace.representatives:
            lives = lifetimes(program, trace.role(times), host=True)
            rank = RankMemory(times=times, ranks=1, begin=begin, step=step, program=program, lives=lives)
            most = max(most, rank.peak_bytes if len(lives) else 0)
    return most


def sequential(program: Program) -> Trace:
    """A trace in which every rank does its ops one after the other in issue order, a second each.

    Memory without a clock: what an allocator sees that takes and frees as ops are issued. Not modelled: that ranks wait
    for one another.
    """
    # One rank of each role, since without a clock ranks of a role do not differ.
    first = [int(np.flatnonzero(program.role_of_rank == index)[0]) for index in range(len(program.roles))]
    representatives = []
    for rank, role in zip(first, program.roles, strict=True):
        starts = np.arange(len(role), dtype=np.float64).reshape(1, -1)
        representatives.append(RankTimes(rank=rank, arrive_KS=starts, start_KS=starts, end_KS=starts + 1))
    return Trace(program, 'simulated', tuple(representatives), program.role_of_rank)


def peak_summary(rank: RankMemory, room: Room | None = None) -> str:
    """A rank's peak in a sentence: how much, of how much, at which op, of what; ``room``, of its device."""
    kinds = ', '.join(f'{kind} {format_size(held)}' for kind, held in rank.peak_kinds.items())
    of = '' if room is None else f' of {format_size(room.size)}'
    more = f' (and {rank.ranks - 1} like it)' if rank.ranks > 1 else ''
    return f'rank {rank.rank}{more} holds {format_size(rank.peak_bytes)}{of} at {rank.peak_action}: {kinds}'


def beside_summary(peak: int, room: Room) -> str:
    """What the device gives beside tensors, in a sentence; empty where that is nothing."""
    if not room.context:
        return ''
    cache = f', up to {format_size(peak * room.fragmentation)} that the allocator keeps' if room.fragmentation else ''
    together = f'{format_size(room.taken(peak))} of {format_size(room.size)}'
    return f'Beside tensors: {format_size(room.context)} of context and message buffers{cache}; together {together}.'


def memory_to_dict(memory: Memory, room: Room) -> dict[str, Any]:
    """The peaks as one object, in bytes and seconds; ``room``, of a device."""
    return {
        'peak': memory.peak,
        'device': room.size,
        'context': room.context,
        'fragmentation': memory.peak * room.fragmentation,
        'taken': room.taken(memory.peak),
        **({'host': memory.host} if memory.host else {}),
        'ranks': [_rank(rank) for rank in memory.ranks],
    }


def _rank(rank: RankMemory) -> dict[str, Any]:
    peak = rank.peak
    return {
        'rank': rank.rank,
        'stands_for': rank.ranks,
        'peak': peak.bytes,
        'time': peak.time,
        'op': peak.action,
        'always': rank.always,
        'kinds': peak.kinds,
        'activations': peak.operators,
        'slices': [
            {'micro_batch': micro_batch, 'copy': copy, 'bytes': size}
            # By micro-batch and copy: the order in which a reader looks for them.
            for (micro_batch, copy), size in sorted(peak.slices.items())
        ],
    }


ABOVE: Final = 0.17
"""How far peaks predicted of a stack that tells nothing lay above what runs were reported to hold, at most."""
TOLD: Final = 0.145
"""The same of stacks that tell what they hold (docs/proofs/field.md, tests/test_field.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A device's memory in bytes, and what of it is no tensor's.

    Arguments: ``size``, of the device; ``context``, of what no allocator has; ``fragmentation``, what an allocator
    keeps beside tensors as a share of these.
    """

    size: float
    context: float = 0.0
    fragmentation: float = 0.0

    @property
    def tensors(self) -> float:
        """Bytes that tensors may take."""
        return (self.size - self.context) / (1 + self.fragmentation)

    def taken(self, peak: float) -> float:
        """Bytes that the device gives where tensors take ``peak``, as its monitor shows them."""
        return peak * (1 + self.fragmentation) + self.context


def room_of(cluster: Cluster) -> Room:
    """The memory of a cluster's devices; of devices alone, or with a reserve, all of what is left is for tensors."""
    memory, stack = cluster.profile.device.memory, cluster.stack
    if stack is None or memory.context is None:
        return Room(size=memory.size.value)
    share = stack.memory.fragmentation if stack.memory else None
    return Room(size=memory.size.value, context=memory.context.value, fragmentation=share.value if share else 0.0)


def margin_of(cluster: Cluster) -> float:
    """The share by which a peak may be predicted too high: none of a device alone, any where a stack tells nothing."""
    if cluster.stack is None:
        return 0.0
    return TOLD if cluster.stack.memory else inf


def fits(memory: Memory, room: Room, margin: float = 0.0) -> bool | None:
    """Whether no rank holds more than a device; None where that is not known.

    Arguments: ``margin``, as of ``margin_of``. Weights, states and gradients, which no batch changes, are known under
    any framework; what an allocator keeps is not, so what does not fit for its sake alone may fit.
    """
    if memory.peak <= room.tensors:
        return True
    most = room.size - room.context
    if memory.peak > most * (1 + margin) or _fixed(memory) > most * (1 + min(margin, ABOVE)):
        return False
    return None


def check_fit(memory: Memory, room: Room, *, batch: int, multiple: int = 1, margin: float = 0.0) -> None:
    """Compare the fullest rank with the memory of its device.

    Arguments:
        room: of its device.
        batch: samples of a step, a multiple of ``multiple`` (data × micro-batches × copies) in every plan of this
            kind.
        margin: as of ``fits``.
    Raises ``Infeasible``, where it is known not to fit, with the op at the peak and the largest batch that fits.
    """
    if fits(memory, room, margin) is not False:
        return
    fullest = memory.fullest
    over = format_size(fullest.peak_bytes - room.tensors)
    would = _would_fit(memory, room.tensors, batch, multiple)
    raise Infeasible(f'{over} too much: {peak_summary(fullest, room)}; {would}')


def _fixed(memory: Memory) -> int:
    """Bytes that the fullest rank holds at the peak of what does not grow with the batch."""
    return max(rank.peak_without_batch for rank in memory.ranks)


def _would_fit(memory: Memory, size: float, batch: int, multiple: int) -> str:
    # A share that is exact but for rounding counts as exact.
    largest = int(batch * memory.share_that_fits(size) + 1e-9) // multiple * multiple
    if largest:
        return f'a batch of {largest} instead of {batch} would fit'
    # If even this does not fit, a smaller batch is no help, and the message says what is.
    fixed = _fixed(memory)
    if fixed > size:
        what = f'parameters, gradients and states alone take {format_size(fixed)}'
        return f'no batch would fit, for {what}: shard them over more ranks'
    return f'not even the smallest batch, {multiple}, would fit: shard each sample over more ranks'
