"""Listing: a program seen by the operators of its model, and as MindSpore's IR dumps read, a file a rank.

Of each operator: its strategy and where that came from, the slices of what it reads and writes, and the collectives
that it brings with it. All of it is read off the program, so that it is what the machines do.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from simpar.case import Case
from simpar.files import naming
from simpar.lower import lower
from simpar.lower.graph.loss import KINDS, TOTAL
from simpar.lower.graph.record import has_strategies
from simpar.model import OPERATORS, Dense, Flatten, Weighted
from simpar.model.library.cross_entropy import CROSS_ENTROPY, ONES
from simpar.model.operators import OP_CLASSES
from simpar.model.operators.shape import FLATTEN
from simpar.program import COLLECTIVES, PER_RANK, OpClass, Program, Tensor
from simpar.units import format_size, format_time
from simpar.workload import Workload

MOVES: Final = frozenset({'slice', 'pad', 'scale', 'piece', 'keep', 'reshard', 'take'})
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
        by_tensor: dict[str, OpClass] = {}
        for op in self.program.op_classes:
            for name in op.writes:
                # The first writer made the tensor; later ones update it.
                by_tensor.setdefault(name, op)
        return by_tensor

    @cached_property
    def readers(self) -> dict[str, list[OpClass]]:
        """By tensor, the ops that read it."""
        by_tensor: dict[str, list[OpClass]] = {}
        for op in self.program.op_classes:
            for name in op.reads:
                by_tensor.setdefault(name, []).append(op)
        return by_tensor

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
        counts = [1] * len(tensor.shape)
        for split in tensor.splits:
            counts[split.dim] *= self.program.partitions[split.partition].size
        return counts

    def strategy(self, op: OpClass) -> list[list[int]]:
        """An operator's strategy, read off its tensors; of a product those of x and weight; a reshape has none."""
        arity = {'matmul': 2, 'conv2d': 2, 'bias': 2, 'cross_entropy': 2, 'reshape': 0}.get(self.kind(op))
        names = self.inputs(op)[:arity] * (2 if self.name(op) in OF_ONES else 1)
        splits = [self.shard_counts(self.program.tensor[name]) for name in names]
        return [counts[::-1] if self.turned(name) else counts for counts, name in zip(splits, names, strict=True)]

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
        by_operator: dict[str, list[tuple[str, OpClass]]] = {}
        for op in self.program.op_classes:
            for purpose, owner in self._owners(op) if op.kind == 'collective' else ():
                by_operator.setdefault(owner, []).append((purpose, op))
        return by_operator

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
        first = self._start(op.reads[0])
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
        names = self._sources(op, value) or ([self._operator(made)] if made is not None else [])
        return [(REDISTRIBUTION, name) for name in names]

    def _sources(self, op: OpClass, value: str) -> list[str]:
        """Find the readers of a value whose gradients an op moves; these may have been added up before."""
        names: list[str] = []
        # A walk, not a recursion: sums of gradients can be long chains.
        left = [self._start(op.reads[0])]
        while left:
            gradient = left.pop()
            source = self.writer.get(gradient)
            # A sum stands for all gradients that it adds up.
            if source is not None and source.operator == SUMS:
                left += reversed([self._start(name) for name in source.reads])
            elif source is not None:
                of = gradient.removeprefix('d:').removesuffix('.back').removesuffix(f'@{self.name(source)}')
                reader = [self._operator(source)] if is_own(source) else []
                names += self._between(value, of.partition('@')[0]) or reader
        return list(dict.fromkeys(names))

    def _between(self, value: str, result: str) -> list[str]:
        """Find additions that read a value, directly or through others, and hand it the gradient of ``result``."""
        additions = []
        for addition in self._additions(value):
            reached, left = {addition}, [addition]
            while left:
                after = set(self._additions(left.pop())) - reached
                reached |= after
                left += after
            additions += [addition] if result in reached else []
        return additions

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

    def _start(self, tensor: str) -> str:
        """Where the moves that end in a tensor begin."""
        # A redistribution may take several moves, one after the other.
        while tensor in self.writer and is_move(self.writer[tensor]):
            tensor = self.writer[tensor].reads[0]
        return tensor

    def _next(self, tensor: str) -> list[str]:
        """The operators of the forward that a tensor gets to."""
        operators: list[str] = []
        for op in self.readers.get(tensor, ()):
            if op.phase == 'F' and is_own(op):
                operators.append(self.name(op))
            elif op.phase == 'F' and is_move(op):
                operators += self._next(op.writes[0])
        return list(dict.fromkeys(operators))

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
    program = case.program
    if case.plan.tiles > 1:
        # Undivided products are the model's own.
        program = lower(case.workload, replace(case.plan, tiles=1), program.world)
    listing = Listing(program, flattens(case.workload))
    # A layout by axes counts as given, too, and wins over what a search says.
    by_layout = {name: 'given' for name, layer in case.workload.model.operators.items() if layer.layout}
    origins = {**case.strategies.origins, **by_layout}
    # How results are sharded whose sums are scattered, as a user asked for it; layouts say the same by axes.
    dense = {name: layer for name, layer in case.workload.model.operators.items() if isinstance(layer, Dense)}
    scattered = {name: list(layer.out_strategy) for name, layer in dense.items()} | {
        name: listing.shard_counts(listing.program.tensor[name]) for name, layer in dense.items() if layer.out_layout
    }
    rows = [
        {
            'name': listing.name(op),
            'operator': PRIMITIVES.get(listing.kind(op), op.operator),
            'strategy': listing.strategy(op),
            'out_strategy': scattered.get(listing.name(op), []),
            'origin': origins.get(listing.name(op)) or _by_itself(op),
            'reads': {name: list(listing.shape(name)) for name in listing.inputs(op)},
            'writes': {name: list(listing.shape(name)) for name in op.writes},
            'collectives': list(listing.collectives(listing.name(op))),
        }
        for op in listing.operators
    ]
    strategies = case.strategies
    weighed = [
        {'name': one.name, 'sent': one.sent, 'step': one.step, 'lacking': one.too_much} for one in strategies.proposals
    ]
    bounds = {'bound': strategies.bound, 'seconds': strategies.seconds}
    return {'operators': rows, 'weighed': weighed, **(bounds if case.plan.pipeline == 1 else dict.fromkeys(bounds))}


def flattens(workload: Workload) -> frozenset[str]:
    """Names of the layers that flatten."""
    return frozenset(name for name, layer in workload.model.operators.items() if isinstance(layer, Flatten))


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
        reads, writes = (
            ' '.join(f'{name} {bracketed(shape)}' for name, shape in row[side].items()) for side in ('reads', 'writes')
        )
        yield f'    slices {reads} → {writes}'
        yield from (f'    {_collective(one)}' for one in row['collectives'])
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
        least = f'least sum of seconds, op after op: {format_time(answer["seconds"])}'
        yield f'  {least}; the fastest of these takes {format_time(fastest)} as a program'
    if answer['bound'] is None:
        return
    more = min(one['sent'] for one in weighed) / answer['bound'] - 1 if answer['bound'] else 0.0
    yield f'  least sum over operators: {format_size(answer["bound"])}; the least of these sends {more:+.1%}'


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


NAMES: Final = {
    **PRIMITIVES,
    'slice': 'StridedSlice',
    **{name: one.primitive for name, one in COLLECTIVES.items() if one.primitive},
}
"""MindSpore's names of operators; others are written in its way."""
SAME: Final = frozenset({'slice', 'pad', 'scale', 'add'}).union(
    name for name, primitive in OP_CLASSES.items() if primitive.same_backward
)
"""Operators that are the same in forward and backward."""
ENDINGS: Final = {'F': '', 'I': 'GradInput', 'W': 'GradWeight', 'U': ''}


def write_ir(folder: Path, case: Case) -> list[Path]:
    """Write ``rank_N.ir`` of every rank into a folder, which is made if need be: all files or none.

    Files of ranks that the program has not are removed, so that all that is there is of one program. Returns the files.
    Raises ``OSError`` where the folder cannot be written to; what was there then stays as it was.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # All files are written here first, so that a failure leaves the folder as it was.
    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f'.{folder.name}.'))
    try:
        names = [f'rank_{rank}.ir' for rank in range(case.program.world)]
        for rank, name in enumerate(names):
            with naming(folder):
                (staging / name).write_text(rank_ir(case, rank), encoding='utf-8')
        folder.mkdir(exist_ok=True)
        for name in names:
            os.replace(staging / name, folder / name)
        # A smaller program must not leave ranks of a larger one behind.
        for old in folder.iterdir():
            if re.fullmatch(r'rank_\d+\.ir', old.name) and old.name not in names:
                old.unlink()
    finally:
        shutil.rmtree(staging)
    return [folder / name for name in names]


def rank_ir(case: Case, rank: int) -> str:
    """The ops of a rank in their order, each with its strategy, its ranks and the shapes of its slices."""
    return '\n'.join(_Writer(case, rank).lines()) + '\n'


@dataclass(slots=True)
class _Writer:
    """Numbers values as they are written; a tensor is called by the number of the op that wrote it last."""

    case: Case
    rank: int
    listing: Listing = field(init=False)
    strategies: bool = field(init=False)
    value: dict[tuple[str, int, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.listing = Listing(self.case.program, flattens(self.case.workload))
        self.strategies = has_strategies(self.case.workload, self.case.plan)

    def lines(self) -> Iterator[str]:
        program = self.case.program
        role = program.role(self.rank)
        yield f'# rank {self.rank} of {program.world}, role {role.name}, program {program.hash[:12]}'
        if self.strategies:
            yield "# strategies and shapes of products' weights as [in, out]; programs hold them as [out, in]"
        held = program.tensors_of_role[int(program.role_of_rank[self.rank])]
        parameters = [tensor for tensor in program.tensors if tensor.kind == 'parameter' and tensor.name in held]
        for number, tensor in enumerate(parameters):
            self.value[tensor.name, 0, 0] = f'%para{number}_{tensor.name}'
            yield f'%para{number}_{tensor.name} : <{tensor.dtype}, {bracketed(self.local(tensor.name))}>'
        for slot in range(len(role)):
            op = program.op(role, slot)
            scope = f'{program.action(role, slot)} on {role.streams[role.stream[slot]]}'
            yield f'{self.line(slot, op, int(role.micro_batch[slot]), int(role.copy[slot]))}  # scope: {scope}'

    def line(self, slot: int, op: OpClass, micro_batch: int, copy: int) -> str:
        """One op: ``%3 = MatMul(%1, %2) {instance name: matmul} {...} : (shapes) -> (shapes)``."""
        reads = self.listing.inputs(op)
        sources = [self.called(name, micro_batch, copy) for name in reads]
        written = (*op.writes, *op.accumulates)
        for place, name in enumerate(written):
            self.value[self.key(name, micro_batch, copy)] = f'%{slot}[{place}]' if place else f'%{slot}'
        arguments = ', '.join([*sources, *constants(op, self.listing.kind(op)), *self.window(op)])
        attributes = ', '.join(f'{key}: {value}' for key, value in self.attributes(op).items())
        braces = f'{{instance name: {self.listing.name(op)}}}' + (f' {{{attributes}}}' if attributes else '')
        shapes = ' -> '.join(f'({", ".join(self.typed(name) for name in names)})' for names in (reads, written))
        return f'%{slot} = {primitive(op, self.listing.kind(op))}({arguments}) {braces} : {shapes}'

    def key(self, name: str, micro_batch: int, copy: int) -> tuple[str, int, int]:
        # Weights and gradients are one for all micro-batches and copies.
        sliced = self.case.program.tensor[name].kind in ('input', 'activation')
        return (name, micro_batch, copy) if sliced else (name, 0, 0)

    def called(self, name: str, micro_batch: int, copy: int) -> str:
        return self.value.get(self.key(name, micro_batch, copy), f'%{name}')

    def typed(self, name: str) -> str:
        return f'<{self.case.program.tensor[name].dtype}, {bracketed(self.local(name))}>'

    def local(self, name: str) -> tuple[int, ...]:
        """A rank's slice of a tensor; with strategies, of a product's weight and what belongs to it, as [in, out]."""
        if self.strategies:
            return self.listing.shape(name)
        return self.case.program.local_shape(self.case.program.tensor[name])

    def window(self, op: OpClass) -> list[str]:
        """Of a slice, where it begins and ends on this rank, and its strides."""
        # Only slices by position have a window that differs between ranks.
        if op.operator != 'slice' or 'dim' not in op.attributes:
            return []
        dim, shape = int(op.attributes['dim']), self.local(op.writes[0])
        _, position = self.case.program.partitions[str(op.attributes['partition'])].place(self.rank)
        begin = tuple(position * length if place == dim else 0 for place, length in enumerate(shape))
        end = tuple(first + length for first, length in zip(begin, shape, strict=True))
        return [bracketed(begin), bracketed(end), bracketed((1,) * len(shape))]

    def attributes(self, op: OpClass) -> dict[str, str]:
        """What stands in the second braces: of communication the ranks, of an operator its strategy."""
        entries: dict[str, str] = {}
        if op.partition:
            ranks = self.case.program.partitions[op.partition].members(self.rank)
            entries |= {'op': op.reduce} if op.reduce else {}
            entries |= {'group': op.partition, 'rank_list': bracketed(ranks), 'group_ranks': '-'.join(map(str, ranks))}
            if op.kind in ('send', 'recv'):
                entries['peer'] = str(ranks[(ranks.index(self.rank) + op.peer) % len(ranks)])
            entries['bytes'] = f'{op.bytes:.0f}'
        strategy = self.listing.strategy(op) if self.strategies and op.phase == 'F' and is_own(op) else []
        entries |= {'in_strategy': strategy_text(strategy)} if strategy else {}
        entries |= {key: str(op.attributes[key]) for key in ('stride', 'padding') if key in op.attributes}
        return entries | {key: 'true' for key in ('transpose_a', 'transpose_b') if op.attributes.get(key)}


def constants(op: OpClass, kind: str) -> list[str]:
    """What else an op of a kind takes: a permutation, a shape, dims, an axis, a factor, a value."""
    if kind in ('sum', 'mean') and op.phase == 'F':
        return [bracketed([int(number) for number in str(op.attributes['dims']).split()])]
    if kind in ('transpose', 'reshape', 'flatten'):
        text = str(op.attributes['permutation' if op.operator == 'transpose' else 'shape'])
        return [bracketed([int(number) for number in text.split()])]
    by_kind = {
        'mul': op.attributes.get('factor'),
        'equal': op.attributes.get('value'),
        'expand_dims': 1,
        'masked_fill': 0,
    }
    return [str(by_kind[kind])] if kind in by_kind else []


def primitive(op: OpClass, kind: str) -> str:
    """MindSpore's name of an op of a kind, or ours in its way; what is no forward says so."""
    name = NAMES.get(kind) or ''.join(part.capitalize() for part in op.operator.split('_'))
    # Operators whose backward is the same primitive need no ending.
    own = op.kind == 'compute' and op.operator not in SAME
    return name + (ENDINGS[op.phase] if own else '')
