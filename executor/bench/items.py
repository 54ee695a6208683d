"""Items: what a bench measures, each one op class on tensors that every rank holds in full; over which sizes."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from executor.devices import KINDS, in_threads
from executor.ranks.collectives import SMALL
from simpar import plans, workload
from simpar.cost.compute import NO_WORK, PRODUCTS
from simpar.hardware.net import Net
from simpar.lower import lower
from simpar.lower.passes.offload import IN, OUT
from simpar.model import Dense, Network, Relu
from simpar.model.library.blocks import block_network
from simpar.model.library.gpt import Transformer
from simpar.model.model import AHEAD
from simpar.program import COLLECTIVES, COPY, OpClass, Partition, Phase, Program, ProgramBuilder, Tensor


@dataclass(frozen=True, slots=True)
class On:
    """The devices of a bench.

    Arguments:
        device, transport, dtype: as of ``Request``.
        name: what the device calls itself; ``memory``: its bytes, 0 where its module does not tell.
    """

    device: str = 'cpu'
    transport: str = ''
    dtype: str = ''
    name: str = ''
    memory: int = 0

    @property
    def threads(self) -> bool:
        """Whether streams are threads of the processor."""
        return in_threads(self.device, self.transport)

    @property
    def library(self) -> str:
        """What carries messages."""
        return 'gloo' if self.transport == 'gloo' else KINDS[self.device].backend

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of times on this kind of device must know."""
        return tuple(filter(None, [KINDS[self.device].note]))


CPU: Final = On()
"""This machine's processors."""


def look_at(device: str, transport: str, dtype: str) -> On:
    """The devices of this machine, as their module tells. Raises ``RunFailed`` where there are none."""
    if in_threads(device, transport):
        return On(device, transport, dtype)
    from executor.devices.open import device_module, require

    require(device)
    module = device_module(device)
    name = getattr(module, 'get_device_name', lambda index: f'{device} device')(0)
    ask = getattr(module, 'mem_get_info', None)
    return On(device, transport, dtype, str(name), int(ask(0)[1]) if ask else 0)


# What is measured, and how often: a minute's worth, five minutes' worth, and next to nothing for tests.


@dataclass(frozen=True, slots=True)
class Probe:
    """A transformer of one layer, whose operators besides products and attention are measured."""

    batch: int
    sequence: int
    hidden: int
    vocab: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Grids and repeats.

    Arguments:
        products: values of each of m, n and k; every combination is measured.
        head_dims, sequences, pairs: values for attention; ``scores``: combinations with more scores are left out.
        probes: see ``Probe``; ``moved``: operators that move more bytes are left out.
        messages: bytes of collectives; on a shaped network, up to ``message_seconds`` of its rate.
        orders: shuffled orders of all items; ``trials`` of each that count; ``rounds`` of overlapped runs.
        beside: kinds of collectives that run beside kernels.
        load_seconds: for how long a device makes large products, to see which clock it keeps; ``load``: m, n and k.
    """

    products: tuple[int, ...]
    head_dims: tuple[int, ...]
    sequences: tuple[int, ...]
    pairs: tuple[int, ...]
    scores: int
    probes: tuple[Probe, ...]
    moved: float
    messages: tuple[int, ...]
    message_seconds: float
    orders: int
    trials: int
    rounds: int
    beside: tuple[str, ...] = ('all_reduce',)
    load_seconds: float = 5.0
    load: int = 8192


def _sizes(row: Mapping[str, Any]) -> Sizes:
    """A row of ``sizes.yaml``."""
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Sizes(**values | {'probes': tuple(Probe(*probe) for probe in row['probes'])})


NAMED: Final = {
    name: _sizes(row)
    for name, row in yaml.safe_load(Path(__file__).with_name('sizes.yaml').read_text(encoding='utf-8')).items()
}
LEAST, TINY, QUICK, FULL = NAMED.values()


# Items: what is measured, each one op class on tensors that every rank holds in full, and programs that run them.

COMPUTE: Final = 'compute'
COMMUNICATION: Final = 'communication'
DRAWN: Final = 'normal:0.02'
"""How operands start: numbers of any size, so that no kernel meets a special case."""
ANY_SIZE: Final = frozenset({'embedding', 'ce_sum', 'cross_entropy'})
"""Operators that are told a partition and do the same work whatever its size is."""
LOGARITHMS: Final = frozenset({'ce_loss', 'log'})
"""Operators that may not read negative numbers."""
Key = Mapping[str, int | str]
Names = tuple[str, ...]
Attributes = dict[str, int | float | str | bool]


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One line of a table.

    Arguments:
        table: matmul, attention, operator or collective.
        key: its columns without the times.
        ops: op classes that run one after the other; the last is measured.
        tensors: all tensors that the ops touch.
        weight: the item's weight in the mean of all items that have this key.
    """

    table: str
    key: Key
    ops: tuple[OpClass, ...]
    tensors: tuple[Tensor, ...]
    weight: int = 1

    @property
    def name(self) -> str:
        """The name of the op that is measured."""
        return self.ops[-1].name


def partition_name(size: int) -> str:
    """The partition of a bench program into groups of so many neighbouring ranks."""
    return f'of{size}'


def group_sizes(world: int, per_host: int = 0) -> list[int]:
    """Sizes of groups that ``world`` ranks can be split into: powers of two, and all.

    Arguments: ``per_host``, ranks of a host; 0: all. Groups then fill hosts, or hosts hold full groups.
    """
    # Groups must be equal, and plans use powers of two mostly; all sizes would take too long.
    powers = {2**power for power in range(1, 20) if world % 2**power == 0}
    sizes = sorted(powers | ({per_host, world} - {0, 1} if world > 1 else set()))
    return [size for size in sizes if not per_host or per_host % size == 0 or size % per_host == 0]


def hosts_of(size: int, per_host: int) -> int:
    """Hosts that a group of neighbours touches."""
    return max(1, size // per_host) if per_host else 1


def program_of(items: Sequence[Item], world: int, streams: tuple[str, ...] = ()) -> Program:
    """A program in which every rank runs the items in this order, communication on a stream of its own.

    Arguments: ``streams`` to have, those that the items need unless given.
    """
    # Groups that no op uses cost nothing.
    sizes = [size for size in range(2, world + 1) if world % size == 0]
    ranks = np.arange(world, dtype=np.int32)
    groups = [Partition(partition_name(size), ranks.reshape(-1, size)) for size in sizes]
    ops = [op for item in items for op in item.ops]
    ways = [Partition(way, ranks.reshape(-1, 1)) for way in (OUT, IN) if any(op.partition == way for op in ops)]
    builder = ProgramBuilder(world, groups + ways)
    # Items share operands of one shape (see ``operand``), so that a bench fits in memory.
    for tensor in {tensor.name: tensor for item in items for tensor in item.tensors}.values():
        builder.add_tensor(tensor)
    for op in {op.name: op for op in ops}.values():
        builder.add_op_class(op)
    slots = [(op.name, COMPUTE if op.kind == 'compute' else COMMUNICATION, 0, 0) for op in ops]
    used = {stream for _, stream, _, _ in slots}
    streams = streams or tuple(stream for stream in (COMPUTE, COMMUNICATION) if stream in used)
    builder.add_role('all', range(world), slots, streams)
    return builder.build()


def copies(size: int) -> list[Item]:
    """Of so many bytes a copy to the host, and the one back."""
    there = operand((size // 4,))
    away = replace(result(f'host.{size}', there.shape), host=True)
    back = result(f'back.{size}', there.shape)
    made = [
        OpClass(
            f'{way}.{size}',
            'collective',
            COPY,
            'F',
            bytes=float(size),
            partition=way,
            reads=(one.name,),
            writes=(other.name,),
        )
        for way, one, other in ((OUT, there, away), (IN, away, back))
    ]
    return [Item('copies', {'way': op.partition, 'bytes': size}, (op,), (there, away, back)) for op in made]


def operand(shape: tuple[int, ...], place: int = 0, initial: str = DRAWN, dtype: str = 'fp32') -> Tensor:
    """A tensor that is there from the start; those of one form and place are one tensor.

    Arguments: ``place`` among the operands of one op, so that no two of them are the same memory.
    """
    size = 'x'.join(map(str, shape))
    return Tensor(f'{initial}.{dtype}.{size}.{place}', 'state', shape, dtype, initial=initial)


def result(name: str, shape: tuple[int, ...], dtype: str = 'fp32') -> Tensor:
    """A tensor that an op writes, and frees at once."""
    return Tensor(name, 'activation', shape, dtype)


def isolate(program: Program, op: OpClass, world: int) -> tuple[OpClass, tuple[Tensor, ...]] | None:
    """Take an op out of its program, on its local shapes.

    Returns None where the op needs groups that ``world`` cannot form, or does nothing.
    """
    # It takes no time on any machine, so there is nothing to measure.
    if op.operator in NO_WORK:
        return None
    program, op = _plain(program, op)
    attributes, partition = dict(op.attributes), op.partition or str(op.attributes.get('partition', ''))
    if partition:
        size = program.partitions[partition].size
        # Such an op computes the same whatever its group is, so any group of this world does.
        if size not in group_sizes(world) and op.operator in ANY_SIZE:
            size = world
        if size not in group_sizes(world):
            return None
        partition = partition_name(size)
        attributes |= {'partition': partition} if op.kind == 'compute' else {}
    reads = _operands(program, op)
    # Updates work in place: what they write is what they have read, not a new tensor.
    changed = set(op.reads) if op.phase == 'U' and op.kind == 'compute' else set()
    writes = [reads[op.reads.index(name)] if name in changed else _written(program, op, name) for name in op.writes]
    sums = [replace(_written(program, op, name), kind='gradient') for name in op.accumulates]
    alone = replace(
        op,
        partition=partition if op.kind != 'compute' else '',
        attributes=attributes,
        reads=tuple(tensor.name for tensor in reads),
        writes=tuple(tensor.name for tensor in writes),
        accumulates=tuple(tensor.name for tensor in sums),
        frees=tuple(tensor.name for tensor in (*writes, *sums) if tensor not in reads),
    )
    return alone, tuple({tensor.name: tensor for tensor in (*reads, *writes, *sums)}.values())


def _plain(program: Program, op: OpClass) -> tuple[Program, OpClass]:
    """The same message of full buffers, where it packs tensors; a norm as if all elements counted alike."""
    # How elements count depends on the group's positions, which this world may lack; the work does not depend on it.
    if '@' in str(op.attributes.get('ranks', '')):
        return program, replace(op, attributes={**op.attributes, 'ranks': ' '.join('1' for _ in op.reads)})
    scatters = op.operator == 'reduce_scatter'
    if op.operator not in ('all_gather', 'reduce_scatter'):
        return program, op
    shares = [program.tensor[name] for name in (op.writes + op.accumulates if scatters else op.reads)]
    if not any(share.members for share in shares):
        return program, op
    rest = list(op.reads if scatters else op.writes)
    buffers = []
    for share in shares:
        # Members of a packed share stand one behind the other; an unpacked share stands for one tensor.
        mine = [rest.pop(0) for _ in range(len(share.members) or 1)]
        full = replace(share, name=f'{share.name}.full', splits=(), members=(), initial='')
        buffers.append(full if share.members else program.tensor[mine[0]])
    names = tuple(full.name for full in buffers)
    added = tuple(full for full in buffers if full.name not in program.tensor)
    alone = replace(op, reads=names) if scatters else replace(op, writes=names)
    return program.replace(tensors=(*program.tensors, *added)), alone


def _operands(program: Program, op: OpClass) -> list[Tensor]:
    """What an op reads, in the order that it reads it; updates have tensors of their own, for they change them."""
    operands = []
    for place, name in enumerate(op.reads):
        tensor = program.tensor[name]
        shape = program.local_shape(tensor)
        made = operand(shape, place, _initial(tensor, op.operator), tensor.dtype)
        # An update changes its operands. Were they shared, the next item would meet numbers that no longer are usual.
        operands.append(replace(made, name=f'{op.name}.{made.name}') if op.phase == 'U' else made)
    return operands


def _initial(tensor: Tensor, operator: str) -> str:
    if not tensor.dtype.startswith('int'):
        is_state = tensor.kind in ('parameter', 'state')
        return tensor.initial if is_state else 'ones' if operator in LOGARITHMS else DRAWN
    # Any tokens do: whether ranks hold them in another order or further on changes no time.
    drawn = tensor.initial.partition('@')[0].partition(AHEAD)[0]
    return drawn if drawn.startswith(('tokens:', 'classes:')) else 'classes:2'


def _written(program: Program, op: OpClass, name: str) -> Tensor:
    tensor = program.tensor[name]
    return result(f'{op.name}>{name}', program.local_shape(tensor), tensor.dtype)


def twice(item: Item) -> Item:
    """Repeat an op, so that the second run adds to the sum that the first has created."""
    # The first must not free the sum, or the second would create it instead of adding to it.
    first, second = (replace(item.ops[-1], name=f'{item.name}.{word}') for word in ('first', 'again'))
    return replace(item, ops=(replace(first, frees=()), second))


# Compute items: products and attention over grids of sizes, and every other operator as lowering makes it.

HEADS = 8
"""At most so many heads in a sample of attention; more work is more samples."""
GRIDS = frozenset({'matmul', 'attention'})
"""Operators that are measured over grids of sizes."""
PRICED_BY_GRIDS = GRIDS | PRODUCTS


def grid_items(sizes: Sizes, world: int) -> list[Item]:
    """Everything that computes, over the sizes asked for."""
    products = itertools.product(sizes.products, repeat=3)
    attentions = itertools.product(sizes.head_dims, sizes.sequences, sizes.pairs)
    items = [matmul(m, n, k, phase) for m, n, k in products for phase in ('F', 'I', 'W')]
    for head_dim, sequence, pairs in attentions:
        # Scores are held in full, so larger combinations would not fit in the memory of a small machine.
        if pairs * sequence**2 <= sizes.scores:
            items += [attention(head_dim, sequence, pairs, phase) for phase in ('F', 'I')]
    return items + operators(sizes, world)


def matmul(m: int, n: int, k: int, phase: Phase) -> Item:
    """A product of ``m`` × ``k`` by ``k`` × ``n``: forward, for the gradient of the input or for that of the weight."""
    name = f'matmul.{m}.{n}.{k}.{phase}'
    # Weights are stored [outputs, inputs], so the forward reads the second factor transposed, as programs do.
    shapes = {'F': ((m, k), (n, k), (n,)), 'I': ((m, k), (k, n)), 'W': ((k, m), (k, n))}[phase]
    reads = [operand(shape, place) for place, shape in enumerate(shapes)]
    writes = [result(f'{name}>out', (m, n)), *([result(f'{name}>bias', (m,))] if phase == 'W' else [])]
    return _made(name, phase, reads, writes, {'m': m, 'n': n, 'k': k}, {'outputs': 1})


def attention(head_dim: int, sequence: int, pairs: int, phase: Phase) -> Item:
    """Causal attention with a key head for every query head.

    Arguments: ``pairs``, heads over all samples.
    """
    # The product of batch and heads decides the time; splitting it this way keeps rows of qkv at a usual width.
    heads = min(pairs, HEADS)
    batch, width = pairs // heads, heads * head_dim
    name = f'attention.{head_dim}.{sequence}.{pairs}.{phase}'
    qkv, y, lse = (batch, sequence, 3 * width), (batch, sequence, width), (batch, heads, sequence)
    shapes = {'F': (qkv,), 'I': (y, qkv, y, lse)}[phase]
    reads = [operand(shape, place) for place, shape in enumerate(shapes)]
    outs = {'F': (y, lse), 'I': (qkv,)}[phase]
    writes = [result(f'{name}>{place}', shape) for place, shape in enumerate(outs)]
    dims = {'batch': batch, 'sequence': sequence, 'heads': heads, 'kv_heads': heads, 'head_dim': head_dim}
    how: Attributes = {'groups': heads, 'queries': 1, 'head_dim': head_dim, 'causal': True}
    return _made(name, phase, reads, writes, dims, how)


def operators(sizes: Sizes, world: int) -> list[Item]:
    """All operators but products and attention, in every phase, as they stand in lowered programs."""
    candidates: list[Item] = []
    for index, probe in enumerate(sizes.probes):
        for program in _programs(probe, world):
            candidates += program_items(program, world, f'probe{index}.{len(candidates)}')
    return unique(
        # Products and attention are priced from their grids; measured here too, they would be counted twice.
        item
        for item in candidates
        if item.ops[-1].operator not in PRICED_BY_GRIDS and item.ops[-1].bytes <= sizes.moved
    )


def _programs(probe: Probe, world: int) -> Iterator[Program]:
    """Transformers as GPT-2 and as Qwen 3, and a network, unsharded and over two ranks; and blocks of layers."""
    model = Transformer(
        layers=1, hidden=probe.hidden, heads=probe.hidden // 32, vocab=probe.vocab, sequence=probe.sequence
    )
    dense = Dense(inputs=probe.hidden, outputs=probe.hidden)
    parts = replace(model, norm='rms_norm', activation='swiglu', position='rotary', qk_norm=True, bias=())
    # Sharding adds operators of its own: slices, pads, the cross entropy over a sharded vocabulary.
    for tensor in (1, 2) if world % 2 == 0 else (1,):
        plan = plans.Plan(tensor=tensor)
        yield lower(workload.Workload(model=model, batch=probe.batch, optimizer=workload.Adam()), plan, tensor)
        yield lower(workload.Workload(model=parts, batch=probe.batch), plan, tensor)
        rows = Network(layers=(dense, Relu(), dense))
        yield lower(workload.Workload(model=rows, batch=probe.batch * probe.sequence, loss='mse'), plan, tensor)
    for llama in (False, True):
        block = block_network(probe.sequence, probe.hidden, model.heads, probe.hidden, llama=llama)
        yield lower(workload.Workload(model=block, batch=probe.batch * probe.sequence, loss='mse'), plans.Plan(), 1)


def program_items(program: Program, world: int, prefix: str) -> list[Item]:
    """The distinct compute ops of a program, alone.

    Arguments: ``prefix`` of their names, different for each program.
    """
    items = []
    for op in program.op_classes:
        alone = isolate(program, replace(op, name=f'{prefix}.{op.name}'), world) if op.kind == 'compute' else None
        if alone is not None:
            items.append(_item(*alone))
    return unique(items)


def unique(items: Iterable[Item]) -> list[Item]:
    """The first of all items that do the same work."""
    # Reversed twice: of equal items the first stays, and stays at its place.
    return list({_signature(item): item for item in reversed(list(items))}.values())[::-1]


def _signature(item: Item) -> tuple[object, ...]:
    shapes = tuple((tensor.shape, tensor.dtype) for tensor in item.tensors)
    return (item.table, *sorted(item.key.items()), len(item.ops), shapes)


def _item(op: OpClass, tensors: tuple[Tensor, ...]) -> Item:
    return Item(*place_of(op), (op,), tensors)


def place_of(op: OpClass) -> tuple[str, Key]:
    """The table that an op's time belongs to, and the columns of its line."""
    dims = op.dims
    if op.operator == 'matmul':
        return 'matmul', {'m': dims['m'], 'n': dims['n'], 'k': dims['k'], 'phase': op.phase}
    if op.operator == 'attention':
        key = {'queries': dims['heads'] // dims['kv_heads'], 'head_dim': dims['head_dim']}
        pairs = dims['batch'] * dims['heads']
        return 'attention', {**key, 'sequence': dims['sequence'], 'pairs': pairs, 'phase': op.phase}
    return 'operator', {'operator': op.operator, 'phase': op.phase, 'bytes': int(op.bytes)}


def _made(
    name: str, phase: Phase, reads: list[Tensor], writes: list[Tensor], dims: dict[str, int], attributes: Attributes
) -> Item:
    """An item of one op, whose operator its name begins with."""
    operator, names = name.partition('.')[0], tuple(tensor.name for tensor in writes)
    op = OpClass(
        name=name,
        kind='compute',
        operator=operator,
        phase=phase,
        dims=dims,
        reads=tuple(tensor.name for tensor in reads),
        writes=names,
        frees=names,
        attributes=attributes,
    )
    return _item(op, (*reads, *writes))


# Communication items: collectives over their range of sizes, in groups of every size.

WIDTH = 4
"""Bytes of a number."""
RINGS = ('all_reduce', 'all_gather', 'reduce_scatter')
"""What is measured whether a program has it or not; an all-to-all, only where one does."""


def message_items(sizes: Sizes, net: Net, world: int, per_host: int = 0) -> list[Item]:
    """Every collective in groups of every size; the groups of one size communicate at once."""
    largest = net.rate * sizes.message_seconds
    return [
        collective(operator, members, size, hosts_of(members, per_host))
        for members in group_sizes(world, per_host)
        for operator in RINGS
        for size in both_sides(operator, sizes.messages)
        # On a slow shaped link a large message would take minutes; the smallest stays, as it tells the latency.
        if size == min(sizes.messages) or size <= largest
    ]


def both_sides(operator: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes on both sides of the size up to which the executor exchanges all-reduces."""
    return tuple(sorted({*sizes, SMALL, SMALL + 1})) if operator == 'all_reduce' and max(sizes) > SMALL else sizes


def algorithm(operator: str, size: float) -> str:
    """How the executor does it, see ``ranks.collectives``; fits must not mix algorithms."""
    if operator == 'all_reduce' and size <= SMALL:
        return 'exchange'
    return 'ring' if operator in RINGS else 'pairwise' if operator == 'all_to_all' else 'direct'


def rounded(size: int, ranks: int) -> int:
    """Bytes, rounded up to whole numbers for every rank of a group."""
    return -(-size // (WIDTH * ranks)) * WIDTH * ranks


def message_op(
    name: str, operator: str, size: int, partition: str, ranks: int, reads: Names, writes: Names, frees: Names = ()
) -> OpClass:
    """A collective in groups of so many ranks, or an end of a send; ``size``, bytes of the full vector."""
    row, attributes = COLLECTIVES.get(operator), Attributes()
    if row and 'shard' in (row.gives, row.gets):
        attributes = {'dim': 0}
    elif operator == 'all_to_all':
        attributes = {'joins': '0', 'cuts': '0', 'sizes': str(ranks)}
    return OpClass(
        name=name,
        kind='collective' if row else 'send' if operator == 'send' else 'recv',
        operator=operator,
        phase='F',
        bytes=float(size),
        partition=partition,
        peer={'send': 1, 'recv': -1}.get(operator, 0),
        reduce='sum' if row and row.adds else '',
        reads=reads,
        writes=writes,
        frees=frees,
        attributes=attributes,
    )


def collective(operator: str, members: int, size: int, hosts: int = 1) -> Item:
    """A collective of fp32 numbers.

    Arguments:
        size: bytes of the full vector, rounded up to whole numbers for every member.
        hosts: how many a group touches.
    """
    full, row = rounded(size, members), COLLECTIVES[operator]
    shape, out = (int(row.part(side, full // WIDTH, members)) for side in (row.gives, row.gets))
    name = f'{operator}.{members}.{size}'
    read, written = operand((shape,)), result(f'{name}>out', (out,))
    of = partition_name(members)
    op = message_op(name, operator, full, of, members, (read.name,), (written.name,), (written.name,))
    return _collective_item(op, members, (read, written), hosts)


def program_messages(program: Program, world: int, prefix: str, per_host: int = 0) -> list[Item]:
    """The distinct collectives of a program, alone, as far as this world has groups of their size."""
    messages = []
    for op in program.op_classes:
        alone = isolate(program, replace(op, name=f'{prefix}.{op.name}'), world) if op.kind == 'collective' else None
        size = program.partitions[op.partition].size if alone else 0
        if alone is not None and size in group_sizes(world, per_host):
            messages.append(_collective_item(alone[0], size, alone[1], hosts_of(size, per_host)))
    return unique(messages)


def _collective_item(op: OpClass, members: int, tensors: tuple[Tensor, ...], hosts: int) -> Item:
    key: dict[str, int | str] = {
        'operator': op.operator,
        'ranks': members,
        'nodes': hosts,
        'bytes': int(op.bytes),
        'algorithm': algorithm(op.operator, op.bytes),
    }
    return Item('collective', key, (op,), tensors)
