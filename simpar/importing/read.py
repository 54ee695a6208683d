"""A file of another launcher, by what it is: the schedule that it comes to.

``tables/formats.csv`` has a row for each launcher whose files are YAML or JSON: settings that its files have, sections
that its tables leave out, and whether their words are flags of Megatron-LM. ``tables/other_launchers.csv`` has those
that are known and not read.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

from simpar import errors, files, profiles
from simpar.document.tree import MAX_DEPTH, Tree, tree_of
from simpar.importing import accelerate, command_line, deepspeed, mapping, megatron, mindspeed, mindspore, settings
from simpar.importing.mindformers import MINDFORMERS
from simpar.importing.settings import ACCELERATOR, Setting, Settings, Source, fits
from simpar.importing.torchtitan import (
    REGISTRY,
    REGISTRY_HINT,
    RUN_OF,
    TORCHTITAN,
    TORCHTITAN_HINTS,
    settings_of_registry,
)

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
_OF_MODEL: Final = {
    'max_position_embeddings': 'longest', 'n_positions': 'longest', 'hidden_size': 'hidden', 'n_embd': 'hidden',
    'model_type': 'type',
}  # fmt: skip
"""Keys of a config that a DeepSpeed file does not say: the longest sequence, the width and the type."""


def imported(
    path: Path,
    *,
    given: Mapping[str, str],
    profile: str = '',
    model: str = '',
    arguments: Sequence[str] = (),
    text: str | None = None,
) -> mapping.Import:
    """What a file says, as a schedule.

    Arguments: ``given``, what ``--set`` says of the file's variables and settings; ``profile`` of the cluster;
    ``model``, path of a config.json in the place of the file's model; ``arguments`` of a script; ``text``, in the place
    of the file's. Raises ``ScheduleError``.
    """
    file = _File(_text(path) if text is None else text, path, given, profile, model, arguments)
    if path.suffix == '.py' or _PYTHON.match(file.text):
        if mindspore.HINT.search(file.text):
            return mindspore.imported_script(file.text, path, given, profile)
        if REGISTRY_HINT.search(file.text):
            return file.registry()
        raise errors.refusal(path, *_IS_PYTHON)
    if path.suffix == '.toml':
        return file.toml()
    return file.tree() if path.suffix in ('.yaml', '.yml', '.json') else file.script()


@dataclass(frozen=True, slots=True)
class _File:
    """A file, and what is said beside it. Arguments as of ``imported``."""

    text: str
    path: Path
    given: Mapping[str, str]
    profile: str
    model: str
    arguments: Sequence[str]

    def flags(self, source: Source) -> tuple[Settings, list[Setting], tuple[str, ...]]:
        """The settings of a script, those that it does not use, and what could not be followed."""
        sourced = partial(_sourced, self.path)
        return command_line.settings_of(self.text, str(self.path), source, self.given, self.arguments, sourced)

    def script(self) -> mapping.Import:
        if TORCHTITAN_HINTS.search(self.text):
            return self.overrides()
        is_deepspeed = deepspeed.MEGATRON_DEEPSPEED_HINTS.search(self.text)
        source = deepspeed.MEGATRON_DEEPSPEED if is_deepspeed else megatron.MEGATRON
        source = mindspeed.MINDSPEED if mindspeed.MINDSPEED_HINTS.search(self.text) else source
        all_settings, skipped, notes = self.flags(source)
        if source is deepspeed.MEGATRON_DEEPSPEED and 'deepspeed-config' in all_settings:
            of_file = _settings_of(_file_beside(Path(all_settings.text('deepspeed-config')), self.path))
            all_settings = Settings([*deepspeed.in_flags(of_file), *all_settings.every], source.table)
        # Overrides of hydra, as NeMo's programs take them.
        if any(command_line.OVERRIDE.fullmatch(f'{one.name}=') for one in all_settings.every):
            form = next(form for form in formats() if form.launcher == 'NeMo')
            source, every = form.source, all_settings.every
            name = all_settings.text('config-name').removesuffix('.yaml')
            file = _file_beside(Path(all_settings.text('config-path')) / f'{name}.yaml', self.path) if name else None
            every = [*_settings_of(file, has_tabs=False), *every]
            notes += () if file or not name else (f'{name}.yaml is not here: what it says is as Megatron-LM has it',)
            all_settings = Settings(form.in_words(every, self.given), source.table)
            skipped += form.switched_off(every)
        return replace(self.made(source, all_settings, skipped), notes=notes)

    def overrides(self) -> mapping.Import:
        """Settings of torchtitan that a command line has, over those of the registry or the TOML that it names."""
        flags, skipped, notes = self.flags(TORCHTITAN)
        # By the name that the file has, over which the command line goes.
        words = [
            replace(one, name=one.name.replace('-', '_'), written='') if '.' in one.name else one for one in flags.every
        ]
        named = next((str(one.value) for one in words if one.name == 'job.config_file'), '')
        file = _file_beside(Path(named), self.path) if named else None
        all_settings = settings_of_toml(_text(file), str(file)) if file else []
        names = {'nnodes': '', 'nproc-per-node': 'NGPU', 'module': 'MODULE', 'config': 'CONFIG'}
        of_launcher = {one.name: one for one in words if one.name in names}
        for number, line in enumerate(self.text.splitlines(), 1):
            for name, variable in names.items():
                if match := variable and re.search(RUN_OF % variable, line):
                    of_launcher.setdefault(name, Setting(name, match[1], f'{self.path}:{number}', variable))
        if 'config' in of_launcher:
            all_settings += self.of_registry(of_launcher)
        by = of_launcher.get('nproc-per-node')
        counts = [one for one in (by, of_launcher.get('nnodes')) if one is not None]
        sizes = [int(one.value) if str(one.value).isdecimal() else 0 for one in counts]
        if by is not None and all(sizes):
            all_settings.append(Setting('devices', str(prod(sizes)), by.where, by.called))
        all_settings += [one for one in words if one.name not in of_launcher]
        return replace(self.made(TORCHTITAN, Settings(all_settings, TORCHTITAN.table), skipped), notes=notes)

    def of_registry(self, of_launcher: Mapping[str, Setting]) -> list[Setting]:
        """What the registry says that ``--module`` and ``--config`` name, in a checkout around the script."""
        config = of_launcher['config']
        # An empty "$@" may stand behind it.
        name, module = (
            str(one.value[0] if isinstance(one.value, list) else one.value)
            for one in (config, of_launcher.get('module', Setting('module', 'llama3', config.where)))
        )
        place = Path('torchtitan/models') / module / REGISTRY
        file = next((folder / place for folder in self.path.resolve().parents if files.is_file(folder / place)), None)
        if file is None:
            what = f'--config {name}: {place} is not here, which says what it is'
            instead = f'simpar import {place} --set config={name}, with --set for each further setting'
            raise errors.refusal(config.where, what, instead)
        return settings_of_registry(_text(file), file, {'config': name})

    def registry(self) -> mapping.Import:
        """A configuration of torchtitan's, by the name of its function."""
        of_registry = settings_of_registry(self.text, self.path, self.given)
        said = [one for one in self.said() if one.name != 'config']
        return self.made(TORCHTITAN, Settings([*of_registry, *said], TORCHTITAN.table))

    def toml(self) -> mapping.Import:
        name = str(self.path)
        all_settings = [*settings_of_toml(self.text, name), *_devices(self.text, name), *self.said()]
        return self.made(TORCHTITAN, Settings(all_settings, TORCHTITAN.table))

    def tree(self) -> mapping.Import:
        """A file of YAML or JSON, by what stands in it."""
        # Editors indent JSON with tabs, which YAML does not take.
        text = self.text.replace('\t', ' ') if self.path.suffix == '.json' else self.text
        all_settings = settings_of_yaml(text, str(self.path))
        form = format_of(all_settings, str(self.path))
        all_settings = accelerate.agreed(form.source, all_settings, list(_beside(all_settings, self.path)))
        all_settings += [*_speed_up(all_settings, self.path), *_bases(all_settings, self.path)]
        of_model = settings_of_yaml(_text(Path(self.model)), self.model) if self.model else []
        sizes = [
            replace(one, name=f'model-{_OF_MODEL[one.name]}', written=f'{one.name} of the model')
            for one in of_model
            if one.name in _OF_MODEL
        ]
        words = [*form.in_words(all_settings, self.given), *sizes, *self.said()]
        made = self.made(form.source, Settings(words, form.source.table), form.switched_off(all_settings))
        return replace(made, kind=form.launcher)

    def said(self) -> list[Setting]:
        """What ``--set`` says, but for variables of the file."""
        variables = {match['name'] for one in (_NAMED, _DEFAULT) for match in one.finditer(self.text)}
        return [
            Setting(name, value, f'--set {name}={value}') for name, value in self.given.items() if name not in variables
        ]

    def made(self, source: Source, said: Settings, skipped: Iterable[Setting] = ()) -> mapping.Import:
        """The schedule of settings, on the cluster that they or the path name."""
        words = settings.accelerator(said.text(ACCELERATOR)) or ('', '')
        of_file = settings.accelerator(' '.join(self.path.parts[-2:])) or ('', '')
        usual = source.nodes.get(said.number('nproc-per-node'), source.profile)
        called = next((one for one in re.split(r'[^a-z0-9]+', self.path.stem.lower()) if one in source.names), '')
        of_path = (of_file[1] if not words[0] else '') or source.names.get(called)
        name = self.profile or words[1] or of_path or usual
        cluster = profiles.profile_of_flag(name, '--cluster')
        memory = str(round(cluster.device.memory.size.value))
        more = [Setting(settings.NODE_SIZE, str(cluster.devices), 'profile')]
        more += [Setting(settings.DEVICE_MEMORY, memory, 'profile')]
        more += [Setting('model-config', self.model, '--model', '--model')] if self.model else []
        unnamed = '' if self.profile or words[1] else 'the file names no accelerator'
        if unnamed and called and not (words[0] or of_file[0]):
            unnamed = f'the name of the file says {called.upper()}'
        if unnamed and (word := words[0] or of_file[0]):
            is_known = not words[0] and bool(of_file[1])
            unknown = f'the file names {word}, and no profile is of it'
            unnamed = f'the path of the file says {word}' if is_known else unknown
        every = Settings([*said.every, *more], source.table)
        return mapping.mapped(
            source, every, profile=cluster, name=name, skipped=skipped, model=self.model, unnamed=unnamed
        )


# what files name


def _beside(said: Iterable[Setting], path: Path) -> Iterator[Setting]:
    """What the DeepSpeed file says that a configuration names, where it can be read."""
    for one in said:
        if one.name in ('deepspeed', 'deepspeed_config.deepspeed_config_file') and isinstance(one.value, str):
            yield from _settings_of(_file_beside(Path(one.value), path))


def _bases(said: Iterable[Setting], path: Path) -> Iterator[Setting]:
    """What the model of Primus says that a configuration names, and the files that this is built on."""
    named = [one for one in said if re.fullmatch(r'modules\.\w+\.model', one.name) and isinstance(one.value, str)]
    # Its own overrides count more, and so stand behind.
    prefix = named[0].name.removesuffix('model') + 'overrides.' if named else ''
    over = {one.name for one in said}
    waiting = [str(one.value) for one in named]
    while waiting and len(over) < MOST_SETTINGS:
        name = re.sub(r'\$\{\w+:([^{}]*)\}', r'\1', waiting.pop())
        file = _file_beside(Path(name), path)
        if file is None:
            yield Setting(f'{prefix}missing_base', name, str(path), name)
        for row in _settings_of(file, has_tabs=False):
            if row.name in ('bases', 'extends'):
                waiting += [str(base) for base in row.value] if isinstance(row.value, list) else []
            elif f'{prefix}{row.name}' not in over:
                over.add(f'{prefix}{row.name}')
                yield replace(row, name=f'{prefix}{row.name}', written=row.name)


def _file_beside(named: Path, path: Path) -> Path | None:
    """A file that another one names: as it is called, beside that one, or where a checkout of Primus has its models."""
    models = (folder / 'primus/configs/models/megatron' / named.name for folder in path.resolve().parents)
    places = (named, path.parent / named, path.parent / named.name, *models)
    return next((place for place in places if files.is_file(place)), None)


def _settings_of(file: Path | None, *, has_tabs: bool = True) -> list[Setting]:
    """The settings of a file that another one names; none where it is not here. Tabs are those of JSON."""
    text = _text(file) if file else ''
    return settings_of_yaml(text.replace('\t', ' ') if has_tabs else text, str(file)) if file else []


def _sourced(path: Path, named: str) -> str:
    """The text of a script that another one sources, by its name where its folder is not known; nothing without it."""
    file = _file_beside(Path(named.rpartition('/')[2] if '\0' in named else named), path)
    # Environments of shells and toolkits say nothing of a training.
    return _text(file) if file is not None and file.suffix in ('.sh', '.env', '.conf', '.bash') and file != path else ''


def _speed_up(config: Iterable[Setting], path: Path) -> Iterator[Setting]:
    """What the file of overlap passes says that a configuration names, where it can be read.

    Arguments: ``path`` of the configuration, beside which the file is looked for, too.
    """
    for one in config:
        if one.name.endswith('parallel_speed_up_json_path') and isinstance(one.value, str):
            rows = _settings_of(_file_beside(Path(one.value), path))
            yield from (replace(row, name=f'{settings.SPEED_UP}.{row.name}', written=row.name) for row in rows)


def _devices(text: str, name: str) -> Iterator[Setting]:
    """Devices that a comment names, as torchtitan's files do: ``preset for 128 H100 GPUs``."""
    if match := _PRESET.search(text):
        where = f'{name}:{text.count(chr(10), 0, match.start()) + 1}'
        yield Setting('devices', match[1], where, 'the comment on devices')
        if match[2]:
            yield Setting(ACCELERATOR, match[2].lower(), where)


def _text(path: Path) -> str:
    try:
        # Lines of Windows end as all others do.
        return files.read_regular(path, MOST_BYTES).decode('utf-8-sig').replace('\r\n', '\n')
    except UnicodeDecodeError:
        raise errors.refusal(path, 'not text in UTF-8', 'save it as UTF-8') from None
    except (OSError, ValueError) as error:
        why = getattr(error, 'strerror', None) or error
        raise errors.refusal(path, f'cannot be read: {why}', 'check the path') from None


# files of YAML and JSON, by what stands in them: whose they are, and their settings in the words of a table

SOURCES: Final[Mapping[str, Source]] = {
    'megatron': megatron.MEGATRON, 'nemo': megatron.NEMO, 'gpt_neox': deepspeed.GPT_NEOX, 'mindformers': MINDFORMERS,
    'deepspeed': deepspeed.DEEPSPEED, 'torchtitan': TORCHTITAN, 'accelerate': accelerate.ACCELERATE,
    'llama_factory': accelerate.LLAMA_FACTORY, 'arguments': replace(megatron.NEMO, rules=megatron.MEGATRON.rules),
}  # fmt: skip
"""The rules of each table that a row of formats names."""
_DEFAULT: Final = re.compile(r'\$\{(?P<name>\w+):(?P<default>[^{}]*)\}')
"""A variable of the environment and what stands for it: ``${PRIMUS_MBS:2}``."""
_NAMED: Final = re.compile(r'\$\{\.?(?P<name>[\w.]+)\}')
"""Another setting of the file: ``${model.encoder_seq_length}``."""
_PRODUCT: Final = re.compile(r'\$\{multiply:\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\}')


class Format(NamedTuple):
    """A launcher's files.

    Arguments: ``launcher``, its name; ``source``, how its settings are read; ``has``, patterns of settings of which one
    stands in each of its files, and ``without``, of which none does; ``prefixes``, sections that its table leaves out;
    ``dashes``, whether its words are flags of Megatron-LM with ``_`` for ``-``; ``defaults``, the table of what files
    have that it is built on, with the commit of each.
    """

    launcher: str
    source: Source
    has: list[str]
    without: list[str]
    prefixes: list[str]
    dashes: bool
    defaults: str

    def in_words(self, said: Sequence[Setting], variables: Mapping[str, str]) -> list[Setting]:
        """Settings in the words of the launcher's table.

        Arguments: ``variables``, values of variables. What is off is as good as absent for flags of Megatron-LM, and is
        left out; `switched_off` has it.
        """
        values = {one.name: one.value for one in said}
        all_settings = [replace(one, value=_filled(one.value, values, variables)) for one in said]
        if not self.dashes:
            return all_settings
        flags = list(self._flags(all_settings))
        names = {one.name for one in flags}
        built_on = [Setting(row['setting'], row['value'], row['source'], f'{self.launcher}: {row["setting"]}')
                    for row in (_rows(self.defaults) if self.defaults else ())
                    if row['setting'] not in names]  # fmt: skip
        return [*built_on, *(one for one in flags if not self._is_off(one))]

    def switched_off(self, said: Sequence[Setting]) -> list[Setting]:
        """What a file of flags has and is off."""
        return [one for one in self._flags(said) if self._is_off(one)] if self.dashes else []

    def _flags(self, said: Sequence[Setting]) -> Iterator[Setting]:
        for one in said:
            prefix = next((prefix for prefix in self.prefixes if one.name.startswith(prefix)), '')
            yield replace(one, name=one.name[len(prefix) :].replace('_', '-'), written=one.written or one.name)

    def _is_off(self, one: Setting) -> bool:
        """Whether a flag is off: no value, or false where no alias of the table reads that."""
        if f'{one.name}={str(one.value).lower()}' in self.source.table.aliases:
            return False
        return one.value is None or one.value is False or one.value == ''


def _rows(name: str) -> list[dict[str, str]]:
    return files.read_csv(settings.FOLDER / f'{name}.csv')


def formats() -> list[Format]:
    """All launchers whose files of YAML or JSON are read, in the order in which they are recognised."""
    return [
        Format(
            row['launcher'], SOURCES[row['table']], row['has'].split(), row['without'].split(),
            row['prefixes'].split(), bool(row['dashes']), row['defaults'],
        )
        for row in _rows('formats')
    ]  # fmt: skip


def format_of(said: Sequence[Setting], name: str) -> Format:
    """Whose file it is that has these settings; raises ``ScheduleError`` where nobody reads it."""
    names = [one.name for one in said]

    def some(patterns: Sequence[str]) -> bool:
        return any(fits(name, pattern) for name in names for pattern in patterns)

    for one in formats():
        if some(one.has) and not some(one.without):
            return one
    read = ', '.join(dict.fromkeys(one.launcher for one in formats()))
    for row in _rows('other_launchers'):
        if some(row['has'].split()):
            raise errors.refusal(name, f"this is {row['launcher']}'s, which is not read", row['instead'])
    what = f'whose file this is cannot be told by its settings ({", ".join(names[:3])[:80]} …)'
    raise errors.refusal(name, what, f'files are read of {read}; or write a schedule by hand: simpar init')


def _filled(value: object, values: Mapping[str, object], variables: Mapping[str, str]) -> object:
    """A value with its variables: those of the command line, of the file, or their defaults."""
    if not isinstance(value, str) or '${' not in value:
        return value

    def named(match: re.Match[str]) -> str:
        name = match['name']
        unassigned = match[0] if '.' in name else f'\0{name}\0'
        ending = next((one for at, one in values.items() if at.endswith(f'.{name}')), unassigned)
        return str(variables.get(name, values.get(name, values.get(name.partition('.')[2], ending))))

    text = _PRODUCT.sub(lambda match: str(int(match[1]) * int(match[2])), _NAMED.sub(named, value))
    text = _DEFAULT.sub(lambda match: variables.get(match['name'], match['default'].strip()), text)
    return {'true': True, 'false': False, 'null': None, 'none': None}.get(text.lower(), text)


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
    if match := _DEEP.search(text):
        where = f'{name}:{text.count(chr(10), 0, match.start()) + 1}'
        raise errors.refusal(where, f'more than {MAX_DEPTH} levels', 'write it flatter')
    try:
        root = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise errors.refusal(name, f'not TOML: {error}', 'check the file') from None
    # Brackets without end, or an integer of thousands of digits.
    except (ValueError, RecursionError):
        what = 'not TOML that can be read: it nests too deep, or a number is too long'
        raise errors.refusal(name, what, 'write fewer levels, and at most 18 digits') from None
    lines = _lines(text)
    return [Setting(key, value, f'{name}:{lines.get(key, 1)}') for key, value in _flat(root)]


def settings_of_yaml(text: str, name: str) -> list[Setting]:
    """The settings of a YAML or JSON file. Raises ``ScheduleError``."""
    tree = tree_of(text, name)
    if not isinstance(tree.root, dict):
        raise errors.refusal(name, 'not a mapping', 'name the file that the launcher reads')
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
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if match := _KEY.match(line):
            key = match[1].replace('"', '')
            lines.setdefault(f'{section}.{key}' if section else key, number)
        elif match := _SECTION.match(line):
            section = match[1].replace('"', '').replace(' ', '')
    return lines
