"""Recomputation: forward ops whose results are dropped behind the forward and made again in the backward.

A clone stands right before the first backward op that reads what it makes, together with those that make what it reads
itself. A layer, or the core of its attention, is run again as a whole, as Megatron-LM does, though its last product
is needed by none; of operators that are named, only those that the backward needs, as in MindSpore. Clones write the
same tensors again, so that these live twice. A clone may also make again what was kept: that result has a name of its
own and is freed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Final

from simpar.errors import Infeasible
from simpar.lower.tape import Tape, layer_of
from simpar.model import MatMul, Softmax
from simpar.model.model import Graph, Node
from simpar.model.operators.attention import CHUNK_ATTENTION, Attention, AttentionScores, AttentionValues, CausalSoftmax
from simpar.plans import Plan
from simpar.program import OpClass

# Regions of a model's graph that are run again together: layers, and the cores of attention.


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


RECOMPUTE: Final = 'recompute'
"""The attribute of a clone, and the end of its name."""
_LOSS: Final = 'loss'
_SHOWN: Final = 20
_Regions = Callable[[str], str]
"""By the name of an op without its phase the region that it belongs to; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """Which forward ops are run again, and what of their results is kept all the same.

    Arguments:
        regions: by the name of an op without its phase, the region that it belongs to; all of it is run again, and what
            it hands on is kept. None: no regions.
        patterns: or ops whose names without the phase match one of these, e.g. ``layer*.gelu``.
        marked: or of these operators of a network.
        handed_on: regions whose results are kept with ``patterns``, too: the layers of a model of the library.
        stages: of the pipeline, that do so; empty: all. communication: collectives run again, or their outputs stay.
    """

    regions: _Regions | None = None
    patterns: tuple[str, ...] = ()
    marked: frozenset[str] = frozenset()
    handed_on: _Regions | None = None
    stages: frozenset[int] = frozenset()
    communication: bool = True

    def takes(self, op: OpClass) -> bool:
        """Whether a forward op is run again where the backward needs what it makes."""
        # A message that has arrived cannot be asked for again, and the loss is read at once.
        if op.kind not in ('compute', 'collective') or layer_of(op.name) == _LOSS:
            return False
        if op.kind == 'collective' and not self.communication:
            return False
        name = _bare(op)
        named = bool(self.patterns) and any(fnmatchcase(name, pattern) for pattern in self.patterns)
        named = named or (bool(self.marked) and layer_of(name) in self.marked)
        return named or (self.regions is not None and self.regions(name) != '')

    def region(self, op: OpClass) -> str:
        """What an op belongs to whose results are kept where others read them; empty: nothing."""
        regions = self.regions or self.handed_on
        return '' if regions is None or op.kind in ('send', 'recv') else regions(_bare(op))

    def of_stage(self, stage: int) -> bool:
        """Whether a stage runs anything again."""
        chosen = self.regions is not None or bool(self.patterns or self.marked)
        return chosen and (not self.stages or stage in self.stages)


def recompute_of(plan: Plan, graph: Graph) -> Recompute:
    """What a plan, and the marks of operators, ask to be recomputed.

    Raises ``Infeasible`` where attention is to be recomputed and there is none.
    """
    common = Recompute(stages=frozenset(plan.recompute_stages), communication=plan.recompute_communication)
    if isinstance(plan.recompute, str) and plan.recompute != 'none':
        if plan.recompute == 'full':
            return replace(common, regions=_layers(graph))
        cores = _cores(graph)
        if cores is None:
            raise Infeasible('plan.recompute: selective runs attention again, and the model has none; write full')
        return replace(common, regions=cores)
    patterns = () if isinstance(plan.recompute, str) else plan.recompute
    marked = frozenset(node.name for node in graph.nodes if node.operator.recompute)
    return replace(common, patterns=patterns, marked=marked, handed_on=_layers(graph) if graph.hands_on else None)


def _layers(graph: Graph) -> _Regions:
    layers = {node.name: f'layer {node.layer}' for node in graph.nodes if graph.in_layer(node)}
    return regions_of(graph.nodes, layers)


def _cores(graph: Graph) -> _Regions | None:
    cores = attention_cores(graph.nodes)
    return regions_of(graph.nodes, cores) if cores else None


def check_recompute(choice: Recompute, ops: Sequence[OpClass], stages: int) -> None:
    """Raise ``Infeasible`` where a pattern names no operator that may run again, or a stage is none of the pipeline's.

    The loss never does. Arguments: ``ops`` of all stages.
    """
    forward = (op for op in ops if op.phase == 'F' and op.kind in ('compute', 'collective') and choice.patterns)
    names = list(dict.fromkeys(_bare(op) for op in forward if layer_of(op.name) != _LOSS))
    for pattern in choice.patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            more = ', ...' if len(names) > _SHOWN else ''
            raise Infeasible(
                f'plan.recompute: {pattern} names no operator to run again; there are {", ".join(names[:_SHOWN])}{more}'
            )
    beyond = sorted(stage for stage in choice.stages if stage >= stages)
    if beyond:
        raise Infeasible(f'plan.recompute_stages lists {beyond[0]}, but the stages are 0 to {stages - 1}')


def recomputed(tape: Tape, ops: Sequence[OpClass], elsewhere: Collection[str], choice: Recompute) -> list[OpClass]:
    """The ops of a stage, and before each of the backward the clones of forward ops that it needs.

    Arguments: ``ops``, as on the tape, forward first; ``elsewhere``, what other stages of the rank read. Adds tensors
    to the tape.
    """
    forward = [op for op in ops if op.phase == 'F']
    regions, taken = [choice.region(op) for op in forward], [choice.takes(op) for op in forward]
    kept = {*_kept(forward, regions), *elsewhere}
    makers = {name: place for place, op in enumerate(forward) if taken[place] for name in op.writes if name not in kept}
    made, together = makers.keys(), _together(regions if choice.regions else [''] * len(forward), taken)
    done: set[int] = set()
    found: list[OpClass] = []
    for op in ops:
        if op.phase != 'F' and not made.isdisjoint(op.reads):
            again = _wanted(op, forward, makers, together, done)
            done |= again
            # In the order of the forward, as clones read one another.
            found += [_clone(tape, forward[place], kept) for place in sorted(again)]
        found.append(op)
    return found


def is_recomputed(op: OpClass) -> bool:
    """Whether an op of the backward does again what one of the forward did."""
    return RECOMPUTE in op.attributes


def _kept(forward: Sequence[OpClass], regions: Sequence[str]) -> set[str]:
    """What regions hand on to others, and what the loss reads; ``regions`` of the ops."""
    region = {name: of for op, of in zip(forward, regions, strict=True) for name in op.writes}
    handed_on = {
        name
        for op, of in zip(forward, regions, strict=True)
        for name in op.reads
        if region.get(name, '') not in ('', of)
    }
    # Later chunks of a sequence see these before they could be made again.
    cached = {op.reads[1] for op in forward if op.operator == CHUNK_ATTENTION}
    return handed_on | cached | {name for op in forward if layer_of(op.name) == _LOSS for name in op.reads}


def _together(regions: Sequence[str], taken: Sequence[bool]) -> dict[int, Collection[int]]:
    """For each place in the forward those that are run again with it: all of its region, unless some of it is kept."""
    members: dict[str, list[int]] = {}
    for place, region in enumerate(regions):
        members.setdefault(region, []).append(place)
    alone: dict[int, Collection[int]] = {place: (place,) for place in range(len(regions))}
    complete = [mine for region, mine in members.items() if region and all(taken[one] for one in mine)]
    return alone | {place: mine for mine in complete for place in mine}


def _wanted(
    op: OpClass,
    forward: Sequence[OpClass],
    makers: Mapping[str, int],
    together: Mapping[int, Collection[int]],
    done: Collection[int],
) -> set[int]:
    """Places of the forward ops to be run again before ``op``, which make what it or they read.

    Arguments: ``done``, what has been run again before, with all that it needed.
    """
    wanted: set[int] = set()
    names = list(op.reads)
    while names:
        place = makers.get(names.pop())
        # What has been made again stays until its last reader, so no clone is made twice.
        if place is not None and place not in wanted and place not in done:
            # A region runs again as one, even what nobody reads: Megatron calls the layer's forward once more.
            wanted.update(together[place])
            names += [name for one in together[place] for name in forward[one].reads]
    return wanted


def _clone(tape: Tape, op: OpClass, kept: Collection[str]) -> OpClass:
    """The op once more."""
    writes: tuple[str, ...] = ()
    for name in op.writes:
        again = f'{name}.{RECOMPUTE}' if name in kept else name
        # A kept tensor must not be written again: others may read it still.
        if again not in tape.tensors:
            tape.tensors[again] = replace(tape.tensors[name], name=again)
        writes += (again,)
    attributes = {**op.attributes, RECOMPUTE: True}
    return replace(op, name=f'{op.name}.{RECOMPUTE}', writes=writes, attributes=attributes)


def _bare(op: OpClass) -> str:
    """The name of an op without its phase."""
    return op.name.removesuffix(f'.{op.phase}')
