"""The table of aten operators that a module may call, and its axis rules: from the shapes of what a call reads, names.

A rule takes a call's arguments, with an ``Arg`` for each tensor, and its result's shape. It gives the names of each
tensor's dims, of the result's, and which names stay unsharded. ``operators.csv`` has a row for each operator.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from simpar import errors, files
from simpar.layout import ONE, operators
from simpar.torch_module.graph import of_kind

Shape = tuple[int, ...]
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Arg:
    """A tensor that a call takes: its place among the call's tensors and its shape."""

    place: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class Dims:
    """Names of the dims of all tensors and of the result, and those that stay unsharded."""

    inputs: tuple[Names, ...]
    result: Names
    fixed: tuple[str, ...] = ()


class UnclearError(Exception):
    """A call that a rule does not know: what it is, and what to do."""


Arguments = Mapping[str, Any]
"""By the names of the operator's schema."""
Rule = Callable[[Arguments, Shape], Dims]


def tensors(value: Any) -> Iterator[Arg]:
    """All tensors of arguments, in order."""
    return of_kind(value, Arg)


def named(rank: int) -> Names:
    """d0, d1, ..."""
    return tuple(f'd{dim}' for dim in range(rank))


def aligned(shape: Shape, result: Shape, names: Names) -> Names:
    """Names of a tensor that is broadcast to a result, from the last dim on."""
    behind = len(result) - len(shape)
    return tuple(ONE if length == 1 < result[behind + dim] else names[behind + dim] for dim, length in enumerate(shape))


def elementwise(call: Arguments, result: Shape) -> Dims:
    """Each place of the result from the same place of its inputs, broadcast from the last dim on."""
    names = named(len(result))
    return Dims(tuple(aligned(arg.shape, result, names) for arg in tensors(call)), names)


def permuted(call: Arguments, result: Shape) -> Dims:
    """Dims in another order."""
    (x,) = tensors(call)
    names = named(len(x.shape))
    order = list(range(len(x.shape)))
    if 'dims' in call:
        order = [dim % len(order) for dim in call['dims']]
    elif 'dim0' in call:
        one, other = call['dim0'] % len(order), call['dim1'] % len(order)
        order[one], order[other] = order[other], order[one]
    else:
        order.reverse()
    return Dims((names,), tuple(names[dim] for dim in order))


def reshaped(call: Arguments, result: Shape) -> Dims:
    """The same elements in another shape: of dims that become one, the first may be sharded."""
    (x,) = tensors(call)
    rule = operators.reshape('', x.shape, result)
    return Dims(rule.inputs, rule.output, tuple(rule.fixed))


def expanded(call: Arguments, result: Shape) -> Dims:
    """Dims of length 1 become longer; these are sharded nowhere."""
    (x,) = tensors(call)
    names = named(len(result))
    own = aligned(x.shape, result, names)
    behind = len(result) - len(x.shape)
    made = tuple(ONE if dim < behind or own[dim - behind] == ONE else name for dim, name in enumerate(names))
    return Dims((own,), made)


def repeated(call: Arguments, result: Shape) -> Dims:
    """Dims that are repeated, or padded, stay unsharded."""
    (x,) = tensors(call)
    names = named(len(result))
    behind = len(result) - len(x.shape)
    own = names[behind:]
    longer = tuple(name for name, length, made in zip(own, x.shape, result[behind:], strict=True) if length != made)
    return Dims((own,), (*(ONE for _ in range(behind)), *own), longer)


def reduced(call: Arguments, result: Shape) -> Dims:
    """Dims that are reduced stay unsharded."""
    (x,) = tensors(call)
    names, dims = named(len(x.shape)), call.get('dim')
    gone = {dim % len(names) for dim in ([dims] if isinstance(dims, int) else dims or range(len(names)))}
    keep = bool(call.get('keepdim'))
    output = tuple(ONE if dim in gone else name for dim, name in enumerate(names) if keep or dim not in gone)
    return Dims((names,), output, tuple(names[dim] for dim in sorted(gone)))


def along(*keys: str) -> Rule:
    """A call along the dims that a key says, which stay unsharded; other inputs are broadcast."""

    def rule(call: Arguments, result: Shape) -> Dims:
        first, *_ = tensors(call)
        rank = len(first.shape)
        said = next((call[key] for key in keys if call.get(key) is not None), None)
        chosen = {dim % rank for dim in ([said] if isinstance(said, int) else said or [rank - 1 if not keys else 0])}
        names = named(rank)
        inputs = tuple(names[rank - len(arg.shape) :] for arg in tensors(call))
        return Dims(inputs, names, tuple(names[dim] for dim in sorted(chosen)))

    return rule


def selected(call: Arguments, result: Shape) -> Dims:
    """A dim goes; it stays unsharded."""
    (x,) = tensors(call)
    names = named(len(x.shape))
    dim = call.get('dim', 0) % len(names)
    return Dims((names,), names[:dim] + names[dim + 1 :], (names[dim],))


def stacked(call: Arguments, result: Shape) -> Dims:
    """A new dim, which stays unsharded."""
    dim = call.get('dim', 0) % len(result)
    names = named(len(result))
    own = names[:dim] + names[dim + 1 :]
    return Dims(tuple(own for _ in tensors(call)), (*names[:dim], ONE, *names[dim + 1 :]))


def normalised(call: Arguments, result: Shape) -> Dims:
    """The last dims are normalised over; weights and biases have them."""
    names, count = named(len(result)), len(call['normalized_shape'])
    inputs = tuple(names[len(names) - len(arg.shape) :] for arg in tensors(call))
    return Dims(inputs, names, names[len(names) - count :])


def multiplied(call: Arguments, result: Shape) -> Dims:
    """Matrices for each index of the leading dims; what is summed over stays unsharded."""
    *added, a, b = tensors(call)
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise UnclearError('multiplies a vector; write it with matrices, e.g. x.unsqueeze(-1)')
    lead = named(len(result) - 2)
    # Leading dims are broadcast like those of elementwise operators.
    left, right = (aligned(of.shape[:-2], result[:-2], lead) for of in (a, b))
    names = (*lead, 'm', 'n')
    more = tuple(aligned(one.shape, result, names) for one in added)
    return Dims((*more, (*left, 'm', 'k'), (*right, 'k', 'n')), names, ('k',))


def projected(call: Arguments, result: Shape) -> Dims:
    """x · weightᵀ + bias of a weight that is computed; what is summed over stays unsharded."""
    rows = named(len(result) - 1)
    inputs = ((*rows, 'k'), ('n', 'k'), ('n',))[: len(list(tensors(call)))]
    return Dims(inputs, (*rows, 'n'), ('k',))


def einsum(call: Arguments, result: Shape) -> Dims:
    """As its equation says; what is summed over stays unsharded."""
    left, arrow, right = call['equation'].replace(' ', '').partition('->')
    if not arrow or '.' in left:
        raise UnclearError('is an einsum without -> or with ...; write every dim with a letter')
    gone = tuple(sorted(set(left) - set(right) - {','}))
    return Dims(tuple(tuple(part) for part in left.split(',')), tuple(right), gone)


def attention(call: Arguments, result: Shape) -> Dims:
    """By samples and by heads; tokens and features stay unsharded."""
    query, key, value, *mask = tensors(call)
    lead = ('b', 'h')[: len(result) - 2]
    pairs = (*lead, 's', 't')
    square = (*result[:-1], key.shape[-2])
    inputs = [
        (*lead, 's', 'd'),
        (*lead, 't', 'd'),
        (*lead, 't', 'e'),
        *(aligned(one.shape, square, pairs) for one in mask),
    ]
    del query, value
    return Dims(tuple(inputs), (*lead, 's', 'e'), ('s', 't', 'd', 'e'))


def image(call: Arguments, result: Shape) -> Dims:
    """Images by samples alone: channels, rows and columns stay unsharded."""
    x, *others = tensors(call)
    names = ('d0', *(f'x{dim}' for dim in range(1, len(x.shape))))
    made = ('d0', *(ONE for _ in result[1:]))
    return Dims((names, *(tuple(ONE for _ in one.shape) for one in others)), made, names[1:])


def pooled(call: Arguments, result: Shape) -> Dims:
    """Images by samples and by channels: rows and columns stay unsharded."""
    (x,) = tensors(call)
    names = ('d0', 'd1', *(f'x{dim}' for dim in range(2, len(x.shape))))
    return Dims((names,), (*names[:2], *(ONE for _ in result[2:])), names[2:])


def by_channel(call: Arguments, result: Shape) -> Dims:
    """A number for each channel, dim 1, which may be sharded."""
    x, *others = tensors(call)
    names = named(len(x.shape))
    return Dims((names, *(names[1:2] for _ in others)), names)


def looked_up(call: Arguments, result: Shape) -> Dims:
    """Rows of a table, which stays unsharded, by indices."""
    _, index = tensors(call)
    names = named(len(index.shape))
    return Dims((('v', 'w'), names), (*names, 'w'), ('v',))


def indexed(call: Arguments, result: Shape) -> Dims:
    """Elements by constant indices of dims behind the samples, which alone may be sharded."""
    x, *others = tensors(call)
    if call['indices'][0] is not None:
        raise UnclearError('indexes samples; keep all of them, and index other dims with constants')
    inputs = (('d0', *(ONE for _ in x.shape[1:])), *(tuple(ONE for _ in one.shape) for one in others))
    return Dims(inputs, ('d0', *(ONE for _ in result[1:])))


def gathered(call: Arguments, result: Shape) -> Dims:
    """Elements along a dim by indices of the same rank."""
    x, index, *more = tensors(call)
    names = named(len(x.shape))
    dim = call['dim'] % len(names)
    unlike = {name for name, one, other in zip(names, x.shape, index.shape, strict=True) if one != other}
    fixed = tuple(name for place, name in enumerate(names) if place == dim or name in unlike)
    return Dims(tuple(names for _ in (x, index, *more)), names, fixed)


def by_sample(call: Arguments, result: Shape) -> Dims:
    """Each sample by itself: of what counts samples dim 0 alone may be sharded, of all else nothing."""
    inputs = tuple(
        ('d0' if arg.shape[:1] == result[:1] else ONE, *(ONE for _ in arg.shape[1:])) if arg.shape else ()
        for arg in tensors(call)
    )
    return Dims(inputs, ('d0', *(ONE for _ in result[1:])))


# the table


RULES: Final[Mapping[str, Rule]] = {
    rule.__name__: rule
    for rule in (
        elementwise, permuted, reshaped, expanded, repeated, reduced, selected, stacked, normalised, multiplied,
        projected, einsum, attention, image, pooled, by_channel, looked_up, indexed, gathered,
    )
}  # fmt: skip
"""Those that the table names, but for ``along``, which its keys make."""


class AtenRow(NamedTuple):
    """What is known of an operator.

    Arguments: ``sharded``, which dims may be; ``saves``, of what it reads, for the gradient of an input: nothing, the
    other inputs, or all of them; ``price``, what bounds it; ``flops`` of an element of the result, forward: the
    backward of an input takes as many.
    """

    rule: Rule
    sharded: str
    saves: str
    price: str
    flops: int


def _table() -> Iterator[tuple[str, AtenRow]]:
    for row in files.read_csv(Path(__file__).parent / 'operators.csv'):
        name, *keys = row['rule'].split()
        rule = along(*keys) if name == along.__name__ else RULES[name]
        yield row['operator'], AtenRow(rule, row['sharded'], row['saves'], row['price'], int(row['flops']))


TABLE: Final[Mapping[str, AtenRow]] = dict(_table())
"""By the name of the operator, without its overload."""
KINDS: Final[Mapping[str, AtenRow]] = {
    'pointwise': AtenRow(elementwise, 'all dims, broadcast from the last', 'all', 'streaming', 1),
    'rows': AtenRow(along(), 'all dims but the last', 'all', 'streaming', 1),
    'samples': AtenRow(by_sample, 'samples', 'all', 'streaming', 1),
}
"""What an operator of one's own may be; its backward keeps all that it reads."""


def own_rows(words: Sequence[str]) -> dict[str, AtenRow]:
    """Rows of operators of one's own: ``lab::gate=pointwise``, or with FLOPs of an element, ``lab::gate=pointwise:8``.

    Raises ``ScheduleError``.
    """
    made = {}
    for word in words:
        match = re.fullmatch(r'(\w+::\w+)=(\w+)(?::(\d{1,6}))?', word)
        if match is None or match[2] not in KINDS or match[1].startswith('aten::'):
            instead = (
                f'write LIBRARY::NAME=KIND or KIND:FLOPS, e.g. lab::gate=pointwise:8; kinds are {", ".join(KINDS)}'
            )
            raise errors.refusal('--op', f'no operator of your own with its kind (got {word[:60]!r})', instead)
        row = KINDS[match[2]]
        made[match[1]] = row._replace(flops=int(match[3] or row.flops))
    return made
