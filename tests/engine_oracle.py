"""A second simulator for small programs, written to be obviously right: exact fractions, no grid, no heap, no folding.

It looks at every rank at every moment, and raises all speeds together until nothing can rise. It shares no code with
the engine. Where nothing can go on, it says what heads every stream. A host that waits is a rank of its own, numbered
below zero, which issues one op after the other. A work queue is a list of ops: one arrives when those before it have.
"""

from dataclasses import dataclass, field
from fractions import Fraction

from simpar.cost.costs import Costs
from simpar.program import Program

GRID = 2**40
Key = tuple[int, int, int]
"""(rank, step, slot)."""


@dataclass
class Task:
    """A compute op, or a communication with all its participants.

    Arguments: ``complete``, whether the program has all of them; one that lacks any never starts. ``beside``, its speed
    beside each kind of communication, of a communication beside compute; ``kind``, of that.
    """

    members: list[Key]
    complete: bool
    op_class: int
    latency: Fraction
    work: Fraction
    beside: list[Fraction]
    computes: bool
    demands: dict[int, Fraction]
    kind: int = 0
    start: Fraction | None = None
    end: Fraction | None = None
    speed: Fraction = Fraction(0)

    @property
    def ranks(self) -> list[int]:
        return [rank for rank, _, _ in self.members]


def tasks_of(program: Program, costs: Costs, steps: int) -> dict[Key, Task]:
    """Every op of every rank and step → the task that it takes part in."""
    tasks: dict[Key, Task] = {}
    meetings: dict[tuple, list[Key]] = {}
    for rank in range(program.world):
        role, counts = program.role(rank), {}
        for step in range(steps):
            for slot in range(len(role)):
                where = _meeting(program, rank, slot)
                number = counts[where] = counts.get(where, -1) + 1
                kind = program.op(role, slot).kind
                first = meetings.setdefault((where, number), [])
                first.insert(0 if kind == 'send' else len(first), (rank, step, slot))
    for keys in meetings.values():
        task = _task(program, costs, keys)
        tasks.update(dict.fromkeys(keys, task))
    return tasks


def _meeting(program: Program, rank: int, slot: int) -> tuple:
    """Where an op meets its partners: equal for ops that are counted together, each rank for itself."""
    role = program.role(rank)
    op = program.op(role, slot)
    stream = role.streams[role.stream[slot]]
    if op.kind == 'compute':
        return ('compute', rank, slot)
    group, position = program.partitions[op.partition].place(rank)
    there = (position + op.peer) % program.partitions[op.partition].size
    ends = {'collective': (), 'send': (position, there), 'recv': (there, position)}[op.kind]
    return (op.partition, group, stream, ends)


def _task(program: Program, costs: Costs, keys: list[Key]) -> Task:
    rank, _, slot = keys[0]
    index = int(program.role(rank).op_class[slot])
    op = program.op_classes[index]
    if op.kind == 'compute':
        # the grid of isolated durations is part of the model
        seconds = Fraction(round(costs.compute[index] / costs.rank_speed[rank] * GRID), GRID)
        beside = [costs.beside_communication, *(one.beside for one in costs.kinds)]
        return Task(keys, True, index, Fraction(0), seconds, [Fraction(one[index]) for one in beside], True, {})
    kind = next((number for number, one in enumerate(costs.kinds, 1) if one.ops[index]), 0)
    groups, size = program.partitions[op.partition].groups_GP.shape
    if len(keys) < (size if op.kind == 'collective' else 2):
        return Task(keys, False, index, Fraction(0), Fraction(0), [Fraction(1)], False, {}, kind)
    group, position = program.partitions[op.partition].place(rank)
    entries = costs.communication[index]
    cost = entries[group] if len(entries) == groups else entries[group * size + position]
    demands = {link: Fraction(demand) for link, demand in cost.links}
    beside = [Fraction(costs.beside_compute[index])]
    return Task(keys, True, index, Fraction(cost.alpha), Fraction(cost.transfer), beside, False, demands, kind)


def _host(key: Key) -> Key:
    """Where a rank's host issues an op."""
    rank, step, slot = key
    return -1 - rank, step, slot


@dataclass
class Oracle:
    """One run.

    Arguments: ``exact``, whether so far every moment, and what would end within a tick of one, is on the grid of times,
    and doubles hold every speed and all work done and left, so that an engine on doubles loses nothing.
    """

    program: Program
    costs: Costs
    steps: int
    now: Fraction = Fraction(0)
    arrive: dict[Key, Fraction] = field(default_factory=dict)
    exact: bool = True

    def __post_init__(self) -> None:
        self.tasks = tasks_of(self.program, self.costs, self.steps)
        if self.costs.waits:
            self.tasks |= {_host(key): self._issuing(key) for key in list(self.tasks)}
        self.every = list({id(task): task for task in self.tasks.values()}.values())
        self.before = {key: self._before(key) for key in self.tasks}
        self.ahead = self._ahead()
        self.issued = self._issue_times()

    def run(self) -> dict[Key, tuple[float, float, float]]:
        """(arrive, start, end) of every op; of one that never comes so far, None in the place of the time."""
        self._settle()
        while self._goes_on():
            self._solve()
            self._pass(self._next())
            self._settle()
        return {
            key: tuple(None if time is None else float(time) for time in (self.arrive.get(key), task.start, task.end))
            for key, task in self.tasks.items()
            if key[0] >= 0
        }

    def stuck(self) -> set[Key]:
        """What heads each stream that cannot go on."""
        heads = {}
        for rank, step, slot in sorted(key for key in self.tasks if key[0] >= 0):
            stream = rank, int(self.program.role(rank).stream[slot])
            if self.tasks[rank, step, slot].end is None:
                heads.setdefault(stream, (rank, step, slot))
        return {*heads.values()}

    def longest_paths(self, slower: dict[int, float] | None = None) -> dict[Key, float]:
        """The end of every op of a program that ends, by the longest path to it at isolated durations.

        Arguments: ``slower``: instead, every op goes at the speed of its op class given here all the time.
        """
        ends, before = dict.fromkeys(map(id, self.every), 0.0), {}
        while ends != before:
            before = dict(ends)
            for task in self.every:
                lasts = float(task.latency) + float(task.work) / (slower or {}).get(task.op_class, 1.0)
                ready = [max([float(self.issued[k]), *(ends[id(t)] for t in self.before[k])]) for k in task.members]
                ends[id(task)] = max(ready) + lasts
        return {key: ends[id(task)] for key, task in self.tasks.items() if key[0] >= 0}

    def _before(self, key: Key) -> list[Task]:
        """What must have ended before this op arrives."""
        rank, step, slot = key
        if rank < 0:
            return self._before_issuing(-1 - rank, step, slot)
        role = self.program.role(rank)
        stream = [s for s in range(len(role)) if role.stream[s] == role.stream[slot]]
        place = stream.index(slot)
        keys = [(rank, step, need) for need in role.needs()[slot]]
        keys += [(rank, step - 1, need) for need in role.carried()[slot] if step]
        keys += [(rank, step, stream[place - 1])] if place else [(rank, step - 1, stream[-1])] * (step > 0)
        keys += [_host(key)] * bool(self.costs.waits)
        return [self.tasks[other] for other in keys]

    def _ahead(self) -> dict[Key, Key]:
        """For each op the one issued before it, in its step or in one before, to the same work queue."""
        ahead: dict[Key, Key] = {}
        for rank in range(self.program.world if self.costs.work_queues else 0):
            streams = self.program.role(rank).stream.tolist()
            in_turn = list(dict.fromkeys(streams))
            latest: dict[int, Key] = {}
            for step in range(self.steps):
                for slot, stream in enumerate(streams):
                    queue = in_turn.index(stream) % self.costs.work_queues
                    if queue in latest:
                        ahead[rank, step, slot] = latest[queue]
                    latest[queue] = rank, step, slot
        return ahead

    def _first(self, key: Key) -> bool:
        """Whether all before it in its work queue have left it."""
        return key not in self.ahead or self.ahead[key] in self.arrive

    def _issuing(self, key: Key) -> Task:
        """What the host does to issue an op: it slows nothing, and nothing slows it."""
        rank, _, slot = key
        index = int(self.program.role(rank).op_class[slot])
        # the grid of isolated durations is part of the model
        seconds = self.costs.host[index] + (0.0 if slot else self.costs.host_step)
        work = Fraction(round(seconds * GRID), GRID)
        return Task([_host(key)], True, index, Fraction(0), work, [Fraction(1)], True, {})

    def _before_issuing(self, rank: int, step: int, slot: int) -> list[Task]:
        """What must have ended before a host issues an op."""
        count, waits = len(self.program.role(rank)), self.costs.waits
        keys = [_host((rank, step, slot - 1))] if slot else [_host((rank, step - 1, count - 1))] * (step > 0)
        if not slot:
            keys += [(rank, step - 1, other) for other in range(count) if step and 'step' in waits]
            return [self.tasks[other] for other in keys]
        before, op = (self.program.op(self.program.role(rank), one) for one in (slot - 1, slot))
        transfers = [one.kind in {'send', 'recv'} for one in (before, op)]
        # Messages that are issued one by one are waited for on the device.
        everything = 'receive' in waits and self.program.batched and transfers == [True, False]
        new, reads = self._begins(rank, slot)
        if everything:
            keys += [(rank, step, other) for other in range(slot)]
        elif 'pass' in waits and new:
            keys += [(rank, step, other) for other in range(slot) if self._kind(rank, other) != 'collective']
        elif 'batch' in waits and reads:
            keys += [(rank, step, other) for other in range(slot) if self._kind(rank, other) == 'compute']
        waited = everything or ('pass' in waits and new) or ('batch' in waits and reads)
        judging = [one.operator in {'square_sum', 'finite_check'} for one in (before, op)]
        update = op.kind == 'compute' and not judging[1] and before.phase == op.phase == 'U'
        # what is waited for as a whole is not waited for again
        if 'norm' in waits and update and not waited and (before.kind == 'collective' or judging[0]):
            keys.append((rank, step, slot - 1))
        return [self.tasks[other] for other in keys]

    def _kind(self, rank: int, slot: int) -> str:
        return self.program.op(self.program.role(rank), slot).kind

    def _begins(self, rank: int, slot: int) -> tuple[bool, bool]:
        """Whether an op is the first of a pass, of messages or of the update; and whether it reads a batch."""
        role = self.program.role(rank)

        def work(one: int) -> tuple:
            op = self.program.op(role, one)
            if op.kind in {'send', 'recv'}:
                return ('message',)
            if op.phase == 'U':
                return ('update',)
            return ('forward' if op.part == 'F' else 'backward', int(role.micro_batch[one]), op.stage)

        earlier = [one for one in range(slot) if self._kind(rank, one) != 'collective']
        if self._kind(rank, slot) == 'collective' or not earlier or work(earlier[-1]) == work(slot):
            return False, False
        stages = [op.stage for op in self.program.op_classes]
        return True, work(slot)[0] == 'forward' and work(slot)[2] in {0, max(stages)}

    def _issue_times(self) -> dict[Key, Fraction]:
        """When each rank's host, which issues one op after the other, has issued each."""
        issued = {}
        for rank in range(self.program.world):
            now = Fraction(0)
            for step in range(self.steps):
                now += Fraction(self.costs.host_step)
                for slot, op in enumerate(self.program.role(rank).op_class.tolist()):
                    now += Fraction(self.costs.host[op])
                    issued[rank, step, slot] = now
        if self.costs.waits:
            return dict.fromkeys(self.tasks, Fraction(0))
        return issued

    def _settle(self) -> None:
        """All that happens at this moment."""
        while self._arrivals() | self._starts() | self._ends():
            pass

    def _arrivals(self) -> bool:
        new = [
            key
            for key, before in self.before.items()
            if key not in self.arrive
            and self.issued[key] <= self.now
            and all(task.end is not None for task in before)
            and self._first(key)
        ]
        self.arrive.update(dict.fromkeys(new, self.now))
        return bool(new)

    def _starts(self) -> bool:
        waiting = [task for task in self.every if task.start is None and task.complete]
        new = [task for task in waiting if all(key in self.arrive for key in task.members)]
        for task in new:
            task.start = self.now
        return bool(new)

    def _ends(self) -> bool:
        new = [t for t in self._running() if t.latency == 0 and t.work == 0]
        for task in new:
            task.end = self.now
        return bool(new)

    def _goes_on(self) -> bool:
        """Whether anything runs, or will be issued to a stream that waits for that alone."""
        free = [
            key
            for key, before in self.before.items()
            if all(task.end is not None for task in before) and self._first(key)
        ]
        return bool(self._running()) or any(key not in self.arrive for key in free)

    def _running(self) -> list[Task]:
        return [task for task in self.every if task.start is not None and task.end is None]

    def _solve(self) -> None:
        """Speeds of everything, from nothing: all rise at once, and who cannot rise any more stays."""
        running = self._running()
        busy = {rank for task in running if task.computes for rank in task.ranks}
        holds = [self.costs.waiting_slows, *(one.waiting_slows for one in self.costs.kinds)]
        waiting = [(key[0], self.tasks[key].kind) for key in self.arrive if self.tasks[key].start is None]
        linked = {(rank, task.kind) for task in running if not task.computes for rank in task.ranks}
        linked |= {(rank, kind) for rank, kind in waiting if holds[kind]}
        for task in running:
            task.speed = Fraction(0)
            kinds = {kind for rank, kind in linked if rank in task.ranks}
            beside = [task.beside[kind] for kind in kinds] if task.computes else task.beside
            slowed = task.computes or busy.intersection(task.ranks)
            task.top = min(beside, default=Fraction(1)) if slowed else Fraction(1)
        rising = [task for task in running if task.latency == 0]
        while rising:
            loads = {link for task in rising for link in task.demands}
            room = {link: 1 - sum(t.speed * t.demands.get(link, 0) for t in running) for link in loads}
            steps = [task.top - task.speed for task in rising]
            steps += [room[link] / sum(t.demands.get(link, 0) for t in rising) for link in loads]
            for task in rising:
                task.speed += min(steps)
            full = {link for link in loads if sum(t.speed * t.demands.get(link, 0) for t in running) == 1}
            rising = [t for t in rising if t.speed < t.top and not full.intersection(t.demands)]

    def _next(self) -> Fraction:
        running = self._running()
        times = [task.latency for task in running if task.latency]
        times += [task.work / task.speed for task in running if not task.latency]
        times += [time - self.now for key, time in self.issued.items() if key not in self.arrive and time > self.now]
        first = min(times)
        near = first + Fraction(1, GRID)
        self.exact &= all(GRID % (self.now + time).denominator == 0 for time in times if time < near)
        return first

    def _pass(self, time: Fraction) -> None:
        for task in self._running():
            if task.latency:
                task.latency -= time
            else:
                done = time * task.speed
                task.work -= done
                self.exact &= all(Fraction(float(number)) == number for number in (task.speed, done, task.work))
        self.now += time
