"""What the recurrence of ``replay`` walks: the nodes of a step in order, and what each comes after."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simpar.engine.compiled.kernels import arrange_nodes
from simpar.engine.compiled.records import per_step_of
from simpar.engine.graph import Graph
from simpar.engine.node_costs import NodeCosts

if TYPE_CHECKING:
    from simpar.jit import Array


class Steps(NamedTuple):
    """The arguments of ``recurrence``, and as it says them; ``time`` is used up."""

    order: Array
    first: Array
    second: Array
    more: Array
    lasts: Array
    per_step: np.uint64
    time: Array


def steps_of(graph: Graph, costs: NodeCosts) -> Steps:
    """The steps of a graph; raise ``SimparError`` where one has more ops than can be numbered."""
    count = np.bincount(graph.node[graph.op], minlength=len(graph)).astype(np.int32)
    many = count[count > 2]
    per_step = per_step_of(graph)
    order = graph.order.astype(np.uint32)
    first, second = np.empty_like(order), np.empty_like(order)
    more = np.empty(many.sum() + len(many), dtype=np.uint32)
    op, before, node = (numbers.astype(np.int32, copy=False) for numbers in (graph.op, graph.before, graph.node))
    arrange_nodes(order, node, op, before, graph.carried, count, first, second, more)
    time = graph.latest(costs.issued).ravel()
    lasts = (costs.rows.alpha + costs.rows.seconds).take(costs.row)
    return Steps(order, first, second, more, lasts, per_step, time)
