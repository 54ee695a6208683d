"""The command line: which verbs there are, and which of them share a flag."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from simpar import __version__
from simpar.flags import files, measuring, predicting
from simpar.flags.planning import plan
from simpar.flags.types import limit

WRONG_USE = 2


class _Parser(argparse.ArgumentParser):
    """argparse, with a suggestion for a misspelt word."""

    def error(self, message: str) -> NoReturn:
        known = _words(self)
        words = message.partition('(')[0].split()
        # What the user wrote stands in quotes, if it does: argparse's own words must not be taken for it.
        wrong = [word.strip('\'",') for word in [word for word in words if word.startswith("'")] or words]
        near = [close for word in wrong for close in difflib.get_close_matches(word.partition('=')[0], known, 1)]
        # The flag whose value is wrong is named already.
        hint = f'; did you mean {near[0]}?' if near and near[0] not in message.replace(':', ' ').split() else ''
        self.exit(WRONG_USE, f'{self.prog}: {message}{hint}\nSee {self.prog} --help.\n')


def _words(parser: argparse.ArgumentParser) -> list[str]:
    """Every flag and verb that a parser and its verbs know."""
    words = list(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, below in action.choices.items():
                words += [verb, *_words(below)]
    return words


def _none(verb: argparse.ArgumentParser) -> None:
    """No flags of its own."""


VERBS: tuple[tuple[str, str, Callable[[argparse.ArgumentParser], None]], ...] = (
    ('run', 'predict a schedule: step time, gain and why', predicting.run),
    ('check', 'ranks, groups, collectives; what is simulated and executable', predicting.check),
    ('resolve', 'the schedule with every choice made, as YAML', _none),
    ('sweep', 'a table of predictions over dotted keys', predicting.sweep),
    ('plan', 'the best plan for the model on the devices, with a proven gap', plan),
    ('measure', 'run a schedule for real with torch.distributed, then compare', measuring.measure),
    ('compare', 'join a predicted and a measured trace', measuring.compare),
    ('diff', 'what changed between two answers of `simpar run --save`', measuring.diff),
    ('calibrate', 'measure this machine and write its profile', measuring.calibrate),
    ('validate', 'predict published steps, and tell how far predictions are from them', measuring.validate),
    ('replay', 'replay a recorded job, and tell what its stragglers cost', predicting.replay),
    ('profiles', 'the hardware profiles, or one with its sources', files.profiles),
    ('examples', 'the schedules that come with simpar, to read, copy and change', files.examples),
    ('import', 'the file of another launcher as a schedule, with what became of each setting', files.bring),
    ('init', 'a first schedule with comments, from model, devices and batch', files.init),
    ('script', 'the job that a launcher takes, for the hosts and devices of a schedule', files.script),
    ('show', 'open a page that `simpar run --html` wrote', files.show),
    ('completion', 'words for the shell to complete: eval "$(simpar completion bash)"', files.completion),
    ('warmup', 'compile the machines for large programs, once (needs the extra fast)', _none),
    ('schema', 'JSON Schema of schedule files, for editors', _none),
)
"""Each verb: its name, what it does, and who adds its flags."""
OF_A_SCHEDULE = frozenset({'run', 'check', 'resolve', 'sweep', 'plan', 'measure'})
"""Verbs that read one schedule, with values replaced by --set, and maybe a module."""
LIMITED = frozenset({'run', 'check', 'resolve', 'measure', 'validate'})
WITHOUT_JSON = frozenset({'schema', 'show', 'completion'})


def parser() -> argparse.ArgumentParser:
    """The whole command line; a test pins its verbs and flags."""
    top = _Parser(
        prog='simpar', description='Predict, train and compare parallel training schedules.', allow_abbrev=False
    )
    top.add_argument('--version', action='version', version=f'simpar {__version__}')
    verbs = top.add_subparsers(dest='verb', required=True, metavar='VERB', parser_class=_Parser)
    for name, text, add_flags in VERBS:
        verb = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
        _add_shared_first(verb, name)
        add_flags(verb)
        _add_shared_last(verb, name)
    verbs.choices['completion'].set_defaults(parser=top)
    return top


def _add_shared_first(verb: argparse.ArgumentParser, name: str) -> None:
    if name in OF_A_SCHEDULE:
        verb.add_argument('file', type=Path, metavar='FILE', help='schedule.yaml')
        verb.add_argument(
            '--set', action='append', default=[], metavar='a.b=v', help='replace one value; may be repeated'
        )
    if name not in WITHOUT_JSON:
        verb.add_argument('--json', action='store_true', help='print one JSON object and nothing else')


def _add_shared_last(verb: argparse.ArgumentParser, name: str) -> None:
    if name in OF_A_SCHEDULE:
        verb.add_argument(
            '--module', default='', metavar='PKG:FUNCTION',
            help='train or predict this torch module: a function that returns (module, example inputs)',
        )  # fmt: skip
    if name in LIMITED:
        verb.add_argument(
            '--limit', action='append', default=[], type=limit, metavar='SIZE|TIME',
            help='memory or time that a prediction may take, in place of 8 GB and 600 s; may be repeated',
        )  # fmt: skip
