"""What the nodes of a graph cost, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from simpar.cost.costs import ByKey, Costs, lasts
from simpar.engine.fold import Load, Representatives
from simpar.engine.ops import NONE, Ints, Ops
from simpar.program import Program
from simpar.program import computes as op_computes
from simpar.trace import Times
from simpar.units import GRID, quantise

_SORTED: Final = 16
_FEW: Final = 10_000
"""How many numbers there may be for each that there is, or in all, where those that occur are found without a sort."""


class Rows(NamedTuple):
    """What nodes cost, each way of it once; shape [rows]; as of ``NodeCosts``."""

    seconds: Times
    alpha: Times
    beside: Times
    kind: Ints


@dataclass(frozen=True, eq=False)
class NodeCosts:
    """What each node costs.

    Arguments:
        row: of each node, shape [N], the row of ``rows`` that has its costs: of a million ranks' ops few differ.
        loads: what a communication asks of one link of each class, in all groups that it stands for.
        issued: seconds, when the host has issued an op; shape [steps, N].
        launches: whether hosts issue ops at times of their own; those that wait are ops themselves.
        waiting_slows: as of ``Costs``.
    """

    row: Ints
    rows: Rows
    loads: list[Load]
    issued: Times
    launches: bool
    waiting_slows: bool

    @cached_property
    def seconds(self) -> Times:
        """Isolated seconds of each node; of a communication, of its transfer."""
        return self.rows.seconds.take(self.row)

    @cached_property
    def alpha(self) -> Times:
        """Latency of each node; 0 of a compute op."""
        return self.rows.alpha.take(self.row)

    @cached_property
    def beside(self) -> Times:
        """Speed beside what slows it.

        Of a compute op that is while a collective runs on its device; of a communication, its highest while one of its
        devices computes.
        """
        return self.rows.beside.take(self.row)

    @cached_property
    def kind(self) -> Ints:
        """Of a communication with links, the row of ``loads``; -1 of all else."""
        return self.rows.kind.take(self.row)

    @property
    def links(self) -> list[Load]:
        """The load of each node."""
        # Index −1, of what has none, reads the entry behind all others.
        loads = [*self.loads, ()]
        return [loads[kind] for kind in self.kind.tolist()]


def node_costs(ops: Ops, program: Program, costs: Costs, representatives: Representatives, steps: int) -> NodeCosts:
    """The costs of the ops of a program's representatives."""
    count, devices = len(program.op_classes), len(representatives.ranks)
    # Rows of op classes at each speed of a device; of hosts, and of the first that a host does in a step.
    speed_of = [costs.rank_speed.item(ranks[0]) for ranks in representatives.ranks]
    speeds = sorted(set(speed_of))
    hosts = devices * (2 if costs.waits else 1)
    computes = program.op_column(op_computes, np.bool_)
    # For a compute op this is its speed beside communication, for a communication its ceiling beside compute.
    beside = [np.where(computes, costs.beside_communication, 1.0)] * len(speeds)
    seconds = [costs.compute / speed for speed in speeds]
    row, own = ops.op_class.copy(), int(ops.first[devices])
    if len(speeds) > 1:
        speed = np.searchsorted(speeds, speed_of)
        row[:own] += (speed * count).astype(np.int32)[ops.representative[:own]]
    if costs.waits:
        # Behind the devices stand hosts that wait for them.
        row[own:] += np.int32(len(seconds) * count)
        # A rank may have nothing to issue.
        first = ops.first[devices : hosts + 1]
        row[first[:-1][np.diff(first) > 0]] += np.int32(count)
        seconds += [costs.host, costs.host + costs.host_step]
        beside += [np.ones(count)] * 2
    if len(ops.roles) > hosts:
        # And behind all of these work queues, which take no time.
        row[ops.first[hosts] :] = len(seconds) * count
        seconds.append(np.zeros(count))
        beside.append(np.ones(count))
    before = len(seconds) * count
    nodes = np.flatnonzero(ops.leads)
    # Ops of one class on one representative cost the same, so each kind is worked out once.
    numbers = ops.representative[nodes].astype(np.int64) * count + _same(program, costs)[ops.op_class[nodes]]
    kinds, kind_of = _numbered(numbers, devices * count)
    row[nodes] = before + kind_of
    messages = [_message(program, costs, representatives, *divmod(kind, count)) for kind in kinds.tolist()]
    loads = [load for _, _, load in messages]
    nothing = np.zeros(before)
    rows = Rows(
        seconds=_quantise(np.concatenate((*seconds, [transfer for _, transfer, _ in messages]))),
        alpha=_quantise(np.concatenate((nothing, [latency for latency, _, _ in messages]))),
        beside=np.concatenate((*beside, costs.beside_compute[kinds % count])),
        kind=np.concatenate((nothing + NONE, np.where(list(map(bool, loads)), np.arange(len(loads)), NONE))).astype(
            np.int32
        ),
    )
    issued = _issued(ops, costs, steps, devices)
    return NodeCosts(row, rows, loads, issued, not costs.waits, costs.waiting_slows)


def _numbered(numbers: Ints, below: int) -> tuple[Ints, Ints]:
    """The numbers that occur, in order, and for each its place among them."""
    # To sort them takes longer, where there are about as many as there may be.
    if below > max(_SORTED * len(numbers), _FEW):
        return np.unique(numbers, return_inverse=True)
    place = np.zeros(below, dtype=np.int64)
    place[numbers] = 1
    found = np.flatnonzero(place)
    place[found] = np.arange(len(found))
    return found, place[numbers]


def _same(program: Program, costs: Costs) -> Ints:
    """For each op class one that meets the same ranks at the same costs, as far as that is plain."""
    if isinstance(costs.communication, ByKey):
        found = costs.communication.first
        # All of a key meet alike, and cost the same but for what somebody has changed since they were priced.
        if (costs.beside_compute[found] == costs.beside_compute).all():
            return found
    return np.arange(len(program.op_classes))


def _message(
    program: Program, costs: Costs, representatives: Representatives, representative: int, index: int
) -> tuple[float, float, Load]:
    """Latency, transfer and links of an op class on a representative that leads."""
    by_group = costs.communication[index]
    groups = representatives.together(representative, program.op_classes[index], len(by_group))
    # Groups that fold together last equally long; any of them tells.
    return *lasts(by_group, groups.item(0)), representatives.load(by_group, groups)


def _issued(ops: Ops, costs: Costs, steps: int, devices: int) -> Times:
    """Each device's host issues its ops one after the other, over all steps; devices stand before all others."""
    # Hosts that wait are ops themselves.
    if costs.waits:
        return np.broadcast_to(np.zeros(1), (steps, len(ops)))
    host, before = _quantise(costs.host).take(ops.op_class), quantise(costs.host_step)
    if len(ops.roles) == 1:
        return _issued_by_one(host, before, steps)
    issued = np.zeros((steps, len(ops)))
    for begin, end in pairwise(ops.first[: devices + 1].tolist()):
        issued[:, begin:end] = _issued_by_one(host[begin:end], before, steps)
    return issued


def _issued_by_one(host: Times, before: float, steps: int) -> Times:
    """The same of one device. Arguments: ``host``, seconds for each op; ``before``, those before any of a step."""
    # The host launches in issue order, whatever the stream, and never waits for the device.
    one = host.cumsum() + before
    return np.asarray(np.arange(steps)[:, None] * one[-1:] + one)


def _quantise(times: Times) -> Times:
    # On a grid of 2⁻⁴⁰ s sums of doubles are exact below 2¹² s: ties are ties in every machine.
    return np.rint(times * GRID) / GRID
