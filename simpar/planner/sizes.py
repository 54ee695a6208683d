"""Sizes: the best plan on each of several numbers of devices, what a training costs there, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from simpar.budget import Budget, Run, run_to_dict, training_run
from simpar.case import case_of, cluster_of
from simpar.errors import Problem, ScheduleError
from simpar.lazy import card, dataframe
from simpar.planner.answer import Answer, Ranked
from simpar.planner.plan import Planning
from simpar.planner.space import space_of
from simpar.planner.words import lines, words
from simpar.schedule import Schedule
from simpar.throughput import Throughput
from simpar.units import format_count, format_duration, format_size, format_time

Search = Callable[[Planning], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The answer on so many devices.

    Arguments: ``run``, the training that was asked about, None without one; both that and ``throughput`` None where no
    plan is known.
    """

    devices: int
    answer: Answer
    throughput: Throughput | None = None
    run: Run | None = None

    @property
    def choice(self) -> Ranked | None:
        """The plan."""
        return self.answer.choice

    @property
    def time(self) -> float:
        """Seconds of the training, or of a step where none was asked about; infinite where no plan is known."""
        if self.run:
            return self.run.seconds
        return self.choice.step if self.choice else float('inf')

    @property
    def cost(self) -> float:
        """Money where there is a price, else device-hours."""
        if self.run and self.run.cost is not None:
            return self.run.cost
        return self.run.device_hours if self.run else self.time * self.devices / 3600


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sizes:
    """Answers by number of devices, in the order asked for. Argument: ``budget``, the training; None: a step."""

    found: tuple[Size, ...]
    budget: Budget | None

    @property
    def front(self) -> tuple[Size, ...]:
        """Sizes than which no other is as quick for less cost, the quickest first."""
        best: list[Size] = []
        for one in sorted(self.found, key=lambda one: (one.time, one.cost)):
            if isfinite(one.time) and (not best or one.cost < best[-1].cost):
                best.append(one)
        return tuple(best)

    @property
    def unit(self) -> str:
        """What cost is counted in."""
        return 'cost' if self.budget and self.budget.price else 'device-hours'

    def plot(self) -> Any:
        """Cost and time as a picture that shows itself."""
        from simpar.planner.picture import sizes_picture

        return sizes_picture(self)

    def to_dataframe(self) -> Any:
        """A table of pandas."""
        return dataframe(self)

    def __str__(self) -> str:
        return render_sizes(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return card(self)


def sizes(planning: Planning, counts: Sequence[int], budget: Budget | None, search: Search) -> Sizes:
    """Plan on each number of devices; the batch is kept.

    Arguments: ``counts``, devices; ``search`` plans one of them.
    Raises ``ScheduleError`` with every count that the nodes do not make.
    """
    found = []
    for count, one in zip(counts, _plannings(planning, counts), strict=True):
        answer = search(one)
        if answer.choice is None:
            found.append(Size(devices=count, answer=answer))
            continue
        throughput = case_of(answer.choice.schedule).throughput
        run = training_run(budget, throughput, answer.choice.step) if budget else None
        found.append(Size(devices=count, answer=answer, throughput=throughput, run=run))
    return Sizes(found=tuple(found), budget=budget)


def _plannings(planning: Planning, counts: Sequence[int]) -> list[Planning]:
    schedule = planning.schedule
    each = schedule.cluster.devices or cluster_of(schedule).profile.devices
    problems = [
        Problem('--devices', f'{count} devices are no whole nodes of {each}', f'write {each * -(-count // each)}')
        for count in counts
        if count > each and count % each
    ]
    if problems:
        raise ScheduleError(problems)
    return [_on(schedule, count, each) for count in counts]


def _on(schedule: Schedule, count: int, each: int) -> Planning:
    nodes, devices = (1, count) if count < each else (count // each, schedule.cluster.devices)
    # A slow rank stands in the file for its own number of devices.
    slow = {rank: share for rank, share in schedule.cluster.slow.items() if rank < count}
    plan = replace(schedule.plan, data=0)
    other = replace(schedule, plan=plan, cluster=replace(schedule.cluster, slow=slow, nodes=nodes, devices=devices))
    return Planning(schedule=other, space=space_of(other, cluster_of(other).world))


def render_sizes(found: Sizes) -> str:
    """The screen."""
    front, table = found.front, '\n'.join(lines(size_cells(found)))
    if not front:
        return f'No plan is known to fit on any of these numbers of devices.\n\n{table}\n'
    quick, cheap = front[0], front[-1]
    # Where no size is dearer, the quickest is the cheapest.
    both = f'{quick.devices} devices are the quickest and the cheapest.'
    apart = f'{quick.devices} devices are the quickest, {cheap.devices} the cheapest.'
    mark = f'*: no other size is as quick for less; {found.unit} of {"the training" if found.budget else "a step"}.'
    return f'{both if quick is cheap else apart}\n\n{table}\n\n{mark}\n'


def size_cells(found: Sizes) -> list[list[str]]:
    """Heads, and a row for each number of devices."""
    training = ['training'] if found.budget else []
    heads = ['', 'devices', 'step', 'peak', *training, found.unit, 'gap', 'plan']
    return [heads, *(_row(one, found) for one in found.found)]


def _row(one: Size, found: Sizes) -> list[str]:
    if one.choice is None:
        # The rule that cut off most says best what to change.
        told = f'{one.answer.pruned[0].rule}: {one.answer.pruned[0].example}' if one.answer.pruned else ''
        return ['', str(one.devices), 'no plan fits', '', *([''] if found.budget else []), '', '', told]
    time = [format_duration(one.time) if isfinite(one.time) else 'never ends'] if found.budget else []
    return [
        '*' if one in found.front else '',
        str(one.devices),
        format_time(one.choice.step),
        format_size(one.choice.peak),
        *time,
        format_count(one.cost) if one.cost >= 1 else f'{one.cost:.2g}',
        f'{one.answer.gap:.1%}',
        words(one.choice),
    ]


def sizes_to_dict(found: Sizes) -> dict[str, Any]:
    """The same as plain values."""
    return {'format': 'simpar plan sizes 1', 'cost': found.unit, 'sizes': list(_plain(found))}


def _plain(found: Sizes) -> Iterator[dict[str, Any]]:
    for one in found.found:
        choice = one.choice
        yield {
            'devices': one.devices,
            'step': choice.step if choice else None,
            'peak': choice.peak if choice else None,
            'settings': dict(choice.settings) if choice else None,
            'gap': one.answer.gap,
            'complete': one.answer.complete,
            'cost': one.cost if isfinite(one.cost) else None,
            'front': one in found.front,
            'training': run_to_dict(found.budget, one.run) if found.budget and one.run else None,
        }
