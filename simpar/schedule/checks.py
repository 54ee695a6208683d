"""Checks of a schedule as a whole, by the terms of its plan."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import chain
from math import prod
from pathlib import Path
from typing import Final

from simpar import document, files, keys, plans
from simpar.document.tree import Fault
from simpar.errors import Problem, ScheduleError, divisors, multiple
from simpar.lower import roles, tape
from simpar.lower.graph import chunks, record, stages
from simpar.lower.passes import optimizer_parallel, recompute
from simpar.model import Conv2d, Dense, Operator, Sharded
from simpar.model.library.cross_entropy import LOSS_OPERATORS
from simpar.model.model import Asked, Model
from simpar.pipeline import checks, orders, zero_bubble
from simpar.pipeline.order import Order
from simpar.schedule.contents import Contents, planner_fits, sweep_fits
from simpar.workload import Workload

# Terms: what to say of an unknown key or value that is a word of the field, or one of ours in the wrong place.
#
# Words stand in the table of keys and in ``words.csv``: what the field calls a value, a key with a value or a kind of
# layer, and what is not modelled. They are those of Megatron-LM, torch, DeepSpeed, MindSpore, MaxText and Hugging
# Face, in lower case with ``_``.

_TABLE: Final = files.read_csv(Path(__file__).with_name('words.csv'))


def _names(kind: str) -> dict[str, str]:
    """The words of the field of a kind of the table, by what they mean."""
    return {row['name']: row['words'] for row in _TABLE if row['kind'] == kind}


KEYS: Final[Mapping[str, str]] = {**{key: row.words for key, row in keys.ROWS.items() if row.words}, **_names('key')}
"""What to write, and the words that mean it."""
ABSENT: Final[Mapping[str, str]] = _names('absent')
"""What is not modelled, and the words that mean it."""
LAYERS: Final[Mapping[str, str]] = _names('layer')
"""Kinds of layers of a network and their keys, and other words for them."""
VALUES: Final[Mapping[str, str]] = _names('value')
"""Key and value to write, and other spellings of that value."""
ABSENT_LAYERS: Final = _names('absent layer')['']
ABSENT_ORDERS: Final = _names('absent order')['']
FAMILIES: Final[Mapping[str, str]] = {row['words']: row['name'] for row in _TABLE if row['kind'] == 'absent part'}
"""Parts of words that are enough to tell what they mean."""
AROUND: Final = re.compile(r'^(use|enable|num|n|base|ici|dcn|target)_|_(size|degree|num|count|world_size|factor|dim)$')
"""What words have around them without meaning something else."""


NOT_MODELLED: Final = 'docs/proofs/not_modelled.md'


def _by_word(table: Mapping[str, str]) -> dict[str, str]:
    return {word: name for name, words in table.items() for word in words.split()}


_WRITE: Final = _by_word(KEYS)
_IS_ABSENT: Final = _by_word(ABSENT)
_LAYER_WORDS: Final = _by_word(LAYERS)
_HOMES: Final = {
    key.rpartition('.')[2]: key
    for key in keys.ROWS
    if re.fullmatch(r'(workload|workload\.transformer|plan)\.[a-z_0-9]+', key) and key != 'workload.transformer'
}
"""Our own keys, for those in the wrong place."""
_CHOSEN: Final = ('attention', 'precision', 'gradients', 'order', 'optimizer', 'zero', 'recompute', 'search')
_OTHER_VALUES: Final = {
    (name.split()[0], word.replace('_', '')): name.split()[1]
    for name, words in VALUES.items()
    for word in words.split()
}


def plain(word: str) -> str:
    """A word in lower case, its parts joined by ``_``: ``numLayers``, ``--num-layers`` are ``num_layers``."""
    parted = re.sub(r'(?<=[a-z0-9])(?=[A-Z][a-z])', '_', word[:60])
    return re.sub(r'[^a-z0-9]+', '_', parted.lower()).strip('_')


def key_term(key: document.Key) -> Fault | None:
    """What to say of an unknown key that is a word of the field; None of others."""
    *above, word = map(str, key)
    if above[:2] == ['workload', 'network'] and len(above) > 2:
        return _layer_term(plain(word))
    stem = _stem(plain(word))
    if absent := _absent_of(stem):
        return absent
    if stem not in _WRITE:
        home = _HOMES.get(word, '')
        return Fault('unknown key', f'write {home}') if home else None
    place, colon, value = _WRITE[stem].partition(': ')
    owner, _, name = place.rpartition('.')
    if owner.startswith('workload.optimizer') and above[:2] == ['workload', 'optimizer']:
        owner = '.'.join(above)
    # In its own place a key is written without what is above it.
    short = name if owner == '.'.join(above) else place
    return Fault('unknown key', f'write {short}{colon}{value}')


def _stem(word: str) -> str:
    """The word, or what is left of it without what many words have around them, if that is in a table."""
    shorter = AROUND.sub('', word, count=1)
    # Twice, for words may have something before them and behind.
    tries = (word, shorter, AROUND.sub('', shorter))
    return next((one for one in tries if one in _WRITE or one in _IS_ABSENT), word)


def _absent_of(word: str) -> Fault | None:
    """Of a word for what is not modelled."""
    family = next((what for pattern, what in FAMILIES.items() if re.search(pattern, word)), '')
    text = _IS_ABSENT.get(word, '' if word in _WRITE else family)
    return _absent(text) if text else None


def _layer_term(word: str) -> Fault | None:
    """Of a kind or key of a network's layers."""
    if word in ABSENT_LAYERS.split():
        return _absent(f'{word} as a layer of a network')
    return Fault('unknown key', f'write {_LAYER_WORDS[word]}') if word in _LAYER_WORDS else None


def value_term(key: document.Key, value: str) -> Fault | None:
    """What to say of an unknown value that is a word of the field; None of others."""
    name, word = str(key[-1]), plain(value)
    # Classes of torch are written together: ScheduleInterleaved1F1B.
    if key[:2] == ('cluster', 'links'):
        return Fault(f'a factor of the profile is wanted (got "{value[:38]}")', 'write e.g. 0.5 for half its bandwidth')
    advice = _OTHER_VALUES.get((name, word.replace('_', '')))
    if advice:
        return Fault(f'unknown value (got "{value[:38]}")', f'write {advice}')
    if name == 'order' and word in ABSENT_ORDERS.split():
        return _absent(f'the order {value[:38]}')
    if name == 'precision' and _WRITE.get(word) == 'workload.fp8':
        return Fault(f'unknown value (got "{value[:38]}")', 'write bf16, and fp8: hybrid beside it')
    if name == 'attention' and _WRITE.get(word, '').startswith('plan.context'):
        return Fault(f'unknown value (got "{value[:38]}")', f'write flash, and {_WRITE[word]}')
    return _absent_of(word) if name in _CHOSEN else None


def _absent(what: str) -> Fault:
    return Fault(f'not modelled: {what}', f'see {NOT_MODELLED}')


# What must fit together between the keys of a schedule, as far as it can be told without a cluster.

UNSHARDED: Final = 'none'
"""What a layout has for a dim that no axis splits."""


def layouts_fit(model: Model, plan: plans.Plan) -> Iterator[Problem]:
    """Everything that does not fit, each at the key to change."""
    # ``none`` is a word of layouts: an axis of this name could never be named.
    for name in (name for name in plan.device_matrix if name.lower() == UNSHARDED):
        yield Problem(('plan', 'device_matrix', name), 'is what layouts have for no axis', 'choose another name')
    for place, layer in enumerate(model.operators.values()):
        for key, what, instead in _of_layer(layer, plan):
            yield Problem(model.file_key(place, key), what, instead)
    for pattern, layouts in plan.layouts.items():
        for _, what, instead in _axes('layouts', chain.from_iterable(layouts), plan):
            yield Problem(('plan', 'layouts', pattern), what, instead)


def _of_layer(layer: Operator, plan: plans.Plan) -> Iterator[tuple[str, str, str]]:
    """Key, what is wrong, remedy."""
    layout, out = layer.layout, layer.out_layout
    if layout and (layer.strategy or layer.out_strategy):
        yield 'layout', 'stands beside a strategy', 'write one of them'
    if out and not layout:
        yield 'out_layout', 'stands without a layout', 'write out_strategy, or layout too'
    yield from _axes('layout', chain.from_iterable(layout), plan)
    yield from _axes('out_layout', out, plan)


def _axes(key: str, dims: Iterator[str] | tuple[str, ...], plan: plans.Plan) -> Iterator[tuple[str, str, str]]:
    """The first axis that is not there."""
    axes = [name for name in plan.device_matrix if name.lower() != UNSHARDED]
    for name in (axis for dim in dims if dim.lower() != UNSHARDED for axis in dim.split('+')):
        if name not in axes:
            instead = (
                f'write {", ".join(axes)} or {UNSHARDED}' if axes else f'write e.g. plan.device_matrix: {{{name}: 2}}'
            )
            yield key, f'{name} is no axis of plan.device_matrix', instead
            return


def strategies_fit(workload: Workload, plan: plans.Plan) -> Iterator[Problem]:
    """Everything that does not fit, each at the key to change."""
    for name in workload.loss_strategies if workload.loss_operators != 'one' else ():
        if name not in LOSS_OPERATORS:
            what, instead = f'{name} is no operator of the loss', f'write one of {", ".join(LOSS_OPERATORS)}'
            yield Problem(('workload', 'loss_strategies', name), what, instead)
    yield from _named(workload, plan)
    yield from layouts_fit(workload.model, plan)
    axes = plans.NEAREST_FIRST.split('-')
    if sorted(plan.placement.split('-')) != sorted(axes):
        what = f'is {plan.placement!r}, where {", ".join(axes[:-1])} and {axes[-1]} stand once each, the nearest first'
        yield Problem(('plan', 'placement'), what, f'write e.g. {plans.NEAREST_FIRST}')


def _named(workload: Workload, plan: plans.Plan) -> Iterator[Problem]:
    """Patterns of the plan's strategies and layouts that match no operator which takes one."""
    names = [node.name for node in workload.model.nodes if isinstance(node.operator, Sharded)]
    choices = ', '.join(names[: tape.SHOWN]) + (', …' if len(names) > tape.SHOWN else '')
    for key, patterns in (('strategies', plan.strategies), ('layouts', plan.layouts)):
        for pattern in (one for one in patterns if not any(record.matches(name, one) for name in names)):
            yield Problem(
                ('plan', key, pattern), f'{pattern} names no operator of the model', f'write one of {choices}'
            )


def full_batch(workload: Workload, plan: plans.Plan) -> bool:
    """Whether every rank reads all samples, so that they need not divide over the ranks."""
    return plan.dataset == 'full-batch' and (plan.search != 'none' or record.has_strategies(workload, plan))


def shards_fit(workload: Workload, plan: plans.Plan) -> Iterator[Problem]:
    """Everything that does not fit, each at the key to change."""
    yield from optimizer_parallel.conflicts(workload, plan)
    # With data 0 the degree follows from the cluster, and lowering checks it.
    ranks = plan.data * plan.context
    if plan.shard_group and ranks and ranks % min(plan.shard_group, ranks):
        what = f'{plan.shard_group} does not divide data {plan.data}'
        what += f' × context {plan.context}' if plan.context > 1 else ''
        yield Problem(('plan', 'shard_group'), what, f'write a divisor of {ranks}, or 0 for all')
    group = min(plan.shard_group or ranks, ranks)
    if plan.second_shards and ranks > 1 and group % plan.second_shards:
        what = f'{plan.second_shards} does not divide the {group} ranks of a shard group'
        yield Problem(('plan', 'second_shards'), what, f'write a divisor of {group}, or 0 for none')
    yield from _fusion(workload, plan)


def _fusion(workload: Workload, plan: plans.Plan) -> Iterator[Problem]:
    layers = workload.model.trained_layers
    if plan.fusion == 'ids' and plan.fusion_ids and len(plan.fusion_ids) != layers:
        what = f'lists {len(plan.fusion_ids)} ids, but {layers} layers have parameters'
        yield Problem(('plan', 'fusion_ids'), what, f'list {layers} ids')


MOST_ACTIONS = 2**20
"""Micro-batches × stages beyond which an order is refused unmade: it would not be read by anybody."""


def pipeline_fits(workload: Workload, plan: plans.Plan) -> Iterator[Problem]:
    """Everything that does not fit, each at the key to change."""
    is_known = plan.rows or plan.order in (*orders.ORDERS, *orders.AUTOMATIC, zero_bubble.TWO_HOMES)
    term = None if is_known else value_term(('plan', 'order'), plan.order)
    if term:
        yield Problem(('plan', 'order'), *term)
        return
    chunked = list(chunks.sequence_chunks_fit(workload, plan))
    if chunked:
        yield from chunked
        return
    if plan.pipeline == 1 and plan.chunks <= 1 and not plan.rows:
        if len(plan.stages) > 1:
            yield Problem(('plan', 'stages'), 'stages without a pipeline', 'set pipeline too')
        return
    if plan.order.endswith('.csv') and not plan.rows:
        return
    # Before the order is made: making it is what takes the time.
    if plan.micro_batches * plan.pipeline * max(plan.chunks, 1) * plan.sequence_chunks > MOST_ACTIONS:
        what = f'{plan.micro_batches} micro-batches on {plan.pipeline} ranks are too many to simulate'
        yield Problem(('plan', 'micro_batches'), what, f'keep micro-batches × stages below {MOST_ACTIONS}')
        return
    if stages.has_two_homes(plan):
        problems = list(stages.two_homes_fit(workload, plan))
        yield from problems or _stages(workload, plan, stages.order_of_a_half(plan))
        return
    key = ('plan', 'rows') if plan.rows else ('plan', 'order')
    try:
        order = _order(plan)
    except ScheduleError as wrong:
        for problem in wrong.problems:
            name = problem.place.removeprefix('pipeline order ')
            yield Problem(key, f'{name}: {problem.what}', problem.instead)
        return
    yield from counts_fit(plan, order, key)
    yield from _stages(workload, plan, order)


def _order(plan: plans.Plan) -> Order:
    """The order, or for one that is still to be found, another with as many stages."""
    if plan.rows:
        return checks.order_of_rows(plan.rows)
    return orders.named_order(
        '1f1b' if plan.order in orders.AUTOMATIC else plan.order,
        plan.pipeline,
        plan.micro_batches,
        plan.chunks,
        plan.sequence_chunks,
        pairs=plan.pairs != 'none' and plan.order not in orders.AUTOMATIC,
    )


def counts_fit(plan: plans.Plan, order: Order, key: document.Key) -> Iterator[Problem]:
    """An order that the user wrote must be for this pipeline and these micro-batches."""
    if order.ranks != plan.pipeline:
        yield Problem(
            key, f'is for {order.ranks} pipeline ranks, not {plan.pipeline}', f'write pipeline: {order.ranks}'
        )
    if order.micro_batches != plan.micro_batches * order.sequence_chunks:
        what = f'is for {order.micro_batches} micro-batches, not {plan.micro_batches}'
        yield Problem(key, what, f'write micro_batches: {order.micro_batches}')


def _stages(workload: Workload, plan: plans.Plan, order: Order) -> Iterator[Problem]:
    model = workload.model
    counts = model.counts
    most = max(counts.values())
    if any(layer.pipeline_stage is not None for layer in model.operators.values()):
        yield from _marks(model, order.stages)
    if isinstance(plan.stages, str):
        return
    text = ' or '.join(f'{count} {what}' for what, count in counts.items() if count)
    if plan.stages and len(plan.stages) != order.stages:
        lists = f'lists {len(plan.stages)} stages, but {plan.order} has {order.stages}'
        yield Problem(('plan', 'stages'), lists, f'list {order.stages} counts of {" or ".join(counts)}')
    elif plan.stages and sum(plan.stages) not in counts.values():
        lists = f'lists {sum(plan.stages)} in all, but the model has {text}'
        sums = ' or '.join(map(str, sorted({*counts.values()} - {0})))
        yield Problem(('plan', 'stages'), lists, f'choose counts whose sum is {sums}')
    elif not plan.stages and most < order.stages:
        few = f'{order.stages} stages for {text}'
        yield Problem(('plan', 'pipeline'), few, f'write a pipeline of at most {max(most, 1)} stages')
    if 0 in plan.stages and not model.empty_stages:
        yield Problem(('plan', 'stages'), 'a stage of a network holds no layer', f'give each at least one of {most}')


def _marks(model: Model, stages: int) -> Iterator[Problem]:
    """Marks must rise to the last stage, one by one; what comes before the first mark is stage 0."""
    stage, held = 0, False
    for place, layer in enumerate(model.operators.values()):
        mark = stage if layer.pipeline_stage is None else layer.pipeline_stage
        # A stage without a product would have nothing to compute, so the next one may begin only behind a product.
        if not stage <= mark <= stage + held or mark >= stages:
            what = f'{mark} does not follow {stage} in a pipeline of {stages} stages'
            yield Problem(
                model.file_key(place, 'pipeline_stage'), what, f'mark stages 0 to {stages - 1} in order, none left out'
            )
            return
        stage, held = mark, held or isinstance(layer, Dense | Conv2d)
    if stage != stages - 1:
        what = f'marks end with stage {stage} of {stages}'
        yield Problem(('workload', model.key), what, f'mark a layer with pipeline_stage: {stages - 1}')


def check(contents: Contents) -> Iterator[Problem]:
    """Everything that does not fit, each at the key to change."""
    workload, plan = contents.workload, contents.plan
    yield from workload.model.problems(_job_of(workload, plan))
    yield from keys.conflicts_of(
        'schedule', workload=workload, plan=plan, model=workload.model, **_facts(workload, plan)
    )
    yield from _experts(plan)
    yield from _context(plan)
    yield from pipeline_fits(workload, plan)
    yield from shards_fit(workload, plan)
    yield from roles.plan_conflicts(plan)
    yield from strategies_fit(workload, plan)
    yield from batch_fits(workload, plan, max(1, plan.data))
    yield from sweep_fits(contents.sweep)
    yield from planner_fits(contents.planner, {part.name: None for part in fields(plans.Plan)})


def _facts(workload: Workload, plan: plans.Plan) -> dict[str, object]:
    """What rows of conflicts speak of beside values of keys."""
    model = workload.model
    layers = (operator.strategy or operator.layout for operator in model.operators.values())
    strategies = plan.strategies or plan.layouts or workload.loss_strategy or workload.loss_strategies
    return {
        'alone': plan.pipeline == 1 and plan.chunks <= 1 and not plan.rows,
        'attends': plan.recompute != 'selective' or recompute.attention_cores(model.nodes),
        'full_batch': full_batch(workload, plan),
        'last_stage': max(plan.recompute_stages, default=0),
        'optimizer': type(workload.optimizer).__name__.lower(),
        'starts': plan.search != 'sharding-propagation' or bool(strategies) or any(layers),
    }


def batch_fits(workload: Workload, plan: plans.Plan, data: int) -> Iterator[Problem]:
    """The batch must divide into equal slices for each data rank, unless all read all of it, micro-batch and copy."""
    # With all samples on every rank, data does not divide the batch: strategies do, operator by operator.
    split = 1 if full_batch(workload, plan) else data
    counts = {'data': split, 'micro_batches': plan.micro_batches, 'copies': plan.copies}
    slices = prod(counts.values())
    if workload.batch % slices:
        parts = {name: count for name, count in counts.items() if count > 1}
        product = f' = {slices}' if len(parts) > 1 else ''
        factors = ' × '.join(f'{name} {count}' for name, count in parts.items()) + product
        what = f'{workload.batch} samples do not divide by {factors}'
        yield Problem(('workload', 'batch'), what, multiple(workload.batch, slices))


def _job_of(workload: Workload, plan: plans.Plan) -> Asked:
    return Asked(
        loss=workload.loss,
        data=workload.data,
        batch=workload.batch,
        slices=plan.micro_batches * plan.copies,
        tensor=plan.tensor,
        sequence_parallel=plan.sequence_parallel,
        context=plan.context,
        chunks=plan.context * (2 if plan.context > 1 and plan.context_split == 'balanced' else 1),
        by_heads=plan.context if plan.context_kind == 'all_to_all' else min(plan.context, plan.context_by_heads),
        expert=plan.expert,
    )


def _context(plan: plans.Plan) -> Iterator[Problem]:
    """Neighbours that exchange heads leave a ring of equal parts."""
    ranks, inner = plan.context, plan.context_by_heads
    if ranks > 1 and plan.context_kind != 'all_to_all' and (ranks % inner or inner == ranks):
        what = f'{inner} of {ranks} context ranks exchange heads, which leaves no ring of equal parts'
        fits = ', '.join(str(one) for one in range(1, ranks) if ranks % one == 0)
        yield Problem(('plan', 'context_by_heads'), what, f'write one of {fits}, or 1 and context_kind: all_to_all')


def _experts(plan: plans.Plan) -> Iterator[Problem]:
    """Ranks that share experts; a strategy would have to say how tokens get to them."""
    kind, within = plan.expert_ranks, {'context': plan.context, 'tensor': plan.context * plan.tensor}
    ranks = plan.data * within.get(kind, 1)
    if ranks % plan.expert:
        what = f'{plan.expert} does not divide {"data" if kind == "data" else f"the {kind} and data ranks,"} {ranks}'
        yield Problem(('plan', 'expert'), what, f'write one of {divisors(ranks, plan.expert)}')
