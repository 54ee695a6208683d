"""The command and its exit codes. Verbs and flags are tables, each verb is a function, in ``simpar/commands/``.

Exit codes: 0 good, 2 the file or the command line is wrong, 3 infeasible, deadlock or over --limit, 4 out of tolerance,
5 a run failed, 6 numerics wrong. Start-up time is a feature: a verb's modules are imported when the verb is called.
"""

import argparse
import contextlib
import gc
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from simpar.commands.parser import VERBS, WRONG_USE, check_flags, parser
from simpar.errors import SimparError

INTERNAL = 70
INTERRUPTED = 130
GARBAGE = 500_000
"""Objects made before garbage is looked for: nearly all that a verb makes lives until it has answered, and looking
through it every 700 takes a tenth of a prediction's time. A prediction of 1,024 ranks makes some 220,000."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code; never a traceback."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words:
        print((Path(__file__).parent / 'commands' / 'way_in.txt').read_text(encoding='utf-8'), end='')
        return 0
    # What stands behind -- is for the script that is imported.
    own = list(words)[: list(words).index('--')] if '--' in words and words[0] == 'import' else words
    options = parser().parse_args(own)
    options.arguments = list(words)[len(own) + 1 :]
    output = _Output(sys.stdout)
    try:
        check_flags(options)
        verb = _function(options.verb)
        with contextlib.redirect_stdout(output):
            code = verb(options)
        sys.stdout.flush()
    except SimparError as error:
        print(error, file=sys.stderr)
        # An answer that was printed before, as of a plan that does not fit, is the one object already.
        if getattr(options, 'json', False) and not output.used:
            print(_as_json(error))
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as stop:
        print('; '.join(['simpar: interrupted', *map(str, stop.args)]), file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        # Files are written whole, with their names; what has none is the standard output.
        where, what = error.filename or 'standard output', error.strerror or error
        if isinstance(error, (FileExistsError, NotADirectoryError)):
            what = 'a file, where a folder is wanted; name another path'
        print(f'simpar: {where}: {what}', file=sys.stderr)
        return WRONG_USE
    except Exception as error:
        if os.environ.get('SIMPAR_DEBUG'):
            raise
        print(f'simpar: internal error: {type(error).__name__}: {error}; SIMPAR_DEBUG=1 shows where', file=sys.stderr)
        return INTERNAL
    return code


def _function(name: str) -> Callable[[argparse.Namespace], int]:
    """The function of a verb, of the module that the table of verbs names."""
    module = next(verb.module for verb in VERBS if verb.name == name)
    function: Callable[[argparse.Namespace], int] = getattr(
        importlib.import_module(f'simpar.commands.{module}'), f'{name.replace("-", "_")}_command'
    )
    return function


class _Output:
    """Standard output that knows whether anything was written; mutable."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.used = False

    def write(self, text: str) -> int:
        self.used = True
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _as_json(error: SimparError) -> str:
    """An error as one JSON object, for programs that asked for JSON."""
    from simpar.errors import ScheduleError

    listed = error.problems if isinstance(error, ScheduleError) else []
    problems = [{'where': one.place, 'what': one.what, 'instead': one.instead} for one in listed]
    summary = {'kind': type(error).__name__, 'exit_code': error.exit_code, 'message': str(error), 'problems': problems}
    return json.dumps({'format': 'simpar error 1', 'error': summary}, ensure_ascii=False)


def entry() -> NoReturn:
    """The command: ``main``, then the end of the process."""
    gc.set_threshold(GARBAGE)
    sys.exit(main())
