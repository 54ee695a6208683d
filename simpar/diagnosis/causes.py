"""Diagnosis: causes of a difference between two steps, the one that a simulation bears out, and the sentence on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, zip_longest
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from simpar.cost.costs import Costs
from simpar.diagnosis import places
from simpar.engine import simulate
from simpar.errors import Deadlock
from simpar.program import Csr, Program, Role
from simpar.trace import Times, Trace
from simpar.units import format_time

# A cause: what kind of fault, where, and how strong; and the program and costs that it makes of a prediction's.

CauseKind = Literal[
    'compute',
    'communication',
    'latency',
    'overlap',
    'compute beside communication',
    'communication beside compute',
    'host',
    'pause',
    'busy',
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A fault at a place.

    Arguments:
        kind: compute or communication that takes longer, by a factor or (latency) by the same time an op; streams that
            do not overlap; compute and communication that slow each other more; a host that issues late; an op that
            begins late, though its host may not; a machine that does something else, too.
        amount: compute, communication, slow-down: how many times as long as predicted. latency, host, pause: seconds
            later, an op. busy: the share by which its ops vary. overlap: 1.
        seconds: what it explains of the own times of one step, over all ranks.
        explains: its share of all that is not as predicted in the own times.
        step: seconds of a step with it.
    """

    kind: CauseKind
    place: places.Place
    amount: float = 1.0
    seconds: float = 0.0
    explains: float = 0.0
    step: float = 0.0

    def among(self, sites: places.Sites) -> places.Mask:
        """Shape [N], the sites that it concerns: those that compute, or that communicate, at its place."""
        if self.kind in ('overlap', 'host', 'pause'):
            return self.place.sites(sites, sites.on(()))
        communicates = self.kind in ('communication', 'latency', 'communication beside compute')
        return self.place.sites(sites, ~sites.computes if communicates else sites.computes)

    def make(self, bench: Bench, sites: places.Sites) -> Bench:
        """What it makes of a program and its costs."""
        match self.kind:
            case 'compute' | 'communication':
                return changed(bench, sites, self.among(sites), factor=self.amount)
            case 'latency' | 'pause':
                return changed(bench, sites, self.among(sites), seconds=self.amount)
            case 'host':
                return changed(bench, sites, self.among(sites), host=self.amount)
            case 'overlap':
                return in_turn(bench, self.place.ranks or range(sites.program.world), self.place.streams)
            case 'communication beside compute':
                own = bench.costs.beside_compute
                speed = np.where(own > 1, own, np.clip(own / self.amount, 1e-3, 1.0))
                return replace(bench, costs=replace(bench.costs, beside_compute=speed))
            case 'compute beside communication':
                slowed = bench.costs.with_speeds(lambda speed: np.clip(speed / self.amount, 1e-3, 1.0))
                return replace(bench, costs=slowed)
            case 'busy':
                return bench


# Faults: changes of a program and its costs, as a cause would make them, so that the simulator can judge it.


@dataclass(frozen=True, slots=True, eq=False)
class Bench:
    """What is simulated: a program and its costs."""

    program: Program
    costs: Costs


def changed(
    bench: Bench,
    sites: places.Sites,
    mask: places.Mask,
    *,
    factor: float = 1.0,
    seconds: float = 0.0,
    host: float = 0.0,
) -> Bench:
    """The ops of the sites in the mask take ``factor`` times as long, and so many seconds more, whatever their size.

    Arguments: ``host``, seconds that its host takes longer to issue each of them.
    """
    bench, touched = apart(bench, sites, mask)
    compute, issued = bench.costs.compute.copy(), bench.costs.host.copy()
    own = touched[[bench.program.op_classes[index].kind == 'compute' for index in touched.tolist()]]
    compute[own] = np.maximum(compute[own] * factor + seconds, 0.0)
    issued[touched] = np.maximum(issued[touched] + host, 0.0)
    communication = dict(bench.costs.communication)
    for index in set(touched.tolist()) & communication.keys():
        communication[index] = tuple(
            replace(one, alpha=max(0.0, one.alpha * factor + seconds), transfer=one.transfer * factor)
            for one in communication[index]
        )
    return replace(bench, costs=replace(bench.costs, compute=compute, host=issued, communication=communication))


def in_turn(bench: Bench, ranks: Sequence[int], streams: Sequence[str]) -> Bench:
    """These streams of these ranks run one op at a time, in issue order, as if they were one queue."""
    program = bench.program
    made: dict[int, int] = {}
    roles, role_of_rank = [*program.roles], program.role_of_rank.copy()
    for rank in ranks:
        role = int(program.role_of_rank[rank])
        if role not in made:
            made[role] = len(roles)
            roles.append(_queued(program.roles[role], streams))
        role_of_rank[rank] = made[role]
    return replace(bench, program=program.replace(roles=tuple(roles), role_of_rank=role_of_rank))


def apart(bench: Bench, sites: places.Sites, mask: places.Mask) -> tuple[Bench, places.Ints]:
    """The same, with op classes that the sites in the mask have to themselves; and the numbers of these classes."""
    everywhere = np.bincount(sites.op, minlength=len(sites.program.op_classes))
    inside = np.bincount(sites.op[mask], minlength=len(everywhere))
    # Classes that other sites have too are doubled; those that have none keep their number.
    split = np.flatnonzero((inside > 0) & (inside < everywhere))
    number = np.arange(len(everywhere))
    number[split] = len(everywhere) + np.arange(len(split))
    touched = number[np.flatnonzero(inside)]
    if not len(split):
        return bench, touched
    program = bench.program
    again = np.concatenate((np.arange(len(everywhere)), split))
    changed = program.replace(op_classes=tuple(program.op_classes[index] for index in again.tolist()))
    changed = _renumbered(changed, sites, mask, number)
    return Bench(changed, bench.costs.of_classes(again)), touched


def _renumbered(program: Program, sites: places.Sites, mask: places.Mask, number: places.Ints) -> Program:
    """The program with other numbers for the op classes of the sites in the mask, in roles of their own."""
    roles, role_of_rank = [*program.roles], program.role_of_rank.copy()
    made: dict[tuple[int, bytes], int] = {}
    for rank in np.unique(sites.rank[mask]).tolist():
        mine = mask[sites.first[rank] : sites.first[rank + 1]]
        index = int(program.role_of_rank[rank])
        key = index, mine.tobytes()
        if key not in made:
            made[key] = len(roles)
            role = program.roles[index]
            roles.append(replace(role, op_class=np.where(mine, number[role.op_class], role.op_class).astype(np.uint32)))
        role_of_rank[rank] = made[key]
    return program.replace(roles=tuple(roles), role_of_rank=role_of_rank)


def _queued(role: Role, streams: Sequence[str]) -> Role:
    """A role in which each op of some streams needs the one before it there, in issue order."""
    among = np.flatnonzero(np.isin(role.stream, [role.streams.index(name) for name in streams if name in role.streams]))
    if len(among) < 2:
        return role
    need = np.concatenate((role.need.pairs(), np.column_stack((among[1:], among[:-1]))))
    carry = np.concatenate((role.carry.pairs(), [[among[0], among[-1]]]))
    return replace(role, need=_csr(need, len(role)), carry=_csr(carry, len(role)))


def _csr(pairs: NDArray[np.int64], rows: int) -> Csr:
    pairs = np.unique(pairs, axis=0)
    return Csr.of(pairs[:, 0], pairs[:, 1], rows)


# Suspects: the causes worth a simulation, found from the own times alone, each with a first guess of its strength.

NAMED: Final = 4
"""How many places of compute, and how many of communication, are simulated."""
LATENCIES: Final = 2
"""How many places of longer latency are simulated."""
RANKS: Final = 8
"""How many ranks are looked at one by one: those whose own times differ most."""
PAUSES: Final = 2
"""How many ops that begin late are simulated, on all ranks and on one."""
HOSTS: Final = 3
"""How many hosts, and on how many ranks lost overlap, are simulated one by one."""
GROUPS: Final = 32
"""How many groups of ranks are looked at."""
FEWEST: Final = len(get_args(CauseKind)) - 1
"""One of each kind but busy, which needs no simulation."""
SLOTS: Final = 3_000_000
"""How many causes are simulated: so many that all have this many slots, but the fewest in any case."""
STREAMS: Final = 6
"""Streams of a role beyond which pairs of communication streams are left out."""


def suspects(seen: places.Level, forecast: places.Own, sites: places.Sites, costs: Costs, step: float) -> list[Cause]:
    """The causes to simulate.

    Arguments:
        seen, forecast: own times, in the measurement and by the prediction, which was made with ``costs``.
        step: seconds of a measured step.
    """
    causes = [*_longer('compute', seen, forecast, sites), *_longer('communication', seen, forecast, sites)]
    causes += [*_late(seen, forecast, sites, costs, step), *_pauses(seen, forecast, sites)]
    causes += [] if sites.computes.all() else [*_in_turn(seen, forecast, sites), *_beside()]
    causes.sort(key=lambda item: -item[0])
    # In turns of kinds: where few can be simulated, ten late hosts must not keep a slow link from being tried.
    kinds: dict[CauseKind, list[Cause]] = {}
    for _, cause in causes:
        kinds.setdefault(cause.kind, []).append(cause)
    turns = [cause for turn in zip_longest(*kinds.values()) for cause in turn if cause]
    return turns[: max(FEWEST, SLOTS // len(sites))]


def _longer(
    kind: CauseKind, seen: places.Level, forecast: places.Own, sites: places.Sites
) -> list[tuple[float, Cause]]:
    """The places whose ops, all by one factor, leave the least unexplained; of communication by one addition, too.

    Each with the seconds that it explains.
    """
    among = sites.computes if kind == 'compute' else ~sites.computes
    cells = places.cells_of(seen, forecast, sites, among)
    worst = _worst_ranks(np.abs(seen.run - forecast.run) * among, sites)
    alike = _alike(seen, forecast, sites, among)
    gains: dict[bytes, list[tuple[float, Cause]]] = {}
    ranks: tuple[int, ...] = ()
    on = places.Place().on(cells)
    several, single = places.groups(sites)[:GROUPS], [(rank,) for rank in worst] + alike
    # Where a group and one of its ranks have the same sites, what communicates is told by the group.
    sets = [(), *single, *several] if kind == 'compute' else [(), *several, *single]
    for place in places.crossed(sites, kind == 'compute', sets):
        # All places on some ranks follow one another.
        if place.ranks != ranks:
            ranks, on = place.ranks, place.on(cells)
        mask = on & place.named(cells)
        key = np.packbits(mask).tobytes()
        # Of places with the same sites the first stands: it is told in the fewest words.
        if key not in gains and mask.any():
            times = cells.seen[mask], cells.told[mask], cells.count[mask]
            amounts: list[tuple[CauseKind, tuple[float, float]]] = [(kind, _factor(*times))]
            amounts += [('latency', _addition(*times))] if kind == 'communication' else []
            gains[key] = [(gain, Cause(kind=each, place=place, amount=amount)) for each, (amount, gain) in amounts]
    ranked = sorted((one for each in gains.values() for one in each), key=lambda item: -item[0])
    causes = [one for one in ranked if one[0] > 0]
    latencies = [one for one in causes if one[1].kind == 'latency']
    return [one for one in causes if one[1].kind == kind][:NAMED] + latencies[:LATENCIES]


def _factor(seen: Times, forecast: Times, count: Times) -> tuple[float, float]:
    """The factor that brings the told times nearest to those seen, and by how many seconds nearer."""
    factor = places.weighted_median(np.divide(seen, forecast, out=np.ones_like(seen), where=forecast > 0), forecast)
    return factor, float((np.abs(seen - forecast) - np.abs(seen - factor * forecast)).sum())


def _addition(seen: Times, forecast: Times, count: Times) -> tuple[float, float]:
    """The seconds that, added to each op, bring the told times nearest to those seen, and how much nearer."""
    seconds = places.weighted_median((seen - forecast) / count, count)
    return seconds, float((np.abs(seen - forecast) - np.abs(seen - forecast - seconds * count)).sum())


Suspects = Iterator[tuple[float, Cause]]
"""Causes, each with the seconds that it explains of what ops are late, or longer."""


def _late(seen: places.Level, forecast: places.Own, sites: places.Sites, costs: Costs, step: float) -> Suspects:
    """Hosts: of all ranks, and of those whose ops start latest."""
    late = seen.delay - forecast.delay
    ops, issues = np.bincount(sites.rank), np.bincount(sites.rank, costs.host[sites.op])
    worst = [(rank,) for rank in _worst_ranks(late, sites)[:HOSTS] if late[sites.rank == rank].sum() > 0]
    for ranks in [(), *worst] if worst else []:
        # A host never waits for its device. Where it delays a steady step, issuing takes the whole step.
        busiest = max(ranks or range(len(ops)), key=issues.__getitem__)
        amount = float((step - issues[busiest]) / ops[busiest])
        if amount > 0:
            on = sites.on(ranks)
            share = sites.share[on]
            _, gain = _addition(seen.delay[on] * share, forecast.delay[on] * share, share)
            yield gain, Cause(kind='host', place=places.Place(ranks=ranks), amount=amount)


def _pauses(seen: places.Level, forecast: places.Own, sites: places.Sites) -> Suspects:
    """Single ops that begin late, on all ranks and on one: those that lose most."""
    late = (seen.delay - forecast.delay) * sites.share
    count = len(sites.program.op_classes)
    for key, on in ((sites.op, False), (sites.rank * count + sites.op, True)):
        sums = np.bincount(key, late)
        for one in np.argsort(-sums, kind='stable')[:PAUSES].tolist():
            mask = key == one
            rank, op = divmod(one, count) if on else (0, one)
            amount = float(np.median((seen.delay - forecast.delay)[mask]))
            if amount > 0:
                place = places.Place(ranks=(rank,) if on else (), op=sites.program.op_classes[op].name)
                yield float(sums[one]), Cause(kind='pause', place=place, amount=amount)


def _in_turn(seen: places.Level, forecast: places.Own, sites: places.Sites) -> Suspects:
    """Pairs of streams, and all of them, on all ranks and on those whose ops start latest."""
    late = seen.delay - forecast.delay
    if late.sum() <= 0:
        return
    computing_on, others = _streams(sites)
    together: list[tuple[str, ...]] = [(computing_on, other) for other in others]
    together += [(computing_on, *others)] if len(others) > 1 else []
    together += [*combinations(others, 2)] if len(others) <= STREAMS else []
    for ranks in [(), *((rank,) for rank in _worst_ranks(late, sites)[:HOSTS])]:
        held = float(np.maximum(late * sites.share, 0.0)[sites.on(ranks)].sum())
        for streams in together:
            yield held, Cause(kind='overlap', place=places.Place(ranks=ranks, streams=streams))


def _beside() -> Suspects:
    # By how much they explain, only a simulation says.
    yield 0.0, Cause(kind='compute beside communication', place=places.Place(), amount=1.25)
    yield 0.0, Cause(kind='communication beside compute', place=places.Place(), amount=1.25)


def _streams(sites: places.Sites) -> tuple[str, list[str]]:
    """The stream with most ops that compute, and the streams that only communicate."""
    count = np.bincount(sites.stream[sites.computes], minlength=len(sites.streams))
    first = int(np.argmax(count))
    return sites.streams[first], [name for name, computes in zip(sites.streams, count, strict=True) if not computes]


def _alike(seen: places.Level, forecast: places.Own, sites: places.Sites, among: places.Mask) -> list[tuple[int, ...]]:
    """The ranks that take at least half as much longer as the worst, where these are some and not all."""
    apart = np.bincount(sites.rank, np.where(among, seen.run - forecast.run, 0.0))
    ranks = tuple(np.flatnonzero(apart > apart.max() / 2).tolist()) if apart.max() > 0 else ()
    return [ranks] if 1 < len(ranks) < len(apart) else []


def _worst_ranks(seconds: Times, sites: places.Sites) -> list[int]:
    """The ranks with most seconds, the worst first."""
    sums = np.bincount(sites.rank, seconds * sites.share)
    worst: list[int] = np.argsort(-sums, kind='stable')[:RANKS].tolist()
    return worst


# Busy machines: ops that vary from step to step more than those of other ranks, or more than ops do.


VARIES: Final = 0.05
"""Share of its compute by which a rank's ops must vary beyond those of most, to be called busy."""
ALL: Final = 0.15
"""Share by which most ops vary, beyond which the whole machine is called busy."""


def busy(seen: places.Level, forecast: places.Own, sites: places.Sites) -> list[Cause]:
    """Each rank, and all of them, as far as their ops vary."""
    varies = np.bincount(sites.rank, seen.varies)
    computes = np.maximum(np.bincount(sites.rank, seen.run * sites.computes), 1e-300)
    causes = [
        Cause(
            kind='busy',
            place=places.Place(ranks=(rank,)),
            amount=float(varies[rank] / computes[rank]),
            seconds=float(varies[rank]),
        )
        for rank in np.flatnonzero(varies > VARIES * computes).tolist()
    ]
    if seen.noise > ALL:
        seconds = seen.noise * float(computes.sum())
        causes.append(Cause(kind='busy', place=places.Place(), amount=seen.noise, seconds=seconds))
    return causes


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
    sites = places.sites_of(program)
    warm = measured.warm()
    own = places.own_times(measured, sites)
    seen = places.level(places.Own(own.delay[warm], own.run[warm]), sites)
    step = float(measured.step_times[measured.that_counts])
    forecast = simulate(program, costs, steps=STEPS)
    court = _Court(
        sites, seen, step, Bench(program, costs), places.steady(forecast, sites), float(forecast.step_times[-2])
    )
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

    sites: places.Sites
    seen: places.Level
    step: float
    bench: Bench
    told: places.Own
    told_step: float

    def marks(self, cause: Cause) -> frozenset[tuple[int, int]]:
        """The (rank, slot) of a cause at which own times are not as told."""
        apart = np.abs(places.joined(self.seen) - places.joined(self.told)).reshape(2, -1).sum(axis=0)
        differ = apart > LEAST * (self.told.run + self.told.delay)
        places_of = np.flatnonzero(cause.among(self.sites) & differ)
        return frozenset(zip(self.sites.rank[places_of].tolist(), self.sites.slot[places_of].tolist(), strict=True))

    def verdict(self) -> Cause | None:
        """The best cause, if it matters."""
        # What varies comes on top of the level: it is explained by a machine that does something else.
        whole = places.misfit(self.seen, self.told, self.sites) + float((self.seen.varies * self.sites.share).sum())
        causes = suspects(self.seen, self.told, self.sites, self.bench.costs, self.step)
        tried = [trial for cause in causes if (trial := self._try(cause))]
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
        before = places.misfit(self.seen, self.told, self.sites)
        judged = [
            replace(one, seconds=before - places.misfit(self.seen, own, self.sites), step=step)
            for one, (own, step) in tried
            # What the quickest steps do not show is a disturbance that comes and goes.
            if places.scale(self.seen.quickest, self.told, own, self.sites.share) >= FIRM
        ]
        return max(judged, key=lambda one: one.seconds, default=None)

    def _fitted(self, cause: Cause, own: places.Own) -> Cause | None:
        """The cause at the strength at which own times, if they change in proportion, come nearest."""
        if cause.kind == 'overlap':
            return None
        base = 0.0 if cause.kind in ('host', 'latency', 'pause') else 1.0
        factor = places.scale(self.seen, self.told, own, self.sites.share)
        # Far from what was tried, the proportion does not hold.
        amount = base + (cause.amount - base) * float(np.clip(factor, 0.0, 4.0))
        return replace(cause, amount=amount) if amount != cause.amount else None

    def _simulate(self, cause: Cause) -> tuple[places.Own, float] | None:
        """Own times with a cause, and seconds of a step; None where it would deadlock."""
        bench = cause.make(self.bench, self.sites)
        try:
            trace = simulate(bench.program, bench.costs, steps=STEPS)
        except Deadlock:
            return None
        # The needs that count are those of the program as it was written: what else holds an op back is a delay.
        own = places.steady(trace, self.sites)
        if cause.kind == 'pause':
            # It was simulated as a longer run.
            waited = np.where(cause.among(self.sites), cause.amount, 0.0)
            own = places.Own(own.delay + waited, own.run - waited)
        return own, float(trace.step_times[-2])

    def _matters(self, cause: Cause) -> bool:
        """Whether a cause is strong enough to be named."""
        disturbed = 0.0
        if cause.kind in (*RATIOS, 'latency'):
            factor = cause.amount
            if cause.kind == 'latency':
                factor = 1 + cause.amount / max(1e-300, float(np.median(self.told.run[cause.among(self.sites)])))
            # What goes quicker than predicted is the cause of a shorter step alone, else a consequence.
            shorter = factor < 1 and self.step > (1 - SHORTER) * self.told_step
            if shorter or abs(factor - 1) < LEAST:
                return False
            # Seconds by which all ops of its kind, those that compute or those that communicate, vary.
            alike = self.sites.computes == (cause.kind in ('compute', 'compute beside communication'))
            disturbed = float((self.seen.disturbed * self.sites.share)[alike].sum())
        whole = float(((self.told.run + self.told.delay) * self.sites.share).sum())
        return cause.seconds > max(MATTERS * whole, STANDS_OUT * disturbed)


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


def _ops(place: places.Place) -> str:
    """Which of a rank's ops compute longer."""
    words = place.op or place.operator or place.layer or ('ops' if place.phase else '')
    return f'{words} {_PHASES[place.phase]}' if place.phase else words


def _over(place: places.Place) -> str:
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
