"""Faults: what is wrong between a cluster and its profile, and between the fields of an expansion."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator

from simpar.document import dotted
from simpar.errors import Problem
from simpar.hardware.expansion import Expansion
from simpar.hardware.topology import Cluster

Fault = tuple[str, str]
"""What is wrong, and what to write instead."""


def faults_of(made: Cluster) -> Iterator[Fault]:
    """What is wrong with a cluster, and what to write instead."""
    profile, reach = made.profile, made.topology.sizes[-1]
    if made.nodes < 1 or made.devices < 1:
        yield f'{made.nodes} nodes of {made.devices} devices', 'write 1 or more of each'
    # A first link that joins all devices knows no bound of a node.
    elif made.devices > profile.devices and profile.links[0].devices:
        yield f'devices: {made.devices} in a node of {profile.devices}', f'write {profile.devices} or fewer'
    elif reach and made.world > reach:
        last = profile.links[-1].name
        yield (
            f'profile {profile.name!r} says how {reach} devices are joined, not {made.world}',
            f'add a link behind {last!r} with devices: 0, or take fewer nodes',
        )
    for rank, speed in made.slow.items():
        if not 0 <= rank < made.world:
            yield f'slow: there is no rank {rank}', f'write a rank from 0 to {made.world - 1}'
        if not 0 < speed < math.inf:
            yield f'slow: {speed} is no speed', 'write a number more than 0, e.g. 0.9'
    if not 0 <= made.spread < 1:
        yield f'spread: {made.spread} is no share', 'write a share from 0 to 0.2, e.g. 0.015'
    has = profile.device.work_queues
    if has and made.queues > has.value:
        yield (
            f'work_queues: {profile.device.name} has {has.value:g}, not {made.queues}',
            f'write {has.value:g} or fewer, or leave it out for all',
        )
    yield from _mode_faults(made)
    yield from _link_faults(made)


def _link_faults(made: Cluster) -> Iterator[Fault]:
    names = [link.name for link in made.profile.links]
    for name, factor in made.links.items():
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            guess = f'did you mean {close[0]}? ' if close else ''
            yield (
                f'{dotted(("links", name))}: there is no such link',
                f'{guess}links of {made.profile.name}: {", ".join(names)}',
            )
        elif not 0 < factor < math.inf:
            yield f'links.{name}: {factor} times its bandwidth is no bandwidth', 'write a number above 0, e.g. 0.5'


def _mode_faults(made: Cluster) -> Iterator[Fault]:
    mode, name, has = made.mode_asked, made.profile.name, made.profile.expansion
    if mode and has is None:
        yield f'expansion_mode: {name} has no modes: its collectives take what its slow_down says', 'leave it out'
    elif mode and has and made.taken is None:
        yield f'expansion_mode: {name} has no mode {mode}', f'write one of {", ".join(has.modes)}'


def expansion_problems(expansion: Expansion) -> Iterator[Problem]:
    """What is wrong between the fields of an expansion."""
    if expansion.default not in expansion.modes:
        modes = ', '.join(expansion.modes) or 'none is there'
        yield Problem(('expansion', 'default'), f'{expansion.default} is not among modes', f'one of {modes}')
    every = expansion.vector_cores.value if expansion.vector_cores else 0.0
    for mode, taken in expansion.modes.items():
        if taken.bandwidth and taken.bandwidth.value == 1:
            yield Problem(('expansion', 'modes', mode, 'bandwidth'), 'leaves no kernel any', 'write less than 1')
        for operator, figure in taken.cores.items():
            if figure.value >= every:
                what = f'{figure.value:g} of {every:g} vector cores leave no kernel any'
                where = ('expansion', 'modes', mode, 'cores', operator)
                yield Problem(where, what, 'write fewer than expansion.vector_cores')
