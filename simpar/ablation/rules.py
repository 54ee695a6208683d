"""Keys that users set, and the rules by which one changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Final

from simpar import errors, hardware
from simpar.cost.compute import FP8
from simpar.keys import ROWS, condition, row_of
from simpar.lower import issue, roles, tape
from simpar.lower.graph import loss, record
from simpar.lower.lower import order_of
from simpar.lower.passes.recompute import JOIN, is_recomputed
from simpar.pipeline.order import Order
from simpar.plans import Plan
from simpar.program import OpClass, Program
from simpar.resolve.resolve import recomputes, settled_plan, settled_workload
from simpar.schedule import Schedule
from simpar.workload import MODEL, OPTIMIZERS, Workload

# Keys: what a user wrote into a schedule, each with its value and where the dataclasses have it; leaving them out.

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
        entry = self.value if self.item is None else self.value[self.item]
        row = row_of(self.rule)
        if isinstance(entry, float) and row and row.unit:
            return f'{entry:.16g} {row.unit}'
        return list(entry) if isinstance(entry, tuple) else dict(entry) if isinstance(entry, Mapping) else entry

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
        is_imported = any(place[:count] in schedule.of_config | schedule.of_stack for count in range(len(place) + 1))
        if (key.is_set or place in wanted) and not is_imported:
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
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if default is not MISSING and field.name not in ('model', 'optimizer', MODEL):
            value = getattr(owner, field.name)
            yield Key(name=f'{name}.{field.name}', path=(*path, field.name), value=value, default=default)


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
        passes = replace(roles.with_passes(other), overlap=plan.overlap)
        return roles.with_passes(plan) == passes and roles.overlap_of(plan) == roles.overlap_of(other)
    row = row_of(key.rule)
    if row is None or not row.chosen:
        return False
    if key.path[0] == 'plan':
        try:
            chosen = settled_plan(workload, other)
        # Without the key nothing can be chosen: so it does not say what would be chosen.
        except errors.SimparError:
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


# Rules: when a key can have no effect, when it surely has one, and what to say of one that was found to have none.
#
# They stand in the table of keys, about the facts of a program that ``Facts`` has. They only spare lowering: a key of
# which no rule says anything is left out, and the programs are compared. ``tests/test_without_effect.py`` holds every
# rule by lowering random schedules without the key.


def facts_of(schedule: Schedule, workload: Workload, plan: Plan, program: Program) -> Facts:
    """The facts of a program. Arguments: ``workload`` and ``plan``, those of the schedule with every choice made."""
    return Facts(program=program, workload=workload, workload_asked=schedule.workload, asked=schedule.plan, plan=plan)


@dataclass(frozen=True, kw_only=True, eq=False)
class Facts:
    """A program, and the workload and plan that it was lowered from.

    Arguments: ``workload_asked`` and ``asked``, as the user wrote them; ``workload`` and ``plan``, with every choice
    made.
    """

    program: Program
    workload: Workload
    workload_asked: Workload
    asked: Plan
    plan: Plan

    @cached_property
    def _communication(self) -> list[OpClass]:
        return [op for op in self.program.op_classes if op.kind != 'compute']

    @property
    def communicates(self) -> bool:
        """Whether any rank sends anything."""
        return bool(self._communication)

    @cached_property
    def sends(self) -> bool:
        """Whether stages send to one another."""
        return any(op.kind == 'send' for op in self._communication)

    @cached_property
    def placed(self) -> bool:
        """Whether any rank is on another device than that of its number."""
        return hardware.Placement.of(self.plan, self.program.world) is not None

    @cached_property
    def one_stage(self) -> bool:
        """Whether the model is in one stage."""
        return not any(op.stage for op in self.program.op_classes) and self.plan.pipeline == 1

    @cached_property
    def sums_gradients(self) -> bool:
        """Whether gradients of parameters are summed over ranks."""
        # Collectives of W are sums of gradients; those of F and I are over activations.
        return any(op.kind == 'collective' and op.phase == 'W' for op in self._communication)

    @cached_property
    def scatters_activations(self) -> bool:
        """Whether degrees alone make a sum of activations leave each rank a slice, as sequence parallelism does."""
        if record.has_strategies(self.workload, self.plan):
            return False
        return any(op.operator == 'reduce_scatter' and op.phase == 'F' for op in self._communication)

    @cached_property
    def moves_activations(self) -> bool:
        """Whether strategies that a search found move activations, which without it and degrees no rank sends."""
        is_plain = self.asked.tensor == 1 and not record.has_strategies(self.workload_asked, self.asked)
        among = {op.phase for op in self._communication if op.kind == 'collective'}
        return is_plain and not self.gathered and bool(among & {'F', 'I'})

    @cached_property
    def exchanges(self) -> bool:
        """Whether any redistribution is an all-to-all."""
        # Heads are exchanged among context ranks by another key.
        return any(
            op.operator == 'all_to_all' and op.partition not in (issue.CONTEXT, issue.CONTEXT_HEADS)
            for op in self._communication
        )

    @cached_property
    def sharded(self) -> bool:
        """Whether optimizer parallelism shards any parameter."""
        # Of a flat message the shard is like no weight.
        own = any(tensor.kind in ('gathered', 'view') and tensor.like for tensor in self.program.tensors)
        return own or any(op.operator == 'piece' for op in self.program.op_classes)

    @cached_property
    def gathered(self) -> bool:
        """Whether weights are gathered where they are used."""
        return any(tensor.kind == 'gathered' and tensor.like for tensor in self.program.tensors)

    @cached_property
    def recomputed(self) -> frozenset[str]:
        """The layers of which an op runs again."""
        return frozenset(tape.layer_of(op.name) for op in self.program.op_classes if is_recomputed(op))

    @cached_property
    def tiled(self) -> bool:
        """Whether any product is in tiles."""
        return any(op.operator == JOIN for op in self.program.op_classes)

    @cached_property
    def draws_weights(self) -> bool:
        """Whether any parameter begins with numbers of a normal distribution."""
        return any(tensor.initial.startswith('normal') for tensor in self.program.tensors if tensor.kind == 'parameter')

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of all parameters."""
        return tuple(tensor.name for tensor in self.program.tensors if tensor.kind == 'parameter')

    @cached_property
    def travels(self) -> bool:
        """Whether any gradient or weight travels between ranks."""
        return self.sums_gradients or self.sharded

    @cached_property
    def recomputes(self) -> bool:
        """Whether any op runs again."""
        return bool(self.recomputed)

    @cached_property
    def fp8(self) -> bool:
        """Whether any product reads 8 bits."""
        return any(op.dtype == FP8 for op in self.program.cost_kinds[1])

    @cached_property
    def other_actions(self) -> bool:
        """Whether some rank has other stages, or forwards and backwards in another sequence, than by default."""
        rows = () if not self.asked.rows else self.plan.rows
        try:
            own, other = (order_of(plan) for plan in (self.plan, replace(self.plan, order=Plan().order, rows=rows)))
        except errors.SimparError:
            # It is left out, and what comes of it is looked at.
            return False
        return _passes(own) != _passes(other)

    @cached_property
    def _by_keys(self) -> dict[str, bool]:
        """What keys say together."""
        plan, user_plan, model = self.plan, self.asked, self.workload.model
        experts = getattr(model, 'experts', None)
        # Two that ask for optimizer parallelism hold each other: without one of them the program may stay the same.
        alone = sum((user_plan.zero > 0, user_plan.hsdp != 'off', bool(user_plan.shard))) <= 1
        return {
            'always': True,
            'asks_alone': alone,
            'asks_recompute': recomputes(self.workload, plan),
            'asks_shards': plan.hsdp != 'off' or plan.zero > 0 or bool(plan.shard),
            'data_ranks': plan.data * plan.context > 1,
            'dense_layers': experts is not None and experts.first_dense >= experts.every,
            'expert_groups': experts is not None and experts.groups > 1,
            'expert_width': experts is not None and experts.ffn not in (0, getattr(model, 'ffn_width', 0)),
            # MindSpore's search reads the key, too.
            'in_vain': not self.sharded and alone and user_plan.search != 'double-recursive',
            'marks': any(operator.recompute for operator in model.operators.values()),
            'mindspore_search': user_plan.search in ('sharding-propagation', 'double-recursive'),
            'passes': not isinstance(plan.overlap, str),
            'sums_loss': loss.TOTAL in self.program.tensor,
        }

    def hold(self, facts: str) -> bool:
        """Whether all facts of a condition hold, e.g. ``sends & plan.copies > 1``."""
        return all(self._holds(fact.lstrip('!')) != fact.startswith('!') for fact in facts.split(' & '))

    def _holds(self, fact: str) -> bool:
        if '.' in fact:
            values = {'plan': self.plan, 'asked': self.asked, 'workload': self.workload, 'model': self.workload.model}
            return condition(fact)(values)
        return self._by_keys[fact] if fact in self._by_keys else bool(getattr(self, fact))

    def why(self, rule: str) -> str:
        """The sentence of a rule's first condition that holds, e.g. ``!sends → no stage sends to another``; else empty.

        Words in braces are values of the plan.
        """
        for part in filter(None, rule.split(' | ')):
            condition, _, sentence = part.rpartition(' → ')
            if not condition or self.hold(condition):
                return sentence.format(plan=self.plan)
        return ''


def _passes(order: Order) -> list[list[tuple[int, str, int | None]]]:
    """By rank what surely has ops: all forwards, and all backwards but that of the first stage, which sends none."""
    return [
        [
            (part.stage, 'F' if part.kind == 'F' else 'B', part.micro_batch)
            for action in row
            for part in action.parts
            if part.kind == 'F' or (part.kind in ('B', 'I') and part.stage)
        ]
        for row in order.actions
    ]


_SAME: Final = 'the program is the same without it'


def inert(key: str, facts: Facts) -> str:
    """Why no value of a key has any effect, the default neither; empty where one may have one."""
    row = row_of(key)
    return facts.why(row.inert) if row else ''


def inert_keys(facts: Facts) -> frozenset[str]:
    """All keys of which no value has any effect."""
    return frozenset(key for key, row in ROWS.items() if facts.why(row.inert))


def effective(key: Key, facts: Facts) -> bool:
    """Whether a key with another value than its default, or an item of its list, surely has an effect."""
    row = row_of(key.rule)
    # Of a forward alone each key of backward and update is tried.
    if row is None or key.item is not None or (facts.workload.phase == 'forward' and row.training):
        return False
    if key.rule == LAYER_RECOMPUTE:
        return facts.plan.recompute in ('none', ()) and _layer(key, facts) in facts.recomputed
    return bool(row.effect) and facts.hold(row.effect)


def idle(key: Key, facts: Facts) -> str:
    """Why a key with another value than its default, or an item of its list, has no effect; empty where it may."""
    if key.rule == 'plan.unsharded' and key.item is not None:
        # An item has no effect where its pattern names nothing; others may name the same parameters.
        matched = any(fnmatchcase(name, key.value[key.item]) for name in facts.parameters)
        return '' if matched else 'it is the name of no parameter'
    if key.rule == LAYER_RECOMPUTE and _layer(key, facts) not in facts.recomputed:
        return 'the backward needs nothing of it, or its stage recomputes nothing'
    row = row_of(key.rule)
    return facts.why(row.idle) if row and key.item is None else ''


def _layer(key: Key, facts: Facts) -> str:
    """The name of the layer that a key is of."""
    model, place = facts.workload.model, key.path[-2]
    return model.nodes[place].name if isinstance(place, int) else ''


def words(key: Key, facts: Facts) -> str:
    """Why the program is the same without a key, or an item of its list."""
    row = row_of(key.rule)
    return (facts.why(row.alike) if row else '') or _SAME
