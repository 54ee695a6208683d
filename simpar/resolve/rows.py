"""Devices that are no power of two: their odd factor splits samples, and a search splits each part of these by twos."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from simpar.layout.operator import Operator as Axes
from simpar.model.primitive import ShardCounts
from simpar.strategy_search import Choice

Rules = Mapping[str, tuple[Axes, int]]
"""By name of an operator its named dims, and which of its inputs is the first value that it reads."""


def odd_factor(devices: int) -> int:
    """What is left of devices when all twos are taken out."""
    return devices // (devices & -devices)


def times(choices: Mapping[str, Choice], rules: Rules, factor: int) -> dict[str, Choice]:
    """Choices with the rows of every operator split so many times more; of the loss, dim 0 of all that it reads."""
    return {name: _mapped(choice, rules.get(name), lambda count: count * factor) for name, choice in choices.items()}


def divided(choices: Mapping[str, Choice], rules: Rules, factor: int) -> dict[str, Choice]:
    """The reverse, of those whose rows are split so; others are left out."""
    found: dict[str, Choice] = {}
    for name, choice in choices.items():
        # Divided and multiplied again, it must be the same: else the odd factor does not split these rows.
        less = {name: _mapped(choice, rules.get(name), lambda count: count // factor)}
        if times(less, rules, factor)[name] == choice:
            found |= less
    return found


def _mapped(choice: Choice, rule: tuple[Axes, int] | None, count: Callable[[int], int]) -> Choice:
    if rule is None:
        return Choice(tuple((count(dims[0]), *dims[1:]) if dims else dims for dims in choice.strategy))
    axes, lead = rule
    row = axes.inputs[lead][0]
    strategy = tuple(_rows(names, dims, row, count) for names, dims in zip(axes.inputs, choice.strategy, strict=False))
    out = _rows(axes.output, choice.out_strategy, row, count) if choice.out_strategy else None
    return Choice((*strategy, *choice.strategy[len(strategy) :]), out)


def _rows(names: Sequence[str], dims: ShardCounts, row: str, count: Callable[[int], int]) -> ShardCounts:
    return tuple(count(shards) if name == row else shards for name, shards in zip(names, dims, strict=True))
