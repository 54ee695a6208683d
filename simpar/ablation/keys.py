"""Keys: what a user wrote into a schedule, each with its value and where the dataclasses have it; leaving them out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import Any, Final

from simpar.errors import SimparError
from simpar.keys import row_of
from simpar.lower.roles import overlap_of, with_passes
from simpar.plans import Plan
from simpar.resolve.resolve import settled_plan, settled_workload
from simpar.schedule import Schedule
from simpar.workload import MODEL, OPTIMIZERS, Workload

Path = tuple[str | int, ...]
_LAYERS: Final = 'workload.network.layers'
LAYER_RECOMPUTE: Final = f'{_LAYERS}.recompute'


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key with a default.

    Arguments:
        name: dotted, as a user writes it.
        path: names of fields and places in tuples, from the workload or the plan on.
        value, default: what it is, and what it is unless written.
        item: the place of one item of its list, where that alone is meant.
    """

    name: str
    path: Path
    value: Any
    default: Any
    item: int | None = None

    @property
    def field(self) -> str:
        """Its last part, under which rules have it."""
        return str(self.path[-1])

    @property
    def rule(self) -> str:
        """What the table of keys calls it: as a user writes it, but for a layer's, which have no place."""
        if 'layers' in self.path[:-1]:
            return f'{_LAYERS}.{self.field}'
        return self.name if self.item is None else self.name.rpartition('.')[0]

    @property
    def is_set(self) -> bool:
        """Whether it has another value than its default."""
        return self.item is not None or self.value != self.default

    @property
    def shown(self) -> Any:
        """Its value, or that of its item, as a file holds it."""
        found = self.value if self.item is None else self.value[self.item]
        row = row_of(self.rule)
        if isinstance(found, float) and row and row.unit:
            return f'{found:.16g} {row.unit}'
        return list(found) if isinstance(found, tuple) else dict(found) if isinstance(found, Mapping) else found

    def items(self) -> Iterator[Key]:
        """The items of a list of several as keys of their own."""
        if isinstance(self.value, tuple) and len(self.value) > 1:
            for place in range(len(self.value)):
                yield replace(self, name=f'{self.name}.{place}', item=place)


def user_keys(schedule: Schedule) -> Iterator[Key]:
    """Every key with a default that the file has, or whose value is another; strategies and names are not asked for."""
    wanted = {tuple(str(part) for part in key) for key in schedule.origins}
    for key in (*_of(schedule.plan, 'plan', ('plan',)), *_of_workload(schedule, wanted)):
        place = tuple(key.name.split('.'))
        # What a config.json or the framework says was not written for this schedule, nor a key of a group that it says.
        told = any(place[:count] in schedule.of_config | schedule.of_stack for count in range(len(place) + 1))
        if (key.is_set or place in wanted) and not told:
            yield key


def _of_workload(schedule: Schedule, wanted: Collection[tuple[str, ...]]) -> Iterator[Key]:
    workload = schedule.workload
    yield from _of(workload, 'workload', ('workload',))
    name = next(name for name, kind in OPTIMIZERS.items() if type(workload.optimizer) is kind)
    yield from _of(workload.optimizer, f'workload.optimizer.{name}', ('workload', 'optimizer'))
    model = workload.model
    yield from _of(model, f'workload.{model.key}', ('workload', 'model'))
    experts = getattr(model, 'experts', None)
    if experts is not None:
        yield from _of(experts, f'workload.{model.key}.experts', ('workload', 'model', 'experts'))
    listed = f'workload.{model.key}' + ('.layers' if ('workload', model.key, 'layers') in wanted else '')
    for place, layer in enumerate(model.listed):
        yield from _of(layer, f'{listed}.{place}.{layer.key}', ('workload', 'model', 'layers', place))


def _of(owner: Any, name: str, path: Path) -> Iterator[Key]:
    for field in fields(owner):
        default = _default(field)
        if default is not MISSING and field.name not in ('model', 'optimizer', MODEL):
            value = getattr(owner, field.name)
            yield Key(name=f'{name}.{field.name}', path=(*path, field.name), value=value, default=default)


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def without_keys(workload: Workload, plan: Plan, keys: Collection[Key]) -> tuple[Workload, Plan]:
    """The workload and the plan without some keys."""
    items: dict[Path, set[int]] = {}
    for key in keys:
        if key.item is None:
            value = key.default
        else:
            # Items are left out of the whole list: with some gone already, places still count from it.
            gone = items.setdefault(key.path, set())
            gone.add(key.item)
            value = tuple(one for place, one in enumerate(key.value) if place not in gone)
        if key.path[0] == 'plan':
            plan = replace(plan, **{key.field: value})
        else:
            workload = _put(workload, key.path[1:], value)
    return workload, plan


def _put(node: Any, path: Path, value: Any) -> Any:
    """A frozen value, or a tuple of them, with another one at a path."""
    if not path:
        return value
    first, *rest = path
    if isinstance(first, int):
        return (*node[:first], _put(node[first], tuple(rest), value), *node[first + 1 :])
    return replace(node, **{first: _put(getattr(node, first), tuple(rest), value)})


_UNMARKED: Final = 1
"""The id of fusion of a layer without a mark."""


def says_the_choice(key: Key, workload: Workload, plan: Plan, world: int) -> bool:
    """Whether a key has the value that presets and automatic choices give it without.

    Arguments: ``workload`` and ``plan``, with every choice made; ``world``, ranks of the cluster.
    """
    if key.rule == 'plan.data':
        return bool(key.value == world // (plan.context * plan.tensor * plan.pipeline))
    # ``balanced`` is a request, not a value that could be chosen without it.
    if isinstance(key.value, str) and key.field == 'stages':
        return False
    if key.rule == f'{_LAYERS}.comm_fusion':
        return bool(key.value == _UNMARKED)
    other_workload, other = without_keys(workload, plan, [key])
    if key.rule == 'plan.overlap':
        passes = replace(with_passes(other), overlap=plan.overlap)
        return with_passes(plan) == passes and overlap_of(plan) == overlap_of(other)
    row = row_of(key.rule)
    if row is None or not row.chosen:
        return False
    if key.path[0] == 'plan':
        try:
            chosen = settled_plan(workload, other)
        # Without the key nothing can be chosen: so it does not say what would be chosen.
        except SimparError:
            return False
        return _alike(getattr(chosen, key.field), getattr(plan, key.field))
    settled = settled_workload(other_workload)
    owner: Any = settled if key.path == ('workload', key.field) else settled.model
    return bool(getattr(owner, key.field) == key.value)


def _alike(one: Any, other: Any) -> bool:
    """Equal; of what is sharded, in any order."""
    if isinstance(one, tuple) and isinstance(other, tuple) and one and isinstance(one[0], str):
        # Parts that are sharded are a set to users; a list has an order that means nothing.
        return set(one) == set(other)
    return bool(one == other)
