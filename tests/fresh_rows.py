"""The rows of a sweep, each predicted by a process that has predicted nothing before: `python fresh_rows.py FILE`."""

import json
import os
import sys
from contextlib import redirect_stdout

from simpar import Schedule, cli
from simpar.document import dump
from simpar.session import Session
from simpar.sweep import load_sweep, predicted


def told(schedule: Schedule, session: Session | None = None) -> str:
    """The outcome of a row as text, every digit of it."""
    return json.dumps(dump(predicted(schedule, session)), sort_keys=True)


def main() -> None:
    """Write a line for each row that may be predicted."""
    # Machine code is loaded once: it is of no row.
    with redirect_stdout(sys.stderr):
        assert cli.main(['warmup']) == 0
    for row in load_sweep(sys.argv[1]).rows:
        if not row.problems:
            ours, theirs = os.pipe()
            child = os.fork()
            if not child:
                with os.fdopen(theirs, 'w') as out:
                    out.write(told(row.schedule))
                os._exit(0)
            os.close(theirs)
            with os.fdopen(ours) as text:
                print(text.read())
            assert os.waitpid(child, 0)[1] == 0


if __name__ == '__main__':
    main()
