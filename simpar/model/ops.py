"""Ops of operators, what they read and keep, and their share of work under a mask of documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from simpar.layout import TensorLayout
from simpar.program import Attribute

# Op templates: what an operator does in F, I and W, by the roles of its tensors instead of their names.
#
# Roles are the names of what the operator reads, ``y`` for its result, the names of its parameters and of what it
# keeps besides, ``dy`` for the gradient of the result, and ``d`` before a role for the gradient of what it reads. A
# role that begins with ``=`` is the name of a tensor.

Attributes = Mapping[str, Attribute]
NAMED = '='
"""What begins a role that is the name of a tensor."""


@dataclass(frozen=True, slots=True)
class Work:
    """One op.

    Arguments:
        operator: the kernel.
        reads, writes: roles, in the order that the kernel takes and gives them; of I, ``writes`` besides the gradient.
        flops: floating-point operations on one rank for one copy.
        moved: bytes of memory traffic; None: all that it reads and writes.
        dims: local sizes that cost tables are keyed by.
        suffix: what its name has behind the operator's.
        of: the operator that a gradient is named after, if it is another.
    """

    operator: str
    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()
    flops: float = 0.0
    moved: float | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    attributes: Attributes = field(default_factory=dict)
    suffix: str = ''
    of: str = ''


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor that no operator writes.

    Arguments:
        role: behind the operator's name, or after ``=`` a name of its own.
        shape: unsharded.
        initial: ``zeros``, ``ones``, or ``given:NAME`` of a module; empty: normal numbers with the model's deviation.
        trained: else it is a constant.
        layout: over the ranks of a stage; None: all of them hold all of it.
        dtype: of a constant; empty: that of the step.
        name: of a constant in programs, which several operators may read.
    """

    role: str
    shape: tuple[int, ...] = ()
    initial: str = ''
    trained: bool = True
    layout: TensorLayout | None = None
    dtype: str = ''
    name: str = ''

    def on(self, layout: TensorLayout) -> Parameter:
        """The same in a layout."""
        return replace(self, layout=layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How full the slots of experts are that tokens are sent to.

    One expert, the fullest, has ``imbalance`` times the mean; all others share the rest equally. A rank that holds
    several experts holds the fullest and some of the others.

    Arguments:
        dim: that counts experts; ``experts``, its length.
        mean: share of the slots of an expert that tokens take, where all experts have equally many.
        imbalance: tokens of the fullest expert over the mean.
    """

    dim: int
    experts: int
    mean: float
    imbalance: float = 1.0

    def fill(self, ranks: int) -> float:
        """Of the fullest rank's slots, the share that tokens take; argument: ranks that share the experts."""
        local = self.experts // ranks
        # No division by zero: one expert has all tokens, whatever the imbalance.
        others = (self.experts - self.imbalance) / max(self.experts - 1, 1)
        fullest = self.imbalance + (local - 1) * others if self.experts > 1 else 1.0
        return min(1.0, self.mean * fullest / local)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A tensor that an operator makes beside its result.

    Arguments:
        role: as of parameters.
        shape: of one micro-batch, unsharded.
        layout: over the ranks of a stage.
        dtype: empty: that of the step.
    """

    role: str
    shape: tuple[int, ...]
    layout: TensorLayout
    dtype: str = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """The ops of one operator.

    Arguments:
        F: forward.
        I: for each role that it reads the op that makes its gradient; None: the gradient of the result is it. What is
            left out gets none.
        W: adds to the gradients of all ``parameters``; None: no op does.
        kept: registered behind the result, in this order.
        made_backward: written by ops of I, registered before them.
        saves_result: the backward reads the result.
        constants: what nothing trains and no operator writes.
        dtype: of the result; empty: that of the step.
    """

    F: Work
    I: Mapping[str, Work | None] = field(default_factory=dict)
    W: Work | None = None
    parameters: tuple[Parameter, ...] = ()
    kept: tuple[Kept, ...] = ()
    made_backward: tuple[Kept, ...] = ()
    saves_result: bool = False
    constants: tuple[Parameter, ...] = ()
    dtype: str = ''


class Local(Protocol):
    """Where an operator stands, for its template: what one rank has for one copy, by the roles of its tensors."""

    @property
    def name(self) -> str:
        """The operator's name in programs."""

    @property
    def world(self) -> int:
        """Ranks of a stage."""

    @property
    def copies(self) -> int:
        """Copies of a micro-batch."""

    @property
    def loss_weight(self) -> float:
        """What the mean of a loss over all samples of a micro-batch counts in the loss of a step."""

    @property
    def loss_scale(self) -> float:
        """What multiplies gradients, and not the loss."""

    def fullest(self, role: str) -> float:
        """What the fullest rank has of a value over the mean of all ranks."""

    def share(self, role: str) -> float:
        """The part of a value's gradient that this rank gives, where several ranks make the same gradient."""

    @property
    def inputs(self) -> tuple[TensorLayout, ...]:
        """Layouts of all that the operator's axes name, parameters too, in their order."""

    @property
    def output(self) -> TensorLayout:
        """The layout of the result once nothing is left to be summed."""

    @property
    def balanced(self) -> int:
        """Context ranks that hold chunks from both ends of a sequence; 0: tokens lie in order."""

    def elements(self, role: str) -> int:
        """Elements of a rank's slice of one copy."""

    def size(self, role: str) -> int:
        """Bytes of a rank's slice of one copy."""

    def shape(self, role: str) -> tuple[int, ...]:
        """The unsharded shape of one micro-batch."""

    def slice_shape(self, role: str) -> tuple[int, ...]:
        """The shape of a rank's slice, of all copies."""

    def layout(self, role: str) -> TensorLayout:
        """How a value lies."""

    def partition(self, layout: TensorLayout, dim: int) -> str:
        """The partition whose ranks hold the slices of a dim; empty: the dim is unsharded."""


def given(**told: Attribute) -> Mapping[str, Attribute]:
    """Those attributes that say anything: that are neither false, nor 0, nor empty."""
    return {key: value for key, value in told.items() if value}


def placed(local: Local, layout: TensorLayout, dim: int) -> Attributes:
    """What a kernel must know to tell the places of a rank's tokens: nothing where it has all of them.

    Arguments: ``dim`` of the sequence.
    """
    partition = local.partition(layout, dim)
    return given(partition=partition, balanced=local.balanced) if partition else {}


def unary(
    local: Local,
    operator: str,
    *,
    saves: tuple[str, ...] = (),
    flops: tuple[float, float] = (0.0, 0.0),
    forward: Attributes | None = None,
    backward: Attributes | None = None,
) -> Ops:
    """An operator of one value; ``saves``, what its backward reads; ``flops`` an element, forward and backward."""
    elements = local.elements('y')
    return Ops(
        F=Work(operator, ('x',), ('y',), flops=flops[0] * elements, attributes=forward or {}),
        I={'x': Work(operator, ('dy', *saves), flops=flops[1] * elements, attributes=backward or {})},
        saves_result='y' in saves,
    )


def slice_text(local: Local, role: str) -> str:
    """The shape of a rank's slice for a kernel, of any count of samples."""
    # −1: ``slice_shape`` counts the samples of all copies, and a kernel runs on those of one.
    return text((-1, *local.slice_shape(role)[1:]))


def text(numbers: Sequence[int]) -> str:
    """Numbers as an attribute of an op class."""
    return ' '.join(map(str, numbers))


# Packed documents: a sample of several, of which no token sees another's, and each of which begins at position 0.

DIM: Final = 'documents_of_'
"""What the names of dims begin with that count documents by their length."""


def packed(documents: int | Sequence[int], sequence: int) -> tuple[int, ...]:
    """The lengths of a sample's documents; one of them fills it: nothing is packed.

    Arguments: ``documents``, lengths, or one for all but the last, which takes what is left; 0: one document.
    """
    if not isinstance(documents, int):
        lengths = tuple(documents)
    elif 0 < documents < sequence:
        full, left = divmod(sequence, documents)
        lengths = (documents,) * full + ((left,) if left else ())
    else:
        lengths = ()
    return lengths if len(lengths) > 1 else ()


def told(documents: Sequence[int]) -> Attributes:
    """What a kernel must know; nothing where nothing is packed."""
    return given(documents=text(documents))


def dims_of(documents: Sequence[int]) -> dict[str, int]:
    """How many documents there are of each length, as dims of an op."""
    return {f'{DIM}{length}': count for length, count in sorted(Counter(documents).items())}


def counts_of(dims: Mapping[str, int]) -> dict[int, int]:
    """By length how many documents a sample has, from an op's dims; else one."""
    counts = {int(name.removeprefix(DIM)): count for name, count in dims.items() if name.startswith(DIM)}
    return counts or {dims['sequence']: 1}


def seen(counts: Mapping[int, int], window: int, sequence: int) -> float:
    """Pairs of tokens of which one sees the other, as a share of those of one causal document of the same sequence.

    Arguments: ``counts`` of documents by length; ``window``, how many tokens one sees, itself and those before it; 0:
    all of its document.
    """
    bands = ((count, length, _band(min(window or length, length) / length)) for length, count in counts.items())
    return sum(count * (length / sequence) ** 2 * band for count, length, band in bands)


def _band(share: float) -> float:
    # Without a window half of a square; with one a band of its width, less the triangle before the first token.
    return share * (2 - share)
