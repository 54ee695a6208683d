"""The critical path as segments, shares and a summary in sentences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple

from simpar.metrics import communicator, is_transfer
from simpar.program import OpClass

SegmentKind = Literal['compute', 'communication', 'host', 'overhead']
_WHERE: Final = {'F': 'in the forward', 'I': 'in the backward', 'W': 'in the backward', 'U': 'in the update'}
_COMPUTE: Final = 'compute of stage '
_NAMED: Final = 3
"""How many compute op classes, and how many stages, the summary names."""
_MAIN: Final = 0.6
"""Share of the compute with which a stage is told apart from the others."""
_MOST: Final = 6
"""How many parts of the step the summary tells apart."""


class Segment(NamedTuple):
    """Seconds of the critical path: ``begin`` to ``end``, on a rank; ``op`` is None for host and overhead."""

    # No dataclass: a path may have a hundred thousand segments, and a tuple is made in a fifth of the time.

    kind: SegmentKind
    rank: int
    begin: float
    end: float
    op: OpClass | None = None
    slot: int = -1
    stream: str = ''
    stretched: float = 0.0

    @property
    def seconds(self) -> float:
        """How long."""
        return self.end - self.begin


@dataclass(frozen=True, kw_only=True, repr=False)
class CriticalPath:
    """Segments in order of time, from ``begin`` to ``end`` of a step.

    Arguments:
        stretched: seconds by which ops on the path lasted longer than alone (0 where costs were not given).
        ranks: how many differ.
        staged: the program is a pipeline, whose compute is told by stage.
        queued: ops that waited in their work queue, each with the op that held it up.
    """

    begin: float
    end: float
    segments: tuple[Segment, ...]
    stretched: float
    ranks: int
    staged: bool = False
    queued: tuple[tuple[OpClass, OpClass], ...] = ()

    def __repr__(self) -> str:
        # All segments would be a million characters.
        return f'CriticalPath({self.summary!r}, segments={len(self.segments)})'

    @property
    def shares(self) -> dict[str, float]:
        """What the path consists of, as share of the step; the largest first, ties by name."""
        seconds: dict[str, float] = {}
        for what, _, time in self.work:
            seconds[what] = seconds.get(what, 0.0) + time
        seconds_of_step = self.end - self.begin
        return dict(
            sorted(((k, v / seconds_of_step) for k, v in seconds.items()), key=lambda item: (-item[1], item[0]))
        )

    @cached_property
    def work(self) -> list[tuple[str, OpClass | None, float]]:
        """What it is called, the op class and all its seconds, in the order of first use."""
        # A path passes a few op classes, many times each: names are made once for each of them.
        first: dict[tuple[str, str, str], Segment] = {}
        seconds: dict[tuple[str, str, str], float] = {}
        for segment in self.segments:
            key = (segment.kind, segment.op.name if segment.op else '', segment.stream)
            first.setdefault(key, segment)
            seconds[key] = seconds.get(key, 0.0) + segment.seconds
        return [(_what(one, staged=self.staged), one.op, seconds[key]) for key, one in first.items()]

    @property
    def summary(self) -> str:
        """The path in one to three sentences."""
        if not self.segments:
            return 'Nothing takes time in this step.'
        return f'{_main_sentence(self)}{_stretched_sentence(self)}{_queued_sentence(self)}'

    # The name before this one, which scripts and notebooks still read.
    words = summary


def _what(segment: Segment, *, staged: bool) -> str:
    """What the summary calls a segment's time."""
    op = segment.op
    if op is None:
        return 'waiting for the host' if segment.kind == 'host' else 'waiting for no op (overhead)'
    if segment.kind == 'compute':
        # The update is the same on all stages, so it is told once.
        return 'update' if staged and op.phase == 'U' else f'{_COMPUTE}{op.stage}' if staged else 'compute'
    if is_transfer(op):
        return f'{op.partition} sends'
    name = f'{communicator(op, segment.stream)} {op.operator}'
    return name if staged else f'{name} {_WHERE[op.phase]}'


def _main_sentence(path: CriticalPath) -> str:
    told = sorted(_told(path), key=lambda item: -item[1])
    # Below half a percent a part would be shown as 0 %.
    shown = [(text, share) for text, share in told if share >= 0.005][:_MOST]
    rest = sum(share for _, share in told) - sum(share for _, share in shown)
    parts = [f'{_percent(share)} {text}' for text, share in shown]
    if rest >= 0.005:
        parts.append(f'{_percent(rest)} other')
    return f'Critical path: {", ".join(parts)}{_on_rank(path)}.'


def _told(path: CriticalPath) -> Iterator[tuple[str, float]]:
    """What the sentence lists and its share: one stage of a pipeline apart where it has most of the compute."""
    shares = path.shares
    stages = {what: share for what, share in shares.items() if what.startswith(_COMPUTE)}
    yield from ((_with_details(path, what), share) for what, share in shares.items() if what not in stages)
    if not stages:
        return
    first, *others = stages
    compute = sum(stages.values())
    if not others:
        yield _with_details(path, first), stages[first]
    # One stage holds the others up: that is what a reader can act on.
    elif stages[first] > _MAIN * compute:
        yield _with_details(path, first), stages[first]
        yield (
            f'compute of {"other stages" if len(others) > 1 else others[0].removeprefix("compute of ")}',
            (compute - stages[first]),
        )
    else:
        named = [f'{what.removeprefix("compute of ")} {_percent(stages[what])}' for what in [first, *others][:_NAMED]]
        more = [f'{len(stages) - len(named)} more'] if len(stages) > len(named) else []
        yield f'compute ({", ".join(named + more)}; {", ".join(_operators(path, stages))})', compute


def _with_details(path: CriticalPath, what: str) -> str:
    """With the op classes that weigh most, where it is compute."""
    named = _operators(path, {what}) if what.startswith('compute') else []
    return f'{what} ({", ".join(named)})' if named else what


def _operators(path: CriticalPath, whats: Collection[str]) -> list[str]:
    """The op classes that weigh most in some compute, layers taken together."""
    seconds: dict[str, float] = {}
    for what, op, time in path.work:
        if op and op.kind == 'compute' and what in whats:
            # Equal layers together, or no layer would weigh enough to be named.
            name = re.sub(r'\blayer\d+', 'layer*', op.name).removesuffix('.split')
            seconds[name] = seconds.get(name, 0.0) + time
    # Ties by name, so that the text is the same every time.
    ranked = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    seconds_of_step = path.end - path.begin
    named = [
        f'{name} {_percent(value / seconds_of_step)}'
        for name, value in ranked[:_NAMED]
        if value >= 0.005 * seconds_of_step
    ]
    more = [f'{len(ranked) - len(named)} more'] if len(ranked) > len(named) else []
    return named + more if named else []


def _on_rank(path: CriticalPath) -> str:
    """Which rank the path runs on, where ranks differ."""
    ranks = {segment.rank for segment in path.segments if segment.kind == 'compute'}
    # In a pipeline the stage says it already.
    alone = len(ranks) == 1 and path.ranks > 1 and not path.staged
    return f', all compute on rank {min(ranks)}' if alone else ''


def _stretched_sentence(path: CriticalPath) -> str:
    share = path.stretched / (path.end - path.begin)
    # It would be shown as 0 %.
    if share < 0.005:
        return ''
    return f' {_percent(share)} of the step is work on this path stretched by what ran beside it.'


def _queued_sentence(path: CriticalPath) -> str:
    """What held up work queues; the pair that did it most often is named."""
    if not path.queued:
        return ''
    pairs = Counter((one.name, other.name) for one, other in path.queued)
    (one, other), _ = pairs.most_common(1)[0]
    ops = f'{len(path.queued)} ops wait' if len(path.queued) > 1 else '1 op waits'
    such_as = '' if len(pairs) == 1 else 'as '
    return f' On it {ops} in a work queue, {such_as}{one} behind {other}.'


def _percent(share: float) -> str:
    return f'{share * 100:.0f} %'
