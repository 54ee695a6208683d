"""What every operator has: keys in files, the shape of its result, its named dims, and MindSpore's primitives.

An operator is one class in one file of this folder, and one row of the registry in its ``__init__``.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import get_annotations
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeVar, get_type_hints

from simpar import files
from simpar import keys as described
from simpar.layout import Rule
from simpar.model.keys import Aliases, Layouts, Name, Of, Pair, SplitCounts, Strategy
from simpar.model.ops import Load, Local, Ops, Parameter
from simpar.model.primitive import Call, Pricing, Primitive, Shape

T = TypeVar('T', bound='Operator')
PLAIN: Final = Call()
"""No attributes."""

_FIELDS: Final = {
    row['key']: described.Row(**{column: row.get(column, '') for column in described.Row._fields}).field
    for row in files.read_csv(Path(__file__).with_name('keys.csv'))
}
"""Limits, examples and meaning of keys, by ``operator.key``, or by the key where all operators mean the same."""

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Says to type checkers that a decorator makes dataclasses."""
        return lambda decorator: decorator


@dataclass_transform(frozen_default=True, kw_only_default=True)
def keys(kind: type[T]) -> type[T]:
    """Marks a base whose annotated attributes are keys of every operator made from it."""
    return kind


@dataclass_transform(frozen_default=True, kw_only_default=True)
def operator(kind: type[T]) -> type[T]:
    """Makes an operator a frozen dataclass: keys that it alone has first, as docs list them, then those of its bases.

    A key of a base that it says again, in words of its own, stands where the base has it.
    """
    # Bases are only marked, no dataclasses: their keys are written into the class itself, in the order of docs.
    bases = [base for base in kind.__mro__[1:] if issubclass(base, Operator)]
    shared: dict[str, Any] = {}
    for base in bases:
        # Bases come from the nearest on: what it says of a key goes before what those behind it say.
        for name, hint in _hints(base).items():
            shared.setdefault(name, hint)
    own = get_annotations(kind)
    first = {name: hint for name, hint in own.items() if name not in shared}
    kind.__annotations__ = {name: _typed(kind, name, hint) for name, hint in {**first, **shared, **own}.items()}
    # What `Operator` has for all is not made again for each: that takes longer than anything else of an import.
    return dataclass(frozen=True, kw_only=True, eq=False, repr=False)(kind)


def _typed(kind: type[T], name: str, hint: Any) -> Any:
    """The type of a key with what the table says of it: of the operator, of the one that it is a form of, or of all."""
    owners = (f'{base.key}.' for base in kind.__mro__ if issubclass(base, Operator) and 'key' in vars(base))
    field = next((_FIELDS[f'{owner}{name}'] for owner in (*owners, '') if f'{owner}{name}' in _FIELDS), None)
    return Annotated[hint, field] if field else hint


@cache
def _hints(base: type) -> dict[str, Any]:
    """A base's own keys, as types: their names mean nothing in the module of an operator."""
    # Python 3.10 cannot evaluate a ClassVar that says nothing more, so these are left out by their text.
    own = {name: hint for name, hint in get_annotations(base).items() if not str(hint).startswith('ClassVar')}
    names = vars(sys.modules[base.__module__])
    return get_type_hints(SimpleNamespace(__annotations__=own), names, include_extras=True)


class MisfitError(Exception):
    """What does not fit between an operator and what it reads.

    Arguments:
        key: of the operator to change; empty: the operator itself.
        what: is wrong.
        instead: what to write.
    """

    def __init__(self, key: str, what: str, instead: str) -> None:
        super().__init__(key, what, instead)
        self.keys, self.what, self.instead = (key,) if key else (), what, instead


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One of the primitives that MindSpore's compiler makes of an operator's forward, in order.

    Arguments:
        primitive: what it calls.
        reads: parameters or names of values; an empty name stands for what the step before gives.
        shape: of its result, unsharded.
        part: its name behind the operator's; empty: the operator's own.
        call: attributes of the primitive.
    """

    primitive: Primitive
    reads: tuple[str | Parameter, ...]
    shape: Shape
    part: str = ''
    call: Call = PLAIN


@keys
class Operator(ABC):
    """An operator of a network; the first line of its docstring is its line in the docs."""

    key: ClassVar[str]
    """Under which files have it."""
    primitives: ClassVar[Mapping[str, Primitive]]
    """By the operator of its op classes in the forward, the primitive that it is to MindSpore or to our searches."""
    lead: ClassVar[int] = 0
    """Which of the inputs in its strategy is the first value that it reads."""
    splits_result: ClassVar[int] = 0
    """Where the sum behind it may be scattered, how many inputs stand in its strategy; 0: it may not."""
    roles: ClassVar[tuple[str, ...]] = ('x',)
    """The roles of what it reads, in its ops."""
    full: ClassVar[bool] = False
    """Its parameters are full, so that its primitive does not read them."""

    pipeline_stage: int | None = None
    recompute: bool = False
    name: Name = ''

    def __eq__(self, other: object) -> bool:
        """Equal keys of the same kind."""
        return self.__dict__ == other.__dict__ if type(self) is type(other) else NotImplemented

    def __hash__(self) -> int:
        """Of all keys."""
        return hash(tuple(self.__dict__.values()))

    def __repr__(self) -> str:
        """As it would be made."""
        return f'{type(self).__name__}({", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())})'

    def reads(self, before: str) -> tuple[str, ...]:
        """The names of what it reads.

        Arguments: ``before``, the name of the layer before it, or of the input.
        """
        return (before,)

    @property
    def strategy(self) -> Strategy:
        """Slices of its inputs; empty: it lies as its input does, or by batch."""
        return ()

    @property
    def layout(self) -> Layouts:
        """The same by names of axes."""
        return ()

    @property
    def comm_fusion(self) -> int | None:
        """Its messages are fused with those of equal id; none: the plan says."""
        return None

    @property
    def out_strategy(self) -> SplitCounts:
        """Slices of its result where a sum over ranks is scattered; empty: it is not."""
        return ()

    @property
    def out_layout(self) -> Aliases:
        """The same by names of axes."""
        return ()

    @abstractmethod
    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """The shape of its result; raises ``MisfitError``.

        Arguments: ``samples``, in dim 0 of the network's input; shapes of what it ``reads``.
        """

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Its named dims, inputs in the order of its strategy; weights of a dense layer are [in, out].

        Arguments: ``name``, for messages; shapes of what it ``reads``.
        """
        # The first primitive alone tells the dims: a bias behind it lies as its result does.
        result = self.result_shape(reads[0][0], *reads)
        step, left = next(iter(self.steps(('',) * len(reads), result))), iter(reads)
        shapes = tuple(one.shape if isinstance(one, Parameter) else next(left) for one in step.reads)
        return step.primitive.axes(name, step.call, shapes, result)

    def shape_of_copies(self, result: Shape, copies: int) -> Shape:
        """The shape of its result where a micro-batch has so many copies; the same unless told."""
        return result

    def load(self, *reads: Load | None) -> Load | None:
        """How full its result is, where that has room for what a router sends; as what it reads first, unless told.

        Arguments: the same of all that it ``reads``.
        """
        return reads[0] if reads else None

    @abstractmethod
    def ops(self, local: Local) -> Ops:
        """What one rank does in F, I and W."""

    @property
    def tied(self) -> str:
        """The name of the weight that it shares with an operator before it; empty: none."""
        return ''

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """What it trains.

        Arguments: ``result``, shape of its result.
        """
        return ()

    def call(self, result: Shape) -> Call:
        """What its primitive is called with.

        Arguments: ``result``, shape of its result.
        """
        return PLAIN

    def steps(self, reads: tuple[str, ...], result: Shape) -> Iterator[Step]:
        """What MindSpore's compiler makes of its forward: one primitive, unless it says otherwise.

        Arguments: ``reads``, names; shape of its ``result``.
        """
        (primitive,) = self.primitives.values()
        own = () if self.full else self.parameters(result)
        # An embedding's strategy has the weight before the tokens (``lead`` 1).
        inputs: tuple[str | Parameter, ...] = (*own, *reads) if self.lead else (*reads, *own)
        yield Step(primitive=primitive, reads=inputs, shape=result, call=self.call(result))

    @classmethod
    def pricing(cls) -> Pricing:
        """What bounds its main op class."""
        return next(iter(cls.primitives.values())).pricing


@keys
class SameShape(Operator):
    """Gives what has the shape of what it reads first."""

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """That of what it reads."""
        return reads[0]


@keys
class Sharded(Operator):
    """An operator that takes a strategy; without one it lies as its input does, as far as that can be."""

    strategy: Strategy = ()
    layout: Layouts = ()


@keys
class Unary(Operator):
    """An operator of one value."""

    of: Of = ''

    def reads(self, before: str) -> tuple[str, ...]:
        """What ``of`` names, or the layer before it."""
        return (self.of or before,)


@keys
class Binary(Operator):
    """An operator of two values."""

    of: Pair

    def reads(self, before: str) -> tuple[str, ...]:
        """What ``of`` names."""
        return self.of


@keys
class Trained(Sharded):
    """An operator that has parameters."""

    comm_fusion: int | None = None

    @property
    def has_own(self) -> bool:
        """Whether any of them is its own, not another operator's too."""
        return True


@keys
class Weighted(Trained):
    """A product of a weight, split by batch unless it is told otherwise."""


def shown(shape: Shape) -> str:
    """The shape of a sample, in words."""
    return 'shape ' + str(list(shape[1:]))
