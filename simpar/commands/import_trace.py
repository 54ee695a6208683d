"""``simpar import`` of a profiler's recording: how busy the device was, and a profile with what its ops took."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from simpar.calibrate import require_profile_path
from simpar.case import Case, load_case
from simpar.cost.price import price
from simpar.errors import Problem, ScheduleError
from simpar.kineto.overlap import Busy, busy
from simpar.kineto.read import Recording, read_recordings
from simpar.predict import step_of
from simpar.recording.join import Join, Joined, join, named, program_key
from simpar.recording.profile import write_measured
from simpar.units import format_time

SHOWN: Final = 12
DATE: Final = '%Y-%m-%d'


@dataclass(frozen=True)
class _Beside:
    """A recording beside the prediction of its schedule.

    Arguments: ``priced``, seconds of each line as the schedule's cluster has them; ``written``, the profile's files,
    and the step that it predicts.
    """

    join: Join
    step: float
    priced: dict[Any, float]
    written: tuple[Path, ...] = ()
    after: float = 0.0


def command(options: argparse.Namespace) -> int:
    """Say how busy each rank was; join with a schedule and write a profile where asked."""
    problems = list(_useless(options))
    if problems:
        raise ScheduleError(problems)
    recordings = read_recordings(options.file)
    beside = _joined(options, recordings) if options.schedule else None
    if options.json:
        print(json.dumps(_json(recordings, beside), ensure_ascii=False, allow_nan=False))
    else:
        print('\n'.join(_lines(recordings, beside)))
    return 0


def _useless(options: argparse.Namespace) -> Iterator[Problem]:
    """Flags that would change nothing."""
    for flag, given in (('--set', options.set), ('--model', options.model), ('--cluster', options.cluster)):
        if given:
            yield Problem(flag, 'a recording has no settings', 'leave it out, or write it into the schedule of --for')
    if options.output and not options.schedule:
        yield Problem('--output', "a profile is written of a schedule's ops", 'write --for SCHEDULE.yaml too')
    if options.output:
        require_profile_path(options.output)


def _joined(options: argparse.Namespace, recordings: Sequence[Recording]) -> _Beside:
    case = load_case(options.schedule)
    found = join(case.program, recordings)
    if not found.lines:
        raise ScheduleError(
            Problem(
                str(options.file),
                f'holds no op of {options.schedule}',
                'record with record_shapes=True; check the batch',
            )
        )
    step, priced = step_of(case.program, case.cluster), _priced(case)
    if not options.output:
        return _Beside(found, step, priced)
    source = f'{options.file.name}, recorded ops of {_device(recordings)}, read {datetime.now(timezone.utc):{DATE}}'
    files = write_measured(options.output, case.schedule.cluster.profile, found, source, str(case.workload.precision))
    again = load_case(options.schedule, [f'cluster.profile={options.output.resolve()}'])
    return _Beside(found, step, priced, tuple(files), step_of(again.program, again.cluster))


def _priced(case: Case) -> dict[Any, float]:
    """What the schedule's own cluster makes of each kind of op, in seconds."""
    costs, program = price(case.program, case.cluster), case.program
    found = {}
    for index, op in enumerate(program.op_classes):
        key = program_key(program, op)
        if key is not None:
            talk = costs.communication.get(index)
            found[key] = float(costs.compute[index]) if talk is None else talk[0].alpha + talk[0].transfer
    return found


def _device(recordings: Sequence[Recording]) -> str:
    return recordings[0].device or 'a host'


def _lines(recordings: Sequence[Recording], beside: _Beside | None) -> Iterator[str]:
    for recording in recordings:
        yield _rank(recording, busy(recording))
    if beside:
        yield ''
        yield from _table(beside)


def _rank(recording: Recording, found: Busy) -> str:
    steps = f'{len(recording.steps)} steps' if recording.steps else 'no steps marked'
    head = f'rank {recording.rank} of {recording.world}, {recording.device or "host alone"}, {steps}'
    if not found.span:
        return f'{head}: no device was recorded; its ops are told by its threads'
    share = ', '.join(
        f'{name} {seconds / found.span:.1%}'
        for name, seconds in (('compute', found.compute), ('exposed', found.exposed), ('idle', found.idle))
    )
    overlap = f'; {found.overlap:.1%} of communication lies beside compute' if found.communication else ''
    return f'{head}: {format_time(found.span)} of whole steps: {share}{overlap}'


def _table(beside: _Beside) -> Iterator[str]:
    found = beside.join
    yield f'step      recorded {format_time(found.step)}, predicted {format_time(beside.step)}'
    if found.step:
        yield f'matched   {found.matched / found.step:.0%} of the recorded step is in ops that the schedule has'
    yield ''
    yield f'{"op":34} {"recorded":>10} {"predicted":>10}  a step: program, recorded'
    lines = sorted(found.lines, key=lambda line: -line.seconds * line.recorded)
    yield from (_line(line, beside) for line in lines[:SHOWN])
    if len(lines) > SHOWN:
        yield f'and {len(lines) - SHOWN} more'
    if found.missing:
        names = ', '.join(f'{name} ({often})' for name, often in _missing(found).most_common(SHOWN))
        yield f'Not in the recording: {names}'
    if beside.written:
        files = f'{beside.written[0]} and {len(beside.written) - 1} tables'
        yield f'wrote {files}: with them the predicted step is {format_time(beside.after)}'


def _missing(found: Join) -> Counter[str]:
    names: Counter[str] = Counter()
    for key, often in found.missing:
        names[named(key)] += often
    return names


def _line(line: Joined, beside: _Beside) -> str:
    predicted = beside.priced.get(line.key)
    shown = format_time(predicted) if predicted is not None else '-'
    return f'{named(line.key):34} {format_time(line.seconds):>10} {shown:>10}  {line.program}, {line.recorded:.3g}'


def _json(recordings: Sequence[Recording], beside: _Beside | None) -> dict[str, Any]:
    """The same for programs; seconds."""
    ranks = [
        {'rank': each.rank, 'world': each.world, 'device': each.device, 'steps': len(each.steps), **asdict(busy(each))}
        for each in recordings
    ]
    if not beside:
        return {'ranks': ranks}
    found = beside.join
    return {
        'ranks': ranks,
        'step': {'recorded': found.step, 'predicted': beside.step, 'matched': found.matched},
        'ops': [asdict(line) | {'predicted': beside.priced.get(line.key)} for line in found.lines],
        'missing': dict(_missing(found)),
        'written': [str(path) for path in beside.written],
        'predicted_with_them': beside.after if beside.written else None,
    }
