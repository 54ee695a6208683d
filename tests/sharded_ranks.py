"""Data ranks that train with torch's FSDP2 or FSDP1: begun by a test.

The folder holds the jobs. What each rank sent, held and trained is written there: bytes of every collective of a step,
of its shards of weights, gradients and states, and of what was gathered.
"""

from functools import cache, partial

import torch
import torch._dynamo  # FSDP2 would import it later, once a rank.
import torch.distributed as dist
from rank_jobs import fork
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from executor.draws import batch_of, draw
from executor.reference import OF_MODELS, _optimizer
from executor.reference.gpt import _attention, _together
from simpar.model import Conv2d, Dense, Flatten, Gelu, LayerNorm, Relu, RmsNorm, layer_names, network_shapes
from simpar.workload import Transformer

MESSAGES = {
    'c10d::_allgather_base_': ('all_gather', 0),
    'c10d::allgather_': ('all_gather', 0),
    'c10d::_reduce_scatter_base_': ('reduce_scatter', 1),
}
"""Which argument of a collective is its full vector: one tensor, or a list of lists of its parts."""


def weight(full):
    return full.nbytes if isinstance(full, torch.Tensor) else sum(map(weight, full))


class Weighing(TorchDispatchMode):
    """Notes kind and bytes of every collective of what runs within it."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        name = operator._schema.name
        if name in MESSAGES:
            kind, at = MESSAGES[name]
            self.messages.append((kind, weight(args[at])))
        return operator(*args, **(kwargs or {}))


# The modules: of the layers that simpar has, as torch users write them.


class Position(torch.nn.Module):
    def __init__(self, sequence, hidden):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(sequence, hidden))

    def forward(self, x):
        return x + self.weight


class Block(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, wide = model, model.hidden // model.heads
        self.norm1, self.norm2 = (torch.nn.LayerNorm(model.hidden) for _ in range(2))
        self.qkv = torch.nn.Linear(model.hidden, (model.heads + 2 * model.key_value_heads) * wide)
        self.proj = torch.nn.Linear(model.hidden, model.hidden)
        self.fc1 = torch.nn.Linear(model.hidden, model.ffn or 4 * model.hidden)
        self.fc2 = torch.nn.Linear(self.fc1.out_features, model.hidden)

    def forward(self, x):
        qkv = _together(self.model, 0, self.qkv(self.norm1(x)), [None, None])
        x = x + self.proj(_attention(self.model, 0, *qkv, lambda y: y, None))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))


def layers_of(workload):
    """Modules by the names of layers, in order; those without parameters too."""
    model = workload.model
    if isinstance(model, Transformer):
        return {
            'embedding': torch.nn.Embedding(model.vocab, model.hidden),
            'position': Position(model.sequence, model.hidden),
            **{f'layer{index}': Block(model) for index in range(model.layers)},
            'norm': torch.nn.LayerNorm(model.hidden),
            'head': torch.nn.Linear(model.hidden, model.vocab, bias=False),
        }
    shapes = network_shapes(model, workload.batch)
    return {
        name: module_of(layer, shapes[name][-1]) for name, layer in zip(layer_names(model), model.layers, strict=True)
    }


def module_of(layer, width):
    if isinstance(layer, Dense):
        return torch.nn.Linear(layer.inputs, layer.outputs, bias=layer.bias)
    if isinstance(layer, Conv2d):
        return torch.nn.Conv2d(
            layer.inputs, layer.outputs, layer.kernel, stride=layer.stride, padding=layer.padding, bias=layer.bias
        )
    plain = {Relu: torch.nn.ReLU, Gelu: torch.nn.GELU, Flatten: torch.nn.Flatten}
    if type(layer) in plain:
        return plain[type(layer)]()
    return {LayerNorm: torch.nn.LayerNorm, RmsNorm: lambda n: torch.nn.RMSNorm(n, eps=1e-5)}[type(layer)](width)


def ours(name):
    """What simpar calls a parameter of torch's."""
    layer, _, rest = name.rpartition('.')
    norm = 'norm' in name.split('.')[-2]
    return f'{layer}.gain' if norm and rest == 'weight' else name


def drawn(workload, seed):
    """The modules with the weights that every machine draws."""
    layers = layers_of(workload)
    model = torch.nn.ModuleDict(layers).to(torch.float64)
    declared = {name: (shape, initial) for name, shape, initial in OF_MODELS[type(workload.model)].parameters(workload)}
    for name, parameter in model.named_parameters():
        shape, initial = declared.pop(ours(name))
        parameter.data = draw(initial, shape, torch.float64, seed, ours(name)).reshape(parameter.shape)
    assert not declared, declared
    return layers


class Whole(torch.nn.Module):
    """The layers in turn."""

    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleDict(layers)

    def forward(self, x):
        for layer in self.layers.values():
            x = layer(x)
        return x


# Torch's engines


@cache
def data_ranks():
    return init_device_mesh('cpu', (dist.get_world_size(),))


class Two:
    """FSDP2: a layer at a time."""

    def __init__(self, layers, twice):
        mesh = data_ranks()
        self.units, self.twice = {}, twice
        for name, layer in layers.items():
            if list(layer.parameters()):
                self.units[name] = fully_shard(layer, mesh=mesh, reshard_after_forward=twice)
        self.module = fully_shard(Whole(layers), mesh=mesh)
        self.gathered = {}
        for name, unit in self.units.items():
            unit.register_forward_pre_hook(lambda *_, name=name: self._look(name))

    def _params(self, name):
        return self.units[name]._get_fsdp_state()._fsdp_param_group.fsdp_params

    def _look(self, name):
        self.gathered[name] = sum(one._unsharded_param.untyped_storage().nbytes() for one in self._params(name))

    def micro_batch(self, each, last):
        self.module.set_requires_gradient_sync(each or last)
        # Gathered once, weights are kept from micro-batch to micro-batch.
        self.module.set_reshard_after_backward(last or self.twice)

    def shards(self):
        return sum(
            one._sharded_param_data.untyped_storage().nbytes() for name in self.units for one in self._params(name)
        )

    def gradients(self):
        storages = [p.grad._local_tensor.untyped_storage() for p in self.module.parameters() if p.grad is not None]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}.values())

    def states(self, optimizer):
        return sum(state['exp_avg'].to_local().nbytes for state in optimizer.state.values())

    def parameters(self):
        return {name.removeprefix('layers.'): value.full_tensor() for name, value in self.module.named_parameters()}


class One:
    """FSDP1: a layer at a time, its parameters in one flat parameter."""

    def __init__(self, layers, twice):
        strategy = ShardingStrategy.FULL_SHARD if twice else ShardingStrategy.SHARD_GRAD_OP
        self.gathered, self.units, made = {}, {}, {}
        shard = partial(FullyShardedDataParallel, sharding_strategy=strategy, device_id=torch.device('cpu'))
        for name, layer in layers.items():
            made[name] = layer
            if list(layer.parameters()):
                made[name] = self.units[name] = shard(layer)
                layer.register_forward_pre_hook(lambda *_, name=name: self._look(name))
        # The outermost keeps what it has gathered, so it has no parameters.
        self.module = shard(Whole(made))

    def _look(self, name):
        self.gathered[name] = self.units[name]._handle.flat_param.untyped_storage().nbytes()

    def micro_batch(self, each, last):
        pass

    def _flats(self):
        return [unit._handle.flat_param for unit in self.units.values()]

    def shards(self):
        return sum(flat._local_shard.nbytes for flat in self._flats())

    def gradients(self):
        return sum(flat.grad.nbytes for flat in self._flats())

    def states(self, optimizer):
        return sum(state['exp_avg'].nbytes for state in optimizer.state.values())

    def parameters(self):
        found = {}
        for name, unit in self.units.items():
            with FullyShardedDataParallel.summon_full_params(unit):
                found |= {f'{name}.{own}': value.detach().clone() for own, value in unit.module.named_parameters()}
        return found


def train(job, rank, world):
    workload, seed, count = job['workload'], job['seed'], job['micro_batches']
    engine = {'fsdp2': Two, 'fsdp1': One}[job['engine']](drawn(workload, seed), job['twice'])
    optimizer = _optimizer(workload, dict(engine.module.named_parameters()))
    inputs, targets = OF_MODELS[type(workload.model)].inputs(workload)
    for step in range(job['steps']):
        x, target = (
            batch_of(name, initial, shape, torch.int64 if integer else torch.float64, seed, step).chunk(world)[rank]
            for name, initial, shape, integer in (inputs, targets)
        )
        optimizer.zero_grad()
        with Weighing() as seen:
            for index, (part, wanted) in enumerate(zip(x.chunk(count), target.chunk(count), strict=True)):
                engine.micro_batch(job['each'], index == count - 1)
                y = engine.module(part)
                loss = (
                    functional.cross_entropy(y.flatten(0, 1), wanted.flatten())
                    if isinstance(workload.model, Transformer)
                    else functional.mse_loss(y, wanted)
                )
                (loss / count).backward()
        gradients = engine.gradients()
        optimizer.step()
    return {
        'messages': sorted(seen.messages),
        'weights': engine.shards(),
        'gradients': gradients,
        'states': engine.states(optimizer),
        'gathered': engine.gathered,
        'parameters': {ours(name): value.detach() for name, value in engine.parameters().items()},
    }


def main(world, folder):
    return fork(lambda job, rank: train(job, rank, world), world, folder)
