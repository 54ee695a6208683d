"""plain: an answer as one JSON object."""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

from simpar.planner.answer import Answer, Own, Ranked
from simpar.planner.robust import Robustness
from simpar.predict import Prediction

FORMAT: Final = 'simpar plan 1'


def to_dict(answer: Answer, why: Prediction | None = None, robustness: Robustness | None = None) -> dict[str, Any]:
    """The answer as plain values; ``why`` and ``robustness`` where they are known."""
    choice = answer.choice
    return {
        'format': FORMAT,
        'plans': answer.plans,
        'open': answer.open,
        'complete': answer.complete,
        'least': answer.least,
        'gap': answer.gap,
        'refuted': max(0.0, answer.refuted),
        'margin': answer.margin,
        'noise': answer.noise,
        'nodes': answer.nodes,
        'keys': {key: list(values) for key, values in answer.keys.items()},
        'own': _own(answer.own),
        'choice': None if choice is None else _plain(choice),
        'ranking': [_plain(one) for one in answer.ranking],
        'front': [answer.ranking.index(one) for one in answer.front],
        'alike': len(answer.alike),
        'infeasible': answer.infeasible,
        'pruned': [{'rule': one.rule, 'plans': one.plans, 'example': one.example} for one in answer.pruned],
        'why': _why(why),
        'robust': _robust(robustness),
    }


def _own(own: Own | None) -> dict[str, Any] | None:
    """The plan of the file; ``plan`` is None where it has no program."""
    if own is None:
        return None
    plan = _plain(own.ranked) if own.ranked else None
    return {'fits': own.fits, 'allowed': own.allowed, 'reason': own.outcome.reason, 'plan': plan}


def _why(why: Prediction | None) -> dict[str, Any] | None:
    if why is None or why.baseline is None:
        return None
    rows = [{'effect': row.effect, 'saves': row.seconds} for row in why.explanation]
    return {'runner_up': why.baseline.name, 'step': why.baseline.step, 'against': why.name, 'explanation': rows}


def _robust(found: Robustness | None) -> dict[str, Any] | None:
    if found is None:
        return None
    trials = [
        {
            'name': trial.name,
            'steps': [step if isfinite(step) else None for step in trial.steps],
            'fastest': trial.best,
            'holds': found.holds(trial),
        }
        for trial in found.trials
    ]
    return {'plans': [_plain(one) for one in found.plans], 'trials': trials}


def _plain(one: Ranked) -> dict[str, Any]:
    return {
        'settings': dict(one.settings),
        'data': one.schedule.plan.data,
        'step': one.step,
        'peak': one.peak,
        'bound': one.bound,
        'parts': one.parts,
    }
