"""``simpar trace RECORDING``: how busy each rank of a recording was, and which rank makes the others wait."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from simpar.commands.common import print_answer
from simpar.errors import Problem, ScheduleError
from simpar.traces import Culprit, Figures, RankTrace, culprit_of, figures, read_traces, step_figures, waits_of
from simpar.traces.summary import whole
from simpar.traces.table import COMMUNICATION
from simpar.traces.waits import LEAST
from simpar.units import format_time

SHOWN = 12
_WHY = {
    'computes': 'it computes {times:.2g} times as long as they do',
    'host': 'its device is idle {excess} longer, so its host is late',
    'late': 'neither its computation nor its idle time says why',
}


def trace_command(options: argparse.Namespace) -> int:
    """One sentence, then a row for each rank and step."""
    traces = read_traces(options.recording, _names(options.communication))
    print_answer(options, lambda: trace_to_dict(traces), lambda: ''.join(f'{line}\n' for line in trace_lines(traces)))
    return 0


def _names(pattern: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern) if pattern else None
    except re.error as error:
        what = f'is no regular expression: {error} (got {pattern!r})'
        raise ScheduleError(Problem('--communication', what, "write e.g. 'my_all_gather|my_dispatch'")) from None


def sentence_of(traces: Sequence[RankTrace], culprit: Culprit | None) -> str:
    """Who makes whom wait, first."""
    if culprit:
        why = _WHY[culprit.cause].format(times=culprit.times, excess=format_time(culprit.excess))
        wait = f'{format_time(culprit.seconds)} of each step of {format_time(culprit.step)}'
        return f'rank {culprit.rank} makes the others wait {wait}: {why}'
    if len(traces) == 1:
        return 'one rank was recorded: what it waits for its peers is within its communication'
    if not waits_of(traces):
        return 'no collective of one rank was found on another, so nobody can be said to wait for another'
    return f'no single rank makes the others wait {LEAST:.0%} of a step'


def trace_lines(traces: Sequence[RankTrace]) -> Iterator[str]:
    """The answer as text: the sentence, a row a step, and what the reader must know."""
    yield f'{sentence_of(traces, culprit_of(traces))}.'
    yield ''
    heads = ('span', 'computing', 'communication', 'exposed', 'overlapped', 'copies', 'idle')
    yield f'{"rank":>4} {"step":>8} ' + ' '.join(f'{head:>13}' for head in heads)
    for trace in traces:
        of_steps = list(step_figures(trace))
        for name, found in of_steps[:SHOWN]:
            cells = ' '.join(f'{format_time(getattr(found, head)):>13}' for head in heads)
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


def trace_to_dict(traces: Sequence[RankTrace]) -> dict[str, Any]:
    """The same for programs; seconds."""
    culprit, waits = culprit_of(traces), waits_of(traces)
    return {
        'sentence': sentence_of(traces, culprit),
        'culprit': asdict(culprit) if culprit else None,
        'ranks': [
            {
                'rank': trace.rank,
                'world': trace.world or None,
                'device': trace.device,
                'format': trace.format,
                'kernels': len(kernels) if (kernels := whole(trace)) is not None else None,
                'whole': asdict(_whole(trace)),
                'steps': [{'step': name, **asdict(found)} for name, found in step_figures(trace)],
                'waits': asdict(waits[trace.rank]) if trace.rank in waits else None,
                'notes': list(trace.notes),
            }
            for trace in traces
        ],
    }


def _whole(trace: RankTrace) -> Figures:
    """Of all whole steps together; of totals alone, their sums."""
    kernels = whole(trace)
    if kernels is not None:
        return figures(kernels)
    rows = [asdict(found) for _, found in step_figures(trace)]
    return Figures(**{name: sum(row[name] for row in rows) for name in Figures.__slots__})
