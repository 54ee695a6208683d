"""plain: an answer as one JSON object, and a plan as the schedule that `simpar run` and the executor take."""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

from simpar.planner.answer import Answer, Ranked
from simpar.planner.robust import Robustness
from simpar.predict import Prediction
from simpar.schedule import written

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
        'choice': None if choice is None else _plain(choice),
        'ranking': [_plain(one) for one in answer.ranking],
        'front': [answer.ranking.index(one) for one in answer.front],
        'alike': len(answer.alike),
        'infeasible': answer.infeasible,
        'pruned': [{'rule': one.rule, 'plans': one.plans, 'example': one.example} for one in answer.pruned],
        'why': _why(why),
        'robust': _robust(robustness),
    }


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


def saved(one: Ranked) -> dict[str, Any]:
    """The schedule of a plan as a file has it: keys of the plan that are as usual are left out."""
    tree = written(one.schedule)
    usual = written_plan_of(one)
    tree['plan'] = {key: value for key, value in tree['plan'].items() if value != usual[key]}
    tree['workload'] = {key: value for key, value in tree['workload'].items() if value not in ('', [], {}, None)}
    tree['cluster'] = {key: value for key, value in tree['cluster'].items() if value not in ('', [], {}, None)}
    return {key: value for key, value in tree.items() if key not in ('sweep', 'planner')}


def written_plan_of(one: Ranked) -> dict[str, Any]:
    """The plan that splits nothing, as a file has it."""
    from dataclasses import replace

    plan: dict[str, Any] = written(replace(one.schedule, plan=type(one.schedule.plan)()))['plan']
    return plan
