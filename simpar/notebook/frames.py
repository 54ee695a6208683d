"""Tables of pandas: spans, streams, memory, or the rows of a sweep."""

import functools
from typing import Any, Final, Literal

from simpar import metrics, predict
from simpar.planner.answer import Answer
from simpar.planner.plan import Sizes
from simpar.sweep.answer import SweepAnswer

Kind = Literal['streams', 'spans', 'memory']
_MISSING: Final = 'tables of pandas need pandas: pip install pandas'


@functools.singledispatch
def to_dataframe(answer: Any, kind: Kind = 'streams') -> Any:
    """A ``pandas.DataFrame`` of an answer, in seconds and bytes.

    Arguments: ``kind``, of a prediction: ``streams`` of every rank that differs; ``spans``, the ops of the last step;
    ``memory``, bytes by kind over the step, of the fullest rank.
    Raises ``ImportError`` without pandas, ``TypeError`` for what is no answer, ``ValueError`` for another kind.
    """
    raise TypeError(f'no table of {type(answer).__name__}; give a prediction or the answer of a sweep')


@to_dataframe.register
def _(prediction: predict.Prediction, kind: Kind = 'streams') -> Any:
    pandas = _pandas()
    if kind == 'streams':
        return pandas.DataFrame(
            {
                'rank': rank.rank, 'stands_for': rank.ranks, 'stream': one.stream, 'busy': one.busy,
                'waiting': one.waiting, 'idle': one.idle, 'hidden': _hidden(rank, one), 'ops': one.ops,
            }
            for rank in prediction.metrics.steady.ranks
            for one in rank.streams
        )  # fmt: skip
    if kind == 'spans':
        return pandas.DataFrame(
            {
                'rank': times.rank, 'op': span.op.name, 'kind': span.op.kind, 'phase': span.op.phase,
                'stream': span.stream, 'micro_batch': span.micro_batch, 'copy': span.copy, 'arrive': span.arrive,
                'start': span.start, 'end': span.end,
            }
            for times in prediction.trace.representatives
            for span in prediction.trace.spans(times.rank)
        )  # fmt: skip
    if kind == 'memory':
        line = prediction.memory.fullest.by_kind()
        return pandas.DataFrame(line.bytes, columns=list(line.names)).assign(time=line.times[:-1])
    raise ValueError(f'no table {kind!r}; write streams, spans or memory')


@to_dataframe.register
def _(answer: SweepAnswer) -> Any:
    return _pandas().DataFrame(
        {
            **result.settings, 'step': result.step, 'gain': result.gain, 'memory': result.outcome.peak or None,
            'reason': result.outcome.reason,
        }
        for result in answer.results
    )  # fmt: skip


@to_dataframe.register
def _(answer: Answer) -> Any:
    return _pandas().DataFrame(
        {
            **one.settings, 'plan.data': one.schedule.plan.data, 'step': one.step, 'peak': one.peak,
            'bound': one.bound, 'alike': one.step <= answer.ranking[0].step * (1 + answer.margin),
            'front': one in answer.front, 'choice': one is answer.choice,
        }
        for one in answer.ranking
    )  # fmt: skip


@to_dataframe.register
def _(found: Sizes) -> Any:
    return _pandas().DataFrame(
        {
            'devices': one.devices, 'step': one.choice.step if one.choice else None, 'time': one.time,
            found.unit: one.cost, 'gap': one.answer.gap, 'front': one in found.front,
            **(one.choice.settings if one.choice else {}),
        }
        for one in found.found
    )  # fmt: skip


def _hidden(rank: metrics.RankMetrics, stream: metrics.StreamMetrics) -> float | None:
    """The share of a communicator's seconds that computation hides; None for compute, and for sends and receives."""
    exposed, seconds = rank.exposed_by.get(stream.stream), stream.busy + stream.waiting
    return 1 - exposed / seconds if exposed is not None and seconds else None


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise ImportError(_MISSING) from None
    return pd
