"""Rules: when a key can have no effect, when it surely has one, and what to say of one that was found to have none.

They stand in the table of keys, about the facts of a program that ``Facts`` has. They only spare lowering: a key of
which no rule says anything is left out, and the programs are compared. ``tests/test_without_effect.py`` holds every
rule by lowering random schedules without the key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Final

from simpar.ablation.keys import LAYER_RECOMPUTE, Key
from simpar.cost.compute import FP8
from simpar.errors import SimparError
from simpar.keys import ROWS, row_of
from simpar.lower.graph.loss import TOTAL
from simpar.lower.graph.record import has_strategies
from simpar.lower.lower import order_of
from simpar.lower.mesh import CONTEXT
from simpar.lower.passes.recompute import is_recomputed
from simpar.lower.passes.tiles import JOIN
from simpar.lower.tape import layer_of
from simpar.pipeline.order import Order
from simpar.plans import Plan
from simpar.program import OpClass, Program
from simpar.resolve.resolve import recomputes
from simpar.schedule import Schedule
from simpar.workload import Workload


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
        if has_strategies(self.workload, self.plan):
            return False
        return any(op.operator == 'reduce_scatter' and op.phase == 'F' for op in self._communication)

    @cached_property
    def moves_activations(self) -> bool:
        """Whether strategies that a search found move activations, which without it and degrees no rank sends."""
        asked = self.asked.tensor == 1 and not has_strategies(self.workload_asked, self.asked)
        among = {op.phase for op in self._communication if op.kind == 'collective'}
        return asked and not self.gathered and bool(among & {'F', 'I'})

    @cached_property
    def exchanges(self) -> bool:
        """Whether any redistribution is an all-to-all."""
        # Heads are exchanged among context ranks by another key.
        return any(op.operator == 'all_to_all' and op.partition != CONTEXT for op in self._communication)

    @cached_property
    def sharded(self) -> bool:
        """Whether optimizer parallelism shards any parameter."""
        return any(tensor.kind in ('gathered', 'view') and tensor.like for tensor in self.program.tensors)

    @cached_property
    def gathered(self) -> bool:
        """Whether weights are gathered where they are used."""
        return any(tensor.kind == 'gathered' and tensor.like for tensor in self.program.tensors)

    @property
    def asks_shards(self) -> bool:
        """Whether the plan asks for optimizer parallelism."""
        return self.plan.hsdp != 'off' or self.plan.zero > 0 or bool(self.plan.shard)

    @cached_property
    def asks_recompute(self) -> bool:
        """Whether the plan, or a mark of a layer, asks for recomputation."""
        return recomputes(self.workload, self.plan)

    @cached_property
    def recomputed(self) -> frozenset[str]:
        """The layers of which an op runs again."""
        return frozenset(layer_of(op.name) for op in self.program.op_classes if is_recomputed(op))

    @cached_property
    def tiled(self) -> bool:
        """Whether any product is in tiles."""
        return any(op.operator == JOIN for op in self.program.op_classes)

    @cached_property
    def sums_loss(self) -> bool:
        """Whether the loss is summed for display."""
        return TOTAL in self.program.tensor

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

    @property
    def asks_alone(self) -> bool:
        """Whether no more than one key asks for optimizer parallelism."""
        # Two that ask for it hold each other: without one of them the program may stay the same.
        return sum((self.asked.zero > 0, self.asked.hsdp != 'off', bool(self.asked.shard))) <= 1

    @property
    def in_vain(self) -> bool:
        """Whether one key alone asks for optimizer parallelism, and nothing is sharded."""
        # MindSpore's search reads the key, too.
        return not self.sharded and self.asks_alone and self.asked.search != 'double-recursive'

    @cached_property
    def other_actions(self) -> bool:
        """Whether some rank has other stages, or forwards and backwards in another sequence, than by default."""
        rows = () if not self.asked.rows else self.plan.rows
        try:
            own, other = (order_of(plan) for plan in (self.plan, replace(self.plan, order=Plan().order, rows=rows)))
        except SimparError:
            # It is left out, and what comes of it is looked at.
            return False
        return _passes(own) != _passes(other)

    @cached_property
    def _by_keys(self) -> dict[str, bool]:
        """What the keys say themselves."""
        plan, asked, model = self.plan, self.asked, self.workload.model
        experts = getattr(model, 'experts', None)
        return {
            'always': True,
            'context': plan.context > 1,
            'copies': plan.copies > 1,
            'data_ranks': plan.data * plan.context > 1,
            'dense_layers': experts is not None and experts.first_dense >= experts.every,
            'documents': bool(getattr(model, 'packed', ())),
            'exact_search': asked.search == 'exact',
            'expert_groups': experts is not None and experts.groups > 1,
            'expert_width': experts is not None and experts.ffn not in (0, getattr(model, 'ffn_width', 0)),
            'fused_exchange': plan.exchange == 'fused',
            'gather_pass': 'enable_opt_shard_comm_opt' in plan.overlap,
            'gradient_pass': 'enable_grad_comm_opt' in plan.overlap,
            'ids': plan.fusion == 'ids',
            'late_receive': plan.receive == 'late',
            'listed_ids': bool(plan.fusion_ids),
            'marks': any(operator.recompute for operator in model.operators.values()),
            'mindspore_search': asked.search in ('sharding-propagation', 'double-recursive'),
            'other_fusion': plan.fusion != 'layer',
            'passes': not isinstance(plan.overlap, str),
            'rotary': getattr(model, 'position', '') == 'rotary',
            'rows': bool(asked.rows),
            'single_stream': plan.streams == 'single',
            'tells_sample': model.tells_sample,
            'tensor_ranks': plan.tensor > 1,
            'trains': self.workload.phase != 'forward',
        }

    def hold(self, condition: str) -> bool:
        """Whether all facts of a condition hold, e.g. ``sends & !single_stream``."""
        return all(self._holds(fact.lstrip('!')) != fact.startswith('!') for fact in condition.split(' & '))

    def _holds(self, fact: str) -> bool:
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
