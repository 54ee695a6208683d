"""Strategies of a program, operator by operator: where each came from, slices, and the collectives that follow from it.

All of it is read off the program, so that it is what the machines do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from simpar.case import Case
from simpar.lower import lower
from simpar.lower.strategy import has_strategies
from simpar.program import OpClass, Program, Tensor
from simpar.program.tensor import PER_RANK
from simpar.units import format_size, format_time
from simpar.workload import Dense, Network

MOVES: Final = frozenset({'slice', 'pad', 'scale', 'piece', 'reshard'})
"""Operators by which tensors change their layout or their memory, none of the model's own."""
PRIMITIVES: Final = {
    'matmul': 'MatMul',
    'bias': 'BiasAdd',
    'relu': 'ReLU',
    'mse': 'MSELoss',
    'mae': 'MAELoss',
    'cross_entropy': 'SoftmaxCrossEntropyWithLogits',
}
"""MindSpore's names of a network's operators."""
SUM, REDISTRIBUTION, GRADIENT, WEIGHTS = 'sum', 'redistribution', 'gradient', 'weights'
SHOWN_PROPOSALS: Final = 6


def strategy_facts(case: Case) -> dict[str, Any] | None:
    """Operators and their strategies, of a network that has any; None for others."""
    if not has_strategies(case.workload):
        return None
    listing = Listing(_in_whole_products(case))
    given = case.strategies.origins
    scattered = _out_strategies(case)
    rows = [
        {
            'name': listing.name(op),
            'operator': PRIMITIVES.get(op.operator, op.operator),
            'strategy': listing.strategy(op),
            'out_strategy': scattered.get(listing.name(op), []),
            'origin': given.get(listing.name(op)) or _by_itself(op),
            'reads': {name: list(listing.shape(op, name)) for name in op.reads},
            'writes': {name: list(listing.shape(op, name)) for name in op.writes},
            'collectives': list(listing.collectives(listing.name(op))),
        }
        for op in listing.operators
    ]
    found = case.strategies
    weighed = [
        {'name': one.name, 'sent': one.sent, 'step': one.step, 'lacking': one.too_much} for one in found.proposals
    ]
    return {'operators': rows, 'weighed': weighed, 'bound': found.bound if case.plan.pipeline == 1 else None}


def _in_whole_products(case: Case) -> Program:
    """The program; where products are in tiles, the same with whole ones, which are the model's own."""
    if case.plan.tiles == 1:
        return case.program
    return lower(case.workload, replace(case.plan, tiles=1), case.program.world)


def _out_strategies(case: Case) -> dict[str, list[int]]:
    from simpar.resolve.strategies import layer_names

    model = case.workload.model
    if not isinstance(model, Network):
        return {}
    named = zip(layer_names(model), model.layers, strict=True)
    return {name: list(layer.out_strategy) for name, layer in named if isinstance(layer, Dense)}


def _by_itself(op: OpClass) -> str:
    """Why an operator without a strategy of its own is cut as it is."""
    return 'as its input lies' if op.operator in ('relu', 'bias') else 'by batch, as none is given'


@dataclass(frozen=True)
class Listing:
    """A program seen by the operators of its model."""

    program: Program

    @cached_property
    def operators(self) -> list[OpClass]:
        """The model's own operators, in the order of the forward."""
        return [op for op in self.program.op_classes if op.phase == 'F' and is_own(op)]

    @cached_property
    def writer(self) -> dict[str, OpClass]:
        """By tensor, the first op that writes it."""
        found: dict[str, OpClass] = {}
        for op in self.program.op_classes:
            for name in op.writes:
                found.setdefault(name, op)
        return found

    @cached_property
    def readers(self) -> dict[str, list[OpClass]]:
        """By tensor, the ops that read it."""
        found: dict[str, list[OpClass]] = {}
        for op in self.program.op_classes:
            for name in op.reads:
                found.setdefault(name, []).append(op)
        return found

    @staticmethod
    def name(op: OpClass) -> str:
        """An operator's name: its op class without the phase."""
        return op.name.removesuffix('.recompute').rpartition('.')[0]

    def weight_like(self, op: OpClass, tensor: str) -> bool:
        """Whether a product's tensor is a weight, which programs hold as [out, in] and strategies see as [in, out]."""
        held = self.program.tensor[tensor]
        return op.operator == 'matmul' and held.kind in PER_RANK and len(held.shape) == 2

    def shape(self, op: OpClass, tensor: str) -> tuple[int, ...]:
        """A rank's slice as an operator's strategy sees it."""
        shape = self.program.local_shape(self.program.tensor[tensor])
        return shape[::-1] if self.weight_like(op, tensor) else shape

    def cuts(self, tensor: Tensor) -> list[int]:
        """Into how many slices each dim is cut over the ranks; copies do not count."""
        found = [1] * len(tensor.shape)
        for cut in tensor.cuts:
            found[cut.dim] *= self.program.partitions[cut.partition].size
        return found

    def strategy(self, op: OpClass) -> list[list[int]]:
        """An operator's strategy, read off the tensors that it reads; of a product those of x and weight."""
        names = op.reads[:2] if op.operator in ('matmul', 'bias', 'cross_entropy') else op.reads
        found = [self.cuts(self.program.tensor[name]) for name in names]
        return [cuts[::-1] if self.weight_like(op, name) else cuts for cuts, name in zip(found, names, strict=True)]

    def collectives(self, name: str) -> Iterator[dict[str, Any]]:
        """The collectives that an operator brings with it, with the ranks of every group."""
        for purpose, op in self.owned.get(name, ()):
            yield {
                'operator': op.operator,
                'phase': op.phase,
                'purpose': purpose,
                'partition': op.partition,
                'groups': self.program.partitions[op.partition].groups_GP.tolist(),
                'bytes': op.bytes,
                'op': op.name,
            }

    @cached_property
    def owned(self) -> dict[str, list[tuple[str, OpClass]]]:
        """By operator, the collectives that it brings with it and what each is for."""
        found: dict[str, list[tuple[str, OpClass]]] = {}
        for op in self.program.op_classes:
            for purpose, owner in self._owners(op) if op.kind == 'collective' else ():
                found.setdefault(owner, []).append((purpose, op))
        return found

    def _owners(self, op: OpClass) -> list[tuple[str, str]]:
        kinds = {self.program.tensor[name].kind for name in (*op.reads, *op.writes)}
        if 'gradient' in kinds or kinds & {'gathered', 'parameter', 'view'}:
            purpose = GRADIENT if 'gradient' in kinds else WEIGHTS
            owned = (self.program.tensor[name] for name in op.reads)
            return list(dict.fromkeys((purpose, (one.like or one.name).rpartition('.')[0]) for one in owned))
        if op.phase == 'F':
            return self._forward(op)
        return self._backward(op) if op.phase == 'I' else []

    def _forward(self, op: OpClass) -> list[tuple[str, str]]:
        first = self._first(op)
        if self.program.tensor[first].partial:
            return [(SUM, self.name(self.writer[first]))]
        return [(REDISTRIBUTION, name) for name in self._next(op.writes[0])]

    def _backward(self, op: OpClass) -> list[tuple[str, str]]:
        """A gradient's way back: the sum of an operator that has one, or the redistribution before its reader."""
        last = self._last(op.writes[0])
        forward = self.program.tensor.get(last.removeprefix('d:').partition('@')[0])
        if forward is not None and forward.partial:
            return [(SUM, self.name(self.writer[forward.name]))]
        source = self.writer.get(self._first(op))
        if source is None or not is_own(source):
            # It came from the next stage: the operator that made the value stands for its reader there.
            source = self.writer.get(last.removeprefix('d:').partition('@')[0])
        return [(REDISTRIBUTION, self._operator(source))] if source is not None else []

    def _operator(self, op: OpClass) -> str:
        """The operator that an op of the backward belongs to: op classes are named after theirs, and then what else."""
        name, known = self.name(op), {self.name(own) for own in self.operators}
        while name and name not in known:
            name = name.rpartition('.')[0]
        return name or self.name(op)

    def _first(self, op: OpClass) -> str:
        """Where the moves that end in an op begin."""
        first = op.reads[0]
        while first in self.writer and is_move(self.writer[first]):
            first = self.writer[first].reads[0]
        return first

    def _next(self, tensor: str) -> list[str]:
        """The operators of the forward that a tensor gets to."""
        found: list[str] = []
        for op in self.readers.get(tensor, ()):
            if op.phase == 'F' and is_own(op):
                found.append(self.name(op))
            elif op.phase == 'F' and is_move(op):
                found += self._next(op.writes[0])
        return list(dict.fromkeys(found))

    def _last(self, tensor: str) -> str:
        """Where the moves of a gradient end."""
        for op in self.readers.get(tensor, ()):
            if op.phase == 'I' and is_move(op):
                return self._last(op.writes[0])
        return tensor


def is_own(op: OpClass) -> bool:
    """Whether an op computes what an operator of the model computes, for the first time."""
    return op.kind == 'compute' and op.operator not in MOVES and 'recompute' not in op.attributes


def is_move(op: OpClass) -> bool:
    """Whether an op brings a tensor from one layout to another, on one stage."""
    return op.kind == 'collective' or (op.kind == 'compute' and op.operator in MOVES)


def strategy_lines(facts: dict[str, Any] | None) -> Iterator[str]:
    """The operators for a person, and what an exact search weighed."""
    if facts is None:
        return
    yield 'strategies:'
    for row in facts['operators']:
        out = f' out_strategy {bracketed(row["out_strategy"])}' if row['out_strategy'] else ''
        yield f'  {row["name"]}: {row["operator"]} {strategy_text(row["strategy"])}{out}, {row["origin"]}'
        reads, writes = (' '.join(_slice(*item) for item in row[side].items()) for side in ('reads', 'writes'))
        yield f'    slices {reads} → {writes}'
        yield from (f'    {_collective(one)}' for one in row['collectives'])
    yield from _weighed_lines(facts)


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


def _weighed_lines(facts: dict[str, Any]) -> Iterator[str]:
    weighed = facts['weighed']
    if not weighed:
        return
    yield 'strategies that were weighed, best first (bytes that the busiest rank sends in a step; predicted step):'
    for one in weighed[:SHOWN_PROPOSALS]:
        lacking = f', {format_size(one["lacking"])} too much memory' if one['lacking'] else ''
        yield f'  {one["name"]:<26}{format_size(one["sent"]):>10}  {format_time(one["step"]):>10}{lacking}'
    if len(weighed) > SHOWN_PROPOSALS:
        yield f'  and {len(weighed) - SHOWN_PROPOSALS} more: see --json'
    if facts['bound'] is None:
        return
    more = min(one['sent'] for one in weighed) / facts['bound'] - 1 if facts['bound'] else 0.0
    yield f'  least sum over operators: {format_size(facts["bound"])}; the least of these sends {more:+.1%}'
