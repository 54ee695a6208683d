"""The command line in a shell script, or in a saved list of arguments: the flags of launcher and trainer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from simpar.errors import Problem, ScheduleError
from simpar.importing import slurm
from simpar.importing.flags import Setting, Settings, Source
from simpar.importing.shell import Given, Script, read_script
from simpar.importing.shell_words import ShellError

_FLAG: Final = re.compile(r'--?[A-Za-z][A-Za-z0-9_.-]*(=.*)?', re.DOTALL)
_LAUNCHERS: Final = ('torch.distributed.run', 'torch.distributed.launch', 'torchrun')
_QUEUES: Final = 'CUDA_DEVICE_MAX_CONNECTIONS'
_LIST: Final = re.compile(r'(\s|#[^\n]*\n)*--[A-Za-z]')
"""Arguments alone, with no command before them."""
_PRINTED: Final = re.compile(r'^.*?([a-z][a-z0-9_]*) \.{2,} ?(.*)$', re.MULTILINE)


def settings_of(
    text: str, name: str, source: Source, given: Mapping[str, str]
) -> tuple[Settings, list[Setting], tuple[str, ...]]:
    """The settings of a script, those that it does not use, and what could not be followed.

    Arguments: ``given``, variables and flags of ``--set``. Raises ``ScheduleError``.
    """
    printed = _PRINTED.findall(text)
    if len(printed) >= 5:
        settings = _printed(text, name)
        return Settings([*settings, *_over(given, source, settings)], source.aliases), [], ()
    text = f'ARGS=({text}\n)\narguments "${{ARGS[@]}}"' if _LIST.match(text) else text
    script, job = _with_job(text, name, given)
    launch = _launch(script)
    if launch is None:
        what = 'no command with flags such as --num-layers was found'
        raise ScheduleError(
            Problem(name, what, 'name the script that starts the training, or a file with its arguments')
        )
    found = [*slurm.settings_of_job(job, name), *_settings(slurm.srun_options(launch)[1], name)]
    found += [*_trainer(launch, name), *_environment(script, name)]
    skipped = list(_words(script.skipped, name))
    skipped += [one for other in script.commands if other is not launch for one in _others(other, name)]
    return Settings([*found, *_over(given, source, found)], source.aliases), skipped, script.notes


def _over(given: Mapping[str, str], source: Source, settings: Sequence[Setting]) -> Iterator[Setting]:
    """Flags of ``--set``, which go over those of the file; other names are variables of it."""
    known = {one.name for one in settings}
    for key, value in given.items():
        name = _bare(key)
        if name in source.rows or name in source.aliases or name in known:
            yield Setting(name, value, f'--set {key}={value}')


def _with_job(text: str, name: str, given: Mapping[str, str]) -> tuple[Script, slurm.Job]:
    """The script as a job of Slurm runs it: its variables say what the options of ``#SBATCH`` and ``srun`` say."""
    script = _script(text, name, given, {})
    values = {name: told.text for name, told in script.variables.items()}
    launch = _launch(script)
    before: tuple[Given, ...] = ()
    if launch is not None:
        place = script.commands.index(launch)
        # Of srun bash -c "…" the text is a command of its own.
        before = script.commands[place - 1] if place and not slurm.srun_options(launch)[0] else launch
    job = slurm.job_of([*slurm.batch_options(text, {**values, **given}), *slurm.srun_options(before)[0]])
    environment = slurm.environment(job)
    return (_script(text, name, given, environment) if environment else script), job


def _script(text: str, name: str, given: Mapping[str, str], environment: Mapping[str, str]) -> Script:
    try:
        return read_script(text.replace('\0', ''), given, environment)
    except ShellError as error:
        raise ScheduleError(Problem(f'{name}:{error.line}', error.what, 'write it as bash reads it')) from None


def _launch(script: Script) -> tuple[Given, ...] | None:
    """The command with the most flags."""
    flagged = [command for command in script.commands if any(one.text.startswith('--') for one in command)]
    return max(flagged, key=lambda command: sum(one.text.startswith('--') for one in command), default=None)


def _others(command: Sequence[Given], name: str) -> Iterator[Setting]:
    """Flags that stand alone, as behind a comment that ends the command before."""
    if command and command[0].text.startswith('--'):
        yield from _settings(command, name)


def _words(words: Sequence[Given], name: str) -> Iterator[Setting]:
    for word in words:
        flag, _, value = word.text.strip().partition(' ')
        if _FLAG.fullmatch(flag):
            yield Setting(_bare(flag), value.strip() or True, f'{name}:{word.line}', flag)


def _settings(words: Sequence[Given], name: str) -> Iterator[Setting]:
    """Flags with the words behind them; a flag's values end at the next flag."""
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not _FLAG.fullmatch(word.text) or not word.text.startswith('--'):
            continue
        flag, sign, value = word.text.partition('=')
        values = [value] if sign else []
        while place < len(words) and not sign and not _ends(words[place].text):
            values.append(words[place].text)
            place += 1
        # What stands behind a flag that takes nothing is a script or its first argument.
        values = [one for one in values if not one.endswith('.py')] if len(values) > 1 else values
        values = [] if values and values[0].endswith('.py') else values
        yield Setting(
            _bare(flag), (values[0] if len(values) == 1 else values) if values else True, f'{name}:{word.line}', flag
        )


def _trainer(words: Sequence[Given], name: str) -> Iterator[Setting]:
    """The program that gets the flags."""
    for word in words:
        if word.text.endswith('.py'):
            yield Setting('trainer', word.text.rpartition('/')[2], f'{name}:{word.line}', 'the program')
            return


def _environment(script: Script, name: str) -> Iterator[Setting]:
    """The one variable of the environment that changes the time of a step."""
    told = script.variables.get(_QUEUES)
    if told:
        yield Setting(_bare(_QUEUES.lower()), told.text, f'{name}:{told.line}', _QUEUES)


def _ends(text: str) -> bool:
    return bool(re.match(r'--?[A-Za-z]', text))


def _bare(flag: str) -> str:
    """A flag without dashes, in the spelling of the tables."""
    return flag.lstrip('-').replace('_', '-')


def _printed(text: str, name: str) -> list[Setting]:
    """Arguments as Megatron-LM prints them when it starts: ``num_layers ......... 32``."""
    found = []
    for match in _PRINTED.finditer(text):
        value = match[2].strip()
        if value not in ('None', 'False', '[]', ''):
            line = text.count('\n', 0, match.start(1)) + 1
            found.append(Setting(_bare(match[1]), True if value == 'True' else value, f'{name}:{line}', match[1]))
    return found
