"""The command line in a shell script, or in a saved list of arguments: the flags of launcher, trainer and Slurm."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

from simpar.errors import refusal
from simpar.importing import shell, shell_syntax
from simpar.importing.settings import ACCELERATOR, Setting, Settings, Source, accelerator

_FLAG: Final = re.compile(r'--?[A-Za-z][A-Za-z0-9_.-]*(=.*)?', re.DOTALL)
_QUEUES: Final = 'CUDA_DEVICE_MAX_CONNECTIONS'
_LIST: Final = re.compile(r'(\s|#[^\n]*\n)*--[A-Za-z]')
"""Arguments alone, with no command before them."""
_PRINTED: Final = re.compile(r'^.*?([a-z][a-z0-9_]*) \.{2,} ?(.*)$', re.MULTILINE)
_WORD: Final = r'\s*:\s*"?(?:\$\{?(\w+)\}?|(\d+))'
_OF_JSON: Final = {
    'zero_optimization.stage': ('zero-stage', re.compile(r'"zero_optimization"\s*:\s*\{[^{}]*"stage"' + _WORD)),
    'train_micro_batch_size_per_gpu': ('micro-batch-size', re.compile(r'"train_micro_batch_size_per_gpu"' + _WORD)),
    'zero_optimization.overlap_comm': ('overlap-comm', re.compile(r'"overlap_comm"' + _WORD.replace('d', 'w'))),
    'zero_optimization.offload_optimizer.device': (
        'zero-optimization.offload-optimizer.device',
        re.compile(r'"offload_(?:optimizer|param)"\s*:\s*\{[^{}]*"device"' + _WORD.replace('d', 'w')),
    ),
    'train_batch_size': ('global-batch-size', re.compile(r'"train_batch_size"' + _WORD)),
}
"""What a here-document for DeepSpeed says that flags say, too: a number, or a variable."""
_DOCUMENT: Final = re.compile(
    r'<<-?[ \t]*[\'"\\]?(?P<end>[A-Za-z_]\w*)[\'"]?[^\n]*\n(?P<body>.*?\n)?[ \t]*(?P=end)[ \t]*(?=\n|$)', re.DOTALL
)
OVERRIDE: Final = re.compile(r'\+{0,2}((?:training\.)?(?:model|trainer|exp_manager|run)\.[\w.]+)=(.*)', re.DOTALL)
"""A setting of NeMo in hydra's words: ``model.tensor_model_parallel_size=4``."""
_NEXT: Final = re.compile(rf'--?[A-Za-z]|(?:{OVERRIDE.pattern})\Z', re.DOTALL)
_STARTS: Final = re.compile(r'^[^\n#]*\b(srun|torchrun|deepspeed|msrun|mpirun|python[\d.]*|bash)\b', re.MULTILINE)
_OF_MODEL: Final = ('num-layers', 'hidden-size', 'flavor', 'name')
"""Flags that the command of a training has, one of them at least."""
_SBATCH: Final = re.compile(r'^[ \t]*#SBATCH[ \t]+(.*)$', re.MULTILINE)
_LONG: Final = {
    'N': 'nodes', 'n': 'ntasks', 'G': 'gpus', 'C': 'constraint', 'nodes': 'nodes', 'ntasks': 'ntasks', 'gpus': 'gpus',
    'ntasks-per-node': 'ntasks-per-node', 'tasks-per-node': 'ntasks-per-node', 'gpus-per-node': 'gpus-per-node',
    'gres': 'gres', 'gpus-per-task': 'gpus-per-task', 'ntasks-per-gpu': 'ntasks-per-gpu', 'constraint': 'constraint',
}  # fmt: skip
_OPTION: Final = re.compile(r'--(?P<long>[A-Za-z][\w-]*)(?:=(?P<value>.*))?|-(?P<short>[A-Za-z])=?(?P<rest>.*)')
_PROGRAM: Final = re.compile(
    r'(.*/)?(python[\d.]*|bash|sh|torchrun|deepspeed|numactl|env|singularity|apptainer|[^/]*\.(py|sh))'
)
"""What stands behind the options of ``srun``, where an option that is not known may or may not take a value."""
_MPI: Final = re.compile(r'(.*/)?(mpirun|mpiexec(\.hydra)?|orterun|horovodrun)')
_MPI_COUNTS: Final = {
    'np': 'np', 'n': 'np', 'c': 'np', 'npernode': 'node', 'N': 'node', 'ppn': 'node', 'perhost': 'node',
    'map-by': 'node',
}  # fmt: skip
"""Options of Open MPI, MPICH and Horovod: processes in all, and of a node."""
_GRES: Final = re.compile(r'(?:^|,)(?:gpu|npu|ascend)(?::(?P<kind>[A-Za-z][\w.+-]*))?(?::(?P<count>\d+))?(?:\(|,|$)')


def settings_of(
    text: str,
    name: str,
    source: Source,
    overrides: Mapping[str, str],
    arguments: Sequence[str] = (),
    sourced: Callable[[str], str] = lambda _: '',
) -> tuple[Settings, list[Setting], tuple[str, ...]]:
    """The settings of a script, those that it does not use, and what could not be followed.

    Arguments: ``overrides``, variables and flags of ``--set``; ``arguments`` of the script; ``sourced``, the text of a
    script that it sources. Raises ``ScheduleError``.
    """
    printed = _PRINTED.findall(text)
    if len(printed) >= 5:
        settings = _printed(text, name)
        return Settings([*settings, *_over(overrides, source, settings)], source.table), [], ()
    text = f'ARGS=({text}\n)\narguments "${{ARGS[@]}}"' if _LIST.match(text) else text
    run = partial(_script, name=name, constants=overrides, arguments=arguments, sourced=sourced)
    script, job, launch = _with_job(text, name, run, overrides)
    if not _has_model(launch) and (opened := _opened(text)) != text:
        script, job, launch = _with_job(opened, name, run, overrides)
    if not _has_model(launch):
        # Another script starts it: what holds its flags is the command.
        launch = (*launch, *_of_variables(script))
    if not _flags(launch):
        what = 'no command with flags such as --num-layers was found'
        raise refusal(name, what, 'name the script that starts the training, or a file with its arguments')
    flags = [
        *settings_of_job(job),
        *_processes(_with_text(script, launch), name),
        *(_documents(text, name, script) if 'zero-stage' in source.table.rows else ()),
    ]
    flags += _settings(srun_options(launch)[1], name)
    # The program that gets the flags, and the one variable of the environment that changes the time of a step.
    if program := next((word for word in launch if word.text.endswith('.py')), None):
        name_of = program.text.rpartition('/')[2]
        flags.append(Setting('trainer', name_of, f'{name}:{program.line}', 'the program'))
    if queues := script.variable(_QUEUES):
        flags.append(Setting(_bare(_QUEUES.lower()), queues.text, f'{name}:{queues.line}', _QUEUES))
    skipped = list(_words(script.skipped, name))
    for other in script.commands:
        # Flags that stand alone, as behind a comment that ends the command before.
        if other is not launch and other and other[0].text.startswith('--'):
            skipped += _settings(other, name)
    return Settings([*flags, *_over(overrides, source, flags)], source.table), skipped, script.notes


def _over(overrides: Mapping[str, str], source: Source, settings: Sequence[Setting]) -> Iterator[Setting]:
    """Flags of ``--set``, which go over those of the file; other names are variables of it."""
    names = {one.name for one in settings}
    for key, value in overrides.items():
        name = _bare(key)
        if name in source.table.rows or name in source.table.aliases or name in names:
            yield Setting(name, value, f'--set {key}={value}')


def _with_job(
    text: str, name: str, run: Callable[[str, Mapping[str, str]], shell.Script], overrides: Mapping[str, str]
) -> tuple[shell.Script, Job, tuple[shell.Argument, ...]]:
    """The script as a job of Slurm runs it, whose variables have what its options say; and the command of training."""
    script = run(text, {})
    values = {variable: words[0].text for variable, words in script.variables.items() if len(words) == 1}
    before = launch = _launch(script)
    if launch in script.commands and (place := script.commands.index(launch)) and not srun_options(launch)[0]:
        # Of srun bash -c "…" the text is a command of its own.
        before = script.commands[place - 1]
    job = job_of([*batch_options(text, name, {**values, **overrides}), *srun_options(before, name)[0]])
    variables = environment(job)
    script = run(text, variables) if variables else script
    return script, job, _launch(script)


def _script(text: str, environment: Mapping[str, str], *, name: str, **beside: Any) -> shell.Script:
    try:
        return shell.read_script(text.replace('\0', ''), environment=environment, **beside)
    except shell_syntax.ShellError as error:
        raise refusal(f'{name}:{error.line}', error.what, 'write it as bash reads it') from None


def _launch(script: shell.Script) -> tuple[shell.Argument, ...]:
    """The command with the most flags; a text of flags, as for another script, is what stands in it."""
    return max(map(_spread, script.commands), key=_flags, default=())


def _flags(words: Iterable[shell.Argument]) -> int:
    return sum(one.text.startswith('--') or bool(OVERRIDE.fullmatch(one.text)) for one in words)


def _has_model(words: Iterable[shell.Argument]) -> bool:
    flags = (one.text.partition('=')[0] for one in words if one.text.startswith('--') or OVERRIDE.fullmatch(one.text))
    return any(_bare(flag).rpartition('model.')[2] in _OF_MODEL for flag in flags)


def _spread(words: Sequence[shell.Argument]) -> tuple[shell.Argument, ...]:
    """Words, with a text of several flags as the words that stand in it."""
    return tuple(
        shell.Argument(piece, one.line)
        for one in words
        for piece in (one.text.split() if len(re.findall(r'(?:^|\s)--[A-Za-z]', one.text)) > 1 else [one.text])
    )


def _of_variables(script: shell.Script) -> tuple[shell.Argument, ...]:
    """The flags that variables hold, those of the longest first, and of others what it does not have."""
    texts = sorted((_spread(words) for words in script.variables.values()), key=_flags, reverse=True)
    arguments: list[shell.Argument] = []
    for words in texts if any(map(_has_model, texts)) else ():
        has = {one.text for one in arguments if one.text.startswith('--')}
        if _flags(words) and not has & {one.text for one in words}:
            arguments += words
    return tuple(arguments)


def _opened(text: str) -> str:
    """A script with what its here-documents hold in their place, where that starts something."""
    lines = text.split('\n')
    for match in _DOCUMENT.finditer(text):
        if _STARTS.search(match['body']):
            first, last = (text.count('\n', 0, place) for place in (match.start(), match.end()))
            body = [line.replace('\\$', '$') for line in lines[first + 1 : last]]
            lines[first : last + 1] = ['', *body, '']
    return '\n'.join(lines)


def _documents(text: str, name: str, script: shell.Script) -> Iterator[Setting]:
    """What a here-document writes into a JSON for DeepSpeed."""
    for called, (flag, pattern) in _OF_JSON.items():
        if match := pattern.search(text):
            variable = script.variable(match[1] or '')
            line = text.count('\n', 0, match.start()) + 1
            yield Setting(flag, variable.text if variable else match[2] or '', f'{name}:{line}', called)


def _words(words: Sequence[shell.Argument], name: str) -> Iterator[Setting]:
    for word in words:
        flag, _, value = word.text.strip().partition(' ')
        if _FLAG.fullmatch(flag):
            yield Setting(_bare(flag), value.strip() or True, f'{name}:{word.line}', flag)


def _settings(words: Sequence[shell.Argument], name: str) -> Iterator[Setting]:
    """Flags with the words behind them; a flag's values end at the next flag."""
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if match := OVERRIDE.fullmatch(word.text):
            yield Setting(match[1], match[2], f'{name}:{word.line}', match[1])
        if not _FLAG.fullmatch(word.text) or not word.text.startswith('--'):
            continue
        flag, sign, value = word.text.partition('=')
        values = [value] if sign else []
        while place < len(words) and not sign and not _NEXT.match(words[place].text):
            values.append(words[place].text)
            place += 1
        # What stands behind a flag that takes nothing is a script or its first argument.
        values = [one for one in values if not one.endswith('.py')] if len(values) > 1 else values
        values = [] if values and values[0].endswith('.py') else values
        yield Setting(
            _bare(flag), (values[0] if len(values) == 1 else values) if values else True, f'{name}:{word.line}', flag
        )


def _with_text(script: shell.Script, launch: Sequence[shell.Argument]) -> tuple[shell.Argument, ...]:
    """A command, behind that which runs it as a text: ``mpirun … bash -c "…"``."""
    place = next((place for place, one in enumerate(script.commands) if one == launch), 0)
    before = script.commands[place - 1] if place else ()
    return (*(before if before and _MPI.fullmatch(before[0].text) else ()), *launch)


def _processes(words: Sequence[shell.Argument], name: str) -> Iterator[Setting]:
    """How many processes ``mpirun`` starts: all of a run, or one launcher on each node."""
    start = next((place for place, word in enumerate(words) if _MPI.fullmatch(word.text)), None)
    if start is None:
        return
    number, before = {'np': 0, 'node': 0}, words[start + 1 :]
    end = next((place for place, word in enumerate(before) if _PROGRAM.fullmatch(word.text)), len(before))
    for word, value in pairwise(before[: end + 1]):
        kind = _MPI_COUNTS.get(word.text.lstrip('-'))
        if kind and (match := re.fullmatch(r'(?:ppr:)?(\d{1,6})(?::node)?', value.text)):
            number[kind] = int(match[1])
    is_launcher = any(re.search(r'torchrun|torch\.distributed|nproc.per.node', word.text) for word in before)
    line = f'{name}:{words[start].line}'
    if number['np'] and is_launcher:
        yield Setting('nnodes', str(number['np'] // max(1, number['node'])), line, 'mpirun -np')
    elif number['np']:
        yield Setting('worker-num', str(number['np']), line, 'mpirun -np')
        if number['node']:
            yield Setting('nproc-per-node', str(number['node']), line, 'mpirun -npernode')


def _bare(flag: str) -> str:
    """A flag without dashes, in the spelling of the tables."""
    return flag.lstrip('-').replace('_', '-')


def _printed(text: str, name: str) -> list[Setting]:
    """Arguments as Megatron-LM prints them when it starts: ``num_layers ......... 32``."""
    settings = []
    for match in _PRINTED.finditer(text):
        value = match[2].strip()
        if value not in ('None', 'False', '[]', ''):
            line = text.count('\n', 0, match.start(1)) + 1
            settings.append(Setting(_bare(match[1]), True if value == 'True' else value, f'{name}:{line}', match[1]))
    return settings


# Slurm: what #SBATCH lines and srun say of nodes, devices and tasks, and the variables that a job has


@dataclass(frozen=True, slots=True)
class Job:
    """What Slurm's options come to; 0 or nothing where they do not say.

    Arguments: ``nodes``; ``devices`` of a node; ``tasks`` of all nodes; ``tasks_per_node``; ``kind`` of device;
    ``options``, the last of each name, by it.
    """

    nodes: int = 0
    devices: int = 0
    tasks: int = 0
    tasks_per_node: int = 0
    kind: str = ''
    options: Mapping[str, Setting] = field(default_factory=dict)


def batch_options(text: str, name: str, values: Mapping[str, str]) -> tuple[Setting, ...]:
    """The options of ``#SBATCH`` lines, here-documents' too.

    Arguments: ``name`` of the file; ``values`` of variables, for which ``$NAME`` stands in a here-document.
    """
    options: list[Setting] = []
    for row in _SBATCH.finditer(text):
        line = text.count('\n', 0, row.start(1)) + 1
        expanded = re.sub(r'\$\{?(\w+)\}?', lambda match: values.get(match[1], match[0]), row[1].partition(' #')[0])
        words = [shell.Argument(word, line) for word in expanded.split()]
        while words:
            words = _without_option(words, name, '#SBATCH ', options)
    return tuple(options)


def srun_options(
    command: Sequence[shell.Argument], name: str = ''
) -> tuple[tuple[Setting, ...], tuple[shell.Argument, ...]]:
    """The options of ``srun`` in a command, and the words of the program that it runs; none and all without one."""
    start = next((place for place, word in enumerate(command) if word.text.rpartition('/')[2] == 'srun'), None)
    if start is None:
        return (), tuple(command)
    rest = list(command[start + 1 :])
    options: list[Setting] = []
    while rest and _OPTION.fullmatch(rest[0].text):
        rest = _without_option(rest, name, 'srun ', options)
    return tuple(options), tuple(rest)


def _without_option(
    words: list[shell.Argument], file: str, before: str, options: list[Setting]
) -> list[shell.Argument]:
    """The words behind the first one and its value, which is added to the options where it is one that counts."""
    word, rest = words[0], words[1:]
    match = _OPTION.fullmatch(word.text)
    if match is None:
        return rest
    flag = match['long'] or match['short']
    name, value = _LONG.get(flag, ''), match['value'] or match['rest']
    if not value and rest and not rest[0].text.startswith('-') and (name or not _PROGRAM.fullmatch(rest[0].text)):
        value, rest = rest[0].text, rest[1:]
    if name:
        spelling = f'--{flag}' if match['long'] else f'-{flag}'
        options.append(Setting(name, (value or '').strip('"\''), f'{file}:{word.line}', f'{before}{spelling}'))
    return rest


def job_of(options: Iterable[Setting]) -> Job:
    """What options come to; of two of one name the last counts."""
    last = {one.name: one for one in options}
    number = {name: _number(one.value) for name, one in last.items()}
    kind, devices = _devices(last)
    per_node = number.get('ntasks-per-node', 0)
    devices = devices or number.get('gpus-per-task', 0) * per_node
    nodes, tasks, gpus = number.get('nodes', 0), number.get('ntasks', 0), number.get('gpus', 0)
    # Slurm spreads all tasks, or all devices, over nodes of a stated share.
    if not nodes and tasks and per_node:
        nodes = -(-tasks // per_node)
    if not nodes and gpus and devices:
        nodes = -(-gpus // devices)
    if nodes and gpus and not devices and gpus % nodes == 0:
        devices = gpus // nodes
    if nodes and tasks and not per_node and tasks % nodes == 0:
        per_node = tasks // nodes
    tasks = tasks or nodes * (per_node or 1)
    return Job(nodes, devices, tasks, per_node, kind, last)


def _devices(last: Mapping[str, Setting]) -> tuple[str, int]:
    """The kind of device, and how many a node has."""
    kind, count = '', 0
    for name in ('gpus', 'gpus-per-task', 'gres', 'gpus-per-node'):
        if name not in last:
            continue
        value = last[name].value
        match = _GRES.search(value if name == 'gres' else f'gpu:{value}')
        if match:
            kind = match['kind'] or kind
            if name in ('gres', 'gpus-per-node'):
                # Slurm: a resource without a number is one of it.
                count = int(match['count'] or 1)
    named = accelerator(f'{kind} {last["constraint"].value if "constraint" in last else ""}')
    return named[0] if named else '', count


def _number(value: str) -> int:
    """The number of an option: of a range of nodes the largest, of ``h100:8`` the last; 0 where it has none."""
    match = re.fullmatch(r'(?:[A-Za-z][\w.]*:)?(?:\d+-)?(\d{1,7})', value)
    return int(match[1]) if match else 0


def environment(job: Job) -> dict[str, str]:
    """The variables that Slurm gives to a job of these options; none for what they do not say."""
    variables = {
        'SLURM_NNODES': job.nodes, 'SLURM_JOB_NUM_NODES': job.nodes, 'SLURM_GPUS_ON_NODE': job.devices,
        'SLURM_NTASKS': job.tasks, 'SLURM_NPROCS': job.tasks,
    }  # fmt: skip
    last = job.options
    if 'ntasks-per-node' in last:
        variables['SLURM_NTASKS_PER_NODE'] = job.tasks_per_node
    if 'gpus-per-node' in last:
        variables['SLURM_GPUS_PER_NODE'] = job.devices
    for name in ('gpus', 'gpus-per-task'):
        if name in last:
            variables[f'SLURM_{name.upper().replace("-", "_")}'] = _number(last[name].value)
    return {name: str(value) for name, value in variables.items() if value}


def settings_of_job(job: Job) -> Iterator[Setting]:
    """Nodes and devices of each, as launchers call them."""
    last = job.options
    # One task a node starts a launcher, which starts the rest; more are the processes themselves.
    are_processes = job.tasks_per_node > 1
    per_node = job.tasks_per_node if are_processes else job.devices
    of_tasks, of_devices = ('ntasks-per-node', 'ntasks'), ('gpus-per-node', 'gres', 'gpus-per-task', 'gpus')
    of_kind = [one for one in (*of_devices, 'constraint') if one in last and job.kind in last[one].value.lower()]
    rows = (
        ('nnodes', job.nodes, ('nodes', 'ntasks', 'gpus')),
        ('nproc-per-node', per_node, of_tasks if are_processes else of_devices),
        (ACCELERATOR, job.kind, of_kind),
    )
    used = set()
    for setting, value, by in rows:
        option = next((last[one] for one in by if one in last), None)
        if value and option is not None:
            used.add(option.name)
            yield replace(option, name=setting, value=str(value))
    yield from (replace(one, name=f'slurm-{one.name}') for one in last.values() if one.name not in used)
