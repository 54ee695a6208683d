"""Faults: what of a cluster its profile does not allow."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator

from simpar import document
from simpar.hardware.topology import Cluster


def faults(made: Cluster) -> Iterator[tuple[str, str]]:
    """What is wrong, and what to write instead."""
    profile, reach = made.profile, made.topology.sizes[-1]
    if made.nodes < 1 or made.devices < 1:
        yield f'{made.nodes} nodes of {made.devices} devices', 'write 1 or more of each'
    # A first link that joins all devices knows no bound of a node.
    elif made.devices > profile.devices and profile.links[0].devices:
        yield f'{made.devices} devices in a node of {profile.devices}', f'write devices: {profile.devices} or fewer'
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
        what = f'work_queues: {profile.device.name} has {has.value:g}, not {made.queues}'
        yield what, f'write {has.value:g} or fewer, or leave it out for all'
    yield from _link_faults(made)


def _link_faults(made: Cluster) -> Iterator[tuple[str, str]]:
    names = [link.name for link in made.profile.links]
    for name, factor in made.links.items():
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            guess = f'did you mean {close[0]}? ' if close else ''
            yield (
                f'{document.dotted(("links", name))}: there is no such link',
                f'{guess}links of {made.profile.name}: {", ".join(names)}',
            )
        elif not 0 < factor < math.inf:
            yield f'links.{name}: {factor} times its bandwidth is no bandwidth', 'write a number above 0, e.g. 0.5'
