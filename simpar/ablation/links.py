"""Links: which changed bandwidths of a cluster change no price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simpar.cost.price import price
from simpar.hardware import Cluster
from simpar.program import Program
from simpar.schedule import Schedule
from simpar.schedule.without_effect import WithoutEffect


def unused_links(schedule: Schedule, program: Program, cluster: Cluster) -> Iterator[WithoutEffect]:
    """The links that were changed and whose bandwidth no communication of the program waits for."""
    if not cluster.links:
        return
    priced = price(program, cluster).communication
    for name, factor in cluster.links.items():
        others = {other: by for other, by in cluster.links.items() if other != name}
        changed = factor != 1
        # A factor of 1 cannot be left out to see a difference: half of the bandwidth shows whether anything waits for
        # it.
        probe = replace(cluster, links=others if changed else {**others, name: 0.5})
        if price(program, probe).communication == priced:
            why = 'no communication is faster or slower by it'
            yield WithoutEffect(f'cluster.links.{name}', schedule.cluster.links[name], why)
