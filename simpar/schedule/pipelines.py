"""Whether the keys of a pipeline fit together: its order, its stages, its micro-batches."""

from __future__ import annotations

from collections.abc import Iterator

from simpar.document import Key
from simpar.errors import Problem, ScheduleError
from simpar.lower.sequence_chunks import sequence_chunks_fit
from simpar.lower.two_homes import has_two_homes, order_of_a_half, two_homes_fit
from simpar.model import Conv2d, Dense
from simpar.model.model import Model
from simpar.pipeline.dualpipe import TWO_HOMES
from simpar.pipeline.order import Order
from simpar.pipeline.orders import AUTOMATIC, ORDERS, named_order
from simpar.pipeline.rows import order_of_rows
from simpar.plan import Plan
from simpar.schedule.terms import value_term
from simpar.workload import Workload

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
