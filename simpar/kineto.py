"""Traces as Kineto (Chrome) JSON, which Perfetto, chrome://tracing and Holistic Trace Analysis (HTA) open.

A rank is a process, a stream a thread, an op a kernel. A collective's kernel lasts from the arrival of this rank, as an
NCCL kernel does that waits for its peers; ``waited us`` says how long. HTA finds a file's rank by ``"rank": N`` in one
line, needs the space there, and takes a kernel for communication if its name matches ``^nccl.*Kernel``. It drops
kernels without a launch, and all launched in the last step, since a profiler's last is incomplete: in the files of
single ranks every kernel has a launch (of no duration where the host's time is not known), and an empty step is last.
Sends and receives are kernels while they transfer, as the metrics count them. An action of a pipeline is an annotation,
``PP:2F0``, as torch.distributed.pipelining writes it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from simpar import files, metrics
from simpar.cost.costs import Communication, Costs, entry_of
from simpar.program import BYTES, COLLECTIVES, COPY, OpClass
from simpar.program import transfers as is_transfer
from simpar.trace import RankTimes, Trace

PREDICTED_PID: Final = 1000
"""Where a file shows both, measured rank r is process r and predicted rank r is process 1000 + r."""
MOST_EVENTS: Final = 36_000
"""Ops of the merged file, which take up to 500 bytes with their launch and arrows."""


def write_kineto(
    folder: Path,
    trace: Trace,
    *,
    measured: Trace | None = None,
    costs: Costs | None = None,
    library: str = 'nccl',
    most_ranks: int = 8,
    ranks: Sequence[int] = (),
) -> list[Path]:
    """Write ``rankN.json`` for up to ``most_ranks`` ranks, and ``merged/all_ranks.json`` with all of them.

    Arguments:
        folder: made if it does not exist.
        measured: goes side by side with the prediction into the merged file.
        costs: the prediction's costs; they add the host's launches and the use of links.
        ranks: those that are written; unless given, up to ``most_ranks``, those that differ first.
    The merged file stays below 20 MB: of a large program it has the last step alone, then fewer ranks, then no links
    and launches (``in_the_merged_file``); Perfetto opens it as it is.
    Ranks that differ come first. The same arguments give the same bytes.
    Returns the files. Not written: memory.
    """
    (folder / 'merged').mkdir(parents=True, exist_ok=True)
    ranks = list(ranks) or chosen_ranks(trace, most_ranks)
    # Only files of single ranks: HTA reads one rank a file.
    style = Style(library=library, for_hta=True)
    paths = [folder / f'rank{rank}.json' for rank in ranks]
    for path, rank in zip(paths, ranks, strict=True):
        files.write_atomically(path, document(trace, events(trace, [rank], style, costs), library, rank))
    merged = folder / 'merged' / 'all_ranks.json'
    files.write_atomically(merged, document(trace, _merged(trace, ranks, measured, costs, library), library))
    return [*paths, merged]


def in_the_merged_file(trace: Trace, ranks: list[int], sides: int = 1) -> tuple[int, list[int]]:
    """How many of the last steps, and which ranks, the merged file has, so that it stays below 20 MB.

    Arguments: ``sides``, 2 where a measurement stands beside the prediction.
    """
    slots = [len(trace.role(trace.times_of(rank))) * sides for rank in ranks]
    steps = trace.steps if sum(slots) * trace.steps <= MOST_EVENTS else 1
    most = next((count for count in range(len(ranks), 1, -1) if sum(slots[:count]) * steps <= MOST_EVENTS), 1)
    return steps, ranks[:most]


def _merged(
    trace: Trace, ranks: list[int], measured: Trace | None, costs: Costs | None, library: str
) -> Iterator[Event]:
    """The events of the merged file."""
    steps, some = in_the_merged_file(trace, ranks, 2 if measured else 1)
    whole = steps == trace.steps and some == ranks
    excerpt = trace if whole else trace.last(steps)
    if measured is not None:
        yield from events(measured if whole else measured.last(steps), some, Style(library=library))
    style = Style(library=library, first_pid=PREDICTED_PID if measured else 0)
    crowded = sum(len(trace.role(trace.times_of(rank))) for rank in some) * steps > MOST_EVENTS
    event_stream = events(excerpt, some, style, None if crowded else costs)
    # Of a single step of a single rank that is too large, the first ops are shown.
    yield from itertools.islice(event_stream, MOST_EVENTS) if crowded else event_stream
    if costs is not None and whole:
        yield from link_counters(trace, costs)


def chosen_ranks(trace: Trace, most: int) -> list[int]:
    """At most so many ranks: one for each representative first, then the others; in order."""
    representatives = trace.representative_of_rank.tolist()
    first = sorted(
        {representative: rank for rank, representative in reversed(list(enumerate(representatives)))}.values()
    )
    others = [rank for rank in range(len(representatives)) if rank not in set(first)]
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
    # One key a line, and the blank behind the colon: HTA finds the rank by a pattern over lines.
    lines = ''.join(f'{json.dumps(key)}: {json.dumps(value)},\n' for key, value in head.items())
    body = ',\n'.join(json.dumps(event) for event in trace_events)
    return f'{{\n{lines}"traceEvents": [\n{body}\n]\n}}\n'


def events(trace: Trace, ranks: list[int], style: Style, costs: Costs | None = None) -> Iterator[Event]:
    """The events of some ranks, and the arrows of what they send each other."""
    for rank in ranks:
        drawing = Drawing(trace, trace.times_of(rank), rank, style)
        yield from drawing.names()
        yield from drawing.steps()
        yield from drawing.actions()
        has_launches = costs is not None and costs.host.any()
        if has_launches or style.for_hta:
            yield from drawing.launches(costs if has_launches else None)
        yield from drawing.kernels()
        yield from drawing.arrows()
    yield from transfers(trace, ranks, style)


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
        if metrics.is_pipeline(self.trace.program):
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
        for step in range(self.trace.steps if metrics.is_pipeline(self.trace.program) else 0):
            for span in metrics.action_spans(self.trace, self.rank, step):
                yield self._slice('user_annotation', f'PP:{span.action}', _ACTIONS, span.begin, span.end, {})

    def launches(self, costs: Costs | None) -> Iterator[Event]:
        """The host issuing one op after the other; without costs in no time, as ops arrive.

        So readers find the step of each.
        """
        arrive = self.rank_times.arrive_KS.ravel()
        op_class = self.trace.role(self.rank_times).op_class
        seconds = np.tile(costs.host[op_class], self.trace.steps) if costs else np.zeros(len(arrive))
        issued = np.cumsum(seconds) if costs else arrive
        for number, times in enumerate(zip((issued - seconds).tolist(), issued.tolist(), strict=True)):
            yield self._slice('cuda_runtime', _LAUNCH, _HOST, *times, {'correlation': number + 1})

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
                if metrics.is_communication(span.op):
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
    """A communication kernel's name, e.g. ``ncclDevKernel_AllReduce``; NCCL has one for sends and receives."""
    if op.operator == COPY:
        return f'Memcpy {"DtoH" if op.phase == "F" else "HtoD"}'
    if library == 'nccl':
        collective = COLLECTIVES.get(op.operator)
        return KERNEL_NAMES[library] + ('SendRecv' if is_transfer(op) or collective is None else collective.kernel)
    return KERNEL_NAMES[library] + ''.join(word.capitalize() for word in op.operator.split('_'))


def _message(op: OpClass, members: list[int], rank: int) -> Event:
    """What torch's profiler says about a collective, a send or a receive."""
    elements = int(op.bytes) // BYTES.get(op.dtype, 1)
    # torch counts the message of this rank; ``bytes`` counts the full tensor.
    collective, shard = COLLECTIVES.get(op.operator), elements // max(len(members), 1)
    message: Event = {
        'Collective name': op.operator,
        'In msg nelems': shard if collective and collective.gives == 'shard' else elements,
        'Out msg nelems': shard if collective and collective.gets == 'shard' else elements,
        'dtype': _TORCH_DTYPES.get(op.dtype, op.dtype),
        'Group size': len(members),
        'Process Group Name': op.partition,
        'Process Group Ranks': str(members),
    }
    if is_transfer(op):
        peer = members[(members.index(rank) + op.peer) % len(members)]
        message |= {'Src Rank': rank, 'Dst Rank': peer} if op.kind == 'send' else {'Src Rank': peer, 'Dst Rank': rank}
    return message


_LINKS_PID: Final = 1_000_000


def link_counters(trace: Trace, costs: Costs) -> Iterator[Event]:
    """Use of each link over time, from 0 to 1: of each collective or send the mean over [start, end].

    Links that are used alike are shown once.
    """
    changes: dict[int, list[tuple[int, float]]] = {}
    for start, end, cost in _messages(trace, costs):
        for link, demand in cost.links if end > start else ():
            # The mean over the op: the engine shares links moment by moment, but traces keep start and end only.
            use = demand * cost.transfer / (end - start)
            changes.setdefault(link, []).extend(((nanoseconds(start), use), (nanoseconds(end), -use)))
    alike: dict[tuple[tuple[int, float], ...], list[int]] = {}
    # In order, so that the same trace gives the same file.
    for link in sorted(changes):
        alike.setdefault(tuple(sorted(changes[link])), []).append(link)
    for series, links in alike.items():
        more = f' and {len(links) - 1} alike' if len(links) > 1 else ''
        use = 0.0
        for at, by in series:
            use += by
            yield {'ph': 'C', 'name': f'link {costs.links[links[0]]}{more}', 'pid': _LINKS_PID, 'tid': 0,
                   'ts': at / 1000, 'args': {'use': round(abs(use), 6)}}  # fmt: skip


def _messages(trace: Trace, costs: Costs) -> Iterator[tuple[float, float, Communication]]:
    """Start, end and cost of every collective, told by the first of its group, and of every send."""
    program = trace.program
    slots_of: dict[tuple[int, int], list[int]] = {}
    for number, role in enumerate(program.roles):
        for slot, index in enumerate(role.op_class.tolist()):
            slots_of.setdefault((number, index), []).append(slot)
    for index, entries in costs.communication.items():
        op = program.op_classes[index]
        partition = program.partitions[op.partition]
        # A collective is one event for its whole group; a receive is told by its send.
        senders = {'collective': 1, 'send': partition.size}.get(op.kind, 0)
        for (group, position), rank in np.ndenumerate(partition.groups_GP[:, :senders]):
            rank_times = trace.times_of(int(rank))
            slots = slots_of.get((int(program.role_of_rank[rank]), index), [])
            cost = entries[entry_of(len(entries), len(partition.groups_GP), group, position)]
            for start, end in zip(
                rank_times.start_KS[:, slots].ravel(), rank_times.end_KS[:, slots].ravel(), strict=True
            ):
                yield float(start), float(end), cost


def transfers(trace: Trace, ranks: list[int], style: Style) -> Iterator[Event]:
    """An arrow for each send of the last step whose receiver is shown too, at most ``most_arrows`` for a rank."""
    meetings = metrics.Meetings(trace.program)
    for rank in ranks:
        role = trace.program.role(rank)
        sends = [slot for slot in range(len(role)) if trace.program.op(role, slot).kind == 'send']
        pairs = [(slot, *meetings.of(rank, slot)[1]) for slot in sends]
        arrows = [pair for pair in pairs if pair[1] in ranks][: style.most_arrows]
        for number, (slot, peer, receive) in enumerate(arrows):
            identity = (style.first_pid + rank) * style.most_arrows + number
            arrow = {'cat': 'transfer', 'name': 'transfer', 'id': identity}
            yield {'ph': 's', **arrow, **_end(trace, rank, slot, style, at_end=False)}
            yield {'ph': 'f', 'bp': 'e', **arrow, **_end(trace, peer, receive, style, at_end=True)}


def _end(trace: Trace, rank: int, slot: int, style: Style, *, at_end: bool) -> Event:
    """Where an arrow begins, with the send, or ends, just inside of the receive."""
    rank_times = trace.times_of(rank)
    start, end = nanoseconds(float(rank_times.start_KS[-1, slot])), nanoseconds(float(rank_times.end_KS[-1, slot]))
    tid = STREAMS + int(trace.program.role(rank).stream[slot])
    return {'pid': style.first_pid + rank, 'tid': tid, 'ts': (max(start, end - 1) if at_end else start) / 1000}
