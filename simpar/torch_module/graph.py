"""What torch.export found, as the graph that is read: who reads samples, weights or neither, and what is left out."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from simpar.torch_module.export import Traced

if TYPE_CHECKING:
    import torch

T = TypeVar('T')
SAME: Final = frozenset({'alias', 'clone', 'contiguous', 'lift_fresh_copy', 'detach_', 'view_as', 'type_as'})
"""Calls whose result is what they read."""
PARTS: Final = frozenset({'split', 'split_with_sizes', 'chunk', 'unbind', 'tensor_split'})
_NUMBER: Final = re.compile(r'^(.*?)\.?(\d+)(?:\.|$)')
_PART: Final = re.compile(r'^(.*)@(\d+)of(\d+)d(\d)$')
ASIDE: Final = frozenset({'_assert_tensor_metadata', 'sym_size', '_assert_scalar', 'sym_constrain_range_for_size'})


@dataclass(slots=True, eq=False)
class Node:
    """A node of the export.

    Arguments:
        kind: samples, weight or constant: whether it reads samples, or else a weight that is trained.
        shapes: of the two exports. target: aten's name with overload; empty: an input, weight or constant.
        held: the module's name of a weight or buffer.
    """

    name: str
    kind: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtype: str
    target: str = ''
    arguments: Mapping[str, Any] = field(default_factory=dict)
    positional: Sequence[Any] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    held: str = ''
    fx: Any = None

    @property
    def base(self) -> str:
        """Without the overload."""
        return self.target.partition('.')[0]

    @property
    def is_aten(self) -> bool:
        """Whether it calls an operator of torch's own, and no custom one and no other function."""
        return '::' not in self.target

    @property
    def scales(self) -> bool:
        """Its shape tells how many samples there are."""
        return self.shapes[0] != self.shapes[1]

    @property
    def floating(self) -> bool:
        """Whether it has a derivative."""
        return 'float' in self.dtype


def of_kind(value: Any, kind: type[T]) -> Iterator[T]:
    """All values of a kind in arguments, in order."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from of_kind(one, kind)


def inside(value: Any) -> Iterator[Node]:
    """All nodes of arguments, in order."""
    return of_kind(value, Node)


def replaced(value: Any, change: Callable[[Node], Any]) -> Any:
    """Arguments with what a function makes of each node in its place."""
    if isinstance(value, Node):
        return change(value)
    if isinstance(value, Mapping):
        return {key: replaced(one, change) for key, one in value.items()}
    return [replaced(one, change) for one in value] if isinstance(value, list | tuple) else value


class Reader:
    """Makes nodes of two exports of one module.

    Arguments: ``trained``, names of parameters that are trained; ``values``, of weights, buffers and lifted constants.
    """

    def __init__(self, one: Traced, other: Traced, module: Any) -> None:
        self.signature = one.program.graph_signature
        self.trained = {name for name, of in module.named_parameters(remove_duplicate=False) if of.requires_grad}
        self.first: dict[int, str] = {}
        self.tied: dict[str, str] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            self.tied[name] = self.first.setdefault(id(parameter), name)
        self.values: dict[str, Any] = {**one.program.constants, **dict(module.named_buffers()),
                                       **dict(module.named_parameters(remove_duplicate=False))}  # fmt: skip
        self.nodes: dict[str, Node] = {}
        self.inputs: list[Node] = []
        self._parts: dict[str, tuple[Node, Any]] = {}
        for node, twin in zip(one.nodes, other.nodes, strict=False):
            self._read(node, twin)

    def _read(self, node: Any, twin: Any) -> None:
        value, other = node.meta.get('val'), twin.meta.get('val')
        if node.op == 'placeholder' and hasattr(value, 'shape'):
            self.nodes[node.name] = self._placeholder(node, value, other)
        elif node.op == 'call_function' and node.target is operator.getitem:
            self.nodes[node.name] = self._part(node, value, other)
        elif node.op == 'call_function':
            self._call(node, value, other)

    def _placeholder(self, node: Any, value: Any, other: Any) -> Node:
        said = self.signature
        of_module = (said.inputs_to_parameters, said.inputs_to_buffers, said.inputs_to_lifted_tensor_constants)
        held = next((names[node.name] for names in of_module if node.name in names), '')
        held = self.tied.get(held, held)
        made = Node(node.name, 'constant', (tuple(value.shape), tuple(other.shape)), _dtype(value), fx=node)
        if held:
            made.kind = 'weight' if held in self.trained else 'constant'
            made.held = held
        else:
            made.kind = 'samples' if made.scales else 'constant'
            self.inputs.append(made)
        return made

    def _call(self, node: Any, value: Any, other: Any) -> None:
        target = _name_of(node.target)
        base = target.partition('.')[0]
        if base in ASIDE:
            return
        positional, named = self._arguments(node.args), self._arguments(node.kwargs)
        arguments = _by_name(node.target, positional, named)
        if base in PARTS:
            self._parts[node.name] = (arguments['self'], (base, arguments))
            return
        first = next(inside(positional), None)
        same = base in SAME or _casts(base, first, value) or _drops_nothing(base, arguments)
        if same and first is not None:
            self.nodes[node.name] = first
            return
        if not hasattr(value, 'shape'):
            shapes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        else:
            shapes = (tuple(value.shape), tuple(other.shape))
        self.nodes[node.name] = Node(node.name, _kind((positional, named)), shapes, _dtype(value), target, arguments,
                                     positional, named, fx=node)  # fmt: skip

    def _part(self, node: Any, value: Any, other: Any) -> Node:
        """A part of a split as a slice, or as a select."""
        owner, index = node.args
        if owner.name not in self._parts:
            return self._first(node, owner, index, (tuple(value.shape), tuple(other.shape)))
        x, (base, said) = self._parts[owner.name]
        shapes = (tuple(value.shape), tuple(other.shape))
        dim = said.get('dim', 0) % len(x.shapes[0])
        if base == 'unbind':
            return Node(node.name, x.kind, shapes, x.dtype, 'select.int', {'self': x, 'dim': dim, 'index': index},
                        (x, dim, index), fx=owner)  # fmt: skip
        lengths = [of.shape[dim] for of in owner.meta['val']]
        start = sum(lengths[:index])
        end = start + lengths[index]
        arguments = {'self': x, 'dim': dim, 'start': start, 'end': end, 'step': 1}
        return Node(node.name, x.kind, shapes, x.dtype, 'slice.Tensor', arguments, (x, dim, start, end), fx=owner)

    def _first(self, node: Any, owner: Any, index: int, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> Node:
        """The first of several results, of a call that the table knows by another name."""
        call = self.nodes[owner.name]
        made = replace(call, name=node.name, shapes=shapes, dtype=_dtype(node.meta['val']))
        if call.base == '_native_batch_norm_legit_no_training' and index == 0:
            x, weight, bias, mean, var, momentum, epsilon = call.positional
            positional = [x, weight, bias, mean, var, False, momentum, epsilon, False]
            made = replace(made, target='batch_norm.default', positional=positional, named={},
                           arguments={'input': x, 'weight': weight, 'bias': bias, 'running_mean': mean,
                                      'running_var': var, 'training': False})  # fmt: skip
        if call.base == 'native_dropout' and index == 0:
            x, probability, *_ = call.positional
            made = replace(made, target='dropout.default', positional=[x],
                           arguments={'input': x, 'p': probability, 'train': True})  # fmt: skip
        return made

    def _arguments(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._arguments(one) for key, one in value.items() if key not in _ELSEWHERE}
        if isinstance(value, list | tuple):
            return [self._arguments(one) for one in value]
        return self.nodes.get(value.name, value) if hasattr(value, 'op') and hasattr(value, 'meta') else value


_ELSEWHERE: Final = frozenset({'device', 'layout', 'pin_memory', 'memory_format', 'non_blocking'})
"""Where a tensor lies in memory, which a plan says."""


def _name_of(target: Any) -> str:
    """The name of what is called, as ``Node.target`` has it."""
    text = str(target)
    if text.startswith('aten.'):
        return text.removeprefix('aten.')
    # ``library.operator.overload``; operators that take functions, and functions of Python, have no overload.
    namespace, _, rest = (
        text.partition('.') if hasattr(target, '_schema') else (target.__module__.partition('.')[0], '', '')
    )
    return f'{namespace}::{rest.removesuffix(".default") or target.__name__}'


def _kind(arguments: Any) -> str:
    kinds = {node.kind for node in inside(arguments)}
    return 'samples' if 'samples' in kinds else 'weight' if 'weight' in kinds else 'constant'


def _dtype(value: Any) -> str:
    return str(getattr(value, 'dtype', '')).removeprefix('torch.')


def _by_name(target: Any, positional: list[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the names of the schema, with its defaults."""
    schema = getattr(target, '_schema', None)
    if schema is None:
        return dict(named)
    parameters = list(schema.arguments)
    arguments = {one.name: one.default_value for one in parameters if one.has_default_value()}
    arguments |= {one.name: value for one, value in zip(parameters, positional, strict=False)}
    arguments |= named
    # In the order of the schema, as kernels take tensors.
    return {one.name: arguments[one.name] for one in parameters if one.name in arguments and one.name not in _ELSEWHERE}


def _casts(base: str, first: Node | None, value: Any) -> bool:
    """From one floating type to another: everything has the precision of the schedule."""
    if base not in ('_to_copy', 'to', 'float', 'double', 'half') or first is None:
        return False
    made = _dtype(value)
    return first.dtype == made or (first.floating and 'float' in made)


def _drops_nothing(base: str, arguments: Mapping[str, Any]) -> bool:
    return base in ('dropout', 'feature_dropout', 'alpha_dropout') and (not arguments['train'] or arguments['p'] == 0)


# names of operators and tensors in programs, and the layers that operators belong to


def program_name(name: str) -> str:
    """``h.0.attn.weight`` → ``h/0/attn.weight``: programs take what stands before the first dot for the layer."""
    owner, _, leaf = name.rpartition('.')
    return f'{owner.replace(".", "/")}.{leaf}' if owner else leaf


def module_name(name: str) -> str:
    """The module's name of a tensor of a program."""
    return name.replace('/', '.')


def path_of(node: Any) -> str:
    """Which part of the module a node comes from; empty: the module itself."""
    stack = list((node.meta.get('nn_module_stack') or {}).values())
    path = stack[-1][0] if stack else ''
    return path.removeprefix("L['self']").lstrip('.')


def source_of(node: Any) -> str:
    """file:line in the module's own code; empty where torch does not tell."""
    # Not code that torch has generated, as for the branches of a condition.
    frames = re.findall(r'File "([^"<]+)", line (\d+)', node.meta.get('stack_trace') or '')
    return f'{frames[-1][0]}:{frames[-1][1]}' if frames else ''


def layers_of(paths: Iterable[str], products: Iterable[bool]) -> tuple[list[int], int]:
    """For each operator its layer, and how many layers there are.

    Layers are the parts of the module's lists, the outermost ones; where it has none of two parts, products with what
    follows them. What stands before the first is −1, what stands behind the last their count.
    """
    paths, products = list(paths), list(products)
    blocks = [match[1] + '.' + match[2] if (match := _NUMBER.match(path)) else '' for path in paths]
    order = list(dict.fromkeys(block for block in blocks if block))
    if len(order) < 2:
        return _by_products(products)
    place = {block: number for number, block in enumerate(order)}
    found_layers, now = [], -1
    for block in blocks:
        # Operators of one list part may stand among those of the next; stages only go on.
        now = max(now, place.get(block, now))
        found_layers.append(now)
    behind = max(index for index, block in enumerate(blocks) if block) + 1
    return [len(order) if index >= behind else layer for index, layer in enumerate(found_layers)], len(order)


def _by_products(products: list[bool]) -> tuple[list[int], int]:
    now, made = -1, []
    for product in products:
        now += product
        made.append(max(now, 0))
    return made, max(1, now + 1)


def module_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of a program by the module's own names, the parts of a weight in one."""
    import torch

    by_name: dict[str, torch.Tensor] = {}
    parts: dict[tuple[str, int], dict[int, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        part = _PART.match(name)
        if part is None:
            by_name[module_name(name)] = tensor
        else:
            parts.setdefault((module_name(part[1]), int(part[4])), {})[int(part[2])] = tensor
    for (name, dim), of in parts.items():
        by_name[name] = torch.cat([of[place] for place in sorted(of)], dim)
    return by_name
