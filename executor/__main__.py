"""``python -m executor``: exit codes as of the command line ``simpar``, and never a traceback."""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from executor import cluster, host
from executor.options import guarded, leave, parser, with_verb

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

    def work() -> int:
        from executor.commands import COMMANDS

        code: int = COMMANDS[options.verb](options)
        return code

    return guarded('executor', 'standard output', work)


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
    if cluster.is_launched(os.environ):
        host.keep_memory()
    leave(main())
