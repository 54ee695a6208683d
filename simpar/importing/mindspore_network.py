"""Layers of MindSpore as a network: what ``construct`` makes of tensors. What is not understood is named by line."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from simpar import files
from simpar.importing import settings
from simpar.importing.python_script import REFUSED, UNKNOWN, Cell, Data, Reader, Thing, last, said_of

_TABLE: Final = files.read_csv(settings.FOLDER / 'mindspore_words.csv')


class Word(NamedTuple):
    """A name of MindSpore.

    Arguments: ``call``, as scripts have it; ``kind``, what it is here; ``order`` of its arguments; ``keys`` that they
    say; ``free``, those without an effect on a step; ``only``, the value that each other one may have.
    """

    call: str
    kind: str
    order: tuple[str, ...]
    keys: Mapping[str, str]
    free: tuple[str, ...]
    only: Mapping[str, str]

    def wrong(self, of: Thing) -> Iterator[str]:
        """What of its arguments is not read."""
        yield from ('too many arguments',) if len(of.values) > len(self.order) else ()
        for name, value in said_of(self.order, of.values, of.named).items():
            is_plain = name in self.free or name in self.keys.values() or value is None or isinstance(value, Data)
            if not is_plain and last(value) != self.only.get(name, ''):
                yield f'{name} {last(value)[:40]} is not read'
        shape = of.argument('normalized_shape', self.order)
        if 'normalized_shape' in self.order and not (isinstance(shape, (tuple, list)) and len(shape) == 1):
            yield 'a norm of another than the last dim is not read'


def words(of: str) -> dict[str, Word]:
    """The names of a kind that are read, or that are known to say nothing."""

    def pairs(text: str) -> dict[str, str]:
        return {name: value for name, _, value in (pair.partition('=') for pair in text.split())}

    return {
        call: Word(call, row['kind'], tuple(row['arguments'].split()), pairs(row['values']),
                   tuple(row['free'].split()), pairs(row['only']))
        for row in _TABLE if row['of'] == of
        for call in row['names'].split()
    }  # fmt: skip


_LAYERS: Final = words('layer')
LOSSES: Final = words('loss')
LOST: Final = 'a loss of a network'
"""The name of what a loss makes."""
LABEL: Final = 'what a batch has beside the input'
_ACTIVATIONS: Final = ('relu', 'gelu', 'silu')
_WITH_WEIGHTS: Final = ('dense', 'layer_norm', 'embedding')
_MARKS: Final = ('comm_fusion', 'of the bias')
_HELD: Final = {True: ('comm_fusion',), False: ()}
_PLAIN: Final = (int, float, str, bool, type(None))
_INNER: Final = words('inner')
"""Operators inside of a layer whose strategy is that of the layer, and the kind of layer."""


@dataclass(eq=False)
class Network(Reader):
    """Layers of a script.

    Arguments:
        layers: each as the schedule has it, and its line. made: names of layers, by object.
        used: layers and weights that have been called. loss: the one that is called. outer: the first cell that is.
    """

    layers: list[tuple[dict[str, Any], int]] = field(default_factory=list)
    made: dict[int, str] = field(default_factory=dict)
    used: dict[int, Any] = field(default_factory=dict)
    loss: Thing | None = None
    outer: Cell | None = None

    def apply(self, of: Thing | Cell, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        """Call a layer, a cell or an operator with tensors."""
        every = [*values, *named.values()]
        data = [value for value in every if isinstance(value, Data)]
        if isinstance(of, Thing) and of.last in LOSSES and self.depth:
            return self.lost(of, line, every)
        if not data:
            is_label = isinstance(of, Thing) and every and all(isinstance(one, (Thing, *_PLAIN)) for one in every)
            if self.depth and is_label:
                return Thing(LABEL, line, every)
            if REFUSED in every or not self.depth:
                return REFUSED if REFUSED in every else UNKNOWN
            return self.refuse(line, 'what this reads is not known')
        if isinstance(of, Cell):
            return self.constructed(of, line, values, named)
        parts = self.parts(of)
        if parts is None:
            return self.layer(of, line, values, named)
        before, current = len(self.layers), data[0]
        if len(every) > 1:
            return self.refuse(line, 'of several inputs nothing is known')
        for part in parts:
            output = self.apply(part, line, [current], {}) if isinstance(part, (Thing, Cell)) else UNKNOWN
            if not isinstance(output, Data):
                return output if self.problems else self.refuse(of.line, 'a layer of this is not known')
            current = output
        self.mark(of.marks, before)
        return current

    def constructed(self, of: Cell, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        """What a cell makes of tensors."""
        method = of.method('construct')
        if method is None:
            return self.refuse(line, f'{of.of.name} has no construct', 'write one')
        if self.depth < 2:
            self.label(of)
        self.outer = self.outer or of
        before = len(self.layers)
        self.depth += 1
        result = self.bound(of, method, values, named)
        self.depth -= 1
        self.mark(of.marks, before)
        return result

    def lost(self, of: Thing, line: int, every: Sequence[Any]) -> Any:
        """What a loss makes of the result of a network."""
        if not every or not isinstance(every[0], Data) or any(isinstance(one, Data) for one in every[1:]):
            return self.refuse(line, 'a loss of this is not read', 'write loss(net(x), label)')
        self.loss = of
        return Thing(LOST, line, [every[0]])

    def specs(self, since: int = 0) -> Iterator[tuple[str, dict[str, Any], int]]:
        """Kind, keys and line of each layer."""
        return ((kind, spec, line) for layer, line in self.layers[since:] for kind, spec in layer.items())

    def mark(self, marks: Mapping[str, Any], since: int) -> None:
        """What is said of a cell counts for each of its layers."""
        for kind, spec, _ in self.specs(since):
            # What is said of a layer itself counts before what is said of all in its cell.
            spec.update(
                (key, value)
                for key, value in marks.items()
                if key not in spec and (key != 'comm_fusion' or kind in _WITH_WEIGHTS)
            )

    def layer(self, of: Thing, line: int, values: list[Any], named: Mapping[str, Any]) -> Any:
        row = row_of(of.name)
        if row is None:
            what = f'{of.name.partition(".")[2] or of.name} is no layer that is read'
            return self.refuse(of.line, what, f'layers are read of {", ".join(_LAYERS)}')
        wrong = next(row.wrong(of), '')
        if wrong:
            return self.refuse(
                of.line, f'{row.call}: {wrong}', 'leave it as MindSpore has it, or write the layer by hand'
            )
        keys = {key: value for key, name in row.keys.items() if (value := of.argument(name, row.order)) is not None}
        unknown = [key for key, value in keys.items() if not isinstance(value, _PLAIN)]
        if unknown:
            return self.refuse(
                of.line, f'{of.name}: {", ".join(unknown)} is no number that the script says', '--set says it'
            )
        every = [*values, *named.values()]
        data = [value for value in every if isinstance(value, Data)]
        if row.kind in ('product', 'matmul'):
            return self.product(of, line, every, keys, is_flat=row.kind == 'product')
        if row.kind in ('print', 'same'):
            return data[0]
        if row.kind == 'bias' or (row.kind == 'add' and len(data) == 1):
            return self.biased(data[0], every, line)
        if row.kind in ('reshape', 'transpose'):
            return self.shaped(row.kind, of, data[0], every[1] if len(every) == 2 else UNKNOWN, line)
        if row.kind == 'multiply' and len(data) == 1 and len(every) == 2:
            return self.scaled(of, data[0], next(one for one in every if one is not data[0]), line)
        # Functions are called with tensors at once: ``ops.relu``.
        is_function = row.call.partition('.')[2][:1].islower()
        if len(data) != len([one for one in every if not (is_function and isinstance(one, _PLAIN))]):
            return self.refuse(line, f'{row.call} reads what is not known')
        if row.kind in _WITH_WEIGHTS and id(of) in self.used:
            return self.refuse(line, f'{self.named(of) or row.kind} is used twice, and weights are not shared')
        self.used[id(of)] = of
        if row.kind == 'dense':
            self.of_bias(of, keys)
        return self.activated(row, of, self.emit(row.kind, {**keys, **of.marks}, data, line, self.named(of)), line)

    def activated(self, row: Word, of: Thing, tensor: Data, line: int) -> Any:
        """The activation that a dense layer has."""
        inner = of.argument('activation', row.order) if row.kind == 'dense' else None
        if inner is None:
            return tensor
        if inner in _ACTIVATIONS:
            return self.emit(inner, {}, [tensor], line, '')
        inner_row = row_of(inner.name) if isinstance(inner, Thing) else None
        if inner_row and inner_row.kind in _ACTIVATIONS:
            return self.layer(inner, line, [tensor], {})
        return self.refuse(
            of.line, 'this activation is not read', f'write one of {", ".join(_ACTIVATIONS)}, or a layer'
        )

    def of_bias(self, of: Thing, keys: Mapping[str, Any]) -> None:
        """Refuse a strategy of the bias of a dense layer that does not lie as its product."""
        said, line = of.marks.get('of the bias', (None, 0))
        product = of.marks.get('strategy', of.marks.get('layout'))
        if said is None or keys.get('bias') is False:
            return
        wanted = [[*product[0][:-1], product[1][-1]], [product[1][-1]]] if product and len(product) == 2 else None
        if said != wanted or {'out_strategy', 'out_layout'} & of.marks.keys():
            self.refuse(line, 'a bias that does not lie as its product is not read', 'write the slices of its product')

    def biased(self, data: Data, values: Sequence[Any], line: int) -> Any:
        """A vector of weights that is added to a product is its bias."""
        weight = next((value for value in values if isinstance(value, Thing)), None)
        kind, spec, _ = next(self.specs(len(self.layers) - 1), ('', {}, 0))
        is_product = kind == 'dense' and spec['name'] == data.name and spec.get('bias') is False
        shape = _shape(weight) if weight else None
        if weight is None or not is_product or shape != (spec['out'],) or id(weight) in self.used:
            return self.refuse(line, 'what is added is neither a result of a layer nor the bias of one')
        self.used[id(weight)] = weight
        spec['bias'] = True
        return data

    def product(self, of: Thing, line: int, values: list[Any], keys: dict[str, Any], *, is_flat: bool) -> Any:
        """A product with a weight is a dense layer without a bias; of two results it is their product.

        Arguments: ``is_flat``, whether it takes matrices alone, whose first dim is that of samples.
        """
        data, weight = [one for one in values if isinstance(one, Data)], values[-1]
        if len(values) == 2 and len(data) == 2 and not is_flat:
            return self.emit('matmul', {**keys, **of.marks}, data, line, self.named(of))
        is_weight = len(values) == 2 and isinstance(weight, Thing) and values[0] is data[0]
        if not is_weight or keys.get('transpose_a'):
            return self.refuse(line, 'what this product multiplies with is not known')
        shape = _shape(weight)
        if shape is None or len(shape) != 2:
            where, what = weight.line or line, 'the shape of this Parameter is not known'
            return self.refuse(where, what, 'write initializer(…, [in, out])')
        if id(weight) in self.used:
            return self.refuse(line, 'this weight is used twice, and weights are not shared')
        self.used[id(weight)] = weight
        marks = dict(of.marks)
        into, out = shape
        if keys.get('transpose_b'):
            into, out = out, into
            for key in ('strategy', 'layout'):
                if key in marks and len(marks[key]) == 2:
                    marks[key] = [marks[key][0], marks[key][1][::-1]]
        return self.emit('dense', {'in': into, 'out': out, 'bias': False, **marks}, data, line, self.named(of))

    def shaped(self, kind: str, of: Thing, data: Data, said: Any, line: int) -> Any:
        """Another shape, or another order of dims, of each sample."""
        numbers = list(said) if isinstance(said, (tuple, list)) and all(isinstance(one, int) for one in said) else []
        if not numbers or numbers[0] != (-1 if kind == 'reshape' else 0) or min(numbers[1:], default=0) < 1:
            return self.refuse(line, f'this {kind} does not keep dim 0, which counts samples')
        if kind == 'reshape' and len(numbers) == 2 and data.name == 'x':
            return self.emit('flatten', dict(of.marks), [data], line, self.named(of))
        key = 'shape' if kind == 'reshape' else 'permutation'
        return self.emit(kind, {key: numbers, **of.marks}, [data], line, self.named(of))

    def scaled(self, of: Thing, data: Data, factor: Any, line: int) -> Any:
        if isinstance(factor, bool) or not isinstance(factor, (int, float)):
            return self.refuse(line, 'this arithmetic of tensors is not known')
        return self.emit('scale', {'factor': factor, **of.marks}, [data], line, self.named(of))

    def arithmetic(self, one: ast.BinOp | ast.AugAssign, left: Any, right: Any) -> Any:
        """Sums and products of tensors, the bias of a product, and a factor."""
        data = [value for value in (left, right) if isinstance(value, Data)]
        alone = Thing('', one.lineno)
        if len(data) == 2 and isinstance(one.op, (ast.Add, ast.Mult)):
            return self.emit('add' if isinstance(one.op, ast.Add) else 'multiply', {}, data, one.lineno, '')
        if isinstance(one.op, ast.Add) and any(isinstance(value, Thing) for value in (left, right)):
            return self.biased(data[0], [left, right], one.lineno)
        if isinstance(one.op, ast.Mult) and len(data) == 1:
            return self.scaled(alone, data[0], right if data[0] is left else left, one.lineno)
        if isinstance(one.op, ast.Div) and isinstance(right, (int, float)) and right:
            return self.scaled(alone, data[0], 1 / right, one.lineno)
        return self.refuse(one.lineno, 'this arithmetic of tensors is not known')

    def named(self, of: Thing) -> str:
        return self.made.get(id(of), '')

    def emit(self, kind: str, keys: Mapping[str, Any], data: Sequence[Data], line: int, name: str) -> Data:
        """A layer more, and its result."""
        names = [spec['name'] for _, spec, _ in self.specs()]
        if not name or name in ('x', *names):
            name = f'{name or kind}_{len(names)}'
        spec = {key: value for key, value in keys.items() if key in _HELD[kind in _WITH_WEIGHTS] or key not in _MARKS}
        of = [one.name for one in data]
        if len(of) > 1:
            spec['of'] = of
        elif of != (names[-1:] or ['x']):
            spec['of'] = of[0]
        self.layers.append(({kind: {**spec, 'name': name}}, line))
        return Data(name)

    def unread(self, result: Data) -> None:
        """Refuse layers whose result nothing reads: a schedule's last layer is its result."""
        read, before = {result.name}, 'x'
        for _, spec, _ in self.specs():
            of = spec.get('of', before)
            read |= {of} if isinstance(of, str) else set(of)
            before = spec['name']
        for _, spec, line in self.specs():
            if spec['name'] not in read:
                self.refuse(line, 'nothing reads what this layer makes', 'leave it out')

    def label(self, owner: Cell, prefix: str = '') -> None:
        """Names of layers are those of the attributes that hold them."""
        for name, value in owner.attributes.items():
            if isinstance(value, Thing):
                self.made.setdefault(id(value), f'{prefix}{name}')
                for place, part in enumerate(self.parts(value) or ()):
                    if isinstance(part, Thing):
                        self.made.setdefault(id(part), f'{prefix}{name}_{place}')
            elif isinstance(value, Cell) and value is not owner and prefix.count('_') < 16:
                self.label(value, f'{prefix}{name}_')

    # strategies

    def sharded(self, of: Thing | Cell, inner: str, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        """``shard(…)`` of an operator, or of an operator inside of a layer, ``dense.matmul.shard(…)``."""
        said = said_of(('in_strategy', 'out_strategy'), values, named)
        kind = row_of(of.name) if isinstance(of, Thing) else None
        if kind is None or len(values) > 2 or set(said) - {'in_strategy', 'out_strategy'}:
            return self.refuse(line, 'a shard of this is not read', 'write strategies of operators')
        self.changes += 1
        key, slices = self.slices(line, said.get('in_strategy'))
        out_key, out = self.slices(line, said['out_strategy']) if said.get('out_strategy') is not None else ('', None)
        if slices is None or not isinstance(of, Thing):
            return of
        is_dense = kind.kind in ('dense', 'product')
        if out is not None and not (is_dense and len(out) == 1 and inner in ('', 'matmul')):
            return self.refuse(line, 'the out_strategy of this is not read', 'leave it out, or write it by hand')
        if inner == 'bias_add' and kind.kind == 'dense':
            of.marks['of the bias'] = (slices, line)
        elif kind.kind == 'dense' and inner == 'matmul' and len(slices) == 2:
            # The weight of a Dense lies [out, in] in MindSpore, and [in, out] here.
            of.marks[key] = [slices[0], slices[1][::-1]]
        elif not inner or (inner in _INNER and _INNER[inner].kind == kind.kind):
            of.marks[key] = slices
        else:
            return self.refuse(line, f'a strategy of {inner} is not read', 'write strategies of operators')
        if out is not None:
            of.marks[f'out_{out_key}'] = out[0]
        return of

    def slices(self, line: int, said: Any) -> tuple[str, list[Any] | None]:
        """Numbers of slices of each input, or its layout by axes, as a network has them."""
        parts = said if isinstance(said, (tuple, list)) else [said]
        if all(isinstance(part, (tuple, list)) and all(isinstance(one, int) for one in part) for part in parts):
            return 'strategy', [list(part) for part in parts]
        if all(isinstance(part, Thing) and 'axes' in part.marks for part in parts):
            return 'layout', [list(part.marks['axes']) for part in parts]
        what = 'this strategy is no tuple of numbers for each input'
        self.refuse(line, what, 'write numbers of slices, or a Layout for each input')
        return '', None


def _shape(weight: Any) -> tuple[int, ...] | None:
    """Of ``Parameter(initializer("normal", [in, out]), "w")``, or of an array with such a shape in its call."""
    if not isinstance(weight, Thing) or weight.last != 'Parameter' or not (weight.values or weight.named):
        return None
    order = ('default_input', 'name', 'requires_grad', 'layerwise_parallel', 'parallel_optimizer')
    said = said_of(order, weight.values, weight.named)
    usual = {'requires_grad': True, 'layerwise_parallel': False, 'parallel_optimizer': True}
    if any(said.get(key, value) is not value for key, value in usual.items()) or set(said) - set(order):
        return None
    return None if weight.marks else _dims(said.get('default_input'))


def _dims(value: Any) -> tuple[int, ...] | None:
    """The last list of whole numbers in the calls that make an array."""
    dims = None
    for one in (*value.values, *value.named.values()) if isinstance(value, Thing) else ():
        inner = _dims(one)
        if isinstance(one, (list, tuple)) and one and all(isinstance(part, int) and part > 0 for part in one):
            inner = tuple(one)
        dims = inner or dims
    return dims


def has_weights(of: Thing) -> bool:
    """Whether it is a weight, or a layer that has one."""
    row = row_of(of.name)
    return of.last == 'Parameter' or (row is not None and row.kind in _WITH_WEIGHTS)


def row_of(name: str) -> Word | None:
    """The row of a layer; ``mindspore.nn.Dense`` and ``P.MatMul`` are known by their end."""
    parts = name.split('.')
    for row in _LAYERS.values() if parts[0] == 'mindspore' else ():
        package, call = row.call.split('.')
        if parts[-1] == call and package in parts:
            return row
    return None
