"""Regions of a model's graph that are run again together: layers, and the cores of attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from simpar.model import MatMul, Softmax
from simpar.model.node import Node
from simpar.model.operators.attention import Attention, AttentionScores, AttentionValues, CausalSoftmax

PRODUCTS = (MatMul, AttentionScores, AttentionValues)
"""Between two of these stands the softmax of unfused attention."""


def regions_of(nodes: Sequence[Node], of_node: Mapping[str, str]) -> Callable[[str], str]:
    """For the name of an op without its phase its region; empty: none.

    Arguments: ``of_node``, regions by the names of nodes. A collective belongs to the node whose value it makes.
    """
    owner = {name: node.name for node in nodes for name in (node.value, node.name)}

    @cache
    def region(name: str) -> str:
        while name and name not in owner:
            # Ops of a node have its name and more: what was made of it is found by taking endings off.
            name = name[: max(name.rfind('.'), name.rfind('@'), 0)]
        return of_node.get(owner.get(name, ''), '')

    return region


def attention_cores(nodes: Sequence[Node]) -> dict[str, str]:
    """By name of a node the core of attention that it belongs to: scores, softmax, dropout and values, or flash."""
    by_name = {node.name: node for node in nodes}
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for name in node.reads:
            readers.setdefault(name, []).append(node)
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node.operator, Attention):
            found[node.name] = node.name
        elif isinstance(node.operator, Softmax | CausalSoftmax):
            found.update(dict.fromkeys(_core(node, by_name, readers), node.name))
    return found


def _core(softmax: Node, by_name: Mapping[str, Node], readers: Mapping[str, Sequence[Node]]) -> list[str]:
    """From the product before a softmax to the one behind it; nothing where these are no attention."""
    core, at = [softmax.name], softmax
    while not isinstance(at.operator, PRODUCTS):
        # The first value read is the main branch: masks and constants come behind it.
        before = by_name.get(at.reads[0])
        if before is None:
            return []
        core.append(before.name)
        at = before
    at = softmax
    while not isinstance(at.operator, PRODUCTS):
        # With two readers it is no plain attention, and running it again would make more than asked.
        if len(readers.get(at.name, ())) != 1:
            return []
        (at,) = readers[at.name]
        core.append(at.name)
    return core
