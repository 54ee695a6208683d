"""The graph of a module as plain data: each call that reads samples is an operator, with the weights that it reads.

A call knows what it reads, the calls that only weights go through, and constants.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final

from simpar.errors import Problem, ScheduleError
from simpar.model.model import FORMAT
from simpar.torch_module import export, graph
from simpar.torch_module.graph import Node, Reader, inside, replaced
from simpar.torch_module.rules import TABLE, Arg, AtenRow, Dims, UnclearError

SAMPLES: Final = export.COUNTS[0]
MANY: Final = 1009
"""Samples that rules are asked for: a prime, so that no other dim is as long by chance."""
RESHAPES: Final = frozenset({'view', 'reshape', '_unsafe_view', 'flatten', 'unflatten', 'squeeze', 'unsqueeze'})
OF_WEIGHTS: Final = frozenset({'index', 'index_select', 'tril', 'triu'})
"""Calls besides those of the table that only weights and constants may go through."""
Spec = dict[str, Any]
NO_VALUE: Final = object()
SHOWN: Final = 12
_INSTEAD: Final = 'write it with operators of the table (docs/my_model.md), or leave this part out of the module'


class Builder:
    """Makes operators of nodes, as far as the output needs them. Arguments: ``own``, operators beside aten's."""

    def __init__(self, reader: Reader, module: Any, output: Node, own: Mapping[str, AtenRow]) -> None:
        self.module = module
        self.table = {**TABLE, **own}
        self.constants = Constants(reader)
        self.problems: list[Problem] = []
        self.made: list[Spec] = []
        self.paths: list[str] = []
        self.names: dict[int, str] = {}
        self.weights: dict[str, str] = {}
        self.skipped: set[int] = set()
        self.told: set[tuple[str, ...]] = set()
        self.waiting: dict[int, tuple[Node, Node, Node, Node | None, int]] = {}
        self.needed = _needed(output)
        self.read_by: dict[int, list[Node]] = {}
        for node in self.needed:
            for read in inside((node.positional, node.named)):
                self.read_by.setdefault(id(read), []).append(node)
        self.sources = [node for node in reader.inputs if node.kind == 'samples']
        for node in self.sources:
            is_taken = node.name in ('labels', 'loss', 'target')
            self.names[id(node)] = f'{node.name}_input' if is_taken else node.name

    def build(self, output: Node) -> None:
        """Make everything; raises ``ScheduleError`` with all that is not supported."""
        for node in self.needed:
            if node.kind == 'weight' and any(read.kind == 'samples' for read in inside((node.positional, node.named))):
                node.kind = 'samples'
            spread = self._is_spread(node)
            if not node.target or id(node) in self.skipped or not (node.kind == 'samples' or spread):
                continue
            try:
                if spread:
                    self._spread(node)
                else:
                    self._operator(node)
            except UnclearError as unclear:
                self._wrong(node, str(unclear))
        if output.kind != 'samples' or not output.target:
            self.problems.append(Problem(type(self.module).__name__, 'returns nothing that is computed from samples',
                                         'return the output that the loss is put on'))  # fmt: skip
        if self.problems:
            raise ScheduleError(list(dict.fromkeys(self.problems))[:SHOWN])

    # operators

    def _operator(self, node: Node) -> None:
        if not node.is_aten and node.base not in self.table:
            raise UnclearError('is no operator of aten, so how it may be sharded, its backward and its price are not '
                               f'known; say its kind: --op {node.base}=pointwise, or {_INSTEAD}')  # fmt: skip
        if not node.is_aten and len(node.fx.target._schema.returns) != 1:
            raise UnclearError('returns several results; return one tensor')
        self._check_samples(node)
        if id(node) in self.waiting:
            self._joint_part(node)
        elif node.base == 'dropout':
            (x,) = inside(node.arguments['input'])
            self._add(node, 'dropout', [self.read(x), 'dropout.keys'], probability=node.arguments['p'])
        elif node.base == 'linear' and self._is_linear(node.arguments['weight'], node.arguments['bias']):
            self._linear(node, node.arguments['input'], node.arguments['weight'], node.arguments['bias'], 0)
        elif node.base in ('addmm', 'mm') and self._is_turned(node):
            x = node.arguments['mat1' if node.base == 'addmm' else 'self']
            self._linear(node, x, node.arguments['mat2'], node.arguments['self'] if node.base == 'addmm' else None, 1)
        elif node.base == 'embedding' and node.arguments['weight'].held and node.arguments['weight'].kind == 'weight':
            weight = node.arguments['weight']
            vocab, width = weight.shapes[0]
            self._add(node, 'embedding', [self.read(node.arguments['indices'])], vocab=vocab, width=width,
                      weight=self.weight(weight), padding=node.arguments['padding_idx'])  # fmt: skip
        else:
            self._call(node)

    def _check_samples(self, node: Node) -> None:
        one, other = node.shapes
        if not all(type(size) is int for size in (*one, *other)):
            raise UnclearError(
                'makes a shape that depends on values; keep the shape, and choose with where or a product'
            )
        if not one or one[1:] != other[1:] or one[0] * export.COUNTS[1] != other[0] * export.COUNTS[0]:
            if node.kind == 'samples' and one == other:
                raise UnclearError(
                    'works across samples; return the outputs, and put the loss on them with workload.loss'
                )
            raise UnclearError('has samples elsewhere than in dim 0; keep them there: batch_first=True, chunk(3, -1)')

    def _is_linear(self, weight: Node, bias: Node | None) -> bool:
        is_part = weight.kind == 'weight' and self._part(weight) is not None
        return is_part and (bias is None or self._part(bias) is not None)

    def _is_turned(self, node: Node) -> bool:
        weight, bias = node.arguments['mat2'], node.arguments['self'] if node.base == 'addmm' else None
        x = node.arguments['mat1'] if node.base == 'addmm' else node.arguments['self']
        plain = node.arguments.get('beta', 1) == 1 and node.arguments.get('alpha', 1) == 1
        biased = bias is None or (bool(bias.held) and len(bias.shapes[0]) == 1)
        return plain and biased and bool(weight.held) and weight.kind == 'weight' and x.kind == 'samples'

    def _part(self, weight: Node) -> tuple[str, tuple[int, int, int] | None] | None:
        """A weight, or one of equal parts of its rows: its name, and which part."""
        if weight.kind != 'weight':
            return None
        if weight.held:
            return weight.held, None
        said = weight.arguments
        if weight.base != 'slice' or not said['self'].held or said['step'] != 1:
            return None
        dim = said['dim'] % len(weight.shapes[0])
        length, count = said['self'].shapes[0][dim], weight.shapes[0][dim]
        if length % count or said['start'] % count:
            return None
        return said['self'].held, (said['start'] // count, length // count, dim)

    def _linear(self, node: Node, x: Node, weight: Node, bias: Node | None, inputs: int) -> None:
        """A product; one that is split into equal parts behind it waits for these, and is as many products."""
        whole = weight.held and (bias is None or bias.held)
        split = joint(node, self.read_by) if whole else None
        if split is None:
            self._product(node, self.read(x), weight, bias, inputs)
            return
        skipped, parts, count = split
        self.skipped |= {id(one) for one in skipped[1:]}
        for part in self.read_by[id(skipped[-1])]:
            which = parts[id(part)]
            own = part_of(weight, which, count, inputs)
            own_bias = part_of(bias, which, count, 0) if bias is not None else None
            self.waiting[id(part)] = (node, x, own, own_bias, inputs)

    def _joint_part(self, node: Node) -> None:
        """A part of a joint projection, in the shape that the module gives it."""
        product, x, weight, bias, inputs = self.waiting[id(node)]
        rows = tuple((*shape[:-1], node.shapes[0][-1]) for shape in product.shapes)
        made = replace(node, name=f'{node.name}_part', shapes=(rows[0], rows[1]), target='linear', arguments={})
        self._product(made, self.read(x), weight, bias, inputs)
        if rows == node.shapes:
            self.names[id(node)] = self.names[id(made)]
            return
        view = replace(node, target='view.default', arguments={'self': made}, positional=(made,), named={})
        self._call(view)
        self.names[id(node)] = self.names[id(view)]

    def _product(self, node: Node, x: str, weight: Node, bias: Node | None, inputs: int) -> None:
        shape = weight.shapes[0]
        bias_name = '' if bias is None else self._named(*(self._part(bias) or ('', None)))
        # A bias behind a sum over ranks is found by its name.
        apart = bias if '@' in bias_name or not bias_name.endswith('.bias') else None
        product = self._add(node, 'linear', [x], suffix='/product' if apart else '',
                            weight=self._named(*(self._part(weight) or ('', None))), bias='' if apart else bias_name,
                            outputs=shape[inputs], inputs=shape[1 - inputs], transposed=bool(inputs))  # fmt: skip
        if apart:
            self._plus(node, product, bias_name, apart.shapes[0])

    def _plus(self, node: Node, product: str, bias: str, shape: tuple[int, ...]) -> None:
        names = tuple(f'd{dim}' for dim in range(len(node.shapes[0])))
        calls = json.dumps([['add.Tensor', [{'read': 0}, {'held': 0}], {}]])
        weight = {'name': bias, 'given': f'given:{bias}', 'shape': shape, 'dims': names[-1:]}
        spec = {'calls': calls, 'reads': [names], 'dims': names, 'fixed': [], 'rows': node.shapes[0][0],
                'saves': 'nothing', 'same': [0], 'weights': [weight]}  # fmt: skip
        self._add(node, 'call', [product], spec=spec)

    def _call(self, node: Node) -> None:
        original = node
        self._refuse(node)
        row = self.table.get(node.base)
        if row is None:
            raise UnclearError(f'calls aten.{node.target}, which has no row in the table; {_INSTEAD}')
        if node.base == 'scaled_dot_product_attention':
            node = plain_attention(node, self.constants)
        elif node.base == 'index':
            node = own_row(node, self.constants)
        call = Call(self, node)
        dims = row.rule(call.by_name(node.arguments), call.scaled(node))
        fixed = call.check(dims)
        spec: Spec = {
            'calls': call.text(),
            'reads': [dims.inputs[place] for place in call.places_of_reads],
            'dims': dims.result,
            'fixed': fixed,
            'rows': call.rows,
            'saves': row.saves,
            'price': row.price,
            'flops': row.flops,
            'dtype': '' if node.floating else node.dtype,
            'same': call.same(),
            'summed': _summed(node, row.price),
            'weights': call.holds('weight', dims),
            'constants': call.holds('constant', dims),
        }
        self._add(node, 'call', call.reads, spec=spec)
        self.names[id(original)] = self.names[id(node)]

    def _refuse(self, node: Node) -> None:
        said = node.arguments
        if node.base.startswith('_native_batch_norm') or (node.base == 'batch_norm' and said['training']):
            raise UnclearError('takes the statistics of a batch, which ranks and micro-batches would not share; call '
                               '.eval() on it, so that it uses those that it has')  # fmt: skip
        if node.base == 'scaled_dot_product_attention' and said.get('dropout_p'):
            raise UnclearError('drops probabilities of attention; set its dropout to 0')
        if node.base == 'repeat' and (said['repeats'][0] != 1 or len(said['repeats']) != len(node.shapes[0])):
            raise UnclearError('repeats samples; repeat another dim')

    def _is_spread(self, node: Node) -> bool:
        """What is computed from weights alone, and read by several operators, or with as many rows as samples."""
        if node.kind != 'weight' or not node.target:
            return False
        readers = [one for one in self.read_by.get(id(node), []) if one.kind == 'samples']
        return node.scales or (len(readers) > 1 and node.shapes[0][:1] == (1,))

    def _spread(self, node: Node) -> None:
        """The same for every sample, of weights: made once for each of them, so that it may be split with them."""
        call = Call(self, node)
        names = tuple(f'd{dim}' for dim in range(len(node.shapes[0])))
        (first,) = call.read
        full = [('d0', *('' for _ in first.shapes[0][1:]))]
        dims = Dims((), ())
        spec: Spec = {'calls': call.text(), 'reads': full, 'dims': names, 'fixed': names[1:], 'rows': call.rows,
                      'saves': 'nothing', 'weights': call.holds('weight', dims),
                      'constants': call.holds('constant', dims)}  # fmt: skip
        node.kind = 'samples'
        node.shapes = ((export.COUNTS[0], *node.shapes[0][1:]), (export.COUNTS[1], *node.shapes[1][1:]))
        self._add(node, 'call', call.reads, spec=spec)

    # names and reads

    def read(self, node: Node) -> str:
        if id(node) not in self.names:
            raise UnclearError('reads what could not be read')
        return self.names[id(node)]

    def weight(self, node: Node) -> str:
        return self._named(node.held, None)

    def _named(self, held: str, part: tuple[int, int, int] | None) -> str:
        name = graph.program_name(held)
        # Which of how many equal parts along which dim it is.
        name += '' if part is None else f'@{part[0]}of{part[1]}d{part[2]}'
        self.weights[name] = held
        return name

    def _add(self, node: Node, kind: str, reads: list[str], suffix: str = '', **told: Any) -> str:
        path = graph.path_of(node.fx)
        name = f'{path.replace(".", "/")}/{node.name}{suffix}'.lstrip('/')
        self.made.append({'name': name, 'kind': kind, 'reads': reads, 'shape': node.shapes[0], **told})
        self.paths.append(path)
        if not suffix:
            self.names[id(node)] = name
        return name

    def _wrong(self, node: Node, what: str) -> None:
        path = graph.path_of(node.fx)
        try:
            kind = type(self.module.get_submodule(path)).__name__
        except AttributeError:
            kind = 'module'
        said, _, instead = what.partition('; ')
        where = graph.source_of(node.fx) or type(self.module).__name__
        # What reads it is told no problem of its own.
        self.names[id(node)] = graph.program_name(node.name)
        # One line of source may be run by each of a list of layers: the first one tells it.
        key = (where, kind, node.base, said)
        if key not in self.told:
            self.told.add(key)
            self.problems.append(
                Problem(where, f'{path or "the module"} ({kind}): {node.base} {said}', instead or 'leave it out')
            )

    def text(self, name: str, sources: list[Spec], notes: list[str]) -> str:
        """The graph as JSON."""
        products = [
            one['kind'] == 'linear' or one.get('spec', {}).get('price') in ('product', 'convolution')
            for one in self.made
        ]
        layers, count = graph.layers_of(self.paths, products)
        nodes = [{**one, 'layer': layer} for one, layer in zip(self.made, layers, strict=True)]
        return json.dumps({'format': FORMAT, 'name': name, 'batch': SAMPLES, 'layers': count, 'notes': notes,
                           'sources': sources, 'nodes': nodes}, separators=(',', ':'))  # fmt: skip


def _needed(output: Node) -> list[Node]:
    """What the output needs, in the order of the export."""
    by_id: dict[int, Node] = {}
    stack: list[tuple[Node, bool]] = [(output, False)]
    while stack:
        node, done = stack.pop()
        if done:
            by_id.setdefault(id(node), node)
        elif id(node) not in by_id:
            stack.append((node, True))
            stack += [(read, False) for read in reversed(list(inside((node.positional, node.named))))]
    return list(by_id.values())


def _summed(node: Node, price: str) -> int:
    """The length of what a product sums over."""
    said = node.arguments
    shapes = [read.shapes[0] for read in inside(said)]
    if price == 'convolution':
        return prod(said['weight'].shapes[0][1:])
    if price == 'attention':
        return shapes[1][-2]
    if price != 'product':
        return 0
    if node.base == 'einsum':
        left, _, right = said['equation'].replace(' ', '').partition('->')
        lengths = {letter: length for part, shape in zip(left.split(','), shapes, strict=True)
                   for letter, length in zip(part, shape, strict=True)}  # fmt: skip
        return prod(length for letter, length in lengths.items() if letter not in right)
    return shapes[-1][-1] if node.base == 'linear' else shapes[-1][-2] if len(shapes[-1]) > 1 else 1


def joint(product: Node, read_by: Mapping[int, Sequence[Node]]) -> tuple[list[Node], dict[int, int], int] | None:
    """A product that is split into equal parts, as queries, keys and values: it is as many products.

    A split of its outputs over tensor ranks would run through the parts; each part alone is split by heads. None where
    a reader takes anything else of its last dim.
    Returns the product and what changes its shape before the split, which part a slice is, and how many there are.
    """
    node, skipped = product, [product]
    while len(readers := read_by.get(id(node), ())) == 1 and readers[0].base in RESHAPES:
        if readers[0].shapes[0][-1] != node.shapes[0][-1]:
            return None
        node = readers[0]
        skipped.append(node)
    width, last = node.shapes[0][-1], len(node.shapes[0]) - 1
    lengths = {one.shapes[0][-1] for one in readers}
    if len(readers) < 2 or len(lengths) != 1 or width % (length := lengths.pop()) or length == width:
        return None
    parts = {}
    for one in readers:
        said = one.arguments
        if one.base != 'slice' or said['dim'] % (last + 1) != last or said['step'] != 1 or said['start'] % length:
            return None
        parts[id(one)] = said['start'] // length
    return skipped, parts, width // length


def part_of(tensor: Node, which: int, count: int, dim: int) -> Node:
    """An equal part of a weight along a dim."""
    shape = list(tensor.shapes[0])
    shape[dim] //= count
    start = which * shape[dim]
    said: dict[str, Any] = {'self': tensor, 'dim': dim, 'start': start, 'end': start + shape[dim], 'step': 1}
    made = tuple(shape)
    return replace(tensor, name=f'{tensor.name}_{which}', held='', shapes=(made, made), target='slice.Tensor',
                   arguments=said, positional=(tensor, dim, start, start + shape[dim]))  # fmt: skip


# one call of a module as an operator


class Constants:
    """What a module computes from no sample and no weight, as masks and angles; evaluated once.

    Values by the name that programs have for them; those on the meta device have none.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[int, Any] = {}
        self.values: dict[str, Any] = {}

    def named(self, node: Node) -> tuple[str, tuple[int, ...]]:
        """The name and the shape of a constant; one row of what is alike for all samples."""
        name = f'constant/{node.name}'
        value = self.value(node)
        shape = node.shapes[0]
        if node.scales:
            shape = (1, *shape[1:])
            if value is not NO_VALUE:
                if not bool((value == value[:1]).all()):
                    raise UnclearError('reads a constant that differs from sample to sample; make it an input')
                value = value[:1]
        if value is not NO_VALUE:
            self.values[name] = value.detach().clone()
        return name, shape

    def value(self, node: Node) -> Any:
        """What it evaluates to, or ``NO_VALUE``."""
        import torch

        todo = [node]
        while todo:
            now = todo[-1]
            if id(now) in self._known:
                todo.pop()
                continue
            missing = [read for read in inside((now.positional, now.named)) if id(read) not in self._known]
            if missing:
                todo += missing
                continue
            with torch.no_grad():
                self._known[id(now)] = self._evaluated(now)
            todo.pop()
        return self._known[id(node)]

    def _evaluated(self, node: Node) -> Any:
        import torch

        if not node.target:
            tensor = self._reader.values.get(node.held, self._reader.values.get(node.name, NO_VALUE))
            return NO_VALUE if tensor is NO_VALUE or tensor.device.type == 'meta' else tensor

        if not node.is_aten:
            raise UnclearError(f'reads a constant of {node.target}, which is no operator of aten; make it a buffer')
        arguments, named = (
            replaced(argument, lambda read: self._known[id(read)]) for argument in (node.positional, node.named)
        )
        if any(self._known[id(read)] is NO_VALUE for read in inside((node.positional, node.named))):
            return NO_VALUE
        name, _, overload = node.target.partition('.')
        return getattr(getattr(torch.ops.aten, name), overload)(*arguments, **named)


def _plain(value: Any) -> Any:
    """A value as JSON has it; types of torch by their names."""
    text = '' if isinstance(value, Node) else str(value)
    return {'dtype': text.removeprefix('torch.')} if text.startswith('torch.') else value


class Call:
    """One call with what it reads: samples, weights and constants, and the calls before it that make weights."""

    def __init__(self, builder: Builder, node: Node) -> None:
        self.builder, self.node = builder, node
        self.reads: list[str] = []
        self.read: list[Node] = []
        self.order: list[tuple[str, Any]] = []
        self.held: list[Node] = []
        self.before: list[Any] = []
        self.made: dict[int, int] = {}
        if node.kind == 'weight':
            # Spread over samples: the first input tells how many there are.
            self._sample(builder.sources[0])
            made = self._computed(node)
            self.before.append(['expand.default', [made, {'shape': 0}], {}])
            self.arguments, self.named = [], {}
            return
        self.arguments = [self._value(one, self._tensor) for one in node.positional]
        self.named = {key: self._value(one, self._tensor) for key, one in node.named.items()}

    @property
    def places_of_reads(self) -> list[int]:
        return [place for place, (kind, _) in enumerate(self.order) if kind == 'read']

    @property
    def rows(self) -> int:
        return self.read[0].shapes[0][0]

    def _sample(self, node: Node) -> Spec:
        self.reads.append(self.builder.read(node))
        self.read.append(node)
        self.order.append(('read', node))
        return {'read': len(self.reads) - 1}

    def _value(self, argument: Any, tensor: Callable[[Node], Any]) -> Any:
        """An argument as a kernel reads it. Arguments: ``tensor``, what stands for a node."""
        value = replaced(argument, tensor)
        return [_plain(one) for one in value] if isinstance(value, list) else _plain(value)

    def _tensor(self, node: Node) -> Spec | Node:
        builder = self.builder
        if node.kind == 'samples' or (id(node) in builder.names and node.kind == 'weight'):
            return self._sample(node)
        if node.kind == 'constant':
            self.order.append(('constant', node))
            return self._hold(node)
        if node.held:
            self.order.append(('weight', node))
            return self._hold(node)
        # Made from weights alone, here and in every operator that reads it.
        self.order.append(('computed', node))
        return self._computed(node)

    def _hold(self, node: Node) -> Node:
        """A weight or a constant, which stands for itself until it is known how many of each there are."""
        if all(node is not one for one in self.held):
            self.held.append(node)
        return node

    def _computed(self, node: Node) -> Spec | Node:
        if node.held or node.kind == 'constant':
            return self._hold(node)
        if id(node) not in self.made:
            if node.base not in TABLE and node.base not in OF_WEIGHTS:
                called = f'aten.{node.target}' if node.is_aten else node.target
                raise UnclearError(f'reads weights through {called}, which has no row in the table '
                                   '(docs/my_model.md); compute it from operators of the table')  # fmt: skip
            positional = list(node.positional)
            if node.base == 'expand' and node.scales:
                # Of one sample: all that is made of weights and constants alone is alike for every sample.
                positional[1] = [1, *positional[1][1:]]
            named = {key: self._value(of, self._computed) for key, of in node.named.items()}
            call = [node.target, [self._value(of, self._computed) for of in positional], named]
            self.before.append(call)
            self.made[id(node)] = len(self.before) - 1
        return {'call': self.made[id(node)]}

    # the rule

    def by_name(self, arguments: Any) -> Any:
        """Arguments for a rule: an ``Arg`` for each tensor, in the order of the call."""
        places = iter(range(len(self.order)))
        return replaced(arguments, lambda node: Arg(next(places), self.scaled(node)))

    def scaled(self, node: Node) -> tuple[int, ...]:
        """A shape for many samples."""
        shape = node.shapes[0]
        if node.kind == 'constant' and node.scales:
            return (1, *shape[1:])
        return (shape[0] * MANY // SAMPLES, *shape[1:]) if node.scales else shape

    def check(self, dims: Dims) -> list[str]:
        """Names that stay unsharded; raises ``UnclearError`` where samples would not stay in dim 0, each for itself."""
        samples = {dims.inputs[place][0] for place in self.places_of_reads}
        if samples & set(dims.fixed) or samples != {dims.result[0]} or '' in samples:
            raise UnclearError(
                'works across samples, or has them elsewhere than in dim 0; keep every sample for itself'
            )
        fixed = dict.fromkeys(dims.fixed)
        for names, (kind, node) in zip(dims.inputs, self.order, strict=True):
            # What is computed from weights is there in full.
            if kind == 'computed':
                fixed |= dict.fromkeys(
                    name for name, length in zip(names, node.shapes[0], strict=True) if name and length > 1
                )
        return list(fixed)

    def same(self) -> list[int]:
        """The reads whose gradient is that of the result."""
        if self.node.base not in ('add', 'sub') or self.node.arguments.get('alpha', 1) != 1:
            return []
        result = self.node.shapes[0]
        alike = [place for place, node in enumerate(self.read) if node.shapes[0] == result]
        return [place for place in alike if self.node.base == 'add' or self.read[place] is self.node.arguments['self']]

    # what it holds

    def holds(self, kind: str, dims: Dims) -> list[Spec]:
        """Weights, or constants, that it reads, directly or through other calls."""
        made = []
        for node in self._of(kind):
            of_weight = kind == 'weight'
            name, shape = (
                (self.builder.weight(node), node.shapes[0]) if of_weight else self.builder.constants.named(node)
            )
            places = [place for place, one in enumerate(self.order) if one == (kind, node)]
            names = dims.inputs[places[0]] if places else ('',) * len(node.shapes[0])
            made.append({'name': name, 'given': f'given:{name}', 'shape': shape, 'dims': names})
            if not of_weight:
                made[-1]['dtype'] = '' if node.floating else node.dtype
        return made

    def _of(self, kind: str) -> list[Node]:
        return [node for node in self.held if node.kind == kind]

    def text(self) -> str:
        """The calls as a kernel reads them: weights before constants."""
        place = {id(node): number for number, node in enumerate([*self._of('weight'), *self._of('constant')])}
        node, arguments, target, named = self.node, self.arguments, self.node.target, self.named
        if node.base in (*RESHAPES, 'expand') and node.kind != 'weight':
            arguments = [arguments[0], {'shape': 0}]
        if node.base in RESHAPES:
            target, named = 'reshape.default', {}
        calls = self.before if node.kind == 'weight' else [*self.before, [target, arguments, named]]
        return json.dumps(replaced(calls, lambda held: {'held': place[id(held)]}))


# masks of attention that are constants: causal ones become a flag, open ones go; and indices of own samples


def plain_attention(node: Node, constants: Constants) -> Node:
    """The call without its mask where that is causal or hides nothing."""
    mask = node.arguments.get('attn_mask')
    if mask is None or mask.kind != 'constant' or node.arguments['is_causal']:
        return node
    kind = _mask_kind(constants.value(mask))
    if not kind:
        return node
    query, key, value, *_ = node.positional
    named: dict[str, Any] = {'is_causal': kind == 'causal', 'scale': node.arguments.get('scale'),
                             'enable_gqa': node.arguments.get('enable_gqa', False)}  # fmt: skip
    arguments = {**node.arguments, **named, 'attn_mask': None}
    return replace(node, positional=[query, key, value], named=named, arguments=arguments)


def _mask_kind(mask: Any) -> str:
    """``causal`` or ``open``; empty: another mask, or one whose values are not known."""
    import torch

    if mask is NO_VALUE:
        return ''
    seen = mask if mask.dtype == torch.bool else mask == 0
    hidden = mask[~seen]
    # Of numbers that are added, what hides must hide all of it.
    if mask.dtype != torch.bool and not bool((hidden <= torch.finfo(mask.dtype).min / 2).all()):
        return ''
    if bool(seen.all()):
        return 'open'
    square = seen.shape[-1] == seen.shape[-2]
    lower = torch.ones(seen.shape[-2:], dtype=torch.bool).tril()
    return 'causal' if square and bool((seen == lower).all()) else ''


def own_row(node: Node, constants: Constants) -> Node:
    """``x[row of each sample, indices]`` as ``x[:, indices]``."""
    import torch

    x, indices = node.positional
    first = indices[0]
    if not isinstance(first, Node) or first.kind != 'constant':
        return node
    value = constants.value(first)
    alone = first.scales and len(first.shapes[0]) == value.ndim and value.numel() == export.COUNTS[0]
    if value is NO_VALUE or not alone or not bool((value.flatten() == torch.arange(export.COUNTS[0])).all()):
        return node
    others: list[Any] = []
    for one in indices[1:]:
        if one is not None and len(one.shapes[0]) == value.ndim:
            if one.shapes[0][0] != 1:
                return node
            # Its dim of samples is that of x now.
            shapes = (one.shapes[0][1:], one.shapes[1][1:])
            one = Node(f'{one.name}_row', one.kind, shapes, one.dtype, 'select.int',  # noqa: PLW2901
                       {'self': one, 'dim': 0, 'index': 0}, (one, 0, 0), fx=one.fx)  # fmt: skip
        others.append(one)
    wanted = [None, *others]
    return replace(node, positional=[x, wanted], arguments={'self': x, 'indices': wanted})
