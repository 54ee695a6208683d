"""What every rank does, one file a rank, to be read as MindSpore's IR dumps are read."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from simpar.case import Case
from simpar.commands.check_strategies import PRIMITIVES, bracketed, flattens, strategy_text
from simpar.commands.listing import Listing, is_own
from simpar.files import naming
from simpar.lower.given import has_strategies
from simpar.model.operators import OP_CLASSES
from simpar.program import OpClass

NAMES: Final = {
    **PRIMITIVES,
    'slice': 'StridedSlice',
    'all_reduce': 'AllReduce',
    'all_gather': 'AllGather',
    'reduce_scatter': 'ReduceScatter',
    'all_to_all': 'AlltoAll',
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
        kept = [tensor for tensor in program.tensors if tensor.kind == 'parameter' and tensor.name in held]
        for number, tensor in enumerate(kept):
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
        found: dict[str, str] = {}
        if op.partition:
            ranks = self.case.program.partitions[op.partition].members(self.rank)
            found |= {'op': op.reduce} if op.reduce else {}
            found |= {'group': op.partition, 'rank_list': bracketed(ranks), 'group_ranks': '-'.join(map(str, ranks))}
            if op.kind in ('send', 'recv'):
                found['peer'] = str(ranks[(ranks.index(self.rank) + op.peer) % len(ranks)])
            found['bytes'] = f'{op.bytes:.0f}'
        strategy = self.listing.strategy(op) if self.strategies and op.phase == 'F' and is_own(op) else []
        found |= {'in_strategy': strategy_text(strategy)} if strategy else {}
        found |= {key: str(op.attributes[key]) for key in ('stride', 'padding') if key in op.attributes}
        return found | {key: 'true' for key in ('transpose_a', 'transpose_b') if op.attributes.get(key)}


def constants(op: OpClass, kind: str) -> list[str]:
    """What else an op of a kind takes: a permutation, a shape, dims, an axis, a factor, a value."""
    if kind in ('sum', 'mean') and op.phase == 'F':
        return [bracketed([int(number) for number in str(op.attributes['dims']).split()])]
    if kind in ('transpose', 'reshape', 'flatten'):
        text = str(op.attributes['permutation' if op.operator == 'transpose' else 'shape'])
        return [bracketed([int(number) for number in text.split()])]
    known = {
        'mul': op.attributes.get('factor'),
        'equal': op.attributes.get('value'),
        'expand_dims': 1,
        'masked_fill': 0,
    }
    return [str(known[kind])] if kind in known else []


def primitive(op: OpClass, kind: str) -> str:
    """MindSpore's name of an op of a kind, or ours in its way; what is no forward says so."""
    name = NAMES.get(kind) or ''.join(part.capitalize() for part in op.operator.split('_'))
    # Operators whose backward is the same primitive need no ending.
    own = op.kind == 'compute' and op.operator not in SAME
    return name + (ENDINGS[op.phase] if own else '')
