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
            yield TorchOp(key, each.seconds + length(minus(gap, waits)))
        last, key = ops[-1]
        yield TorchOp(key, last.seconds)


def _by_kernels(recording: Recording, known: _Known) -> Iterator[TorchOp]:
    """The device's seconds of each op: of the kernels whose launch lies in it."""
    launches = {each.args['correlation']: each for each in recording.host if 'correlation' in each.args}
    threads: dict[int, list[int]] = defaultdict(list)
    for number, (each, _) in enumerate(known):
        threads[each.place].append(number)
    starts = {place: [known[number][0].start for number in numbers] for place, numbers in threads.items()}
    seconds = [0.0] * len(known)
    for kernel in recording.whole_kernels:
        launch = launches.get(kernel.args.get('correlation'))
        if launch is None or launch.place not in starts or kernel.kind == 'communication':
            continue
        at = bisect_right(starts[launch.place], launch.start) - 1
        if at >= 0 and launch.start < known[number := threads[launch.place][at]][0].end:
            seconds[number] += kernel.seconds
    yield from (TorchOp(key, took) for (_, key), took in zip(known, seconds, strict=True) if took)


def collectives(recordings: Sequence[Recording]) -> Iterator[TorchOp]:
    """Collectives of all recorded ranks: from the last arrival to the end.

    The n-th of a group on one rank meets the n-th on the others. Where ranks hold different numbers of them, or one
    rank alone was recorded, each counts from its own arrival, and the wait for its peers is in it.
    """
    first = min(recording.origin for recording in recordings)
    met: dict[tuple[Key, str], list[list[tuple[float, float]]]] = defaultdict(list)
    for recording in recordings:
        later = recording.origin - first
        mine: dict[tuple[Key, str], list[tuple[float, float]]] = defaultdict(list)
        for each, key in _talking(recording):
            group = str(each.args.get('Process Group Ranks', ''))
            mine[key, group].append((later + each.start, later + each.end))
        for told, times in mine.items():
            met[told].append(times)
    for (key, _), ranks in met.items():
        if len({len(times) for times in ranks}) > 1:
            yield from (TorchOp(key, end - start) for times in ranks for start, end in times)
            continue
        for together in zip(*ranks, strict=True):
            arrived = max(start for start, _ in together)
            yield TorchOp(key, max(0.0, max(end for _, end in together) - arrived))


def _talking(recording: Recording) -> Iterator[tuple[Interval, Key]]:
    """Communication kernels; where only a host was recorded, what gloo's threads did."""
    if recording.kernels:
        found = ((each, kernel_key(each, recording.world)) for each in recording.whole_kernels)
    else:
        found = ((each, key_of(each, recording.world)) for each in recording.host)
    yield from ((each, key) for each, key in found if key is not None and key[0] == 'collective')
