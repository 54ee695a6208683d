"""Tiles: a matrix product and the collective next to it, split into chunks along the rows.

The collective of one tile travels while the next is computed: of a product and the sum behind it, or of a gather and
the product behind it. So do CoC of MindSpeed, MC2, AsyncTP and MindSpore's ``interleaved_matmul_comm``. The gradient of
a weight (W) stays full. Products read their rows of a full operand; what is gathered is split, and tiles are joined,
by views that do no work.

Where the collective shards the dim that tiles are split along, a tile holds rows of every rank's slice, in ``blocks``,
so that joined tiles lie as the full tensor would.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from simpar.lower.passes.recompute import RECOMPUTE, is_recomputed
from simpar.lower.tape import Tape
from simpar.program import BYTES, Attribute, OpClass, Tensor

JOIN: Final = 'join'
SPLIT: Final = 'split'
SUMS: Final = frozenset({'all_reduce', 'reduce_scatter'})
GATHERS: Final = frozenset({'all_gather'})
_PHASES: Final = frozenset({'F', 'I'})
_AHEAD: Final = 2
"""Gathers that are issued before the first product: that of its own tile, and that of the next one."""
_ROWS: Final = 2
"""Dims that rows may be split along: the batch, or else the sequence."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    """The places of a product and of the collective next to it; ``others``: more ops read what is gathered."""

    product: int
    collective: int
    others: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Tiling:
    """How tiles are split along ``dim``; ``blocks``, ranks over which the collective shards that dim too, else 1."""

    dim: int
    blocks: int
    tiles: int

    def attributes(self, blocks: int) -> dict[str, Attribute]:
        """What the kernels of views must know."""
        return {'dim': self.dim, 'blocks': blocks}


def tiled(tape: Tape, ops: Sequence[OpClass], elsewhere: Collection[str], tiles: int) -> list[OpClass]:
    """The ops of a stage with products and their collectives in tiles.

    Arguments:
        ops: in order, forward first.
        elsewhere: what other stages of the rank read.
        tiles: how many each pair is split into.

    Adds tensors to the tape, and a note for what does not divide and stays full. Does not model: copies where tiles lie
    in blocks, kernels that compute and communicate in one.
    """
    # The very ops: a plan without tiles must be the same program as before there were tiles.
    if tiles == 1:
        return list(ops)
    found: dict[int, list[OpClass]] = {}
    untiled: list[OpClass] = []
    splits: dict[str, OpClass] = {}
    for pair in _pairs(ops, elsewhere):
        product, collective = ops[pair.product], ops[pair.collective]
        tiling = _tiling(tape, product, collective, tiles)
        if tiling is None:
            untiled.append(product)
        elif collective.operator in SUMS:
            # Tiles stand in the place of the sum. What makes the weight's gradient of the same operand comes behind
            # them, where it would fill anyway: copies part ops where another layer's weights begin, and whichever way
            # they are parted, the operand has the same last reader.
            apart = tape.mesh.copies > 1 and tape.tensors[product.reads[-1]].kind == 'gathered'
            between = range(pair.product, pair.collective) if apart else ()
            behind = [place for place in between if _shares(ops[place], product)]
            *made, join = _summed(tape, product, collective, tiling)
            found |= {place: [] for place in (pair.product, *behind)}
            found[pair.collective] = [*made, *(ops[place] for place in behind), join]
        else:
            split, *gathers = _gathers(tape, collective, tiling)
            # Where two collectives gather one tensor, they share its tiles: the first splits it.
            first = splits.setdefault(split.name, split)
            if first.attributes != split.attributes:
                untiled.append(product)
                continue
            ahead, later = gathers[:_AHEAD], gathers[_AHEAD:]
            found[pair.collective] = [split, *ahead] if first is split else ahead
            found[pair.product] = _of_gathered(tape, product, collective, tiling, later, joins=pair.others)
    tape.notes += _notes(untiled, tiles)
    return [made for place, op in enumerate(ops) for made in found.get(place, [op])]


def nothing_tiled(ops: Sequence[OpClass], tiles: int) -> Iterator[str]:
    """A note where tiles were asked for and there are none. Arguments: ``ops`` of all stages."""
    if tiles > 1 and not any(op.operator == JOIN for op in ops):
        yield f'tiles {tiles}: nothing is split, as no product that divides stands next to its sum or gather'


# what belongs together


def _pairs(ops: Sequence[OpClass], elsewhere: Collection[str]) -> Iterator[_Pair]:
    """Products with their collectives; a product between a gather and a sum goes with the sum."""
    writers, readers = _lives(ops)
    summed: set[int] = set()
    for place, op in enumerate(ops):
        product = writers.get((place, op.reads[0]), -1) if _travels(op, SUMS, elsewhere) else -1
        if product >= 0 and _multiplies(ops[product]) and readers[product, op.reads[0]] == [place]:
            summed.add(product)
            yield _Pair(product, place)
    for place, op in enumerate(ops):
        reading = readers.get((place, op.writes[0]), []) if _travels(op, GATHERS, elsewhere) else []
        product = reading[0] if reading else place
        operand = _multiplies(ops[product]) and ops[product].reads[0] == op.writes[0]
        if operand and product not in summed:
            yield _Pair(product, place, others=len(reading) > 1)


def _shares(op: OpClass, product: OpClass) -> bool:
    """Whether an op makes the gradient of a weight of what a product reads."""
    return op.kind == 'compute' and op.phase == 'W' and product.reads[0] in op.reads


def _travels(op: OpClass, operators: Collection[str], elsewhere: Collection[str]) -> bool:
    """Whether an op is one of these collectives, of one activation that no other stage reads."""
    # A message of several values, or one that another stage reads, has more users than the pair.
    alone = len(op.reads) == 1 and not any(name in elsewhere for name in (*op.reads, *op.writes))
    return op.kind == 'collective' and op.operator in operators and op.phase in _PHASES and alone


def _multiplies(op: OpClass) -> bool:
    return op.operator == 'matmul' and op.phase in _PHASES


def _lives(ops: Sequence[OpClass]) -> tuple[Mapping[tuple[int, str], int], Mapping[tuple[int, str], list[int]]]:
    """(Reader's place, tensor) → place of its writer; (writer's place, tensor) → places of its readers.

    What is recomputed is written twice.
    """
    last: dict[str, int] = {}
    writers: dict[tuple[int, str], int] = {}
    readers: dict[tuple[int, str], list[int]] = {}
    for place, op in enumerate(ops):
        for name in op.reads:
            if name in last:
                writers[place, name] = last[name]
                readers.setdefault((last[name], name), []).append(place)
        last |= dict.fromkeys(op.writes, place)
    return writers, readers


# where it can be sharded


def _tiling(tape: Tape, product: OpClass, collective: OpClass, tiles: int) -> _Tiling | None:
    """The first dim of rows that divides on both sides of the collective, and in the product; None if there is none."""
    ends = [_local(tape, tape.tensors[name]) for name in (product.reads[0], product.writes[0])]
    both = [_local(tape, tape.tensors[name]) for name in (*collective.reads, *collective.writes)]
    for dim in range(min(_ROWS, *(len(shape) - 1 for shape in ends))):
        lengths = [shape[dim] for shape in (*ends, *both)]
        # A dim that the product changes is none of its rows.
        if ends[0][dim] == ends[1][dim] and all(length % tiles == 0 for length in lengths):
            # An all-reduce leaves rows where they are; a scatter or gather along the rows deals them out by rank.
            apart = collective.operator != 'all_reduce' and collective.attributes.get('dim') == dim
            return _Tiling(dim, tape.partitions[collective.partition].size if apart else 1, tiles)
    return None


def _local(tape: Tape, tensor: Tensor) -> tuple[int, ...]:
    """The shape that one rank has of one copy."""
    return tensor.local_shape(tape.partitions, tape.mesh.copies)


def _notes(untiled: Sequence[OpClass], tiles: int) -> Iterator[str]:
    """One for all products that are alike."""
    for name in dict.fromkeys(re.sub(r'^(\D+)\d+', r'\1*', op.name) for op in untiled):
        yield f'{name} is not tiled: neither its batch nor its sequence on a rank divides by tiles {tiles}'


# tiles


def _summed(tape: Tape, product: OpClass, collective: OpClass, tiling: _Tiling) -> list[OpClass]:
    """Product and sum of each tile in turn, then the join."""
    partial, target = product.writes[0], collective.writes[0]
    found = []
    for index in range(tiling.tiles):
        rows: dict[str, Attribute] = {
            'tile': index, 'tiles': tiling.tiles, 'tile_dim': tiling.dim, 'tile_blocks': tiling.blocks
        }  # fmt: skip
        made = _product(tape, product, index, tiling, reads=product.reads, writes=_tile(tape, partial, index, tiling))
        found.append(replace(made, attributes=made.attributes | rows))
        found.append(_collective(tape, collective, index, tiling))
    return [*found, _join(tape, collective, target, tiling, blocks=1)]


def _gathers(tape: Tape, collective: OpClass, tiling: _Tiling) -> list[OpClass]:
    """The split of what is gathered, and the gather of each tile."""
    source = collective.reads[0]
    split = OpClass(
        name=_named(collective, f'{source}.split'),
        kind='compute',
        operator=SPLIT,
        phase=collective.phase,
        dtype=collective.dtype,
        reads=(source,),
        writes=tuple(_tile(tape, source, index, tiling) for index in range(tiling.tiles)),
        attributes=tiling.attributes(1) | _again(collective),
        stage=collective.stage,
    )
    return [split, *(_collective(tape, collective, index, tiling) for index in range(tiling.tiles))]


def _of_gathered(
    tape: Tape, product: OpClass, collective: OpClass, tiling: _Tiling, later: Sequence[OpClass], *, joins: bool
) -> list[OpClass]:
    """The product of each gathered tile, and the join of what they make; where ``joins``, of what was gathered too.

    Arguments: ``later``, the gathers of the last tiles. Each is issued behind a product, as the libraries do: were all
    issued before, a device with one work queue would have to end them before it begins the first product.
    """
    full, target = collective.writes[0], product.writes[0]
    found = []
    for index in range(tiling.tiles):
        reads = (_tile(tape, full, index, tiling), *product.reads[1:])
        writes = _tile(tape, target, index, tiling)
        found.append(_product(tape, product, index, tiling, reads=reads, writes=writes))
        found += later[index : index + 1]
    found.append(_join(tape, product, target, tiling, blocks=tiling.blocks))
    return [*found, _join(tape, product, full, tiling, blocks=tiling.blocks)] if joins else found


def _product(
    tape: Tape, product: OpClass, index: int, tiling: _Tiling, *, reads: tuple[str, ...], writes: str
) -> OpClass:  # fmt: skip
    """One tile of a product: its share of the rows, and the full weight."""
    ends = sum(_size(tape, name) for name in (product.reads[0], product.writes[0]))
    return replace(
        product,
        name=_tile_name(product, f'.{product.phase}', index),
        dims={**product.dims, 'm': product.dims['m'] // tiling.tiles},
        flops=product.flops / tiling.tiles,
        # The weight is read in full by every tile; only the rows shrink.
        bytes=product.bytes - ends + ends / tiling.tiles,
        reads=reads,
        writes=(writes,),
    )


def _collective(tape: Tape, collective: OpClass, index: int, tiling: _Tiling) -> OpClass:
    return replace(
        collective,
        name=_tile_name(collective, f'.{collective.operator}.{collective.phase}', index),
        bytes=collective.bytes / tiling.tiles,
        reads=(_tile(tape, collective.reads[0], index, tiling),),
        writes=(_tile(tape, collective.writes[0], index, tiling),),
    )


def _join(tape: Tape, like: OpClass, full: str, tiling: _Tiling, *, blocks: int) -> OpClass:
    """The tiles of a tensor as one; ``like``, the op in whose place it stands."""
    return OpClass(
        name=_named(like, f'{full}.join'),
        kind='compute',
        operator=JOIN,
        phase=like.phase,
        dtype=tape.tensors[full].dtype,
        reads=tuple(_tile(tape, full, index, tiling) for index in range(tiling.tiles)),
        writes=(full,),
        attributes=tiling.attributes(blocks) | _again(like),
        stage=like.stage,
    )


def _tile(tape: Tape, name: str, index: int, tiling: _Tiling) -> str:
    """The name of a tensor's tile, which is registered; the same for what is recomputed."""
    tile = f'{name}.tile{index}'
    if tile not in tape.tensors:
        tensor = tape.tensors[name]
        shape = tuple(size // tiling.tiles if dim == tiling.dim else size for dim, size in enumerate(tensor.shape))
        tape.tensors[tile] = replace(tensor, name=tile, kind='activation', shape=shape, initial='', like='')
    return tile


def _size(tape: Tape, name: str) -> float:
    """Bytes that one rank has of one copy."""
    tensor = tape.tensors[name]
    return float(prod(_local(tape, tensor)) * BYTES[tensor.dtype])


def _again(op: OpClass) -> dict[str, Attribute]:
    return {RECOMPUTE: True} if is_recomputed(op) else {}


def _named(like: OpClass, name: str) -> str:
    """The name of a view in the place of an op."""
    return f'{name}.{like.phase}' + (f'.{RECOMPUTE}' if is_recomputed(like) else '')


def _tile_name(op: OpClass, end: str, index: int) -> str:
    """``layer0.fc2.F`` → ``layer0.fc2.tile0.F``; ``end``, before which it is told."""
    head, _, tail = op.name.rpartition(end)
    return f'{head}.tile{index}{end}{tail}'
