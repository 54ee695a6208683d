"""Diagnosis: why two steps differ, and the sentence that says it."""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from simpar.cost.costs import Costs
from simpar.diagnosis.causes import Bench, Cause, busy, suspects
from simpar.diagnosis.places import Level, Own, Place, Sites, joined, level, misfit, own_times, scale, sites_of, steady
from simpar.engine import simulate
from simpar.errors import Deadlock
from simpar.program import Program
from simpar.trace import Trace
from simpar.units import format_time

# diagnose: name the cause whose simulation comes nearest to what was measured.

LEAST: Final = 0.05
"""Factors nearer to 1 are not named: profiles are not better known than that."""
MATTERS: Final = 0.002
"""Share of all ranks' own times that a cause must explain to be named."""
SHORTER: Final = 0.01
"""Share by which a step must be shorter than predicted before something quick is named."""
RATIOS: Final = ('compute', 'communication', 'compute beside communication', 'communication beside compute')
"""Kinds whose amount is a factor."""
FIRM: Final = 0.25
"""Share of a cause that must be there even in the quickest step of each op."""
STANDS_OUT: Final = 0.5
"""Share of the seconds by which ops vary that a cause must explain to be named: on a busy machine less is chance."""
REFINED: Final = 3
"""How often the strength of the cause that is named is fitted further."""
STEPS: Final = 4
"""Simulated steps. The last but one is looked at: what it does as the next one begins is part of a steady step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What makes a measured step differ from its prediction.

    Arguments:
        causes: the most telling first; empty where nothing stands out.
        predicted, measured: seconds of a step; of a measurement the one that counts (``Trace.that_counts``).
        world: number of ranks.
        marks: (rank, slot) of the ops of the first cause that are not as predicted themselves.
    """

    causes: tuple[Cause, ...]
    predicted: float
    measured: float
    world: int
    marks: frozenset[tuple[int, int]] = frozenset()

    @property
    def explained(self) -> float | None:
        """Share of the step's difference that the first cause explains; None where there is hardly one."""
        difference = self.measured - self.predicted
        if not self.causes or abs(difference) < 0.01 * self.predicted or self.causes[0].kind == 'busy':
            return None
        return (self.causes[0].step - self.predicted) / difference


def diagnose(program: Program, costs: Costs, measured: Trace) -> Diagnosis:
    """Find what makes a measurement of a program differ from what its simulation with these costs predicts.

    Not found: two causes at once are not told apart; the stronger is named.
    """
    sites = sites_of(program)
    warm = measured.warm()
    own = own_times(measured, sites)
    seen = level(Own(own.delay[warm], own.run[warm]), sites)
    step = float(measured.step_times[measured.that_counts])
    told = simulate(program, costs, steps=STEPS)
    court = _Court(sites, seen, step, Bench(program, costs), steady(told, sites), float(told.step_times[-2]))
    best = court.verdict()
    return Diagnosis(
        causes=(best,) if best else (),
        predicted=court.told_step,
        measured=step,
        world=program.world,
        marks=court.marks(best) if best else frozenset(),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Court:
    """What is judged: own times seen, and a bench on which causes are tried.

    Arguments: ``told`` and ``told_step``, the own times and the step that the bench gives as it is.
    """

    sites: Sites
    seen: Level
    step: float
    bench: Bench
    told: Own
    told_step: float

    def marks(self, cause: Cause) -> frozenset[tuple[int, int]]:
        """The (rank, slot) of a cause at which own times are not as told."""
        apart = np.abs(joined(self.seen) - joined(self.told)).reshape(2, -1).sum(axis=0)
        differ = apart > LEAST * (self.told.run + self.told.delay)
        found = np.flatnonzero(cause.among(self.sites) & differ)
        return frozenset(zip(self.sites.rank[found].tolist(), self.sites.slot[found].tolist(), strict=True))

    def verdict(self) -> Cause | None:
        """The best cause, if it matters."""
        # What varies comes on top of the level: it is explained by a machine that does something else.
        whole = misfit(self.seen, self.told, self.sites) + float((self.seen.varies * self.sites.share).sum())
        asked = suspects(self.seen, self.told, self.sites, self.bench.costs, self.step)
        tried = [found for cause in asked if (found := self._try(cause))]
        tried += busy(self.seen, self.told, self.sites)
        tried = [cause for cause in tried if self._matters(cause)]
        best = max(tried, key=lambda cause: cause.seconds, default=None)
        if best is None or whole <= 0:
            return None
        best = self._refined(best)
        return replace(best, explains=best.seconds / whole)

    def _refined(self, cause: Cause) -> Cause:
        """The same cause, its strength fitted further: what one causes seldom grows in proportion."""
        for _ in range(REFINED):
            again = None if cause.kind == 'busy' else self._try(cause)
            if again is None or again.seconds <= cause.seconds:
                break
            cause = again
        return cause

    def _try(self, cause: Cause) -> Cause | None:
        """A cause with the strength that fits best, and what it explains."""
        first = self._simulate(cause)
        if first is None:
            return None
        fitted = self._fitted(cause, first[0])
        second = self._simulate(fitted) if fitted is not None else None
        tried = [(cause, first), *([(fitted, second)] if fitted is not None and second is not None else [])]
        before = misfit(self.seen, self.told, self.sites)
        judged = [
            replace(one, seconds=before - misfit(self.seen, own, self.sites), step=step)
            for one, (own, step) in tried
            # What the quickest steps do not show is a disturbance that comes and goes.
            if scale(self.seen.quickest, self.told, own, self.sites.share) >= FIRM
        ]
        return max(judged, key=lambda one: one.seconds, default=None)

    def _fitted(self, cause: Cause, own: Own) -> Cause | None:
        """The cause at the strength at which own times, if they change in proportion, come nearest."""
        if cause.kind == 'overlap':
            return None
        base = 0.0 if cause.kind in ('host', 'latency', 'pause') else 1.0
        found = scale(self.seen, self.told, own, self.sites.share)
        # Far from what was tried, the proportion does not hold.
        amount = base + (cause.amount - base) * float(np.clip(found, 0.0, 4.0))
        return replace(cause, amount=amount) if amount != cause.amount else None

    def _simulate(self, cause: Cause) -> tuple[Own, float] | None:
        """Own times with a cause, and seconds of a step; None where it would deadlock."""
        bench = cause.make(self.bench, self.sites)
        try:
            trace = simulate(bench.program, bench.costs, steps=STEPS)
        except Deadlock:
            return None
        # The needs that count are those of the program as it was written: what else holds an op back is a delay.
        own = steady(trace, self.sites)
        if cause.kind == 'pause':
            # It was simulated as a longer run.
            waited = np.where(cause.among(self.sites), cause.amount, 0.0)
            own = Own(own.delay + waited, own.run - waited)
        return own, float(trace.step_times[-2])

    def _matters(self, cause: Cause) -> bool:
        """Whether a cause is strong enough to be named."""
        if cause.kind in (*RATIOS, 'latency'):
            factor = cause.amount
            if cause.kind == 'latency':
                factor = 1 + cause.amount / max(1e-300, float(np.median(self.told.run[cause.among(self.sites)])))
            # What goes quicker than predicted is the cause of a shorter step alone, else a consequence.
            shorter = factor < 1 and self.step > (1 - SHORTER) * self.told_step
            if shorter or abs(factor - 1) < LEAST:
                return False
        whole = float(((self.told.run + self.told.delay) * self.sites.share).sum())
        return cause.seconds > max(MATTERS * whole, STANDS_OUT * self._disturbed(cause))

    def _disturbed(self, cause: Cause) -> float:
        """Seconds by which all ops of a cause's kind, those that compute or those that communicate, vary."""
        if cause.kind not in (*RATIOS, 'latency'):
            return 0.0
        computes = cause.kind in ('compute', 'compute beside communication')
        alike = self.sites.computes == computes
        return float((self.seen.disturbed * self.sites.share)[alike].sum())


# The sentence that names a cause, and a diagnosis as JSON.

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
            on = f' of {_ranks(ranks)}' if ranks else ''
            return f'streams {_listed(place.streams)}{on} run in turn, not at once as predicted'
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
    # Something else made the step shorter, so that one cause may weigh more than what is left.
    if diagnosis.explained >= 1.005:
        return ': more than the difference'
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


def _ranks(ranks: tuple[int, ...]) -> str:
    return f'rank {ranks[0]}' if len(ranks) == 1 else f'ranks {_listed(tuple(map(str, ranks)))}'


def _listed(words: tuple[str, ...]) -> str:
    return ', '.join(words[:-1]) + f' and {words[-1]}' if len(words) > 1 else ''.join(words)
