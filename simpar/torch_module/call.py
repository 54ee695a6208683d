"""One call of a module as an operator: what it reads, the calls that only weights go through, and constants."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol

from simpar.torch_module.export import COUNTS
from simpar.torch_module.graph import Node, Reader, inside, replaced
from simpar.torch_module.rules import TABLE, Arg, Dims, UnclearError

SAMPLES: Final = COUNTS[0]
MANY: Final = 1009
"""Samples that rules are asked for: a prime, so that no other dim is as long by chance."""
RESHAPES: Final = frozenset({'view', 'reshape', '_unsafe_view', 'flatten', 'unflatten', 'squeeze', 'unsqueeze'})
OF_WEIGHTS: Final = frozenset({'index', 'index_select', 'tril', 'triu'})
"""Calls besides those of the table that only weights and constants may go through."""
Spec = dict[str, Any]
NO_VALUE: Final = object()


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
            found = self._reader.values.get(node.held, self._reader.values.get(node.name, NO_VALUE))
            return NO_VALUE if found is NO_VALUE or found.device.type == 'meta' else found

        if not node.is_aten:
            raise UnclearError(f'reads a constant of {node.target}, which is no operator of aten; make it a buffer')
        arguments, named = (
            replaced(told, lambda read: self._known[id(read)]) for told in (node.positional, node.named)
        )
        if any(self._known[id(read)] is NO_VALUE for read in inside((node.positional, node.named))):
            return NO_VALUE
        name, _, overload = node.target.partition('.')
        return getattr(getattr(torch.ops.aten, name), overload)(*arguments, **named)


def _plain(value: Any) -> Any:
    """A value as JSON has it; types of torch by their names."""
    text = '' if isinstance(value, Node) else str(value)
    return {'dtype': text.removeprefix('torch.')} if text.startswith('torch.') else value


def full_name(node: Node) -> str:
    """What a node calls, with its library."""
    return f'aten.{node.target}' if node.is_aten else node.target


class Surroundings(Protocol):
    """What a call must know of the graph that it is in: names of operators, constants, and the first input."""

    names: dict[int, str]
    constants: Constants
    sources: list[Node]

    def read(self, node: Node) -> str:
        """The name of an operator or an input."""

    def weight(self, node: Node) -> str:
        """The name of a weight in programs."""


class Call:
    """One call with what it reads: samples, weights and constants, and the calls before it that make weights."""

    def __init__(self, builder: Surroundings, node: Node) -> None:
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

    def _value(self, told: Any, tensor: Callable[[Node], Any]) -> Any:
        """An argument as a kernel reads it. Arguments: ``tensor``, what stands for a node."""
        value = replaced(told, tensor)
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
                raise UnclearError(f'reads weights through {full_name(node)}, which has no row in the table '
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

    def _dims_of(self, dims: Dims, wanted: Node, kind: str) -> tuple[str, ...]:
        places = [place for place, (of, node) in enumerate(self.order) if node is wanted and of == kind]
        return dims.inputs[places[0]] if places else ()

    def weights(self, dims: Dims) -> list[Spec]:
        """Weights that it reads, directly or through other calls."""
        return [
            self._told(node, self._dims_of(dims, node, 'weight'), self.builder.weight(node))
            for node in self._of('weight')
        ]

    def constants(self, dims: Dims) -> list[Spec]:
        """Constants that it reads."""
        made = []
        for node in self._of('constant'):
            name, shape = self.builder.constants.named(node)
            told = self._told(node, self._dims_of(dims, node, 'constant'), name)
            made.append({**told, 'shape': shape, 'dtype': '' if node.floating else node.dtype})
        return made

    def _of(self, kind: str) -> list[Node]:
        return [node for node in self.held if node.kind == kind]

    def _told(self, node: Node, names: tuple[str, ...], name: str) -> Spec:
        shape = node.shapes[0]
        return {'name': name, 'given': f'given:{name}', 'shape': shape, 'dims': names or ('',) * len(shape)}

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
    alone = first.scales and len(first.shapes[0]) == value.ndim and value.numel() == COUNTS[0]
    if value is NO_VALUE or not alone or not bool((value.flatten() == torch.arange(COUNTS[0])).all()):
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
