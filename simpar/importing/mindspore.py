"""A training script of MindSpore as a schedule: its syntax tree is read, and nothing of it runs.

What is read: ``nn.Cell`` classes with their layers and ``construct``, strategies, fusion ids, recomputation and stages
of layers, ``MicroBatchInterleaved``, ``PipelineCell``, ``AutoParallel`` and ``set_auto_parallel_context``, losses,
optimizers, and the batch of a dataset. What is not understood of these is named by its line. Facts of the interface:
mindspore.nn, mindspore.parallel and mindspore.set_auto_parallel_context of 2.3 and 2.10.
"""

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from simpar import files, profiles
from simpar.errors import Problem, ScheduleError
from simpar.importing import findings, mapping, settings
from simpar.importing.python_script import (
    BY_LAYERS,
    UNKNOWN,
    Cell,
    Data,
    Function,
    Method,
    Module,
    Reader,
    Thing,
    Unknown,
    method_of,
)

HINT: Final = re.compile(r'^\s*(?:import|from)\s+mindspore\b', re.MULTILINE)
USUAL: Final = 'ascend910b-8'
_WORKERS = re.compile(r'(?:--worker_num[= ]|mpirun\b[^\n]*?\s-n(?:p)?\s+)(\d+)')
LOSSES: Final = {
    'CrossEntropyLoss': 'cross-entropy', 'SoftmaxCrossEntropyWithLogits': 'cross-entropy', 'MSELoss': 'mse',
    'MAELoss': 'mae', 'L1Loss': 'mae',
}  # fmt: skip
OPTIMIZERS: Final[Mapping[str, tuple[str, Mapping[str, str], tuple[str, ...]]]] = {
    # Of MindSpore: ours, its arguments by name, and all of them in their order.
    'SGD': ('sgd', {'learning_rate': 'learning_rate'}, ('params', 'learning_rate', 'momentum')),
    'Momentum': ('momentum', {'learning_rate': 'learning_rate', 'momentum': 'momentum'},
                 ('params', 'learning_rate', 'momentum')),
    'Adam': ('adam', {'learning_rate': 'learning_rate'}, ('params', 'learning_rate')),
    'AdamWeightDecay': ('adamw', {'learning_rate': 'learning_rate', 'weight_decay': 'weight_decay'},
                        ('params', 'learning_rate', 'beta1', 'beta2', 'eps', 'weight_decay')),
    'AdamW': ('adamw', {'learning_rate': 'learning_rate', 'weight_decay': 'weight_decay'},
              ('params', 'learning_rate')),
}  # fmt: skip
MODES: Final = {
    'stand_alone': 'stand_alone', 'data_parallel': 'data_parallel', 'semi_auto_parallel': 'semi_auto',
    'semi_auto': 'semi_auto', 'auto_parallel': 'recursive_programming', 'hybrid_parallel': 'hybrid_parallel',
    'recursive_programming': 'recursive_programming', 'sharding_propagation': 'sharding_propagation',
    'dynamic_programming': 'dynamic_programming',
}  # fmt: skip
SEARCHES: Final = {'recursive_programming': 'double-recursive', 'sharding_propagation': 'sharding-propagation'}
WITHOUT_EFFECT: Final = frozenset(
    {
        *('mode', 'device_target', 'save_graphs', 'save_graphs_path', 'max_device_memory', 'jit_level', 'device_id'),
        *('gradients_mean', 'gradient_fp32_sync', 'loss_repeated_mean', 'parameter_broadcast', 'output_broadcast'),
        *(
            'strategy_ckpt_save_file',
            'strategy_ckpt_load_file',
            'strategy_ckpt_config',
            'dump_local_norm',
            'jit_config',
        ),
    }
)
"""Settings of a context that do not change what a step does."""
OF_FILES: Final = frozenset(
    {
        *('save_param_strategy_file', 'load_param_strategy_file', 'no_init_parameters_in_compile', 'print_local_norm'),
        *('disable_strategy_file_only_for_trainable_params', 'set_group_ckpt_save_file', 'enable_device_local_norm'),
        *('save_operator_strategy_file', 'load_operator_strategy_file'),
    }
)
"""Methods of AutoParallel that are of files and printed norms."""
_STARTS: Final = re.compile('test_|main|train|run')
"""Names of functions that start a training where nothing else does."""
WRAPPERS: Final = {
    'MicroBatchInterleaved': 'copies', 'PipelineCell': 'micro_batches', 'Pipeline': 'micro_batches',
    'GradAccumulationCell': 'micro_batches', 'GradAccumulation': 'micro_batches',
}  # fmt: skip
"""Cells around a network that cut its batch: the key that says into how many."""


def imported_script(text: str, path: Path, given: Mapping[str, str], profile: str) -> mapping.Import:
    """What a script says, as a schedule.

    Arguments: ``given``, ``worker_num`` or another number of the script; ``profile`` of the cluster.
    Raises ``ScheduleError`` with a line for each thing that is not understood.
    """
    try:
        with warnings.catch_warnings():
            # Of the script's own style; what it means is the same.
            warnings.simplefilter('ignore', SyntaxWarning)
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, 'lineno', None) or 1
        raise ScheduleError(Problem(f'{path}:{line}', f'is no Python: {error}', 'check the file')) from None
    reader = _Script(str(path), given=dict(given))
    reader.module(tree)
    return reader.answer(path, profile)


@dataclass(eq=False)
class _Script(Reader):
    """A script of MindSpore."""

    given: dict[str, str] = field(default_factory=dict)
    context: dict[str, tuple[Any, int]] = field(default_factory=dict)
    wrapped: dict[str, tuple[Any, int]] = field(default_factory=dict)
    lines: list[mapping.Line] = field(default_factory=list)
    layers: list[tuple[dict[str, Any], int]] = field(default_factory=list)
    made: dict[int, str] = field(default_factory=dict)
    precision: str = 'fp32'
    used: set[int] = field(default_factory=set)
    full: bool = False
    network: Cell | Thing | None = None
    loss: Thing | None = None
    optimizer: Thing | None = None
    batch: tuple[int, int] | None = None

    # calls of MindSpore

    def of_module(self, name: str, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        last = name.rpartition('.')[2]
        if data := [value for value in values if isinstance(value, Data)]:
            return self.layer(Thing(name, line, [], named), line, values, data)
        if last in ('set_auto_parallel_context', 'set_context'):
            self.context |= {key: (value, line) for key, value in named.items()}
            return None
        if last in WRAPPERS:
            number = values[1] if len(values) > 1 else next(iter(named.values()), 2)
            self.wrapped[last] = (number, line)
            return values[0] if values else UNKNOWN
        if last in ('WithLossCell', 'Model', 'TrainOneStepCell', 'build_train_network'):
            return self.wraps(last, line, values, named)
        if last in LOSSES:
            self.loss = Thing(last, line, values, named)
            return self.loss
        if last in OPTIMIZERS and '.optim' not in name.lower().replace('optimizer', ''):
            self.optimizer = Thing(last, line, values, named)
            return self.optimizer
        if last == 'AutoParallel':
            mode = named.get('parallel_mode', values[1] if len(values) > 1 else 'semi_auto')
            self.context['parallel_mode'] = (mode, line)
            inner = values[0] if values else named.get('network', UNKNOWN)
            if isinstance(inner, Cell):
                self.network = inner
            return Thing('AutoParallel', line, [inner])
        if last in ('value_and_grad', 'grad') and values and isinstance(values[0], Function):
            # What is differentiated calls the network and its loss.
            self.function(values[0].of, [], {}, values[0].scope)
        if last == 'GeneratorDataset' and values and isinstance(values[0], Function):
            self.generated(values[0], line)
        return Thing(name, line, values, named)

    def generated(self, of: Function, line: int) -> None:
        """The samples that a generator yields: the first dim of the first array."""
        found = next((one for one in ast.walk(of.of) if isinstance(one, ast.Yield)), None)
        value = self.value(found.value, dict(of.scope)) if found else UNKNOWN
        first = value[0] if isinstance(value, (tuple, list)) and value else value
        shape = [one for one in first.values if isinstance(one, int)] if isinstance(first, Thing) else []
        if shape:
            self.batch = (shape[0], line)

    def wraps(self, name: str, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        inner = values[0] if values else named.get('network', UNKNOWN)
        inside = inner.values[0] if isinstance(inner, Thing) and inner.name == 'AutoParallel' else inner
        if isinstance(inside, (Cell, Thing)):
            self.network = inside
        for value in (*values[1:], *named.values()):
            if isinstance(value, Thing) and value.name in LOSSES:
                self.loss = value
            elif isinstance(value, Thing) and value.name in OPTIMIZERS:
                self.optimizer = value
        level = named.get('amp_level', 'O0')
        if level in ('O2', 'O3'):
            self.precision = 'fp16'
        elif level not in ('O0', None):
            self.refuse(line, f'amp_level {level} is not read', "write 'O0' or 'O2'")
        return Thing(name, 0, [inner]) if name == 'Model' else inner

    def method(self, of: Method, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        owner, name = of.owner, of.name
        if name == 'batch' and values and isinstance(values[0], int):
            self.batch = (values[0], line)
            return owner
        if isinstance(owner, Thing) and owner.name == 'AutoParallel':
            return self.parallel(name, line, values, named, owner)
        if isinstance(owner, Method) and isinstance(owner.owner, Thing) and name == 'shard' and values:
            return self.inner_shard(owner.owner, owner.name, line, values[0])
        if isinstance(owner, (Thing, Cell)):
            if name == 'shard' and values:
                owner.marks['strategy'] = self.slices(line, values[0])
            elif name == 'recompute':
                owner.marks['recompute'] = True
            elif name == 'to_float' and values:
                self.precision = {'float16': 'fp16', 'bfloat16': 'bf16'}.get(_last(values[0]), 'fp32')
            elif name == 'set_comm_fusion' and values:
                owner.marks['comm_fusion'] = values[0]
            elif isinstance(owner, Cell):
                found = next(
                    (one for one in owner.of.body if isinstance(one, ast.FunctionDef) and one.name == name), None
                )
                return self.function(found, [owner, *values], named, {}) if found else UNKNOWN
            return owner
        if any(isinstance(value, Data) for value in (owner, *values)):
            return self.refuse(line, f'.{name}() of a tensor is not known', BY_LAYERS)
        return Method(owner, name) if isinstance(owner, Unknown) else UNKNOWN

    def inner_shard(self, of: Thing, inner: str, line: int, slices: Any) -> Any:
        """The strategy of an operator inside of a layer, ``dense.matmul.shard(…)``."""
        if not isinstance(slices, (tuple, list)):
            return self.refuse(line, f'the strategy of {inner} is not what the script says', 'write it as slices')
        if inner == 'matmul' and len(slices) == 2:
            # The weight of a Dense lies [out, in] in MindSpore, and [in, out] here.
            first, (out, into) = slices
            of.marks['strategy'] = [list(first), [into, out]]
        elif inner != 'bias_add':
            # A bias lies as the product that it is added to.
            of.marks['strategy'] = self.slices(line, slices)
        return of

    def slices(self, line: int, said: Any) -> Any:
        """Numbers of slices of each input, as a strategy of a network has them."""
        parts = said if isinstance(said, (tuple, list)) else [said]
        if all(isinstance(part, (tuple, list)) and all(isinstance(one, int) for one in part) for part in parts):
            return [list(part) for part in parts]
        what = 'this strategy is no tuple of numbers for each input'
        return self.refuse(line, what, 'write numbers of slices; a Layout as layout: and plan.device_matrix by hand')

    def parallel(self, name: str, line: int, values: list[Any], named: dict[str, Any], owner: Thing) -> Any:
        """A method of AutoParallel as the setting of the older context that says the same."""
        if name == 'hsdp':
            order = ('shard_size', 'threshold', 'optimizer_level')
            said = {**dict(zip(order, values, strict=False)), **named}
            self.context['enable_parallel_optimizer'] = (True, line)
            self.context['parallel_optimizer_config'] = (
                {
                    'parallel_optimizer_threshold': said.get('threshold', 64),
                    'optimizer_level': said.get('optimizer_level', 'level1'),
                    'optimizer_weight_shard_size': said.get('shard_size', -1),
                },
                line,
            )
        elif name == 'pipeline':
            of_pipeline = ('stages', 'output_broadcast', 'interleave', 'scheduler')
            said = {**dict(zip(of_pipeline, values, strict=False)), **named}
            self.context['pipeline_stages'] = (said.get('stages', 1), line)
            config = {
                'pipeline_interleave': said.get('interleave', False),
                'pipeline_scheduler': said.get('scheduler', '1f1b'),
            }
            self.context['pipeline_config'] = (config, line)
        elif name == 'dataset_strategy' and (values or 'config' in named):
            self.context['dataset_strategy'] = (values[0] if values else named['config'], line)
        elif name == 'comm_fusion' and values:
            self.context['comm_fusion'] = (values[0], line)
        elif name not in OF_FILES:
            self.refuse(line, f'AutoParallel.{name}() is not known', 'leave it out, or write its key by --set plan.…')
        return owner

    # the network

    def apply(self, of: Thing | Cell, line: int, values: list[Any]) -> Any:
        """Call a layer, a cell or an operator with tensors."""
        data = [value for value in values if isinstance(value, Data)]
        if not data:
            # A step by hand calls the network with a batch of which nothing is known.
            if isinstance(of, Cell) and method_of(of, 'construct') and not self.depth:
                self.network = self.network or of
            return self.refuse(line, 'what this reads is not known', BY_LAYERS) if self.depth else UNKNOWN
        if isinstance(of, Cell):
            before = len(self.layers)
            construct = next(
                (one for one in of.of.body if isinstance(one, ast.FunctionDef) and one.name == 'construct'), None
            )
            if construct is None:
                return self.refuse(line, f'{of.of.name} has no construct', 'write one')
            self.depth += 1
            found = self.function(construct, [of, *values], {}, {})
            self.depth -= 1
            self.mark(of.marks, before)
            return found
        if of.name.rpartition('.')[2] in ('SequentialCell', 'CellList'):
            before = len(self.layers)
            current: Any = data[0]
            parts = of.values[0] if len(of.values) == 1 and isinstance(of.values[0], (list, tuple)) else of.values
            for part in parts:
                current = self.apply(part, line, [current]) if isinstance(part, (Thing, Cell)) else UNKNOWN
            self.mark(of.marks, before)
            return current
        return self.layer(of, line, values, data)

    def mark(self, marks: Mapping[str, Any], since: int) -> None:
        """What is said of a cell counts for each of its layers."""
        for layer, _ in self.layers[since:]:
            for spec in layer.values():
                # What is said of a layer itself counts before what is said of all in its cell.
                spec.update({key: value for key, value in marks.items() if key not in spec and key != 'strategy'})

    def layer(self, of: Thing, line: int, values: list[Any], data: list[Data]) -> Any:
        row = _row(of.name)
        if row is None:
            what = f'{of.name.partition(".")[2] or of.name} is no layer that is read'
            return self.refuse(of.line, what, f'layers are read of {", ".join(_names())}')
        kind, order, values_of = row
        keys = {key: of.argument(name, order) for key, _, name in (pair.partition('=') for pair in values_of)}
        keys = {key: value for key, value in keys.items() if value is not None}
        unknown = [key for key, value in keys.items() if isinstance(value, (Unknown, Thing, Method, Module))]
        if unknown:
            return self.refuse(
                of.line, f'{of.name}: {", ".join(unknown)} is no number that the script says', '--set says it'
            )
        if kind == 'matmul':
            return self.product(of, line, values, data)
        if kind == 'print':
            return data[0]
        if kind == 'bias' or (kind == 'add' and len(data) == 1):
            return self.biased(data[0], values, line)
        if kind in ('dense', 'layer_norm', 'embedding') and id(of) in self.used:
            return self.refuse(line, f'{self.named(of) or kind} is used twice, and weights are not shared', BY_LAYERS)
        self.used.add(id(of))
        inner = of.argument('activation', order) if kind == 'dense' else None
        found = self.emit(kind, {**keys, **of.marks}, data, line, self.named(of))
        if isinstance(inner, str):
            found = self.emit(inner, {}, [found], line, '')
        return found

    def biased(self, data: Data, values: list[Any], line: int) -> Any:
        """A vector of weights that is added to a product is its bias."""
        weight = next((value for value in values if isinstance(value, Thing)), None)
        layers = (one for layer, _ in self.layers for one in layer.values())
        spec: dict[str, Any] = next((one for one in layers if one['name'] == data.name), {})
        if weight is None or spec.get('bias') is not False:
            return self.refuse(line, 'what is added is neither a result of a layer nor the bias of one', BY_LAYERS)
        spec['bias'] = True
        return data

    def product(self, of: Thing, line: int, values: list[Any], data: list[Data]) -> Any:
        """A product with a weight is a dense layer without a bias; of two results it is their product."""
        weight = next((value for value in values if isinstance(value, Thing)), None)
        if weight is None and len(data) < 2:
            return self.refuse(line, 'what this product multiplies with is not known', BY_LAYERS)
        if weight is None:
            return self.emit('matmul', dict(of.marks), data, line, self.named(of))
        shape = _shape(weight)
        if shape is None:
            return self.refuse(
                weight.line, 'the shape of this Parameter is not known', 'write initializer(…, [in, out])'
            )
        into, out = reversed(shape) if of.argument('transpose_b', ('transpose_a', 'transpose_b')) else shape
        keys = {'in': into, 'out': out, 'bias': False, **of.marks}
        return self.emit('dense', keys, data, line, self.named(of))

    def named(self, of: Thing) -> str:
        return self.made.get(id(of), '')

    def emit(self, kind: str, keys: Mapping[str, Any], data: Sequence[Data], line: int, name: str) -> Data:
        taken = {next(iter(spec.values())).get('name') for spec, _ in self.layers}
        if not name or name in taken:
            name = f'{name or kind}_{len(self.layers)}'
        last = next(iter(self.layers[-1][0].values()))['name'] if self.layers else 'x'
        spec = dict(keys)
        names = [one.name for one in data]
        if len(names) > 1:
            spec['of'] = names
        elif names != [last]:
            spec['of'] = names[0]
        self.layers.append(({kind: {**spec, 'name': name}}, line))
        return Data(name)

    def label(self, owner: Cell, prefix: str = '') -> None:
        """Names of layers are those of the attributes that hold them."""
        for name, value in owner.attributes.items():
            if isinstance(value, Thing):
                self.made.setdefault(id(value), f'{prefix}{name}')
                for place, part in enumerate(value.values if value.name.endswith('SequentialCell') else ()):
                    if isinstance(part, Thing):
                        self.made.setdefault(id(part), f'{prefix}{name}_{place}')
            elif isinstance(value, Cell) and value is not owner:
                self.label(value, f'{prefix}{name}_')

    # the schedule

    def answer(self, path: Path, profile: str) -> mapping.Import:
        for of in [one for one in self.scope.values() if isinstance(one, Function)]:
            # A script of the tutorials may train in a function that its test runner calls.
            if self.network is None and _STARTS.match(of.of.name) and not of.of.args.args:
                self.function(of.of, [], {}, of.scope)
        network = self.network
        if isinstance(network, Cell):
            self.label(network)
        if isinstance(network, (Cell, Thing)) and not self.problems:
            result = self.apply(network, 1, [Data('x')])
            if not isinstance(result, Data) and not self.problems:
                line = network.of.lineno if isinstance(network, Cell) else network.line
                self.refuse(line, 'what the network returns is not one result of a layer', BY_LAYERS)
        if not self.layers and not self.problems:
            what = 'no network was found that a Model, a WithLossCell or an AutoParallel wraps'
            self.refuse(1, what, 'name the file in which it is trained, or write network: by hand')
        values, comments, assumed = self.schedule(path, profile)
        if self.problems:
            raise ScheduleError(self.problems)
        return mapping.Import('MindSpore', values, comments, tuple(self.lines), tuple(assumed))

    def setting(self, name: str, otherwise: Any = None) -> tuple[Any, int]:
        return self.context.get(name, (otherwise, 0))

    def schedule(self, path: Path, profile: str) -> tuple[dict[str, Any], dict[str, str], list[str]]:
        assumed = []
        name = profile or USUAL
        device = profiles.profile_of_flag(name, '--cluster')
        if not profile:
            assumed.append(f'{USUAL}: a script names no accelerator; --cluster says another')
        world = self.world(path)
        stages = int(self.number('pipeline_stages', 1))
        per_node = min(world, device.devices) or 1
        values: dict[str, Any] = {'cluster.profile': name, 'cluster.stack': profiles.stack_of('MindSpore', name)}
        if world > device.devices:
            values['cluster.nodes'] = -(-world // device.devices)
        else:
            values['cluster.devices'] = per_node
        values['workload.network'] = [layer for layer, _ in self.layers]
        values |= self.training(world, stages, assumed)
        plan = self.plan(world, stages, assumed)
        values |= plan
        comments = {'cluster.stack': 'the kernels and the host of MindSpore'}
        comments |= {f'cluster.{"nodes" if "cluster.nodes" in values else "devices"}': f'{world} workers'}
        self.leftover()
        return values, comments, assumed

    def world(self, path: Path) -> int:
        """Devices: as ``--set worker_num`` says, the context, or the launcher's line of a script beside this one."""
        said = self.given.get('worker_num') or self.given.get('device_num')
        if said and said.isdecimal() and int(said):
            return int(said)
        if isinstance(self.setting('device_num')[0], int):
            self.line('device_num', *self.context.pop('device_num'), ('cluster.devices',))
            return int(self.lines[-1].value)
        for script in sorted(path.parent.glob('*.sh')) if path.parent.is_dir() else ():
            text = files.read_regular(script, 2**20).decode('utf-8', 'replace')
            found = _WORKERS.search(text)
            if found and path.name in text:
                number = int(found[1])
                where = f'{script}:{text[: found.start()].count(chr(10)) + 1}'
                self.lines.append(mapping.Line('worker_num', str(number), where, findings.MAPPED, ('cluster.devices',)))
                return number
        self.refuse(1, 'nothing says on how many devices it runs', 'give it: --set worker_num=8')
        return 1

    def number(self, name: str, otherwise: int) -> int:
        value, line = self.context.pop(name, (otherwise, 0))
        if not isinstance(value, int) or value < 1:
            self.refuse(line, f'{name} is no number that the script says', f'write it, e.g. {name}=2')
            return otherwise
        if line:
            self.line(name, value, line, ())
        return value

    def line(self, name: str, value: Any, line: int, keys: tuple[str, ...]) -> None:
        self.lines.append(mapping.Line(name, str(value), f'{self.name}:{line}', findings.MAPPED, keys))

    def training(self, world: int, stages: int, assumed: list[str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        if self.loss is None:
            self.refuse(1, 'no loss of nn was found', f'losses are read of {", ".join(LOSSES)}')
        else:
            values['workload.loss'] = LOSSES[self.loss.name]
            self.line(self.loss.name, '', self.loss.line, ('workload.loss',))
        full, line = self.context.pop('dataset_strategy', ('data_parallel', 0))
        if self.context.pop('full_batch', (False, 0))[0] is True:
            full = 'full_batch'
        if full not in ('data_parallel', 'full_batch'):
            self.refuse(line, 'a dataset_strategy by slices is not read', "write 'data_parallel' or 'full_batch'")
        self.full = full == 'full_batch'
        size = (
            int(self.given['batch']) if self.given.get('batch', '').isdecimal() else self.batch[0] if self.batch else 0
        )
        if not size:
            self.refuse(1, 'no batch of a dataset was found', 'give that of one device: --set batch=32')
        readers = 1 if self.full else max(1, world // stages)
        if size and readers > 1:
            assumed.append(
                f'each of {readers} devices reads {size} samples a step, as dataset_strategy data_parallel has it'
            )
        values['workload.batch'] = size * readers or 1
        if self.batch:
            self.line('batch', size, self.batch[1], ('workload.batch',))
        values['workload.precision'] = self.precision
        if self.optimizer is None:
            self.refuse(1, 'no optimizer of nn was found', f'optimizers are read of {", ".join(OPTIMIZERS)}')
        else:
            kind, keys, order = OPTIMIZERS[self.optimizer.name]
            found = {key: self.optimizer.argument(of, order) for of, key in keys.items()}
            values[f'workload.optimizer.{kind}'] = {
                key: value for key, value in found.items() if isinstance(value, (int, float))
            }
            self.line(self.optimizer.name, '', self.optimizer.line, ('workload.optimizer',))
        return values

    def plan(self, world: int, stages: int, assumed: list[str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        said, line = self.context.pop('parallel_mode', ('semi_auto' if world > 1 else 'stand_alone', 0))
        mode = MODES.get(_last(said).lower())
        search, at = self.context.pop('search_mode', self.context.pop('auto_parallel_search_mode', ('', 0)))
        if mode is None or mode in ('hybrid_parallel', 'dynamic_programming') or search == 'dynamic_programming':
            self.refuse(line or at, f'the mode {_last(said)} {search}'.rstrip() + ' is not known', 'write semi_auto')
        elif mode == 'stand_alone' and world > 1:
            self.refuse(line, f'stand_alone trains {world} models of their own', 'write data_parallel or semi_auto')
        elif mode in SEARCHES or _last(said).lower() == 'auto_parallel':
            values['plan.search'] = SEARCHES.get(str(search) or str(mode), 'double-recursive')
            values['plan.compat'] = self.given.get('version', '2.10')
            if 'version' not in self.given:
                assumed.append('the search of MindSpore 2.10; --set version=2.0 for that of 2.0')
        strategies = any('strategy' in next(iter(layer.values())) for layer, _ in self.layers)
        if line:
            self.line('parallel_mode', _last(said), line, ('plan.search',) if 'plan.search' in values else ())
        if 'plan.search' not in values and not strategies and world // stages > 1:
            values['plan.data'] = world // stages
            assumed.append('layers without a strategy are data parallel, as semi_auto has them')
        if strategies or 'plan.search' in values:
            values['plan.dataset'] = 'full-batch' if self.full else 'data-parallel'
        if stages > 1:
            values['plan.pipeline'] = stages
        for name, key in WRAPPERS.items():
            if name in self.wrapped:
                number, at = self.wrapped[name]
                if isinstance(number, int) and number > 0:
                    values[f'plan.{key}'] = number
                    self.line(name, number, at, (f'plan.{key}',))
                else:
                    self.refuse(at, f'{name} has no number that the script says', 'write it')
        return values | self.optimizer_parallel(assumed) | self.order(stages)

    def order(self, stages: int) -> dict[str, Any]:
        config, line = self.context.pop('pipeline_config', ({}, 0))
        if not isinstance(config, dict) or stages < 2:
            return {}
        scheduler = str(config.get('pipeline_scheduler', '1f1b'))
        if config.get('pipeline_interleave') or scheduler not in ('1f1b', 'gpipe'):
            what = f'the pipeline scheduler {scheduler}, interleaved {bool(config.get("pipeline_interleave"))}'
            self.refuse(line, f'{what}, is not read', 'write 1f1b or gpipe, or --set plan.order=…')
        return {'plan.order': scheduler}

    def optimizer_parallel(self, assumed: list[str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        on, line = self.context.pop('enable_parallel_optimizer', (False, 0))
        config, _ = self.context.pop('parallel_optimizer_config', ({}, 0))
        if on is True:
            config = config if isinstance(config, dict) else {}
            values['plan.hsdp'] = config.get('optimizer_level', 'level1')
            if (threshold := config.get('parallel_optimizer_threshold', 64)) != 64:
                values['plan.shard_threshold'] = f'{threshold} KiB'
            if config.get('optimizer_weight_shard_size', -1) not in (-1, None):
                what = 'optimizer_weight_shard_size is not read'
                self.refuse(line, what, 'write it as --set plan.shard=N, see docs/optimizer_parallel.md')
            self.line('enable_parallel_optimizer', True, line, ('plan.hsdp',))
        if any('comm_fusion' in next(iter(layer.values())) for layer, _ in self.layers):
            values['plan.fusion'] = 'ids'
        return values

    def leftover(self) -> None:
        """Settings of the context that nothing above has read: without effect, off, or refused."""
        for name, (value, line) in self.context.items():
            if name in WITHOUT_EFFECT or value in (None, False, '', 0) or isinstance(value, Unknown):
                continue
            if name == 'device_num':
                continue
            self.refuse(
                line, f'{name} is not known (got {str(value)[:60]})', 'leave it out, or write its key by --set plan.…'
            )


def _last(value: Any) -> str:
    """``ms.ParallelMode.AUTO_PARALLEL`` as ``AUTO_PARALLEL``."""
    return (value.name if isinstance(value, (Module, Method)) else str(value)).rpartition('.')[2]


def _shape(weight: Thing) -> tuple[int, int] | None:
    """Of ``Parameter(initializer("normal", [in, out]), "w")``, or of an array with such a shape in its call."""
    for value in (*weight.values, *weight.named.values()):
        if isinstance(value, Thing) and (found := _shape(value)):
            return found
        if isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(one, int) for one in value):
            return value[0], value[1]
    return None


def _rows() -> list[dict[str, str]]:
    return files.read_csv(settings.FOLDER / 'mindspore_layers.csv')


def _names() -> list[str]:
    return [row['call'] for row in _rows()]


def _row(name: str) -> tuple[str, list[str], list[str]] | None:
    """Kind, order of arguments and keys of a layer; ``mindspore.nn.Dense`` and ``P.MatMul`` are known by their end."""
    parts = name.split('.')
    for row in _rows():
        package, call = row['call'].split('.')
        if parts[-1] == call and (len(parts) < 2 or package in parts or (package == 'ops' and 'nn' not in parts)):
            return row['kind'], row['arguments'].split(), row['values'].split()
    return None
