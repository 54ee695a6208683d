"""The automatic zero-bubble order: the best found for given times under a limit of memory (ZB-1p, ZB-2p)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import floor
from typing import Final

from simpar.pipeline import greedy
from simpar.pipeline.checks import peak_of_letters
from simpar.pipeline.clock import StageTimes, run
from simpar.pipeline.closed_forms import refuse
from simpar.pipeline.greedy import RULES, Letters, Rule, Setting
from simpar.pipeline.order import Order
from simpar.pipeline.tasks import tasks
from simpar.pipeline.zero_bubble import letters, of_letters
from simpar.units import quantise

Shortlist = Callable[[Setting, Sequence[Rule], int], list[Letters]]
LastEnds = Callable[[Letters, StageTimes, int], list[float]]
SHORTLIST: Final = 4
"""Orders of the heuristic that are timed over several steps."""
COMPILES: Final = 3000
"""Actions from which on all rules take longer in plain Python than compiling, and loading, takes."""


def automatic_order(micro_batches: int, times: StageTimes, limit: float | Sequence[float], kept: float = 1.0) -> Order:
    """The order of F, I and W with the shortest step that the zero-bubble heuristic finds; a stage on each rank.

    It is the best, first by step time in the steady state and then by the first step, of: the published heuristic
    (Qi et al., 2023, arXiv 2401.10241, section 3.1) under each of its rules, 1F1B, ZB-H1 and ZB-H2, these cut down
    to the limit. So it is never slower than these where they keep the limit. Same arguments, same order.

    Arguments:
        times: of the stages; pipeline ranks are as many. Rounded to the grid of 2⁻⁴⁰ s.
        limit: activations that a rank may keep, for all or for each, at least 1; ZB-1p has as many as ranks, ZB-2p
            twice that.
        kept: share of an activation that lives on from its I to its W (M_W / M_B in the paper).
    Raises `ScheduleError` for a limit below one activation, or for another number of limits than ranks.
    Does not model streams, links that are shared, launches, or what happens between steps.
    """
    setting = _setting(micro_batches, times, limit, kept)
    shortlist, ends = _compiled() if _is_compiled(setting) else (greedy.shortlist, _last_ends)
    # Handcrafted orders first, so that they win where nothing is better: 1F1B, ZB-H1 and ZB-H2.
    candidates = [_within_limit(setting, ahead, lag) for ahead, lag in ((1, 0), (1, 1), (2, 2))]
    # The heuristic's own seconds are of one step; the best few are timed over three, where steps overlap.
    candidates += shortlist(setting, RULES, SHORTLIST)
    # min keeps the first of equals, and candidates come in a fixed order: the same arguments give the same order.
    best: Letters = min(candidates, key=lambda rows: _cost(ends(rows, setting.times, 3)))
    return of_letters(best, micro_batches)


def _setting(micro_batches: int, times: StageTimes, limit: float | Sequence[float], kept: float) -> Setting:
    limits = tuple(limit) if isinstance(limit, Sequence) else (limit,) * times.stages
    if len(limits) != times.stages or min(limits) < 1:
        what = f'{len(limits)} limits, the least {min(limits, default=0):g} activations, for {times.stages} ranks'
        raise refuse('automatic', what, 'give one for each rank, at least 1')
    if micro_batches < 1 or not 0 <= kept <= 1:
        what = f'{micro_batches} micro-batches, {kept:g} of an activation kept for W'
        raise refuse('automatic', what, 'give at least 1, and a share from 0 to 1')
    # On the engine's grid, so that the clock's ties here are ties in the simulation.
    rounded = StageTimes(
        forward=tuple(map(quantise, times.forward)),
        input=tuple(map(quantise, times.input)),
        weight=tuple(map(quantise, times.weight)),
        communication=tuple(map(quantise, times.communication)),
    )
    return Setting(rounded, micro_batches, limits, kept)


def _is_compiled(setting: Setting) -> bool:
    """Whether compiling, or loading what has been compiled, repays."""
    return 3 * setting.ranks * setting.micro_batches >= COMPILES


def _compiled() -> tuple[Shortlist, LastEnds]:
    from simpar.pipeline.compiled.search import last_ends, shortlist

    return shortlist, last_ends


def _within_limit(setting: Setting, ahead: int, lag: int) -> Letters:
    """1F1B (1, 0), ZB-H1 (1, 1) or ZB-H2 (2, 2), with less warm-up and then less lag where the limit is lower."""
    ranks, count = setting.ranks, setting.micro_batches
    rows = tuple(letters(count, ahead * (ranks - 1 - rank), lag * rank) for rank in range(ranks))
    if all(peak_of_letters(row, setting.kept) <= limit for row, limit in zip(rows, setting.limits, strict=True)):
        return rows
    # One activation is the one that is worked on.
    room = [floor(limit) - 1 for limit in setting.limits]
    # A rank that were ahead by more than the one before it would wait for forwards that never come.
    warm_up = list(accumulate((min(room[rank], ahead * (ranks - 1 - rank)) for rank in range(ranks)), min))
    return tuple(letters(count, warm_up[rank], min(lag * rank, room[rank] - warm_up[rank])) for rank in range(ranks))


def _last_ends(rows: Letters, times: StageTimes, steps: int) -> list[float]:
    """When the last rank ends each of some steps that are run back to back."""
    order = of_letters(rows, rows[0].count('F'))
    return [max(step.end) for step in run(tasks(order), times, steps)]


def _cost(ends: Sequence[float]) -> tuple[float, float]:
    """Step time in the steady state, and the first step."""
    # The second step may still feel the empty pipeline of the first; from then on steps repeat.
    first, second, third = ends
    return third - second, first
