"""``simpar run FILE``: predict a schedule; gain and why. ``simpar resolve FILE``: it, with every choice made, as YAML.

The YAML can be saved, reviewed and committed. ``simpar warmup`` compiles the machines once.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from simpar import errors, files, lower, pipeline, plans, predict, profiles, report
from simpar.case import Case, check_memory, memory_notes, on_net, written_out
from simpar.commands import answers, common
from simpar.cost.price import price
from simpar.engine import loop, simulate
from simpar.memory import memory
from simpar.throughput import Budget, parse_budget, run_line, run_to_dict, training_run
from simpar.workload import Transformer, Workload

if TYPE_CHECKING:
    from simpar.trace_files import SavedTrace


def run_command(options: argparse.Namespace) -> int:
    """Print the answer; write plot, trace files where asked; raise ``Infeasible`` where memory does not do."""
    budget = _budget(options.train)
    net = common.net_of(options)
    case = on_net(common.case_waited_for(options), net)
    # What is asked besides: its key in JSON, its value there, and its lines.
    more: list[tuple[str, Any, Iterable[str]]] = []
    if options.fit:
        from simpar.validate.anchor import fitted_case, read_own_step

        case, fit = fitted_case(case, read_own_step(options.fit))
        more.append(('fitted', asdict(fit), [fit.line]))
    if options.anchor:
        from simpar.validate.anchor import anchored

        case, anchor = anchored(case, options.anchor)
        more.append(('anchor', asdict(anchor), anchor.lines))
    prediction = _predicted(case, options.steps)
    if options.decides:
        decides = case.what_decides()
        head = 'What decides:' if decides else 'No number decides: none moves the answer by a thousandth.'
        values = [{**asdict(one), 'turns': one.turns} for one in decides]
        more.append(('decides', values, [head, *(f'  {one.line}' for one in decides)]))
    if budget:
        run = training_run(budget, case.throughput, prediction.step)
        more.append(('training', run_to_dict(budget, run), [run_line(budget, run, case.throughput)]))
    notes = (*case.notes, *memory_notes(case, prediction))
    with common.waiting('writing'):
        written = _write(options, prediction, case, notes)
    if options.json:
        answer = {**report.to_dict(prediction), 'parameters': case.parameters, **{key: value for key, value, _ in more}}
        answer['notes'] += notes
        answers.print_json({**answer, 'written': written})
    elif options.quiet:
        print(report.answer(prediction))
        for note in (*case.gaps, *case.left_out):
            print(f'Note: {note}', file=sys.stderr)
    else:
        _show(options, prediction, case, notes)
        for line in (*(line for *_, lines in more for line in lines), *(f'wrote {name}' for name in written)):
            print(line)
    # The answer is printed before memory is checked, so that it is seen even if the plan does not fit.
    sys.stdout.flush()
    check_memory(case, prediction)
    return 0


def _show(options: argparse.Namespace, prediction: predict.Prediction, case: Case, notes: tuple[str, ...]) -> None:
    """Print the answer, in brief or in full, and what its words mean."""
    if options.full:
        sys.stdout.write(report.render(prediction))
        for note in notes:
            print(f'Note: {note}')
    else:
        # What the user's file says and no prediction reads stands before all other notes; gaps stand in the headline.
        first = case.left_out
        sys.stdout.write(report.brief(prediction, (*first, *(note for note in notes if note not in first))))
    if options.legend:
        print()
        for row in files.read_csv(Path(__file__).with_name('legend.csv')):
            if row['stream'] != 'yes' or any(row['word'] in role.streams for role in case.program.roles):
                print(f'{row["word"]:16} {row["meaning"]}')


def _predicted(case: Case, steps: int) -> predict.Prediction:
    # Without a baseline there is one simulation alone, of which no share can be told.
    if case.baseline is None:
        with common.waiting('simulating') as notice:
            notice.most = common.most_seconds(case.schedule)
            return case.predict(steps)
    with common.Progress('simulations done', after=common.SHORT) as progress:
        return case.predict(steps, progress=progress)


def _budget(texts: Sequence[str]) -> Budget | None:
    try:
        return parse_budget(texts) if texts else None
    except ValueError as error:
        raise errors.refusal('--train', str(error)) from None


def _write_traces(options: argparse.Namespace, prediction: predict.Prediction, case: Case) -> list[str]:
    """Kineto files of the ranks and steps that were asked for."""
    from simpar.kineto import chosen_ranks, in_the_merged_file, write_kineto

    trace = prediction.trace.last(options.trace_steps) if options.trace_steps else prediction.trace
    world = trace.program.world
    if wrong := [rank for rank in options.trace_ranks if rank >= world]:
        raise errors.refusal('--trace-ranks', f'there is no rank {wrong[0]}', f'write ranks from 0 to {world - 1}')
    ranks = list(options.trace_ranks) or chosen_ranks(trace, 8)
    steps, merged = in_the_merged_file(trace, ranks)
    if (steps, merged) != (trace.steps, ranks):
        left = f'the merged file has the last {"step" if steps == 1 else f"{steps} steps"} of rank'
        numbers = f'{"s" if len(merged) > 1 else ""} {", ".join(map(str, merged))}'
        print(f'Note: {left}{numbers}; --trace-ranks and --trace-steps choose others', file=sys.stderr)
    library = case.cluster.profile.library.name.lower()
    paths = write_kineto(options.trace, trace, costs=prediction.costs, library=library, ranks=ranks)
    return [str(path) for path in paths]


def _write(options: argparse.Namespace, prediction: predict.Prediction, case: Case, notes: Sequence[str]) -> list[str]:
    written: list[str] = []
    if options.plot:
        from simpar.plot import write_figure

        write_figure(options.plot, prediction.timeline())
        written.append(str(options.plot))
    if options.html:
        from simpar.page import answer_page

        files.write_atomically(
            options.html,
            answer_page(prediction, schedule=common.schedule_text(options), notes=notes, about=common.about(case)),
        )
        written.append(str(options.html))
    if options.trace:
        written += _write_traces(options, prediction, case)
    if options.chakra:
        from simpar.chakra import write_chakra

        paths = write_chakra(options.chakra, prediction.trace, options.file.stem)
        written.append(f'{paths[0]} to {paths[-2].name}, {paths[-1].name}')
    if options.save:
        from simpar.trace_files import save_trace

        save_trace(options.save, _saved(options, prediction, case))
        written.append(str(options.save))
    return written


def _saved(options: argparse.Namespace, prediction: predict.Prediction, case: Case) -> SavedTrace:
    """Plan and baseline, with what they rest on, for `simpar compare` and `simpar diff`."""
    from simpar.saved_answer import to_answer
    from simpar.trace_files import to_saved

    def saved(one: predict.Prediction, of: Case) -> SavedTrace:
        network = common.predicted_net(of, common.net_of(options))
        return replace(to_saved(one.trace, one.costs), name=one.name, samples=of.workload.batch, net=network)

    below = prediction.baseline and case.baseline and saved(prediction.baseline, case.baseline)
    return replace(saved(prediction, case), answer=to_answer(case, prediction), baseline=below or None)


def resolve_command(options: argparse.Namespace) -> int:
    """Print the schedule; relative paths in it are from the current folder."""
    case = common.case_waited_for(options)
    with common.waiting('writing choices'):
        tree = written_out(case)
    if options.json:
        answers.print_json(tree)
    else:
        yaml.safe_dump(tree, sys.stdout, sort_keys=False, allow_unicode=True, width=120)
    limit = case.cluster.profile.device.sustained
    if limit is not None and predict.at_full_clocks(case.cluster) is not case.cluster:
        print(
            f'what is left open is priced at the sustained clock, {limit.value:g} of the full one; '
            'run takes the clock of its step',
            file=sys.stderr,
        )
    if case.schedule.sweep is not None:
        print('the sweep of the file is left out: every row has choices of its own', file=sys.stderr)
    return 0


def warmup_command(options: argparse.Namespace) -> int:
    """Simulate a program that is no longer small to any kernel, and time orders of a pipeline."""
    # Numba is imported only where it runs.
    from simpar.compiler import is_kept

    begun = time.monotonic()
    workload = Workload(model=Transformer(layers=8, hidden=64, heads=4, vocab=64, sequence=32), batch=128)
    program = lower.lower(workload, plans.Plan(tensor=2, pipeline=2, data=2, micro_batches=64), 8)
    _ = memory(simulate(program, price(program, profiles.cluster(profiles.load_profile('h100-sxm-8'))))).peak
    pipeline.automatic_order(2, pipeline.StageTimes.uniform(2, 1.0, 1.0, 1.0), 2)
    seconds = time.monotonic() - begun
    if options.json:
        print(json.dumps({'seconds': round(seconds, 3)}))
    elif is_kept(loop.events.compiled):
        print(f'The machines are compiled ({seconds:.1f} s); from now on they are loaded from the disk.')
    else:
        print(f'The machines are compiled ({seconds:.1f} s), but no folder could be written: set NUMBA_CACHE_DIR.')
    return 0
