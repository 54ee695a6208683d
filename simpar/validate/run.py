"""Run: predict the rows of sets, and score them beside the null model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import process_time
from typing import NamedTuple

from simpar.case import case_of
from simpar.collector import without_collector
from simpar.document import Tree
from simpar.errors import ProfileError, SimparError
from simpar.interval import bound_by, device_class, streaming_share
from simpar.predict import step_and_costs
from simpar.schedule import schedule_of
from simpar.size import LIMIT, Limit
from simpar.validate import null_model
from simpar.validate.rows import Row, is_for_fitting
from simpar.validate.scores import Choice, Pair, Score, choice, score
from simpar.validate.settings import Skipped, stack_name
from simpar.validate.tree import schedule_tree

Tell = Callable[[int, int], None]


class Predicted(NamedTuple):
    """Seconds of a step, and its kind, as ``simpar.interval`` tells spreads apart."""

    seconds: float
    stack: str
    device: str
    bound: str
    streaming: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a row: what was ``predicted``, or why it was ``skipped``; ``cpu`` seconds that it took."""

    row: Row
    predicted: Predicted | None = None
    skipped: str = ''
    cpu: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAnswer:
    """What is told of a set.

    Arguments: ``fitted``, rows that numbers may be fitted on; ``pairs``, all others, which are scored; ``skipped``,
    reasons and how many rows each has; ``cpu``, seconds of a row in the median.
    """

    name: str
    fitted: tuple[Pair, ...]
    pairs: tuple[Pair, ...]
    skipped: dict[str, int]
    cpu: float

    @property
    def score(self) -> Score | None:
        """Of the prediction."""
        return score(self.pairs)

    @property
    def null(self) -> Score | None:
        """Of the null model, on the same rows."""
        return score(self.pairs, null=True)

    @property
    def of_fitted(self) -> Score | None:
        """Of the prediction on the rows for fitting."""
        return score(self.fitted)

    @property
    def choice(self) -> Choice:
        """How well plans are chosen and ordered, over all rows that are scored."""
        return choice(self.pairs)


def outcome(row: Row, limit: Limit = LIMIT) -> Outcome:
    """Predict one row, unless that would take more than the limit."""
    began = process_time()
    try:
        # What a row has built is let go when it is done, most of it without the collector.
        with without_collector():
            found = predicted(row, limit)
    except Skipped as why:
        return Outcome(row=row, skipped=str(why))
    # A profile or a stack that is wrong is wrong for every row.
    except ProfileError:
        raise
    except SimparError as error:
        return Outcome(row=row, skipped=str(error).splitlines()[0][:200])
    return Outcome(row=row, predicted=found, cpu=process_time() - began)


def predicted(row: Row, limit: Limit = LIMIT) -> Predicted:
    """The step of a row."""
    schedule = schedule_of(Tree(root=schedule_tree(row), origins={(): row.name}))
    made = case_of(schedule, limit=limit)
    step, costs = step_and_costs(made.program, made.cluster)
    device = device_class(made.cluster.profile.device.name)
    bound = bound_by(made.program, costs, step)
    return Predicted(step, stack_name(row), device, bound, streaming_share(made.program, costs, step, bound))


def outcomes(rows: Sequence[Row], jobs: int = 1, tell: Tell | None = None, limit: Limit = LIMIT) -> list[Outcome]:
    """Predict rows, in so many processes."""
    found = []
    for done in _each(rows, jobs, partial(outcome, limit=limit)):
        found.append(done)
        if tell:
            tell(len(found), len(rows))
    return found


def _each(rows: Sequence[Row], jobs: int, one: Callable[[Row], Outcome]) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(one, rows)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(one, rows, chunksize=4)


def answers(found: Sequence[Outcome]) -> list[SetAnswer]:
    """Sets in the order of their names."""
    names = sorted({one.row.of for one in found})
    return [_answer(name, [one for one in found if one.row.of == name]) for name in names]


def _answer(name: str, found: Sequence[Outcome]) -> SetAnswer:
    used = [(one, one.predicted) for one in found if one.predicted]
    skipped: dict[str, int] = {}
    for one in found:
        if one.skipped:
            skipped[one.skipped] = skipped.get(one.skipped, 0) + one.row.same
    for_fitting = [one.row for one, _ in used if is_for_fitting(one.row)]
    # A set of which no row is for fitting has no null model but that of its own rows: the stronger opponent.
    rates = null_model.fitted(for_fitting or [one.row for one, _ in used])
    pairs = [Pair(one.row, made.seconds, null_model.predicted(one.row, rates), *made[1:]) for one, made in used]
    times = sorted(one.cpu for one, _ in used)
    return SetAnswer(
        name=name,
        fitted=tuple(pair for pair in pairs if is_for_fitting(pair.row)),
        pairs=tuple(pair for pair in pairs if not is_for_fitting(pair.row)),
        skipped=dict(sorted(skipped.items(), key=lambda item: -item[1])),
        cpu=times[len(times) // 2] if times else 0.0,
    )
