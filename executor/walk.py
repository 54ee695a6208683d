"""Streams of all ranks, walked under blocking semantics: sends wait for receives, collectives for everybody.

Streams are in order, an op starts when its needs have finished, a collective when its last participant has arrived, and
steps follow one another without a barrier. Needs no torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from simpar.program import OpClass, Partition, Program, Role

STEPS: Final = 2
"""Of a dry run: one shows deadlocks within a step, the second those over its boundary."""
Place = tuple[object, ...]
"""Where the participants of a communication meet."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of a role, its arrays read out.

    Arguments:
        index: the number of its op class in the program.
        stream: its number among the role's.
        part: micro-batch and copy.
        needs, carried: slots that must have finished, of this step and of the one before; those that the order of its
            own stream implies are left out.
    """

    position: int
    index: int
    op: OpClass
    stream: int
    part: tuple[int, int]
    needs: tuple[int, ...]
    carried: tuple[int, ...]

    def awaits(self, step: int) -> list[tuple[int, int]]:
        """(step, slot) of what must have finished before it may start in a step; the first has no step before it."""
        return [(step, need) for need in self.needs] + [(step - 1, need) for need in self.carried if step]


class Order:
    """A role as every machine walks it: its slots in issue order, and those of each stream."""

    def __init__(self, program: Program, role: Role) -> None:
        needs, carried, streams = role.needs(), role.carried(), role.stream.tolist()
        columns = zip(*(column.tolist() for column in (role.op_class, role.micro_batch, role.copy)), strict=True)
        self.slots = [
            Slot(
                position=slot,
                index=index,
                op=program.op_classes[index],
                stream=streams[slot],
                part=(micro_batch, copy),
                needs=tuple(need for need in needs[slot] if streams[need] != streams[slot] or need > slot),
                carried=tuple(need for need in carried[slot] if streams[need] != streams[slot]),
            )
            for slot, (index, micro_batch, copy) in enumerate(columns)
        ]
        self.streams = [[self.slots[slot] for slot in row] for row in role.by_stream().rows()]
        self._place = {slot.position: at for row in self.streams for at, slot in enumerate(row)}

    def count(self, step: int, slot: int) -> tuple[int, int]:
        """A slot's stream, and how many of its ops, of all steps, have finished when the slot of a step has."""
        stream = self.slots[slot].stream
        # A stream is in order, so "need has finished" is a comparison of one counter.
        return stream, step * len(self.streams[stream]) + self._place[slot] + 1


@dataclass(slots=True, eq=False)
class Stream:
    """One stream of one rank, and how far it is.

    Arguments: ``parked``, whether it waits in its op for the other participants.
    """

    rank: int
    name: str
    slots: list[Slot]
    step: int = 0
    at: int = 0
    parked: bool = False
    head: Slot = field(init=False)

    def __post_init__(self) -> None:
        self.head = self.slots[0]

    def go_on(self) -> None:
        """Come to the next op."""
        self.parked = False
        self.at += 1
        if self.at == len(self.slots):
            self.step, self.at = self.step + 1, 0
        self.head = self.slots[self.at]


def seat(op: OpClass, stream: str, partition: Partition, rank: int) -> tuple[Place, int, int]:
    """Return where a communication's participants meet, this rank's seat there, and the number of seats.

    A communicator is a partition and a stream; a send meets its receive on the way from one position to the other.
    """
    group, position = partition.place(rank)
    place = (partition.name, stream, group)
    peer = (position + op.peer) % partition.size
    if op.kind == 'send':
        return (*place, position, peer), 0, 2
    if op.kind == 'recv':
        return (*place, peer, position), 1, 2
    return place, position, partition.size


def peers(program: Program, op: OpClass, rank: int) -> tuple[int, ...]:
    """The ranks that an op communicates with: all others of its group, or the one that a transfer involves."""
    if op.kind == 'compute':
        return ()
    members = program.partitions[op.partition].members(rank)
    if op.kind == 'collective':
        return tuple(member for member in members if member != rank)
    return (members[(members.index(rank) + op.peer) % len(members)],)


class Walk:
    """A walk of all streams; what an op does is a matter of subclasses, see ``perform``."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._finished = [[0] * len(program.role(rank)) for rank in range(program.world)]
        rows = [Order(program, role).streams for role in program.roles]
        self._streams = [
            Stream(rank, name, row)
            for rank, role in enumerate(program.role_of_rank.tolist())
            for name, row in zip(program.roles[role].streams, rows[role], strict=True)
            if row
        ]
        self._waiting: dict[Place, dict[int, Stream]] = {}
        self._seats: dict[tuple[str, str, int], tuple[Place, int, int]] = {}
        self._steps = 0

    def perform(self, together: Sequence[Stream]) -> None:
        """Do the op at the head of some streams: one that computes, or all participants of a communication."""

    def walk(self, steps: int) -> list[Stream]:
        """Walk all streams up to a step, each in turn as far as it goes; returns those that cannot go on."""
        going, self._steps = self._streams, steps
        while going := [stream for stream in going if stream.step < steps]:
            # A whole round in which no stream moved: nothing will ever change.
            if not sum(self._advance(stream, steps) for stream in going):
                return going
        return []

    def _advance(self, stream: Stream, steps: int) -> int:
        """Advance one stream as far as it goes; return how many ops it has started."""
        moved = 0
        while stream.step < steps and self._ready(stream):
            moved += 1
            self._start(stream)
        return moved

    def _ready(self, stream: Stream) -> bool:
        return not (stream.parked or self._missing(stream))

    def _missing(self, stream: Stream) -> list[int]:
        """The slots that the head of a stream still needs."""
        finished = self._finished[stream.rank]
        return [need for step, need in stream.head.awaits(stream.step) if finished[need] <= step]

    def _start(self, stream: Stream) -> None:
        """Do the op at the head of a stream, or wait in it for the other participants."""
        together = [stream]
        if stream.head.op.kind != 'compute':
            place, own, seats = self._seat(stream)
            present = self._waiting.setdefault(place, {})
            present[own] = stream
            # The stream stays in its op until all are there, as a blocking call does.
            stream.parked = True
            if len(present) < seats:
                return
            del self._waiting[place]
            together = [present[other] for other in range(seats)]
        self.perform(together)
        for one in together:
            self._finished[one.rank][one.head.position] += 1
            one.go_on()

    def _seat(self, stream: Stream) -> tuple[Place, int, int]:
        op = stream.head.op
        key = (op.name, stream.name, stream.rank)
        if key not in self._seats:
            self._seats[key] = seat(op, stream.name, self._program.partitions[op.partition], stream.rank)
        return self._seats[key]

    def draw(self, streams: Sequence[Stream]) -> Iterator[str]:
        """A line for each of some streams: what its head waits for."""
        for stream in sorted(streams, key=lambda one: (one.rank, self._program.role(one.rank).streams.index(one.name))):
            action = self._action(stream.rank, stream.head.position)
            yield f'rank {stream.rank}, stream {stream.name}: {action} waits for {self._waits_for(stream)}'

    def _waits_for(self, stream: Stream) -> str:
        if not stream.parked:
            return ', '.join(self._action(stream.rank, need) for need in self._missing(stream)) or 'its turn'
        op = stream.head.op
        place, *_ = self._seat(stream)
        here = {one.rank for one in self._waiting[place].values()}
        others = peers(self._program, op, stream.rank)
        return ', '.join(f'rank {rank} (at {self._at(rank, stream.name)})' for rank in others if rank not in here)

    def _at(self, rank: int, name: str) -> str:
        """What a stream of a rank is at; one that it does not have is at nothing more."""
        stream = next((one for one in self._streams if (one.rank, one.name) == (rank, name)), None)
        return (
            'nothing more' if stream is None or stream.step >= self._steps else self._action(rank, stream.head.position)
        )

    def _action(self, rank: int, slot: int) -> str:
        return self._program.action(self._program.role(rank), slot)


def stuck(program: Program) -> Iterator[str]:
    """One line for each stream that cannot finish two steps, saying what its head waits for."""
    walk = Walk(program)
    return walk.draw(walk.walk(STEPS))
