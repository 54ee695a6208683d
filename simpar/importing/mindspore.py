"""A training script of MindSpore as a schedule: its syntax tree is read, and nothing of it runs.

What is read: ``nn.Cell`` classes with their layers and ``construct``, strategies, fusion ids, recomputation and stages
of layers, ``MicroBatchInterleaved``, ``PipelineCell``, ``AutoParallel`` and ``set_auto_parallel_context``, losses,
optimizers, and the batch of a dataset. What is not understood of these is named by its line. Facts of the interface:
mindspore.nn, mindspore.parallel and mindspore.set_auto_parallel_context of 2.3 and 2.10.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from simpar import errors, files, profiles
from simpar.errors import ScheduleError
from simpar.importing import findings, mapping, mindspore_parallel, python_script
from simpar.importing.mindspore_network import LABEL, LOSSES, LOST, has_weights, row_of, words
from simpar.importing.python_script import UNKNOWN, Cell, Data, Function, Method, Thing, has_data, last, said_of

HINT: Final = re.compile(r'^\s*(?:import|from)\s+mindspore\b', re.MULTILINE)
USUAL: Final = 'ascend910b-8'
USUAL_GPU: Final = 'a100-sxm-8'
_WORKERS = re.compile(
    r'(?:--worker_num[= ]|\b(?:MS_WORKER_NUM|RANK_SIZE|DEVICE_NUM)=|\bmpirun\b[^\n]*?\s(?:-n|-np|--np)\s+)(\d+|\$)'
)
_COMMENT = re.compile(r'(?m)(^|\s)#.*$')
OPTIMIZERS: Final = words('optimizer')
_OTHER_UPDATES: Final = ('use_amsgrad', 'use_lazy', 'use_offload')
"""Arguments of an optimizer with which it is another one."""
_TRAINS: Final = words('training')
"""What puts a network, a loss and an optimizer together, and its arguments."""
_FREE: Final = ('metrics', 'eval_network', 'eval_indexes', 'keep_batchnorm_fp32', 'sens')
_STARTS: Final = re.compile('test_|main|train|run')
"""Names of functions that start a training where nothing else does."""
_LEVELS: Final = {'O0': 'fp32', 'O2': 'fp16', 'O3': 'fp16'}
_SHAPES: Final = words('shaping')
"""Methods that say something of model or plan, whatever they are of."""
_ATTRIBUTES: Final = frozenset({'pipeline_stage', 'pipeline_segment', 'requires_grad', 'comm_fusion', 'weight', 'bias'})
"""Attributes that say something of model or plan; those of a parameter are not read."""
_HARMLESS: Final = words('harmless')
"""Methods of a cell that do not change what a step does."""
_SETTERS: Final = words('setter')
"""Functions of MindSpore that set something without an effect on what a step does; all other setters are refused."""


def imported_script(text: str, path: Path, variables: Mapping[str, str], profile: str) -> mapping.Import:
    """What a script says, as a schedule.

    Arguments: ``variables``, ``worker_num`` or another number of the script; ``profile`` of the cluster.
    Raises ``ScheduleError`` with a line for each thing that is not understood.
    """
    tree = python_script.tree_of(text, path)
    reader = Script(str(path), path.parent, given=dict(variables))
    reader.launched(path)
    try:
        reader.module(tree, reader.scope)
        return reader.answer(profile)
    except RecursionError:
        reader.refuse(1, 'functions call one another without an end', 'write the network in full')
        raise ScheduleError(reader.problems) from None


@dataclass(eq=False)
class Script(mindspore_parallel.Parallel):
    """A script of MindSpore.

    Arguments:
        options: of the line that starts the script. world: devices, 0 where nobody says them.
        casts: layers and cells that compute in another precision, which one and where.
        network, loss, optimizer: as the training has them. forward: a function that makes the loss, differentiated.
        batches: sizes of batches of datasets, and their lines. read: those of datasets that a training goes through.
        over: what the last loop goes through.
    """

    options: dict[str, Any] = field(default_factory=dict)
    world: int = 0
    casts: list[tuple[Any, str, int]] = field(default_factory=list)
    precision: str = 'fp32'
    network: Cell | Thing | None = None
    forward: Function | Cell | Thing | None = None
    with_loss: Any = None
    clip: tuple[Any, int] | None = None
    trained: Thing | None = None
    evaluated: int = 0
    called: list[Cell] = field(default_factory=list)
    optimizers: list[Thing] = field(default_factory=list)
    losses: list[Thing] = field(default_factory=list)
    batches: list[tuple[int, int]] = field(default_factory=list)
    read: list[tuple[int, int]] = field(default_factory=list)
    over: Any = None

    # the launcher

    def launched(self, path: Path) -> None:
        """Devices and options, as ``--set`` says or a script beside this one that starts it."""
        said = self.given.get('worker_num') or self.given.get('device_num') or ''
        by_number: dict[int, str] = {}
        name = re.compile(rf'(?<![\w-]){re.escape(path.name)}\b([^\n&|;>]*)')
        for script in sorted(path.parent.glob('*.sh')) if path.parent.is_dir() else ():
            # A command goes on behind a backslash, and what follows a sharp is none.
            raw = files.read_regular(script, 2**20).decode('utf-8', 'replace')
            text = _COMMENT.sub(r'\1', raw).replace('\\\n', ' ')
            runs = name.findall(text)
            for number in _WORKERS.findall(text) if runs else ():
                at = next((place for place, line in enumerate(raw.splitlines(), 1) if number in line), 1)
                by_number.setdefault(int(number) if number.isdecimal() else 0, f'{script}:{at}')
            for called in runs:
                for option, value in re.findall(r'--([\w-]+)(?:[= ]\s*([^\s-][^\s]*))?', called):
                    key = option.replace('-', '_')
                    said_so = UNKNOWN if '$' in value else value or True
                    self.options[key] = said_so if self.options.get(key, said_so) == said_so else UNKNOWN
        if said.isdecimal() and int(said):
            self.world = int(said)
        elif len(by_number) > 1:
            places = ', '.join(by_number.values())
            self.refuse(1, f'scripts start it on several numbers of devices ({places})', 'say one: --set worker_num=8')
            self.world = max(by_number)
        elif by_number and (number := next(iter(by_number))):
            self.world = number
            self.lines.append(
                mapping.Line('worker_num', str(number), by_number[number], findings.MAPPED, ('cluster.devices',))
            )

    def devices(self) -> int:
        """Devices; of the context where it says them, unless ``--set`` does."""
        number, line = self.context.pop('device_num', (None, 0))
        said = self.given.get('worker_num') or self.given.get('device_num')
        if self.world not in (0, number) and isinstance(number, int) and not said:
            what = f'device_num is {number}, and {self.world} processes are started'
            self.refuse(line, what, 'say one: --set worker_num=8')
        elif isinstance(number, int) and number > 0 and not said:
            self.line('device_num', number, line, ('cluster.devices',))
            self.world = number
        if not self.world:
            self.refuse(1, 'nothing says on how many devices it runs', 'give it: --set worker_num=8')
        return self.world or 1

    # calls of MindSpore

    def of_module(self, name: str, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        last_of = name.rpartition('.')[2]
        # What a call is given is as it was then, however the list grows.
        values = [list(value) if isinstance(value, list) else value for value in values]
        every = [*values, *named.values()]
        if has_data(*every):
            made = Thing(name, line, values, named)
            return self.lost(made, line, every) if last_of in LOSSES else self.layer(made, line, values, named)
        if name.partition('.')[0] != 'mindspore':
            return self.of_python(name, line, values, named)
        if last_of in ('set_auto_parallel_context', 'set_context'):
            return self.contexts(line, named)
        if last_of == 'reset_auto_parallel_context':
            return self.context.clear()
        if last_of.startswith('set_') and last_of not in _SETTERS:
            return self.refuse(line, f'{last_of}() is not known', 'leave it out, or write what it does by hand')
        if last_of in ('jit', 'ms_function', 'lazy_inline') and values:
            return values[0]
        answer = self.of_training(last_of, name, line, values, named)
        return Thing(name, line, values, named) if answer is NotImplemented else answer

    def of_training(self, last_of: str, name: str, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        """Calls that say something of a training; ``NotImplemented`` for any other."""
        made = Thing(name, line, values, named)
        if last_of == 'Layout':
            return self.layout(line, values, named)
        if last_of == 'get_group_size' and self.world and not values and not named:
            return self.world
        if last_of in ('DistributedGradReducer', 'PipelineGradReducer'):
            self.reduces = True
        elif last_of == 'clip_by_global_norm':
            self.clip = (made.argument('clip_norm', ('x', 'clip_norm'), 1.0), line)
            self.changes += 1
        elif last_of == 'auto_mixed_precision':
            order = ('network', 'amp_level')
            self.level(made.argument('amp_level', order, 'O0'), line)
            return made.argument('network', order, UNKNOWN)
        elif last_of in mindspore_parallel.WRAPPERS:
            return self.wrap(last_of, line, values, named)
        elif last_of in _TRAINS:
            return self.wraps(last_of, line, values, named)
        elif last_of in LOSSES:
            self.losses.append(made)
            self.changes += 1
        elif last_of in OPTIMIZERS and '.optim' not in name.lower().replace('optimizer', ''):
            self.optimizers.append(made)
            self.changes += 1
        elif last_of == 'AutoParallel':
            return self.automatic(line, values, named)
        elif last_of in ('value_and_grad', 'grad') and values:
            return self.differentiated(values[0], line)
        elif last_of == 'GeneratorDataset' and values and isinstance(values[0], Function):
            return self.generated(made, values[0], line)
        else:
            return NotImplemented
        return made

    def builtin(self, name: str, line: int, values: Sequence[Any]) -> Any:
        """``filter(lambda x: x.requires_grad, net.get_parameters())`` are all of them; nothing here freezes one."""
        if name == 'filter' and len(values) == 2 and isinstance(values[0], Function) and isinstance(values[1], Thing):
            said = values[0].of.body[0] if values[0].of.name == 'lambda' else None
            inner = said.value if isinstance(said, ast.Return) else None
            return values[1] if isinstance(inner, ast.Attribute) and inner.attr == 'requires_grad' else UNKNOWN
        is_data = (
            name == 'enumerate' and len(values) == 1 and isinstance(values[0], Thing) and not self.parts(values[0])
        )
        return values[0] if is_data else super().builtin(name, line, values)

    def of_python(self, name: str, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        """Calls of other modules: what the environment and the options of the script are."""
        if name in ('os.getenv', 'os.environ.get') and values and str(values[0]) in self.given:
            return _literal(self.given[str(values[0])])
        return Thing(name, line, values, named, {'parsed': {}} if name == 'argparse.ArgumentParser' else {})

    def automatic(self, line: int, values: list[Any], named: dict[str, Any]) -> Thing:
        said = said_of(('network', 'parallel_mode'), values, named)
        self.context['parallel_mode'] = (said.get('parallel_mode', 'semi_auto'), line)
        self.changes += 1
        inner = said.get('network', UNKNOWN)
        if isinstance(inner, Cell):
            self.trains(inner, line)
        return Thing('AutoParallel', line, [inner])

    def differentiated(self, of: Any, line: int) -> Thing:
        """What is differentiated makes the loss; it is followed when all that it reads is known."""
        self.changes += 1
        if isinstance(of, (Function, Cell)):
            if self.forward is not None and self.forward is not of:
                self.refuse(line, 'two functions are differentiated', 'write the one that trains')
            self.forward = of
        return Thing('gradients', line, [of])

    def trains(self, network: Any, line: int) -> None:
        """Take a network for the one that is trained."""
        inside = network.values[0] if isinstance(network, Thing) and network.name == 'AutoParallel' else network
        if not isinstance(inside, (Cell, Thing)):
            return
        if self.network is not None and self.network is not inside:
            self.refuse(line, 'another network is wrapped than before', 'name the file that trains one')
        self.changes += self.network is None
        self.network = inside

    def generated(self, made: Thing, of: Function, line: int) -> Thing:
        """The samples that a generator yields: the first dim of the first array."""
        node = next((one for one in ast.walk(of.of) if isinstance(one, ast.Yield)), None)
        value = self.value(node.value, dict(of.scope)) if node else UNKNOWN
        first = value[0] if isinstance(value, (tuple, list)) and value else value
        shape = list(_numbers(first))
        return self.batched(made, shape[0], line) if shape else made

    def batched(self, owner: Thing, size: int, line: int) -> Thing:
        self.batches.append((size, line))
        return Thing(owner.name, line, marks={'batch': (size, line)})

    def iterated(self, over: Any) -> None:
        self.over = over

    def wraps(self, name: str, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        """A call that puts a network, its loss and its optimizer together."""
        said = said_of(_TRAINS[name].order, values, named)
        inner = said.pop('network', UNKNOWN)
        loss, optimizer = said.pop('loss_fn', None), said.pop('optimizer', None)
        self.level(said.pop('amp_level', said.pop('level', 'O0')), line)
        scale = said.pop('loss_scale_manager', None)
        if scale is not None:
            self.gap('loss_scale_manager', scale, line, 'gradients are looked through for infinite ones')
        for key, value in said.items():
            if key not in _FREE and value not in (None, 'O0', False, ''):
                self.refuse(line, f'{key} of {name} is not read (got {last(value)[:40]})', 'leave it out')
        both = (('loss', loss, LOSSES, self.losses), ('optimizer', optimizer, OPTIMIZERS, self.optimizers))
        for kind, of, table, keep in both:
            if any(of is one for one in keep):
                keep[:] = [of]
            elif of is not None:
                is_open = isinstance(of, (python_script.Unknown, Cell))
                what = f'the {kind} of {name} is not known' if is_open else f'{last(of)} is not read'
                self.refuse(line, what, f'write one of {", ".join(table)}')
        if loss is not None and name == 'WithLossCell':
            self.with_loss = inner
        self.reduces |= optimizer is not None
        if name != 'Model' or loss is not None or optimizer is not None or self.network is None:
            self.trains(inner, line)
        return Thing('Model', line, [inner]) if name == 'Model' else inner

    def level(self, said: Any, line: int) -> None:
        """The precision of a level of automatic mixed precision."""
        if said not in (*_LEVELS, None):
            self.refuse(line, f'amp_level {last(said)} is not read', "write 'O0' or 'O2'")
        elif _LEVELS.get(said, 'fp32') != 'fp32':
            self.precision = _LEVELS[said]
            self.changes += 1

    # methods

    def method(self, of: Method, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        owner, name = of.owner, of.name
        if isinstance(owner, Method) and isinstance(owner.owner, Thing) and name == 'shard':
            return self.sharded(owner.owner, owner.name, line, values, named)
        function = owner.method(name) if isinstance(owner, Cell) else None
        if function and isinstance(owner, Cell):
            return self.bound(owner, function, values, named)
        if has_data(owner, *values, *named.values()):
            return self.of_tensor(owner, name, line, values)
        if name in ('trainable_params', 'get_parameters'):
            return Thing('parameters', line, [owner])
        if isinstance(owner, Thing) and owner.name == 'AutoParallel':
            return UNKNOWN if name in _HARMLESS else self.parallel(name, line, values, named, owner)
        if isinstance(owner, Cell) or (
            isinstance(owner, Thing) and (self.parts(owner) is not None or row_of(owner.name))
        ):
            return self.of_layer(owner, name, line, values, named)
        if name in _SHAPES:
            return self.refuse(line, f'of what .{name}() says something is not known', 'call it on layers by name')
        return self.of_thing(owner, name, line, values, named) if isinstance(owner, Thing) else UNKNOWN

    def of_tensor(self, owner: Any, name: str, line: int, values: list[Any]) -> Any:
        """A method of a tensor."""
        shape = values[0] if len(values) == 1 and isinstance(values[0], (tuple, list)) else tuple(values)
        if isinstance(owner, Data) and name in ('reshape', 'view') and len(shape) > 1 and shape[0] == -1:
            return self.shaped('reshape', Thing(name, line), owner, shape, line)
        return self.refuse(line, f'.{name}() of a tensor is not known')

    def of_layer(self, owner: Thing | Cell, name: str, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        """A method of a layer, a cell or a container of cells."""
        said = said_of(('first',), values, named)
        if name in _HARMLESS:
            return owner
        if name == 'shard':
            return self.sharded(owner, '', line, values, named)
        self.changes += 1
        if name == 'recompute':
            is_on = said.pop('mode', said.pop('first', True))
            usual = {'mp_comm_recompute': True, 'parallel_optimizer_comm_recompute': False}
            if any(value is not usual.get(key) for key, value in said.items()) or is_on not in (True, False):
                return self.refuse(line, 'arguments of recompute() are not read', 'write recompute()')
            owner.marks['recompute'] = is_on
        elif name == 'to_float' and len(said) == 1:
            self.casts.append((owner, last(next(iter(said.values()))), line))
        elif name == 'set_comm_fusion' and isinstance(said.get('first', said.get('fusion_type')), int):
            owner.marks['comm_fusion'] = said.get('first', said.get('fusion_type'))
        else:
            return self.refuse(
                line, f'.{name}() of a layer is not known', 'leave it out, or write what it does by hand'
            )
        return owner

    def of_thing(self, owner: Thing, name: str, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        """A method of a dataset, a model, options or what else a call made."""
        if 'parsed' in owner.marks:
            return self.of_options(owner, name, values, named)
        if owner.name == 'Model':
            if name in ('train', 'fit'):
                data = said_of(('epoch', 'train_dataset'), values, named).get('train_dataset')
                self.trained = data if isinstance(data, Thing) else Thing('what is not known', line)
            elif name in ('eval', 'predict', 'infer_predict_layout'):
                self.evaluated = line
            return UNKNOWN
        if name in ('batch', 'padded_batch'):
            size = said_of(('batch_size',), values, named).get('batch_size', UNKNOWN)
            if isinstance(size, int) and not isinstance(size, bool) and size > 0 and 'batch' not in owner.marks:
                return self.batched(owner, size, line)
            return Thing(owner.name, line, marks={'batch': (0, line)})
        if name == 'scale' and owner.last.endswith('LossScaler') and values:
            self.gap(owner.last, '', line, 'the loss is scaled')
            return values[0]
        is_array = owner.name.partition('.')[0] in ('numpy', 'mindspore') and name in ('astype', 'init_data')
        is_data = 'Dataset' in owner.name or 'batch' in owner.marks
        return owner if is_array or is_data else UNKNOWN

    def of_options(self, owner: Thing, name: str, values: list[Any], named: dict[str, Any]) -> Any:
        """Options of the script: as ``--set`` says, the line that starts it, or their defaults."""
        if name == 'add_argument' and values and all(isinstance(value, str) for value in values):
            long = next((value for value in values if value.startswith('--')), values[0])
            key = str(named.get('dest', long.lstrip('-').replace('-', '_')))
            is_switch = named.get('action') in ('store_true', 'store_false')
            usual = named.get('default', named.get('action') == 'store_false' if is_switch else None)
            is_open = named.get('required') is True or not long.startswith('-')
            setting = self.given.get(key, self.options.get(key, NotImplemented))
            if is_switch and setting is not NotImplemented and not isinstance(setting, python_script.Unknown):
                setting = str(setting).lower() == 'true' if key in self.given else named.get('action') == 'store_true'
            value = (UNKNOWN if is_open else usual) if setting is NotImplemented else _literal(setting)
            owner.marks['parsed'][key] = str(value) if last(named.get('type')) == 'str' and value == setting else value
        elif name in ('parse_args', 'parse_known_args'):
            options = Thing('options', owner.line, marks={'options': owner.marks['parsed']})
            return options if name == 'parse_args' else (options, [])
        return owner

    def sets(self, owner: Any, name: str, value: Any, line: int) -> None:
        if name == 'pipeline_stage' and isinstance(owner, (Thing, Cell)) and isinstance(value, int) and value >= 0:
            owner.marks['pipeline_stage'] = value
            self.changes += 1
        elif name in _ATTRIBUTES or (isinstance(owner, Thing) and row_of(owner.name)):
            self.refuse(line, f'what is said by .{name} is not known', 'say it of layers by name, with a number')
        elif isinstance(owner, Thing) and name in owner.marks.get('options', {}):
            owner.marks['options'][name] = value

    def apply(self, of: Thing | Cell, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        """Call a layer, a cell, an operator, or what AutoParallel or a gradient was made of."""
        if isinstance(of, Thing) and 'names' in of.marks:
            return self.laid(of, line, values)
        if isinstance(of, Thing) and of.name == 'AutoParallel' and isinstance(of.values[0], Function):
            return self.function(of.values[0].of, values, named, of.values[0].scope)
        if isinstance(of, Thing) and of.name == 'AutoParallel' and isinstance(of.values[0], (Thing, Cell)):
            return self.apply(of.values[0], line, values, named)
        if isinstance(of, Thing) and of.name == 'gradients' and not self.depth and self.over is not None:
            self.read.append(self.over.marks.get('batch', (0, line)) if isinstance(self.over, Thing) else (0, line))
        if self.unsure and isinstance(of, Thing) and any(of is one for one in self.optimizers):
            self.gap(of.last, 'under a condition', line, 'it is made at each step')
        if isinstance(of, Cell) and not self.depth and not has_data(*values):
            # A step by hand calls the network with a batch of which nothing is known.
            if of.method('construct') and all(of is not one for one in self.called):
                self.called.append(of)
            return UNKNOWN
        if of is self.with_loss and self.depth and len(values) > 1 and isinstance(values[0], Data):
            # The cell of a network and its loss is called with a label, too.
            result = super().apply(of, line, values[:1], {})
            return self.lost(self.losses[-1], line, [result]) if isinstance(result, Data) else result
        return super().apply(of, line, values, named)

    # the schedule

    def answer(self, profile: str) -> mapping.Import:
        for of in [one for one in self.scope.values() if isinstance(one, Function)]:
            # A script of the tutorials may train in a function that its test runner calls.
            if not (self.network or self.forward or self.called) and _STARTS.match(of.of.name) and not of.of.args.args:
                self.function(of.of, [], {}, of.scope)
        if self.evaluated and self.trained is None and self.forward is None and not self.problems:
            self.refuse(
                self.evaluated, 'this script evaluates and does not train', 'name the file in which it is trained'
            )
        result = self.followed() if not self.problems else UNKNOWN
        if isinstance(result, Data):
            self.unread(result)
        if not self.layers and not self.problems:
            what = 'no network was found that a Model, a WithLossCell or an AutoParallel wraps'
            self.refuse(1, what, 'name the file in which it is trained, or write network: by hand')
        values, comments, assumed = self.schedule(profile)
        if self.problems:
            raise ScheduleError(list(dict.fromkeys(self.problems)))
        gaps = [mapping.gap(line) for line in self.lines if line.outcome == findings.NOT_MODELLED]
        values |= {'gaps': gaps[: mapping.MOST_GAPS]} if gaps else {}
        return mapping.Import('MindSpore', values, comments, tuple(self.lines), tuple(assumed))

    def followed(self) -> Any:
        """What the network makes of its input, before the loss; what is not understood is refused."""
        of = self.forward if self.forward is not None else self.network
        if of is None and len(self.called) > 1:
            names = ' and '.join(one.of.name for one in self.called)
            self.refuse(1, f'which cell trains is not known: {names}', 'write ms.Model(net, loss, optimizer)')
        elif of is None and self.called:
            of = self.network = self.called[0]
        if of is None:
            return UNKNOWN
        construct = of.method('construct') if isinstance(of, Cell) else None
        line = of.of.lineno if isinstance(of, (Function, Cell)) else of.line
        if self.forward is not None and self.trained is not None:
            self.refuse(line, 'a Model and a function of the script both train', 'name the file that trains once')
        count = (
            len(of.of.args.args) if isinstance(of, Function) else len(construct[0].args.args) - 1 if construct else 1
        )
        inputs = [Data('x'), *(Thing(LABEL, line) for _ in range(count - 1))]
        if isinstance(of, Function):
            self.depth += 1
            result = self.function(of.of, inputs, {}, of.scope)
            self.depth -= 1
        else:
            result = self.apply(of, line, inputs, {})
        first = result[0] if isinstance(result, (tuple, list)) and result and self.forward is not None else result
        if isinstance(first, Thing) and first.name == LOST:
            return first.values[0]
        if isinstance(first, Data) and (self.forward is None or of is self.with_loss):
            return first
        if not self.problems:
            what = 'what is differentiated returns no loss'
            what = what if self.forward is not None else 'what the network returns is not one result of a layer'
            self.refuse(line, what)
        return UNKNOWN

    def schedule(self, profile: str) -> tuple[dict[str, Any], dict[str, str], list[str]]:
        assumed = []
        target, at = self.context.get('device_target', ('', 0))
        target = last(target)
        name = profile or (USUAL_GPU if target == 'GPU' else USUAL)
        device = profiles.profile_of_flag(name, '--cluster')
        if not profile:
            which = 'no accelerator' if target != 'GPU' else 'no GPU'
            assumed.append(f'{name}: a script names {which}; --cluster says another')
        if target == 'CPU' and not profile:
            self.refuse(at, 'it trains on CPUs', 'say which: --cluster cpu-gloo')
        world = self.devices()
        stages = self.number('pipeline_stages', 1)
        if stages > 1 and world % stages:
            self.refuse(1, f'{world} devices are no multiple of {stages} stages', 'write pipeline_stages that divides')
        values: dict[str, Any] = {'cluster.profile': name, 'cluster.stack': profiles.stack_of('MindSpore', name)}
        if world > device.devices and world % device.devices:
            what = f'{world} devices are no whole nodes of {device.devices}, as {name} has them'
            self.refuse(1, what, 'name another cluster by --cluster')
        if world > device.devices:
            values['cluster.nodes'] = -(-world // device.devices)
        else:
            values['cluster.devices'] = world
        values['workload.network'] = [layer for layer, _ in self.layers]
        values |= self.training(world, stages, assumed)
        values |= self.plan(world, stages, assumed)
        comments = {'cluster.stack': 'the kernels and the host of MindSpore'}
        comments |= {f'cluster.{"nodes" if "cluster.nodes" in values else "devices"}': f'{world} workers'}
        self.leftover()
        return values, comments, assumed

    def training(self, world: int, stages: int, assumed: list[str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        loss = self.loss or self.one_of(self.losses, 'loss', LOSSES)
        if loss is not None:
            values['workload.loss'] = LOSSES[loss.last].kind
            self.line(loss.last, '', loss.line, ('workload.loss',))
            plain = ('sparse', 'logits', 'labels', 'input', 'target')
            for name, value in loss.named.items():
                if name not in plain and value not in (None, 'mean', 0, 0.0):
                    self.gap(f'{loss.last} {name}', value, loss.line, 'the loss is as without it')
        self.reads(max(1, world // stages))
        size = self.samples()
        readers = 1 if self.full else max(1, world // stages)
        if size and readers > 1:
            assumed.append(
                f'each of {readers} devices reads {size} samples a step, as dataset_strategy data_parallel has it'
            )
        values['workload.batch'] = size * readers or 1
        self.cast()
        values['workload.precision'] = self.precision
        if self.clip is not None and not isinstance(self.clip[0], (int, float)):
            self.refuse(self.clip[1], 'the norm that clips gradients is no number', '--set workload.clip_norm=1.0')
        elif self.clip is not None:
            values['workload.clip_norm'] = self.clip[0]
            self.line('clip_by_global_norm', self.clip[0], self.clip[1], ('workload.clip_norm',))
        of = self.one_of(self.optimizers, 'optimizer', OPTIMIZERS)
        return values | (self.updated(of) if of else {})

    def one_of(self, things: list[Thing], what: str, table: Mapping[str, Any]) -> Thing | None:
        """The one loss or optimizer of a script; refused where there are several kinds, or none."""
        if not things:
            self.refuse(1, f'no {what} of nn was found', f'write one of {", ".join(table)}')
            return None
        if len({one.last for one in things}) > 1:
            names = ' and '.join(f'{one.last} (line {one.line})' for one in things)
            self.refuse(things[-1].line, f'which {what} trains is not known: {names}', 'name the file that trains once')
        return things[-1]

    def samples(self) -> int:
        """Samples that a reader takes at a time: of the dataset that is trained on, or the one that there is."""
        if self.given.get('batch', '').isdecimal() and int(self.given['batch']):
            return int(self.given['batch'])
        of = self.trained
        batches = self.read or self.batches
        if of is not None:
            batches = [of.marks['batch']] if 'batch' in of.marks else []
        sizes = {size for size, _ in batches}
        if not batches:
            self.refuse(1, 'no batch of a dataset was found', 'give that of one device: --set batch=32')
        elif len(sizes) > 1 or not min(sizes):
            what = 'the batch is no number that the script says' if len(sizes) < 2 else f'batches of {sorted(sizes)}'
            self.refuse(batches[-1][1], what, 'give that of one device: --set batch=32')
        else:
            self.line('batch', batches[0][0], batches[0][1], ('workload.batch',))
            return batches[0][0]
        return 0

    def cast(self) -> None:
        """Precision that cells are cast to: of the whole network, or refused."""
        for owner, name, line in self.casts:
            precision = {'float32': 'fp32', 'float16': 'fp16', 'bfloat16': 'bf16'}.get(name)
            if precision is None:
                self.refuse(line, f'{name} is no precision that is read', 'write ms.float16 or ms.bfloat16')
            elif owner is self.outer or owner is self.network:
                self.precision = precision
            elif precision != self.precision:
                self.refuse(line, 'another precision of a part of the network is not read', 'write it of the network')

    def updated(self, of: Thing) -> dict[str, Any]:
        """The optimizer and its settings."""
        _, kind, order, keys, *_ = OPTIMIZERS[of.last]
        said = said_of(order, of.values, of.named)
        if len(of.values) > len(order) or set(said) - set(order):
            self.refuse(of.line, f'{of.last} has arguments that are not known', 'leave them out')
        if of.last == 'SGD' and said.get('momentum') not in (None, 0, 0.0):
            # With momentum it is that optimizer.
            kind, keys = 'momentum', {**OPTIMIZERS['Momentum'].keys, 'nesterov': 'nesterov'}
            if not isinstance(said['momentum'], (int, float)):
                self.refuse(of.line, 'the momentum of SGD is no number that the script says', '--set says it')
        weights = said.pop('params', None)
        if isinstance(weights, (list, tuple)):
            self.gap(f'{of.last} params', 'groups', of.line, 'all weights are updated alike')
        elif not isinstance(weights, Thing) or weights.name != 'parameters' or not self.holds(weights.values[0]):
            self.refuse(of.line, 'which weights are updated is not known', 'write net.trainable_params()')
        values: dict[str, Any] = {'weight_decay': 0.0} if kind == 'adamw' else {}
        for name, value in said.items():
            if name in keys and isinstance(value, (int, float)):
                values[keys[name]] = value
            elif name in _OTHER_UPDATES and value not in (None, False):
                self.refuse(of.line, f'{name} of {of.last} is not read', 'leave it out')
            elif (
                name not in keys and value not in (None, False, 0, 0.0) and not (name == 'loss_scale' and value == 1.0)
            ):
                self.gap(f'{of.last} {name}', value, of.line, 'the update is as without it')
        self.line(of.last, '', of.line, ('workload.optimizer',))
        return {f'workload.optimizer.{kind}': values}

    def holds(self, owner: Any) -> bool:
        """Whether all weights that the network reads are of an object."""
        inside: set[int] = set()
        rest = [owner]
        while rest:
            one = rest.pop()
            if id(one) not in inside:
                inside.add(id(one))
                rest += one.attributes.values() if isinstance(one, Cell) else ()
                rest += one.values if isinstance(one, Thing) else one if isinstance(one, (list, tuple)) else ()
        return all(number in inside for number, one in self.used.items() if has_weights(one))


def _numbers(made: Any) -> Iterator[int]:
    """Whole numbers in the calls that make an array, in their order."""
    for one in made.values if isinstance(made, Thing) else ():
        if isinstance(one, int):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from (part for part in one if isinstance(part, int))


def _literal(text: Any) -> Any:
    """A value of an option as a number, or as the text that it is."""
    if not isinstance(text, str):
        return text
    try:
        literal = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return literal if isinstance(literal, (int, float, str)) else text


# lines that ``simpar export`` writes, as keys of a plan: a module that wraps a network and has none

_NETWORK: Final = 'the network of parallel()'


@dataclass(eq=False)
class _Lines(Script):
    """Lines around a network that is not there."""

    def method(self, of: Method, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        names: list[str] = []
        owner = of.owner
        while isinstance(owner, Method):
            names, owner = [owner.name, *names], owner.owner
        is_operator = isinstance(owner, Thing) and owner.name == _NETWORK and bool(names)
        if is_operator and of.name == 'shard' and len(values) == 1 and not named:
            self.strategies['.'.join(names)] = self.slices(line, values[0])[1]
            return UNKNOWN
        return super().method(of, line, values, named)


def plan_of(text: str, path: Path, ranks: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys of the plan that lines say, and strategies of operators by their names in the network.

    Arguments: ``path`` of the lines, beside which the JSON of overlap passes lies; ``ranks`` that they run on.
    Raises ``ScheduleError`` where the lines of 2.3, ``set_context()``, say another plan than those of ``parallel()``.
    """
    said: dict[str, Any] = {}
    strategies: dict[str, Any] = {}
    for name, values in (('parallel', [Thing(_NETWORK, 0)]), ('set_context', [])):
        reader = _Lines(str(path), path.parent, world=ranks, is_bare=True, strategies=dict(strategies))
        reader.module(python_script.tree_of(text, path), reader.scope)
        of = reader.scope.get(name)
        if not isinstance(of, Function):
            raise errors.refusal(path, f'has no {name}()', 'write it by simpar export --to mindspore')
        reader.function(of.of, values, {}, of.scope)
        stages = reader.number('pipeline_stages', 1)
        reader.reads(ranks // stages)
        plan = reader.plan(ranks, stages, [])
        reader.leftover()
        other = [key for key in plan if said.get(key, plan[key]) != plan[key]]
        if other:
            what = f'{", ".join(other)}: set_context() says another plan than parallel()'
            reader.refuse(of.of.lineno, what, 'write the same')
        if reader.problems:
            raise ScheduleError(reader.problems)
        # What only 2.3 has a setting for is not of parallel().
        said, strategies = said or plan, reader.strategies
    return said, strategies
