"""Traffic of transformer blocks: what MindSpore's search, plain data × tensor parallelism and exact search move."""

from collections.abc import Iterable
from dataclasses import dataclass

from simpar.strategy_search.exact import evaluate, exact
from simpar.strategy_search.graph import Graph
from simpar.strategy_search.objective import Choice
from simpar.strategy_search.recursive import double_recursive
from tests.strategy_networks import transformer_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A transformer block in fp32 and the devices that it runs on."""

    batch: int
    sequence: int
    hidden: int
    heads: int
    ffn: int
    devices: int

    def graph(self) -> Graph:
        """Its operators."""
        return transformer_blocks(self.batch, self.sequence, self.hidden, self.heads, self.ffn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that a device moves in a step.

    Arguments:
        compat: MindSpore's double recursive strategies by version, each redistribution by its cheapest sequence.
        plain: the best data × tensor layout by ``plain_bytes``, with its degrees.
        laid_out: the same layout as strategies, counted like all the others; none where a degree does not divide.
        exact: exact search.
    """

    block: Block
    compat: dict[str, float]
    plain: float
    degrees: tuple[int, int]
    laid_out: float | None
    exact: float

    @property
    def other(self) -> float:
        """The least of the other ways; the formula's where the layout cannot be, else what the layout moves."""
        return min(self.plain if self.laid_out is None else self.laid_out, *self.compat.values())


def traffic(block: Block) -> Traffic:
    """What every way to split a block moves."""
    graph, devices = block.graph(), block.devices
    compat = {
        version: evaluate(graph, double_recursive(graph, devices, version), devices).cost for version in ('2.0', '2.10')
    }
    degrees = best_degrees(block)
    return Traffic(
        block=block,
        compat=compat,
        plain=plain_bytes(block, *degrees),
        degrees=degrees,
        laid_out=laid_out(graph, block, *degrees),
        exact=exact(graph, devices).cost,
    )


def plain_bytes(block: Block, data: int, tensor: int) -> float:
    """Ring traffic of Megatron's layout: two all-reduces forward and two backward of a [tokens / data, hidden] tensor
    over the tensor ranks, and an all-reduce of 12 hidden² / tensor gradients over the data ranks, in fp32.

    For ffn = 4 × hidden. Does not count norms' parameters, nor asks whether the heads divide.
    """
    activations = 4 * block.batch * block.sequence / data * block.hidden
    gradients = 4 * 12 * block.hidden**2 / tensor
    return 4 * 2 * (tensor - 1) / tensor * activations + 2 * (data - 1) / data * gradients


def best_degrees(block: Block) -> tuple[int, int]:
    """The data and tensor degrees that move least; data at most the batch."""
    # Ascending: of equal traffic the least data degree wins.
    powers = [1 << power for power in range(block.devices.bit_length()) if 1 << power <= block.batch]
    pairs = [(data, block.devices // data) for data in powers]
    return min(pairs, key=lambda pair: plain_bytes(block, *pair))


def laid_out(graph: Graph, block: Block, data: int, tensor: int) -> float | None:
    """Bytes of Megatron's layout as strategies of a graph of one block; None where a degree does not divide."""
    if block.heads % tensor or block.batch % data:
        return None
    return evaluate(graph, megatron(graph, data, tensor), block.devices).cost


def megatron(graph: Graph, data: int, tensor: int) -> dict[str, Choice]:
    """Megatron's strategies (Shoeybi et al. 2019) for the operators of transformer blocks, but for reshapes."""
    rows, heads = (data, 1), (data, tensor, 1, 1)
    by_name = {
        'norm1': (rows, (1,), (1,)),
        'norm2': (rows, (1,), (1,)),
        'scores': (heads, heads),
        'scale': (heads, ()),
        'softmax': (heads,),
        'values': (heads, heads),
        'o': ((data, tensor), (tensor, 1)),
        'down': ((data, tensor), (tensor, 1)),
        'gelu': ((data, tensor),),
        'add1': (rows, rows),
        'add2': (rows, rows),
        'up': (rows, (1, tensor)),
        **dict.fromkeys('qkv', (rows, (1, tensor))),
    }
    found = {}
    for operator in graph.operators:
        last = operator.name.rsplit('.', 1)[-1]
        if operator.primitive == 'Transpose':
            # Behind the scores heads stand in dim 1 and go back to dim 2; before them it is the other way round.
            inward = operator.name.endswith('attention.transpose')
            found[operator.name] = Choice((heads if inward else (data, 1, tensor, 1),))
        elif last in by_name:
            found[operator.name] = Choice(by_name[last])
    return found


def table(blocks: Iterable[Block]) -> str:
    """A Markdown table of what blocks move, in MB."""
    lines = [
        '| block | devices | MindSpore 2.10 | 2.0 | data × tensor | exact | exact / best other |',
        '|---|---|---|---|---|---|---|',
    ]
    for block in blocks:
        moved = traffic(block)
        name = f'b{block.batch} s{block.sequence} h{block.hidden}'
        degrees = '{} × {}'.format(*moved.degrees)
        numbers = [moved.compat['2.10'], moved.compat['2.0'], moved.plain, moved.exact]
        old, older, plain, least = (f'{number / 1e6:.2f}' for number in numbers)
        share = f'{moved.exact / moved.other:.2f}'
        lines.append(f'| {name} | {block.devices} | {old} | {older} | {plain} ({degrees}) | {least} | {share} |')
    return '\n'.join(lines)


def recorded_blocks() -> list[Block]:
    """The blocks that the recorded searches of MindSpore's compiler split, on 2 to 64 devices."""
    shapes = ((16, 128, 512, 8, 2048), (2, 512, 2048, 16, 8192), (1, 256, 4096, 32, 16384), (64, 64, 256, 4, 1024))
    return [
        Block(batch=b, sequence=s, hidden=h, heads=n, ffn=f, devices=1 << power)
        for b, s, h, n, f in shapes
        for power in range(1, 7)
    ]
