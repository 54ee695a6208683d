"""``simpar sweep FILE``: a table of predictions over dotted keys."""

from __future__ import annotations

import argparse
import json
import os
import sys
from types import TracebackType

from simpar.commands.run import FORMATS
from simpar.errors import Infeasible, Problem, ScheduleError
from simpar.files import write_atomically
from simpar.sweep import SweepAnswer, load_sweep


def command(options: argparse.Namespace) -> int:
    """Print the table; write CSV and plot where asked; raise ``Infeasible`` where no row can be."""
    _check_forms(options)
    sweep = load_sweep(options.file, options.set, options.sweep)
    # Before the work: a wrong suffix should not cost a sweep of minutes.
    _check_outputs(options)
    with _Progress() as progress:
        answer = sweep.predict(options.jobs, progress)
    written = _write(options, answer)
    if options.json:
        from simpar.sweep.table import to_dict

        print(json.dumps({**to_dict(answer), 'written': written}, ensure_ascii=False, allow_nan=False))
    elif options.markdown:
        from simpar.sweep.markdown import as_markdown, side_by_side

        sys.stdout.write(side_by_side(answer, options.across) if options.across else as_markdown(answer))
    else:
        from simpar.sweep.table import render

        sys.stdout.write(render(answer))
        for name in written:
            print(f'wrote {name}')
    sys.stdout.flush()
    if answer.best is None:
        raise Infeasible(f'no row of {len(answer.results)} is feasible; --json has the reasons in full')
    return 0


def _check_forms(options: argparse.Namespace) -> None:
    """One form of answer at a time."""
    if options.json and options.markdown:
        raise ScheduleError(Problem('--markdown', 'and --json at once', 'write one of both'))
    if options.across and not options.markdown:
        raise ScheduleError(Problem('--across', 'is for tables in Markdown', 'write --markdown too'))


def _check_outputs(options: argparse.Namespace) -> None:
    """Before the work: pictures of a kind that can be drawn, folders for everything."""
    if options.plot and options.plot.suffix not in FORMATS:
        what = f'not a kind of picture (got {options.plot})'
        raise ScheduleError(Problem('--plot', what, f'write a name that ends in {", ".join(FORMATS)}'))
    for path in (options.plot, options.csv):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)


def _write(options: argparse.Namespace, answer: SweepAnswer) -> list[str]:
    written: list[str] = []
    if options.csv:
        from simpar.sweep.table import as_csv

        write_atomically(options.csv, as_csv(answer))
        written.append(str(options.csv))
    if options.plot:
        from simpar.plot import write_figure
        from simpar.sweep.plot import bars

        write_figure(options.plot, bars(answer))
        written.append(str(options.plot))
    return written


class _Progress:
    """A line on standard error that says how many rows are done, on a terminal only; it is gone when they all are."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty() and os.environ.get('TERM') != 'dumb'

    def __enter__(self) -> _Progress:
        return self

    def __call__(self, done: int, of: int) -> None:
        """Tell how many are done."""
        # The last line is left out, for it would be cleared at once.
        if self._shown and done < of:
            print(f'\r{done} of {of} predicted', end='', file=sys.stderr, flush=True)

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._shown:
            print('\r\x1b[K', end='', file=sys.stderr, flush=True)
