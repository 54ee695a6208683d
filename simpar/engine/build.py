"""Devices from a program, its costs and its lanes: everything that the event loop looks up, as plain Python lists."""

from __future__ import annotations

import numpy as np

from simpar.cost.costs import Communication, Costs
from simpar.engine.device import Channel, CommunicationCost, ComputeCost, Device, Stream, Work
from simpar.engine.lanes import LoadedLanes
from simpar.program import OpClass, Program, Role
from simpar.units import GRID, quantise

Kind = tuple[str, str, int, str]
"""What is counted apart: (kind of op, partition, how many positions further the peer stands, stream)."""


def build(program: Program, costs: Costs, lanes: LoadedLanes, steps: int) -> list[Device]:
    """The device of each lane, idle, with its streams at their first op."""
    counted = [_count(program, role) for role in program.roles]
    works = [_work(role, costs, sequence) for role, (sequence, _) in zip(program.roles, counted, strict=True)]
    make = _CostMaker(program, costs, lanes)
    devices: list[Device] = []
    first = 0
    for lane, ranks in enumerate(lanes.ranks):
        index = int(program.role_of_rank[ranks[0]])
        role = program.roles[index]
        device = Device(lane, first, works[index], make.of_lane(lane, role, counted[index][1]))
        for number, name in enumerate(role.streams):
            slots = np.flatnonzero(role.stream == number).tolist()
            if slots:
                device.streams.append(Stream(device, name, slots))
        devices.append(device)
        first += steps * len(role)
    return devices


def _kind(program: Program, op: OpClass, stream: str) -> Kind:
    return (op.kind, op.partition, op.peer % program.partitions[op.partition].size, stream)


def _count(program: Program, role: Role) -> tuple[list[int], dict[Kind, int]]:
    """The number of each communication op among its kind in a step, and how many there are."""
    total: dict[Kind, int] = {}
    sequence = []
    for index, stream in zip(role.op_class.tolist(), role.stream.tolist(), strict=True):
        op = program.op_classes[index]
        number = 0
        if op.kind != 'compute':
            kind = _kind(program, op, role.streams[stream])
            number = total.get(kind, 0)
            total[kind] = number + 1
        sequence.append(number)
    return sequence, total


def _work(role: Role, costs: Costs, sequence: list[int]) -> Work:
    host = np.rint(costs.host * GRID) / GRID
    issued = np.cumsum(host[role.op_class]).tolist()
    return Work(role.needs(), role.carried(), issued, issued[-1] if issued else 0.0, sequence)


class _CostMaker:
    """Makes the costs of ops by lane, and the channels on which they meet."""

    def __init__(self, program: Program, costs: Costs, lanes: LoadedLanes) -> None:
        self._program = program
        self._costs = costs
        self._lanes = lanes
        self._channels: dict[tuple[object, ...], Channel] = {}

    def of_lane(self, lane: int, role: Role, total: dict[Kind, int]) -> list[ComputeCost | CommunicationCost]:
        """The cost of each slot of a lane; slots of one op class and stream share it."""
        made: dict[tuple[int, int], ComputeCost | CommunicationCost] = {}
        by_slot = []
        for key in zip(role.op_class.tolist(), role.stream.tolist(), strict=True):
            if key not in made:
                made[key] = self._make(lane, key[0], role.streams[key[1]], total)
            by_slot.append(made[key])
        return by_slot

    def _make(self, lane: int, index: int, stream: str, total: dict[Kind, int]) -> ComputeCost | CommunicationCost:
        op = self._program.op_classes[index]
        if op.kind == 'compute':
            speed = float(self._costs.rank_speed[self._lanes.ranks[lane][0]])
            seconds = quantise(float(self._costs.compute[index]) / speed)
            return ComputeCost(seconds, float(self._costs.beside_communication[index]))
        each_step = total[_kind(self._program, op, stream)]
        if op.kind == 'collective':
            return self._collective(lane, index, stream, each_step)
        return self._pair(lane, index, stream, each_step)

    def _collective(self, lane: int, index: int, stream: str, each_step: int) -> CommunicationCost:
        op = self._program.op_classes[index]
        among = self._lanes.among(op.partition, lane)
        channel = self._channels.setdefault((op.partition, stream, among), Channel(len(among)))
        groups = self._lanes.together(lane, op, len(self._costs.communication[index]))
        return self._communication(index, groups, channel, each_step, leads=lane == among[0])

    def _pair(self, lane: int, index: int, stream: str, each_step: int) -> CommunicationCost:
        op = self._program.op_classes[index]
        on = self._lanes.groups[op.partition]
        peer = self._lanes.peer(op.partition, lane, op.peer)
        sends = op.kind == 'send'
        ends = (lane, peer, op.peer % on.size) if sends else (peer, lane, -op.peer % on.size)
        channel = self._channels.setdefault((op.partition, stream, *ends), Channel(2))
        if not sends:
            return CommunicationCost(index, (), 0.0, 0.0, (), 1.0, False, channel, each_step)
        groups = self._lanes.together(lane, op, len(self._costs.communication[index]))
        return self._communication(index, groups, channel, each_step, leads=True)

    def _communication(
        self, index: int, groups: tuple[int, ...], channel: Channel, each_step: int, *, leads: bool
    ) -> CommunicationCost:
        isolated: Communication = self._costs.communication[index][groups[0]]
        return CommunicationCost(
            op_class=index,
            groups=groups,
            alpha=quantise(isolated.alpha),
            transfer=quantise(isolated.transfer),
            links=self._lanes.load(index, groups),
            beside=float(self._costs.beside_compute[index]),
            leads=leads,
            channel=channel,
            each_step=each_step,
        )
