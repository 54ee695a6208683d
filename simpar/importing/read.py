"""A file of another launcher, by what it is: the schedule that it comes to."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Final

from simpar import errors, files, profiles
from simpar.document.tree import MAX_DEPTH, Tree, Unreadable, parse
from simpar.importing import accelerate, deepspeed, formats, mapping, megatron, mindspeed, mindspore
from simpar.importing.command_line import OVERRIDE, settings_of
from simpar.importing.settings import (
    ACCELERATOR,
    DEVICE_MEMORY,
    NODE_SIZE,
    SPEED_UP,
    Setting,
    Settings,
    Source,
    accelerator,
)
from simpar.importing.torchtitan import TORCHTITAN, TORCHTITAN_HINTS

MOST_BYTES: Final = 2**20
MOST_SETTINGS: Final = 10_000
_PYTHON: Final = re.compile(
    r'(\s*("""|\'\'\').*?\2|\s*#[^\n]*\n|\s)*(from [\w.]+ import |import [\w.]+|def \w+\(|class \w+)', re.DOTALL
)
_IS_PYTHON: Final = (
    'this is Python, which is not run',
    'name what starts it; or write its model as a network: (MindSpore), take it by --module (torch), or simpar init',
)
_PRESET: Final = re.compile(r'preset for (\d{1,6})\s*(H100|A100|H200|B200)?\w*\s*GPUs?', re.IGNORECASE)
_SECTION: Final = re.compile(r'\s*\[+\s*([^\]]+?)\s*\]+')
_KEY: Final = re.compile(r'\s*([A-Za-z0-9_."-]+)\s*=')


def imported(
    path: Path, *, given: Mapping[str, str], profile: str = '', model: str = '', arguments: Sequence[str] = ()
) -> mapping.Import:
    """What a file says, as a schedule.

    Arguments: ``given``, what ``--set`` says of the file's variables and settings; ``profile`` of the cluster;
    ``model``, path of a config.json in the place of the file's model; ``arguments`` of a script.
    Raises ``ScheduleError``.
    """
    return imported_text(_text(path), path, given=given, profile=profile, model=model, arguments=arguments)


def imported_text(
    text: str,
    path: Path,
    *,
    given: Mapping[str, str],
    profile: str = '',
    model: str = '',
    arguments: Sequence[str] = (),
) -> mapping.Import:
    """What the text of a file says. Arguments and errors as of ``imported``; ``path``, its name."""
    named = (text, path, given, profile, model)
    if path.suffix == '.py' or _PYTHON.match(text):
        if mindspore.HINT.search(text):
            return mindspore.imported_script(text, path, given, profile)
        raise errors.ScheduleError(errors.Problem(f'{path}', *_IS_PYTHON))
    if path.suffix == '.toml':
        return _toml(*named)
    if path.suffix in ('.yaml', '.yml', '.json'):
        return _tree(*named)
    return _script(*named, arguments)


def _script(
    text: str, path: Path, given: Mapping[str, str], profile: str, model: str, arguments: Sequence[str] = ()
) -> mapping.Import:
    if TORCHTITAN_HINTS.search(text):
        return _overrides(text, path, given, profile, model, arguments)
    source = deepspeed.MEGATRON_DEEPSPEED if deepspeed.MEGATRON_DEEPSPEED_HINTS.search(text) else megatron.MEGATRON
    source = mindspeed.MINDSPEED if mindspeed.MINDSPEED_HINTS.search(text) else source
    settings, skipped, notes = settings_of(text, str(path), source, given, arguments, partial(_sourced, path))
    if source is deepspeed.MEGATRON_DEEPSPEED and 'deepspeed-config' in settings:
        named = _found(Path(settings.text('deepspeed-config')), path)
        of_file = settings_of_yaml(_text(named).replace('\t', ' '), str(named)) if named else []
        settings = Settings([*deepspeed.in_flags(of_file), *settings.every], source.table)
    # Overrides of hydra, as NeMo's programs take them.
    if any(OVERRIDE.fullmatch(f'{one.name}=') for one in settings.every):
        form = next(form for form in formats.formats() if form.launcher == 'NeMo')
        source, found = form.source, settings.every
        name = settings.text('config-name').removesuffix('.yaml')
        file = _found(Path(settings.text('config-path')) / f'{name}.yaml', path) if name else None
        found = [*(settings_of_yaml(_text(file), str(file)) if file else ()), *found]
        notes += () if file or not name else (f'{name}.yaml is not here: what it says is as Megatron-LM has it',)
        settings = Settings(formats.in_words(found, form, given), source.table)
        skipped += formats.switched_off(found, form)
    made = _made(source, settings, path, profile, model, skipped)
    return replace(made, notes=notes)


def _overrides(
    text: str, path: Path, given: Mapping[str, str], profile: str, model: str, arguments: Sequence[str]
) -> mapping.Import:
    """Settings of torchtitan that a command line has, over those of the TOML that it names."""
    settings, skipped, notes = settings_of(text, str(path), TORCHTITAN, given, arguments, partial(_sourced, path))
    words = [replace(one, name=one.name.replace('-', '_') if '.' in one.name else one.name) for one in settings.every]
    named = next((str(one.value) for one in words if one.name == 'job.config_file'), '')
    file = _found(Path(named), path) if named else None
    found = settings_of_toml(_text(file), str(file)) if file else []
    of_launcher = {one.name: one for one in words if one.name in ('nnodes', 'nproc-per-node')}
    sizes = [_read(one.value) for one in of_launcher.values()]
    if 'nproc-per-node' in of_launcher and all(sizes):
        by = of_launcher['nproc-per-node']
        found.append(Setting('devices', str(prod(sizes)), by.where, by.called))
    found += [one for one in words if one.name not in of_launcher]
    made = _made(TORCHTITAN, Settings(found, TORCHTITAN.table), path, profile, model, skipped)
    return replace(made, notes=notes)


def _read(value: Any) -> int:
    return int(value) if str(value).isdecimal() else 0


def _toml(text: str, path: Path, given: Mapping[str, str], profile: str, model: str) -> mapping.Import:
    found = settings_of_toml(text, str(path)) + list(_devices(text, str(path)))
    return _made(TORCHTITAN, Settings([*found, *_given(given)], TORCHTITAN.table), path, profile, model)


def _tree(text: str, path: Path, given: Mapping[str, str], profile: str, model: str) -> mapping.Import:
    """A file of YAML or JSON, by what stands in it."""
    # Editors indent JSON with tabs, which YAML does not take.
    found = settings_of_yaml(text.replace('\t', ' ') if path.suffix == '.json' else text, str(path))
    form = formats.format_of(found, str(path))
    found = accelerate.agreed(form.source, found, list(_beside(found, path)))
    found += [*_speed_up(found, path), *_bases(found, path)]
    words = formats.in_words(found, form, given)
    words += list(_longest(model)) if model else []
    settings = Settings([*words, *_given(given)], form.source.table)
    made = _made(form.source, settings, path, profile, model, formats.switched_off(found, form))
    return replace(made, kind=form.launcher)


def _beside(settings: Iterable[Setting], path: Path) -> Iterator[Setting]:
    """What the DeepSpeed file says that a configuration names, where it can be read."""
    for one in settings:
        if one.name in ('deepspeed', 'deepspeed_config.deepspeed_config_file') and isinstance(one.value, str):
            file = _found(Path(one.value), path)
            yield from settings_of_yaml(_text(file).replace('\t', ' '), str(file)) if file else ()


def _bases(settings: Iterable[Setting], path: Path) -> Iterator[Setting]:
    """What the model of Primus says that a configuration names, and the files that this is built on."""
    named = [one for one in settings if re.fullmatch(r'modules\.\w+\.model', one.name) and isinstance(one.value, str)]
    # Its own overrides count more, and so stand behind.
    prefix = named[0].name.removesuffix('model') + 'overrides.' if named else ''
    over = {one.name for one in settings}
    waiting = [str(one.value) for one in named]
    while waiting and len(over) < MOST_SETTINGS:
        name = re.sub(r'\$\{\w+:([^{}]*)\}', r'\1', waiting.pop())
        file = _found(Path(name), path)
        if file is None:
            yield Setting(f'{prefix}missing_base', name, str(path), name)
        rows = settings_of_yaml(_text(file), str(file)) if file else []
        for row in rows:
            if row.name in ('bases', 'extends'):
                waiting += [str(base) for base in row.value] if isinstance(row.value, list) else []
            elif f'{prefix}{row.name}' not in over:
                over.add(f'{prefix}{row.name}')
                yield replace(row, name=f'{prefix}{row.name}', written=row.name)


def _found(named: Path, path: Path) -> Path | None:
    """A file that another one names: as it is called, beside that one, or where a checkout of Primus has its models."""
    models = (folder / 'primus/configs/models/megatron' / named.name for folder in path.resolve().parents)
    places = (named, path.parent / named, path.parent / named.name, *models)
    # Not Path.is_file, which raises for a name that is too long.
    return next((place for place in places if os.path.isfile(place)), None)


def _sourced(path: Path, named: str) -> str:
    """The text of a script that another one sources, by its name where its folder is not known; nothing without it."""
    file = _found(Path(named.rpartition('/')[2] if '\0' in named else named), path)
    # Environments of shells and toolkits say nothing of a training.
    return _text(file) if file is not None and file.suffix in ('.sh', '.env', '.conf', '.bash') and file != path else ''


def _longest(model: str) -> Iterator[Setting]:
    """The longest sequence, the width and the type of a config, which a DeepSpeed file does not say."""
    config = settings_of_yaml(_text(Path(model)), model)
    for one in config:
        name = {
            'max_position_embeddings': 'longest',
            'n_positions': 'longest',
            'hidden_size': 'hidden',
            'n_embd': 'hidden',
            'model_type': 'type',
        }
        if one.name in name:
            yield replace(one, name=f'model-{name[one.name]}', written=f'{one.name} of the model')


def _speed_up(config: Iterable[Setting], path: Path) -> Iterator[Setting]:
    """What the file of overlap passes says that a configuration names, where it can be read.

    Arguments: ``path`` of the configuration, beside which the file is looked for, too.
    """
    for one in config:
        if one.name.endswith('parallel_speed_up_json_path') and isinstance(one.value, str):
            file = _found(Path(one.value), path)
            if file is not None:
                settings = settings_of_yaml(_text(file).replace('\t', ' '), str(file))
                yield from (replace(row, name=f'{SPEED_UP}.{row.name}', written=row.name) for row in settings)


def _devices(text: str, name: str) -> Iterator[Setting]:
    """Devices that a comment names, as torchtitan's files do: ``preset for 128 H100 GPUs``."""
    match = _PRESET.search(text)
    if match:
        yield Setting(
            'devices', match[1], f'{name}:{text.count(chr(10), 0, match.start()) + 1}', 'the comment on devices'
        )
        if match[2]:
            yield Setting(ACCELERATOR, match[2].lower(), f'{name}:{text.count(chr(10), 0, match.start()) + 1}')


def _given(given: Mapping[str, str]) -> list[Setting]:
    return [Setting(name, value, f'--set {name}={value}') for name, value in given.items()]


def _made(
    source: Source, settings: Settings, path: Path, profile: str, model: str, skipped: Iterable[Setting] = ()
) -> mapping.Import:
    words = accelerator(settings.text(ACCELERATOR)) or ('', '')
    of_file = accelerator(' '.join(path.parts[-2:])) or ('', '')
    usual = source.nodes.get(settings.number('nproc-per-node'), source.profile)
    called = next((one for one in re.split(r'[^a-z0-9]+', path.stem.lower()) if one in source.names), '')
    name = profile or words[1] or (of_file[1] if not words[0] else '') or source.names.get(called) or usual
    cluster = profiles.profile_of_flag(name, '--cluster')
    memory = str(round(cluster.device.memory.size.value))
    beside = [Setting(NODE_SIZE, str(cluster.devices), 'profile'), Setting(DEVICE_MEMORY, memory, 'profile')]
    beside += [Setting('model-config', model, '--model', '--model')] if model else []
    settings = Settings([*settings.every, *beside], source.table)
    unnamed = '' if profile or words[1] else 'the file names no accelerator'
    if unnamed and called and not (words[0] or of_file[0]):
        unnamed = f'the name of the file says {called.upper()}'
    if unnamed and (word := words[0] or of_file[0]):
        is_known = not words[0] and bool(of_file[1])
        unnamed = f'the path of the file says {word}' if is_known else f'the file names {word}, and no profile is of it'
    return mapping.mapped(source, settings, profile=cluster, name=name, skipped=skipped, model=model, unnamed=unnamed)


def _text(path: Path) -> str:
    try:
        # Lines of Windows end as all others do.
        return files.read_regular(path, MOST_BYTES).decode('utf-8-sig').replace('\r\n', '\n')
    except UnicodeDecodeError:
        raise errors.ScheduleError(errors.Problem(str(path), 'not text in UTF-8', 'save it as UTF-8')) from None
    except (OSError, ValueError) as error:
        why = getattr(error, 'strerror', None) or error
        raise errors.ScheduleError(errors.Problem(str(path), f'cannot be read: {why}', 'check the path')) from None


_DEEP: Final = re.compile(rf"""(?<![\w"'.-])(?:[\w"'-]+\s*\.\s*){{{MAX_DEPTH}}}""")


# files of TOML, JSON and YAML: every value by its dotted name, with its line


def settings_of_toml(text: str, name: str) -> list[Setting]:
    """The settings of a TOML file. Raises ``ScheduleError``."""
    # Python 3.10 has it as a package of its own.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    # Dots nest as brackets do, and each level of the parser keeps the whole name.
    if found := _DEEP.search(text):
        where = f'{name}:{text.count(chr(10), 0, found.start()) + 1}'
        raise errors.ScheduleError(errors.Problem(where, f'more than {MAX_DEPTH} levels', 'write it flatter'))
    try:
        root = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise errors.ScheduleError(errors.Problem(name, f'not TOML: {error}', 'check the file')) from None
    # Brackets without end, or an integer of thousands of digits.
    except (ValueError, RecursionError):
        what = 'not TOML that can be read: it nests too deep, or a number is too long'
        raise errors.ScheduleError(errors.Problem(name, what, 'write fewer levels, and at most 18 digits')) from None
    lines = _lines(text)
    return [Setting(key, value, f'{name}:{lines.get(key, 1)}') for key, value in _flat(root)]


def settings_of_yaml(text: str, name: str) -> list[Setting]:
    """The settings of a YAML or JSON file. Raises ``ScheduleError``."""
    try:
        tree = parse(text, name)
    except Unreadable as error:
        where = f'{name}:{error.line}' if error.line else name
        raise errors.ScheduleError(errors.Problem(where, *error.fault)) from None
    if not isinstance(tree.root, dict):
        raise errors.ScheduleError(errors.Problem(name, 'not a mapping', 'name the file that the launcher reads'))
    return [Setting(key, value, _where(tree, key)) for key, value in _flat(tree.root)]


def _where(tree: Tree, key: str) -> str:
    at: tuple[str | int, ...] = ()
    for part in key.split('.'):
        at = (*at, int(part) if part.isdigit() and isinstance(tree.get(at), list) else part)
    return tree.where(at)


def _flat(node: Any, at: str = '') -> Iterator[tuple[str, Any]]:
    """Values by dotted name; a list of plain values is one value."""
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _flat(value, f'{at}.{key}' if at else str(key))
    elif isinstance(node, list) and any(isinstance(one, (dict, list)) for one in node):
        for place, value in enumerate(node):
            yield from _flat(value, f'{at}.{place}')
    else:
        yield at, None if node == {} else node


def _lines(text: str) -> dict[str, int]:
    """The line of each key of a TOML file, as far as a line begins with it."""
    section = ''
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if match := _KEY.match(line):
            key = match[1].replace('"', '')
            found.setdefault(f'{section}.{key}' if section else key, number)
        elif match := _SECTION.match(line):
            section = match[1].replace('"', '').replace(' ', '')
    return found
