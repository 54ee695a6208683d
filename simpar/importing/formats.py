"""Files of YAML and JSON by what stands in them: whose they are, and their settings in the words of a table.

``tables/formats.csv`` has a row for each launcher: settings that its files have, sections that its tables leave out,
and whether their words are flags of Megatron-LM. ``tables/other_launchers.csv`` has those that are known and not read.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from simpar.errors import Problem, ScheduleError
from simpar.files import read_csv
from simpar.importing import accelerate, megatron
from simpar.importing.deepspeed import DEEPSPEED, GPT_NEOX
from simpar.importing.mindformers import MINDFORMERS
from simpar.importing.settings import FOLDER, Setting, Source, fits
from simpar.importing.torchtitan import TORCHTITAN

SOURCES: Final[Mapping[str, Source]] = {
    'megatron': megatron.MEGATRON, 'nemo': megatron.NEMO, 'gpt_neox': GPT_NEOX, 'mindformers': MINDFORMERS,
    'deepspeed': DEEPSPEED, 'torchtitan': TORCHTITAN, 'accelerate': accelerate.ACCELERATE,
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
    has: tuple[str, ...]
    without: tuple[str, ...]
    prefixes: tuple[str, ...]
    dashes: bool
    defaults: str


def _rows(name: str) -> list[dict[str, str]]:
    return read_csv(FOLDER / f'{name}.csv')


def formats() -> list[Format]:
    """All launchers whose files of YAML or JSON are read, in the order in which they are recognised."""
    return [
        Format(
            row['launcher'], SOURCES[row['table']], tuple(row['has'].split()), tuple(row['without'].split()),
            tuple(row['prefixes'].split()), bool(row['dashes']), row['defaults'],
        )
        for row in _rows('formats')
    ]  # fmt: skip


def format_of(settings: Sequence[Setting], name: str) -> Format:
    """Whose file it is that has these settings; raises ``ScheduleError`` where nobody reads it."""
    names = [one.name for one in settings]
    for one in formats():
        if _some(names, one.has) and not _some(names, one.without):
            return one
    read = ', '.join(dict.fromkeys(one.launcher for one in formats()))
    for row in _rows('other_launchers'):
        if _some(names, row['has'].split()):
            raise ScheduleError(Problem(name, f"this is {row['launcher']}'s, which is not read", row['instead']))
    what = f'whose file this is cannot be told by its settings ({", ".join(names[:3])[:80]} …)'
    raise ScheduleError(Problem(name, what, f'files are read of {read}; or write a schedule by hand: simpar init'))


def _some(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fits(name, pattern) for name in names for pattern in patterns)


def in_words(settings: Sequence[Setting], form: Format, given: Mapping[str, str]) -> list[Setting]:
    """The settings in the words of the launcher's table.

    Arguments: ``given``, values of variables. What is off is as good as absent for flags of Megatron-LM, and is left
    out; `switched_off` has it.
    """
    values = {one.name: one.value for one in settings}
    found = [replace(one, value=_filled(one.value, values, given)) for one in settings]
    if not form.dashes:
        return found
    flags = list(_flags(found, form))
    said = {one.name for one in flags}
    silent = _rows(form.defaults) if form.defaults else []
    built_on = [Setting(row['setting'], row['value'], row['source'], f'{form.launcher}: {row["setting"]}')
                for row in silent if row['setting'] not in said]  # fmt: skip
    return [*built_on, *(one for one in flags if not _is_off(one, form))]


def switched_off(settings: Sequence[Setting], form: Format) -> list[Setting]:
    """What a file of flags has and is off."""
    return [one for one in _flags(settings, form) if _is_off(one, form)] if form.dashes else []


def _flags(settings: Sequence[Setting], form: Format) -> Iterator[Setting]:
    for one in settings:
        prefix = next((prefix for prefix in form.prefixes if one.name.startswith(prefix)), '')
        name = one.name[len(prefix) :].replace('_', '-')
        yield replace(one, name=name, written=one.written or one.name)


def _is_off(one: Setting, form: Format) -> bool:
    """Whether a flag is off: no value, or false where no alias of the table reads that."""
    if f'{one.name}={str(one.value).lower()}' in form.source.table.aliases:
        return False
    return one.value is None or one.value is False or one.value == ''


def _filled(value: object, values: Mapping[str, object], given: Mapping[str, str]) -> object:
    """A value with its variables: those of the command line, of the file, or their defaults."""
    if not isinstance(value, str) or '${' not in value:
        return value

    def named(match: re.Match[str]) -> str:
        name = match['name']
        ending = next((one for at, one in values.items() if at.endswith(f'.{name}')), match[0])
        return str(given.get(name, values.get(name, values.get(name.partition('.')[2], ending))))

    text = _PRODUCT.sub(lambda match: str(int(match[1]) * int(match[2])), _NAMED.sub(named, value))
    text = _DEFAULT.sub(lambda match: given.get(match['name'], match['default'].strip()), text)
    return {'true': True, 'false': False, 'null': None, 'none': None}.get(text.lower(), text)
