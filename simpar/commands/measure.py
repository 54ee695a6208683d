"""``simpar measure FILE``: run the very same program with torch.distributed, then compare with the prediction."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from simpar.case import Case, on_net
from simpar.commands.difference import check_plot, draw_difference
from simpar.commands.executor import need_torch, start
from simpar.commands.module import module_flags
from simpar.commands.statistic import statistic_json, statistic_line
from simpar.commands.waiting import case_waited_for
from simpar.compare import PERCENTILE, compare, comparison_to_dict, render_comparison
from simpar.errors import Problem, ScheduleError
from simpar.hardware.net import Net, parse_net
from simpar.janitor import remove_at_the_end
from simpar.predict import Prediction
from simpar.schedule.without_effect import without_effect_json, without_effect_line
from simpar.trace_files import SavedTrace, load_trace, to_trace

WARM_UP = 2


def command(options: argparse.Namespace) -> int:
    """Start the executor, read its trace, print the comparison."""
    # First of all, for what follows takes seconds.
    need_torch()
    check_plot(options)
    net = _net(options.net)
    case = on_net(case_waited_for(options), net)
    _emulates(case)
    with tempfile.TemporaryDirectory(prefix='simpar-') as folder:
        remove_at_the_end(Path(folder))
        recorded = Path(folder) / 'measured.json'
        flags = ['--compute', options.compute, '--net', options.net, '--timeout', options.timeout]
        # A step counts where it has a follower, if that matters.
        steps = WARM_UP + options.steps + case.program.followed
        flags += ['--steps', str(steps), '--seed', str(options.seed), '--save', str(recorded)]
        flags += ['--device', options.device]
        if options.save_state:
            flags += ['--save-state', str(options.save_state)]
        flags += module_flags(options)
        flags += [word for limit in options.limit for word in ('--limit', limit)]
        # In a process of its own: torch is never imported here.
        code = start('run', options.file, options.set, flags, silent=options.json)
        # Of the ranks that a launcher has started, the first alone has all times.
        if code or not recorded.exists():
            return code
        measured = load_trace(recorded)
        if options.save:
            from simpar.files import write_atomically

            # Copied before the comparison, so that a failure there does not cost the measurement.
            options.save.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(options.save, recorded.read_bytes())
    _answer(options, case, measured, net)
    return 0


def _emulates(case: Case) -> None:
    """Refuse a stack whose host waits: the executor issues without ever waiting, so it would measure another step."""
    stack = case.cluster.stack
    waits = stack.waits.at if stack and stack.waits else ()
    if stack and (waits or (stack.host and stack.host.step.value)):
        where = f' ({", ".join(waits)})' if waits else ''
        what = f'stack: the host of {stack.name} waits for the device{where}, which the executor does not emulate'
        raise ScheduleError(
            Problem('cluster', what, 'leave the stack out, or name one that waits for nothing, as eager')
        )


def _net(text: str) -> Net:
    """The network; what is wrong with it stands at its flag."""
    try:
        return parse_net(text)
    except ValueError as error:
        raise ScheduleError(Problem('--net', str(error))) from None


def _answer(options: argparse.Namespace, case: Case, measured: SavedTrace, net: Net) -> None:
    prediction = case.predict()
    comparison = compare(prediction.trace, measured, percentile=PERCENTILE, costs=prediction.costs)
    written = _write(options.trace, case, prediction, measured) if options.trace else []
    if options.plot:
        draw_difference(options.plot, prediction.trace, to_trace(measured, case.program), comparison)
        written.append(options.plot)
    note = _note(options, case)
    if options.json:
        told = {
            'statistic': statistic_json(comparison.steps),
            'network': _network(case, net),
            'without_effect': without_effect_json(prediction.without_effect),
            'note': note,
        }
        print(json.dumps({**comparison_to_dict(comparison), **told}, ensure_ascii=False, allow_nan=False))
        return
    sys.stdout.write(render_comparison(comparison))
    print(statistic_line(comparison.steps, comparison.origin))
    print(f'Network: {_network(case, net)}.')
    if prediction.without_effect:
        print(without_effect_line(prediction.without_effect))
    if note:
        print(f'Note: {note}')
    for path in written:
        print(f'wrote {path}')


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


def _note(options: argparse.Namespace, case: Case) -> str:
    """What the reader must know of a comparison with this machine."""
    name = case.cluster.profile.name
    if case.cluster.profile.library.name != 'gloo':
        return (
            f'the prediction is for {name}, the measurement was made on this machine with gloo; for a comparison write '
            'a profile of this machine with `simpar calibrate` and pass it as --set cluster=PROFILE.yaml'
        )
    if options.compute == 'emulated':
        return 'emulated compute checks order, streams and communication, not the seconds of computation'
    return ''
