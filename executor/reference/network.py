"""The unsharded network and the unsharded torch module, for autograd."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

import torch
from torch.nn import functional

from executor.draws import OWN, dropout_mask, given, own_operator
from simpar import model as operators
from simpar.model import Operator
from simpar.model.model import FromModule
from simpar.model.operators import stream, torch_call
from simpar.workload import Workload

# The reference of a ``network:``: its layers in plain torch, each of which reads values by name.

# What the reference knows of a kind of model.

Parameters = dict[str, torch.Tensor]
Declared = tuple[str, tuple[int, ...], str]
"""Name, shape and draw of a parameter."""


class Slices(NamedTuple):
    """Slices of a sequence that ranks hold: ``parts``; ``balanced``, context ranks with chunks from both ends, or 0."""

    parts: int
    balanced: int


Input = tuple[str, str, tuple[int, ...], bool]
"""Name, draw, shape, and whether it holds integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfModel:
    """A kind of model.

    Arguments:
        inputs: the model's inputs and its target.
        loss: gives the loss of a copy from its inputs, its target, the keys that dropout draws from, and how many
            slices of a sequence ranks hold.
    """

    inputs: Callable[[Workload], tuple[Input, ...]]
    parameters: Callable[[Workload], Iterator[Declared]]
    loss: Callable[..., torch.Tensor]


# A ``network:``.

DIFFERENCES: Final = {'mse': functional.mse_loss, 'mae': functional.l1_loss}
"""Losses whose target is a tensor like the result."""


def _network(workload: Workload) -> operators.Network:
    return cast('operators.Network', workload.model)


def _parameters(workload: Workload) -> Iterator[Declared]:
    model = _network(workload)
    shapes, weight = operators.network_shapes(model, workload.batch), f'normal:{model.init_std}'
    for name, layer in zip(operators.layer_names(model), model.layers, strict=True):
        if isinstance(layer, operators.Dense | operators.Conv2d):
            window = (layer.kernel,) * 2 if isinstance(layer, operators.Conv2d) else ()
            yield f'{name}.weight', (layer.outputs, layer.inputs, *window), weight
            if layer.bias:
                yield f'{name}.bias', (layer.outputs,), 'zeros'
        elif isinstance(layer, operators.LayerNorm | operators.RmsNorm):
            yield f'{name}.gain', shapes[name][-1:], 'ones'
            if isinstance(layer, operators.LayerNorm):
                yield f'{name}.bias', shapes[name][-1:], 'zeros'
        elif isinstance(layer, operators.Embedding):
            yield f'{name}.weight', (layer.vocab, layer.width), weight


def _inputs(workload: Workload) -> tuple[Input, Input]:
    """The input and the target: a class for each row of the last result, or a tensor like it."""
    model = _network(workload)
    *_, result = operators.network_shapes(model, workload.batch).values()
    first, digits = model.layers[0], 'mnist' if workload.data == 'mnist' else ''
    tokens = isinstance(first, operators.Embedding)
    drawn = f'tokens:{first.vocab}' if isinstance(first, operators.Embedding) else digits or 'normal:1'
    x = (operators.INPUT, drawn, (workload.batch, *model.sample), tokens)
    if workload.loss not in DIFFERENCES:
        return x, ('labels', digits or f'classes:{result[-1]}', result[:-1], True)
    return x, ('target', 'normal:1', result, False)


def _loss(workload: Workload, parameters: Parameters, x: torch.Tensor, target: torch.Tensor, *_: Any) -> torch.Tensor:
    model = _network(workload)
    values = {operators.INPUT: x}
    for name, layer, reads in zip(operators.layer_names(model), model.layers, operators.reads_of(model), strict=True):
        # Layers see their parameters by short names, as torch modules do.
        own = {key.removeprefix(f'{name}.'): of for key, of in parameters.items() if key.startswith(f'{name}.')}
        # An operator may have another name, and be a class of its own for it: then what it is made from tells.
        result = next(_RESULTS[kind] for kind in type(layer).__mro__ if kind in _RESULTS)
        x = values[name] = result(layer, own, *(values[read] for read in reads))
    return DIFFERENCES.get(workload.loss, functional.cross_entropy)(x, target)


_RESULTS: Final[dict[type, Callable[..., torch.Tensor]]] = {
    operators.Dense: lambda _, own, x: functional.linear(x, own['weight'], own.get('bias')),
    operators.LayerNorm: lambda layer, own, x: functional.layer_norm(
        x, x.shape[-1:], own['gain'], own['bias'], layer.epsilon
    ),
    operators.RmsNorm: lambda layer, own, x: functional.rms_norm(x, x.shape[-1:], own['gain'], layer.epsilon),
    operators.Embedding: lambda _, own, x: functional.embedding(x, own['weight']),
    operators.Conv2d: lambda layer, own, x: functional.conv2d(
        x, own['weight'], own.get('bias'), layer.stride, layer.padding
    ),
    operators.MatMul: lambda layer, _, a, b: torch.matmul(
        a.mT if layer.transpose_a else a, b.mT if layer.transpose_b else b
    ),
    operators.Reduce: lambda layer, _, x: (torch.mean if layer.mean else torch.sum)(x, layer.dims, layer.keep),
    operators.Reshape: lambda layer, _, x: x.reshape(layer.shape),
    operators.Transpose: lambda layer, _, x: x.permute(layer.permutation),
    operators.Flatten: lambda _, __, x: x.flatten(1),
    operators.Mul: lambda layer, _, x: layer.factor * x,
    operators.Add: lambda _, __, x, z: x + z,
    operators.Multiply: lambda _, __, x, z: x * z,
    operators.Relu: lambda _, __, x: functional.relu(x),
    operators.Gelu: lambda _, __, x: functional.gelu(x),
    operators.Silu: lambda _, __, x: functional.silu(x),
    operators.SquaredRelu: lambda _, __, x: functional.relu(x) ** 2,
    operators.Softmax: lambda _, __, x: functional.softmax(x, -1),
}
"""By kind, a layer's result of its own parameters and what it reads."""


REFERENCE_OF_NETWORK: Final = OfModel(inputs=_inputs, parameters=_parameters, loss=_loss)


# The reference of a torch module: its graph, unsharded, in plain torch with autograd.
#
# The module itself is the better reference; `make prove-modules` compares with it.

Values = dict[str, torch.Tensor]


def _model(workload: Workload) -> FromModule:
    return cast('FromModule', workload.model)


def _module_inputs(workload: Workload) -> tuple[Input, ...]:
    model = _model(workload)
    graph = model.graph(workload.batch)
    result = graph.shapes[graph.nodes[-1].name]
    own = tuple((one.name, one.drawn, one.shape, one.integer) for one in graph.sources if one.name != stream.KEYS)
    if workload.loss in DIFFERENCES:
        return (*own, ('target', 'normal:1', result, False))
    return (*own, ('labels', f'classes:{result[-1]}', result[:-1], True))


def _module_parameters(workload: Workload) -> Iterator[Declared]:
    seen: set[str] = set()
    for node in _model(workload).nodes:
        for one in node.operator.parameters(()):
            name = one.role.removeprefix('=')
            if name not in seen:
                seen.add(name)
                yield name, one.shape, one.initial


def _module_loss(workload: Workload, parameters: Parameters, *given_all: Any) -> torch.Tensor:
    # The last says slices of a sequence, which a module has none of.
    *xs, target, keys, _ = given_all
    model = _model(workload)
    names = [one.name for one in model.exported.graph.sources if one.name != stream.KEYS]
    values: Values = {**dict(zip(names, xs, strict=True)), stream.KEYS: keys}
    for node in model.nodes:
        reads = [values[name] for name in node.reads]
        y = values[node.name] = _of_operator(node.operator, parameters, reads)
    if workload.loss in DIFFERENCES:
        return DIFFERENCES[workload.loss](y, target)
    return functional.cross_entropy(y.flatten(0, -2), target.flatten())


def _of_operator(operator: Operator, parameters: Parameters, reads: list[torch.Tensor]) -> torch.Tensor:
    if isinstance(operator, torch_call.ModuleLinear):
        weight, bias = parameters[operator.weight], parameters.get(operator.bias_name)
        return functional.linear(reads[0], weight.T if operator.transposed else weight, bias)
    if isinstance(operator, torch_call.ModuleEmbedding):
        padding = operator.padding if operator.padding >= 0 else None
        return functional.embedding(reads[0], parameters[operator.weight], padding_idx=padding)
    if isinstance(operator, stream.Dropout):
        x, keys = reads
        mask = dropout_mask(keys, operator.site, list(x.shape[1:]), operator.probability)
        return x * mask / (1 - operator.probability)
    return _called(cast('torch_call.TorchCall', operator), parameters, reads)


def _called(operator: torch_call.TorchCall, parameters: Parameters, reads: list[torch.Tensor]) -> torch.Tensor:
    spec = operator.spec
    dtype = next((one.dtype for one in (*reads, *parameters.values()) if one.is_floating_point()), torch.float64)
    integer = {'bool': torch.bool, 'int32': torch.int32, 'int64': torch.int64}
    held = [parameters[one.name] for one in spec.weights]
    held += [given(one.name, one.shape, integer.get(one.dtype, dtype)) for one in spec.constants]
    shape = [spec.shape[0] * reads[0].shape[0] // spec.rows, *spec.shape[1:]]
    made: list[torch.Tensor] = []

    def value(argument: Any) -> Any:
        if isinstance(argument, list):
            return [value(one) for one in argument]
        if not isinstance(argument, dict):
            return argument
        ((kind, which),) = argument.items()
        if kind == 'dtype':
            return integer.get(which, dtype)
        return shape if kind == 'shape' else {'read': reads, 'held': held, 'call': made}[kind][which]

    for target, arguments, named in json.loads(spec.calls):
        name, _, overload = target.partition('.')
        if '::' in name:
            function = own_operator(target, os.environ.get(OWN, ''))
        else:
            function = getattr(getattr(torch.ops.aten, name), overload or 'default')
        made.append(function(*map(value, arguments), **{key: value(of) for key, of in named.items()}))
    return made[-1]


REFERENCE_OF_MODULE: Final = OfModel(inputs=_module_inputs, parameters=_module_parameters, loss=_module_loss)
