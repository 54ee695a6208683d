"""``simpar measure FILE``: run plan and baseline with torch.distributed in turns; the gain predicted and measured.

``simpar compare PREDICTION MEASUREMENT`` joins two traces of the same program; ``simpar diff OLD NEW`` tells what
changed between two saved answers, in simpar, the profile or the schedule.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simpar import comparison as comparing
from simpar import errors, files, numbers
from simpar.case import Case, on_net
from simpar.commands import common
from simpar.commands.answers import print_answer, print_json
from simpar.comparison import Comparison, Gain, Side
from simpar.hardware.net import Net
from simpar.keys import without_effect_json, without_effect_line
from simpar.predict import Prediction
from simpar.saved_answer import difference, difference_to_dict, render_difference
from simpar.schedule.contents import STACK
from simpar.trace import PERCENTILE, Trace
from simpar.trace_files import SavedTrace, load_trace, save_trace, to_trace


def statistic_line(steps: int, origin: str) -> str:
    """What of the measured steps is compared, in words; arguments: how many, and how they came about."""
    if steps == 1 or origin == 'simulated':
        return f'Compared: the last predicted step with {"the only" if steps == 1 else "the last"} {origin} one.'
    return (
        f'Compared: the last predicted step with the {PERCENTILE:.0f}th percentile of {steps} {origin} steps; '
        'ops by their medians.'
    )


def statistic_json(steps: int) -> dict[str, Any]:
    """The same for ``--json``."""
    return {'percentile': PERCENTILE, 'of_steps': steps, 'ops': 'median'}


def draw_difference(
    path: Path, predicted: Trace, measured: Trace, comparison: Comparison, gain: Gain | None = None
) -> None:
    """Write the picture, with the gain in its title where there is one; raises ``OSError``."""
    from simpar.notebook import difference_picture
    from simpar.plot import write_figure

    title = comparing.gain_line(gain) if gain and gain.baseline else ''
    write_figure(path, difference_picture(predicted, measured, comparison, title))


def compare_command(options: argparse.Namespace) -> int:
    """Print signed errors; raises ``OutsideTolerance`` where the step differs by more than asked."""
    predicted, measured = load_trace(options.prediction), load_trace(options.measurement)
    _refuse_swapped(options, predicted, measured)
    gain = comparing.gain_of(predicted, measured)
    comparison = gain.plan.comparison if gain else comparing.compare(predicted, measured)
    if options.plot:
        _draw(options.plot, predicted, measured, comparison, gain)
    if options.json:
        summary = comparing.gain_to_dict(gain) if gain else comparing.comparison_to_dict(comparison)
        print_json({**summary, 'statistic': statistic_json(comparison.steps)})
    else:
        sys.stdout.write(comparing.render_gain(gain) if gain else comparing.render_comparison(comparison))
        print(statistic_line(comparison.steps, comparison.origin))
    if options.tolerance is not None:
        sys.stdout.flush()
        comparison.check(options.tolerance)
    return 0


def _refuse_swapped(options: argparse.Namespace, prediction: SavedTrace, measurement: SavedTrace) -> None:
    """Raise ``ScheduleError`` where the first trace is no prediction."""
    if prediction.origin == 'simulated':
        return
    what = f'the first trace is {prediction.origin}, not predicted (its origin is not simulated)'
    instead = 'give the trace of `simpar run --save` first'
    if measurement.origin == 'simulated':
        instead = f'swap the two: simpar compare {options.measurement} {options.prediction}'
    raise errors.refusal(options.prediction, what, instead)


def _draw(path: Path, predicted: SavedTrace, measured: SavedTrace, comparison: Comparison, gain: Gain | None) -> None:
    """The picture; it needs the program, which the prediction brings."""
    if predicted.basis is None:
        what = 'the prediction does not hold its program, without which nothing can be drawn'
        raise errors.refusal('--plot', what, 'write it again with `simpar run --save`')
    program = predicted.basis.program
    draw_difference(path, to_trace(predicted, program), to_trace(measured, program), comparison, gain)


def diff_command(options: argparse.Namespace) -> int:
    """Print what changed; raises ``ScheduleError`` where a file is no saved answer."""
    changes = difference(load_trace(options.old), load_trace(options.new), (str(options.old), str(options.new)))
    print_answer(options, lambda: difference_to_dict(changes), lambda: render_difference(changes))
    return 0


WARM_UP = 2
NO_FRAMEWORK = 'cluster.stack=none'
"""What is set where the stack is only the default: the executor is no framework."""


def measure_command(options: argparse.Namespace) -> int:
    """Start the executor, read its traces, print gain and comparison."""
    # First of all, for what follows takes seconds.
    common.need_torch()
    net = common.net_of(options)
    case, left_out = _without_framework(options)
    case = on_net(case, net)
    if options.baseline == 'none':
        case = replace(case, baseline=None)
    elif options.baseline == 'itself':
        case = replace(case, baseline=replace(case, baseline=None))
    for one in (case, case.baseline):
        _emulates(one)
    with tempfile.TemporaryDirectory(prefix='simpar-') as folder:
        files.remove_at_the_end(Path(folder))
        recorded, other = Path(folder) / 'measured.json', Path(folder) / 'baseline.json'
        ops = Path(folder) / 'ops.json' if options.time_ops else None
        # In a process of its own: torch is never imported here.
        flags = [*_flags(options, case, recorded, other), *(['--time-ops', str(ops)] if ops else [])]
        code = common.start('run', options.file, options.set, flags, silent=options.json)
        # Of the ranks that a launcher has started, the first alone has all times.
        if code or not recorded.exists():
            return code
        measured = _named(load_trace(recorded), case, _names(options, case)[0])
        if case.baseline and other.exists():
            baseline = _named(load_trace(other), case.baseline, _names(options, case)[1])
            measured = replace(measured, baseline=baseline)
        if options.save:
            # Before the comparison, so that a failure there does not cost the measurement.
            save_trace(options.save, measured)
        timed = json.loads(ops.read_text(encoding='utf-8')) if ops else {}
    _answer(options, case, measured, net, left_out, timed)
    return 0


def _without_framework(options: argparse.Namespace) -> tuple[Case, str]:
    """The case as the executor runs it, and what to say where the default stack is left out for that."""
    case = common.case_waited_for(options)
    stack = case.cluster.stack
    if stack is None or not case.schedule.framework_is_default:
        return case, ''
    # Set, and not cut from the case: the executor reads the same file. What the framework fills in stays, as of `run`.
    filled = case.schedule.of_stack - {STACK}
    keys = (f'{errors.dotted(key)}={json.dumps(case.schedule.value(errors.dotted(key)))}' for key in sorted(filled))
    options.set = [*options.set, NO_FRAMEWORK, *keys]
    line = f'The executor runs kernels without a framework, so the prediction leaves the framework out ({stack.name}).'
    case = common.case_waited_for(options)
    return replace(case, schedule=replace(case.schedule, of_stack=filled)), line


def _flags(options: argparse.Namespace, case: Case, recorded: Path, other: Path) -> list[str]:
    """The executor's flags."""
    flags = ['--compute', options.compute, '--net', options.net, '--timeout', options.timeout]
    # A step counts where it has a follower, if that matters.
    steps = WARM_UP + options.steps + case.program.followed
    flags += ['--steps', str(steps), '--measured', str(options.steps), '--seed', str(options.seed)]
    flags += ['--save', str(recorded), '--device', options.device]
    if case.baseline:
        flags += ['--save-baseline', str(other)]
        flags += ['--against-itself'] if options.baseline == 'itself' else []
    if options.save_state:
        flags += ['--save-state', str(options.save_state)]
    return [*flags, *common.executor_flags(options)]


def _names(options: argparse.Namespace, case: Case) -> tuple[str, str]:
    """What plan and baseline are called."""
    return ('plan', 'the same plan') if options.baseline == 'itself' else case.names


def _named(measured: SavedTrace, case: Case, name: str) -> SavedTrace:
    return replace(measured, name=name, samples=case.workload.batch)


def _emulates(case: Case | None) -> None:
    """Refuse a stack whose host waits: the executor issues without ever waiting, so it would measure another step."""
    stack = case.cluster.stack if case else None
    waits = stack.waits.at if stack and stack.waits else ()
    if stack and (waits or (stack.host and stack.host.step.value)):
        where = f' ({", ".join(waits)})' if waits else ''
        what = f'stack: the host of {stack.name} waits for the device{where}, which the executor does not emulate'
        raise errors.refusal('cluster', what, 'leave the stack out, or name one that waits for nothing, as eager')


def _answer(
    options: argparse.Namespace,
    case: Case,
    measured: SavedTrace,
    net: Net,
    left_out: str,
    timed: Mapping[str, Mapping[str, float]],
) -> None:
    prediction = replace(case.predict(pricing=numbers.pricing_by(timed) if timed else None), name=measured.name)
    gain = Gain(plan=_side(prediction, measured))
    if measured.baseline and prediction.baseline:
        below = replace(prediction.baseline, name=measured.baseline.name)
        gain = replace(gain, baseline=_side(below, measured.baseline))
    comparison, unlike = gain.plan.comparison, _unlike(options, case)
    notes = [*filter(None, [left_out]), *_notes(options, case, measured, prediction if timed else None)]
    written = _write(options.trace, case, prediction, measured) if options.trace else []
    if options.plot:
        draw_difference(options.plot, prediction.trace, to_trace(measured, case.program), comparison, gain)
        written.append(options.plot)
    if options.html:
        written.append(
            _page(
                options,
                case,
                prediction,
                gain,
                [comparing.verdict(gain, unlike), *_comparison_lines(case, gain, net), *notes],
            )
        )
    if options.json:
        extra = {
            'statistic': statistic_json(comparison.steps),
            'network': _network(case, net),
            'without_effect': without_effect_json(prediction.without_effect),
            'note': ' '.join(notes),
        }
        print_json({**comparing.gain_to_dict(gain), **extra, **({'verdict': unlike} if unlike else {})})
        return
    sys.stdout.write(comparing.render_gain(gain, unlike=unlike))
    for line in _comparison_lines(case, gain, net):
        print(line)
    if prediction.without_effect:
        print(without_effect_line(prediction.without_effect))
    for note in notes:
        print(f'Note: {note}')
    for path in written:
        print(f'wrote {path}')


def _side(prediction: Prediction, measured: SavedTrace) -> Side:
    comparison = comparing.compare(prediction.trace, measured, costs=prediction.costs)
    trace = to_trace(measured, prediction.program)
    return comparing.side_of(measured.name, prediction.trace, trace, comparison, measured.samples)


def _comparison_lines(case: Case, gain: Gain, net: Net) -> list[str]:
    """What is compared, in words."""
    comparison = gain.plan.comparison
    turns = ' Plan and baseline ran in turns.' if gain.baseline else ''
    return [f'{statistic_line(comparison.steps, comparison.origin)}{turns}', f'Network: {_network(case, net)}.']


def _page(options: argparse.Namespace, case: Case, prediction: Prediction, gain: Gain, lines: list[str]) -> Path:
    """The answer's page, with what was measured above."""
    from simpar.page import answer_page
    from simpar.page.page import table_html

    page = answer_page(
        prediction,
        schedule=common.schedule_text(options),
        notes=lines,
        headline=comparing.gain_line(gain),
        about=common.about(case),
        measured=table_html(comparing.gain_table(gain)),
    )
    path: Path = options.html
    files.write_atomically(path, page)
    return path


def _network(case: Case, net: Net) -> str:
    """Which network was measured, and which predicted."""
    profile = case.cluster.profile
    if not net.shaped:
        other = f', which was measured on --net {profile.net}' if profile.net not in ('', 'none') else ''
        return f'measured as it is, predicted by the links of {profile.name}{other}'
    if profile.net == str(net):
        return f'{net}, both measured and predicted'
    return f'{net}; predicted by the links of {profile.name}, which was calibrated on it'


def _write(folder: Path, case: Case, prediction: Prediction, measured: SavedTrace) -> list[Path]:
    """Both traces for Perfetto, one beside the other."""
    from simpar.kineto import write_kineto

    library = case.cluster.profile.library.name.lower()
    both = to_trace(measured, case.program)
    return write_kineto(folder, prediction.trace, measured=both, costs=prediction.costs, library=library)


def _notes(options: argparse.Namespace, case: Case, measured: SavedTrace, timed: Prediction | None) -> list[str]:
    """What the reader must know of a comparison with this machine; arguments: ``timed``, by ops timed beside it."""
    notes = []
    if timed and timed.costs:
        before = case.costs.compute
        ops = case.program.role(0).op_class
        times = timed.costs.compute[ops].sum() / before[ops].sum()
        notes.append(f'ops were timed between the steps: they take {times:.2f} times as long as by the profile')
    if case.baseline and measured.baseline is None:
        notes.append('a launcher has started the ranks for the plan, so its baseline is not measured')
    if options.compute == 'emulated' and not _unlike(options, case):
        notes.append('emulated compute checks order, streams and communication, not the seconds of computation')
    return notes


def _unlike(options: argparse.Namespace, case: Case) -> str:
    """Why prediction and measurement are of machines that cannot be compared; empty where they can."""
    profile = case.cluster.profile
    # Emulated ops take what is predicted, and a shaped network is the one that is predicted on.
    shaped = options.compute == 'emulated' and options.net != 'none'
    if profile.library.name == 'gloo' or options.device in ('cuda', 'npu') or shaped:
        return ''
    return (
        f'The prediction is for {profile.name}, the measurement is of this machine with gloo: their seconds cannot be '
        'compared; write a profile of this machine with `simpar calibrate`, and pass it as --set cluster=PROFILE.yaml.'
    )
