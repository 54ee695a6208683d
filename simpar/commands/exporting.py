"""``simpar export FILE --to FRAMEWORK``: the plan as another framework's own flags, file or lines of code."""

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from simpar import errors, files, headline
from simpar.commands import answers, common
from simpar.exporting import export, onto, settings
from simpar.schedule import Schedule, load_schedule
from simpar.session import Session
from simpar.sweep.answer import predicted


def export_command(options: argparse.Namespace) -> int:
    """Write the file, or edit the user's own; what the framework cannot say is told first."""
    variables = dict(common.named_values(options.given, '--given'))
    schedule = load_schedule(options.file, options.set)
    if not options.onto:
        made = export.export(schedule, options.to)
        written = write_export(made, options.output) if options.output else []
        if options.json:
            answers.print_json(export_json(made, written))
            return 0
        tell(made, schedule)
        if options.output:
            sys.stdout.write(''.join(f'wrote {path}\n' for path in written))
        else:
            sys.stdout.write(made.text)
            for name, text in made.beside.items():
                sys.stdout.write(f'\n# {name}\n{text}')
        return 0
    edited = onto.onto(schedule, options.to, options.onto, given=variables)
    target = options.output or options.onto
    files.write_atomically(target, edited.text)
    if options.json:
        unsaid = [asdict(one) for one in edited.unsaid]
        answers.print_json(
            {'framework': edited.framework, 'difference': edited.difference, 'unsaid': unsaid, 'written': str(target)}
        )
        return 0
    tell(edited, schedule)
    sys.stdout.write(edited.difference or f'{options.onto} says the plan already\n')
    return 0


def export_target(text: str) -> tuple[settings.Target, Path]:
    """The framework and the path of ``megatron=run.sh``. Raises ``ScheduleError``."""
    to, sign, path = text.partition('=')
    if not sign or not path:
        raise errors.refusal('--export', f'no framework and path (got {text[:60]!r})', 'write megatron=run.sh')
    if what := files.unwritable(Path(path)):
        raise errors.refusal('--export', f'{what} (got {path})', 'name another path')
    return export.target_of(to), Path(path)


def write_export(made: export.Export, path: Path) -> list[Path]:
    """Write a file, and those that stand beside it; their paths."""
    files.write_atomically(path, made.text)
    beside = [path.parent / name for name in made.beside]
    for one, text in zip(beside, made.beside.values(), strict=True):
        files.write_atomically(one, text)
    return [path, *beside]


def export_json(made: export.Export, written: list[Path]) -> dict[str, Any]:
    """An export for programs."""
    return {
        'framework': made.framework, 'text': made.text, 'beside': dict(made.beside),
        'settings': {one.name: one.value for one in made.settings}, 'unsaid': [asdict(one) for one in made.unsaid],
        'needs': list(made.needs), 'written': [str(path) for path in written],
    }  # fmt: skip


def tell(made: export.Export | onto.Edited, plan: Schedule) -> None:
    """Say on the standard error what a framework cannot say of a plan, and what a step costs by that."""
    for one in made.unsaid:
        print(f'{made.framework}: {one}', file=sys.stderr)
    if made.unsaid and made.back:
        print(f'{made.framework}: {_cost(plan, made.back)}', file=sys.stderr)


def _cost(plan: Schedule, back: Schedule) -> str:
    """The step of what is written beside that of the plan, on the cluster and under the stack of the plan."""
    session = Session()
    written, own = (predicted(replace(one, cluster=plan.cluster), session) for one in (back, plan))
    if written.figures is None or own.figures is None:
        return f'a step of what is written is not predicted: {written.reason or own.reason}'
    names, steps = ('what is written', 'the plan'), (written.figures.step, own.figures.step)
    batches = back.workload.batch, plan.workload.batch
    if batches[0] == batches[1]:
        text = headline.headline((names[0], steps[0]), (names[1], steps[1]), exact=False)
    else:
        rates = batches[0] / steps[0], batches[1] / steps[1]
        text = headline.headline_of_rates((names[0], rates[0]), (names[1], rates[1]), 'samples')
    return text + (f'; it {written.reason}' if written.reason else '')
