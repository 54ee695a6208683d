"""Random training plans over everything that a plan can choose: optimizer, cuts, fusion, recomputation, pipeline."""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations, product
from typing import NamedTuple

from drawn_orders import DRAWN
from pipeline_cases import any_case, named_case
from plain_cases import random_case

from simpar import Plan, Program
from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.lower.passes.optimizer_parallel import choice_of
from simpar.model import Flatten, Layer, Network, Relu
from simpar.pipeline.order import Order
from simpar.workload import Adam, AdamW, Momentum, Sgd, Transformer, Workload

RANKS, MOST_OPS = 8, 120
SLOTS = 10
"""Bound on the slots of all ranks, over that on the ops of a pipeline."""
OPTIMIZERS = (
    Sgd(learning_rate=0.1),
    Sgd(learning_rate=0.1, master_weights=True),
    Momentum(learning_rate=0.1),
    Momentum(learning_rate=0.1, momentum=0.8, nesterov=True, weight_decay=0.1, master_weights=True),
    Adam(learning_rate=0.01),
    Adam(learning_rate=0.01, master_weights=True),
    AdamW(learning_rate=0.01, weight_decay=0.3),
    AdamW(learning_rate=0.01, master_weights=True),
)
STATE, GRADIENTS, WEIGHTS = 'state', 'gradients', 'weights'
CUTS = (
    {},
    {'zero': 1},
    {'zero': 2},
    {'zero': 3},
    {'hsdp': 'level1', 'shard_threshold': 0.0},
    {'hsdp': 'level2', 'shard_threshold': 0.0},
    {'hsdp': 'level3', 'shard_threshold': 200.0},
    {'shard': (STATE,), 'gather': 'after-update'},
    {'shard': (STATE, WEIGHTS), 'gather': 'on-use-twice'},
    {'shard': (STATE, GRADIENTS, WEIGHTS), 'gather': 'on-use'},
)
FUSIONS = ('layer', 'none', 'all', 'auto', 'ids', 300.0, 1000.0, (2,), (1, 4))
KEPT = {1: 0.08, 2: 0.5, 3: 0.7}
"""Share of the cases with so many data ranks that are kept."""
PATTERNS = (('layer*.gelu',), ('layer*.norm?', 'norm'), ('*.attention*', '*.qkv'), ('*',), ('*residual*', '*proj'))


class Case(NamedTuple):
    """A workload, its plan, the number of ranks, and the order of a pipeline that no name has."""

    workload: Workload
    plan: Plan
    world: int
    order: Order | None

    @property
    def data(self) -> int:
        """Number of data ranks."""
        return self.world // self.plan.tensor // self.plan.pipeline


def training_case(seed: int, ranks: int = RANKS, most: int = MOST_OPS) -> tuple[Case, Program]:
    """The case of a seed and its program; ``most`` bounds the ops of a pipeline, so that hundreds take seconds."""
    draw = random.Random(seed)
    while True:
        case = _with_choices(draw, _skeleton(draw, ranks, most))
        try:
            program = lower(*case)
        except Infeasible:
            continue
        if sum(len(program.role(rank)) for rank in range(case.world)) <= SLOTS * most:
            return case, program


def _skeleton(draw: random.Random, ranks: int, most: int) -> Case:
    """Model, degrees, copies and order; mostly with several data ranks."""
    while True:
        seed, kind = draw.randrange(10**6), draw.random()
        if kind < 0.25:
            case = _accumulating(draw, Case(*random_case(seed), None))
        elif kind < 0.8:
            name = draw.choice([draw.choice(['gpipe', '1f1b', 'mindspore-2.10/1f1b']), *draw.sample(list(DRAWN), 2)])
            case = Case(*named_case(seed, name, ranks, most), None)
        else:
            case = Case(*any_case(seed, ranks, most))
        if case.world <= ranks and draw.random() < KEPT.get(case.data, 1.0):
            return case


def _accumulating(draw: random.Random, case: Case) -> Case:
    """The case with some micro-batches."""
    plan = replace(case.plan, micro_batches=draw.choice([1, 1, 2, 3]))
    batch = case.data * plan.copies * plan.micro_batches * draw.choice([1, 2])
    return case._replace(workload=replace(case.workload, batch=batch), plan=plan)


def _with_choices(draw: random.Random, case: Case) -> Case:
    workload, plan = case.workload, case.plan
    workload = replace(
        workload,
        model=_model(draw, workload.model),
        optimizer=draw.choice(OPTIMIZERS),
        clip_norm=draw.choice([0.0, 0.05, 1e3]),
        loss_scale=draw.choice([1.0, 3.0, 1024.0]),
    )
    groups = [group for group in (2, 3) if case.data % group == 0 and case.data > group]
    plan = replace(
        plan,
        **draw.choice(CUTS),
        shard_group=draw.choice([0, *groups, *groups]),
        unsharded=draw.choice([(), (), ('*.bias',)]),
        **_fusion(draw, workload.model),
        prefetch=draw.choice([0, 1, 2, 100]),
        accumulate=draw.choice(['', 'full', 'sharded']),
        reduce_gradients=draw.choice(['overlapped', 'end']),
        **_recompute(draw, workload.model, case.order.stages if case.order else plan.pipeline),
    )
    # Without a draw, so that all other choices stay as they were.
    halves = case.data > 1 and (plan.shard_group or case.data) % 2 == 0
    if halves and plan.prefetch in (1, 2) and choice_of(plan).gather == 'on-use-twice':
        plan = replace(plan, second_shards=2)
    return Case(workload, plan, case.world, case.order)


def _fusion(draw: random.Random, model: Network | Transformer) -> dict[str, object]:
    fusion = draw.choice(FUSIONS)
    if fusion != 'ids' or isinstance(model, Network):
        return {'fusion': fusion}
    layers = model.layers + 3 + (not model.tied)
    return {'fusion': fusion, 'fusion_ids': tuple(draw.choice([0, 1, 2]) for _ in range(layers))}


def _model(draw: random.Random, model: Network | Transformer) -> Network | Transformer:
    if isinstance(model, Transformer):
        return replace(model, dropout=draw.choice([0.0, 0.3]), attention=draw.choice(['flash', 'unfused']))
    marked = draw.random() < 0.5
    layers = [_layer(draw, layer, marked=marked) for layer in model.layers]
    return replace(model, layers=tuple(layers))


def _layer(draw: random.Random, layer: Layer, *, marked: bool) -> Layer:
    if isinstance(layer, Flatten):
        return layer
    recompute = marked and draw.random() < 0.7
    if isinstance(layer, Relu):
        return replace(layer, recompute=recompute)
    return replace(layer, recompute=recompute, comm_fusion=draw.choice([None, 0, 1, 2]))


def _recompute(draw: random.Random, model: Network | Transformer, stages: int) -> dict[str, object]:
    some = tuple(stage for stage in range(stages) if draw.random() < 0.6) if draw.random() < 0.3 else ()
    if isinstance(model, Network):
        has_relu = any(isinstance(layer, Relu) for layer in model.layers)
        how = draw.choice(['none', ('dense*',), ('relu*',) if has_relu else ('*',)])
    else:
        how = draw.choice(['none', 'full', 'selective', draw.choice(PATTERNS)])
    return {'recompute': how, 'recompute_stages': some, 'recompute_communication': draw.random() < 0.6}


# What cases cover


def features(case: Case) -> dict[str, str]:
    """What a case has of each axis."""
    workload, plan, model = case.workload, case.plan, case.workload.model
    gpt = isinstance(model, Transformer)
    marked = not gpt and any(getattr(layer, 'recompute', False) for layer in model.layers)
    choice, optimizer = choice_of(plan), workload.optimizer
    cut = '+'.join(part for part in (STATE, GRADIENTS, WEIGHTS) if part in choice.parts)
    return {
        'model': 'network' if not gpt else 'tied gpt' if model.tied else 'gpt',
        'dropout': 'yes' if gpt and model.dropout else 'no',
        'optimizer': type(optimizer).__name__.lower(),
        'master weights': _yes(optimizer.master_weights),
        'cut': f'{cut} {choice.gather}' if cut else 'nothing',
        'group': 'all' if plan.shard_group in (0, case.data) else 'some',
        'fusion': plan.fusion
        if isinstance(plan.fusion, str)
        else 'size'
        if isinstance(plan.fusion, float)
        else 'index',
        'prefetch': str(plan.prefetch),
        'micro-batches': 'several' if plan.micro_batches > 1 else 'one',
        'accumulate': 'sharded' if choice.sharded else 'full',
        'reduce gradients': plan.reduce_gradients,
        'recompute': plan.recompute if plan.recompute in ('full', 'selective') else _named(plan, marked),
        'recompute communication': _yes(plan.recompute_communication),
        'clip': 'off' if not workload.clip_norm else 'bites' if workload.clip_norm < 1 else 'bites not',
        'loss scale': _yes(workload.loss_scale != 1),
        'pipeline': _pipeline(case),
        'copies': str(min(plan.copies, 3)),
        'tensor': str(min(plan.tensor, 3)),
        'sequence parallel': _yes(plan.sequence_parallel and gpt and plan.tensor > 1),
        'reduce': plan.reduce,
        'data': str(min(case.data, 4)),
        'streams': plan.streams,
        'exchange': plan.exchange,
        'receive': plan.receive,
    }


def _yes(truth: bool) -> str:
    return 'yes' if truth else 'no'


def _named(plan: Plan, marked: bool) -> str:
    return 'names' if plan.recompute != 'none' or marked else 'none'


def _pipeline(case: Case) -> str:
    """None; whole or split backwards, or several chunks; or an order that nobody would write."""
    if case.order is not None:
        return 'any order'
    if case.plan.pipeline == 1 and case.plan.chunks <= 1:
        return 'none'
    name = case.plan.order
    if 'zb' in name or 'zero' in name or 'dualpipe' in name:
        return 'split backward'
    return 'chunks' if case.plan.chunks > 1 or 'interleaved' in name or 'looped' in name else 'whole backward'


class Coverage:
    """Which values of axes occur in some cases, and which pairs of values."""

    def __init__(self, cases: Iterable[Case]) -> None:
        found = [features(case) for case in cases]
        self.values = {axis: Counter(case[axis] for case in found) for axis in found[0]}
        self.pairs = Counter(pair for case in found for pair in combinations(case.items(), 2))

    def missing(self) -> list[tuple[tuple[str, str], ...]]:
        """Pairs of values that do not occur together."""
        every = [
            pair
            for (one, ours), (other, theirs) in combinations(self.values.items(), 2)
            for pair in product(((one, value) for value in ours), ((other, value) for value in theirs))
        ]
        return [pair for pair in every if not self.pairs[pair]]

    def __str__(self) -> str:
        lines = [
            f'{axis}: {", ".join(f"{value} {count}" for value, count in counts.most_common())}'
            for axis, counts in self.values.items()
        ]
        return '\n'.join([*lines, f'{len(self.pairs)} pairs occur, {len(self.missing())} do not'])
