"""Compute items: products and attention over grids of sizes, and every other operator as lowering makes it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from executor.bench.item import Item, Key, isolate, operand, result
from executor.bench.sizes import Probe, Sizes
from simpar.cost.compute import PRODUCTS
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.model.library.blocks import block_network, llama_network
from simpar.model.library.gpt import Transformer
from simpar.plan import Plan
from simpar.program import OpClass, Program, Tensor
from simpar.program.op import Phase
from simpar.workload import Adam, Workload

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
    op = _op(name, 'matmul', phase, reads, writes, {'m': m, 'n': n, 'k': k}, {'outputs': 1})
    return _item(op, (*reads, *writes))


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
    attributes: dict[str, int | float | str | bool] = {
        'groups': heads,
        'queries': 1,
        'head_dim': head_dim,
        'causal': True,
    }
    return _item(_op(name, 'attention', phase, reads, writes, dims, attributes), (*reads, *writes))


def operators(sizes: Sizes, world: int) -> list[Item]:
    """All operators but products and attention, in every phase, as they stand in lowered programs."""
    found: list[Item] = []
    for index, probe in enumerate(sizes.probes):
        for program in _programs(probe, world):
            found += program_items(program, world, f'probe{index}.{len(found)}')
    return unique(
        # Products and attention are priced from their grids; measured here too, they would be counted twice.
        item
        for item in found
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
        plan = Plan(tensor=tensor)
        yield lower(Workload(model=model, batch=probe.batch, optimizer=Adam()), plan, tensor)
        yield lower(Workload(model=parts, batch=probe.batch), plan, tensor)
        rows = Network(layers=(dense, Relu(), dense))
        yield lower(Workload(model=rows, batch=probe.batch * probe.sequence, loss='mse'), plan, tensor)
    for blocks in (block_network, llama_network):
        block = blocks(probe.sequence, probe.hidden, model.heads, probe.hidden)
        yield lower(Workload(model=block, batch=probe.batch * probe.sequence, loss='mse'), Plan(), 1)


def program_items(program: Program, world: int, prefix: str) -> list[Item]:
    """The distinct compute ops of a program, alone.

    Arguments: ``prefix`` of their names, different for each program.
    """
    found = []
    for op in program.op_classes:
        alone = isolate(program, replace(op, name=f'{prefix}.{op.name}'), world) if op.kind == 'compute' else None
        if alone is not None:
            found.append(_item(*alone))
    return unique(found)


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
    return op.operator if op.operator in GRIDS else 'operator', _key(op)


def _key(op: OpClass) -> Key:
    """The columns of the table that an op's time belongs to."""
    dims = op.dims
    if op.operator == 'matmul':
        return {'m': dims['m'], 'n': dims['n'], 'k': dims['k'], 'phase': op.phase}
    if op.operator == 'attention':
        queries = dims['heads'] // dims['kv_heads']
        pairs = dims['batch'] * dims['heads']
        return {
            'queries': queries,
            'head_dim': dims['head_dim'],
            'sequence': dims['sequence'],
            'pairs': pairs,
            'phase': op.phase,
        }
    return {'operator': op.operator, 'phase': op.phase, 'bytes': int(op.bytes)}


def _op(
    name: str,
    operator: str,
    phase: Phase,
    reads: list[Tensor],
    writes: list[Tensor],
    dims: dict[str, int],
    attributes: dict[str, int | float | str | bool],
) -> OpClass:
    names = tuple(tensor.name for tensor in writes)
    return OpClass(
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
