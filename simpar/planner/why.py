"""Why: what makes the runner-up slower than the chosen plan, in seconds that add up."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simpar.case import case_of
from simpar.errors import SimparError
from simpar.planner.answer import Answer, Ranked
from simpar.planner.words import told
from simpar.predict import Prediction, predict

LONGEST: Final = 2_000_000
"""Ops of both programs over all representative ranks; each is simulated up to seven times."""


def why(answer: Answer) -> Prediction | None:
    """The choice with its rival as the baseline: gain, and why; None where there is no other plan.

    The rival is the fastest plan that is not within noise; where all are, the fastest other one.
    """
    choice, other = answer.choice, rival(answer)
    if choice is None or other is None:
        return None
    try:
        mine, others = case_of(choice.schedule), case_of(other.schedule)
    except SimparError:
        return None
    if sum(len(role) for one in (mine, others) for role in one.program.roles) > LONGEST:
        return None
    found = predict(
        mine.program, others.program, mine.cluster, names=(_differs(choice, other), _differs(other, choice))
    )
    below = replace(found.baseline, throughput=others.throughput) if found.baseline else None
    return replace(found, baseline=below, throughput=mine.throughput)


def rival(answer: Answer) -> Ranked | None:
    """Which plan the choice is compared with."""
    choice = answer.choice
    if choice is None:
        return None
    others = (one for one in answer.ranking if (one.step, one.peak) != (choice.step, choice.peak))
    return answer.runner_up or next(others, None)


def _differs(one: Ranked, other: Ranked) -> str:
    """What a plan has that the other has not."""
    return told({key: value for key, value in _settings(one).items() if _settings(other).get(key) != value})


def _settings(one: Ranked) -> dict[str, object]:
    return {'plan.data': one.schedule.plan.data, **one.settings}
