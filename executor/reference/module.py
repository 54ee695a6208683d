"""The reference of a torch module: its graph, unsharded, in plain torch with autograd.

The module itself is the better reference; `make prove-modules` compares with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import torch
from torch.nn import functional

from executor.draws import dropout_mask, given
from executor.reference.network import Declared, Input, OfModel, Parameters
from simpar.model import Operator
from simpar.model.module import FromModule
from simpar.model.operators.stream import KEYS, Dropout
from simpar.model.operators.torch_call import ModuleEmbedding, ModuleLinear, TorchCall
from simpar.workload import Workload

LOSSES: Final[dict[str, Callable[..., torch.Tensor]]] = {'mse': functional.mse_loss, 'mae': functional.l1_loss}
Values = dict[str, torch.Tensor]


def _model(workload: Workload) -> FromModule:
    return cast('FromModule', workload.model)


def _inputs(workload: Workload) -> tuple[Input, ...]:
    model = _model(workload)
    graph = model.graph(workload.batch)
    result = graph.shapes[graph.nodes[-1].name]
    own = tuple((one.name, one.drawn, one.shape, one.integer) for one in graph.sources if one.name != KEYS)
    if workload.loss in LOSSES:
        return (*own, ('target', 'normal:1', result, False))
    return (*own, ('labels', f'classes:{result[-1]}', result[:-1], True))


def _parameters(workload: Workload) -> Iterator[Declared]:
    seen: set[str] = set()
    for node in _model(workload).nodes:
        for one in node.operator.parameters(()):
            name = one.role.removeprefix('=')
            if name not in seen:
                seen.add(name)
                yield name, one.shape, one.initial


def _loss(workload: Workload, parameters: Parameters, *given_all: Any) -> torch.Tensor:
    # The last says slices of a sequence, which a module has none of.
    *xs, target, keys, _ = given_all
    model = _model(workload)
    names = [one.name for one in model.exported.sources if one.name != KEYS]
    values: Values = {**dict(zip(names, xs, strict=True)), KEYS: keys}
    for node in model.nodes:
        reads = [values[name] for name in node.reads]
        y = values[node.name] = _result(node.operator, parameters, reads)
    if workload.loss in LOSSES:
        return LOSSES[workload.loss](y, target)
    return functional.cross_entropy(y.flatten(0, -2), target.flatten())


def _result(operator: Operator, parameters: Parameters, reads: list[torch.Tensor]) -> torch.Tensor:
    if isinstance(operator, ModuleLinear):
        weight, bias = parameters[operator.weight], parameters.get(operator.bias_name)
        return functional.linear(reads[0], weight.T if operator.transposed else weight, bias)
    if isinstance(operator, ModuleEmbedding):
        padding = operator.padding if operator.padding >= 0 else None
        return functional.embedding(reads[0], parameters[operator.weight], padding_idx=padding)
    if isinstance(operator, Dropout):
        x, keys = reads
        mask = dropout_mask(keys, operator.site, list(x.shape[1:]), operator.probability)
        return x * mask / (1 - operator.probability)
    return _called(cast('TorchCall', operator), parameters, reads)


def _called(operator: TorchCall, parameters: Parameters, reads: list[torch.Tensor]) -> torch.Tensor:
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
        function = getattr(getattr(torch.ops.aten, name), overload or 'default')
        made.append(function(*map(value, arguments), **{key: value(of) for key, of in named.items()}))
    return made[-1]


REFERENCE_OF_MODULE: Final = OfModel(inputs=_inputs, parameters=_parameters, loss=_loss)
