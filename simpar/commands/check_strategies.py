"""Strategies of a program, operator by operator: where each came from, slices, and the collectives that follow from it.

All of it is read off the program, so that it is what the machines do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from simpar.case import Case
from simpar.commands.listing import Listing
from simpar.lower import lower
from simpar.lower.cross_entropy import KINDS
from simpar.lower.given import has_strategies
from simpar.model import OPERATORS, Dense, Flatten, Weighted
from simpar.model.library.cross_entropy import CROSS_ENTROPY
from simpar.model.operators import OP_CLASSES
from simpar.model.operators.shape import FLATTEN
from simpar.program import OpClass, Program
from simpar.units import format_size, format_time
from simpar.workload import Workload

BY_BATCH: Final = frozenset({'mse', 'mae', 'cross_entropy'}).union(
    next(iter(kind.primitives)) for kind in OPERATORS if issubclass(kind, Weighted)
)
"""Sharded by batch where they have no strategy, as operators of the loss are; others lie as what they read does."""
OF_LOSS: Final = frozenset(one.node for one in CROSS_ENTROPY)
PRIMITIVES: Final = {
    **{name: primitive.name for name, primitive in OP_CLASSES.items()},
    'flatten': FLATTEN.name,
    'expand_dims': 'ExpandDims',
    'squeeze': 'Squeeze',
    'mse': 'MSELoss',
    'mae': 'MAELoss',
    'cross_entropy': 'SoftmaxCrossEntropyWithLogits',
    **{kind.operator: primitive for primitive, kind in KINDS.items() if kind.operator not in ('residual', 'reshape')},
    'cross_entropy_mean': 'Div',
}
"""MindSpore's names of a network's operators."""
SHOWN_PROPOSALS: Final = 6


def strategies_to_dict(case: Case) -> dict[str, Any] | None:
    """Operators and their strategies, of a network that has any; None for others."""
    if not has_strategies(case.workload, case.plan):
        return None
    listing = Listing(_without_chunks(case), flattens(case.workload))
    # A layout by axes counts as given, too, and wins over what a search says.
    given = {**case.strategies.origins, **dict.fromkeys(_with_layouts(case), 'given')}
    scattered = _out_strategies(case, listing)
    rows = [
        {
            'name': listing.name(op),
            'operator': PRIMITIVES.get(listing.kind(op), op.operator),
            'strategy': listing.strategy(op),
            'out_strategy': scattered.get(listing.name(op), []),
            'origin': given.get(listing.name(op)) or _by_itself(op),
            'reads': {name: list(listing.shape(name)) for name in listing.inputs(op)},
            'writes': {name: list(listing.shape(name)) for name in op.writes},
            'collectives': list(listing.collectives(listing.name(op))),
        }
        for op in listing.operators
    ]
    found = case.strategies
    weighed = [
        {'name': one.name, 'sent': one.sent, 'step': one.step, 'lacking': one.too_much} for one in found.proposals
    ]
    bounds = {'bound': found.bound, 'seconds': found.seconds}
    return {'operators': rows, 'weighed': weighed, **(bounds if case.plan.pipeline == 1 else dict.fromkeys(bounds))}


def _without_chunks(case: Case) -> Program:
    """The program; where products are in chunks, the same with undivided products, which are the model's own."""
    if case.plan.tiles == 1:
        return case.program
    return lower(case.workload, replace(case.plan, tiles=1), case.program.world)


def flattens(workload: Workload) -> frozenset[str]:
    """Names of the layers that flatten."""
    return frozenset(name for name, layer in workload.model.operators.items() if isinstance(layer, Flatten))


def _with_layouts(case: Case) -> list[str]:
    return [name for name, layer in case.workload.model.operators.items() if layer.layout]


def _out_strategies(case: Case, listing: Listing) -> dict[str, list[int]]:
    """How results are sharded whose sums are scattered, as a user asked for it."""
    dense = {name: layer for name, layer in case.workload.model.operators.items() if isinstance(layer, Dense)}
    by_axes = (name for name, layer in dense.items() if layer.out_layout)
    by_layout = {name: listing.shard_counts(listing.program.tensor[name]) for name in by_axes}
    # Layouts come last: they say the same by axes, in the user's own names.
    return {name: list(layer.out_strategy) for name, layer in dense.items()} | by_layout


def _by_itself(op: OpClass) -> str:
    """Why an operator without a strategy of its own is sharded as it is."""
    # Weighted operators and those of the loss fall back to data parallelism; others follow their input.
    by_batch = op.operator in BY_BATCH or Listing.name(op) in OF_LOSS
    return 'by batch, as none is given' if by_batch else 'as its input lies'


def strategy_lines(answer: dict[str, Any] | None) -> Iterator[str]:
    """The operators for a person, and what an exact search weighed."""
    if answer is None:
        return
    yield 'strategies:'
    for row in answer['operators']:
        out = f' out_strategy {bracketed(row["out_strategy"])}' if row['out_strategy'] else ''
        sharding = f' {strategy_text(row["strategy"])}' if row['strategy'] else ''
        yield f'  {row["name"]}: {row["operator"]}{sharding}{out}, {row["origin"]}'
        reads, writes = (' '.join(_slice(*item) for item in row[side].items()) for side in ('reads', 'writes'))
        yield f'    slices {reads} → {writes}'
        yield from (f'    {_collective(one)}' for one in row['collectives'])
    yield from _weighed_lines(answer)


def _slice(name: str, shape: list[int]) -> str:
    return f'{name} {bracketed(shape)}'


def bracketed(numbers: Sequence[int]) -> str:
    """``(2, 4)``; of one number ``(2)``, as MindSpore writes it."""
    return f'({", ".join(map(str, numbers))})'


def strategy_text(strategy: Sequence[Sequence[int]]) -> str:
    """``((2, 4), (4, 1))``; of one tensor ``((2, 4))``, as MindSpore writes it."""
    return f'({", ".join(map(bracketed, strategy))})'


def _collective(row: dict[str, Any]) -> str:
    groups = row['groups']
    first = '-'.join(map(str, groups[0][:16])) + ('…' if len(groups[0]) > 16 else '')
    more = f' and {len(groups) - 1} more' if len(groups) > 1 else ''
    size = format_size(row['bytes'])
    return f'{row["phase"]} {row["operator"]} of {size} over {first}{more}: {row["purpose"]}'


def _weighed_lines(answer: dict[str, Any]) -> Iterator[str]:
    weighed = answer['weighed']
    if not weighed:
        return
    yield 'strategies that were compared, best first (bytes that the busiest rank sends in a step; predicted step):'
    width = max(len(one['name']) for one in weighed[:SHOWN_PROPOSALS])
    for one in weighed[:SHOWN_PROPOSALS]:
        lacking = f', {format_size(one["lacking"])} too much memory' if one['lacking'] else ''
        yield f'  {one["name"]:<{width}}{format_size(one["sent"]):>11}  {format_time(one["step"]):>10}{lacking}'
    if len(weighed) > SHOWN_PROPOSALS:
        yield f'  and {len(weighed) - SHOWN_PROPOSALS} more: see --json'
    if answer['seconds'] is not None:
        fastest = min(one['step'] for one in weighed)
        told = f'least sum of seconds, op after op: {format_time(answer["seconds"])}'
        yield f'  {told}; the fastest of these takes {format_time(fastest)} as a program'
    if answer['bound'] is None:
        return
    more = min(one['sent'] for one in weighed) / answer['bound'] - 1 if answer['bound'] else 0.0
    yield f'  least sum over operators: {format_size(answer["bound"])}; the least of these sends {more:+.1%}'
