"""Slurm's lists of hosts, as its variables write them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Final

MOST: Final = 100_000
"""Hosts of a list that are read; a name is wanted for a message, and nobody has more."""


def nodes_of(variables: Mapping[str, str]) -> str:
    """The list of hosts; empty outside of Slurm."""
    return variables.get('SLURM_STEP_NODELIST') or variables.get('SLURM_JOB_NODELIST', '')


def first_host(nodes: str) -> str:
    """The first host of a list, e.g. ``node01`` of ``node[01-04,07],other``."""
    return next(_hosts(nodes), nodes)


def hosts_of_ranks(variables: Mapping[str, str]) -> tuple[str, ...]:
    """The host of each task of a step, rank by rank; empty where the variables do not tell."""
    counts = variables.get('SLURM_STEP_TASKS_PER_NODE') or variables.get('SLURM_TASKS_PER_NODE', '')
    # Else ranks go round the hosts; then no name is better than a wrong one.
    if not variables.get('SLURM_DISTRIBUTION', 'block').startswith('block') or not re.fullmatch(_COUNTS, counts):
        return ()
    many: list[int] = []
    for count, times in re.findall(r'(\d+)(?:\(x(\d+)\))?', counts):
        many += [int(count)] * min(int(times or 1), MOST - len(many))
    hosts = list(_hosts(nodes_of(variables)))
    if len(hosts) != len(many) or sum(many) > MOST:
        return ()
    return tuple(host for host, count in zip(hosts, many, strict=True) for _ in range(count))


_COUNTS: Final = r'\d{1,6}(\(x\d{1,6}\))?(,\d{1,6}(\(x\d{1,6}\))?)*'
_ITEM: Final = re.compile(r'(?:[^,\[]|\[[^\]]*\])+')
_BRACKET: Final = re.compile(r'\[([^\]]*)\]')


def _hosts(nodes: str) -> Iterator[str]:
    """All hosts of a list, in its order."""
    found = 0
    for item in _ITEM.findall(nodes):
        parts = _BRACKET.split(item)
        # Text and what stands in brackets take turns.
        choices = [_numbers(part) if index % 2 else iter([part]) for index, part in enumerate(parts)]
        # ``product`` reads its arguments to the end, so that large ranges are cut before.
        for words in product(*choices):
            yield ''.join(words)
            found += 1
            if found >= MOST:
                return


def _numbers(text: str) -> Iterator[str]:
    """``01``, ``02``, ``07`` of ``01-02,07``."""
    for part in text.split(','):
        first, _, last = part.partition('-')
        if not last:
            yield first
        elif first.isdigit() and last.isdigit():
            for number in range(int(first), min(int(last), int(first) + MOST) + 1):
                yield f'{number:0{len(first)}}'
