"""The verbs of measurements: ``calibrate`` this machine, ``validate`` published steps, ``replay`` a recorded job."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from simpar import calibrate, chakra, errors, profiles, recording, shipped, size, units
from simpar.commands import answers, common
from simpar.recording import replay as recording_text
from simpar.validate import memory, run
from simpar.validate.rows import other_files, read_rows
from simpar.validate.text import memory_to_dict, render, render_memory, to_dict

BENCH = (sys.executable, '-m', 'executor.bench')


def calibrate_command(options: argparse.Namespace) -> int:
    """Measure, write the profile and its tables, and say what was not measured well."""
    # Before minutes of measuring.
    calibrate.require_profile_path(options.output)
    if options.ranks < 2:
        raise errors.refusal('--ranks', 'a profile needs collectives', 'write 2 or more')
    common.need_torch()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / 'bench.json'
        flags = ['--ranks', str(options.ranks), '--net', options.net, '--compute', options.compute]
        flags += ['--device', options.device, '--dtype', options.dtype]
        # Beside the profile: a calibration that was broken off goes on there.
        flags += ['--output', str(file), '--journal', f'{options.output}.journal']
        # In a process of its own, since simpar never imports torch.
        code = subprocess.run([*BENCH, *flags, *(['--quick'] if options.quick else [])], check=False).returncode
        if code:
            return code
        calibration = calibrate.calibrate(calibrate.load_record(file))
    written = calibrate.write_profile(options.output, calibration)
    # Read back at once: a profile that cannot be used should fail here, not in the next run.
    profiles.load_profile(options.output)
    answers.print_answer(
        options, lambda: profile_to_dict(calibration, written), lambda: render_profile(calibration, written)
    )
    return 0


def profile_to_dict(calibration: calibrate.Calibration, written: list[Path]) -> dict[str, object]:
    """The answer as one object; times in seconds, rates in bytes and operations a second."""
    return {
        'profile': str(written[0]),
        # A stack, which devices have, comes behind them.
        'tables': {kind: str(path) for kind, path in zip(calibration.tables, written[1:], strict=False)},
        'stack': str(written[-1]) if calibration.record.launches else None,
        'source': calibration.source,
        'net': calibration.record.net,
        'numbers': {
            key: {'value': number.value, 'grade': number.grade, 'source': number.source, 'flags': list(number.flags)}
            for key, number in calibration.numbers.items()
        },
        'grades': {kind: table.grade for kind, table in calibration.tables.items()},
        'flags': list(calibration.flags),
        'notes': list(calibration.record.notes),
    }


def render_profile(calibration: calibrate.Calibration, written: list[Path]) -> str:
    """The answer for a person."""
    value = {key: number.value for key, number in calibration.numbers.items()}
    emulated = calibration.record.compute == 'emulated'
    latency, start = (units.format_time(value[key]) for key in ('links.latency', 'library.start'))
    alpha = f'{latency} a step and {start} a collective'
    tables = ', '.join(f'{kind} {len(table.lines)} lines ({table.grade})' for kind, table in calibration.tables.items())
    compute = ', emulated compute' if emulated else ''
    spread = ', '.join(f'{kind} {table.spread:.1%}' for kind, table in calibration.tables.items())
    record = calibration.record
    lines = [
        f'{record.ranks} ranks of a {record.machine}, network {record.net}{compute}',
        *([] if emulated else _computing(value, calibrate.figures.peak_of(calibration.record))),
        f'  network          {units.format_rate(value["links.bandwidth"])}, {alpha}',
        f'  spread           {spread} (median of the CVs)',
        *([] if emulated else [_beside(value)]),
        f'  tables           {tables}',
    ]
    wrong = list(calibration.summary())
    lines += ['uncertain, and therefore of grade estimate:', *(f'  {line}' for line in wrong)] if wrong else []
    lines += [f'wrote {path}' for path in written]
    return '\n'.join(lines) + '\n'


def _computing(value: dict[str, float], peak: str) -> list[str]:
    return [
        f'  matrix products  up to {value[peak] / 1e9:.4g} GFLOP/s in {peak.rpartition(".")[2]}',
        f'  memory           up to {units.format_rate(value["device.memory.bandwidth"])}',
    ]


def _beside(value: dict[str, float]) -> str:
    speeds = ', '.join(f'{what} {value[f"slow_down.{what}"]:.2f}' for what in ('matrix', 'memory', 'collective'))
    return f'  speed beside one another: {speeds}'


def validate_command(options: argparse.Namespace) -> int:
    """Predict every row, print the scores, draw where asked."""
    if options.memory:
        return _memory(options)
    rows = read_rows(options.data or shipped.measured_folder(), options.only or '')
    if options.data and not options.only:
        # Files that are no sets of steps are left out, but not in silence.
        for path, lacks in other_files(options.data):
            print(f'{path.name} is left out, as it is no set of steps: {lacks.what}', file=sys.stderr)
    with common.Progress() as progress:
        scores = run.answers(run.outcomes(rows, options.jobs, progress, size.parse_limit(options.limit)))
    if options.plot:
        from simpar.plot import write_figure
        from simpar.validate.text import scatter

        write_figure(options.plot, scatter(scores))
    wrote = f'wrote {options.plot}\n' if options.plot else ''
    answers.print_answer(options, lambda: to_dict(scores), lambda: render(scores) + wrote)
    return 0


def _memory(options: argparse.Namespace) -> int:
    """The same of bytes."""
    without = memory.known_facts(name.strip() for name in options.without.split(',') if name.strip())
    rows = read_rows(options.data or shipped.measured_folder() / 'memory', options.only or '')
    with common.Progress() as progress:
        pairs, skipped = memory.memory_pairs(rows, without, progress)
    answers.print_answer(options, lambda: memory_to_dict(pairs, skipped), lambda: render_memory(pairs, skipped))
    return 0


def replay_command(options: argparse.Namespace) -> int:
    """Read the recorded ops, replay them, tell what is lost."""
    if chakra.is_chakra(options.file):
        return _chakra(options)
    if options.cluster:
        raise errors.refusal('--cluster', 'recorded ops have durations', 'leave it out')
    if options.file.is_dir():
        what = 'a folder without Chakra traces, NAME.RANK.et'
        raise errors.refusal(options.file, what, 'name a file of recorded ops, or another folder')
    job = recording.read_job(options.file)
    scale = recording.chosen_ops(job, options.scale)
    with common.Progress() as progress:
        report = recording.straggling(job, scale, progress)
    answers.print_answer(options, lambda: recording_text.to_dict(report), lambda: recording_text.render(report))
    return 0


def _chakra(options: argparse.Namespace) -> int:
    """Chakra's files: the step that their nodes make, and what it goes to."""
    if options.scale:
        raise errors.refusal('--scale', 'it knows no ops of Chakra traces', 'leave it out')
    profile = profiles.profile_of_flag(options.cluster, '--cluster') if options.cluster else None
    with common.waiting('replaying Chakra traces'):
        replay = chakra.replayed(options.file, profile)
    if replay.silent:
        what = f'{replay.silent:,} messages and collectives have no duration'
        raise errors.refusal(options.file, what, 'name the devices that price them, --cluster PROFILE')
    answers.print_answer(options, lambda: chakra.to_dict(replay), lambda: chakra.render(replay))
    return 0
