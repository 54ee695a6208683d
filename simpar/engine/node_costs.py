"""What the nodes of a graph cost, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from simpar.cost.costs import ByKey, Costs
from simpar.cost.entries import lasts
from simpar.engine.device import Load
from simpar.engine.ops import NONE, Ints, Ops
from simpar.engine.representatives import LoadedRepresentatives, Representatives
from simpar.kept import Kept, Same
from simpar.program import Program
from simpar.program.rows import like_of, stand
from simpar.trace import Times
from simpar.units import GRID, quantise

KEPT: Final = 50_000
"""Of how many ops in a step arrays are kept at most; of more, memory counts for more than what is saved."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeCosts:
    """What each node costs, at its number; shape [N].

    Arguments:
        seconds: isolated; of a communication, of its transfer. alpha: latency; 0 of a compute op.
        beside: speed of a compute op while a collective runs on its device; highest speed of a communication while one
            of its devices computes.
        kind: of a communication with links, the row of ``loads``; -1 of all else.
        loads: what a communication asks of one link of each class, in all groups that it stands for.
        issued: seconds, when the host has issued an op; shape [steps, N].
        waiting_slows: as of ``Costs``.
    """

    seconds: Times
    alpha: Times
    beside: Times
    kind: Ints
    loads: list[Load]
    issued: Times
    waiting_slows: bool

    @property
    def interferes(self) -> bool:
        """Whether anything can slow anything."""
        return bool((self.beside < 1.0).any()) or bool((self.kind != NONE).any())

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
    made = [_communication(program, costs, representatives, *kind) for kind in own.kinds]
    alpha, seconds = np.zeros(len(ops)), own.seconds if len(ops) > KEPT else own.seconds.copy()
    alpha[own.nodes] = _quantise(np.array([latency for latency, _, _ in made]))[own.kind_of]
    seconds[own.nodes] = _quantise(np.array([transfer for _, transfer, _ in made]))[own.kind_of]
    return NodeCosts(
        seconds=seconds,
        alpha=alpha,
        beside=own.beside,
        kind=own.loaded(tuple([bool(load) for _, _, load in made])),
        loads=[load for _, _, load in made],
        issued=own.issued,
        waiting_slows=costs.waiting_slows,
    )


class _Own:
    """What nodes cost besides their messages: the same in all rows of a sweep over links.

    Arguments: ``nodes``, those that communicate; ``kind_of``, the place of each in ``kinds``, pairs (representative,
    op class) of which all cost the same. ``seconds``, ``beside`` and ``issued`` as of ``NodeCosts``.
    """

    def __init__(self, ops: Ops, program: Program, costs: Costs, representatives: Representatives, steps: int) -> None:
        devices = len(representatives.ranks)
        # Behind the devices stand hosts that wait for them, if any do.
        speed = np.ones(len(ops.roles))
        speed[:devices] = [costs.rank_speed[ranks[0]] for ranks in representatives.ranks]
        seconds = costs.compute[ops.op_class] / speed[ops.representative]
        self.beside = np.ones(len(ops))
        # For a compute op this is its speed beside communication, for a communication its ceiling beside compute.
        self.beside[ops.computes] = costs.beside_communication[ops.op_class[ops.computes]]
        if len(ops.roles) > devices:
            own = int(ops.first[devices])
            seconds[own:], self.beside[own:] = costs.host[ops.op_class[own:]], 1.0
            # A rank may have nothing to issue.
            first = ops.first[devices:]
            seconds[first[:-1][np.diff(first) > 0]] += costs.host_step
        self.seconds = _quantise(seconds)
        self.nodes = np.flatnonzero(ops.leads)
        self.beside[self.nodes] = costs.beside_compute[ops.op_class[self.nodes]]
        count = len(program.op_classes)
        # Ops of one class on one representative cost the same, so each kind is worked out once.
        op_class = _same(program, costs)[ops.op_class[self.nodes]]
        kinds, self.kind_of = np.unique(
            ops.representative[self.nodes].astype(np.int64) * count + op_class, return_inverse=True
        )
        self.kinds = [divmod(kind, count) for kind in kinds.tolist()]
        self.issued = _issued(ops, costs, steps)
        self._loaded: dict[tuple[bool, ...], Ints] = {}

    def loaded(self, loaded: tuple[bool, ...]) -> Ints:
        """``kind`` of ``NodeCosts``, by which kinds use links; the same array for equal ones."""
        if loaded not in self._loaded:
            kind = np.full(len(self.seconds), NONE, dtype=np.int32)
            kind[self.nodes] = np.where(np.array(loaded, dtype=bool)[self.kind_of], self.kind_of, NONE)
            self._loaded[loaded] = kind
        return self._loaded[loaded]


_known: Final[Kept[tuple[Same, float, tuple[str, ...], int], _Own]] = Kept(4)


def _own(ops: Ops, program: Program, costs: Costs, representatives: LoadedRepresentatives, steps: int) -> _Own:
    """That of the same program on the same ranks, where costs but for messages are the same; large ones anew."""
    if len(ops) > KEPT or not isinstance(costs.communication, ByKey):
        return _Own(ops, program, costs, representatives, steps)
    same = Same(
        ops, representatives.of_rank, costs.communication.key_of, costs.compute, costs.host, costs.beside_communication,
        costs.beside_compute, costs.rank_speed,
    )  # fmt: skip
    key = (same, costs.host_step, costs.waits, steps)
    return _known.get(key, lambda: _Own(ops, program, costs, representatives, steps))


def _same(program: Program, costs: Costs) -> Ints:
    """For each op class the first that meets the same ranks at the same costs, as far as that is plain."""
    like = like_of(program.op_classes)
    first: dict[tuple[int, int], int] = {}
    # Equal costs share the tuple itself (see ``price``).
    same = {
        index: first.setdefault((like.item(index), id(by_group)), index)
        for index, by_group in costs.communication.items()
    }
    found = np.arange(len(like))
    found[list(same)] = list(same.values())
    return found


def _communication(
    program: Program, costs: Costs, representatives: LoadedRepresentatives, representative: int, index: int
) -> tuple[float, float, Load]:
    """Latency, transfer and links of an op class on a representative that leads."""
    by_group = costs.communication[index]
    groups = representatives.together(representative, stand(program.op_classes, index), len(by_group))
    # Groups that fold together last equally long; any of them tells.
    return *lasts(by_group, groups.item(0)), representatives.load(index, groups)


def _issued(ops: Ops, costs: Costs, steps: int) -> Times:
    """Each representative's host issues its ops one after the other, over all steps."""
    host = _quantise(costs.host)[ops.op_class]
    issued = np.zeros((steps, len(ops)))
    # Hosts that wait are ops themselves.
    if costs.waits:
        return issued
    for begin, end in pairwise(ops.first.tolist()):
        # The host launches in issue order, whatever the stream, and never waits for the device.
        one = np.cumsum(host[begin:end]) + quantise(costs.host_step)
        issued[:, begin:end] = np.arange(steps)[:, None] * one[-1:] + one
    return issued


def _quantise(times: Times) -> Times:
    # On a grid of 2⁻⁴⁰ s sums of doubles are exact below 2¹² s: ties are ties in every machine.
    return np.rint(times * GRID) / GRID
