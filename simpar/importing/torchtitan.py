"""torchtitan's configurations: its registries, which are Python and are not run, and the TOML files before them."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import lcm
from pathlib import Path
from typing import Any, Final

from simpar import errors
from simpar.huggingface.families import FLAVOURS, flavour
from simpar.importing import findings, settings
from simpar.importing.python_script import Cell, Function, Method, Reader, Thing, Unknown, tree_of

_T: Final = 'workload.transformer'
_P: Final = 'parallelism'
_TOKENS: Final = 'training.num_tokens_per_microbatch_per_dp_rank'


def _sizes(toml: settings.Settings) -> dict[str, Any]:
    """Sizes of the flavour that the file names and does not say; none of an unknown one."""
    return flavour(toml.text('model.name'), toml.text('model.flavor')) or {}


def model(toml: settings.Settings) -> Iterator[findings.Finding]:
    """Sizes of a flavour."""
    name, size, sizes = toml.text('model.name'), toml.text('model.flavor'), _sizes(toml)
    if not sizes:
        flavours = ', '.join(f'{one} {" ".join(of_name)}' for one, of_name in FLAVOURS.items())
        wrong = f'sizes of {name or "a model"} {size} are not known'
        yield findings.Mistake('model.flavor', wrong, f'known are {flavours}; or give the model, --model config.json')
        return
    experts = {f'experts.{part}': one for part, one in sizes.get('experts', {}).items()}
    for key, value in {**{key: one for key, one in sizes.items() if key != 'experts'}, **experts}.items():
        yield findings.Entry(f'{_T}.{key}', value, ('model.name', 'model.flavor'))
    by_document = next((name for name in ('model.attn_backend', 'model.flavor') if name in toml), '')
    if any(kind in toml.text(by_document) for kind in ('flex', 'varlen')):
        yield findings.Unmapped(by_document, 'attention within documents, whose lengths the file does not say')


def _degree(toml: settings.Settings, name: str) -> int:
    return max(1, toml.number(f'{_P}.{name}_degree'))


def _ranks(toml: settings.Settings) -> tuple[int, int, int]:
    """Ranks, replicas and data ranks: as many as are told, or the least."""
    inner = _degree(toml, 'tensor_parallel') * _degree(toml, 'pipeline_parallel') * _degree(toml, 'context_parallel')
    replicas = _degree(toml, 'data_parallel_replicate')
    shard, devices = toml.number(f'{_P}.data_parallel_shard_degree'), toml.number('devices')
    if shard > 0:
        data = replicas * shard
    elif devices and devices % (inner * replicas) == 0:
        data = devices // inner
    else:
        # At least a node, so that shards are shared at all.
        data = replicas * max(1, lcm(inner * replicas, 8) // (inner * replicas))
    return data * inner, replicas, data


def parallel(toml: settings.Settings) -> Iterator[findings.Finding]:
    """Degrees, and what data ranks share."""
    ranks, replicas, data = _ranks(toml)
    yield findings.Entry('ranks', ranks, toml.given('devices'))
    if not toml.number('devices') and toml.number(f'{_P}.data_parallel_shard_degree') < 1:
        yield findings.Mistake('devices', 'the file does not say how many', 'give it, e.g. --set devices=64')
    if toml.number('devices') not in (0, ranks):
        # pytorch/torchtitan, torchtitan/distributed/parallel_dims.py: degrees must come to all devices.
        what = f'{toml.number("devices")}, and the degrees of the file come to {ranks}'
        yield findings.Mistake('devices', what, f'--set devices={ranks}, or other degrees')
    tensor, pipe = _degree(toml, 'tensor_parallel'), _degree(toml, 'pipeline_parallel')
    yield findings.Entry('plan.tensor', tensor, toml.given(f'{_P}.tensor_parallel_degree'))
    by_sequence = f'{_P}.enable_sequence_parallel'
    if tensor > 1:
        by = (f'{_P}.tensor_parallel_degree', *toml.given(by_sequence))
        yield findings.Entry('plan.sequence_parallel', by_sequence not in toml or toml.on(by_sequence), by)
    else:
        yield from toml.left('one tensor rank', by_sequence)
    if toml.on(f'{_P}.enable_async_tensor_parallel') and tensor > 1:
        yield findings.Entry('plan.tiles', tensor, (f'{_P}.enable_async_tensor_parallel',), 'one for each rank')
    yield findings.Entry('plan.pipeline', pipe, toml.given(f'{_P}.pipeline_parallel_degree'))
    yield from context_and_experts(toml)
    # pytorch/torchtitan, torchtitan/distributed/parallel_dims.py: context ranks hold shards, too (dp_shard_cp).
    shards = data // replicas * _degree(toml, 'context_parallel')
    by, of_reshard = (
        toml.given(f'{_P}.{name}') for name in ('data_parallel_shard_degree', 'fsdp_reshard_after_forward')
    )
    if shards == 1:
        yield from toml.left('one shard', *by, *of_reshard)
        return
    reshard = toml.text(f'{_P}.fsdp_reshard_after_forward')
    if reshard == 'never' or (reshard == 'default' and pipe > 1):
        yield findings.Entry('plan.shard', ['state', 'gradients', 'weights'], by)
        yield findings.Entry('plan.gather', 'on-use', of_reshard or by)
    else:
        yield findings.Entry('plan.zero', 3, (*by, *of_reshard))
    if replicas > 1:
        yield findings.Entry('plan.shard_group', shards, toml.given(f'{_P}.data_parallel_replicate_degree'))


def context_and_experts(toml: settings.Settings) -> Iterator[findings.Finding]:
    """Context and expert parallelism."""
    yield from toml.said(f'{_P}.context_parallel_degree')
    yield from toml.said(f'{_P}.context_parallel_rotate_method', silent=True)
    if _degree(toml, 'expert_parallel') > 1 and 'experts' in _sizes(toml):
        yield findings.Entry('plan.expert', _degree(toml, 'expert_parallel'), (f'{_P}.expert_parallel_degree',))
    else:
        yield from toml.left('one expert rank, or no experts', f'{_P}.expert_parallel_degree')


def batch(toml: settings.Settings) -> Iterator[findings.Finding]:
    """Samples of a step, and the micro-batches of pipeline and accumulation."""
    *_, data = _ranks(toml)
    if _TOKENS in toml:
        yield from _tokens(toml, data)
        return
    local, full = max(1, toml.number('training.local_batch_size')), toml.number('training.global_batch_size')
    steps = max(1, toml.number('training.gradient_accumulation_steps'))
    if full > 0 and full % (local * data) == 0:
        steps = full // (local * data)
    elif full > 0:
        what = f'global_batch_size {full} is no multiple of {local} × data {data}: {local * data * steps} written'
        yield findings.Guess(what)
    if 'training.local_batch_size' not in toml:
        yield findings.Guess('local_batch_size is 8 where the file does not say it')
    by = toml.given('training.local_batch_size', 'training.global_batch_size')
    yield findings.Entry('workload.batch', local * data * steps, by)
    small = 1
    if _degree(toml, 'pipeline_parallel') > 1:
        size = toml.number(f'{_P}.pipeline_parallel_microbatch_size')
        small = local // size if size and local % size == 0 else local
    by = toml.given(f'{_P}.pipeline_parallel_microbatch_size', 'training.gradient_accumulation_steps')
    yield findings.Entry('plan.micro_batches', small * steps, by)


def _tokens(toml: settings.Settings, data: int) -> Iterator[findings.Finding]:
    """Samples of a step where a registry says tokens (pytorch/torchtitan, torchtitan/trainer.py, August 2026)."""
    sequence, tokens, step = (
        toml.number(name) for name in ('training.seq_len', _TOKENS, 'training.num_tokens_per_train_step')
    )
    pipe = max(1, toml.number(f'{_P}.num_pp_microbatches')) if _degree(toml, 'pipeline_parallel') > 1 else 1
    at_once = tokens * pipe * data
    if not 0 < sequence <= tokens or tokens % sequence:
        wrong = f'{tokens}, which is no multiple of the {sequence} of training.max_context_length'
        yield findings.Mistake(_TOKENS, wrong, f'--set {_TOKENS}={max(1, tokens // max(1, sequence)) * sequence}')
    elif step > 0 and step % at_once:
        wrong = f'{step}, which is no multiple of the {at_once} that all data ranks take at once'
        yield findings.Mistake('training.num_tokens_per_train_step', wrong, f'write a multiple of {at_once}')
    else:
        by = toml.given(_TOKENS, 'training.num_tokens_per_train_step')
        steps = step // at_once if step > 0 else 1
        yield findings.Entry('workload.batch', at_once * steps // sequence, by)
        yield findings.Entry('plan.micro_batches', pipe * steps, (*by, *toml.given(f'{_P}.num_pp_microbatches')))


def order(toml: settings.Settings) -> Iterator[findings.Finding]:
    """The pipeline's order and its stages."""
    pipe = _degree(toml, 'pipeline_parallel')
    names = (f'{_P}.pipeline_parallel_schedule', f'{_P}.pipeline_parallel_layers_per_stage')
    if pipe < 2:
        return
    kind, orders = toml.text(names[0]), toml.table.rows[names[0]].choices
    if kind.lower() not in orders:
        yield findings.Unmapped(names[0], f'{kind}; 1f1b is written')
    written = orders.get(kind.lower(), '1f1b')
    yield findings.Entry('plan.order', written, toml.given(*names)[:1])
    if written not in ('1f1b', 'gpipe'):
        # A V has two stages on each rank; the others have two unless told.
        each, layers = toml.number(names[1]), _sizes(toml).get('layers', 0)
        chunks = max(2, -(-layers // (pipe * each))) if each and written[-1] != 'v' else 2
        yield findings.Entry('plan.chunks', chunks, toml.given(*names))


def precision(toml: settings.Settings) -> Iterator[findings.Finding]:
    """Products in bf16 of weights that are kept in fp32, unless told."""
    full = toml.choice('training.dtype') or 'fp32'
    of_ops = (toml.choice('training.mixed_precision_param') or 'bf16') if full == 'fp32' else full
    yield findings.Entry('workload.precision', of_ops, toml.given('training.mixed_precision_param', 'training.dtype'))
    if full != 'fp32':
        yield from toml.left('training.dtype says it', 'training.mixed_precision_param')
    sums, name = toml.choice('training.mixed_precision_reduce') or 'fp32', 'training.mixed_precision_reduce'
    yield findings.Entry('workload.gradients', sums, toml.given(name))
    yield from optimizer(toml, master=full == 'fp32' and of_ops != 'fp32')
    converters = [str(one) for one in _listed(toml, 'model.converters')]
    eight = [one for one in converters if 'float8' in one and 'grouped' not in one]
    if eight or toml.on('float8.enable_float8_linear'):
        yield findings.Entry('workload.fp8', 'hybrid', toml.given('model.converters', 'float8.enable_float8_linear'))
    if not eight:
        names = (one for one in toml.named if one.startswith(('quantize.linear', 'float8.')))
        yield from toml.left('converters name no float8', *names)
    rest = [one for one in converters if one not in eight]
    if any('lora' in one for one in rest):
        what = 'weights of low rank beside frozen ones, whose rank is not read'
        yield findings.Mistake('model.converters', what, 'leave the converter out, and write workload.transformer.lora')
    elif rest:
        yield findings.Unmapped('model.converters', ', '.join(rest))


def optimizer(toml: settings.Settings, *, master: bool) -> Iterator[findings.Finding]:
    """AdamW; its fp32 weights are the sharded parameters."""
    if toml.text('optimizer.name') not in ('AdamW', 'Adam'):
        yield findings.Unmapped('optimizer.name', f'{toml.text("optimizer.name")}; adamw is written')
    yield findings.Entry('workload.optimizer.adamw.master_weights', master, toml.given('optimizer.name'))
    for name in ('optimizer.beta2', 'optimizer.weight_decay', 'optimizer.lr', 'training.max_norm'):
        if name not in toml:
            yield findings.Entry(toml.table.rows[name].key, toml.real(name), (), 'as torchtitan has it')


def _listed(toml: settings.Settings, name: str) -> list[Any]:
    one = toml.named.get(name)
    if one is None:
        return []
    return one.value if isinstance(one.value, list) else [part for part in str(one.value).split(',') if part]


def recompute(toml: settings.Settings) -> Iterator[findings.Finding]:
    """Checkpoints of full layers, of some layers, or of cheap operators."""
    names = ('activation_checkpoint.mode', 'activation_checkpoint.selective_ac_option')
    (mode, option), by = map(toml.text, names), toml.given(*names)
    if names[0] not in toml:
        yield findings.Guess('activation_checkpoint.mode is selective where the file does not say it')
    if mode in ('full', 'none'):
        yield findings.Entry('plan.recompute', mode, by[:1])
        yield from toml.left(f'with mode {mode}', *by[1:])
    elif option.isdigit():
        every, layers = max(1, int(option[:6])), _sizes(toml).get('layers', 0)
        chosen = [f'layer{layer}.*' for layer in range(layers) if (layer + 1) % every == 0]
        yield findings.Entry('plan.recompute', 'full' if every == 1 else chosen or 'none', by)
    else:
        why = 'the second product of queries, keys and values, and of gate and up, is kept'
        yield findings.Entry('plan.recompute', _cheap(_sizes(toml)), by, why)
        if mode != 'selective':
            yield findings.Unmapped(names[0], f'{mode}; cheap operators are recomputed')


def _cheap(sizes: dict[str, Any]) -> list[str]:
    """What mode ``op`` makes again: all but attention, messages, and of every two products the first.

    activation_checkpoint.py: ops that are kept are mm, attention and messages, not the grouped products of experts. Of
    mm every second one is made again, and the gate of experts (force_recompute_mm_shapes_by_fqns). Products of queries,
    keys and values are one here, which is kept, as is that of gate and up; the projection of attention is a second one.
    """
    patterns = ['layer*norm*', 'layer*.proj', 'layer*.residual1', 'layer*.swiglu']
    patterns += ['layer*rope*' if 'kv_lora_rank' in sizes else 'layer*.rotary']
    return patterns + ['layer*.router', 'layer*.dispatch', 'layer*.experts.fc*'] * ('experts' in sizes)


def framework(toml: settings.Settings) -> tuple[str, int]:
    """Shards of FSDP2, whose kernels a compiler may fuse."""
    is_compiled = toml.on('training.compile') or toml.on('compile.enable')
    return ('torchtitan fsdp, compile' if is_compiled else 'torchtitan fsdp'), settings.NOW


TORCHTITAN: Final = settings.Source(
    'torchtitan',
    settings.table_of('torchtitan'),
    rules=(model, parallel, batch, order, precision, recompute),
    framework=framework,
)
TORCHTITAN_HINTS: Final = re.compile(
    r'--(job\.config_file|(parallelism|activation_checkpoint)\.\w|model\.flavor)|-m torchtitan\.train\b'
)
"""Settings that its command line has, over those of its configuration."""


# registries: functions of which each makes one configuration

REGISTRY: Final = 'config_registry.py'
RUN_OF: Final = r'\b%s=["\']?([\w.]+).*run_train\.sh'
"""A variable of the environment that torchtitan's own script takes."""
REGISTRY_HINT: Final = re.compile(r'\bfrom torchtitan\.|\bimport torchtitan\b')


@dataclass(eq=False)
class _Registry(Reader):
    """A registry as it is followed: of a class or a function of torchtitan the name and the arguments are known.

    Arguments: ``given``, settings that ``--set`` says.
    """

    given: Mapping[str, str] = field(default_factory=dict)

    def of_module(self, name: str, line: int, values: list[Any], named: dict[str, Any]) -> Thing:
        return Thing(name, line, values, named, {'options': named})

    def sets(self, owner: Any, name: str, value: Any, line: int) -> None:
        if isinstance(owner, Method) and isinstance(owner.owner, Thing):
            # A section that is as torchtitan has it, but for this.
            section = owner.owner.named[owner.name] = self.of_module(owner.name, line, [], {})
            owner = section
        if isinstance(owner, Thing):
            owner.named[name] = value
            self.changes += 1

    def method(self, of: Method, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        return Unknown()

    def apply(self, of: Thing | Cell, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        return Unknown()

    def arithmetic(self, one: ast.BinOp | ast.AugAssign, left: Any, right: Any) -> Any:
        return Unknown()

    def iterated(self, over: Any) -> None:
        """Over what is changed there, no time of a step hangs."""

    def beside(self, module: str) -> None:
        """Files beside it are of models, which are known by their names."""

    def said(self, of: Thing, prefix: str = '') -> Iterator[settings.Setting]:
        """The settings of a configuration, in the words of its command line."""
        for name, value in of.named.items():
            at, where = f'{prefix}{name}', self.place(value.line if isinstance(value, Thing) else of.line)
            if not isinstance(value, Thing):
                of_kind = '.mode' if name == 'activation_checkpoint' else ''
                yield self.setting(at + of_kind, 'none' if of_kind and value is None else value, where)
            elif name == 'model_spec':
                yield from self.model(value, where)
            elif name == 'activation_checkpoint':
                yield settings.Setting(f'{at}.mode', _class(value).removesuffix('AC').lower(), where)
                yield from self.said(value, f'{at}.')
            elif name == 'optimizer' and value.last == 'default_adamw':
                named = {'lr': value.values[0]} if value.values else {}
                named |= value.named
                betas = named.pop('betas', (0.9, 0.95))
                pair = betas if isinstance(betas, tuple) and len(betas) == 2 else (Unknown(),) * 2
                for key, one in {**named, 'beta1': pair[0], 'beta2': pair[1]}.items():
                    yield self.setting(f'{at}.{key}', one, where)
            elif name in ('optimizer', 'loss'):
                yield settings.Setting(f'{at}.kind', _class(value), where)
            else:
                yield from self.said(value, f'{at}.')

    def model(self, of: Thing, where: str) -> Iterator[settings.Setting]:
        """The model of ``model_registry("8B", …)``."""
        named = {'flavor': of.values[0] if of.values else '', 'attn_backend': 'flex', **of.named}
        converters = named.pop('converters', None) or []
        for name, value in named.items():
            yield self.setting(f'model.{name}', value, where)
        is_list = isinstance(converters, (list, tuple))
        names = (
            [_class(one).lower() if isinstance(one, Thing) else one for one in converters] if is_list else converters
        )
        yield from [self.setting('model.converters', names, where)] if names else []

    def setting(self, name: str, value: Any, where: str) -> settings.Setting:
        """A setting of a value; where only running the file says it, and a step hangs on it, it is refused."""
        parts = list(value) if isinstance(value, (list, tuple)) else [value]
        if all(one is None or isinstance(one, (bool, int, float, str)) for one in parts):
            return settings.Setting(name, list(value) if isinstance(value, tuple) else value, where)
        if name.partition('.')[0] in _SECTIONS and name not in self.given:
            what = f'{name}: what it is, only running the file says'
            self.problems.append(errors.Problem(where, what, f'--set {name}=VALUE, or write the value'))
        return settings.Setting(name, 'not known', where)


_SECTIONS: Final = ('model', 'model_spec', 'training', 'parallelism', 'activation_checkpoint', 'optimizer', 'compile')
"""Those of a configuration on which a step hangs."""


def _class(of: Thing) -> str:
    """The class of ``SelectiveAC.Config(…)``."""
    return of.name.removesuffix('.Config').rpartition('.')[2]


def settings_of_registry(text: str, path: Path, given: Mapping[str, str]) -> list[settings.Setting]:
    """The settings of one configuration of a registry. Arguments: ``given``, of which ``config`` names its function.

    Raises ``ScheduleError``.
    """
    reader = _Registry(str(path), path.parent, given=given)
    try:
        reader.module(tree_of(text, path), reader.scope)
        functions = {name: one for name, one in reader.scope.items() if isinstance(one, Function)}
        names = [name for name, one in functions.items() if one.of.returns is not None and not one.of.args.args]
        name = given.get('config', '')
        if name not in names:
            what = f'config: no function of this name makes one (got {name!r})' if name else 'config: which one?'
            raise errors.refusal(path, what, f'--set config=NAME, one of {", ".join(names)}')
        made = reader.function(functions[name].of, [], {}, reader.scope)
    except RecursionError:
        raise errors.refusal(path, 'functions call one another without an end', 'write it in full') from None
    where = reader.place(functions[name].of.lineno)
    if not isinstance(made, Thing) or _class(made) in ('', 'Config'):
        raise errors.refusal(where, f'what {name} returns is not known', 'write Trainer.Config(…) in it')
    said = list(reader.said(made))
    if reader.problems:
        raise errors.ScheduleError(reader.problems)
    # As torchtitan has them where a configuration is silent.
    spares = made.named.get('training')
    is_captured = not (isinstance(spares, Thing) and spares.named.get('disable_cuda_graphs'))
    usual: list[tuple[str, str | int]] = [
        ('model.name', path.resolve().parent.name),
        ('activation_checkpoint.mode', 'selective'),
    ]
    usual += [('activation_checkpoint.selective_ac_option', 'op')]
    usual += [('training.max_context_length', 2048), (_TOKENS, 16384), ('training.cuda_graphs', is_captured)]
    silent = {key: value for key, value in usual if all(one.name != key for one in said)}
    return [*(settings.Setting(key, value, where) for key, value in silent.items()), *said]
