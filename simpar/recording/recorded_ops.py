"""The ops of a torch recording that are known, and how long each took."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from simpar.interval_sets import length, minus
from simpar.kineto.read import Interval, Recording
from simpar.recording.torch_ops import Key, TorchOp, kernel_key, key_of

_Known = list[tuple[Interval, Key]]


def compute_ops(recording: Recording) -> Iterator[TorchOp]:
    """The known ops of a recording's whole steps that compute.

    An op of a device lasts as long as the kernels that were launched in it. Where only a host was recorded, an op lasts
    until the next known op of its thread begins: what Python and views take between belongs to it.
    """
    known = _known(recording)
    yield from _by_kernels(recording, known) if recording.kernels else _by_threads(recording, known)


def _known(recording: Recording) -> _Known:
    """Known ops of whole steps; those of communication are apart."""
    steps = recording.steps
    begin, end = (steps[0].start, steps[-1].end) if steps else (float('-inf'), float('inf'))
    found = [(each, key_of(each, recording.world)) for each in recording.host if begin <= each.start < end]
    return [(each, key) for each, key in found if key is not None and key[0] != 'collective']


def _by_threads(recording: Recording, known: _Known) -> Iterator[TorchOp]:
    """The seconds of each op until the next one; what a thread waits for a collective is not its own."""
    waits = np.array([(each.start, each.end) for each, _ in _talking(recording)]).reshape(-1, 2)
    threads: dict[int, _Known] = defaultdict(list)
    for each, key in known:
        threads[each.place].append((each, key))
    for ops in threads.values():
        for (each, key), (behind, _) in pairwise(ops):
            gap = np.array([(each.end, max(each.end, behind.start))])
            yield _op(key, each.start, each.start, each.end + length(minus(gap, waits)))
        last, key = ops[-1]
        yield _op(key, last.start, last.start, last.end)


def _op(key: Key, issued: float, start: float, end: float) -> TorchOp:
    return TorchOp(key, issued, start, start, end)


def _by_kernels(recording: Recording, known: _Known) -> Iterator[TorchOp]:
    """The device's seconds of each op: of the kernels whose launch lies in it."""
    launches = {each.args['correlation']: each for each in recording.host if 'correlation' in each.args}
    threads: dict[int, list[int]] = defaultdict(list)
    for number, (each, _) in enumerate(known):
        threads[each.place].append(number)
    starts = {place: [known[number][0].start for number in numbers] for place, numbers in threads.items()}
    begin, seconds = [float('inf')] * len(known), [0.0] * len(known)
    for kernel in recording.whole_kernels:
        launch = launches.get(kernel.args.get('correlation'))
        if launch is None or launch.place not in starts or kernel.kind == 'communication':
            continue
        at = bisect_right(starts[launch.place], launch.start) - 1
        if at >= 0 and launch.start < known[number := threads[launch.place][at]][0].end:
            seconds[number] += kernel.seconds
            begin[number] = min(begin[number], kernel.start)
    for (each, key), start, took in zip(known, begin, seconds, strict=True):
        if took:
            yield _op(key, each.start, start, start + took)


def collectives(recordings: Sequence[Recording]) -> list[list[TorchOp]]:
    """The collectives of each recording: from the last arrival over all recorded ranks to the end.

    The n-th of a group on one rank meets the n-th on the others. Where ranks hold different numbers of them, or one
    rank alone was recorded, each counts from its own arrival, and the wait for its peers is in it.
    """
    first = min(recording.origin for recording in recordings)
    found: list[list[TorchOp]] = []
    met: dict[tuple[Key, str], list[tuple[int, list[Interval]]]] = defaultdict(list)
    for number, recording in enumerate(recordings):
        found.append([])
        mine: dict[tuple[Key, str], list[Interval]] = defaultdict(list)
        for each, key in _talking(recording):
            mine[key, str(each.args.get('Process Group Ranks', ''))].append(each)
        for told, times in mine.items():
            met[told].append((number, times))
    later = [recording.origin - first for recording in recordings]
    for (key, _), ranks in met.items():
        alike = len({len(times) for _, times in ranks}) == 1
        for number, times in ranks:
            for turn, each in enumerate(times):
                arrived = [later[other] - later[number] + its[turn].start for other, its in ranks] if alike else []
                start = min(max([each.start, *arrived]), each.end)
                found[number].append(TorchOp(key, each.start, each.start, start, each.end))
    return found


def _talking(recording: Recording) -> Iterator[tuple[Interval, Key]]:
    """Communication kernels; where only a host was recorded, what gloo's threads did."""
    if recording.kernels:
        found = ((each, kernel_key(each, recording.world)) for each in recording.whole_kernels)
    else:
        found = ((each, key_of(each, recording.world)) for each in recording.host)
    yield from ((each, key) for each, key in found if key is not None and key[0] == 'collective')
