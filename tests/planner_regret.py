"""`make prove-planner-rows`: of published plans of one model on equal devices, the planner's pick beside the fastest.

Groups are plans of one model with equal devices, sequence and batch, of rows that nothing was fitted on. Two picks are
scored: the plan that is predicted fastest, and the choice: the one with the fewest keys that are not as usual, among
those within noise of it. Noise is as the planner has it: of measured pairs of rows for fitting, else 3 %.
"""

from collections.abc import Sequence
from dataclasses import fields
from math import expm1
from statistics import mean

from simpar.document import Tree
from simpar.interval import spread_among, spreads
from simpar.planner.answer import USUAL
from simpar.plans import Plan
from simpar.schedule import schedule_of
from simpar.shipped import measured_folder
from simpar.validate.rows import is_for_fitting, read_rows
from simpar.validate.run import Pair, answers, groups, outcomes
from simpar.validate.settings import schedule_tree
from tests.proof import line, table


def main() -> None:
    rows = [row for row in read_rows(measured_folder()) if not is_for_fitting(row)]
    alike = [pair.row for group in groups([Pair(row, 0.0, 0.0) for row in rows]) for pair in group]
    print(
        *table('set | groups | plans of a group | fastest predicted, mean regret | choice, mean regret', ()), sep='\n'
    )
    regrets: list[tuple[float, float]] = []
    for answer in answers(outcomes(alike)):
        found = list(groups(answer.pairs))
        if not found:
            continue
        each = [
            (regret(group, min(group, key=lambda one: one.seconds)), regret(group, choice(group))) for group in found
        ]
        regrets += each
        _tell(answer.name, f'{mean(map(len, found)):.1f}', each)
    _tell('all', '', regrets)


def _tell(name: str, plans: str, regrets: Sequence[tuple[float, float]]) -> None:
    fastest, chosen = (mean(one) for one in zip(*regrets, strict=True))
    print(line([name, len(regrets), plans, f'{fastest:.1%}', f'{chosen:.1%}']), flush=True)


def regret(group: Sequence[Pair], pick: Pair) -> float:
    """By what share a pick was measured slower than the fastest plan of its group."""
    return pick.row.seconds / min(pair.row.seconds for pair in group) - 1


def choice(group: Sequence[Pair]) -> Pair:
    """The simplest plan within noise of the one that is predicted fastest; of equally simple ones the faster."""
    best = min(group, key=lambda pair: pair.seconds)
    spread = spread_among(spreads(), best.device, best.bound)
    margin = expm1(spread.gain) if spread and spread.pairs else USUAL
    within = [pair for pair in group if pair.seconds <= best.seconds * (1 + margin)]
    return min(within, key=lambda pair: (parts(pair), pair.seconds))


def parts(pair: Pair) -> int:
    """How many keys of a row's plan are not as in a plan that splits nothing."""
    schedule = schedule_of(Tree(root=schedule_tree(pair.row), origins={(): pair.row.name}))
    simple = Plan()
    return sum(getattr(schedule.plan, one.name) != getattr(simple, one.name) for one in fields(Plan))


if __name__ == '__main__':
    main()
