"""What must fit together between the keys of a schedule, as far as it can be told without a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from math import prod

from simpar.errors import Problem
from simpar.lower.overlap import overlap_conflicts
from simpar.model.advice import divisors, multiple
from simpar.model.model import Asked
from simpar.plan import Plan
from simpar.schedule.contents import Contents
from simpar.schedule.optimizer_parallel import shards_fit
from simpar.schedule.pipelines import pipeline_fits
from simpar.schedule.planner import planner_fits
from simpar.schedule.recompute import recompute_fits
from simpar.schedule.searches import search_fits
from simpar.schedule.strategies import full_batch, strategies_fit
from simpar.schedule.sweep import sweep_fits
from simpar.workload import Momentum, Muon, Transformer, Workload


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
