"""Faults on purpose, for tests of what becomes of a run that breaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KINDS: Final = ('kill', 'stall', 'stop', 'spin', 'resize')


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong as a rank comes to an op: ``kill`` or ``stop`` the rank's process, let the stream's
    thread ``stall`` or ``spin``, or ``resize`` the op's message (in emulated compute)."""

    kind: str
    rank: int
    action: str
    step: int = 0


def parse_fault(text: str) -> Fault:
    """Read ``KIND:RANK:ACTION[:STEP]``, e.g. ``kill:1:dense0.F.c0:2``; raises ``ValueError``."""
    kind, rank, action, *step = text.split(':')
    if kind not in KINDS:
        raise ValueError(f'not a fault: {text!r}; write KIND:RANK:ACTION[:STEP], KIND one of {", ".join(KINDS)}')
    return Fault(kind, int(rank), action, int(step[0]) if step else 0)
