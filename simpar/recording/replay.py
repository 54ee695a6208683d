"""What a recorded job would take if some of its ops were like all others: what stragglers cost, and which ones."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np

from simpar.chakra import lowest_first, recorded_costs
from simpar.cost.costs import Communication, Costs
from simpar.engine.simulate import step_ends
from simpar.errors import Problem, refuse
from simpar.program import OpClass, OpKind, Partition, Phase, Program, ProgramBuilder, grid
from simpar.recording.job import TAIL, Array, Ints, RecordedJob, RecordedOp, peer_of
from simpar.traces.blame import vary_together
from simpar.units import GRID, format_time


def own_seconds(job: RecordedJob) -> Array:
    """Shape [steps, ops]: compute lasts as recorded; communication from the last arrival of its peers to its end.

    A kernel of a collective runs from its own arrival, so that its recorded seconds hold the wait for its peers.
    """
    first = job.meetings
    # By op and step, so that the ufunc takes rows.
    arrived_NK = np.full(job.start_KN.T.shape, -np.inf)
    np.maximum.at(arrived_NK, first, job.start_KN.T)
    # Clocks of hosts differ: an op that seems to end before its peer arrived takes no time of its own.
    return np.asarray(np.maximum(job.end_KN - arrived_NK[first].T, 0.0))


def alike_seconds(job: RecordedJob, own_KN: Array) -> Array:
    """Shape [ops]: each op as long as its kind is usually, over all workers and steps.

    The mean of compute and the median of communication, as in "Understanding Stragglers in Large Model Training Using
    What-if Analysis" (Lin et al. 2025), whose ideal job this is.
    """
    alike = np.zeros(len(job.ops))
    for kind in {op.kind: op.of for op in job.ops}.values():
        of = [at for at, op in enumerate(job.ops) if op.kind == kind.name]
        usual = np.median if kind.communicates else np.mean
        alike[of] = usual(own_KN[:, of])
    return alike


# What a recorded op waits for on its own worker, by the rules of training with 1F1B.

COMPUTES: Final = ('forward-compute', 'backward-compute')
_Before = dict[RecordedOp, list[RecordedOp]]


def issue_order(job: RecordedJob, stage: int) -> tuple[list[RecordedOp], _Before]:
    """The ops of a stage's first worker as they are issued, and what each waits for besides its stream.

    Ops are taken as they started in the first step, but never before what they wait for: clocks of hosts differ.
    """
    ops = job.of_worker.get((0, stage), [])
    started = {op: float(job.start_KN[0, job.number[op]]) for op in ops}
    # 0 before the last backward, then the turn in the tail.
    ops.sort(key=lambda op: (1 + TAIL.index(op.kind) if op.kind in TAIL else 0, started[op], op.number))
    before = _before(ops)
    place = {op: at for at, op in enumerate(ops)}
    waits = {place[op]: [place[one] for one in some] for op, some in before.items()}
    # One after the other run compute and the tail, and each direction of messages.
    last: dict[str, int] = {}
    for at, op in enumerate(ops):
        stream = 'compute' if op.kind in {*COMPUTES, *TAIL} else op.kind
        waits[at] += [last[stream]] if stream in last else []
        last[stream] = at
    # Each op behind what it waits for, else in the order given.
    return [ops[at] for at in lowest_first(waits)], before


def _before(ops: list[RecordedOp]) -> _Before:
    """What each op waits for besides its stream."""
    op_set = set(ops)
    before: _Before = {op: [] for op in ops}
    for op in ops:
        before[op] += [one for one in _needs(op) if one in op_set]
    computes = [op for op in ops if op.kind in COMPUTES]
    # The first message of the backward is posted while the last forward before it runs.
    first = next((at for at, op in enumerate(computes) if op.kind == 'backward-compute'), 0)
    for kind in ('backward-recv', 'backward-send') if first > 1 else ():
        if (message := computes[first]._replace(kind=kind, number=0)) in before:
            before[message].append(computes[first - 2])
    gathers = [op for op in ops if op.kind == 'params-all-gather']
    if gathers and computes:
        before[computes[0]].append(gathers[-1])
    return before


def _needs(op: RecordedOp) -> Iterator[RecordedOp]:
    """A compute waits for its message, a message for its compute, and a receive is posted behind the compute before."""
    direction = op.kind.partition('-')[0]
    if op.kind in COMPUTES:
        yield op._replace(kind=f'{direction}-recv')
    elif op.of.takes == 'send':
        yield op._replace(kind=f'{direction}-compute')
    elif op.of.takes == 'recv':
        yield op._replace(kind=f'{direction}-compute', number=op.number - 1)


# A recorded job as a Program: an op class for each recorded op, a rank for each recorded worker.

NONE: Final = -1
TOLD: Final = -2


@dataclass(frozen=True, eq=False)
class Replayed:
    """A recorded job as what an engine takes.

    Arguments: ``op_class``, shape [ops], the class of each recorded op; ``entry``, shape [ops], which of a collective's
    entries is its group's, ``NONE`` of compute, ``TOLD`` of a send, whose receiver tells; ``entries``,
    how many entries each class has.
    """

    job: RecordedJob
    program: Program
    op_class: Ints
    entry: Ints
    entries: dict[int, int]

    def costs(self, seconds_N: Array) -> Costs:
        """Costs under which each recorded op lasts so long.

        Arguments: ``seconds_N``, shape [ops]; of what several take part in, the longest counts, of a message the
            receiver's, since that is what work waits for.
        """
        on_grid = np.rint(seconds_N * GRID) / GRID
        alone = self.entry == NONE
        compute = np.zeros(len(self.program.op_classes))
        compute[self.op_class[alone]] = on_grid[alone]
        longest = {index: [0.0] * entries for index, entries in self.entries.items()}
        for at in np.flatnonzero(self.entry >= 0).tolist():
            index, entry = int(self.op_class[at]), int(self.entry[at])
            longest[index][entry] = max(longest[index][entry], float(on_grid[at]))
        talk = {index: [Communication(each, 0.0) for each in seconds] for index, seconds in longest.items()}
        return recorded_costs(self.program, compute, talk)


def to_program(job: RecordedJob) -> Replayed:
    """The Program of a recorded job; a worker of data rank d and stage s is rank d · stages + s."""
    world = job.data * job.stages
    partitions = grid(world, {'data': job.data, 'pipeline': job.stages})
    if world > 1:
        partitions['world'] = Partition('world', np.arange(world, dtype=np.int32)[None])
    build = ProgramBuilder(world, partitions.values())
    classes = {op: _op_class(op, job) for op in job.ops}
    for made in {made.name: made for made in classes.values()}.values():
        build.add_op_class(made)
    orders = [issue_order(job, stage) for stage in range(job.stages)]
    for data in range(job.data):
        for stage, (order, before) in enumerate(orders):
            place = {op: at for at, op in enumerate(order)}
            slots = [
                (classes[op._replace(data=data)].name, _stream(op), 0, 0, tuple(place[one] for one in before[op]))
                for op in order
            ]
            streams = tuple(dict.fromkeys(slot[1] for slot in slots))
            build.add_role(f'data{data}.stage{stage}', [data * job.stages + stage], slots, streams)
    op_class = np.array([build.index[_priced(op, classes[op], job)] for op in job.ops])
    entry = np.array([_entry(op, classes[op]) for op in job.ops])
    program = build.build()
    groups = {
        index: len(program.partitions[made.partition].groups_GP)
        for index, made in enumerate(program.op_classes)
        if made.kind in {'collective', 'send'}
    }
    return Replayed(job, program, op_class, entry, groups)


def _op_class(op: RecordedOp, job: RecordedJob) -> OpClass:
    """The op class of a recorded op: its worker's own, or one for all that take part in it."""
    phase: Phase = 'F' if op.kind.startswith('forward') else 'I' if op.kind.startswith('backward') else 'U'
    takes = op.of.takes
    named = f'{op.kind}.{op.number}'
    if takes in {'data', 'world'} and (job.data if takes == 'data' else job.data * job.stages) > 1:
        return OpClass(named, 'collective', 'all_reduce', phase, partition=takes, reduce='sum')
    if takes in {'send', 'recv'}:
        peer = 1 if op.kind in {'forward-send', 'backward-recv'} else -1
        kind: OpKind = 'send' if takes == 'send' else 'recv'
        return OpClass(f'{named}.stage{op.stage}', kind, kind, phase, partition='pipeline', peer=peer, stage=op.stage)
    if takes == 'ends' and job.stages > 1:
        # Stages between have no part in it, so it is a message from the last one to the first.
        kind, peer = ('recv', -1) if op.stage == 0 else ('send', 1)
        return OpClass(f'{named}.stage{op.stage}', kind, kind, phase, partition='pipeline', peer=peer, stage=op.stage)
    return OpClass(op.text, 'compute', op.kind, phase, stage=op.stage)


def _priced(op: RecordedOp, made: OpClass, job: RecordedJob) -> str:
    """The name of the class that has the price of an op: a message's is its send's."""
    sender = peer_of(op, job.stages) if made.kind == 'recv' else None
    return _op_class(sender, job).name if sender else made.name


def _entry(op: RecordedOp, made: OpClass) -> int:
    """Which group's entry an op tells the price of; a send tells none."""
    if made.kind == 'collective':
        return op.stage if made.partition == 'data' else 0
    return op.data if made.kind == 'recv' else NONE if made.kind == 'compute' else TOLD


def _stream(op: RecordedOp) -> str:
    """The stream of an op; a boundary between stages has one for each direction, at both ends."""
    if op.of.takes in {'send', 'recv'}:
        forward = op.kind.startswith('forward')
        other = op.stage + (1 if forward == (op.of.takes == 'send') else -1)
        low = min(op.stage, other)
        return f'forward {low}→{low + 1}' if forward else f'backward {low + 1}→{low}'
    return 'data' if op.kind == 'params-all-gather' else 'compute'


# What a recorded job would take if some of its ops were like all others: what stragglers cost, and which ones.

WORST: Final = 0.03
"""The share of workers whose part of the slowdown is told, as in the paper."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some ops of a job, and the mean step with only these as recorded and all others alike."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggling:
    """What a recorded job would take.

    Arguments (means over steps, in seconds):
        steps: numbers of the recorded steps.
        recorded: as recorded. replayed: without gaps between ops. alike: with every op as long as its kind usually is.
        families, data_ranks, stages: what each kind of op, data rank and stage costs, longest first.
        worst: the workers that cost most, WORST of all. without: the mean step if these were like all others.
        scaled: the mean step with the changes that were asked for; None where nothing was.
        cause: in words, what the times of micro-batches say; empty where they say nothing.
    """

    steps: tuple[int, ...]
    recorded: float
    replayed: float
    alike: float
    families: tuple[Part, ...]
    data_ranks: tuple[Part, ...]
    stages: tuple[Part, ...]
    worst: tuple[str, ...]
    without: float
    scaled: float | None = None
    cause: str = ''

    @property
    def slowdown(self) -> float:
        """How many times as long as with all ops alike."""
        return self.replayed / self.alike

    @property
    def explained(self) -> float:
        """The share of the slowdown that is gone without the worst workers."""
        return (self.replayed - self.without) / (self.replayed - self.alike) if self.replayed > self.alike else 0.0


Mean = Callable[[Array], float]
"""Seconds of the mean step, by what each op takes in each step, shape [steps, ops]."""


def straggling(
    job: RecordedJob,
    scale: Sequence[tuple[Ints, float]] = (),
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Straggling:
    """What stragglers cost a recorded job, by the definitions of Lin et al. 2025.

    Arguments: ``scale``, numbers of ops and how many times as long they are to last; ``progress``, told of replays.
    The job is replayed as a Program of its ops. An op starts when what it waits for has ended, without gaps.
    Does not model what is not recorded: the host, loading of data, ranks that are not in the file.
    """
    own = own_seconds(job)
    alike = np.broadcast_to(alike_seconds(job, own), own.shape)
    groups = [
        {name: job.where([op.of.family == name for op in job.ops]) for name in job.families()},
        {f'data {rank}': job.where([op.data == rank for op in job.ops]) for rank in range(job.data)},
        {f'stage {stage}': job.where([op.stage == stage for op in job.ops]) for stage in range(job.stages)},
    ]
    done, of = itertools.count(1), sum(map(len, groups)) + 3 + bool(scale)
    machine = to_program(job)

    def mean(own_KN: Array) -> float:
        # Equal steps are replayed once.
        steps, turn = np.unique(own_KN, axis=0, return_inverse=True)
        ends = np.array([step_ends(machine.program, machine.costs(one), steps=1)[0] for one in steps])
        progress(next(done), of)
        return float(np.mean(ends[turn.ravel()]))

    replayed, ideal = mean(own), mean(alike)
    parts = [tuple(_longest(mean, own, alike, group)) for group in groups]
    worst = _worst(job, parts[1], parts[2])
    scaled = own.copy()
    for ops, factor in scale:
        scaled[:, ops] *= factor
    chosen = np.array([(op.data, op.stage) in worst for op in job.ops])
    return Straggling(
        steps=job.steps,
        recorded=float(job.step_seconds.mean()),
        replayed=replayed,
        alike=ideal,
        families=parts[0],
        data_ranks=parts[1],
        stages=parts[2],
        worst=tuple(f'data {data}, stage {stage}' for data, stage in worst),
        without=mean(np.where(chosen, alike, own)),
        scaled=mean(scaled) if scale else None,
        cause=_cause(job, own),
    )


def _cause(job: RecordedJob, own: Array) -> str:
    """A slow worker, a stage with more work, or uneven samples, by forward and backward of each micro-batch."""
    columns = {op: at for at, op in enumerate(job.ops)}
    items = {}
    for data, stage in itertools.product(range(job.data), range(job.stages)):
        mine = [op for op in job.of_worker.get((data, stage), []) if op.kind == 'forward-compute']
        pairs = [(op, behind) for op in mine if (behind := op._replace(kind='backward-compute')) in columns]
        items[data, stage] = tuple(own[:, [columns[pair[side]] for pair in pairs]].ravel() for side in (0, 1))
    total = {
        worker: float(np.mean(forward + backward)) for worker, (forward, backward) in items.items() if len(forward)
    }
    if not total:
        return ''
    usual = float(np.median([*total.values()]))
    slow = [worker for worker, seconds in total.items() if seconds > SLOW * usual]
    stages = {stage for _, stage in slow}
    if slow and len(slow) == job.data * len(stages) and job.data > 1:
        names = ', '.join(map(str, sorted(stages)))
        times = min(total[worker] for worker in slow) / usual
        return f'Stage {names} computes {times:.2f} times as long as most, on every data rank: it has more work.'
    if slow and 2 * len(slow) < len(total):
        first = max(slow, key=lambda worker: total[worker])
        spread = np.std(items[first][0]) / np.mean(items[first][0])
        return (
            f'Data {first[0]}, stage {first[1]} computes {total[first] / usual:.2f} times as long as most, in all '
            f'micro-batches alike (spread {spread:.1%}): the worker is slow, not its samples.'
        )
    if 2 * sum(vary_together(*one) for one in items.values()) > len(items):
        return 'Forward and backward of a micro-batch vary together on most workers: samples are uneven.'
    return ''


def _longest(mean: Mean, own: Array, alike: Array, group: dict[str, Ints]) -> Iterator[Part]:
    """The mean step with each part alone as recorded, longest first."""
    parts = []
    for name, chosen in group.items():
        times = alike.copy()
        times[:, chosen] = own[:, chosen]
        parts.append(Part(name, mean(times)))
    yield from sorted(parts, key=lambda part: -part.seconds)


def _worst(job: RecordedJob, data_ranks: Sequence[Part], stages: Sequence[Part]) -> list[tuple[int, int]]:
    """The workers that cost most: a worker costs the lesser of what its data rank and its stage cost."""
    cost = {part.name: part.seconds for part in (*data_ranks, *stages)}
    workers = [(data, stage) for data in range(job.data) for stage in range(job.stages)]
    workers.sort(key=lambda worker: -min(cost[f'data {worker[0]}'], cost[f'stage {worker[1]}']))
    # At least one, of few workers too.
    return workers[: -int(-len(workers) * WORST // 1)]


# ``--scale`` of a replay: which recorded ops last how many times as long.

_SAY = 'write e.g. --scale data=0,stage=1,optype=forward-compute:1.3'
KEYS = ('data', 'stage', 'optype')


def chosen_ops(job: RecordedJob, texts: Sequence[str]) -> list[tuple[Ints, float]]:
    """The numbers of the ops of each text, and its factor.

    Arguments: ``texts``, as ``data=0,stage=1,optype=forward-*:1.3``; what is not named is of all.
    Raises ``ScheduleError`` that names every text that is wrong or chooses nothing.
    """
    choices = [_choice(job, text) for text in texts]
    refuse(each for each in choices if isinstance(each, Problem))
    return [each for each in choices if not isinstance(each, Problem)]


def _choice(job: RecordedJob, text: str) -> tuple[Ints, float] | Problem:
    try:
        return _chosen(job, text)
    except ValueError as error:
        return Problem(f'--scale {text}', str(error), _SAY)


def _chosen(job: RecordedJob, text: str) -> tuple[Ints, float]:
    words, _, last = text.rpartition(':')
    factor = _factor(last)
    keys = dict(_pairs(words))
    rows = ({'data': str(op.data), 'stage': str(op.stage), 'optype': op.kind} for op in job.ops)
    chosen = [all(fnmatchcase(one[key], value) for key, value in keys.items()) for one in rows]
    if not any(chosen):
        raise ValueError('chooses no op of this job')
    if factor == 1:
        raise ValueError('changes nothing (factor 1)')
    # All that take part in a message or collective last alike.
    meetings = np.unique(job.meetings[np.flatnonzero(chosen)])
    return np.flatnonzero(np.isin(job.meetings, meetings)), factor


def _factor(word: str) -> float:
    try:
        factor = float(word)
    except ValueError:
        factor = -1.0
    if not 0 <= factor <= 1e6:
        raise ValueError(f'no factor from 0 to 1e6 behind a colon (got {word[:40]!r})')
    return factor


def _pairs(words: str) -> Iterator[tuple[str, str]]:
    for pair in filter(None, words.split(',')):
        key, _, value = pair.partition('=')
        if key not in KEYS or not value:
            raise ValueError(f'no key and value (got {pair[:40]!r}); the keys are {", ".join(KEYS)}')
        yield key, value


# The answer of a replay in words and numbers.

MOST: Final = 12
MOST_OF_IT: Final = 0.5
SLOW: Final = 1.2
"""A worker that computes so many times as long as most is slow."""
LITTLE: Final = 1.01
"""Below so many times the time of alike ops nobody straggles."""


def render(answer: Straggling) -> str:
    """The answer, a line for each part."""
    return '\n'.join(_lines(answer)) + '\n'


def to_dict(answer: Straggling) -> dict[str, Any]:
    """The answer for programs; seconds."""
    return asdict(answer) | {'slowdown': answer.slowdown, 'explained': answer.explained}


def _lines(answer: Straggling) -> Iterator[str]:
    yield f'{_headline(answer)} {answer.cause}'.rstrip()
    yield ''
    yield f'recorded                 {format_time(answer.recorded):>9}  mean of {len(answer.steps)} steps'
    gaps = answer.recorded / answer.replayed - 1
    yield f'replayed without gaps    {format_time(answer.replayed):>9}  the gaps are {gaps:.1%} (host, loading of data)'
    yield f'all ops of a kind alike  {format_time(answer.alike):>9}  mean of compute, median of communication'
    if answer.scaled is not None:
        change = answer.scaled / answer.replayed - 1
        yield f'with --scale             {format_time(answer.scaled):>9}  {change:+.1%} of the replayed step'
    for title, parts in (('kind of op', answer.families), ('data rank', answer.data_ranks), ('stage', answer.stages)):
        yield ''
        yield f'Only this {title} as recorded, all else alike:'
        for part in parts[:MOST]:
            yield f'  {part.name:28} {format_time(part.seconds):>9}  {part.seconds / answer.alike:.3f} times'
        if len(parts) > MOST:
            yield f'  and {len(parts) - MOST} more'


def _headline(answer: Straggling) -> str:
    if answer.slowdown < LITTLE:
        return (
            f'Nobody straggles: a step takes {answer.slowdown:.3f} times what it takes if all ops of a kind are alike.'
        )
    return f'Stragglers make a step {answer.slowdown:.2f} times as long. {_culprit(answer)}'


def _culprit(answer: Straggling) -> str:
    """Whoever costs more than half of it, the narrowest first."""
    if answer.explained >= MOST_OF_IT:
        who = (
            ' and '.join(answer.worst)
            if len(answer.worst) < 3
            else f'{len(answer.worst)} workers, {answer.worst[0]} first,'
        )
        return f'Were {who} like the others, {answer.explained:.0%} of that would be gone.'
    for parts in (answer.stages, answer.data_ranks, answer.families):
        share = [(part.seconds - answer.alike) / (answer.replayed - answer.alike) for part in parts]
        # Where a second one costs as much, the first is no culprit.
        if share[0] >= MOST_OF_IT and all(other < MOST_OF_IT for other in share[1:]):
            return f'{parts[0].name.capitalize()} alone costs {share[0]:.0%} of that.'
    return 'No worker, stage, data rank or kind of op alone costs half of that.'
