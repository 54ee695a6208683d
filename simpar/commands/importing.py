"""``simpar import FILE``: another launcher's file as a schedule, or a profiler's recording as a profile; ``init``.

Of a launcher's file: what became of each setting. Of a recording: how busy the device was, and what its ops took.
``simpar init`` writes a first schedule, with comments, from a model, devices and a batch.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from simpar import calibrate, predict, profiles, schedule, size, trace_files, workload
from simpar.case import Case, cluster_of, load_case
from simpar.commands import answers, common
from simpar.commands.trace import trace_lines, trace_to_dict
from simpar.cost import compute, price
from simpar.document import override, tree
from simpar.errors import Infeasible, Problem, ScheduleError, refusal, refuse
from simpar.files import write_atomically
from simpar.huggingface.families import MODELS
from simpar.importing import findings, mapping, read
from simpar.importing.first import NONE, Degrees, First, Question, Step, compared, first_schedules, questions
from simpar.recording.join import Join, Joined, named, program_key
from simpar.recording.readers import NO_COPIES, Copies, joined, measured_trace, write_measured, write_stack
from simpar.traces import RankTrace, is_trace, kineto, read_traces
from simpar.units import format_time

_ANY: Final = size.Limit(memory=float('inf'), seconds=float('inf'))


def import_command(options: argparse.Namespace) -> int:
    """Write the schedule, and list the settings; of a profiler's recording, see ``import_trace``."""
    if is_trace(options.file):
        return import_trace(options)
    what, useless = f'is of recordings of a profiler, and {options.file} is none', []
    useless += [Problem('--for', what, 'leave it out')] if options.schedule else []
    useless += [Problem('--save', what, 'write --output FILE for the schedule')] if options.save else []
    refuse(useless)
    file_settings, over = _split_settings(options.set)
    made = read.imported(
        options.file,
        given=file_settings,
        profile=options.cluster or '',
        model=options.model or '',
        arguments=options.arguments,
    )
    if options.model and options.output:
        # Paths in a schedule are from its folder.
        over['workload.model'] = os.path.relpath(options.model, options.output.parent)
    made = replace(made, values={**made.values, **over}, comments={**made.comments, **dict.fromkeys(over, '--set')})
    _read_back(mapping.schedule_text(made, options.file.name), options)
    text = with_baseline(
        made.values, lambda question: mapping.schedule_text(made, options.file.name, question), _beside(options)
    )
    if options.json:
        answers.print_json(_import_json(made, text))
    else:
        print(mapping.listing(made, full=options.full), file=sys.stderr)
    if options.output:
        write_atomically(options.output, text)
    elif not options.json:
        sys.stdout.write(text)
    return 0


def _beside(options: argparse.Namespace) -> list[str]:
    """What the schedule says where it is read from this folder, not from its own."""
    return [f'workload.model={options.model}'] if options.model else []


def _read_back(text: str, options: argparse.Namespace) -> None:
    """Read and lower what was written; what does not fit is told of the file that it comes from."""
    try:
        load_case(text, _beside(options), limit=_ANY)
    except Infeasible as error:
        what, _, instead = f'{error}'.partition('; ')
        what = f'the schedule that it comes to cannot be: {what}'
        raise refusal(f'{options.file}', what, instead or '--set says another plan') from None
    except ScheduleError as error:
        what = 'in the schedule that it comes to, '
        problems = [
            Problem(f'{options.file}', f'{what}{_of_line(text, one.place)}{one.what}', one.instead)
            for one in error.problems
        ]
        raise ScheduleError(problems) from None


def _of_line(text: str, place: str) -> str:
    """What a line of the schedule comes from, by its comment."""
    number = place.rpartition(':')[2]
    line = text.splitlines()[int(number) - 1] if number.isdecimal() and int(number) <= text.count('\n') else ''
    return f'of {line.partition("# ")[2].strip()}: ' if '# ' in line else ''


def _split_settings(settings: list[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """What ``--set`` says of the file, and what of the schedule: keys of that begin with a part of it."""
    file_settings: dict[str, str] = {}
    over: dict[str, Any] = {}
    for setting, (name, value) in zip(settings, common.named_values(settings, '--set'), strict=True):
        if name.split('.')[0] in ('workload', 'plan', 'cluster'):
            over[name] = override(tree.parse('{}', setting), [setting]).get(tuple(name.split('.')))
        else:
            file_settings[name] = value
    return file_settings, over


def _import_json(made: mapping.Import, text: str) -> dict[str, Any]:
    mapped = sum(line.outcome == findings.MAPPED for line in made.lines)
    return {
        'kind': made.kind, 'schedule': text, 'mapped': mapped, 'listed': len(made.lines) - mapped,
        'settings': [asdict(line) for line in made.lines], 'assumed': list(made.assumed), 'notes': list(made.notes),
    }  # fmt: skip


SHOWN: Final = 12
DATE: Final = '%Y-%m-%d'


@dataclass(frozen=True)
class _Beside:
    """A recording beside the prediction of its schedule.

    Arguments: ``priced``, seconds of each line as the schedule's cluster has them; ``written``, the profile's files,
    and the step that it predicts; ``saved``, the share of the program's ops that the saved trace has times of.
    """

    join: Join
    step: float
    priced: dict[Any, float]
    written: tuple[Path, ...] = ()
    after: float = 0.0
    saved: float = 0.0


def import_trace(options: argparse.Namespace) -> int:
    """Say how busy each rank was; join with a schedule and write a profile where asked."""
    refuse(_useless_flags(options))
    traces = read_traces(options.file, host=True)
    beside = _joined(options, traces) if options.schedule else None
    answers.print_answer(
        options,
        lambda: trace_to_dict(traces) | (_joined_json(beside) if beside else {}),
        lambda: ''.join(f'{line}\n' for line in (*trace_lines(traces), *(('', *_table(beside)) if beside else ()))),
    )
    return 0


def _useless_flags(options: argparse.Namespace) -> Iterator[Problem]:
    """Flags that would change nothing."""
    for flag, option in (('--set', options.set), ('--model', options.model), ('--cluster', options.cluster)):
        if option:
            yield Problem(flag, 'a recording has no settings', 'leave it out, or write it into the schedule of --for')
    for flag, option, what in (('--output', options.output, 'profile'), ('--save', options.save, 'measured trace')):
        if option and not options.schedule:
            yield Problem(flag, f"a {what} is written of a schedule's ops", 'write --for SCHEDULE.yaml too')
    if options.output:
        calibrate.require_profile_path(options.output)


def _joined(options: argparse.Namespace, traces: Sequence[RankTrace]) -> _Beside:
    case, torch = load_case(options.schedule), all(trace.format == kineto.KINETO for trace in traces)
    if options.save and not torch:
        raise refusal('--save', 'a table of kernels does not say which layer each is of', 'leave it out')
    join = joined(case.program, traces)
    beside = _written(options, case, join, traces[0].device or ('a host' if torch else 'Ascend'))
    if not options.save:
        return beside
    trace, saved = measured_trace(case.program, traces)
    trace_files.save_trace(options.save, trace)
    return replace(beside, saved=saved)


def _written(options: argparse.Namespace, case: Case, join: Join, device: str) -> _Beside:
    """What was joined beside the prediction, and the profile of it where one is asked for."""
    if not join.lines:
        what, instead = f'holds no op of {options.schedule}', 'record with record_shapes=True; check the batch'
        raise refusal(options.file, what, instead)
    step, priced = predict.step_of(case.program, case.cluster), _priced(case)
    if not options.output:
        return _Beside(join, step, priced)
    source = f'{options.file.name}, recorded ops of {device}, read {datetime.now(timezone.utc):{DATE}}'
    files = write_measured(
        options.output, case.schedule.cluster.profile, join, source, str(case.workload.precision), copies_of(case)
    )
    over = [f'cluster.profile={options.output.resolve()}']
    stack = case.cluster.stack
    if join.issue and stack and stack.name in profiles.stack_names():
        files.append(options.output.with_name(f'{options.output.stem}.stack.yaml'))
        write_stack(files[-1], stack, join, source)
        over.append(f'cluster.stack={files[-1].resolve()}')
    again = load_case(options.schedule, over)
    return _Beside(join, step, priced, tuple(files), predict.step_of(again.program, again.cluster))


def copies_of(case: Case) -> Copies:
    """Seconds of a rank's step that its cluster takes copies for messages to last, as its framework does them."""
    profile, stack, program = case.cluster.profile, case.cluster.stack, case.program
    if stack is None:
        return NO_COPIES
    framework = compute.StackCompute(compute.DeviceCompute(profile), profile, stack)
    ops = [program.op_classes[index] for index in program.role(0).op_class.tolist()]
    return Copies(sum(map(framework.copying, ops)), sum(map(framework.calling, ops)))


def _priced(case: Case) -> dict[Any, float]:
    """What the schedule's own cluster makes of each kind of op, in seconds."""
    costs, program = price.price(case.program, case.cluster), case.program
    seconds = {}
    for index, op in enumerate(program.op_classes):
        key = program_key(program, op)
        if key is not None:
            talk = costs.communication.get(index)
            seconds[key] = float(costs.compute[index]) if talk is None else talk[0].alpha + talk[0].transfer
    return seconds


def _table(beside: _Beside) -> Iterator[str]:
    join = beside.join
    yield f'step      recorded {format_time(join.step)}, predicted {format_time(beside.step)}'
    if join.step:
        yield f'matched   {join.matched / join.step:.0%} of the recorded step is in ops that the schedule has'
        yield f'          {join.share:.0%} of the time of recorded ops, collectives among them'
    yield ''
    yield f'{"op":34} {"recorded":>10} {"predicted":>10}  a step: program, recorded'
    lines = sorted(join.lines, key=lambda line: -line.seconds * line.recorded)
    yield from (_line(line, beside) for line in lines[:SHOWN])
    if len(lines) > SHOWN:
        yield f'and {len(lines) - SHOWN} more'
    if join.missing:
        names = ', '.join(f'{name} ({often})' for name, often in _missing(join).most_common(SHOWN))
        yield f'Not in the recording: {names}'
    if beside.saved:
        yield f"the saved trace has times of {beside.saved:.0%} of the program's ops; the others take none in it"
    if beside.written:
        files = f'{beside.written[0]} and {len(beside.written) - 1} more'
        yield f'wrote {files}: with them the predicted step is {format_time(beside.after)}'


def _missing(join: Join) -> Counter[str]:
    names: Counter[str] = Counter()
    for key, often in join.missing:
        names[named(key)] += often
    return names


def _line(line: Joined, beside: _Beside) -> str:
    predicted = beside.priced.get(line.key)
    text = format_time(predicted) if predicted is not None else '-'
    return f'{named(line.key):34} {format_time(line.seconds):>10} {text:>10}  {line.program}, {line.recorded:.3g}'


def _joined_json(beside: _Beside) -> dict[str, Any]:
    join = beside.join
    return {
        'step': {
            'recorded': join.step,
            'predicted': beside.step,
            'matched': join.matched,
            'share': join.share,
            'messages': join.messages,
        },
        'ops': [asdict(line) | {'predicted': beside.priced.get(line.key)} for line in join.lines],
        'missing': dict(_missing(join)),
        'written': [str(path) for path in beside.written],
        'saved': beside.saved,
        'predicted_with_them': beside.after if beside.written else None,
    }


def init_command(options: argparse.Namespace) -> int:
    """Write it where it is asked for, once it has been read back."""
    profile = profiles.profile_of_flag(options.cluster, '--cluster')
    sizes, model = _sizes(options.model, options.sequence)
    firsts = first_schedules(
        sizes, profile, nodes=options.nodes, devices=0 if options.devices == profile.devices else options.devices or 0,
        batch=options.batch, sequence=options.sequence, model=model,
    )  # fmt: skip
    first, lines = _fastest(firsts)
    text = with_baseline(first.values, lambda question: first.text(question, lines))
    if options.output:
        if model:
            # Paths in a schedule are from its folder.
            relative = os.path.relpath(model, options.output.parent)
            text = text.replace(f'model: {json.dumps(model)}', f'model: {json.dumps(relative)}')
        write_atomically(options.output, text)
        print(json.dumps({'written': str(options.output)}) if options.json else f'wrote {options.output}')
    else:
        answers.print_answer(options, lambda: {'schedule': text}, lambda: text)
    return 0


def _fastest(firsts: Sequence[First]) -> tuple[First, tuple[str, ...]]:
    """The schedule with the shortest predicted step of those that fit, and lines on all that were predicted."""
    by_degrees: dict[Degrees, First] = {}
    steps: dict[Degrees, Step] = {}
    for first in firsts:
        full = [first.with_full_recomputation()] if first.plan.recompute != 'full' else []
        for one in (first, *full):
            step = _predicted(one) if one.plan not in steps else None
            if step is not None:
                by_degrees[one.plan], steps[one.plan] = one, step
            if step is None or step.fits:
                break
    # Where none can be predicted, the one that holds least, which the user is told of when it runs.
    best = min(steps, key=lambda plan: (not steps[plan].fits, steps[plan].seconds), default=firsts[0].plan)
    return by_degrees.get(best, firsts[0]), compared(steps)


def _predicted(first: First) -> Step | None:
    """A step of a schedule; None where it cannot be predicted.

    Of many micro-batches the ones behind the first rounds take equal times: the step of all is drawn on from two.
    """
    stages, micro = first.plan.pipeline, first.values['plan.micro_batches']
    if micro <= 2 * stages:
        return _step(first, micro)
    short, long = _step(first, stages), _step(first, 2 * stages)
    if short is None or long is None:
        return None
    each = (long.seconds - short.seconds) / stages
    return Step(long.seconds + each * (micro - 2 * stages), long.fits)


def _step(first: First, micro_batches: int) -> Step | None:
    """A step of fewer micro-batches, each as large as those of the schedule."""
    batch = first.values['workload.batch'] * micro_batches // first.values['plan.micro_batches']
    fewer = [f'workload.batch={batch}', f'plan.micro_batches={micro_batches}']
    try:
        prediction = load_case(first.text(), fewer).predict()
    except (ScheduleError, Infeasible):
        return None
    return Step(prediction.step, bool(prediction.fits))


def _sizes(model: str, sequence: int) -> tuple[Mapping[str, Any], str]:
    """Sizes of a model of the library, or those that a config has, and its path."""
    if model.lower() in MODELS:
        return MODELS[model.lower()], ''
    if not model.endswith('.json'):
        choices = f'one of {", ".join(MODELS)}, or a config.json'
        raise refusal('--model', f'no known model ({model[:40]!r})', choices)
    probe = {'simpar': 1, 'cluster': 'h100-sxm-8', 'workload': {'model': model, 'sequence': sequence, 'batch': 65536}}
    network = schedule.load_schedule({**probe, 'plan': {'data': 8}}).workload.model
    assert isinstance(network, workload.Transformer)
    return asdict(network), model


def with_baseline(values: Mapping[str, Any], text: Callable[[Question], str], overrides: Sequence[str] = ()) -> str:
    """The text of a schedule, with a baseline if one fits it.

    Arguments: ``values`` of the schedule by dotted key; ``text``, which writes it with a baseline; ``overrides``,
    ``key=value``, beside what it says.
    Raises ``ScheduleError`` where the schedule itself is wrong.
    """
    world = cluster_of(schedule.load_schedule(text(NONE), overrides)).world
    fitting = (one for one in questions(values, world) if _is_predicted(text(one), overrides))
    return text(next(fitting, NONE))


def _is_predicted(text: str, overrides: Sequence[str]) -> bool:
    """Whether the baseline of a schedule is a schedule that fits its cluster."""
    try:
        baseline = schedule.load_schedule(text, overrides).baseline()
        return baseline is not None and bool(schedule.check_against_cluster(baseline, cluster_of(baseline).world))
    except ScheduleError:
        return False
