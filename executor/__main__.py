"""``python -m executor``: exit codes as of the command line ``simpar``, and never a traceback."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from executor.options import parser, with_verb
from simpar.errors import RunFailed, SimparError

WRONG_USE = 2
INTERNAL = 70
INTERRUPTED = 130
TERMINATED = 143
PATIENCE = 5.0
"""Seconds in which the process may end its ranks by itself."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    options = parser().parse_args(with_verb(list(sys.argv[1:] if arguments is None else arguments)))
    # Without a handler, SIGTERM would end this process before it could end the ranks that it has started.
    signal.signal(signal.SIGTERM, _terminate)
    if options.lifeline:
        threading.Thread(target=_end_with_input, daemon=True).start()
    # gloo warns about every peer that leaves; the watchdog says it better, and once.
    os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')
    try:
        # Only looked up: importing torch takes seconds, and each verb imports it where it needs it.
        if importlib.util.find_spec('torch') is None:
            raise RunFailed('torch is not installed; install the extra: pip install "simpar-parallel[torch]"')  # noqa: TRY301
        code: int = importlib.import_module(f'executor.commands.{options.verb}').command(options)
        sys.stdout.flush()
    except SimparError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print('executor: interrupted', file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        # Files are written whole, with their names; what has none is the standard output.
        print(f'executor: {error.filename or "standard output"}: {error.strerror or error}', file=sys.stderr)
        return WRONG_USE
    except Exception as error:
        # An internal error is ours, not the user's: a traceback is for those who ask for one.
        if os.environ.get('SIMPAR_DEBUG'):
            raise
        print(f'executor: internal error: {type(error).__name__}: {error}; SIMPAR_DEBUG=1 shows where', file=sys.stderr)
        return INTERNAL
    return code


def _end_with_input() -> None:
    """End this process, and with it its ranks, when its standard input is closed: whoever started it has gone."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    # C++ code that waits keeps Python from seeing the signal.
    time.sleep(PATIENCE)
    os._exit(TERMINATED)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Leave as on Ctrl-C, so that every ``with`` ends what it has started."""
    sys.exit(TERMINATED)


if __name__ == '__main__':
    exit_code = main()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # process groups of other ranks may be gone; their destructors would abort
    os._exit(exit_code)
