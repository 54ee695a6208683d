"""simulate: the spans of a program, by the event loop, or by the reference whose spans it has to the bit."""

from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

import numpy as np

from simpar.cost.costs import Costs
from simpar.engine.fold import Observer, Representatives, fold
from simpar.engine.loop import NONE, NUMBER, arrange_meetings, arrange_ops, events
from simpar.engine.ops import Ints, NodeCosts, Ops, node_costs, nodes_of
from simpar.engine.queues import hosted
from simpar.engine.world import DEVICE, ENTRY, EVENT, FLOW, LINK, LOOP, MEETING, OP, STREAM, World
from simpar.errors import SimparError
from simpar.kernels import Array, kernel
from simpar.program import Program
from simpar.trace import RankTimes, Times, Trace

Engine = Literal['auto', 'simpy', 'python', 'compiled']


def simulate(
    program: Program,
    costs: Costs,
    *,
    steps: int = 3,
    unfold: bool | None = None,
    observe: Observer | None = None,
    engine: Engine = 'auto',
) -> Trace:
    """The Trace of a program on a cluster.

    Arguments:
        steps: how many steps run back to back, without a barrier.
        unfold: True, simulate every rank; False, one rank for each role; None, as few ranks as tell all, exactly.
            The spans do not depend on it, to the bit.
        observe: called whenever speeds have been solved; by the reference alone.
        engine: ``simpy``, the reference; ``compiled``, an event loop on records, by numba; ``python``, the same source
            by Python itself; ``auto``, by either, as it is large or small. The spans do not depend on it, to the bit
            (below 2¹² s, where doubles hold the grid of times and a bit more).

    Raises ``Deadlock`` where the program cannot finish, ``ValueError`` where ``unfold=False`` would not be exact.
    Speeds are max-min fair (see ``fair_speeds``). Does not model noise, nor how many ops a queue holds.
    """
    # Observers are told of every solution of speeds, which only the reference makes in full.
    simulated = _simulated(program, costs, steps, unfold, observe, 'simpy' if observe else engine)
    if isinstance(simulated, Trace):
        return simulated
    return simulated.trace(program)


def step_ends(program: Program, costs: Costs, *, steps: int = 3) -> Times:
    """When each step ends over all ranks, shape [steps]: as of the Trace, without one.

    Arguments and errors as of `simulate`.
    """
    simulated = _simulated(program, costs, steps, None, None, 'auto')
    if isinstance(simulated, Trace):
        return simulated.step_ends
    # At the number of what is no node nothing ends.
    return np.asarray(simulated.end.max(axis=1))


class _Simulated(NamedTuple):
    """A simulation on arrays; ``issued``, when hosts issued ops, shape [steps, N]."""

    representatives: Representatives
    ops: Ops
    node: Ints
    issued: Times
    world: World

    @property
    def end(self) -> Times:
        """When nodes ended, shape [steps, N]."""
        return self.world.end.reshape(self.issued.shape)

    def trace(self, program: Program) -> Trace:
        """The Trace that follows from when nodes end."""
        ops, ranks, end = self.ops, self.representatives.ranks, self.end
        # Behind the devices stand hosts that wait for them, and work queues.
        bounds = ops.first[: len(ranks) + 1].tolist()
        of_op, node = self.issued[:, : bounds[-1]].copy(), self.node[: bounds[-1]]
        streams = ops.streams.start[: ops.first_stream.item(len(ranks)) + 1]
        rows = ops.need.start, ops.need.item, ops.carry.start, ops.carry.item, streams, ops.streams.item
        arrive(self.node, *rows, end, of_op)
        start = of_op
        others = np.flatnonzero(node != np.arange(len(node)))
        if len(others):
            start = of_op.copy()
            # What meets starts with the last of it; ``maximum.at``, as several ops may be of one node.
            for into, own in zip(start, of_op, strict=True):
                np.maximum.at(into, node[others], own[others])
            # ``take``, not an index of two dims: that would lay the steps of an op beside each other, and answers read
            # by step.
            start, end = (times.take(node, axis=1) for times in (start, end))
        of_one = [tuple(times[:, begin:until] for times in (of_op, start, end)) for begin, until in pairwise(bounds)]
        return Trace(
            program,
            'simulated',
            tuple(RankTimes(own[0], *times) for own, times in zip(ranks, of_one, strict=True)),
            np.array(self.representatives.of_rank, dtype=np.int32),
        )


def _simulated(
    program: Program, costs: Costs, steps: int, unfold: bool | None, observe: Observer | None, engine: Engine
) -> _Simulated | Trace:
    """A simulation; the Trace of the reference, where that is what runs."""
    if steps < 1:
        raise ValueError(f'cannot simulate {steps} steps; write 1 or more')
    representatives = fold(program, costs, unfold)
    if engine != 'simpy':
        ops, node = _arranged(program, representatives, costs)
        if node is not None:
            by_node = node_costs(ops, program, costs, representatives, steps)
            world = world_of(ops, node, by_node, len(costs.links))
            ready = world.loop['ready'].item()
            loop = events.interpreted if engine == 'python' else events.compiled if engine == 'compiled' else events
            if loop(world) == ready:
                return _Simulated(representatives, ops, node, by_node.issued, world)
    # What cannot finish goes to the reference, too, which draws the deadlock. SimPy is imported only where it runs.
    from simpar.engine.reference import Simulation

    return Simulation(program, costs, representatives, steps, observe).run()


def _arranged(program: Program, representatives: Representatives, costs: Costs) -> tuple[Ops, Ints | None]:
    """The ops of a program and the nodes of these: one step of it costs more to list than to simulate."""

    def arranged() -> tuple[Ops, Ints | None]:
        ops = hosted(program, representatives, costs.waits, costs.work_queues)
        return ops, nodes_of(ops)

    # Effects of the model change costs, and rarely which ranks are alike.
    return program.once('ops', (*representatives.of_rank, costs.waits, costs.work_queues), arranged)


def world_of(of: Ops, node: Ints, costs: NodeCosts, links: int) -> World:
    """The world of the event loop at time 0; it is used up.

    Arguments: ``node``, as of ``nodes_of``; ``links``, how many there are.
    Raises ``SimparError`` where a step has more ops than a record can number.
    """
    count = len(of)
    if count > NUMBER:
        raise SimparError(f'a step of {count} ops is too large (at most {NUMBER}); simulate fewer ranks')
    stream = of.stream.astype(np.int32, copy=False)
    on_all, listed = int(of.first_stream[-1]), len(of.need.item) + len(of.carry.item)
    meetings = np.zeros(np.count_nonzero(of.leads), dtype=MEETING)
    devices, streams = np.zeros(len(of.roles), dtype=DEVICE), np.zeros(on_all, dtype=STREAM)
    streams['op'] = streams['place'] = streams['lead'] = streams['behind'] = NONE
    # A list has two needs at least, and its length.
    ops, needs = np.empty(count, OP), np.empty(listed + listed // 2, np.uint32)
    members = np.empty(count - np.count_nonzero(of.computes), dtype=np.uint32)
    # A stream may compute and communicate.
    beside = np.empty(2 * on_all, dtype=np.uint32)
    ready, begun, touched, flowing = np.zeros((4, on_all), dtype=np.uint32)
    place, speeds = _speeds(costs.rows.beside)
    kinds = len(costs.waiting_slows)
    columns = 2**kinds
    arrange_ops(
        node, of.leads, of.computes, of.need.start, of.need.item, of.carry.start, of.carry.item, of.streams.start,
        of.streams.item, costs.row, costs.rows.seconds, place, speeds, columns, np.zeros(count, dtype=bool), ops,
        needs, streams,
    )  # fmt: skip
    loop = np.zeros(1, dtype=LOOP)
    loop['ready'] = arrange_meetings(
        ops, node, stream, costs.row, costs.rows.alpha, costs.rows.kind, costs.rows.taking,
        np.array(costs.waiting_slows, dtype=np.uint8), of.first_stream, np.zeros(on_all, dtype=np.uint8), meetings,
        members, devices, beside, streams, ready,
    )  # fmt: skip
    on_links = np.zeros(links, dtype=LINK)
    on_links['head'] = NONE
    pairs = [pair for load in costs.loads for pair in load]
    widest = max(map(len, costs.loads), default=0)
    return World(
        len(costs.issued), np.uint64(count), np.uint64(kinds), costs.launches, np.uint64(widest),
        speeds, np.zeros(len(devices) * kinds, dtype=np.uint32), ops, meetings, members, needs,
        np.array([*accumulate(map(len, costs.loads), initial=0)], dtype=np.int64),
        np.array([link for link, _ in pairs], dtype=np.uint32),
        np.array([demand for _, demand in pairs], dtype=float),
        devices, beside,
        costs.issued.ravel() if costs.launches else np.zeros(0), np.full(costs.issued.size, -1.0),
        streams, np.zeros(on_all + 1, dtype=EVENT), np.zeros(on_all, dtype=FLOW),
        np.zeros(on_all * widest, dtype=ENTRY),
        on_links, ready, begun, touched, flowing, np.zeros(links, dtype=np.uint32), loop,
    )  # fmt: skip


def _speeds(beside: Times) -> tuple[Ints, Times]:
    """Of each way of costs the place of its speeds, and these: 2^kinds numbers from each place on, as of ``World``.

    Arguments: ``beside``, shape [kinds, rows], as of ``Rows``.
    """
    kinds = len(beside)
    distinct, row = np.unique(beside, axis=1, return_inverse=True)
    speeds = np.ones((distinct.shape[1], 2**kinds))
    for together in range(1, 2**kinds):
        # Of several kinds at once the one that takes most counts.
        speeds[:, together] = distinct[[kind for kind in range(kinds) if together >> kind & 1]].min(axis=0)
    return row.ravel() * 2**kinds, speeds.ravel()


@kernel
def arrive(
    node: Array, need_start: Array, need_item: Array, carry_start: Array, carry_item: Array, stream_start: Array,
    stream_item: Array, end: Array, time: Array,
) -> None:  # fmt: skip
    """Write when ops arrive: their hosts have issued them, and all that they come after has ended.

    Arguments: node: as of ``nodes_of``; need_start to stream_item: as of ``Ops``; shape [steps, N] of ``end``, when
    nodes ended, and of ``time``, when hosts have issued ops, and then when these arrive.
    """
    for step in range(len(time)):
        now, last = time[step], end[step]
        # Before the first step everything has ended.
        before = end[step - 1] if step else last
        for stream in range(len(stream_start) - 1):
            begin, until = stream_start[stream], stream_start[stream + 1]
            for place in range(begin, until):
                number = stream_item[place]
                latest = now[number]
                # The first op of a stream follows the last one of the step before.
                if place > begin:
                    ended = last[node[stream_item[place - 1]]]
                    # `max` also looks for what is not a number, and takes longer.
                    latest = ended if ended > latest else latest  # noqa: FURB136
                elif step:
                    latest = max(latest, before[node[stream_item[until - 1]]])
                for index in range(need_start[number], need_start[number + 1]):
                    latest = max(latest, last[node[need_item[index]]])
                if step:
                    for index in range(carry_start[number], carry_start[number + 1]):
                        latest = max(latest, before[node[carry_item[index]]])
                now[number] = latest
