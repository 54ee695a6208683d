"""Space: the plans that may be chosen, as keys with their values: a tree that nobody multiplies out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod
from typing import Any, Final

from simpar.errors import Problem, ScheduleError
from simpar.pipeline import mindspore
from simpar.pipeline.orders import AUTOMATIC, ORDERS
from simpar.pipeline.zero_bubble import TWO_HOMES
from simpar.plan import Plan
from simpar.planner.layers import few_of
from simpar.schedule import Schedule
from simpar.schedule.contents import FIXED, FREE, Planner
from simpar.workload import Transformer, Workload

DEGREES: Final = ('tensor', 'sequence_parallel', 'context', 'expert', 'pipeline')
ORDER: Final = ('micro_batches', 'order', 'chunks')
SLICES: Final = ('recompute', 'copies', 'tiles')
SHARDS: Final = ('zero', 'shard_group', 'fusion')
KEYS: Final = (*DEGREES, *ORDER, *SLICES, *SHARDS)
"""Keys that are free unless the file says otherwise, in the order in which the tree asks for them."""
_COPIES: Final = (1, 2)
_CHUNKS: Final = (0, 3, 4, 6, 8)


@dataclass(frozen=True)
class Space:
    """Keys of the plan and their values.

    Arguments:
        base: the schedule whose plan has all that is not chosen.
        world: number of devices.
        keys, values: in the order in which the tree asks for them.
    """

    base: Schedule
    world: int
    keys: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]

    @cached_property
    def few(self) -> Workload:
        """The workload with few layers, for questions to which layers are nothing."""
        found = few_of(self.base.workload)
        return found.workload if found else self.base.workload

    @cached_property
    def refused(self) -> dict[tuple[int, ...], Any]:
        """What rules said of nodes; grows."""
        return {}

    @property
    def count(self) -> int:
        """How many plans there are, those that cannot be among them."""
        return self.below(0)

    def below(self, depth: int) -> int:
        """How many plans there are below a node where the first keys have their values."""
        return prod(len(one) for one in self.values[depth:])

    def chosen(self, path: Sequence[int]) -> dict[str, Any]:
        """The keys that have values at a node. Argument: ``path``, the place of each among its values."""
        return {key: one[place] for key, one, place in zip(self.keys, self.values, path, strict=False)}

    def plan(self, path: Sequence[int]) -> Plan:
        """The plan at a node; keys without a value have the one that changes least."""
        chosen = self.chosen(path)
        neutral = {key: getattr(_NEUTRAL, key) for key in KEYS if key in self.keys and key not in chosen}
        plan = replace(self.base.plan, **neutral, **chosen)
        inner = plan.pipeline * plan.tensor * plan.context
        return plan if plan.data or self.world % inner else replace(plan, data=self.world // inner)

    def schedule(self, path: Sequence[int]) -> Schedule:
        """The schedule of a leaf, by itself."""
        return replace(self.base, plan=self.plan(path), against={}, sweep=None, planner=None)

    def place(self, plan: Plan) -> tuple[int, ...] | None:
        """The place of each of a plan's keys among their values; None where it has a value that is none of them."""
        found = tuple(
            one.index(getattr(plan, key)) if getattr(plan, key) in one else -1
            for key, one in zip(self.keys, self.values, strict=True)
        )
        inner = plan.pipeline * plan.tensor * plan.context
        same = plan.data in (0, self.plan(found).data) if -1 not in found else False
        return found if same and self.world % inner == 0 else None

    def values_of(self, key: str) -> tuple[Any, ...]:
        """The values that a key may take; what is not chosen has one."""
        if key in self.keys:
            return self.values[self.keys.index(key)]
        return (getattr(self.base.plan, key),)


_NEUTRAL: Final = Plan()


def space_of(schedule: Schedule, world: int) -> Space:
    """The space that a schedule's section opens. Raises ``ScheduleError`` where bounds leave a key no value."""
    planner = schedule.planner or Planner()
    asked: Mapping[str, Any] = {str(key).removeprefix('plan.'): value for key, value in planner.keys.items()}
    usual = _usual(schedule, world)
    chosen: dict[str, tuple[Any, ...]] = {}
    problems = []
    for key in (*(key for key in asked if key not in KEYS), *KEYS):
        values = _values(schedule.plan, key, asked.get(key, FREE), usual)
        if not values:
            where = schedule.where(f'planner.keys.plan.{key}')
            problems.append(Problem(where, f'planner.keys: no value of plan.{key} is within its bounds', 'widen them'))
        elif key in KEYS or len(values) > 1 or asked[key] != FIXED:
            chosen[key] = values
    problems += _unknown_orders(schedule, chosen.get('order', ()))
    problems += _in_chunks(schedule, chosen.get('sequence_chunks', (schedule.plan.sequence_chunks,)))
    if problems:
        raise ScheduleError(problems)
    # Data takes the ranks that are left, whatever the plan says, unless it is asked for.
    base = schedule if 'data' in asked else replace(schedule, plan=replace(schedule.plan, data=0))
    return Space(base, world, tuple(chosen), tuple(chosen.values()))


def _unknown_orders(schedule: Schedule, names: Sequence[Any]) -> Iterator[Problem]:
    """Names that no order has, which a rule would leave out without a word; files are read when their turn comes."""
    for name in dict.fromkeys(map(str, names)):
        if name in {*ORDERS, *AUTOMATIC, TWO_HOMES} or name.endswith('.csv'):
            continue
        where = schedule.where('planner.keys.plan.order')
        known = ', '.join((*ORDERS, *AUTOMATIC, TWO_HOMES))
        yield Problem(where, f'planner.keys: plan.order: no such order (got {name[:60]!r})', f'known orders: {known}')


def _in_chunks(schedule: Schedule, counts: Sequence[Any]) -> Iterator[Problem]:
    """The search's bounds of bubble and memory are those of whole samples, which chunks are below."""
    if any(count != 1 for count in counts):
        where = schedule.where('plan.sequence_chunks')
        what = 'plan.sequence_chunks: the search does not know chunks of a sequence'
        yield Problem(where, what, 'write 1, or compare them by a sweep: section')


def _values(plan: Plan, key: str, asked: Any, usual: Mapping[str, tuple[Any, ...]]) -> tuple[Any, ...]:
    """The values of a key, as the file asks for them."""
    own = (getattr(plan, key),)
    if asked == FIXED:
        return own
    if isinstance(asked, list):
        # The document's own types: a list of patterns is a tuple in a plan.
        return tuple(tuple(one) if isinstance(one, list) else one for one in asked)
    among = _with(usual.get(key, own), own[0])
    if asked == FREE:
        return among
    return tuple(one for one in among if asked.get('least', one) <= one <= asked.get('most', one))


def _with(among: tuple[Any, ...], own: Any) -> tuple[Any, ...]:
    """Usual values and the file's own: a number, or an order that bounds are known of."""
    if own in among or isinstance(own, bool) or not (isinstance(own, int) or own in ORDERS):
        return among
    numbers = all(isinstance(one, int) for one in among)
    return tuple(sorted((*among, own))) if numbers and isinstance(own, int) else (*among, own)


def _usual(schedule: Schedule, world: int) -> dict[str, tuple[Any, ...]]:
    """The values of keys that are free."""
    degrees = _divisors(world)
    model = schedule.workload.model
    mixture = isinstance(model, Transformer) and model.experts is not None
    return {
        'data': degrees,
        'pipeline': degrees,
        'tensor': degrees,
        'context': degrees,
        'expert': degrees if mixture else (1,),
        'sequence_parallel': (False, True),
        'order': tuple(name for name in ORDERS if not name.startswith(mindspore.VERSION)),
        'chunks': _CHUNKS,
        'micro_batches': _divisors(schedule.workload.batch),
        'copies': _COPIES,
        'tiles': _COPIES,
        'recompute': ('none', 'selective', 'full'),
        'zero': (0, 1, 2, 3),
        'shard_group': (0, *degrees[1:-1]),
        'fusion': ('layer', 'none', 'all', 'auto'),
    }


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(one for one in range(1, number + 1) if number % one == 0)


PLAN_KEYS: Final = frozenset(part.name for part in fields(Plan))
