"""Space: the plans that may be chosen, as keys with their values: a tree that nobody multiplies out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import gcd, prod
from typing import Any, Final, NamedTuple

from simpar import document, plans
from simpar.errors import Infeasible, Problem, ScheduleError
from simpar.keys import conflicts_of
from simpar.pipeline import AUTOMATIC, ORDERS, family, mindspore, zero_bubble
from simpar.schedule import Schedule, checks, contents
from simpar.workload import Transformer, Workload

EACH: Final = 2
"""Layers of a stage, so that one follows another."""


@dataclass(frozen=True, slots=True)
class Few:
    """A workload of few layers.

    Arguments:
        workload: of the few layers; its batch is still the full one.
        stages: layers of each of its stages.
        edge: how many of the first layers are of another kind than those behind.
    """

    workload: Workload
    stages: tuple[int, ...]
    edge: int = 0


def few_of(workload: Workload) -> Few | None:
    """The few layers that stand for all; None where the model is no transformer, or its layers are of many kinds."""
    model = workload.model
    if not isinstance(model, Transformer):
        return None
    edge = _edge(model)
    if edge is None or model.layers < EACH + edge:
        return None
    counts = (EACH,) * (3 if edge else 2)
    small = replace(model, layers=sum(counts))
    if edge and model.experts is not None:
        small = replace(small, experts=replace(model.experts, first_dense=EACH))
    return Few(replace(workload, model=small), counts, edge)


def _edge(model: Transformer) -> int | None:
    """How many of the first layers differ from all others; None where layers differ in another way."""
    window = model.window
    if isinstance(window, tuple) and len(set(window)) > 1:
        return None
    experts = model.experts
    if experts is None:
        return 0
    return experts.first_dense if experts.every == 1 else None


DEGREES: Final = ('tensor', 'sequence_parallel', 'context', 'expert', 'pipeline')
ORDER: Final = ('micro_batches', 'order', 'chunks')
SLICES: Final = ('recompute', 'copies', 'tiles')
SHARDS: Final = ('zero', 'shard_group', 'fusion')
KEYS: Final = (*DEGREES, *ORDER, *SLICES, *SHARDS)
"""Keys that are free unless the file says otherwise, in the order in which the tree asks for them."""
BOUNDED: Final[Mapping[str, tuple[Any, str]]] = {
    'placement': (plans.NEAREST_FIRST, 'ranks on other devices than those of their numbers'),
    'expert_ranks': ('data', 'experts on tensor or context ranks'),
    'expert_tokens': ('sequence', 'tokens that tensor ranks exchange for features'),
    'sequence_chunks': (1, 'chunks of a sequence'),
    'context_by_heads': (1, 'heads that are exchanged inside of a ring'),
}
"""Key → its value of which there are bounds, and what others are: plans with others are never bounded."""
RELAXED: Final[Mapping[str, Any]] = {'recompute_inputs': 'full', 'offload': (), 'context_heads': 'ranks'}
"""Key → the value that takes no longer than others, which may hold less: nothing is added to a step, nothing leaves."""
WITH_BOUNDS: Final[Mapping[str, Any]] = {**{key: value for key, (value, _) in BOUNDED.items()}, **RELAXED}
_COPIES: Final = (1, 2)
_CHUNKS: Final = (0, 3, 4, 6, 8)
PLACEMENTS: Final = (plans.NEAREST_FIRST, 'tensor-context-pipeline-data', 'tensor-data-context-pipeline')


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
        part = few_of(self.base.workload)
        return part.workload if part else self.base.workload

    @cached_property
    def refused(self) -> dict[tuple[int, ...], Any]:
        """What rules said of nodes; grows."""
        return {}

    @cached_property
    def _without_bounds(self) -> frozenset[tuple[int, int]]:
        """Which values of which keys have no bounds, by their places."""
        return frozenset(
            (number, place)
            for number, (key, values) in enumerate(zip(self.keys, self.values, strict=True))
            for place, value in enumerate(values)
            if key in BOUNDED and value != WITH_BOUNDS[key]
        )

    def has_bounds(self, path: Sequence[int]) -> bool:
        """Whether no value at a node is one of which there are no bounds."""
        return not self._without_bounds or self._without_bounds.isdisjoint(enumerate(path))

    @property
    def never_bounded(self) -> int:
        """How many plans are never bounded, those that cannot be among them."""
        lost = [sum(number == one for one, _ in self._without_bounds) for number in range(len(self.keys))]
        return self.count - prod(len(one) - few for one, few in zip(self.values, lost, strict=True))

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

    def plan(self, path: Sequence[int]) -> plans.Plan:
        """The plan at a node; keys without a value have the one that changes least."""
        chosen = self.chosen(path)
        neutral = {key: getattr(_NEUTRAL, key) for key in KEYS if key in self.keys and key not in chosen}
        plan = replace(self.base.plan, **neutral, **chosen)
        inner = plan.pipeline * plan.tensor * plan.context
        return plan if plan.data or self.world % inner else replace(plan, data=self.world // inner)

    def schedule(self, path: Sequence[int]) -> Schedule:
        """The schedule of a leaf, by itself."""
        return replace(self.base, plan=self.plan(path), against={}, sweep=None, planner=None)

    def place(self, plan: plans.Plan) -> tuple[int, ...] | None:
        """The place of each of a plan's keys among their values; None where it has a value that is none of them."""
        indices = tuple(
            one.index(getattr(plan, key)) if getattr(plan, key) in one else -1
            for key, one in zip(self.keys, self.values, strict=True)
        )
        inner = plan.pipeline * plan.tensor * plan.context
        same = plan.data in (0, self.plan(indices).data) if -1 not in indices else False
        return indices if same and self.world % inner == 0 else None

    def values_of(self, key: str) -> tuple[Any, ...]:
        """The values that a key may take; what is not chosen has one."""
        if key in self.keys:
            return self.values[self.keys.index(key)]
        return (getattr(self.base.plan, key),)


_NEUTRAL: Final = plans.Plan()


def with_bounds(plan: plans.Plan) -> plans.Plan:
    """The plan itself, or the one whose bounds stand for it; where none do, for a guess."""
    other = {key: value for key, value in WITH_BOUNDS.items() if getattr(plan, key) != value}
    if 'expert_ranks' in other and plan.data:
        other['expert'] = gcd(plan.expert, plan.data)
    return replace(plan, **other) if other else plan


def space_of(schedule: Schedule, world: int) -> Space:
    """The space that a schedule's section opens. Raises ``ScheduleError`` where bounds leave a key no value."""
    planner = schedule.planner or contents.Planner()
    user_keys: Mapping[str, Any] = {str(key).removeprefix('plan.'): value for key, value in planner.keys.items()}
    usual = _usual(schedule, world)
    chosen: dict[str, tuple[Any, ...]] = {}
    problems = []
    for key in (*(key for key in user_keys if key not in KEYS), *KEYS):
        values = _values(schedule.plan, key, user_keys.get(key, contents.FREE), usual)
        if not values:
            where = schedule.where(f'planner.keys.plan.{key}')
            problems.append(Problem(where, f'planner.keys: no value of plan.{key} is within its bounds', 'widen them'))
        elif key in KEYS or len(values) > 1 or user_keys[key] != contents.FIXED:
            # First what has bounds: others are guessed at from it.
            first = [value for value in values if key in WITH_BOUNDS and value == WITH_BOUNDS[key]]
            chosen[key] = (*first, *(value for value in values if value not in first))
    problems += _unknown_orders(schedule, chosen.get('order', ()))
    rows = conflicts_of('planner', model=schedule.workload.model)
    problems += [one.at(schedule.where(document.dotted(one.key))) for one in rows]
    problems += _nothing_bounded(schedule, chosen)
    if problems:
        raise ScheduleError(problems)
    # Data takes the ranks that are left, whatever the plan says, unless it is asked for.
    base = schedule if 'data' in user_keys else replace(schedule, plan=replace(schedule.plan, data=0))
    return Space(base, world, tuple(chosen), tuple(chosen.values()))


def _unknown_orders(schedule: Schedule, names: Sequence[Any]) -> Iterator[Problem]:
    """Names that no order has, which a rule would leave out without a word; files are read when their turn comes."""
    for name in dict.fromkeys(map(str, names)):
        if name in {*ORDERS, *AUTOMATIC, zero_bubble.TWO_HOMES} or name.endswith('.csv'):
            continue
        where = schedule.where('planner.keys.plan.order')
        choices = ', '.join((*ORDERS, *AUTOMATIC, zero_bubble.TWO_HOMES))
        yield Problem(where, f'planner.keys: plan.order: no such order (got {name[:60]!r})', f'known orders: {choices}')


def _nothing_bounded(schedule: Schedule, chosen: Mapping[str, Sequence[Any]]) -> Iterator[Problem]:
    """Keys that have no value of which there are bounds: nothing would be known of any plan."""
    for key, (value, what) in BOUNDED.items():
        if value not in chosen.get(key, (getattr(schedule.plan, key),)):
            text = f'plan.{key}: the search has no bounds of {what}, and there is no other value'
            instead = f'let planner.keys.plan.{key} have {value}, too, or compare them by a sweep: section'
            yield Problem(schedule.where(f'plan.{key}'), text, instead)


def _values(plan: plans.Plan, key: str, setting: Any, usual: Mapping[str, tuple[Any, ...]]) -> tuple[Any, ...]:
    """The values of a key, as the file asks for them."""
    own = (getattr(plan, key),)
    if setting == contents.FIXED:
        return own
    if isinstance(setting, list):
        # The document's own types: a list of patterns is a tuple in a plan.
        return tuple(tuple(one) if isinstance(one, list) else one for one in setting)
    among = _with(usual.get(key, own), own[0])
    if setting == contents.FREE:
        return among
    return tuple(one for one in among if setting.get('least', one) <= one <= setting.get('most', one))


def _with(among: tuple[Any, ...], own: Any) -> tuple[Any, ...]:
    """Usual values and the file's own: a number, messages of a stage, or an order that bounds are known of."""
    if own in among or isinstance(own, bool) or not (isinstance(own, int) or own == 'stage' or own in ORDERS):
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
        # Those below are free where the file says so.
        'placement': PLACEMENTS,
        'expert_ranks': ('data', 'context', 'tensor') if mixture else ('data',),
        'pairs': ('none', 'overlap', 'memory') if mixture else ('none',),
        'offload': ((), ('activations',), ('attention',), ('optimizer',), ('activations', 'optimizer')),
        'recompute_inputs': ('full', 'sharded'),
    }


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(one for one in range(1, number + 1) if number % one == 0)


PLAN_KEYS: Final = frozenset(part.name for part in fields(plans.Plan))


PIPELINED: Final = ('order', 'chunks')


class Refusal(NamedTuple):
    """Why plans cannot be, or need not be looked at.

    Arguments: ``rule``, its name; ``example``, what it says of the first of them.
    """

    rule: str
    example: str


class Judged(NamedTuple):
    """Least seconds of a step of all plans below a node; why none of them can be; least bytes at the peak."""

    seconds: float = 0.0
    refusal: Refusal | None = None
    held: float = 0.0


def refused(space: Space, path: Sequence[int]) -> Refusal | None:
    """Why no plan below a node can be; None where none of what is chosen speaks against it."""
    key = space.keys[len(path) - 1]
    if key == 'order' and path[-1] == 0:
        return None
    # What is behind order and chunks does not look at them.
    place = tuple(-1 if one in PIPELINED else number for one, number in zip(space.keys, path, strict=False))
    if key in PIPELINED:
        return _refused(space, path)
    if place not in space.refused:
        space.refused[place] = _refused(space, path)
    refusal: Refusal | None = space.refused[place]
    return refusal


def _refused(space: Space, path: Sequence[int]) -> Refusal | None:
    key = space.keys[len(path) - 1]
    chosen = space.chosen(path)
    if key == 'order':
        same = _same(space, chosen, path)
        return Refusal('same plan', same) if same else None
    plan = space.plan(path)
    inner = plan.pipeline * plan.tensor * plan.context
    if space.world % inner:
        return Refusal('devices', f'{inner} does not divide {space.world} devices')
    if same := _same(space, chosen, path):
        return Refusal('same plan', same)
    # What data is, is known when all other degrees are.
    degrees = all(one in chosen or one not in space.keys for one in ('pipeline', 'tensor', 'context'))
    if degrees and plan.data * inner != space.world:
        return Refusal('devices', f'{plan.data} × {inner} are not {space.world} devices')
    if key == 'chunks':
        return _has_stages(space.base.workload, plan)
    # Orders are asked apart: making one for each node would take longest.
    alone = replace(plan, pipeline=1, order='1f1b', chunks=0, stages=(), data=plan.data if degrees else 0)
    return _first(checks.check(replace(space.base, workload=space.few, plan=alone, sweep=None, planner=None)))


def _has_stages(workload: Workload, plan: plans.Plan) -> Refusal | None:
    """Why an order cannot have its chunks, or the layers its stages; to make it takes longer."""
    if (plan.pipeline == 1 and plan.chunks <= 1) or plan.order not in ORDERS:
        return None
    least, most = family(plan.order).chunks
    if plan.chunks and not least <= plan.chunks <= most:
        return Refusal('plan.chunks', f'{plan.order} has no {plan.chunks} chunks')
    stages, layers = plan.pipeline * (plan.chunks or least), max(workload.model.counts.values())
    return Refusal('stages', f'{stages} stages for {layers} layers') if not plan.stages and layers < stages else None


def _first(problems: Iterator[Problem]) -> Refusal | None:
    try:
        for problem in problems:
            return Refusal(document.dotted(problem.key), problem.what)
    except (ScheduleError, Infeasible) as wrong:
        return Refusal('plan', str(wrong).partition('\n')[0])
    return None


def _same(space: Space, chosen: dict[str, object], path: Sequence[int]) -> str:
    """What makes a plan the same as another one of the space; empty where it is none."""
    place = dict(zip(space.keys, path, strict=False))
    alone = chosen.get('pipeline', space.base.plan.pipeline) == 1
    if alone and place.get('order') and chosen.get('order') in ORDERS and 0 in space.values_of('chunks'):
        return 'one stage has one order'
    if alone and place.get('chunks') and chosen.get('chunks') == 1:
        return 'one stage has one chunk'
    if place.get('tiles') and space.values_of('tiles')[0] == 1 and _untiled(space, chosen):
        return 'no product has a sum or a gather beside it that tiles could hide'
    sharded = chosen.get('zero', space.base.plan.zero)
    if place.get('shard_group') and not sharded and not (space.base.plan.shard or space.base.plan.hsdp != 'off'):
        return 'nothing is sharded in groups'
    return ''


def _untiled(space: Space, chosen: dict[str, object]) -> bool:
    """Whether a model of the library surely has no collective that tiles travel in: nothing splits its products."""
    degrees = [chosen.get(key, getattr(space.base.plan, key)) for key in ('tensor', 'context')]
    workload, plan = space.base.workload, space.base.plan
    strategies = (plan.strategies, plan.layouts, workload.loss_strategy, workload.loss_strategies)
    return isinstance(workload.model, Transformer) and not any(strategies) and degrees == [1, 1]
