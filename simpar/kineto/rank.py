"""One rank's events: steps, actions, launches, kernels, and arrows for needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from simpar.cost.costs import Costs
from simpar.metrics import action_spans, is_communication, is_pipeline, is_transfer
from simpar.program import OpClass
from simpar.program.tensor import BYTES
from simpar.trace import RankTimes, Trace

Event = dict[str, Any]
KERNEL_NAMES: Final = {'nccl': 'ncclDevKernel_', 'hccl': 'hccl', 'gloo': 'gloo'}
"""How communication kernels are named, by collective library."""
STREAMS: Final = 7
"""The thread of a rank's first stream."""

_HOST, _STEPS, _ACTIONS = 0, 1, 2
_LAUNCH: Final = 'cudaLaunchKernel'
_TORCH_DTYPES: Final = {
    'fp64': 'Double', 'fp32': 'Float', 'tf32': 'Float', 'fp16': 'Half', 'bf16': 'BFloat16', 'int64': 'Long',
    'fp8': 'Float8_e4m3fn', 'int32': 'Int', 'bool': 'Bool',
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How events are written.

    Arguments:
        library: a key of ``KERNEL_NAMES``.
        first_pid: process of rank 0.
        most_arrows: how many needs across streams are drawn for a rank, of its last step.
        for_hta: whether to write what HTA wants besides.
    """

    library: str = 'nccl'
    first_pid: int = 0
    most_arrows: int = 2000
    for_hta: bool = False


def nanoseconds(seconds: float) -> int:
    """Whole nanoseconds, so that neighbours on a stream still touch and never overlap."""
    return round(seconds * 1e9)


@dataclass(frozen=True, slots=True)
class Drawing:
    """One rank's events."""

    trace: Trace
    rank_times: RankTimes
    rank: int
    style: Style

    @property
    def pid(self) -> int:
        """The process that shows this rank."""
        return self.style.first_pid + self.rank

    def names(self) -> Iterator[Event]:
        """Names and order of the process and its threads."""
        origin = 'predicted' if self.trace.origin == 'simulated' else self.trace.origin
        yield self._meta('process_name', name=f'rank {self.rank} ({origin})')
        yield self._meta('process_sort_index', sort_index=self.pid)
        threads = {_HOST: 'host', _STEPS: 'steps'}
        if is_pipeline(self.trace.program):
            threads[_ACTIONS] = 'actions'
        threads |= {STREAMS + i: f'stream {name}' for i, name in enumerate(self.trace.role(self.rank_times).streams)}
        for tid, name in threads.items():
            yield self._meta('thread_name', tid, name=name)
            yield self._meta('thread_sort_index', tid, sort_index=tid)

    def steps(self) -> Iterator[Event]:
        """An annotation for each step, from the end of the one before."""
        since = 0.0
        for index, end in enumerate(self.trace.step_ends.tolist(), start=1):
            yield self._slice('user_annotation', f'ProfilerStep#{index}', _STEPS, since, end, {})
            since = end
        # HTA drops the last step, so an empty one is appended for it to drop.
        if self.style.for_hta:
            name = f'ProfilerStep#{self.trace.steps + 1}'
            yield self._slice('user_annotation', name, _STEPS, since, since, {})

    def actions(self) -> Iterator[Event]:
        """An annotation for each action of a pipeline."""
        for step in range(self.trace.steps if is_pipeline(self.trace.program) else 0):
            for span in action_spans(self.trace, self.rank, step):
                yield self._slice('user_annotation', f'PP:{span.action}', _ACTIONS, span.begin, span.end, {})

    def empty_launches(self) -> Iterator[Event]:
        """Launches of no duration as ops arrive, so that readers find the step of each."""
        for number, arrive in enumerate(self.rank_times.arrive_KS.ravel().tolist()):
            yield self._slice('cuda_runtime', _LAUNCH, _HOST, arrive, arrive, {'correlation': number + 1})

    def launches(self, costs: Costs) -> Iterator[Event]:
        """The host issuing one op after the other."""
        op_class = self.trace.role(self.rank_times).op_class
        seconds = np.tile(costs.host[op_class], self.trace.steps)
        for number, issued in enumerate(np.cumsum(seconds).tolist()):
            begin = issued - float(seconds[number])
            yield self._slice('cuda_runtime', _LAUNCH, _HOST, begin, issued, {'correlation': number + 1})

    def kernels(self) -> Iterator[Event]:
        """An event for each op."""
        role = self.trace.role(self.rank_times)
        actions = [self.trace.program.action(role, slot) for slot in range(len(role))]
        groups = {name: list(part.members(self.rank)) for name, part in self.trace.program.partitions.items()}
        for step in range(self.trace.steps):
            for span in self.trace.spans(self.rank, step):
                tid = STREAMS + int(role.stream[span.slot])
                args: Event = {'device': self.rank, 'stream': tid, 'correlation': step * len(role) + span.slot + 1}
                args |= {'op': span.op.name, 'phase': span.op.phase, 'micro-batch': span.micro_batch, 'copy': span.copy}
                name, since = actions[span.slot], span.start
                if is_communication(span.op):
                    name = f'{_kernel(span.op, self.style.library)} {name}'
                    since = span.start if is_transfer(span.op) else span.arrive
                    args |= _message(span.op, groups.get(span.op.partition, []), self.rank)
                    args['waited us'] = (nanoseconds(span.start) - nanoseconds(span.arrive)) / 1000
                yield self._slice('kernel', name, tid, since, span.end, args)

    def arrows(self) -> Iterator[Event]:
        """An arrow for each need across streams, in the last step."""
        role = self.trace.role(self.rank_times)
        since, until = self.rank_times.arrive_KS[-1].tolist(), self.rank_times.end_KS[-1].tolist()
        pairs = [(need, slot) for slot, needs in enumerate(role.needs()) for need in needs]
        across = [(need, slot) for need, slot in pairs if role.stream[need] != role.stream[slot]]
        for number, (need, slot) in enumerate(across[: self.style.most_arrows]):
            arrow = {'cat': 'need', 'name': 'need', 'id': self.pid * self.style.most_arrows + number, 'pid': self.pid}
            # Arrows bind to the slice at their time; at its very end a slice is over.
            at = max(nanoseconds(since[need]), nanoseconds(until[need]) - 1)
            yield {'ph': 's', **arrow, 'tid': STREAMS + int(role.stream[need]), 'ts': at / 1000}
            yield {
                'ph': 'f',
                'bp': 'e',
                **arrow,
                'tid': STREAMS + int(role.stream[slot]),
                'ts': nanoseconds(since[slot]) / 1000,
            }

    def _meta(self, kind: str, tid: int = 0, **args: Any) -> Event:
        return {'ph': 'M', 'name': kind, 'pid': self.pid, 'tid': tid, 'ts': 0, 'args': args}

    def _slice(self, category: str, name: str, tid: int, since: float, until: float, args: Event) -> Event:
        # Rounded ends, then their difference: a rounded duration could reach into the next slice.
        begin = nanoseconds(since)
        return {
            'ph': 'X',
            'cat': category,
            'name': name,
            'pid': self.pid,
            'tid': tid,
            'ts': begin / 1000,
            'dur': (nanoseconds(until) - begin) / 1000,
            'args': args,
        }


def _kernel(op: OpClass, library: str) -> str:
    """A communication kernel's name, e.g. ``ncclDevKernel_AllReduce``; NCCL has one for sends and receives.

    An all-to-all is NCCL's sends and receives, and one of a name to HCCL.
    """
    if library == 'nccl' and (is_transfer(op) or op.operator == 'all_to_all'):
        return f'{KERNEL_NAMES[library]}SendRecv'
    return KERNEL_NAMES[library] + ''.join(word.capitalize() for word in op.operator.split('_'))


def _message(op: OpClass, members: list[int], rank: int) -> Event:
    """What torch's profiler says about a collective, a send or a receive."""
    elements = int(op.bytes) // BYTES.get(op.dtype, 1)
    # torch counts the message of this rank; ``bytes`` counts the full tensor.
    share = elements // max(len(members), 1)
    message: Event = {
        'Collective name': op.operator,
        'In msg nelems': share if op.operator == 'all_gather' else elements,
        'Out msg nelems': share if op.operator == 'reduce_scatter' else elements,
        'dtype': _TORCH_DTYPES.get(op.dtype, op.dtype),
        'Group size': len(members),
        'Process Group Name': op.partition,
        'Process Group Ranks': str(members),
    }
    if is_transfer(op):
        peer = members[(members.index(rank) + op.peer) % len(members)]
        message |= {'Src Rank': rank, 'Dst Rank': peer} if op.kind == 'send' else {'Src Rank': peer, 'Dst Rank': rank}
    return message
