"""``simpar sweep FILE``: a table of predictions over keys; ``simpar plan FILE``: the best plan, with a proven gap.

``simpar why-not FILE``: which overlaps pay.
"""

import argparse
import shlex
import sys
from pathlib import Path
from time import monotonic
from typing import Final

from simpar import files, throughput, units
from simpar.commands import answers, common, exporting
from simpar.errors import Infeasible, Problem, RunFailed, refuse
from simpar.exporting.export import export
from simpar.page import answer_page
from simpar.planner import Answer, Planning, load_planning, plan, render
from simpar.planner.space import KEYS
from simpar.plot.frame import write_figure
from simpar.sweep import Sweep, SweepAnswer, load_sweep, plot, table, why_not
from simpar.sweep.table import as_markdown, side_by_side


def sweep_command(options: argparse.Namespace) -> int:
    """Print the table; write CSV and plot where asked; raise ``Infeasible`` where no row can be."""
    sweep = load_sweep(options.file, options.set, options.sweep, module=common.graph_of(options))
    answer = _swept(options, sweep)
    written = _write_sweep(options, answer)
    if options.markdown:
        sys.stdout.write(side_by_side(answer, options.across) if options.across else as_markdown(answer))
    else:
        answers.print_answer(
            options,
            lambda: {**table.to_dict(answer), 'written': written},
            lambda: table.render(answer) + ''.join(f'wrote {name}\n' for name in written),
        )
    sys.stdout.flush()
    if answer.best is None:
        raise Infeasible(f'no row of {len(answer.results)} is feasible; --json has the reasons in full')
    return 0


def _swept(options: argparse.Namespace, sweep: Sweep) -> SweepAnswer:
    """The answer; what ends the work before says how many rows are kept."""
    with common.Progress() as progress:
        try:
            return sweep.predict(
                options.jobs, progress, journal=_journal(options), scheduler=options.scheduler or '', note=progress.note
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_journal_text(options, progress)) from None
        except RunFailed as failed:
            raise RunFailed(f'{failed}; {_journal_text(options, progress)}') from None


def _journal(options: argparse.Namespace) -> Path | None:
    """The file of finished rows: the one that the user names, or one beside the table."""
    named: Path | None = options.journal
    table: Path | None = options.csv
    return named or (table.with_name(f'{table.name}.rows') if table else None)


def _journal_text(options: argparse.Namespace, progress: common.Progress) -> str:
    journal = _journal(options)
    if journal is None:
        return 'no row is kept; with --csv or --journal the same command would go on from the finished ones'
    if not progress.done:
        return 'no row is finished yet'
    return f'{progress.done} of {progress.of} rows are kept in {journal}; the same command goes on from there'


def _write_sweep(options: argparse.Namespace, answer: SweepAnswer) -> list[str]:
    written: list[str] = []
    if options.csv:
        files.write_atomically(options.csv, table.as_csv(answer))
        # The table has all that it had; a journal that the user names stays, for sweeps to come.
        if not options.journal and (journal := _journal(options)):
            journal.unlink(missing_ok=True)
        written.append(str(options.csv))
    if options.plot:
        write_figure(options.plot, plot.bars(answer))
        written.append(str(options.plot))
    return written


def why_not_command(options: argparse.Namespace) -> int:
    """Print sets of overlaps, the best first; raise ``Infeasible`` where none fits."""
    case = common.case_waited_for(options)
    with common.waiting('predicting sets of overlaps'):
        answer = why_not.why_not(case, options.overlap)
    if options.html:
        best = answer.case or case
        page = answer_page(
            best.predict(),
            schedule=common.schedule_text(options),
            notes=best.notes,
            about=common.about(best),
            overlaps=answer.html,
        )
        files.write_atomically(options.html, page)
    wrote = f'wrote {options.html}\n' if options.html else ''
    warnings = ''.join(f'Note: {line}\n' for line in (*case.beside_stack, *case.left_out))
    answers.print_answer(options, answer.to_dict, lambda: answer.render() + warnings + wrote)
    sys.stdout.flush()
    if answer.best is None and answer.verdicts:
        raise Infeasible('no set of overlaps fits; the table says why')
    return 0


_OFTEN: Final = 0.5
"""Seconds between two lines of progress."""


def plan_command(options: argparse.Namespace) -> int:
    """Print the answer; write what is asked for; raise ``Infeasible`` where no plan fits."""
    _check_flags(options)
    planning = load_planning(options.file, options.set, module=common.graph_of(options))
    if options.devices:
        return _sizes(options, planning)
    answer = _searched(options, planning)
    explanation = plan.Planned(answer=answer)
    if not options.brief:
        explanation = plan.explained(answer, jobs=options.jobs, scheduler=options.scheduler or '')
    written = _write_plan(options, planning, answer)
    answers.print_answer(
        options,
        lambda: render.to_dict(answer, explanation.why, explanation.robustness),
        lambda: (
            render.render(answer, explanation.why, explanation.robustness)
            + ''.join(f'wrote {path}\n' for path in written)
        ),
    )
    sys.stdout.flush()
    if answer.best is None and answer.complete:
        raise Infeasible(f'no plan of {answer.plans} fits; the rules above say why')
    return 0


def _check_flags(options: argparse.Namespace) -> None:
    """Raise ``ScheduleError`` with every flag that says what cannot be."""
    problems = []
    if options.save and options.save.suffix not in ('.yaml', '.yml'):
        problems.append(Problem('--save', f'not a schedule (got {options.save})', 'write a name that ends in .yaml'))
    if options.export:
        exporting.export_target(options.export)
    try:
        if options.train:
            throughput.parse_budget(options.train)
    except ValueError as error:
        problems.append(Problem('--train', str(error)))
    refuse(problems)


def _searched(options: argparse.Namespace, planning: Planning) -> Answer:
    with _Best() as progress:
        return planning.search(
            jobs=options.jobs,
            journal=options.journal,
            scheduler=options.scheduler or '',
            seconds=options.seconds or float('inf'),
            gap=options.gap,
            tell=progress,
            note=progress.note,
        )


def _sizes(options: argparse.Namespace, planning: Planning) -> int:
    """Plan on several numbers of devices."""
    budget = throughput.parse_budget(options.train) if options.train else None
    sizes = plan.sizes(planning, options.devices, budget, lambda one: _searched(options, one))
    if options.plot and sizes.front:
        write_figure(options.plot, sizes.plot())
    wrote = f'wrote {options.plot}\n' if options.plot and sizes.front else ''
    answers.print_answer(options, lambda: render.sizes_to_dict(sizes), lambda: render.render_sizes(sizes) + wrote)
    sys.stdout.flush()
    if not sizes.front and all(one.answer.complete for one in sizes.found):
        raise Infeasible('no plan fits on any of these numbers of devices')
    return 0


def _write_plan(options: argparse.Namespace, planning: Planning, answer: Answer) -> list[Path]:
    """The schedule and the picture, where a plan is known; what was written."""
    if answer.choice is None:
        return []
    if options.save:
        text = render.saved(answer.choice, planning.schedule, options.file, options.set, options.save)
        files.write_atomically(options.save, text)
    if options.plot:
        write_figure(options.plot, render.front_picture(answer))
    exported: list[Path] = []
    if options.export:
        target, path = exporting.export_target(options.export)
        made = export(answer.choice.schedule, target.name)
        exporting.tell(made, answer.choice.schedule)
        free = {f'plan.{key}' for key in KEYS}
        if words := [f'--set {shlex.quote(f"{one.key}={one.nearest}")}' for one in made.unsaid if one.key in free]:
            print(f'{made.framework}: search without what it cannot say by {" ".join(words)}', file=sys.stderr)
        exported = exporting.write_export(made, path)
    return [*(path for path in (options.save, options.plot) if path), *exported]


class _Best(common.Line):
    """The best plan so far, on a terminal only."""

    def __call__(self, answer: Answer) -> None:
        now = monotonic()
        if not self.is_shown or now - self._told < _OFTEN:
            return
        best = f'best {units.format_time(answer.best.step)}, gap {answer.gap:.1%}' if answer.best else 'no plan yet'
        self.say(f'{best}; {len(answer.ranking) + answer.infeasible} predicted, {answer.nodes} nodes', now)
