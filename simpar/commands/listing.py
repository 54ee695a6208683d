"""A program seen by the operators of its model: their slices, and the collectives that each brings with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from simpar.lower.loss_sum import TOTAL
from simpar.model import OPERATORS
from simpar.model.library.cross_entropy import CROSS_ENTROPY, ONES
from simpar.program import OpClass, Program, Tensor
from simpar.program.tensor import PER_RANK

MOVES: Final = frozenset({'slice', 'pad', 'scale', 'piece', 'reshard', 'take'})
"""Operators by which tensors change their layout or their memory, none of the model's own."""
WEIGHT_FIRST: Final = frozenset(name for kind in OPERATORS if kind.lead for name in kind.primitives)
"""Operators whose strategy has the weight before the value; programs read the value first."""
SUMS: Final = 'add'
"""Adds up the gradients of a value that several operators read."""
ADDITIONS: Final = frozenset({'residual', 'subtract'})
"""Hand their gradient on to what they read, or its first, by no op of their own."""
SUM, REDISTRIBUTION, GRADIENT, WEIGHTS = 'sum', 'redistribution', 'gradient', 'weights'
LOSS = 'loss'
"""Sums shards of the loss, for display."""
_VIEWS = {'ExpandDims': 'expand_dims', 'Squeeze': 'squeeze'}
VIEWS: Final = {one.node: _VIEWS[one.primitive] for one in CROSS_ENTROPY if one.primitive in _VIEWS}
"""Operators of the loss that programs have as reshapes, and what they are."""
OF_ONES: Final = frozenset(one.node for one in CROSS_ENTROPY if ONES in one.reads)
"""Operators of the loss that read a constant, which programs have not; it is sharded as what else they read."""


@dataclass(frozen=True)
class Listing:
    """A program seen by the operators of its model.

    Arguments: ``flattens``, names of the layers that flatten, which programs have as reshapes.
    """

    program: Program
    flattens: frozenset[str] = frozenset()

    @cached_property
    def operators(self) -> list[OpClass]:
        """The model's own operators, in the order of the forward."""
        return [op for op in self.program.op_classes if op.phase == 'F' and is_own(op)]

    @cached_property
    def operator(self) -> dict[str, OpClass]:
        """By name, the model's own operators."""
        return {self.name(op): op for op in self.operators}

    @cached_property
    def writer(self) -> dict[str, OpClass]:
        """By tensor, the first op that writes it."""
        found: dict[str, OpClass] = {}
        for op in self.program.op_classes:
            for name in op.writes:
                # The first writer made the tensor; later ones update it.
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

    def kind(self, op: OpClass) -> str:
        """The kind of an operator of the forward: a program's, or what a reshape is for."""
        if op.phase != 'F' or op.operator != 'reshape':
            return op.operator
        return 'flatten' if self.name(op) in self.flattens else VIEWS.get(self.name(op), op.operator)

    @cached_property
    def products(self) -> frozenset[str]:
        """Parameters of products, whose weights programs hold as [out, in] and strategies see as [in, out]."""
        read = (self.program.tensor[name] for op in self.operators if op.operator == 'matmul' for name in op.reads)
        return frozenset(tensor.like or tensor.name for tensor in read if tensor.kind in PER_RANK)

    def turned(self, name: str) -> bool:
        """Whether a tensor is the weight of a product, or its gradient or state."""
        tensor = self.program.tensor[name]
        held = tensor.kind in PER_RANK and len(tensor.shape) == 2
        return held and (tensor.like or tensor.name) in self.products

    def shape(self, name: str) -> tuple[int, ...]:
        """A rank's slice as a strategy sees it."""
        shape = self.program.local_shape(self.program.tensor[name])
        # MindSpore writes the weight of a product as [in, out], programs hold [out, in].
        return shape[::-1] if self.turned(name) else shape

    @staticmethod
    def inputs(op: OpClass) -> tuple[str, ...]:
        """What an op reads, in the order of its primitive: an embedding has its weight before the tokens."""
        return op.reads[::-1] if op.phase == 'F' and op.operator in WEIGHT_FIRST else op.reads

    def shard_counts(self, tensor: Tensor) -> list[int]:
        """Into how many shards each dim is split over the ranks; copies do not count."""
        found = [1] * len(tensor.shape)
        for split in tensor.splits:
            found[split.dim] *= self.program.partitions[split.partition].size
        return found

    def strategy(self, op: OpClass) -> list[list[int]]:
        """An operator's strategy, read off its tensors; of a product those of x and weight; a reshape has none."""
        taken = {'matmul': 2, 'conv2d': 2, 'bias': 2, 'cross_entropy': 2, 'reshape': 0}.get(self.kind(op))
        names = self.inputs(op)[:taken] * (2 if self.name(op) in OF_ONES else 1)
        found = [self.shard_counts(self.program.tensor[name]) for name in names]
        return [counts[::-1] if self.turned(name) else counts for counts, name in zip(found, names, strict=True)]

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
        # A gather of an input belongs to the operator that reads it.
        if 'input' in kinds:
            return self._forward(op)
        if 'gradient' in kinds or kinds & {'gathered', 'parameter', 'view'}:
            purpose = GRADIENT if 'gradient' in kinds else WEIGHTS
            owned = (self.program.tensor[name] for name in op.reads)
            return list(dict.fromkeys((purpose, (one.like or one.name).rpartition('.')[0]) for one in owned))
        if op.phase == 'F':
            return self._forward(op)
        return self._backward(op) if op.phase == 'I' else []

    def _forward(self, op: OpClass) -> list[tuple[str, str]]:
        """The operator's own sum, or the redistribution before the readers of a value: another layout has an @."""
        first = self._first(op)
        if op.writes == (TOTAL,):
            return [(LOSS, self.name(self.writer[first]))]
        # A partial result that keeps its name is summed; a name with @ is a new layout.
        if '@' not in op.writes[0] and self.program.tensor[first].partial:
            return [(SUM, self.name(self.writer[first]))]
        return [(REDISTRIBUTION, name) for name in self._next(op.writes[0])]

    def _backward(self, op: OpClass) -> list[tuple[str, str]]:
        """A gradient's way back: the sum of an operator that has one, or the redistribution before its readers."""
        value = self._last(op.writes[0]).removeprefix('d:').partition('@')[0]
        forward = self.program.tensor.get(value)
        if forward is not None and forward.partial:
            return [(SUM, self.name(self.writer[forward.name]))]
        # What came from the next stage has no source here: what made the value stands for its readers there.
        made = self.writer.get(value)
        found = self._sources(op, value) or ([self._operator(made)] if made is not None else [])
        return [(REDISTRIBUTION, name) for name in found]

    def _sources(self, op: OpClass, value: str) -> list[str]:
        """Find the readers of a value whose gradients an op moves; these may have been added up before."""
        found: list[str] = []
        # A walk, not a recursion: sums of gradients can be long chains.
        left = [self._first(op)]
        while left:
            gradient = left.pop()
            source = self.writer.get(gradient)
            # A sum stands for all gradients that it adds up.
            if source is not None and source.operator == SUMS:
                left += reversed([self._start(name) for name in source.reads])
            elif source is not None:
                of = gradient.removeprefix('d:').removesuffix('.back').removesuffix(f'@{self.name(source)}')
                reader = [self._operator(source)] if is_own(source) else []
                found += self._between(value, of.partition('@')[0]) or reader
        return list(dict.fromkeys(found))

    def _between(self, value: str, result: str) -> list[str]:
        """Find additions that read a value, directly or through others, and hand it the gradient of ``result``."""
        found = []
        for addition in self._additions(value):
            reached, left = {addition}, [addition]
            while left:
                after = set(self._additions(left.pop())) - reached
                reached |= after
                left += after
            found += [addition] if result in reached else []
        return found

    def _additions(self, value: str) -> list[str]:
        """Those that read a value; they are named after their results."""
        return [name for name in self._next(value) if self.operator[name].operator in ADDITIONS]

    def _operator(self, op: OpClass) -> str:
        """The operator that an op of the backward belongs to: op classes are named after theirs, and then what else."""
        name = self.name(op)
        # ``layer.part.dx`` belongs to ``layer.part``, or to ``layer`` where there is no such part.
        while name and name not in self.operator:
            name = name.rpartition('.')[0]
        return name or self.name(op)

    def _first(self, op: OpClass) -> str:
        """Where the moves that end in an op begin."""
        return self._start(op.reads[0])

    def _start(self, tensor: str) -> str:
        """Where the moves that end in a tensor begin."""
        # A redistribution may take several moves, one after the other.
        while tensor in self.writer and is_move(self.writer[tensor]):
            tensor = self.writer[tensor].reads[0]
        return tensor

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
        """Follow the moves of a gradient of one forward value to their end."""
        if tensor.removeprefix('d:') in self.program.tensor:
            return tensor
        for op in self.readers.get(tensor, ()):
            if op.phase == 'I' and is_move(op):
                return self._last(op.writes[0])
        return tensor


def is_own(op: OpClass) -> bool:
    """Whether an op computes what an operator of the model computes, for the first time."""
    return op.kind == 'compute' and op.operator not in (*MOVES, SUMS) and 'recompute' not in op.attributes


def is_move(op: OpClass) -> bool:
    """Whether an op brings a tensor from one layout to another, on one stage."""
    return op.kind == 'collective' or (op.kind == 'compute' and op.operator in MOVES)
