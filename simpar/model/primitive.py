"""MindSpore's primitives: how each may be split, and what its searches of strategies do with it.

What is the same for most stands here; what one primitive does otherwise stands in the file of its operator. The rules
are those of MindSpore's C++ (``rec_partition.cc``, ``rec_generate_strategy.cc``, ``edge_costmodel.cc``), told apart by
version.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from simpar.layout import Rule

Shape = tuple[int, ...]
ShardCounts = tuple[int, ...]
"""Into how many slices each dim of a tensor is split."""
Strategy = tuple[ShardCounts, ...]
"""The same for each tensor that a primitive reads."""
Compat = Literal['2.0', '2.10']
BOTH: Final[frozenset[Compat]] = frozenset(('2.0', '2.10'))
NEITHER: Final[frozenset[Compat]] = frozenset()
Pricing = Literal['matrix', 'attention', 'streaming', 'view']
"""What bounds an operator: the matrix units, its own table, bytes moved, or nothing (it launches nothing)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The attributes that a primitive is called with.

    Arguments:
        transpose_a, transpose_b: the last two dims of an operand of a product are swapped.
        permutation: of a Transpose.
        axes: reduced (reductions, Softmax), added or dropped dims, counted from the left.
        keep_dims: whether a reduction keeps its axes with size 1.
    """

    transpose_a: bool = False
    transpose_b: bool = False
    permutation: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    keep_dims: bool = False


@dataclass(frozen=True, slots=True)
class Main:
    """How double recursive search split an operator itself: shards of four right-aligned dims of its first input, its
    second input and its output."""

    first: ShardCounts
    second: ShardCounts
    output: ShardCounts


@dataclass(frozen=True, slots=True)
class Use:
    """A primitive at its place in a graph that is searched.

    Arguments:
        call: its attributes.
        shapes: of what it reads, unsharded.
        output: shape of its result, unsharded.
        compat: version of MindSpore whose search asks.
        devices: of a stage.
    """

    call: Call
    shapes: tuple[Shape, ...]
    output: Shape
    compat: Compat
    devices: int


@dataclass(frozen=True)
class Primitive:
    """One of MindSpore's operators, by its name there.

    Arguments: ``same_backward``: programs show its backward by the same name; ``stops``: in double recursive search a
    neighbour learns nothing from it.
    """

    name: str
    pricing: Pricing = 'streaming'
    same_backward: bool = False
    stops: bool = False

    weighs_work: ClassVar[bool] = False
    """Propagation compares its work and its sums, beside redistribution."""
    scatters: ClassVar[bool] = False
    """Its sum may be scattered over the rows of its output."""
    main: ClassVar[frozenset[Compat]] = NEITHER
    """Versions whose double recursive search splits it itself; in others it follows its neighbours."""
    halved: ClassVar[Literal['even dim', 'batch', 'product', 'nothing']] = 'even dim'
    """What a loop of double recursive search halves of it."""
    follows_main_only: ClassVar[bool] = False
    """In 2.10 it takes what comes in from a main operator alone."""

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """Its named dims; of what models of the library alone have, operators tell them (``Operator.axes``).

        Arguments:
            name: for messages.
            call: its attributes.
            shapes: of what it reads, unsharded.
            output: shape of its result, unsharded.
        """
        raise NotImplementedError(self.name)

    # double recursive search gives the operators that are not main the strategy of a neighbour

    def output_shards(self, use: Use, strategy: Strategy) -> ShardCounts:
        """How its output is split by a strategy; () where that is not known."""
        return next((dims for dims in strategy if dims), ())

    def input_shards(self, use: Use, wanted: ShardCounts) -> ShardCounts:
        """What a reader wants of its output, told backward through it to its first input; () where not known."""
        return wanted[: len(use.output)]

    def strategy(self, use: Use, shards: ShardCounts) -> Strategy:
        """A strategy for all that it reads, made of one tensor's shards."""
        return tuple(same(shards, shape) for shape in use.shapes)

    def as_seen(self, shape: Shape) -> Shape:
        """A shape as the search sees it where it splits the primitive itself."""
        return shape

    def main_output(self, use: Use, main: Main, rank: int) -> ShardCounts:
        """How its output is split as a main operator, for a reader.

        Arguments: ``rank``, of what the reader reads.
        """
        return main.output[4 - rank :]

    def main_strategy(self, use: Use, main: Main) -> Strategy:
        """Its strategy as a main operator."""
        first, *others = use.shapes
        return (main.first[4 - len(first) :], *((1,) * len(shape) for shape in others))


def by_rows(count: int, shapes: tuple[Shape, ...]) -> Strategy:
    """Dim 0 of every tensor split so often, nothing else."""
    return tuple((count, *(1,) * (len(shape) - 1)) for shape in shapes)


def same(shards: ShardCounts, shape: Shape) -> ShardCounts:
    """The same shards for another input: 1 on dims of size 1 and on those that the shards do not reach."""
    # A dim of size 1 is broadcast: there is nothing in it to split.
    return tuple(1 if size == 1 or dim >= len(shards) else shards[dim] for dim, size in enumerate(shape))


def divisible(shards: ShardCounts, shape: Shape) -> ShardCounts:
    """Counts of shards, 1 where they do not divide their dim."""
    return tuple(count if size >= count and size % count == 0 else 1 for count, size in zip(shards, shape, strict=True))


def dim_names(shape: Shape) -> tuple[str, ...]:
    """Names of dims by their place."""
    return tuple(f'd{dim}' for dim in range(len(shape)))
