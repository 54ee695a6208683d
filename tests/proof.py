"""What every proof has: its flags, the commit that it proves, and how its page begins."""

import argparse
import contextlib
import io
import signal
import subprocess
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


def page_head(name, **facts):
    """How a page begins: tests/pages/NAME.md with its facts and the commit."""
    return (ROOT / 'tests' / 'pages' / f'{name}.md').read_text(encoding='utf-8').format(**{'commit': commit(), **facts})


def quietly(words):
    """Have simpar do a command that ends with 0; what it prints is dropped."""
    from simpar.cli import main as simpar

    with contextlib.redirect_stdout(io.StringIO()):
        code = simpar(words)
    assert code == 0, (words, code)


def claims_table(claims):
    """What must hold: each with what was found, and whether it does."""
    rows = [f'| {what} | {found} | {"holds" if held else "**does not hold**"} |' for what, found, held in claims]
    return ['| what must hold | found | |', '|---|---|---|', *rows, '']


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
