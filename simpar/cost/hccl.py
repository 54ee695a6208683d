"""Which algorithm HCCL takes: rules read in its open selectors, one a row of ``hccl.csv``; the first that holds counts.

Sources: hicann/hcomm at b5f3e5be for the Ascend 910A, 910B and 910C, hicann/hccl at 09300b70 for the 950. Of the modes
it has their defaults: no deterministic sums, buffers of 200 MB, no retries, and none of HCCL's own settings of an
algorithm. ``docs/costs.md`` says what else is left out.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from simpar import files, hardware, units

_COMPARED: Final[Mapping[str, Callable[[float, float], bool]]] = {
    '=': operator.eq, '<': operator.lt, '<=': operator.le, '>': operator.gt, '>=': operator.ge,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table.

    Arguments:
        when: conditions that must all hold, e.g. ``servers = 1; share <= 32 KiB``.
        inside: the algorithm in a server; ``flat``: one over the whole group; empty: as the links say.
        between: the algorithm between servers, or over all; ``pipeline`` and ``parallel`` use both levels at once.
        name: HCCL's own name of what it runs.
    """

    when: tuple[tuple[str, str, float], ...]
    inside: str
    between: str
    name: str
    source: str

    def holds(self, facts: Mapping[str, float]) -> bool:
        """Whether a message in a group is one of those that the rule is for."""
        return all(_COMPARED[sign](facts[name], bound) for name, sign, bound in self.when)


@dataclass(frozen=True, slots=True)
class Lie:
    """How a group lies for HCCL: in a server, between servers of one supernode, between supernodes.

    Arguments: ``members`` of each of the three; ``levels``, the number of the link that each of them uses.
    """

    members: tuple[int, int, int]
    levels: tuple[int, int, int]

    def facts(self, size: float, ranks: int, *, graph: bool) -> dict[str, float]:
        """What rules may ask for. Arguments: ``size``, bytes of the full vector; ``graph``, of a sunk graph."""
        inside, beyond, pods = self.members
        servers = beyond * pods
        return {
            'ranks': ranks, 'inside': inside, 'servers': servers, 'pods': pods, 'graph': graph,
            'vector': size, 'share': size / ranks, 'local': size / inside, 'fours': inside % 4 == 0,
            'binary_ranks': _binary(ranks), 'binary_inside': _binary(inside), 'binary_servers': _binary(servers),
        }  # fmt: skip


def lie(server: str, shape: hardware.Shape, topology: hardware.Topology) -> Lie:
    """How a group lies. Does not model: servers that hold unequal numbers of it; the fullest counts for all."""
    sizes = [size or 2**30 for size in topology.sizes]
    # The mesh of a few devices is what the 950's rules call a server.
    node = sizes[0] if server == 'ascend950' else topology.node
    inner = max(
        (level for level, members in enumerate(shape.members) if members > 1 and sizes[level] <= node), default=0
    )
    pod = next((level for level, size in enumerate(topology.sizes) if size > node), len(sizes) - 1)
    servers = shape.nodes if node == topology.node else shape.domains[0]
    pods = shape.domains[pod]
    # A link that joins more than a server is that of the server, too, where there is none of its own.
    return Lie((-(-shape.ranks // servers), -(-servers // pods), pods), (min(inner, pod), pod, len(sizes) - 1))


def chosen(server: str, operator: str, facts: Mapping[str, float]) -> Rule:
    """The rule by which HCCL takes an algorithm. Arguments: ``facts``, as of ``Lie``."""
    return next(rule for rule in _rules()[server, operator] if rule.holds(facts))


def has_rules(server: str, operator: str) -> bool:
    """Whether the table knows a collective on a device."""
    return (server, operator) in _rules()


@lru_cache(maxsize=1)
def _rules() -> Mapping[tuple[str, str], tuple[Rule, ...]]:
    rules: dict[tuple[str, str], tuple[Rule, ...]] = {}
    for row in files.read_csv(Path(__file__).parent / 'hccl.csv'):
        when = tuple([_condition(text) for text in row['when'].split('; ') if text])
        rule = Rule(when, row['inside'], row['between'], row['name'], row['source'])
        key = row['server'], row['operator']
        rules[key] = (*rules.get(key, ()), rule)
    return rules


def _condition(text: str) -> tuple[str, str, float]:
    name, sign, bound = text.split(' ', 2)
    return name, sign, units.parse(bound, 'size') if ' ' in bound else float(bound)


def _binary(count: int) -> bool:
    return count & (count - 1) == 0
