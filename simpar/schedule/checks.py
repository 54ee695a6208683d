"""What must fit together between the keys of a schedule, as far as it can be told without a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import chain
from math import prod
from typing import Final

from simpar.document import Key
from simpar.errors import Problem, ScheduleError, divisors, multiple
from simpar.lower.graph.chunks import sequence_chunks_fit
from simpar.lower.graph.record import SHOWN, has_strategies, matches
from simpar.lower.graph.stages import has_two_homes, order_of_a_half, two_homes_fit
from simpar.lower.passes.optimizer_parallel import conflicts
from simpar.lower.passes.recompute import attention_cores
from simpar.lower.roles import overlap_conflicts
from simpar.model import Conv2d, Dense, Operator, Sharded
from simpar.model.library.cross_entropy import LOSS_OPERATORS
from simpar.model.model import Asked, Model
from simpar.pipeline.order import Order
from simpar.pipeline.orders import AUTOMATIC, ORDERS, named_order
from simpar.pipeline.table import order_of_rows
from simpar.pipeline.zero_bubble import TWO_HOMES
from simpar.plans import Plan
from simpar.schedule.contents import Contents, planner_fits
from simpar.schedule.sweep import sweep_fits
from simpar.schedule.terms import value_term
from simpar.workload import Momentum, Muon, Transformer, Workload

UNSHARDED: Final = 'none'
"""What a layout has for a dim that no axis splits."""


def layouts_fit(model: Model, plan: Plan) -> Iterator[Problem]:
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


def _of_layer(layer: Operator, plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Key, what is wrong, remedy."""
    layout, out = layer.layout, layer.out_layout
    if layout and (layer.strategy or layer.out_strategy):
        yield 'layout', 'stands beside a strategy', 'write one of them'
    if out and not layout:
        yield 'out_layout', 'stands without a layout', 'write out_strategy, or layout too'
    yield from _axes('layout', chain.from_iterable(layout), plan)
    yield from _axes('out_layout', out, plan)


def _axes(key: str, dims: Iterator[str] | tuple[str, ...], plan: Plan) -> Iterator[tuple[str, str, str]]:
    """The first axis that is not there."""
    known = [name for name in plan.device_matrix if name.lower() != UNSHARDED]
    for name in (axis for dim in dims if dim.lower() != UNSHARDED for axis in dim.split('+')):
        if name not in known:
            instead = (
                f'write {", ".join(known)} or {UNSHARDED}' if known else f'write e.g. plan.device_matrix: {{{name}: 2}}'
            )
            yield key, f'{name} is no axis of plan.device_matrix', instead
            return


def strategies_fit(workload: Workload, plan: Plan) -> Iterator[Problem]:
    """Everything that does not fit, each at the key to change."""
    yield from _loss_fits(workload)
    yield from _context(workload, plan)
    yield from _whole_batches(workload, plan)
    yield from _named(workload, plan)
    yield from layouts_fit(workload.model, plan)


def _named(workload: Workload, plan: Plan) -> Iterator[Problem]:
    """Patterns of the plan's strategies and layouts that match no operator which takes one."""
    names = [node.name for node in workload.model.nodes if isinstance(node.operator, Sharded)]
    shown = ', '.join(names[:SHOWN]) + (', …' if len(names) > SHOWN else '')
    for key, given in (('strategies', plan.strategies), ('layouts', plan.layouts)):
        for pattern in (one for one in given if not any(matches(name, one) for name in names)):
            yield Problem(('plan', key, pattern), f'{pattern} names no operator of the model', f'write one of {shown}')


def _loss_fits(workload: Workload) -> Iterator[Problem]:
    """Operators of the loss, and strategies for them or for the loss as one."""
    strategies, operators = ('workload', 'loss_strategies'), ('workload', 'loss_operators')
    # Strategies of its operators would be read by nobody, silently.
    if workload.loss_operators == 'one':
        if workload.loss_strategies:
            yield Problem(strategies, 'the loss is one operator', 'write loss_operators: mindspore-2.10 beside them')
        return
    if workload.loss != 'cross-entropy':
        yield Problem(operators, f'{workload.loss} is one operator', 'write one, or loss: cross-entropy')
    if workload.loss_strategy:
        what = 'is that of a loss of one operator'
        yield Problem(('workload', 'loss_strategy'), what, 'write loss_strategies, e.g. {sum: [[1, 1]]}')
    for name in workload.loss_strategies:
        if name not in LOSS_OPERATORS:
            instead = f'write one of {", ".join(LOSS_OPERATORS)}'
            yield Problem((*strategies, name), f'{name} is no operator of the loss', instead)


def _context(workload: Workload, plan: Plan) -> Iterator[Problem]:
    """Context ranks share the sequence of a transformer; searches know no such ranks."""
    key = ('plan', 'context')
    if plan.context == 1:
        return
    if not isinstance(workload.model, Transformer):
        what = 'a network has no sequence that is known through all of its layers'
        yield Problem(key, what, 'write 1 and strategies that split its dims, or a transformer')
    elif plan.search != 'none':
        what = (
            'searches of strategies know no ranks that share a sequence: attention over these has no strategy that '
            'they could split it by'
        )
        yield Problem(key, what, 'write 1, or leave search out; simpar plan searches degrees with context')
    if workload.loss_operators != 'one':
        what = 'operators of the loss take rows of samples and tokens together, which context ranks do not share'
        yield Problem(('workload', 'loss_operators'), what, 'write one, or context 1')


def _whole_batches(workload: Workload, plan: Plan) -> Iterator[Problem]:
    """Beside what lies by degrees alone, ranks read their own samples."""
    model = workload.model
    of_experts = isinstance(model, Transformer) and model.experts is not None
    beside = {'context': plan.context > 1, 'experts': of_experts, 'order: dualpipe': plan.order == TWO_HOMES}
    for name in (name for name, there in beside.items() if there and full_batch(workload, plan)):
        what = f'not yet beside strategies of operators with {name}'
        yield Problem(('plan', 'dataset'), what, 'write data-parallel, or leave it out')


def full_batch(workload: Workload, plan: Plan) -> bool:
    """Whether every rank reads all samples, so that they need not divide over the ranks."""
    return plan.dataset == 'full-batch' and (plan.search != 'none' or has_strategies(workload, plan))


def search_fits(workload: Workload, plan: Plan) -> Iterator[Problem]:
    """Everything that does not fit, each at the key to change; strategies are tried when they are lowered."""
    if plan.search == 'none':
        return
    key, model = ('plan', 'search'), workload.model
    told = (operator.strategy or operator.layout for operator in model.operators.values())
    given = bool(plan.strategies or plan.layouts) or any(told)
    if plan.search == 'sharding-propagation' and not (given or workload.loss_strategy or workload.loss_strategies):
        what = 'sharding-propagation starts at layers that you split, and there is none'
        instead = 'give a layer a strategy, e.g. strategy: [[2, 4], [4, 1]]'
        if not model.listed:
            instead = 'give an operator one, e.g. plan.strategies: {layer0.fc1: [[2, 1, 1], [1, 4]]}'
        yield Problem(key, what, instead)


def recompute_fits(workload: Workload, plan: Plan) -> Iterator[Problem]:
    """Everything that does not fit, each at the key to change; names of operators are looked up when it is lowered."""
    if plan.recompute == 'selective' and not attention_cores(workload.model.nodes):
        what = 'selective runs attention again, and the model has none'
        yield Problem(('plan', 'recompute'), what, 'write full, or a list of names of operators')
    if plan.pipeline == 1 and plan.chunks <= 1 and not plan.rows and any(plan.recompute_stages):
        what = f'lists {max(plan.recompute_stages)}, but there is one stage, 0, without a pipeline'
        yield Problem(('plan', 'recompute_stages'), what, 'write [], or set pipeline too')


def shards_fit(workload: Workload, plan: Plan) -> Iterator[Problem]:
    """Everything that does not fit, each at the key to change."""
    yield from conflicts(plan)
    # With data 0 the degree follows from the cluster, and lowering checks it.
    ranks = plan.data * plan.context
    if plan.shard_group and ranks and ranks % min(plan.shard_group, ranks):
        what = f'{plan.shard_group} does not divide data {plan.data}'
        what += f' × context {plan.context}' if plan.context > 1 else ''
        yield Problem(('plan', 'shard_group'), what, f'write a divisor of {ranks}, or 0 for all')
    yield from _fusion(workload, plan)


def _fusion(workload: Workload, plan: Plan) -> Iterator[Problem]:
    if isinstance(plan.fusion, float) and not plan.fusion > 0:
        yield Problem(('plan', 'fusion'), 'a message of nothing', 'write a size above 0, e.g. "25 MB", or none')
    if plan.fusion_ids and plan.fusion != 'ids':
        yield Problem(('plan', 'fusion_ids'), 'ids are not asked for', 'write fusion: ids too')
    layers = workload.model.trained_layers
    if plan.fusion == 'ids' and plan.fusion_ids and len(plan.fusion_ids) != layers:
        what = f'lists {len(plan.fusion_ids)} ids, but {layers} layers have parameters'
        yield Problem(('plan', 'fusion_ids'), what, f'list {layers} ids')


MOST_ACTIONS = 2**20
"""Micro-batches × stages beyond which an order is refused unmade: it would not be read by anybody."""


def pipeline_fits(workload: Workload, plan: Plan) -> Iterator[Problem]:
    """Everything that does not fit, each at the key to change."""
    known = plan.rows or plan.order in (*ORDERS, *AUTOMATIC, TWO_HOMES)
    term = None if known else value_term(('plan', 'order'), plan.order)
    if term:
        yield Problem(('plan', 'order'), *term)
        return
    chunked = list(sequence_chunks_fit(workload, plan))
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
    if has_two_homes(plan):
        problems = list(two_homes_fit(workload, plan))
        yield from problems or _stages(workload, plan, order_of_a_half(plan))
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


def _order(plan: Plan) -> Order:
    """The order, or for one that is still to be found, another with as many stages."""
    if plan.rows:
        return order_of_rows(plan.rows)
    return named_order(
        '1f1b' if plan.order in AUTOMATIC else plan.order,
        plan.pipeline,
        plan.micro_batches,
        plan.chunks,
        plan.sequence_chunks,
        pairs=plan.pairs != 'none' and plan.order not in AUTOMATIC,
    )


def counts_fit(plan: Plan, order: Order, key: Key) -> Iterator[Problem]:
    """An order that the user wrote must be for this pipeline and these micro-batches."""
    if order.ranks != plan.pipeline:
        yield Problem(
            key, f'is for {order.ranks} pipeline ranks, not {plan.pipeline}', f'write pipeline: {order.ranks}'
        )
    if order.micro_batches != plan.micro_batches * order.sequence_chunks:
        what = f'is for {order.micro_batches} micro-batches, not {plan.micro_batches}'
        yield Problem(key, what, f'write micro_batches: {order.micro_batches}')


def _stages(workload: Workload, plan: Plan, order: Order) -> Iterator[Problem]:
    model = workload.model
    counts = model.counts
    most = max(counts.values())
    if _marked(model):
        yield from _marks(model, order.stages)
    if isinstance(plan.stages, str):
        return
    told = ' or '.join(f'{count} {what}' for what, count in counts.items() if count)
    if plan.stages and len(plan.stages) != order.stages:
        lists = f'lists {len(plan.stages)} stages, but {plan.order} has {order.stages}'
        yield Problem(('plan', 'stages'), lists, f'list {order.stages} counts of {" or ".join(counts)}')
    elif plan.stages and sum(plan.stages) not in counts.values():
        lists = f'lists {sum(plan.stages)} in all, but the model has {told}'
        sums = ' or '.join(map(str, sorted({*counts.values()} - {0})))
        yield Problem(('plan', 'stages'), lists, f'choose counts whose sum is {sums}')
    elif not plan.stages and most < order.stages:
        few = f'{order.stages} stages for {told}'
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


def _marked(model: Model) -> bool:
    return any(layer.pipeline_stage is not None for layer in model.operators.values())


def check(contents: Contents) -> Iterator[Problem]:
    """Everything that does not fit, each at the key to change."""
    workload, plan = contents.workload, contents.plan
    yield from workload.model.problems(_asked(workload, plan))
    yield from _optimizer(workload)
    yield from _in_8_bits(workload)
    yield from _forward_alone(workload)
    yield from _sequence_parallel(plan)
    yield from _experts(workload, plan)
    yield from pipeline_fits(workload, plan)
    yield from shards_fit(workload, plan)
    yield from recompute_fits(workload, plan)
    yield from overlap_conflicts(plan)
    yield from search_fits(workload, plan)
    yield from strategies_fit(workload, plan)
    yield from batch_fits(workload, plan, max(1, plan.data))
    yield from sweep_fits(contents.sweep)
    yield from planner_fits(contents.planner, {part.name: None for part in fields(Plan)})


def batch_fits(workload: Workload, plan: Plan, data: int) -> Iterator[Problem]:
    """The batch must divide into equal slices for each data rank, unless all read all of it, micro-batch and copy."""
    # With all samples on every rank, data does not divide the batch: strategies do, operator by operator.
    split = 1 if full_batch(workload, plan) else data
    counts = {'data': split, 'micro_batches': plan.micro_batches, 'copies': plan.copies}
    slices = prod(counts.values())
    if workload.batch % slices:
        shown = {name: count for name, count in counts.items() if count > 1}
        product = f' = {slices}' if len(shown) > 1 else ''
        factors = ' × '.join(f'{name} {count}' for name, count in shown.items()) + product
        what = f'{workload.batch} samples do not divide by {factors}'
        yield Problem(('workload', 'batch'), what, multiple(workload.batch, slices))


def _asked(workload: Workload, plan: Plan) -> Asked:
    return Asked(
        loss=workload.loss,
        data=workload.data,
        batch=workload.batch,
        slices=plan.micro_batches * plan.copies,
        tensor=plan.tensor,
        sequence_parallel=plan.sequence_parallel,
        context=plan.context,
        chunks=plan.context * (2 if plan.context > 1 and plan.context_split == 'balanced' else 1),
        by_heads=plan.context > 1 and plan.context_kind == 'all_to_all',
        expert=plan.expert,
    )


def _optimizer(workload: Workload) -> Iterator[Problem]:
    rule = workload.optimizer
    if isinstance(rule, Momentum | Muon) and rule.nesterov and not rule.momentum:
        key = ('workload', 'optimizer', type(rule).__name__.lower(), 'nesterov')
        yield Problem(key, 'there is no momentum to look ahead by', 'write false, or momentum above 0')


def _in_8_bits(workload: Workload) -> Iterator[Problem]:
    if workload.fp8 != 'none' and workload.precision == 'fp64':
        yield Problem(
            ('workload', 'fp8'), 'products in 8 bits beside fp64 are of no use', 'write none, or precision: bf16'
        )


def _forward_alone(workload: Workload) -> Iterator[Problem]:
    if workload.phase == 'forward' and getattr(workload.model, 'dropout', None):
        what = 'nothing is dropped where nothing is trained (phase forward)'
        yield Problem(('workload', workload.model.key, 'dropout'), what, 'write dropout: 0')


def _experts(workload: Workload, plan: Plan) -> Iterator[Problem]:
    """Ranks that share experts are data ranks; a strategy would have to say how tokens get to them."""
    if plan.data and plan.data % plan.expert:
        what = f'{plan.expert} does not divide data {plan.data}'
        yield Problem(('plan', 'expert'), what, f'write one of {divisors(plan.data)}')
    model = workload.model
    if isinstance(model, Transformer) and model.experts is not None and plan.search != 'none':
        what = 'searches of strategies know no experts: where a token goes is no layout that they could split'
        instead = 'leave it out, and write data, tensor, expert, or strategies; simpar plan searches these degrees'
        yield Problem(('plan', 'search'), what, instead)


def _sequence_parallel(plan: Plan) -> Iterator[Problem]:
    key = ('plan', 'sequence_parallel')
    if not plan.sequence_parallel:
        return
    if plan.tensor == 1:
        yield Problem(key, 'there is nothing to split over with tensor 1', 'write false, or tensor above 1')
