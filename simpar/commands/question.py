"""The first schedule of a file or a model with the baseline that tells most and can be predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simpar.case import cluster_of
from simpar.errors import ScheduleError
from simpar.importing.write import NONE, Question, questions
from simpar.schedule import check_against_cluster, load_schedule


def with_baseline(values: Mapping[str, Any], text: Callable[[Question], str], overrides: Sequence[str] = ()) -> str:
    """The text of a schedule, with a baseline if one fits it.

    Arguments: ``values`` of the schedule by dotted key; ``text``, which writes it with a baseline; ``overrides``,
    ``key=value``, beside what it says.
    Raises ``ScheduleError`` where the schedule itself is wrong.
    """
    world = cluster_of(load_schedule(text(NONE), overrides)).world
    fitting = (one for one in questions(values, world) if _is_predicted(text(one), overrides))
    return text(next(fitting, NONE))


def _is_predicted(text: str, overrides: Sequence[str]) -> bool:
    """Whether the baseline of a schedule is a schedule that fits its cluster."""
    try:
        baseline = load_schedule(text, overrides).baseline()
        return baseline is not None and bool(check_against_cluster(baseline, cluster_of(baseline).world))
    except ScheduleError:
        return False
