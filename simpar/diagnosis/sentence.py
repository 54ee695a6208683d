"""The sentence that names a cause, and a diagnosis as JSON."""

from __future__ import annotations

from typing import Any

from simpar.diagnosis.causes import Cause
from simpar.diagnosis.diagnose import LEAST, Diagnosis
from simpar.diagnosis.places import Place
from simpar.units import format_time

_PHASES = {
    'F': 'of the forward', 'I': 'of the gradients of inputs', 'W': 'of the gradients of weights', 'U': 'of the update',
}  # fmt: skip


def sentence(diagnosis: Diagnosis) -> str:
    """What makes the step differ, in one line."""
    if not diagnosis.causes:
        factor = diagnosis.measured / diagnosis.predicted if diagnosis.predicted else 1.0
        if abs(factor - 1) >= LEAST:
            return f'no single cause stands out, though the step takes {_times(factor)}'
        return 'no cause stands out: what ops take themselves is as predicted, within the noise'
    cause = diagnosis.causes[0]
    return f'{_what(cause)}{_others(diagnosis, cause)}{_explained(diagnosis)}'


def diagnosis_to_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as one object; seconds, shares as numbers to 1."""
    return {
        'sentence': sentence(diagnosis),
        'explained': diagnosis.explained,
        'causes': [
            {
                'class': cause.kind,
                'ranks': list(cause.place.ranks),
                **{name: getattr(cause.place, name) for name in ('partition', 'operator', 'phase', 'layer', 'op')},
                'streams': list(cause.place.streams),
                'amount': cause.amount,
                'seconds': cause.seconds,
                'share_of_own_times': cause.explains,
                'step': cause.step,
            }
            for cause in diagnosis.causes
        ],
    }


def _what(cause: Cause) -> str:
    """Who does what, and how much longer."""
    place, ranks = cause.place, cause.place.ranks
    match cause.kind:
        case 'compute':
            ops = _ops(place)
            who = f'{_ranks(ranks)} {"compute" if len(ranks) > 1 else "computes"}' if ranks else 'all ranks compute'
            return f'{who} {ops + " " if ops else ""}{_times(cause.amount)}'
        case 'communication':
            return f'communication{_over(place)}{_between(ranks)} takes {_times(cause.amount)}'
        case 'latency':
            where = f'{_over(place)}{_between(ranks)}'
            return (
                f'communication{where} takes {format_time(cause.amount)} longer an op than predicted, whatever its size'
            )
        case 'overlap':
            return f'streams {_listed(place.streams)}{_on(ranks)} run in turn, not at once as predicted'
        case 'compute beside communication' | 'communication beside compute':
            return f'{cause.kind} takes {_times(cause.amount)}'
        case 'host':
            whose = f'the host of {_ranks(ranks)} issues' if ranks else 'hosts issue'
            return f'{whose} ops late: each takes {format_time(cause.amount)} longer to issue than predicted'
        case 'pause':
            whose = f' on {_ranks(ranks)}' if ranks else ''
            return f'{place.op}{whose} begins {format_time(cause.amount)} later than what it needs allows'
        case 'busy':
            where = f'the machine of {_ranks(ranks)}' if ranks else 'the machine'
            varies = f'what it computes varies by {cause.amount * 100:.0f} % from step to step'
            return f'{where} is busy with something else, too: {varies}'


def _others(diagnosis: Diagnosis, cause: Cause) -> str:
    # Where the step is not longer, the others do not wait.
    longer = (diagnosis.explained or 0.0) > 0 and diagnosis.measured > diagnosis.predicted
    few = cause.kind in ('compute', 'host', 'pause') and 0 < len(cause.place.ranks) < diagnosis.world
    return ', all others wait' if few and longer else ''


def _explained(diagnosis: Diagnosis) -> str:
    if diagnosis.explained is None:
        return '' if diagnosis.causes[0].kind == 'busy' else '; the step is hardly longer by it'
    return f': {max(0.0, diagnosis.explained) * 100:.0f} % of the difference'


def _times(factor: float) -> str:
    return f'{factor:.2f} times as long as predicted'


def _ops(place: Place) -> str:
    """Which of a rank's ops compute longer."""
    words = place.op or place.operator or place.layer or ('ops' if place.phase else '')
    return f'{words} {_PHASES[place.phase]}' if place.phase else words


def _over(place: Place) -> str:
    """Which communication."""
    if place.op:
        return f' ({place.op})'
    words = f' ({place.operator})' if place.operator else ''
    words += f' over {place.partition}' if place.partition else ''
    return f'{words} {_PHASES[place.phase]}' if place.phase else words


def _between(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f' to and from rank {ranks[0]}'
    return f' between {_ranks(ranks)}' if ranks else ''


def _on(ranks: tuple[int, ...]) -> str:
    return f' of {_ranks(ranks)}' if ranks else ''


def _ranks(ranks: tuple[int, ...]) -> str:
    return f'rank {ranks[0]}' if len(ranks) == 1 else f'ranks {_listed(tuple(map(str, ranks)))}'


def _listed(words: tuple[str, ...]) -> str:
    return ', '.join(words[:-1]) + f' and {words[-1]}' if len(words) > 1 else ''.join(words)
