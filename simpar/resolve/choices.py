"""Choices: strategies of layers and of the loss as users write them, and as choices of an operator graph."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Final

from simpar.layout import ONE, Rule, operators
from simpar.lower.graph import loss, record
from simpar.model import Dense, Embedding, Flatten, MatMul, Mul, Operator, Shape, Sharded, Strategy, model
from simpar.model.library.cross_entropy import CROSS_ENTROPY, LOSS_OPERATORS
from simpar.model.operators.linear import Product
from simpar.model.primitive import ShardCounts
from simpar.strategy_search import Choice
from simpar.workload import Workload

# Choices: a layer's strategy as users write it, and the same as the choice of an operator in a graph.
#
# They differ in two ways: a graph has the weights of dense layers as [out, in], and its ``Mul`` reads the constant
# too.


LAYER: Final = re.compile(r'^layer\d+\.')


def in_graph(layer: Operator, strategy: Strategy) -> Choice:
    """The choice that a layer's strategy is."""
    if isinstance(layer, Dense):
        x, weight = strategy
        return Choice((x, weight[::-1]), layer.out_strategy or None)
    return Choice((*strategy, ()) if isinstance(layer, Mul) else strategy, layer.out_strategy or None)


def written(layer: Operator, choice: Choice) -> Strategy:
    """What was chosen for a layer as a plan writes it: slices of its inputs, and of its result where that is told."""
    strategy = choice.strategy[:1] if isinstance(layer, Mul) else choice.strategy
    if isinstance(layer, Dense):
        x, weight = strategy
        strategy = (x, weight[::-1])
    return (*strategy, choice.out_strategy) if choice.out_strategy else strategy


def with_choice(layer: Operator, choice: Choice | None) -> Operator:
    """A layer with what was chosen for it; a reshape takes none."""
    if choice is None or not isinstance(layer, Sharded):
        return layer
    return record.told(layer, written(layer, choice))


def flatten_choice(choice: Choice, x: Shape) -> Choice:
    """What a search chose for a flatten, as one takes it that reads values of a shape.

    The search's graph has images where samples come flat: their dims are one here, and so are its
    splits. Splits that lie inside of a dim are left to whoever reads the result.
    """
    (counts,) = choice.strategy
    counts = (counts[0], prod(counts[1:])) if len(x) == 2 else counts
    rule = operators.flatten('flatten', x)
    free = (name not in rule.fixed and rule.lengths[name] % count == 0
            for name, count in zip(rule.inputs[0], counts, strict=True))  # fmt: skip
    return Choice((tuple(count if may else 1 for count, may in zip(counts, free, strict=True)),))


def in_graphs(layers: Mapping[str, Operator], strategies: Mapping[str, Strategy]) -> dict[str, Choice]:
    """Choices by name."""
    return {name: in_graph(layers[name], strategy) for name, strategy in strategies.items()}


def in_patterns(strategies: Mapping[str, Strategy], names: Collection[str]) -> dict[str, Strategy]:
    """Strategies by name, where all layers agree by a pattern: ``layer*.fc1``.

    Arguments: ``names``, of all operators.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(LAYER.sub('layer*.', name), []).append(name)
    by_pattern: dict[str, Strategy] = {}
    for pattern, members in groups.items():
        choices = [strategies.get(name) for name in members]
        # A pattern must not reach a layer that has no strategy: it stands for all or for none.
        if len(members) > 1 and choices[0] is not None and all(one == choices[0] for one in choices):
            by_pattern[pattern] = choices[0]
        else:
            by_pattern |= {name: strategies[name] for name in members if name in strategies}
    return by_pattern


# Degrees as strategies: the data × tensor layout of a graph (Megatron-LM, Shoeybi et al. 2019).
#
# Dim 0 of every value is split by data. A product whose features come in split by tensor is split by rows, and gives
# full features; else by columns, and what follows keeps that split: activations as they come, products of values by
# their leading dims, LayerNorm and softmax with their last dim full, an embedding by its vocabulary.


PRODUCTS = Dense | Product
UNSHARDED = 0
"""In the place of the dim that tensor splits: none. Dim 0 is always that of data."""


def degree_strategies(graph: model.Graph, data: int, tensor: int) -> dict[str, Strategy]:
    """The strategy of every operator that takes one, by name; they need not divide."""
    sharded_dim, by_name = dict.fromkeys((source.name for source in graph.sources), UNSHARDED), {}
    for node in graph.nodes:
        shapes = [graph.shapes[read] for read in node.reads]
        rule = node.operator.axes(node.name, *shapes)
        dim = _split_dim(node.operator, rule, sharded_dim[node.reads[0]])
        if isinstance(node.operator, Sharded) and not isinstance(node.operator, Flatten):
            by_name[node.name] = _by_degrees(node.operator, rule, dim, data, tensor)
        sharded_dim[node.name] = _sharded_dim_of(node.operator, rule, dim)
    return by_name


def _by_degrees(layer: Operator, rule: Rule, dim: int, data: int, tensor: int) -> Strategy:
    read = rule.inputs[layer.lead]
    counts = {read[0]: data}
    if dim:
        counts[read[dim]] = tensor
    elif isinstance(layer, PRODUCTS | Embedding):
        counts['v' if isinstance(layer, Embedding) else 'n'] = tensor
    return rule.strategy(counts)


def _split_dim(layer: Operator, rule: Rule, dim: int) -> int:
    """Which dim of what a layer reads stays split by tensor."""
    named = rule.inputs[layer.lead][dim]
    # The last two dims of a product of values are rows and columns: tensor keeps to the leading ones, as heads.
    free = named != ONE and named not in rule.fixed
    return dim if free and not (isinstance(layer, MatMul) and dim >= len(rule.output) - 2) else UNSHARDED


def _sharded_dim_of(layer: Operator, rule: Rule, dim: int) -> int:
    """Which dim of a layer's result is split by tensor."""
    if isinstance(layer, PRODUCTS):
        return UNSHARDED if dim else len(rule.output) - 1
    named = rule.inputs[layer.lead][dim]
    return rule.output.index(named) if dim and named in rule.output else UNSHARDED


LOSS: Final = 'loss'


def first_node(workload: Workload) -> str:
    """The graph's name of the operator that a loss of one operator is split as."""
    return LOSS if workload.loss == 'cross-entropy' else f'{LOSS}.sub'


def in_operators(workload: Workload) -> bool:
    """Whether the loss is split operator by operator."""
    return workload.loss_operators != 'one'


def given_loss(workload: Workload) -> dict[str, Choice]:
    """What the user split of the loss, by operator of the graph."""
    if in_operators(workload):
        pairs = ((LOSS_OPERATORS[name], strategy) for name, strategy in workload.loss_strategies.items())
        return {one.node: Choice((*strategy, *((),) * one.numbers)) for one, strategy in pairs}
    return {first_node(workload): Choice(workload.loss_strategy)} if workload.loss_strategy else {}


def check_loss(workload: Workload, result: Shape, devices: int) -> None:
    """Raise ``Infeasible`` where a strategy of the loss does not fit.

    Arguments: ``result``, shape of what the loss reads.
    """
    if in_operators(workload):
        for one, rule in loss.loss_rules(result):
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
        return {one.name: loss.by_rows(rule, rows) for one, rule in loss.loss_rules(result)}
    chosen = ((one, choices[one.node].strategy) for one in CROSS_ENTROPY if one.node in choices)
    return {one.name: strategy[: len(one.reads)] for one, strategy in chosen}


Rules = Mapping[str, tuple[Rule, int]]
"""By name of an operator its named dims, and which of its inputs is the first value that it reads."""


def odd_factor(devices: int) -> int:
    """What is left of devices when all twos are taken out."""
    return devices // (devices & -devices)


def times(choices: Mapping[str, Choice], rules: Rules, factor: int) -> dict[str, Choice]:
    """Choices with the rows of every operator split so many times more; of the loss, dim 0 of all that it reads."""
    return {name: _mapped(choice, rules.get(name), lambda count: count * factor) for name, choice in choices.items()}


def divided(choices: Mapping[str, Choice], rules: Rules, factor: int) -> dict[str, Choice]:
    """The reverse, of those whose rows are split so; others are left out."""
    new_choices: dict[str, Choice] = {}
    for name, choice in choices.items():
        # Divided and multiplied again, it must be the same: else the odd factor does not split these rows.
        less = {name: _mapped(choice, rules.get(name), lambda count: count // factor)}
        if times(less, rules, factor)[name] == choice:
            new_choices |= less
    return new_choices


def _mapped(choice: Choice, rule: tuple[Rule, int] | None, count: Callable[[int], int]) -> Choice:
    if rule is None:
        return Choice(tuple((count(dims[0]), *dims[1:]) if dims else dims for dims in choice.strategy))
    axes, lead = rule
    row = axes.inputs[lead][0]
    strategy = tuple(_rows(names, dims, row, count) for names, dims in zip(axes.inputs, choice.strategy, strict=False))
    out = _rows(axes.output, choice.out_strategy, row, count) if choice.out_strategy else None
    return Choice((*strategy, *choice.strategy[len(strategy) :]), out)


def _rows(names: Sequence[str], dims: ShardCounts, row: str, count: Callable[[int], int]) -> ShardCounts:
    return tuple(count(shards) if name == row else shards for name, shards in zip(names, dims, strict=True))
