"""What must fit together between the keys of a schedule, as far as it can be told without a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod

from simpar.document import Complaint, Key
from simpar.model import Network
from simpar.model.library.transformer import Transformer
from simpar.plan import Plan
from simpar.schedule.contents import Contents
from simpar.schedule.networks import network_fits
from simpar.schedule.optimizer_parallel import shards_fit
from simpar.schedule.overlap import overlap_fits
from simpar.schedule.pipelines import pipeline_fits
from simpar.schedule.recompute import recompute_fits
from simpar.schedule.searches import search_fits
from simpar.schedule.strategies import strategies_fit, whole_batch
from simpar.schedule.sweep import sweep_fits
from simpar.workload import Momentum, Workload

_TRANSFORMER: Key = ('workload', 'transformer')


def check(contents: Contents) -> Iterator[Complaint]:
    """Everything that does not fit, each at the key to change."""
    workload, plan = contents.workload, contents.plan
    if isinstance(workload.model, Network):
        yield from network_fits(workload, workload.model, plan)
    else:
        yield from _transformer(workload, workload.model)
    yield from _optimizer(workload)
    yield from _sequence_parallel(workload, plan)
    yield from _cuts(workload, plan)
    yield from pipeline_fits(workload, plan)
    yield from shards_fit(workload, plan)
    yield from recompute_fits(workload, plan)
    yield from overlap_fits(plan)
    yield from search_fits(workload, plan)
    yield from strategies_fit(workload, plan)
    yield from batch_fits(workload, plan, max(1, plan.data))
    yield from sweep_fits(contents.sweep)


def batch_fits(workload: Workload, plan: Plan, data: int) -> Iterator[Complaint]:
    """The batch must divide into equal slices for each data rank, unless all read all of it, micro-batch and copy."""
    cut = 1 if whole_batch(workload, plan) else data
    counts = {'data': cut, 'micro_batches': plan.micro_batches, 'copies': plan.copies}
    slices = prod(counts.values())
    if workload.batch % slices:
        shown = {name: count for name, count in counts.items() if count > 1}
        product = f' = {slices}' if len(shown) > 1 else ''
        factors = ' × '.join(f'{name} {count}' for name, count in shown.items()) + product
        what = f'{workload.batch} samples do not divide by {factors}'
        yield Complaint(('workload', 'batch'), what, _multiple(workload.batch, slices))


def divisors(number: int, most: int = 8) -> str:
    """The largest divisors of a number, as text."""
    found = [divisor for divisor in range(1, min(number, 4096) + 1) if number % divisor == 0]
    return ', '.join(str(divisor) for divisor in found[-most:])


def _multiple(number: int, of: int) -> str:
    return f'write a multiple of {of}, e.g. {max(1, round(number / of)) * of}'


def _transformer(workload: Workload, model: Transformer) -> Iterator[Complaint]:
    if model.hidden % model.heads:
        what = f'{model.hidden} does not divide by heads {model.heads}'
        yield Complaint((*_TRANSFORMER, 'hidden'), what, _multiple(model.hidden, model.heads))
    if model.heads % model.key_value_heads:
        what = f'{model.key_value_heads} does not divide heads {model.heads}'
        yield Complaint((*_TRANSFORMER, 'kv_heads'), what, f'write one of {divisors(model.heads)}')
    if workload.loss != 'cross-entropy':
        yield Complaint(('workload', 'loss'), f'a transformer has no {workload.loss}', 'write cross-entropy')
    if workload.data == 'mnist':
        yield Complaint(('workload', 'data'), 'mnist is no text for a transformer', 'write random')


def _optimizer(workload: Workload) -> Iterator[Complaint]:
    rule = workload.optimizer
    if isinstance(rule, Momentum) and rule.nesterov and not rule.momentum:
        key = ('workload', 'optimizer', 'momentum', 'nesterov')
        yield Complaint(key, 'there is no momentum to look ahead by', 'write false, or momentum above 0')


def _sequence_parallel(workload: Workload, plan: Plan) -> Iterator[Complaint]:
    key = ('plan', 'sequence_parallel')
    if not plan.sequence_parallel:
        return
    if plan.tensor == 1:
        yield Complaint(key, 'there is nothing to cut over with tensor 1', 'write false, or tensor above 1')
    elif isinstance(workload.model, Transformer) and workload.model.sequence % plan.tensor:
        what = f'sequence {workload.model.sequence} does not divide by tensor {plan.tensor}'
        multiple = _multiple(workload.model.sequence, plan.tensor).removeprefix('write ')
        yield Complaint(key, what, f'write false, or a sequence that is {multiple}')


def _cuts(workload: Workload, plan: Plan) -> Iterator[Complaint]:
    model = workload.model
    if isinstance(model, Network):
        return
    for name, heads in (('heads', model.heads), ('kv_heads', model.key_value_heads)):
        if heads % plan.tensor:
            common = gcd(model.heads, model.key_value_heads)
            what = f'{name} {heads} of the transformer do not divide by tensor {plan.tensor}'
            yield Complaint(('plan', 'tensor'), what, f'write one of {divisors(common)}')
            return
