"""Whether strategies of layers fit the rest of a schedule; each is tried when it is lowered."""

from __future__ import annotations

from collections.abc import Iterator

from simpar.errors import Problem
from simpar.lower.given import SHOWN, has_strategies, matches
from simpar.model import Sharded
from simpar.model.library.cross_entropy import LOSS_OPERATORS
from simpar.pipeline.dualpipe import TWO_HOMES
from simpar.plan import Plan
from simpar.schedule.layouts import layouts_fit
from simpar.workload import Transformer, Workload


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
