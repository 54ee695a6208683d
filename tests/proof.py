"""What every proof has: its flags, the commit that it proves, and how its page begins."""

import argparse
import contextlib
import io
import json
import signal
import subprocess
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parent.parent


def arguments(doc, *positional, **flags):
    """The flags of a proof, as `argparse` has them.

    Arguments: ``positional``, keywords of `add_argument` with a ``name`` each; ``flags``, names with _ for - and a
    default, (default, help) or keywords. Of False there is a switch, of a class a value that may be left out.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for one in positional:
        parser.add_argument(one.pop('name'), **one)
    for name, value in flags.items():
        default, words = value if isinstance(value, tuple) else (value, None)
        flag = f'--{name.replace("_", "-")}'
        if isinstance(default, dict):
            parser.add_argument(flag, **default)
        elif default is False:
            parser.add_argument(flag, action='store_true', help=words)
        elif isinstance(default, type):
            parser.add_argument(flag, type=default, help=words)
        else:
            shown = ' '.join([words or '', f'(default: {default})']).strip()
            parser.add_argument(flag, type=type(default), default=default, help=shown)
    return parser.parse_args()


def commit(*paths):
    """The commit at the head in short, or the last that changed some paths; 'unknown' where there is none."""
    words = ['git', 'log', '-1', '--format=%h', '--', *paths]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() or 'unknown'


def page_head(name, /, **facts):
    """How a page begins: tests/pages/NAME.md with its facts and the commit."""
    return (ROOT / 'tests' / 'pages' / f'{name}.md').read_text(encoding='utf-8').format(**{'commit': commit(), **facts})


def printed(words, codes=(0,)):
    """What simpar prints of a command, done in this process, that ends with one of some codes."""
    from simpar.cli import main as simpar

    text, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(errors):
        code = simpar([*map(str, words)])
    assert code in codes, (words, code, errors.getvalue())
    return text.getvalue()


def answer(*words, codes=(0,)):
    """The JSON that simpar prints of a command."""
    return json.loads(printed([*words, '--json'], codes))


def kept(file, make):
    """What a file holds as JSON: of a command that was interrupted; made and written where there is none."""
    from simpar.files import write_atomically

    if not file.exists():
        write_atomically(file, json.dumps(make()) + '\n')
    return json.loads(file.read_text(encoding='utf-8'))


class Journal:
    """Rows in a file, a line each, so that the same command goes on behind them.

    Arguments: ``shared``, what rows must have to count, and what new ones get: the commit, a seed.
    """

    def __init__(self, path, **shared):
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding='utf-8').splitlines(keepends=True) if path.exists() else []
        # Of a line that an interruption cut off the end is missing.
        rows = [json.loads(line) for line in lines if line.endswith('\n')]
        self.rows = [row for row in rows if shared.items() <= row.items()]
        self._path, self._shared = path, shared

    def add(self, **row):
        """Keep a row; returns it with what all share."""
        self.rows.append({**self._shared, **row})
        with self._path.open('a', encoding='utf-8') as file:
            file.write(json.dumps(self.rows[-1]) + '\n')
        return self.rows[-1]


def until(seconds, found, each=0.1):
    """Wait until something is so, or the seconds are over; whether it is."""
    end = time.monotonic() + seconds
    while not (is_so := found()) and time.monotonic() < end:
        time.sleep(each)
    return bool(is_so)


def line(cells):
    """A line of a table in Markdown."""
    return f'| {" | ".join(map(str, cells))} |'


def table(heads, rows):
    """A table in Markdown: its heads with | between them, and the cells of its rows."""
    return [f'| {heads} |', f'|{"---|" * (heads.count("|") + 1)}', *map(line, rows)]


def claims_table(claims):
    """What must hold: each with what was found, and whether it does."""
    rows = [(what, found, 'holds' if held else '**does not hold**') for what, found, held in claims]
    return [*table('what must hold | found |', rows), '']


def end(text, write, held, code=4):
    """Print a page, write it where that was asked for; the exit code, another than 0 where what must hold does not."""
    from simpar.files import write_atomically

    if write:
        write_atomically(write, text)
    print(text)
    return 0 if held else code


def steady_steps(execution):
    """Seconds of the steps from the third on that have a follower, where that matters."""
    from executor.state import FIRST_STEADY

    return execution.trace.step_times[execution.trace.warm(FIRST_STEADY)].tolist()


class TooLong(BaseException):
    """A bound of seconds has passed, and where; no handler of simpar's own catches it."""


@contextlib.contextmanager
def bounded(seconds, *, of_cpu=False):
    """Raise `TooLong` in this thread when so many seconds have passed, or so many of its CPU time."""
    timer, number = (signal.ITIMER_PROF, signal.SIGPROF) if of_cpu else (signal.ITIMER_REAL, signal.SIGALRM)

    def stop(number, frame):
        lines = traceback.extract_stack(frame)[-4:]
        raise TooLong(' < '.join(f'{Path(one.filename).name}:{one.lineno}' for one in reversed(lines)))

    before = signal.signal(number, stop)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)
