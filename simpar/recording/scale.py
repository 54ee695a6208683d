"""``--scale`` of a replay: which recorded ops last how many times as long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import numpy as np

from simpar.errors import Problem, ScheduleError
from simpar.recording.job import Ints, RecordedJob, RecordedOp

_SAY = 'write e.g. --scale data=0,stage=1,optype=forward-compute:1.3'
KEYS = ('data', 'stage', 'optype')


def chosen_ops(job: RecordedJob, texts: Sequence[str]) -> list[tuple[Ints, float]]:
    """The numbers of the ops of each text, and its factor.

    Arguments: ``texts``, as ``data=0,stage=1,optype=forward-*:1.3``; what is not named is of all.
    Raises ``ScheduleError`` that names every text that is wrong or chooses nothing.
    """
    found = [_told(job, text) for text in texts]
    problems = [each for each in found if isinstance(each, Problem)]
    if problems:
        raise ScheduleError(problems)
    return [each for each in found if not isinstance(each, Problem)]


def _told(job: RecordedJob, text: str) -> tuple[Ints, float] | Problem:
    try:
        return _chosen(job, text)
    except ValueError as error:
        return Problem(f'--scale {text}', str(error), _SAY)


def _chosen(job: RecordedJob, text: str) -> tuple[Ints, float]:
    words, _, last = text.rpartition(':')
    factor = _factor(last)
    keys = dict(_pairs(words))
    chosen = [_is(op, keys) for op in job.ops]
    if not any(chosen):
        raise ValueError('chooses no op of this job')
    if factor == 1:
        raise ValueError('changes nothing (factor 1)')
    # All that take part in a message or collective last alike.
    meetings = np.unique(job.meetings[np.flatnonzero(chosen)])
    return np.flatnonzero(np.isin(job.meetings, meetings)), factor


def _factor(word: str) -> float:
    try:
        factor = float(word)
    except ValueError:
        factor = -1.0
    if not 0 <= factor <= 1e6:
        raise ValueError(f'no factor from 0 to 1e6 behind a colon (got {word[:40]!r})')
    return factor


def _pairs(words: str) -> Iterator[tuple[str, str]]:
    for pair in filter(None, words.split(',')):
        key, _, value = pair.partition('=')
        if key not in KEYS or not value:
            raise ValueError(f'no key and value (got {pair[:40]!r}); the keys are {", ".join(KEYS)}')
        yield key, value


def _is(op: RecordedOp, keys: dict[str, str]) -> bool:
    told = {'data': str(op.data), 'stage': str(op.stage), 'optype': op.kind}
    return all(fnmatchcase(told[key], value) for key, value in keys.items())
