"""Traces as Kineto (Chrome) JSON, which Perfetto, chrome://tracing and Holistic Trace Analysis (HTA) open.

A rank is a process, a stream a thread, an op a kernel. A collective's kernel lasts from the arrival of this rank, as an
NCCL kernel does that waits for its peers; ``waited us`` says how long. HTA finds a file's rank by ``"rank": N`` in one
line, needs the space there, and takes a kernel for communication if its name matches ``^nccl.*Kernel``. It drops
kernels without a launch, and all launched in the last step, since a profiler's last is incomplete: in the files of
single ranks every kernel has a launch (of no duration where the host's time is not known), and an empty step is last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from simpar.cost.costs import Costs, entry_of
from simpar.files import write_whole
from simpar.metrics import is_communication
from simpar.program import OpClass
from simpar.program.tensor import BYTES
from simpar.trace import Lane, Trace

Event = dict[str, Any]
KERNEL_NAMES: Final = {'nccl': 'ncclDevKernel_', 'hccl': 'hccl', 'gloo': 'gloo'}
"""How communication kernels are named, by collective library."""
PREDICTED_PID: Final = 1000
"""Where a file shows both, measured rank r is process r and predicted rank r is process 1000 + r."""

_HOST, _STEPS, _STREAMS = 0, 1, 7
_LAUNCH: Final = 'cudaLaunchKernel'
_LINKS_PID: Final = 1_000_000
_TORCH_DTYPES: Final = {
    'fp64': 'Double', 'fp32': 'Float', 'tf32': 'Float', 'fp16': 'Half', 'bf16': 'BFloat16', 'int64': 'Long',
    'int32': 'Int', 'bool': 'Bool',
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How events are written.

    Arguments: ``library``, a key of ``KERNEL_NAMES``; ``first_pid``, process of rank 0; ``most_arrows``, how many needs
    across streams are drawn for a rank, of its last step; ``for_hta``, with what HTA wants besides.
    """

    library: str = 'nccl'
    first_pid: int = 0
    most_arrows: int = 2000
    for_hta: bool = False


def write_kineto(
    folder: Path,
    trace: Trace,
    *,
    measured: Trace | None = None,
    costs: Costs | None = None,
    library: str = 'nccl',
    most_ranks: int = 8,
) -> list[Path]:
    """Write ``rankN.json`` for up to ``most_ranks`` ranks, and ``merged/all_ranks.json`` with all of them.

    Arguments: ``folder`` is made if need be; ``measured`` goes side by side with the prediction into the merged file;
    ``costs``, of the prediction, add the host's launches and the use of links. Ranks that differ come first. The same
    arguments give the same bytes. Returns the files. Not written: memory.
    """
    (folder / 'merged').mkdir(parents=True, exist_ok=True)
    ranks = chosen_ranks(trace, most_ranks)
    both = [*events(trace, ranks, Style(library=library, first_pid=PREDICTED_PID if measured else 0), costs)]
    if costs is not None:
        both += link_counters(trace, costs)
    if measured is not None:
        seen = [*events(measured, ranks, Style(library=library))]
        both = seen + both
    style = Style(library=library, for_hta=True)
    paths = [folder / f'rank{rank}.json' for rank in ranks]
    for path, rank in zip(paths, ranks, strict=True):
        write_whole(path, document(trace, events(trace, [rank], style, costs), library, rank))
    merged = folder / 'merged' / 'all_ranks.json'
    write_whole(merged, document(trace, both, library))
    return [*paths, merged]


def chosen_ranks(trace: Trace, most: int) -> list[int]:
    """At most so many ranks: one of each lane first, then the others; in order."""
    lanes = trace.lane_of_rank.tolist()
    first = sorted({lane: rank for rank, lane in reversed(list(enumerate(lanes)))}.values())
    others = [rank for rank in range(len(lanes)) if rank not in set(first)]
    return sorted([*first, *others][:most])


def document(trace: Trace, trace_events: Iterable[Event], library: str, rank: int | None = None) -> str:
    """A whole file, one event a line; ``rank`` None for a file with several ranks."""
    program = trace.program
    groups = [
        {'pg_name': name, 'pg_size': partition.size, 'ranks': partition.groups_GP.tolist()}
        for name, partition in program.partitions.items()
    ]
    distributed = {'backend': library, 'world_size': program.world, 'pg_config': groups}
    head = {
        'schemaVersion': 1,
        'deviceProperties': [{'id': rank or 0, 'name': f'{trace.origin} device'}],
        'distributedInfo': distributed if rank is None else {'rank': rank, **distributed},
        'displayTimeUnit': 'ms',
        'baseTimeNanoseconds': 0,
        'traceName': f'simpar {program.hash}',
    }
    lines = ''.join(f'{json.dumps(key)}: {json.dumps(value)},\n' for key, value in head.items())
    body = ',\n'.join(json.dumps(event) for event in trace_events)
    return f'{{\n{lines}"traceEvents": [\n{body}\n]\n}}\n'


def events(trace: Trace, ranks: list[int], style: Style, costs: Costs | None = None) -> Iterator[Event]:
    """The events of some ranks."""
    for rank in ranks:
        drawing = _Drawing(trace, trace.lane(rank), rank, style)
        yield from drawing.names()
        yield from drawing.steps()
        if costs is not None and costs.host.any():
            yield from drawing.launches(costs)
        elif style.for_hta:
            yield from drawing.empty_launches()
        yield from drawing.kernels()
        yield from drawing.arrows()


def link_counters(trace: Trace, costs: Costs) -> Iterator[Event]:
    """Use of each link over time, from 0 to 1: of each collective the mean over [start, end]."""
    changes: dict[int, list[tuple[int, float]]] = {}
    for rank, lane in _group_leaders(trace):
        for slot, index in enumerate(trace.role(lane).op_class.tolist()):
            if index not in costs.communication:
                continue
            partition = trace.program.partitions[trace.program.op_classes[index].partition]
            group, position = partition.place(rank)
            entries = costs.communication[index]
            cost = entries[entry_of(len(entries), len(partition.groups_GP), group, position)]
            for step in range(trace.steps if position == 0 else 0):
                start, end = float(lane.start_KS[step, slot]), float(lane.end_KS[step, slot])
                for link, demand in cost.links if end > start else ():
                    use = demand * cost.transfer / (end - start)
                    changes.setdefault(link, []).extend(((_ns(start), use), (_ns(end), -use)))
    for link in sorted(changes):
        use = 0.0
        for at, by in sorted(changes[link]):
            use += by
            yield {'ph': 'C', 'name': f'link {costs.links[link]}', 'pid': _LINKS_PID, 'tid': 0, 'ts': at / 1000,
                   'args': {'use': round(abs(use), 6)}}  # fmt: skip


def _group_leaders(trace: Trace) -> Iterator[tuple[int, Lane]]:
    """Ranks that stand first in a group of some partition, and their lanes."""
    leaders = {int(rank) for partition in trace.program.partitions.values() for rank in partition.groups_GP[:, 0]}
    return ((rank, trace.lane(rank)) for rank in sorted(leaders))


def _ns(seconds: float) -> int:
    """Whole nanoseconds, so that neighbours on a stream still touch and never overlap."""
    return round(seconds * 1e9)


@dataclass(frozen=True, slots=True)
class _Drawing:
    """One rank's events."""

    trace: Trace
    lane: Lane
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
        threads |= {_STREAMS + i: f'stream {name}' for i, name in enumerate(self.trace.role(self.lane).streams)}
        for tid, name in threads.items():
            yield self._meta('thread_name', tid, name=name)
            yield self._meta('thread_sort_index', tid, sort_index=tid)

    def steps(self) -> Iterator[Event]:
        """An annotation for each step, from the end of the one before."""
        since = 0.0
        for index, end in enumerate(self.trace.step_ends.tolist(), start=1):
            yield self._slice('user_annotation', f'ProfilerStep#{index}', _STEPS, since, end, {})
            since = end
        if self.style.for_hta:
            name = f'ProfilerStep#{self.trace.steps + 1}'
            yield self._slice('user_annotation', name, _STEPS, since, since, {})

    def empty_launches(self) -> Iterator[Event]:
        """Launches of no duration as ops arrive, so that readers find the step of each."""
        for number, arrive in enumerate(self.lane.arrive_KS.ravel().tolist()):
            yield self._slice('cuda_runtime', _LAUNCH, _HOST, arrive, arrive, {'correlation': number + 1})

    def launches(self, costs: Costs) -> Iterator[Event]:
        """The host issuing one op after the other."""
        op_class = self.trace.role(self.lane).op_class
        seconds = np.tile(costs.host[op_class], self.trace.steps)
        for number, issued in enumerate(np.cumsum(seconds).tolist()):
            begin = issued - float(seconds[number])
            yield self._slice('cuda_runtime', _LAUNCH, _HOST, begin, issued, {'correlation': number + 1})

    def kernels(self) -> Iterator[Event]:
        """An event for each op."""
        role = self.trace.role(self.lane)
        actions = [self.trace.program.action(role, slot) for slot in range(len(role))]
        groups = {name: list(part.members(self.rank)) for name, part in self.trace.program.partitions.items()}
        for step in range(self.trace.steps):
            for span in self.trace.spans(self.rank, step):
                tid = _STREAMS + int(role.stream[span.slot])
                args: Event = {'device': self.rank, 'stream': tid, 'correlation': step * len(role) + span.slot + 1}
                args |= {'op': span.op.name, 'phase': span.op.phase, 'micro-batch': span.micro_batch, 'copy': span.copy}
                name, since = actions[span.slot], span.start
                if is_communication(span.op):
                    name, since = f'{_kernel(span.op, self.style.library)} {name}', span.arrive
                    args |= _collective(span.op, groups.get(span.op.partition, []))
                    args['waited us'] = (_ns(span.start) - _ns(span.arrive)) / 1000
                yield self._slice('kernel', name, tid, since, span.end, args)

    def arrows(self) -> Iterator[Event]:
        """An arrow for each need across streams, in the last step."""
        role = self.trace.role(self.lane)
        since, until = self.lane.arrive_KS[-1].tolist(), self.lane.end_KS[-1].tolist()
        pairs = [(need, slot) for slot, needs in enumerate(role.needs()) for need in needs]
        across = [(need, slot) for need, slot in pairs if role.stream[need] != role.stream[slot]]
        for number, (need, slot) in enumerate(across[: self.style.most_arrows]):
            arrow = {'cat': 'need', 'name': 'need', 'id': self.pid * self.style.most_arrows + number, 'pid': self.pid}
            at = max(_ns(since[need]), _ns(until[need]) - 1)
            yield {'ph': 's', **arrow, 'tid': _STREAMS + int(role.stream[need]), 'ts': at / 1000}
            yield {
                'ph': 'f',
                'bp': 'e',
                **arrow,
                'tid': _STREAMS + int(role.stream[slot]),
                'ts': _ns(since[slot]) / 1000,
            }

    def _meta(self, kind: str, tid: int = 0, **args: Any) -> Event:
        return {'ph': 'M', 'name': kind, 'pid': self.pid, 'tid': tid, 'ts': 0, 'args': args}

    def _slice(self, category: str, name: str, tid: int, since: float, until: float, args: Event) -> Event:
        begin = _ns(since)
        return {
            'ph': 'X',
            'cat': category,
            'name': name,
            'pid': self.pid,
            'tid': tid,
            'ts': begin / 1000,
            'dur': (_ns(until) - begin) / 1000,
            'args': args,
        }


def _kernel(op: OpClass, library: str) -> str:
    """A communication kernel's name, e.g. ``ncclDevKernel_AllReduce``."""
    return KERNEL_NAMES[library] + ''.join(word.capitalize() for word in op.operator.split('_'))


def _collective(op: OpClass, members: list[int]) -> Event:
    """What torch's profiler says about a collective."""
    elements = int(op.bytes) // BYTES.get(op.dtype, 1)
    share = elements // max(len(members), 1)
    return {
        'Collective name': op.operator,
        'In msg nelems': share if op.operator == 'all_gather' else elements,
        'Out msg nelems': share if op.operator == 'reduce_scatter' else elements,
        'dtype': _TORCH_DTYPES.get(op.dtype, op.dtype),
        'Group size': len(members),
        'Process Group Name': op.partition,
        'Process Group Ranks': str(members),
    }
