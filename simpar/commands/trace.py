"""``simpar trace RECORDING``: how busy each rank of a recording was, and which rank makes the others wait."""

import argparse
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from simpar import errors, files
from simpar.commands.answers import print_answer
from simpar.traces import Culprit, Figures, Kernels, RankTrace, Waits, culprit_of, read_traces, step_figures, waits_of
from simpar.traces.blame import LEAST
from simpar.traces.flight import FLIGHT, Stuck, stuck_of
from simpar.traces.replay import LIMITS, WhatIf, change_of, what_if
from simpar.traces.table import COMMUNICATION, figures, whole
from simpar.units import format_time

SHOWN = 12
MOST_STEPS = 0.7
"""Of the steps: what lies in fewer is told."""
_WHY: Final = {row['cause']: row['why'] for row in files.read_csv(Path(__file__).with_name('blame.csv'))}


def trace_command(options: argparse.Namespace) -> int:
    """One sentence, then a row for each rank and step."""
    schedule = options.schedule
    changes = [] if schedule else [change_of(text) for text in options.what_if]
    traces = read_traces(options.recording, _names(options.communication), host=schedule is not None)
    outcome = _of_schedule(options, traces) if schedule else what_if(traces, changes) if changes else None
    answer = _answer(options.what_if, outcome, scaled=schedule is not None) if outcome else ()
    lines = (*answer, *trace_lines(traces))
    if options.html:
        _write_page(options.html, traces)
    print_answer(
        options,
        lambda: trace_to_dict(traces) | ({'what_if': asdict(outcome)} if outcome else {}),
        lambda: ''.join(f'{line}\n' for line in lines),
    )
    return 0


def _write_page(path: Path, traces: Sequence[RankTrace]) -> None:
    """The ranks' timelines; the one that makes others wait is among them."""
    from simpar.page import ranks_page

    if not any(trace.on_device for trace in traces):
        raise errors.refusal('--html', 'no kernel of a device was recorded', 'leave it out')
    culprit = culprit_of(traces)
    said = sentence_of(traces, culprit, waits_of(traces), _steps(traces))
    files.write_atomically(path, ranks_page(traces, f'{said[0].upper()}{said[1:]}.', culprit.ranks if culprit else ()))


def _steps(traces: Sequence[RankTrace]) -> list[list[tuple[str, Figures]]]:
    return [list(step_figures(trace)) for trace in traces]


def _answer(words: Sequence[str], outcome: WhatIf, *, scaled: bool) -> Iterator[str]:
    """The answer to what is asked, and how far it goes.

    Arguments: ``scaled``, whether both steps are predictions, which the recorded step scales.
    """
    change, error = outcome.changed / outcome.replayed - 1, outcome.replayed / outcome.recorded - 1
    before = outcome.recorded if scaled else outcome.replayed
    how = f'; {outcome.chosen} kernels and messages are changed.'
    how = ', as the ops of the recording are predicted to make it.' if scaled else how
    after = format_time(before * (1 + change))
    yield f'With {", ".join(words)} a step would take {after} in place of {format_time(before)} ({change:+.1%}){how}'
    if scaled:
        yield f'Without a change the prediction is {error:+.1%} off the recording, by which both are scaled.'
    else:
        yield f'It is {LIMITS}. Without a change the replay is {error:+.1%} off the recording.'
    yield ''


def _of_schedule(options: argparse.Namespace, traces: Sequence[RankTrace]) -> WhatIf:
    """A step of the recording's schedule, and of one with other keys, both by what its ops took."""
    from simpar.case import load_case
    from simpar.recording.readers import joined, write_measured

    case = load_case(options.schedule)
    join = joined(case.program, traces)
    if not join.lines or not join.step:
        what = f'holds no whole step with ops of {options.schedule}'
        raise errors.refusal(options.recording, what, 'record steps with record_shapes=True; check the batch')
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'recorded.yaml'
        write_measured(path, case.schedule.cluster.profile, join, 'recorded ops', str(case.workload.precision))
        mine = f'cluster.profile={path}'
        before = load_case(options.schedule, [mine]).predict().step
        after = load_case(options.schedule, [mine, *options.what_if]).predict().step
    chosen = sum(line.program for line in join.lines)
    return WhatIf(recorded=join.step, replayed=before, changed=after, chosen=chosen)


def _names(pattern: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern) if pattern else None
    except re.error as error:
        what = f'is no regular expression: {error} (got {pattern!r})'
        raise errors.refusal('--communication', what, "write e.g. 'my_all_gather|my_dispatch'") from None


def sentence_of(
    traces: Sequence[RankTrace],
    culprit: Culprit | None,
    waits: Mapping[int, Waits],
    steps: Sequence[Sequence[tuple[str, Figures]]],
) -> str:
    """Who makes whom wait, first. Arguments: ``steps``, the figures of each trace."""
    if any(trace.format == FLIGHT for trace in traces):
        return _hangs(traces, stuck_of(traces))
    if culprit:
        return _blamed(culprit)
    if len(traces) == 1:
        return _alone([step for _, step in steps[0]])
    if not waits:
        return 'no collective of one rank was found on another, so nobody can be said to wait for another'
    return f'no single rank makes the others wait {LEAST:.0%} of a step'


def _alone(steps: Sequence[Figures]) -> str:
    """What the device of a rank does, of which no peer was recorded."""
    span = sum(step.span for step in steps) or 1.0
    computing, exposed, idle = (
        f'{sum(getattr(step, name) for step in steps) / span:.0%}' for name in ('computing', 'exposed', 'idle')
    )
    alone = any(step.communication for step in steps)
    waits = f', communicates alone {exposed} (with what it waits for its peers)' if alone else ''
    return f'one rank was recorded: its device computes {computing} of the time{waits}, and is idle {idle}'


def _hangs(traces: Sequence[RankTrace], stuck: Stuck | None) -> str:
    """Which rank a job that hangs waits for."""
    silent = sorted(set(range(max(trace.world for trace in traces))) - {trace.rank for trace in traces})
    missing = f'; of {_ranks(silent)} there is no dump' if silent else ''
    if stuck is None:
        return f'every collective in the dumps is over: no rank waits for another in one{missing}'
    what = f'{stuck.call.name}, number {stuck.call.number} of group {stuck.group}'
    if stuck.absent:
        return f'{_ranks(stuck.absent)} did not come to {what}, in which {_ranks(stuck.waiting)} waits{missing}'
    if stuck.other:
        return f'{_ranks(stuck.other)} came with {stuck.differs} to {what} on {_ranks(stuck.waiting)}{missing}'
    return f'all ranks with a dump came to {what}, and it does not end{missing}: look for a link or a dead peer'


def _ranks(ranks: Sequence[int]) -> str:
    return f'rank {ranks[0]}' if len(ranks) == 1 else f'each of ranks {", ".join(map(str, ranks))}'


def _blamed(one: Culprit) -> str:
    wait = f'{format_time(one.seconds)} of each step of {format_time(one.step)}'
    first, last = min(one.ranks), max(one.ranks)
    row = len(one.ranks) > 3 and last - first + 1 == len(one.ranks)
    ranks = f'{first} to {last}' if row else ', '.join(map(str, one.ranks))
    if one.cause == 'samples':
        return f'samples are uneven and make ranks wait {wait}: forward and backward of a micro-batch vary together'
    if one.cause == 'link':
        what = f'its messages take {one.times:.2g} times as long as those of others'
        which = f'link of rank {ranks}' if len(one.ranks) == 1 else f'link between ranks {ranks}'
        return f'the {which} makes the others wait {wait}: {what}'
    who = f'rank {ranks} makes' if len(one.ranks) == 1 else f'ranks {ranks} make'
    often = f', in {one.within:.0%} of the steps' if one.within < MOST_STEPS and one.cause != 'pause' else ''
    why = _WHY[one.cause].format(times=one.times, what=one.what)
    if len(one.ranks) > 1:
        why = f'each {why[3:]}' if why.startswith('it ') else f'their {why[4:]}'
    return f'{who} the others wait {wait}: {why}{often}'


def trace_lines(traces: Sequence[RankTrace]) -> Iterator[str]:
    """The answer as text: the sentence, a row a step, and what the reader must know."""
    steps = _steps(traces)
    yield f'{sentence_of(traces, culprit_of(traces), waits_of(traces), steps)}.'
    yield ''
    if all(trace.format == FLIGHT for trace in traces):
        yield 'A flight recorder tells who came to which collective, not how long anything took.'
        return
    heads = ('span', 'computing', 'communication', 'exposed', 'overlapped', 'copies', 'idle')
    yield f'{"rank":>4} {"step":>8} ' + ' '.join(f'{head:>13}' for head in heads)
    for trace, of_steps in zip(traces, steps, strict=True):
        for name, times in of_steps[:SHOWN]:
            cells = ' '.join(f'{format_time(getattr(times, head)):>13}' for head in heads)
            yield f'{trace.rank:>4} {name or "all":>8} {cells}'
        if len(of_steps) > SHOWN:
            yield f'     and {len(of_steps) - SHOWN} more steps'
    yield from _notes(traces)


def _notes(traces: Sequence[RankTrace]) -> Iterator[str]:
    """What the reader must know: cut steps, what was taken for granted, and communication that nobody found."""
    for trace in traces:
        if trace.cut >= 0:
            yield f'Rank {trace.rank}: step {trace.steps[trace.cut]} is left out, as the profiler cut it off.'
        yield from (f'Rank {trace.rank}: {note}.' for note in trace.notes)
        silent = trace.kernels is not None and not (trace.kernels.kind == COMMUNICATION).any()
        if silent and (trace.world or len(traces)) > 1:
            yield f'Rank {trace.rank}: no kernel is called communication; name them by --communication REGEX.'
    every = [trace.kernels for trace in traces if trace.kernels is not None]
    if len(traces) > 2 and any(((one.kind == COMMUNICATION) & (one.group == '')).any() for one in every):
        yield 'Collectives do not say their group: waits are told as if all ranks were one group.'


def trace_to_dict(traces: Sequence[RankTrace]) -> dict[str, Any]:
    """The same for programs; seconds."""
    culprit, waits, steps = culprit_of(traces), waits_of(traces), _steps(traces)
    return {
        'sentence': sentence_of(traces, culprit, waits, steps),
        'culprit': asdict(culprit) if culprit else None,
        'ranks': [
            {
                'rank': trace.rank,
                'world': trace.world or None,
                'device': trace.device,
                'format': trace.format,
                'kernels': len(kernels) if kernels is not None else None,
                'whole': asdict(_whole(kernels, of_steps)),
                'steps': [{'step': name, **asdict(times)} for name, times in of_steps],
                'waits': asdict(waits[trace.rank]) if trace.rank in waits else None,
                'notes': list(trace.notes),
            }
            for trace, of_steps, kernels in zip(traces, steps, map(whole, traces), strict=True)
        ],
    }


def _whole(kernels: Kernels | None, steps: Sequence[tuple[str, Figures]]) -> Figures:
    """Of all whole steps together; of totals alone, their sums."""
    if kernels is not None:
        return figures(kernels)
    rows = [asdict(times) for _, times in steps]
    return Figures(**{name: sum(row[name] for row in rows) for name in Figures.__slots__})
