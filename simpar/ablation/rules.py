"""Rules: when a key can have no effect, when it surely has one, and what to say of one that was found to have none.

They only spare lowering: a key of which no rule says anything is left out, and the programs are compared.
``tests/test_without_effect.py`` holds every rule by lowering random schedules without the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Final

from simpar.ablation.keys import Key
from simpar.cost.compute import FP8
from simpar.errors import SimparError
from simpar.lower.given import has_strategies
from simpar.lower.loss_sum import TOTAL
from simpar.lower.lower import order_of
from simpar.lower.mesh import CONTEXT
from simpar.lower.recompute import is_recomputed
from simpar.lower.tiles import JOIN
from simpar.lower.update_shards import layer_of
from simpar.model.library.experts import Experts
from simpar.pipeline.order import Order
from simpar.plan import Plan
from simpar.program import OpClass, Program
from simpar.resolve.settle import recomputes
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


Rule = Callable[[Facts], str]
"""Why a key can have no effect; empty where it may have one."""


def _if(condition: Callable[[Facts], bool], why: str) -> Rule:
    return lambda facts: why if condition(facts) else ''


def _shards(facts: Facts) -> str:
    """Of keys that say how optimizer parallelism shards."""
    if not facts.asks_shards:
        return 'nothing is sharded: there is no zero, hsdp or shard'
    return '' if facts.sharded else _no_shards(facts)


def _no_shards(facts: Facts) -> str:
    if facts.plan.data * facts.plan.context == 1:
        return 'data is 1: there are no data ranks to shard over'
    return 'no parameter is sharded: each is on one rank alone, unsharded, below shard_threshold, or does not divide'


def _shards_asked(facts: Facts) -> str:
    """Of keys that say what stays unsharded, and so may be why nothing is sharded."""
    if facts.asks_shards and facts.plan.data * facts.plan.context > 1:
        return ''
    return _shards(facts)


def _order(facts: Facts) -> str:
    if facts.asked.rows:
        return 'rows stand in its place'
    return 'there is one stage, no pipeline' if facts.one_stage else ''


def _chunks(facts: Facts) -> str:
    return 'rows say which stages there are' if facts.asked.rows else ''


def _recompute(facts: Facts) -> str:
    return '' if facts.asks_recompute else 'nothing is recomputed'


def _communication(facts: Facts) -> str:
    return _recompute(facts) or ('' if facts.communicates else 'no rank communicates')


def _fusion(facts: Facts) -> str:
    return '' if facts.sums_gradients or facts.sharded else 'no gradient and no weight travels between ranks'


def _gathers(facts: Facts) -> str:
    return _shards(facts) or ('' if facts.gathered else 'no weight is gathered where it is used')


def _fused_ids(facts: Facts) -> str:
    if facts.plan.fusion != 'ids':
        return f'fusion is {facts.plan.fusion}, not ids'
    return 'plan.fusion_ids says it' if facts.plan.fusion_ids else _fusion(facts)


def _receive(facts: Facts) -> str:
    if not facts.sends:
        return 'no stage sends to another'
    return 'an exchange has its receives late' if facts.plan.exchange == 'fused' else ''


_NO_CONTEXT: Final = _if(lambda facts: facts.plan.context == 1, 'context is 1: no ranks share a sequence')
INERT: Final[Mapping[str, Rule]] = {
    'plan.context_kind': _NO_CONTEXT,
    'plan.context_split': _NO_CONTEXT,
    'plan.order': _order,
    'plan.chunks': _chunks,
    'plan.stages': _if(lambda facts: facts.one_stage, 'there is one stage, no pipeline'),
    'plan.receive': _receive,
    'plan.exchange': _if(lambda facts: not facts.sends, 'no stage sends to another'),
    'plan.scatter_gather': _if(lambda facts: not facts.sends, 'no stage sends to another'),
    'plan.copies_loss': _if(lambda facts: facts.plan.copies == 1, 'there is one copy'),
    'plan.streams': _if(lambda facts: not facts.communicates, 'no rank communicates'),
    'plan.overlap': _if(lambda facts: not facts.communicates, 'no rank communicates'),
    'plan.compat': _if(
        lambda facts: facts.asked.search not in ('sharding-propagation', 'double-recursive'),
        'it is the version of sharding-propagation and double-recursive search',
    ),
    'plan.objective': _if(lambda facts: facts.asked.search != 'exact', 'it is what an exact search minimises'),
    'plan.recompute_stages': _recompute,
    'plan.recompute_communication': _communication,
    'plan.gather': _shards,
    'plan.shard_form': _shards,
    'plan.shard_group': _shards,
    'plan.shard_threshold': _shards_asked,
    'plan.unsharded': _shards_asked,
    'plan.accumulate': _shards,
    'plan.prefetch': _gathers,
    'plan.reduce_gradients': _if(lambda facts: not facts.sums_gradients, 'no gradient is summed over ranks'),
    'plan.fusion': _fusion,
    'layer.comm_fusion': _fused_ids,
    'layer.pipeline_stage': _if(lambda facts: facts.one_stage, 'there is one stage, no pipeline'),
}
"""Keys of which no value has any effect, with why; told of default values, too."""


def _beside(facts: Facts) -> bool:
    """Whether messages have streams of their own."""
    return facts.plan.streams != 'single'


def _asks_alone(facts: Facts) -> bool:
    """Whether no more than one key asks for optimizer parallelism."""
    # Two that ask for it hold each other: without one of them the program may stay the same.
    return sum((facts.asked.zero > 0, facts.asked.hsdp != 'off', bool(facts.asked.shard))) <= 1


def _asked(facts: Facts) -> str:
    """Of the key that asks for optimizer parallelism; MindSpore's search reads it, too."""
    if facts.sharded or not _asks_alone(facts) or facts.asked.search == 'double-recursive':
        return ''
    return _no_shards(facts)


IDLE: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(('plan.zero', 'plan.hsdp', 'plan.shard'), _asked),
    'plan.tiles': _if(lambda facts: not facts.tiled, 'no product that divides stands next to its sum or gather'),
    'plan.sum_loss': _if(lambda facts: not facts.sums_loss, 'all ranks hold the same loss'),
}
"""Keys whose value, another than the default, has no effect."""


def _marks(facts: Facts) -> bool:
    return any(operator.recompute for operator in facts.workload.model.operators.values())


def _always(facts: Facts) -> bool:
    return True


def _other_actions(facts: Facts) -> bool:
    """Whether some rank has other stages, or their forwards and backwards in another sequence, than by default."""
    rows = () if not facts.asked.rows else facts.plan.rows
    try:
        own, other = (order_of(plan) for plan in (facts.plan, replace(facts.plan, order=Plan().order, rows=rows)))
    except SimparError:
        # It is left out, and what comes of it is looked at.
        return False
    return _passes(own) != _passes(other)


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


def _experts(facts: Facts) -> Experts:
    experts: Experts | None = getattr(facts.workload.model, 'experts', None)
    assert experts is not None, 'a key of theirs was written'
    return experts


_STAND_IN_THE_PROGRAM: Final = (
    *('data', 'tensor', 'expert', 'context', 'pipeline', 'micro_batches', 'copies', 'chunks', 'rows', 'experts'),
    'sequence_chunks',
    *('loss', 'precision', 'gradients', 'clip_norm', 'loss_scale', 'data'),
    *('ffn', 'kv_heads', 'tied', 'attention', 'dropout', 'init_std', 'learning_rate', 'master_weights'),
    *('head_dim', 'norm', 'norm_epsilon', 'post_norms', 'qk_norm', 'activation', 'position', 'parallel'),
    *('attention_softcap', 'logit_softcap', 'embedding_scale', 'phase'),
    *('kv_lora_rank', 'q_lora_rank', 'qk_nope_head_dim', 'qk_rope_head_dim', 'v_head_dim'),
    *('momentum', 'nesterov', 'weight_decay', 'beta1', 'beta2', 'epsilon', 'loss_operators', 'loss_strategies'),
    *('loss_strategy', 'bias', 'mean', 'keep', 'stride', 'padding', 'transpose_a', 'transpose_b'),
)
_OF_EXPERTS: Final = (
    *('ffn', 'shared', 'shared_gate', 'score', 'normalise', 'scaling_factor', 'groups', 'correction_bias', 'aux_loss'),
)
_SPELLED: Final = ('strategy', 'layout', 'out_strategy', 'out_layout', 'of', 'name', 'pipeline_stage')
"""Layers: what says the same as leaving it out is spelled out, not without effect."""

EFFECTIVE: Final[Mapping[str, Callable[[Facts], bool]]] = {
    **{f'plan.{name}': _always for name in _STAND_IN_THE_PROGRAM},
    **{f'workload.{name}': _always for name in _STAND_IN_THE_PROGRAM},
    **{f'experts.{name}': _always for name in _OF_EXPERTS},
    **{f'layer.{name}': _always for name in (*_STAND_IN_THE_PROGRAM, *_SPELLED)},
    **{f'experts.{name}': _always for name in ('shared', 'score', 'scaling_factor', 'correction_bias', 'groups')},
    'experts.group_top_k': lambda facts: _experts(facts).groups > 1,
    'experts.ffn': lambda facts: _experts(facts).ffn not in (0, getattr(facts.workload.model, 'ffn_width', 0)),
    'experts.first_dense': lambda facts: _experts(facts).first_dense >= _experts(facts).every,
    'workload.init_std': lambda facts: facts.draws_weights,
    'plan.context_kind': lambda facts: facts.plan.context > 1,
    'plan.context_split': lambda facts: facts.plan.context > 1,
    'workload.documents': lambda facts: bool(getattr(facts.workload.model, 'packed', ())),
    'workload.rope_interleaved': lambda facts: getattr(facts.workload.model, 'position', '') == 'rotary',
    'workload.fp8': lambda facts: any(op.dtype == FP8 for op in facts.program.cost_kinds[1]),
    'plan.copies_loss': lambda facts: facts.plan.copies > 1,
    'plan.sum_loss': lambda facts: facts.sums_loss,
    'workload.input': lambda facts: facts.workload.model.tells_sample,
    'plan.tiles': lambda facts: facts.tiled,
    'plan.search': lambda facts: facts.moves_activations,
    'plan.all_to_all': lambda facts: facts.exchanges,
    'plan.sequence_parallel': lambda facts: facts.scatters_activations,
    # Collectives alone leave the streams of messages as they are.
    'plan.streams': lambda facts: facts.communicates and facts.plan.streams == 'single',
    **dict.fromkeys(('plan.zero', 'plan.hsdp', 'plan.shard'), lambda facts: facts.sharded and _asks_alone(facts)),
    'plan.receive': lambda facts: facts.sends and _beside(facts) and facts.plan.exchange == 'separate',
    'plan.exchange': lambda facts: facts.sends and _beside(facts) and facts.plan.receive == 'early',
    'plan.accumulate': lambda facts: facts.sharded,
    'plan.order': lambda facts: facts.workload.phase != 'forward' and _other_actions(facts),
    'plan.recompute': lambda facts: bool(facts.recomputed) and not _marks(facts),
    'plan.fusion': lambda facts: facts.plan.fusion != 'layer' and bool(facts.sums_gradients or facts.sharded),
}
"""Keys whose value, another than the default, surely has an effect: it stands in the program, or what it makes does."""


_OF_TRAINING: Final = tuple(
    f'.{name}'
    for name in (
        *('learning_rate', 'master_weights', 'momentum', 'nesterov', 'weight_decay', 'beta1', 'beta2', 'epsilon'),
        *('gradients', 'clip_norm', 'loss_scale', 'zero', 'hsdp', 'shard', 'accumulate', 'recompute', 'fusion'),
    )
)
"""Keys of backward and update: of a forward alone each is tried."""


def effective(key: Key, facts: Facts) -> bool:
    """Whether a key, or an item of its list, surely has an effect."""
    if key.item is not None or (facts.workload.phase == 'forward' and key.rule.endswith(_OF_TRAINING)):
        return False
    if key.rule == 'layer.recompute':
        return facts.plan.recompute in ('none', ()) and _layer(key, facts) in facts.recomputed
    return key.rule in EFFECTIVE and EFFECTIVE[key.rule](facts)


def idle(key: Key, facts: Facts) -> str:
    """Why a key, or an item of its list, has no effect; empty where it may have one."""
    if key.rule == 'plan.unsharded' and key.item is not None:
        # An item has no effect where its pattern names nothing; others may name the same parameters.
        matched = any(fnmatchcase(name, key.value[key.item]) for name in facts.parameters)
        return '' if matched else 'it is the name of no parameter'
    if key.rule == 'layer.recompute' and _layer(key, facts) not in facts.recomputed:
        return 'the backward needs nothing of it, or its stage recomputes nothing'
    return IDLE[key.rule](facts) if key.rule in IDLE and key.item is None else ''


def _layer(key: Key, facts: Facts) -> str:
    """The name of the layer that a key is of."""
    model, place = facts.workload.model, key.path[-2]
    return model.nodes[place].name if isinstance(place, int) else ''


_WORDS: Final[Mapping[str, str]] = {
    'plan.order': 'it comes to the same actions',
    'plan.stages': 'these are the stages without it, too',
    'plan.receive': 'every receive waits for that computation anyway',
    'plan.exchange': 'what is sent and received waits alike without it',
    'plan.scatter_gather': 'no value that a stage sends is held by several tensor ranks',
    'plan.dataset': 'every rank reads the same samples without it',
    'plan.device_matrix': 'no layout names its axes',
    'plan.strategies': 'these operators are split so without them, too',
    'plan.layouts': 'these operators are split so without them, too',
    'plan.redistribution': 'no value is redistributed another way',
    'plan.all_to_all': 'no redistribution uses an all-to-all',
    'plan.sequence_parallel': 'tensor is 1: there is nothing to shard the sequence over',
    'plan.search': 'what it finds is how layers are split without it',
    'plan.compat': 'both versions find the same',
    'plan.objective': 'bytes find the same strategies',
    'plan.recompute': 'the backward needs nothing of what it names',
    'plan.recompute_stages': 'no other stage has anything to recompute',
    'plan.recompute_communication': 'no collective is among what is recomputed',
    'plan.shard_threshold': 'the same parameters are sharded without it',
    'plan.unsharded': 'the parameters that it names are not sharded anyway, or there are none',
    'plan.overlap': 'what its passes put in order stands alike without it',
    'plan.prefetch': 'weights are gathered at the same places without it',
    'plan.fusion_ids': 'the marks of layers, or 1 for each, say the same',
    'experts.imbalance': 'no rank holds some of the experts alone: each gets as many tokens as it sends',
    'experts.group_top_k': 'there is one group',
    'experts.group_scores': 'there is one group',
    'experts.aux_group': 'there is no auxiliary loss',
    'workload.init_std': 'no initial weight is drawn from a normal distribution',
}
_SAME: Final = 'the program is the same without it'
_NOT_LISTED: Final = {'reduce_gradients': 'enable_grad_comm_opt', 'prefetch': 'enable_opt_shard_comm_opt'}


def words(key: Key, facts: Facts) -> str:
    """Why the program is the same without a key, or an item of its list."""
    if key.field in _NOT_LISTED and not isinstance(facts.plan.overlap, str):
        if _NOT_LISTED[key.field] not in facts.plan.overlap:
            return f'plan.overlap does not list {_NOT_LISTED[key.field]}'
        return 'plan.overlap says it'
    if key.rule == 'plan.reduce' and facts.plan.tensor == 1:
        return 'tensor is 1: it is about sums over tensor ranks (values with strategies are summed late)'
    if key.rule == 'plan.reduce':
        return "no activation's gradient is summed over tensor ranks another way"
    if key.rule in ('plan.zero', 'plan.hsdp', 'plan.shard') and not facts.sharded:
        return _no_shards(facts)
    if key.rule == 'plan.fusion':
        return f'predicted as fastest: {facts.plan.fusion}, as without it'
    return _WORDS.get(key.rule, _SAME)
