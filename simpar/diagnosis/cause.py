"""A cause: what kind of fault, where, and how strong; and the program and costs that it makes of a prediction's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from simpar.diagnosis.fault import Bench, added, delayed, in_turn, later, longer, slowed_communication, slowed_compute
from simpar.diagnosis.place import Place
from simpar.diagnosis.sites import Mask, Sites

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
    place: Place
    amount: float = 1.0
    seconds: float = 0.0
    explains: float = 0.0
    step: float = 0.0

    def among(self, sites: Sites) -> Mask:
        """Shape [N], the sites that it concerns: those that compute, or that communicate, at its place."""
        if self.kind in ('overlap', 'host', 'pause'):
            return self.place.sites(sites, sites.on(()))
        communicates = self.kind in ('communication', 'latency', 'communication beside compute')
        return self.place.sites(sites, ~sites.computes if communicates else sites.computes)

    def make(self, bench: Bench, sites: Sites) -> Bench:
        """What it makes of a program and its costs."""
        match self.kind:
            case 'compute' | 'communication':
                return longer(bench, sites, self.among(sites), self.amount)
            case 'latency':
                return delayed(bench, sites, self.among(sites), self.amount)
            case 'pause':
                return added(bench, sites, self.among(sites), self.amount)
            case 'host':
                return later(bench, sites, self.among(sites), self.amount)
            case 'overlap':
                return in_turn(bench, self.place.ranks or range(sites.program.world), self.place.streams)
            case 'communication beside compute':
                return slowed_communication(bench, self.amount)
            case 'compute beside communication':
                return slowed_compute(bench, self.amount)
            case 'busy':
                return bench

    def of(self, amount: float) -> Cause:
        """The same at another strength."""
        return replace(self, amount=amount)
