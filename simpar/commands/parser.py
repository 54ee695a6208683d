"""The command line: its verbs and flags, as ``verbs.csv`` and ``flags.csv`` have them; how texts of flags are read.

A verb's flags are those rows that name it, in the order of the table; ``flag_pairs.csv`` says which do not go together.
"""

import argparse
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from simpar import __version__, errors, files

WRONG_USE = 2


class Verb(NamedTuple):
    """A verb of the command line.

    Arguments: ``module`` of ``simpar.commands`` that has its function; ``help``: what it does.
    """

    name: str
    module: str
    help: str


VERBS: Final = tuple(Verb(**row) for row in files.read_csv(Path(__file__).with_name('verbs.csv')))
_FLAGS: Final = tuple(files.read_csv(Path(__file__).with_name('flags.csv')))
_PAIRS: Final = tuple(files.read_csv(Path(__file__).with_name('flag_pairs.csv')))


def positive(text: str) -> int:
    """A whole number from 1."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f'{text} is not a whole number from 1; write e.g. 8')
    return number


def ranks(text: str) -> tuple[int, ...]:
    """Ranks, each once."""
    if not all(part.isdecimal() for part in text.split(',')):
        raise argparse.ArgumentTypeError(f'{text} is not a list of ranks; write e.g. 0,8')
    return tuple(dict.fromkeys(map(int, text.split(','))))


def counts(text: str) -> tuple[int, ...]:
    """Numbers of devices, each once."""
    try:
        numbers = tuple(int(one) for one in text.split(','))
    except ValueError:
        numbers = (0,)
    if min(numbers) < 1 or len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f'{text} are not numbers of devices, each once; write e.g. 64,128,256')
    return numbers


def limit(text: str) -> str:
    """A size or a time, as it was written."""
    # Imported where it is needed: it knows schedules and programs.
    from simpar.size import parse_limit

    try:
        parse_limit([text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def training(text: str) -> str:
    """One item of a training, as it was written."""
    from simpar.throughput import parse_budget

    try:
        # Alone no item has to be all that is needed.
        parse_budget([text] if text.startswith('tokens=') else ['tokens=1', text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def percent(text: str) -> float:
    """A share."""
    try:
        value = float(text.removesuffix('%')) / 100
    except ValueError:
        value = -1.0
    if not text.endswith('%') or not 0 <= value < float('inf'):
        raise argparse.ArgumentTypeError(f'{text} is not a share; write e.g. 10%')
    return value


class _Once(argparse.Action):
    """Store a flag's value, and refuse the flag a second time: argparse alone takes the last without a word."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, flag: str | None = None
    ) -> None:
        # No flag can have this name, as it has a blank.
        seen = namespace.__dict__.setdefault('flags seen', set())
        if self.dest in seen:
            raise argparse.ArgumentError(self, 'stands twice; write it once')
        seen.add(self.dest)
        setattr(namespace, self.dest, values)


_MANY: Final[Mapping[str, Any]] = {'action': 'append', 'default': []}
_ONE: Final[Mapping[str, Any]] = {'action': _Once}
KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    'switch': {'action': 'store_true'},
    'text': _ONE,
    'name': {**_ONE, 'default': ''},
    'required text': {**_ONE, 'required': True},
    'optional': {'nargs': '?'},
    **{kind: {**_ONE, 'type': Path} for kind in ('path', 'output', 'output folder', 'picture')},
    'integer': {**_ONE, 'type': int},
    'positive': {**_ONE, 'type': positive},
    'percent': {**_ONE, 'type': percent},
    'ranks': {**_ONE, 'type': ranks, 'default': ()},
    'counts': {**_ONE, 'type': counts},
    'texts': _MANY,
    'limits': {**_MANY, 'type': limit},
    'trainings': {**_MANY, 'type': training},
}
"""What argparse is told of each kind of flag; texts, limits and trainings may be repeated."""


class _Parser(argparse.ArgumentParser):
    """argparse, with a suggestion for a misspelt word. It has ``words``: every flag and verb that it knows."""

    words: tuple[str, ...] = ()

    def error(self, message: str) -> NoReturn:
        words = message.partition('(')[0].split()
        # What the user wrote stands in quotes, if it does: argparse's own words must not be taken for it.
        wrong = [word.strip('\'",') for word in [word for word in words if word.startswith("'")] or words]
        near = [close for word in wrong for close in difflib.get_close_matches(word.partition('=')[0], self.words, 1)]
        # The flag whose value is wrong is named already.
        hint = f'; did you mean {near[0]}?' if near and near[0] not in message.replace(':', ' ').split() else ''
        self.exit(WRONG_USE, f'{self.prog}: {message}{hint}\nSee {self.prog} --help.\n')


def words_of(verb: str) -> list[str]:
    """Every flag of a verb, sorted."""
    own = (flag['flag'] for flag in _FLAGS if verb in flag['verbs'].split())
    return sorted(['-h', '--help', *(flag for flag in own if flag.startswith('-'))])


def check_flags(options: argparse.Namespace) -> None:
    """Raise ``ScheduleError`` with every flag that does not go beside another, or changes nothing without one; then
    with every output that cannot be written."""
    problems = [
        errors.Problem(row['flag'], row['what'], row['instead'])
        for row in _PAIRS
        if options.verb in row['verbs'].split() and _is_set(options, row['flag'])
        if _is_set(options, row['beside'] or row['without']) == bool(row['beside'])
    ]
    errors.refuse(problems)
    files.check_outputs((row for row in _FLAGS if options.verb in row['verbs'].split()), options)


def _is_set(options: argparse.Namespace, flag: str) -> bool:
    row = next(row for row in _FLAGS if row['flag'] == flag and options.verb in row['verbs'].split())
    value = getattr(options, row['name'] or flag.removeprefix('--').replace('-', '_'))
    return bool(value) and str(value) != row['default']


def parser() -> argparse.ArgumentParser:
    """The whole command line; a test pins its verbs and flags."""
    top = _Parser(
        prog='simpar', description='Predict, train and compare parallel training schedules.', allow_abbrev=False
    )
    top.add_argument('--version', action='version', version=f'simpar {__version__}')
    verbs = top.add_subparsers(dest='verb', required=True, metavar='VERB', parser_class=_Parser)
    for verb in VERBS:
        below = verbs.add_parser(verb.name, help=verb.help, description=verb.help, allow_abbrev=False)
        below.words = tuple(words_of(verb.name))
        top.words = (*top.words, verb.name, *below.words)
        for flag in _FLAGS:
            if verb.name in flag['verbs'].split():
                below.add_argument(flag['flag'], **{**KINDS[flag['kind']], **files.flag_options(flag)})
    top.words = ('--version', *top.words)
    return top
