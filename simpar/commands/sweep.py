"""``simpar sweep FILE``: a table of predictions over dotted keys."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from simpar.commands.module import graph_of
from simpar.commands.progress import Progress
from simpar.commands.run import FORMATS
from simpar.errors import Infeasible, Problem, RunFailed, ScheduleError
from simpar.files import write_atomically
from simpar.sweep import Sweep, SweepAnswer, load_sweep


def command(options: argparse.Namespace) -> int:
    """Print the table; write CSV and plot where asked; raise ``Infeasible`` where no row can be."""
    _check_forms(options)
    sweep = load_sweep(options.file, options.set, options.sweep, module=graph_of(options))
    # Before the work: a wrong suffix should not cost a sweep of minutes.
    _check_outputs(options)
    answer = _predicted(options, sweep)
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


def _predicted(options: argparse.Namespace, sweep: Sweep) -> SweepAnswer:
    """The answer; what ends the work before says how many rows are kept."""
    with Progress() as progress:
        try:
            return sweep.predict(
                options.jobs,
                progress,
                journal=_journal(options),
                scheduler=options.scheduler or '',
                note=progress.note,
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_kept(options, progress)) from None
        except RunFailed as failed:
            raise RunFailed(f'{failed}; {_kept(options, progress)}') from None


def _journal(options: argparse.Namespace) -> Path | None:
    """The file of finished rows: the one that the user names, or one beside the table."""
    named: Path | None = options.journal
    table: Path | None = options.csv
    return named or (table.with_name(f'{table.name}.rows') if table else None)


def _kept(options: argparse.Namespace, progress: Progress) -> str:
    journal = _journal(options)
    if journal is None:
        return 'no row is kept; with --csv or --journal the same command would go on from the finished ones'
    if not progress.done:
        return 'no row is finished yet'
    return f'{progress.done} of {progress.of} rows are kept in {journal}; the same command goes on from there'


def _check_forms(options: argparse.Namespace) -> None:
    """One form of answer at a time."""
    if options.json and options.markdown:
        raise ScheduleError(Problem('--markdown', 'and --json at once', 'write one of both'))
    if options.across and not options.markdown:
        raise ScheduleError(Problem('--across', 'is for tables in Markdown', 'write --markdown too'))
    if options.scheduler and options.jobs:
        raise ScheduleError(Problem('--jobs', 'and --scheduler at once', 'start as many workers as you want'))
    if options.journal and options.journal in (options.csv, options.plot):
        raise ScheduleError(Problem('--journal', 'is the file of another output', 'write another name'))


def _check_outputs(options: argparse.Namespace) -> None:
    """Before the work: pictures of a kind that can be drawn, folders for everything."""
    if options.plot and options.plot.suffix not in FORMATS:
        what = f'not a kind of picture (got {options.plot})'
        raise ScheduleError(Problem('--plot', what, f'write a name that ends in {", ".join(FORMATS)}'))
    for path in (options.plot, options.csv, options.journal):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)


def _write(options: argparse.Namespace, answer: SweepAnswer) -> list[str]:
    written: list[str] = []
    if options.csv:
        from simpar.sweep.table import as_csv

        write_atomically(options.csv, as_csv(answer))
        # The table has all that it had; a journal that the user names stays, for sweeps to come.
        if not options.journal and (journal := _journal(options)):
            journal.unlink(missing_ok=True)
        written.append(str(options.csv))
    if options.plot:
        from simpar.plot import write_figure
        from simpar.sweep.plot import bars

        write_figure(options.plot, bars(answer))
        written.append(str(options.plot))
    return written
