"""What the nodes of a graph cost, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from simpar.cost.costs import ByKey, Costs, lasts
from simpar.engine.device import Load
from simpar.engine.ops import NONE, Ints, Ops
from simpar.engine.representatives import LoadedRepresentatives, Representatives
from simpar.kept import Kept, Same
from simpar.program import Program
from simpar.program.op import computes as op_computes
from simpar.trace import Times
from simpar.units import GRID, quantise

KEPT: Final = 50_000
"""Of how many ops in a step arrays are kept at most; of more, memory counts for more than what is saved."""
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
        waiting_slows: as of ``Costs``.
        interferes: whether anything can slow anything.
    """

    row: Ints
    rows: Rows
    loads: list[Load]
    issued: Times
    waiting_slows: bool
    interferes: bool

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


def node_costs(
    ops: Ops, program: Program, costs: Costs, representatives: LoadedRepresentatives, steps: int
) -> NodeCosts:
    """The costs of the ops of a program's representatives."""
    own = _own(ops, program, costs, representatives, steps)
    made = own.messages(program, costs, representatives)
    seconds = own.seconds(costs)
    seconds[own.first :] = made.transfer
    return NodeCosts(
        row=own.row,
        rows=Rows(seconds, made.alpha, own.beside, made.kind),
        loads=made.loads,
        issued=own.issued,
        waiting_slows=costs.waiting_slows,
        interferes=own.slowed or any(made.loads),
    )


class _Messages(NamedTuple):
    """What the messages of nodes cost.

    Arguments: ``alpha`` and ``kind`` of all rows, ``loads``, as of ``NodeCosts``; ``transfer``, seconds of those rows
    that are messages.
    """

    alpha: Times
    transfer: Times
    kind: Ints
    loads: list[Load]


class _Own:
    """What nodes cost besides seconds: the same in all rows of a sweep over links, or over numbers of a device.

    Arguments: ``row`` as of ``NodeCosts``; ``first``, the row of the first kind of message, behind which all others
    stand; ``kinds``, pairs (representative, op class) of which all cost the same. ``beside`` of rows, which are
    ``count``; ``slowed``, whether any node is ever slower beside others.
    """

    def __init__(self, ops: Ops, program: Program, costs: Costs, representatives: Representatives, steps: int) -> None:
        count = len(program.op_classes)
        # Rows of op classes at each speed of a device; of hosts, and of the first that a host does in a step.
        speed_of = [costs.rank_speed.item(ranks[0]) for ranks in representatives.ranks]
        speeds = self._speeds = sorted(set(speed_of))
        devices = len(representatives.ranks)
        self._hosts = bool(costs.waits)
        hosts = devices * (1 + self._hosts)
        self._queues = len(ops.roles) > hosts
        computes = program.op_column(op_computes, np.bool_)
        # For a compute op this is its speed beside communication, for a communication its ceiling beside compute.
        beside = [np.where(computes, costs.beside_communication, 1.0)] * len(speeds)
        self.row = ops.op_class.copy()
        own = int(ops.first[devices])
        if len(speeds) > 1:
            speed = np.searchsorted(speeds, speed_of)
            self.row[:own] += (speed * count).astype(np.int32)[ops.representative[:own]]
        before = len(speeds)
        if self._hosts:
            # Behind the devices stand hosts that wait for them.
            self.row[own:] += np.int32(before * count)
            # A rank may have nothing to issue.
            first = ops.first[devices : hosts + 1]
            self.row[first[:-1][np.diff(first) > 0]] += np.int32(count)
            before += 2
            beside += [np.ones(count)] * 2
        if self._queues:
            # And behind all of these work queues, which take no time.
            self.row[ops.first[hosts] :] = before * count
            before += 1
            beside.append(np.ones(count))
        self.first = before * count
        nodes = np.flatnonzero(ops.leads)
        # Ops of one class on one representative cost the same, so each kind is worked out once.
        numbers = _same(program, costs)[ops.op_class[nodes]]
        if devices > 1:
            numbers += ops.representative[nodes].astype(np.int64) * count
        kinds, kind_of = _numbered(numbers, devices * count)
        self.row[nodes] = self.first + kind_of
        self.kinds = [divmod(kind, count) for kind in kinds.tolist()]
        of_kinds = costs.beside_compute[kinds % count]
        self.count = self.first + len(kinds)
        self.beside = np.concatenate((*beside, of_kinds))
        self.slowed = bool(self.beside.take(self.row).min(initial=1.0) < 1.0)
        self.issued = _issued(ops, costs, steps, devices)
        self._kind: dict[tuple[bool, ...], Ints] = {}
        self._messages: Kept[Same, _Messages] = Kept(2)

    def seconds(self, costs: Costs) -> Times:
        """Isolated seconds of rows, those of messages still 0; an array of the caller's own."""
        seconds = [costs.compute / speed for speed in self._speeds]
        if self._hosts:
            seconds += [costs.host, costs.host + costs.host_step]
        if self._queues:
            seconds.append(np.zeros(len(costs.host)))
        return _quantise(np.concatenate((*seconds, np.zeros(self.count - self.first))))

    def messages(self, program: Program, costs: Costs, representatives: LoadedRepresentatives) -> _Messages:
        """What messages cost; the same object for the very same ones."""
        same = Same(costs.communication, representatives)
        return self._messages.get(same, lambda: self._worked_out(program, costs, representatives))

    def _worked_out(self, program: Program, costs: Costs, representatives: LoadedRepresentatives) -> _Messages:
        made = [_communication(program, costs, representatives, *kind) for kind in self.kinds]
        alpha = np.zeros(self.count)
        alpha[self.first :] = _quantise(np.array([latency for latency, _, _ in made]))
        transfer = _quantise(np.array([transfer for _, transfer, _ in made]))
        loads = [load for _, _, load in made]
        return _Messages(alpha, transfer, self._loaded(tuple(map(bool, loads))), loads)

    def _loaded(self, loaded: tuple[bool, ...]) -> Ints:
        """``kind`` of all rows, by which kinds of messages use links; the same array for equal ones."""
        if loaded not in self._kind:
            kind = np.full(self.count, NONE, dtype=np.int32)
            kind[self.first :] = np.where(loaded, np.arange(len(loaded)), NONE)
            self._kind[loaded] = kind
        return self._kind[loaded]


_known: Final[Kept[tuple[Same, float, tuple[str, ...], int], _Own]] = Kept(4)


def _own(ops: Ops, program: Program, costs: Costs, representatives: LoadedRepresentatives, steps: int) -> _Own:
    """That of the same program on the same ranks, where all but messages and computing is the same; large ones anew."""
    if len(ops) > KEPT or not isinstance(costs.communication, ByKey):
        return _Own(ops, program, costs, representatives, steps)
    same = Same(
        ops, representatives.of_rank, costs.communication.key_of, costs.host, costs.beside_communication,
        costs.beside_compute, costs.rank_speed,
    )  # fmt: skip
    key = (same, costs.host_step, costs.waits, steps)
    return _known.get(key, lambda: _Own(ops, program, costs, representatives, steps))


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
        found = costs.communication.key_of.first
        # All of a key meet alike, and cost the same but for what somebody has changed since they were priced.
        if (costs.beside_compute[found] == costs.beside_compute).all():
            return found
    return np.arange(len(program.op_classes))


def _communication(
    program: Program, costs: Costs, representatives: LoadedRepresentatives, representative: int, index: int
) -> tuple[float, float, Load]:
    """Latency, transfer and links of an op class on a representative that leads."""
    by_group = costs.communication[index]
    groups = representatives.together(representative, program.op_classes[index], len(by_group))
    # Groups that fold together last equally long; any of them tells.
    return *lasts(by_group, groups.item(0)), representatives.load(index, groups)


def _issued(ops: Ops, costs: Costs, steps: int, devices: int) -> Times:
    """Each device's host issues its ops one after the other, over all steps; devices stand before all others."""
    # Hosts that wait are ops themselves.
    if costs.waits:
        return np.zeros((steps, len(ops)))
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
