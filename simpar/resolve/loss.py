"""The loss in searches: its strategies as a workload has them, and as choices of a graph's operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from simpar.layout import operators
from simpar.lower.graph.loss import by_rows, loss_rules
from simpar.model import Shape, Strategy
from simpar.model.library.cross_entropy import CROSS_ENTROPY, LOSS_OPERATORS
from simpar.strategy_search import Choice
from simpar.workload import Workload

LOSS: Final = 'loss'


def first_node(workload: Workload) -> str:
    """The graph's name of the operator that a loss of one operator is split as."""
    return LOSS if workload.loss == 'cross-entropy' else f'{LOSS}.sub'


def in_operators(workload: Workload) -> bool:
    """Whether the loss is split operator by operator."""
    return workload.loss_operators != 'one'


def as_one(workload: Workload) -> Workload:
    """The workload with its loss as one operator."""
    return replace(workload, loss_operators='one', loss_strategies={})


def given_loss(workload: Workload) -> dict[str, Choice]:
    """What the user split of the loss, by operator of the graph."""
    if in_operators(workload):
        given = ((LOSS_OPERATORS[name], strategy) for name, strategy in workload.loss_strategies.items())
        return {one.node: Choice((*strategy, *((),) * one.numbers)) for one, strategy in given}
    return {first_node(workload): Choice(workload.loss_strategy)} if workload.loss_strategy else {}


def check_loss(workload: Workload, result: Shape, devices: int) -> None:
    """Raise ``Infeasible`` where a strategy of the loss does not fit.

    Arguments: ``result``, shape of what the loss reads.
    """
    if in_operators(workload):
        for one, rule in loss_rules(result):
            if one.name in workload.loss_strategies:
                rule.sharded(workload.loss_strategies[one.name], devices)
    elif workload.loss_strategy:
        by_class = workload.loss == 'cross-entropy'
        rule = operators.cross_entropy(LOSS, result) if by_class else operators.mean_loss(LOSS, result)
        rule.sharded(workload.loss_strategy, devices)


def split_loss(workload: Workload, choices: Mapping[str, Choice], result: Shape) -> Workload:
    """The workload with its loss split as chosen, except what the user split.

    Operators of the loss are split by its rows where a search chose for the loss as one.


    Arguments: ``result``, shape of what the loss reads.
    """
    if in_operators(workload):
        return replace(workload, loss_strategies=_by_operator(choices, result) | workload.loss_strategies)
    chosen = choices.get(first_node(workload), Choice(()))
    return replace(workload, loss_strategy=workload.loss_strategy or chosen.strategy)


def _by_operator(choices: Mapping[str, Choice], result: Shape) -> dict[str, Strategy]:
    # The exact search sees the loss as one operator, and splits nothing of it but rows.
    if LOSS in choices:
        ((rows, *_), *_) = choices[LOSS].strategy
        return {one.name: by_rows(rule, rows) for one, rule in loss_rules(result)}
    chosen = ((one, choices[one.node].strategy) for one in CROSS_ENTROPY if one.node in choices)
    return {one.name: strategy[: len(one.reads)] for one, strategy in chosen}
