"""Recompute of activations, and products cut into chunks that overlap with their collectives."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from math import prod
from typing import Final

from simpar.errors import Infeasible
from simpar.lower.issue import TENSOR
from simpar.lower.tape import Tape, layer_of, named_by_nothing
from simpar.model import MatMul, Softmax
from simpar.model.model import Graph, Node
from simpar.model.operators.attention import CHUNK_ATTENTION, Attention, AttentionScores, AttentionValues, CausalSoftmax
from simpar.plans import Plan
from simpar.program import BYTES, Attribute, OpClass, Split, Tensor

# Recomputation: forward ops whose results are dropped behind the forward and made again in the backward.
#
# A clone stands right before the first backward op that reads what it makes, together with those that make what it
# reads itself. A layer, or the core of its attention, is run again as a whole, as Megatron-LM does, though its last
# product is needed by none; of operators that are named, only those that the backward needs, as in MindSpore. Clones
# write the same tensors again, so that these live twice. A clone may also make again what was kept: that result has a
# name of its own and is freed at once.

# Regions of a model's graph that are run again together: layers, and the cores of attention.


PRODUCTS = (MatMul, AttentionScores, AttentionValues)
"""Between two of these stands the softmax of unfused attention."""


def regions_of(nodes: Sequence[Node], of_node: Mapping[str, str]) -> Callable[[str], str]:
    """For the name of an op without its phase its region; empty: none.

    Arguments: ``of_node``, regions by the names of nodes. A collective belongs to the node whose value it makes.
    """
    owner = {name: node.name for node in nodes for name in (node.value, node.name)}

    @cache
    def region(name: str) -> str:
        while name and name not in owner:
            # Ops of a node have its name and more: what was made of it is found by taking endings off.
            name = name[: max(name.rfind('.'), name.rfind('@'), 0)]
        return of_node.get(owner.get(name, ''), '')

    return region


def attention_cores(nodes: Sequence[Node]) -> dict[str, str]:
    """By name of a node the core of attention that it belongs to: scores, softmax, dropout and values, or flash."""
    by_name = {node.name: node for node in nodes}
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for name in node.reads:
            readers.setdefault(name, []).append(node)
    cores: dict[str, str] = {}
    for node in nodes:
        if isinstance(node.operator, Attention):
            cores[node.name] = node.name
        elif isinstance(node.operator, Softmax | CausalSoftmax):
            cores.update(dict.fromkeys(_core(node, by_name, readers), node.name))
    return cores


def _core(softmax: Node, by_name: Mapping[str, Node], readers: Mapping[str, Sequence[Node]]) -> list[str]:
    """From the product before a softmax to the one behind it; nothing where these are no attention."""
    core, at = [softmax.name], softmax
    while not isinstance(at.operator, PRODUCTS):
        # The first value read is the main branch: masks and constants come behind it.
        before = by_name.get(at.reads[0])
        if before is None:
            return []
        core.append(before.name)
        at = before
    at = softmax
    while not isinstance(at.operator, PRODUCTS):
        # With two readers it is no plain attention, and running it again would make more than asked.
        if len(readers.get(at.name, ())) != 1:
            return []
        (at,) = readers[at.name]
        core.append(at.name)
    return core


RECOMPUTE: Final = 'recompute'
"""The attribute of a clone, and the end of its name."""
_LOSS: Final = 'loss'
_Regions = Callable[[str], str]
"""By the name of an op without its phase the region that it belongs to; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """Which forward ops are run again, and what of their results is kept all the same.

    Arguments:
        regions: by the name of an op without its phase, the region that it belongs to; all of it is run again, and what
            it hands on is kept. None: no regions.
        patterns: or ops whose names without the phase match one of these, e.g. ``layer*.gelu``.
        marked: or of these operators of a network.
        handed_on: regions whose results are kept with ``patterns``, too: the layers of a model of the library.
        stages: of the pipeline, that do so; empty: all. communication: collectives run again, or their outputs stay.
        shards: what regions hand on is kept in slices, one on each tensor rank.
    """

    regions: _Regions | None = None
    patterns: tuple[str, ...] = ()
    marked: frozenset[str] = frozenset()
    handed_on: _Regions | None = None
    stages: frozenset[int] = frozenset()
    communication: bool = True
    shards: bool = False

    def takes(self, op: OpClass) -> bool:
        """Whether a forward op is run again where the backward needs what it makes."""
        # A message that has arrived cannot be asked for again, and the loss is read at once.
        if op.kind not in ('compute', 'collective') or layer_of(op.name) == _LOSS:
            return False
        if op.kind == 'collective' and not self.communication:
            return False
        name = _bare(op)
        named = bool(self.patterns) and any(fnmatchcase(name, pattern) for pattern in self.patterns)
        named = named or (bool(self.marked) and layer_of(name) in self.marked)
        return named or (self.regions is not None and self.regions(name) != '')

    def region(self, op: OpClass) -> str:
        """What an op belongs to whose results are kept where others read them; empty: nothing."""
        regions = self.regions or self.handed_on
        return '' if regions is None or op.kind in ('send', 'recv') else regions(_bare(op))

    def of_stage(self, stage: int) -> bool:
        """Whether a stage runs anything again."""
        chosen = self.regions is not None or bool(self.patterns or self.marked)
        return chosen and (not self.stages or stage in self.stages)


def recompute_of(plan: Plan, graph: Graph) -> Recompute:
    """What a plan, and the marks of operators, ask to be recomputed.

    Raises ``Infeasible`` where attention is to be recomputed and there is none.
    """
    common = Recompute(
        stages=frozenset(plan.recompute_stages),
        communication=plan.recompute_communication,
        shards=plan.recompute_inputs == 'sharded',
    )
    if isinstance(plan.recompute, str) and plan.recompute != 'none':
        if plan.recompute == 'full':
            return replace(common, regions=layers_of(graph))
        cores = _cores(graph)
        if cores is None:
            raise Infeasible('plan.recompute: selective runs attention again, and the model has none; write full')
        return replace(common, regions=cores)
    patterns = () if isinstance(plan.recompute, str) else plan.recompute
    marked = frozenset(node.name for node in graph.nodes if node.operator.recompute)
    return replace(common, patterns=patterns, marked=marked, handed_on=layers_of(graph) if graph.hands_on else None)


def layers_of(graph: Graph) -> _Regions:
    """By the name of an op without its phase its layer."""
    layers = {node.name: f'layer {node.layer}' for node in graph.nodes if graph.in_layer(node)}
    return regions_of(graph.nodes, layers)


def _cores(graph: Graph) -> _Regions | None:
    cores = attention_cores(graph.nodes)
    return regions_of(graph.nodes, cores) if cores else None


def check_recompute(choice: Recompute, ops: Sequence[OpClass], stages: int) -> None:
    """Raise ``Infeasible`` where a pattern names no operator that may run again, or a stage is none of the pipeline's.

    The loss never does. Arguments: ``ops`` of all stages.
    """
    forward = (op for op in ops if op.phase == 'F' and op.kind in ('compute', 'collective') and choice.patterns)
    names = list(dict.fromkeys(_bare(op) for op in forward if layer_of(op.name) != _LOSS))
    for pattern in choice.patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise named_by_nothing('plan.recompute', pattern, 'operator to run again', names)
    beyond = sorted(stage for stage in choice.stages if stage >= stages)
    if beyond:
        raise Infeasible(f'plan.recompute_stages lists {beyond[0]}, but the stages are 0 to {stages - 1}')


def recomputed(tape: Tape, ops: Sequence[OpClass], elsewhere: Collection[str], choice: Recompute) -> list[OpClass]:
    """The ops of a stage, and before each of the backward the clones of forward ops that it needs.

    Arguments: ``ops``, as on the tape, forward first; ``elsewhere``, what other stages of the rank read. Adds tensors
    to the tape.
    """
    forward = [op for op in ops if op.phase == 'F']
    regions, mask = [choice.region(op) for op in forward], [choice.takes(op) for op in forward]
    outputs = {*_region_outputs(forward, regions), *elsewhere}
    makers = {
        name: place for place, op in enumerate(forward) if mask[place] for name in op.writes if name not in outputs
    }
    made, together = makers.keys(), _together(regions if choice.regions else [''] * len(forward), mask)
    done: set[int] = set()
    new_ops: list[OpClass] = []

    def wanted(op: OpClass) -> set[int]:
        """Places of the forward ops to be run again before an op, which make what it or they read."""
        places, names = set[int](), list(op.reads)
        while names:
            place = makers.get(names.pop())
            # What has been made again stays until its last reader, so no clone is made twice.
            if place is not None and place not in places and place not in done:
                # A region runs again as one, even what nobody reads: Megatron calls the layer's forward once more.
                places.update(together[place])
                names += [name for one in together[place] for name in forward[one].reads]
        return places

    for op in ops:
        if op.phase != 'F' and not made.isdisjoint(op.reads):
            again = wanted(op)
            done |= again
            # In the order of the forward, as clones read one another.
            new_ops += [_clone(tape, forward[place], outputs) for place in sorted(again)]
        new_ops.append(op)
    if not choice.shards:
        return new_ops
    clones = [op for op in new_ops if is_recomputed(op)]
    # What enters a region from outside of all, as from the embedding or another stage, stays as it is, too.
    inputs = {name for op in clones for name in op.reads if choice.regions is not None or name in outputs}
    inputs -= {*elsewhere, *(name for op in clones for name in op.writes)}
    return _sliced(tape, new_ops, {name for name in inputs if tape.tensors[name].kind == 'activation'})


def _sliced(tape: Tape, ops: Sequence[OpClass], inputs: Collection[str]) -> list[OpClass]:
    """The ops with a slice of each input of what runs again, on each of the tensor ranks that hold it alike.

    It is gathered before the first op of the backward that reads it (Megatron-LM's distribute-saved-activations,
    DeepSpeed's partition_activations, MindSpore's recompute_slice_activation).
    """
    dims = {name: dim for name in sorted(inputs) if (dim := _free_dim(tape, name)) is not None}
    written, gathered, new_ops = set[str](), set[str](), list[OpClass]()
    for op in ops:
        if is_recomputed(op) or op.phase != 'F':
            for name in (name for name in op.reads if name in written - gathered):
                tape.emit_collective(
                    'all_gather', 'F', tape.axes.tensor, f'{name}.kept', f'{name}.gathered', {'dim': dims[name]}
                )
                gathers = tape.ops.pop()
                new_ops.append(replace(gathers, stage=op.stage, attributes={**gathers.attributes, RECOMPUTE: True}))
                gathered.add(name)
            reads = tuple(f'{name}.gathered' if name in gathered else name for name in op.reads)
            new_ops.append(replace(op, reads=reads))
        else:
            new_ops.append(op)
        for name in (name for name in op.writes if name in dims and name not in written):
            tape.emit_compute(
                f'{name}.kept', 'slice', 'F', [name], [f'{name}.kept'],
                attributes={'dim': dims[name], 'partition': TENSOR},
            )  # fmt: skip
            new_ops.append(replace(tape.ops.pop(), stage=op.stage))
            written.add(name)
    return new_ops


def _free_dim(tape: Tape, name: str) -> int | None:
    """A dim along which tensor ranks that hold a value alike can share it; registers the slice and what is gathered."""
    tensor, count = tape.tensors[name], tape.mesh.tensor
    alike = tape.degrees and count > 1 and all(TENSOR not in split.partition for split in tensor.splits)
    lengths = tensor.local_shape(tape.partitions, tape.mesh.copies) if alike else ()
    dim = next((dim for dim in (1, 0, 2) if dim < len(lengths) and lengths[dim] % count == 0), None)
    if dim is not None:
        tape.tensors[f'{name}.kept'] = replace(tensor, name=f'{name}.kept', splits=(*tensor.splits, Split(dim, TENSOR)))
        tape.tensors[f'{name}.gathered'] = replace(tensor, name=f'{name}.gathered')
    return dim


def is_recomputed(op: OpClass) -> bool:
    """Whether an op of the backward does again what one of the forward did."""
    return RECOMPUTE in op.attributes


def _region_outputs(forward: Sequence[OpClass], regions: Sequence[str]) -> set[str]:
    """What regions hand on to others, and what the loss reads; ``regions`` of the ops."""
    region = {name: of for op, of in zip(forward, regions, strict=True) for name in op.writes}
    handed_on = {
        name
        for op, of in zip(forward, regions, strict=True)
        for name in op.reads
        if region.get(name, '') not in ('', of)
    }
    # Later chunks of a sequence see these before they could be made again.
    cached = {op.reads[1] for op in forward if op.operator == CHUNK_ATTENTION}
    return handed_on | cached | {name for op in forward if layer_of(op.name) == _LOSS for name in op.reads}


def _together(regions: Sequence[str], mask: Sequence[bool]) -> dict[int, Collection[int]]:
    """For each place in the forward those that are run again with it: all of its region, unless some of it is kept."""
    members: dict[str, list[int]] = {}
    for place, region in enumerate(regions):
        members.setdefault(region, []).append(place)
    alone: dict[int, Collection[int]] = {place: (place,) for place in range(len(regions))}
    complete = [mine for region, mine in members.items() if region and all(mask[one] for one in mine)]
    return alone | {place: mine for mine in complete for place in mine}


def _clone(tape: Tape, op: OpClass, outputs: Collection[str]) -> OpClass:
    """The op once more."""
    writes: tuple[str, ...] = ()
    for name in op.writes:
        again = f'{name}.{RECOMPUTE}' if name in outputs else name
        # A kept tensor must not be written again: others may read it still.
        if again not in tape.tensors:
            tape.tensors[again] = replace(tape.tensors[name], name=again)
        writes += (again,)
    attributes = {**op.attributes, RECOMPUTE: True}
    return replace(op, name=f'{op.name}.{RECOMPUTE}', writes=writes, attributes=attributes)


def _bare(op: OpClass) -> str:
    """The name of an op without its phase."""
    return op.name.removesuffix(f'.{op.phase}')


# Tiles: a matrix product and the collective next to it, split into chunks along the rows.
#
# The collective of one tile travels while the next is computed: of a product and the sum behind it, or of a gather
# and the product behind it. So do CoC of MindSpeed, MC2, AsyncTP and MindSpore's ``interleaved_matmul_comm``. The
# gradient of a weight (W) stays full. Products read their rows of a full operand; what is gathered is split, and
# tiles are joined, by views that do no work.
#
# Where the collective shards the dim that tiles are split along, a tile holds rows of every rank's slice, in
# ``blocks``, so that joined tiles lie as the full tensor would.

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
    by_place: dict[int, list[OpClass]] = {}
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
            by_place |= {place: [] for place in (pair.product, *behind)}
            by_place[pair.collective] = [*made, *(ops[place] for place in behind), join]
        else:
            split, *gathers = _gathers(tape, collective, tiling)
            # Where two collectives gather one tensor, they share its tiles: the first splits it.
            first = splits.setdefault(split.name, split)
            if first.attributes != split.attributes:
                untiled.append(product)
                continue
            ahead, later = gathers[:_AHEAD], gathers[_AHEAD:]
            by_place[pair.collective] = [split, *ahead] if first is split else ahead
            by_place[pair.product] = _of_gathered(tape, product, collective, tiling, later, joins=pair.others)
    tape.notes += _notes(untiled, tiles)
    return [made for place, op in enumerate(ops) for made in by_place.get(place, [op])]


def nothing_tiled(ops: Sequence[OpClass], tiles: int) -> Iterator[str]:
    """A note where tiles were asked for and there are none. Arguments: ``ops`` of all stages."""
    if tiles > 1 and not any(op.operator == JOIN for op in ops):
        yield f'tiles {tiles}: nothing is split, as no product that divides stands next to its sum or gather'


# what belongs together


def _pairs(ops: Sequence[OpClass], elsewhere: Collection[str]) -> Iterator[_Pair]:
    """Products with their collectives; a product between a gather and a sum goes with the sum."""
    # By the place of a writer and what it writes, the places of readers: what is recomputed is written twice.
    readers: dict[tuple[int, str], list[int]] = {}
    last: dict[str, int] = {}
    for place, op in enumerate(ops):
        for name in op.reads:
            readers.setdefault((last.get(name, -1), name), []).append(place)
        last |= dict.fromkeys(op.writes, place)
    made = [(place, name, reading) for (place, name), reading in sorted(readers.items()) if place >= 0]
    summed = {}
    for place, _, (reader, *more) in made:
        if not more and _multiplies(ops[place]) and _travels(ops[reader], SUMS, elsewhere):
            summed[reader] = _Pair(place, reader)
    yield from (pair for _, pair in sorted(summed.items()))
    products = {pair.product for pair in summed.values()}
    for place, name, (reader, *more) in made:
        operand = _multiplies(ops[reader]) and ops[reader].reads[0] == name
        if operand and reader not in products and _travels(ops[place], GATHERS, elsewhere):
            yield _Pair(reader, place, others=bool(more))


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
    tile_ops = []
    for index in range(tiling.tiles):
        rows: dict[str, Attribute] = {
            'tile': index, 'tiles': tiling.tiles, 'tile_dim': tiling.dim, 'tile_blocks': tiling.blocks
        }  # fmt: skip
        made = _product(tape, product, index, tiling, reads=product.reads, writes=_tile(tape, partial, index, tiling))
        tile_ops.append(replace(made, attributes=made.attributes | rows))
        tile_ops.append(_collective(tape, collective, index, tiling))
    return [*tile_ops, _view(tape, collective, target, tiling, JOIN, 1)]


def _gathers(tape: Tape, collective: OpClass, tiling: _Tiling) -> list[OpClass]:
    """The split of what is gathered, and the gather of each tile."""
    split = _view(tape, collective, collective.reads[0], tiling, SPLIT, 1)
    return [split, *(_collective(tape, collective, index, tiling) for index in range(tiling.tiles))]


def _of_gathered(
    tape: Tape, product: OpClass, collective: OpClass, tiling: _Tiling, later: Sequence[OpClass], *, joins: bool
) -> list[OpClass]:
    """The product of each gathered tile, and the join of what they make; where ``joins``, of what was gathered too.

    Arguments: ``later``, the gathers of the last tiles. Each is issued behind a product, as the libraries do: were all
    issued before, a device with one work queue would have to end them before it begins the first product.
    """
    full, target = collective.writes[0], product.writes[0]
    tile_ops = []
    for index in range(tiling.tiles):
        reads = (_tile(tape, full, index, tiling), *product.reads[1:])
        writes = _tile(tape, target, index, tiling)
        tile_ops.append(_product(tape, product, index, tiling, reads=reads, writes=writes))
        tile_ops += later[index : index + 1]
    joined = (target, full) if joins else (target,)
    return [*tile_ops, *(_view(tape, product, name, tiling, JOIN, tiling.blocks) for name in joined)]


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


def _view(tape: Tape, like: OpClass, full: str, tiling: _Tiling, operator: str, blocks: int) -> OpClass:
    """The split of a tensor into tiles, or their join; ``like``, the op in whose place it stands."""
    tiles = tuple(_tile(tape, full, index, tiling) for index in range(tiling.tiles))
    again = is_recomputed(like)
    return OpClass(
        name=f'{full}.{operator}.{like.phase}' + (f'.{RECOMPUTE}' if again else ''),
        kind='compute',
        operator=operator,
        phase=like.phase,
        dtype=tape.tensors[full].dtype,
        reads=tiles if operator == JOIN else (full,),
        writes=(full,) if operator == JOIN else tiles,
        attributes={'dim': tiling.dim, 'blocks': blocks, **({RECOMPUTE: True} if again else {})},
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


def _tile_name(op: OpClass, end: str, index: int) -> str:
    """``layer0.fc2.F`` → ``layer0.fc2.tile0.F``; ``end``, before which it is told."""
    head, _, tail = op.name.rpartition(end)
    return f'{head}.tile{index}{end}{tail}'
