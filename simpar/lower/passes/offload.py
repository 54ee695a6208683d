"""Offload: what the backward needs waits on the host, over a link of its own beside computation.

A layer's activations are copied out behind its forward, and fetched one layer before its backward reads them. The
computation of the layer after next waits until they are out, as frameworks free at such a point: so a rank holds those
of two layers at most, however slow the link is. A copy is a collective of one rank, on a stream for each way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from simpar.errors import Infeasible
from simpar.lower.issue import Issue
from simpar.lower.passes.recompute import attention_cores, layers_of, regions_of
from simpar.lower.tape import Tape
from simpar.model.model import Graph
from simpar.plans import Plan
from simpar.program import COPY, OpClass, Partition, Phase

OUT: Final = 'host.out'
IN: Final = 'host.in'
"""Partitions of groups of one rank: its copies to the host, and those back."""
ACTIVATIONS: Final = 'activations'
ATTENTION: Final = 'attention'
"""Of activations, what stands before a layer's attention and is its result."""
STATES: Final = 'optimizer'
_AHEAD: Final = 2
"""Layers whose states are fetched before the first is updated."""


@dataclass(frozen=True, slots=True)
class Offload:
    """Which layers' activations leave the device.

    Arguments: ``layer``, by the name of an op without its phase the layer that it belongs to, empty: none; ``most``,
    how many layers of a stage, the first first; 0: all but its last, whose backward comes first; ``core``, by the same
    name the core of attention; of a layer leaves what is made up to there. None: all of it.
    """

    layer: Callable[[str], str]
    most: int = 0
    core: Callable[[str], str] | None = None


def offload_of(plan: Plan, graph: Graph) -> Offload | None:
    """What a plan asks to be offloaded of activations; raises ``Infeasible`` where the model has no layers."""
    if not {ACTIVATIONS, ATTENTION} & {*plan.offload}:
        return None
    if not any(graph.in_layer(node) for node in graph.nodes):
        raise Infeasible('plan.offload: activations leave by layers, and the model has none; leave it out')
    if any(node.operator.recompute for node in graph.nodes):
        raise Infeasible('plan.offload: activations beside layers with recompute: true; leave out one of both')
    cores = {} if ACTIVATIONS in plan.offload else attention_cores(graph.nodes)
    if not cores and ACTIVATIONS not in plan.offload:
        raise Infeasible('plan.offload: the model has no attention; write activations, or leave it out')
    return Offload(layers_of(graph), plan.offload_layers, regions_of(graph.nodes, cores) if cores else None)


def offloaded(tape: Tape, ops: Sequence[OpClass], elsewhere: Collection[str], choice: Offload) -> list[OpClass]:
    """The ops of a stage, forward first, with copies of what layers keep for the backward, and their release.

    Arguments: ``elsewhere``, what other stages of the rank read. Adds tensors and partitions to the tape.
    """
    count = sum(op.phase == 'F' for op in ops)
    layers = [choice.layer(op.name.removesuffix('.F')) for op in ops[:count]]
    ends = {layer: place for place, layer in enumerate(layers) if layer}
    # By their ends: beside a module of further tokens the head of the layer before it may stand.
    order = sorted(ends, key=lambda layer: ends[layer])
    made = layers
    if choice.core is not None:
        cores = [bool(choice.core(op.name.removesuffix('.F'))) for op in ops[:count]]
        last = {layer: place for place, layer in enumerate(layers) if cores[place]}
        made = [layer if place <= last.get(layer, -1) else '' for place, layer in enumerate(layers)]
    by_layer = _for_backward(tape, ops, count, layers, made, elsewhere)
    leaves = order[: choice.most or len(order) - 1]
    before: dict[int, list[OpClass]] = {}
    for layer in leaves:
        names = by_layer.get(layer, ())
        if not names:
            continue
        behind = order[order.index(layer) + 1 :][:1]
        _partitions(tape)
        hosts = tuple(f'{name}.host' for name in names)
        for name, host in zip(names, hosts, strict=True):
            tape.tensors[host] = replace(tape.tensors[name], name=host, host=True)
        stage, name = ops[ends[layer]].stage, layer.replace(' ', '')
        out = _copy(tape, f'{name}.offload.F', 'F', names, hosts, stage)
        release = OpClass(f'{name}.release.F', 'compute', 'reshard', 'F', dtype=tape.dtype, reads=hosts, stage=stage)
        fetch = _copy(tape, f'{name}.fetch.I', 'I', hosts, names, stage)
        before.setdefault(ends[layer] + 1, []).append(out)
        if behind:
            # Before the copies that go out there: computation goes on where the last ones are through.
            before.setdefault(ends[behind[0]] + 1, []).insert(0, release)
        else:
            before.setdefault(count, []).append(release)
        readers = [place for place in range(count, len(ops)) if not {*names}.isdisjoint(ops[place].reads)]
        ahead = {*by_layer.get(behind[0], ())} if behind else set()
        first = (place for place in range(count, readers[0]) if not ahead.isdisjoint(ops[place].reads))
        before.setdefault(next(first, readers[0]), []).append(fetch)
    return [one for place in range(len(ops) + 1) for one in (*before.get(place, ()), *ops[place : place + 1])]


def is_fetch(op: OpClass) -> bool:
    """Whether an op copies from the host; it must not run ahead, or it would take the memory that it saves."""
    return op.operator == COPY and op.partition == IN


def _for_backward(
    tape: Tape,
    ops: Sequence[OpClass],
    count: int,
    layers: Sequence[str],
    made: Sequence[str],
    elsewhere: Collection[str],
) -> Mapping[str, list[str]]:
    """By layer the activations that it is the last to read, or to write, of the forward, and that the backward reads.

    Arguments: ``count`` of forward ops; ``layers`` of these; ``made``, the same where what they write may leave.
    """
    wanted = {name for op in ops[count:] for name in op.reads} - {name for op in ops[count:] for name in op.writes}
    last: dict[str, int] = {}
    written: set[str] = set()
    for place, op in enumerate(ops[:count]):
        last |= dict.fromkeys((*op.reads, *op.writes), place)
        written.update(op.writes if made[place] else ())
    by_layer: dict[str, list[str]] = {}
    for name, place in last.items():
        held = name in written and name in wanted and name not in elsewhere and tape.tensors[name].kind == 'activation'
        if held and layers[place] and ops[place].kind not in ('send', 'recv'):
            by_layer.setdefault(layers[place], []).append(name)
    return by_layer


def _partitions(tape: Tape) -> None:
    alone = np.arange(tape.mesh.world, dtype=np.int32)[:, None]
    for name in (OUT, IN):
        tape.registered(Partition(name, alone))


def _copy(tape: Tape, name: str, phase: Phase, reads: Sequence[str], writes: Sequence[str], stage: int) -> OpClass:
    """A copy to the host or back, of several tensors as one."""
    return OpClass(
        name=name,
        kind='collective',
        operator=COPY,
        phase=phase,
        bytes=float(sum(map(tape.held_bytes, reads))),
        dtype=tape.dtype,
        partition=OUT if tape.tensors[writes[0]].host else IN,
        reads=tuple(reads),
        writes=tuple(writes),
        stage=stage,
    )


# States of the optimizer: on the host between steps, and on the device while a layer is updated.
#
# The next layer's come while this one is updated, and go back behind it. The layer after that is fetched when those of
# the layer before this one are back: a rank holds three layers' states at most. In parts (MindSpeed's
# swap_optimizer.py), all states of a part come at once, and the next part waits until all of this one are back.


def with_states_on_host(tape: Tape, issues: Sequence[Issue], parts: int = 0) -> tuple[Issue, ...]:
    """The updates of a pipeline rank with their states fetched and sent back.

    Registers tensors and partitions. Counts of updates, a number each, stay on the device.
    Arguments: ``parts``, in how many they come, by their numbers; 0: layer by layer.
    """
    moving = {place: names for place, one in enumerate(issues) if (names := _states(tape, one.op))}
    swapped = {place: _swapped(tape, issues[place].op, names) for place, names in moving.items()}
    if parts:
        groups = _parts({place: sum(map(tape.held, names)) for place, names in moving.items()}, parts)
        return tuple(_by_parts(issues, swapped, groups))
    return tuple(_ahead(issues, swapped))


def _ahead(issues: Sequence[Issue], swapped: Mapping[int, _Swapped]) -> Iterator[Issue]:
    parts = list(swapped.values())
    yield from (Issue(one.fetch, late=True) for one in parts[:_AHEAD])
    done = 0
    for place, issue in enumerate(issues):
        if place not in swapped:
            yield issue
            continue
        yield from (Issue(parts[done].update), Issue(parts[done].out))
        if done:
            yield Issue(parts[done - 1].release)
            yield from (Issue(one.fetch, late=True) for one in parts[done + 1 : done + _AHEAD] if done + 1 >= _AHEAD)
        done += 1
    yield from (Issue(one.release) for one in parts[-1:])


def _by_parts(
    issues: Sequence[Issue], swapped: Mapping[int, _Swapped], groups: Sequence[Sequence[int]]
) -> Iterator[Issue]:
    begins, ends = ({group[side]: [swapped[place] for place in group] for group in groups} for side in (0, -1))
    for place, issue in enumerate(issues):
        yield from (Issue(one.fetch, late=True) for one in begins.get(place, ()))
        yield from (Issue(swapped[place].update), Issue(swapped[place].out)) if place in swapped else (issue,)
        yield from (Issue(one.release) for one in ends.get(place, ()))


def _parts(numbers: Mapping[int, int], parts: int) -> list[list[int]]:
    """Places of updates in groups of at most a share of all their numbers, or of one."""
    most, count = sum(numbers.values()) // parts, 0
    groups: list[list[int]] = []
    for place, number in numbers.items():
        if not groups or count + number > most:
            groups.append([])
            count = 0
        groups[-1].append(place)
        count += number
    return groups


class _Swapped(NamedTuple):
    """What becomes of an update."""

    fetch: OpClass
    update: OpClass
    out: OpClass
    release: OpClass


def _states(tape: Tape, op: OpClass) -> tuple[str, ...]:
    states = (name for name in op.writes if tape.tensors[name].kind == 'state')
    return tuple(name for name in states if tape.held(name) > 1)


def _swapped(tape: Tape, op: OpClass, hosts: tuple[str, ...]) -> _Swapped:
    _partitions(tape)
    here = {name: f'{name}.device' for name in hosts}
    for host, name in here.items():
        tape.tensors[host] = replace(tape.tensors[host], host=True)
        tape.tensors[name] = replace(
            tape.tensors[host], name=name, kind='gathered', host=False, initial='', like='', members=()
        )
    name, names = op.name.removesuffix('.U'), tuple(here.values())
    update = replace(op, reads=_renamed(op.reads, here), writes=_renamed(op.writes, here))
    release = OpClass(
        f'{name}.release.U', 'compute', 'reshard', 'U', dtype=tape.dtype, reads=hosts, frees=names, stage=op.stage
    )
    fetch = _copy(tape, f'{name}.fetch.U', 'U', hosts, names, op.stage)
    return _Swapped(fetch, update, _copy(tape, f'{name}.offload.U', 'U', names, hosts, op.stage), release)


def _renamed(names: Sequence[str], into: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(into.get(name, name) for name in names)
