"""Files: one for each of some ranks, and one with all of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from simpar.cost.costs import Costs
from simpar.files import write_atomically
from simpar.kineto.links import link_counters
from simpar.kineto.rank import Drawing, Event, Style
from simpar.kineto.transfers import transfers
from simpar.trace import Trace

PREDICTED_PID: Final = 1000
"""Where a file shows both, measured rank r is process r and predicted rank r is process 1000 + r."""
MOST_EVENTS: Final = 36_000
"""Ops of the merged file, which take up to 500 bytes with their launch and arrows."""


def write_kineto(
    folder: Path,
    trace: Trace,
    *,
    measured: Trace | None = None,
    costs: Costs | None = None,
    library: str = 'nccl',
    most_ranks: int = 8,
    ranks: Sequence[int] = (),
) -> list[Path]:
    """Write ``rankN.json`` for up to ``most_ranks`` ranks, and ``merged/all_ranks.json`` with all of them.

    Arguments:
        folder: made if it does not exist.
        measured: goes side by side with the prediction into the merged file.
        costs: the prediction's costs; they add the host's launches and the use of links.
        ranks: those that are written; unless given, up to ``most_ranks``, those that differ first.
    The merged file stays below 20 MB: of a large program it has the last step alone, then fewer ranks, then no links
    and launches (``in_the_merged_file``); Perfetto opens it as it is.
    Ranks that differ come first. The same arguments give the same bytes.
    Returns the files. Not written: memory.
    """
    (folder / 'merged').mkdir(parents=True, exist_ok=True)
    ranks = list(ranks) or chosen_ranks(trace, most_ranks)
    # Only files of single ranks: HTA reads one rank a file.
    style = Style(library=library, for_hta=True)
    paths = [folder / f'rank{rank}.json' for rank in ranks]
    for path, rank in zip(paths, ranks, strict=True):
        write_atomically(path, document(trace, events(trace, [rank], style, costs), library, rank))
    merged = folder / 'merged' / 'all_ranks.json'
    write_atomically(merged, document(trace, _merged(trace, ranks, measured, costs, library), library))
    return [*paths, merged]


def in_the_merged_file(trace: Trace, ranks: list[int], sides: int = 1) -> tuple[int, list[int]]:
    """How many of the last steps, and which ranks, the merged file has, so that it stays below 20 MB.

    Arguments: ``sides``, 2 where a measurement stands beside the prediction.
    """
    slots = [len(trace.role(trace.times_of(rank))) * sides for rank in ranks]
    steps = trace.steps if sum(slots) * trace.steps <= MOST_EVENTS else 1
    most = next((count for count in range(len(ranks), 1, -1) if sum(slots[:count]) * steps <= MOST_EVENTS), 1)
    return steps, ranks[:most]


def _merged(
    trace: Trace, ranks: list[int], measured: Trace | None, costs: Costs | None, library: str
) -> Iterator[Event]:
    """The events of the merged file."""
    steps, some = in_the_merged_file(trace, ranks, 2 if measured else 1)
    whole = steps == trace.steps and some == ranks
    shown = trace if whole else trace.last(steps)
    if measured is not None:
        yield from events(measured if whole else measured.last(steps), some, Style(library=library))
    style = Style(library=library, first_pid=PREDICTED_PID if measured else 0)
    crowded = sum(len(trace.role(trace.times_of(rank))) for rank in some) * steps > MOST_EVENTS
    found = events(shown, some, style, None if crowded else costs)
    # Of a single step of a single rank that is too large, the first ops are shown.
    yield from itertools.islice(found, MOST_EVENTS) if crowded else found
    if costs is not None and whole:
        yield from link_counters(trace, costs)


def chosen_ranks(trace: Trace, most: int) -> list[int]:
    """At most so many ranks: one for each representative first, then the others; in order."""
    representatives = trace.representative_of_rank.tolist()
    first = sorted(
        {representative: rank for rank, representative in reversed(list(enumerate(representatives)))}.values()
    )
    others = [rank for rank in range(len(representatives)) if rank not in set(first)]
    return sorted([*first, *others][:most])


def document(trace: Trace, trace_events: Iterable[Event], library: str, rank: int | None = None) -> str:
    """A whole file, one event a line; ``rank`` None for a file with several ranks."""
    program = trace.program
    groups = [
        {'pg_name': name, 'pg_size': partition.size, 'ranks': partition.groups_GP.tolist()}
        for name, partition in program.partitions.items()
    ]
    distributed = {'backend': library, 'world_size': program.world, 'pg_config': groups}
    head = {
        'schemaVersion': 1,
        'deviceProperties': [{'id': rank or 0, 'name': f'{trace.origin} device'}],
        'distributedInfo': distributed if rank is None else {'rank': rank, **distributed},
        'displayTimeUnit': 'ms',
        'baseTimeNanoseconds': 0,
        'traceName': f'simpar {program.hash}',
    }
    # One key a line, and the blank behind the colon: HTA finds the rank by a pattern over lines.
    lines = ''.join(f'{json.dumps(key)}: {json.dumps(value)},\n' for key, value in head.items())
    body = ',\n'.join(json.dumps(event) for event in trace_events)
    return f'{{\n{lines}"traceEvents": [\n{body}\n]\n}}\n'


def events(trace: Trace, ranks: list[int], style: Style, costs: Costs | None = None) -> Iterator[Event]:
    """The events of some ranks, and the arrows of what they send each other."""
    for rank in ranks:
        drawing = Drawing(trace, trace.times_of(rank), rank, style)
        yield from drawing.names()
        yield from drawing.steps()
        yield from drawing.actions()
        if costs is not None and costs.host.any():
            yield from drawing.launches(costs)
        elif style.for_hta:
            yield from drawing.empty_launches()
        yield from drawing.kernels()
        yield from drawing.arrows()
    yield from transfers(trace, ranks, style)
