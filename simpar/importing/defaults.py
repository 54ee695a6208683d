"""Defaults: what each framework takes where a file is silent, with its source, held against simpar's own."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from typing import Any, Final

from simpar.document.tree import parse
from simpar.plan import Plan
from simpar.stacks import load_stack, stack_folder
from simpar.workload import Workload

TABLE: Final = 'defaults.csv'


@dataclass(frozen=True, slots=True)
class Default:
    """A default of a framework.

    Arguments: ``key`` of a schedule; ``framework``; ``stack`` that stands for it; ``value``, the framework's own, in
    the words of a schedule; ``flag``, its name there; ``source``, repository, commit and file; ``since``, the version
    that has it; ``note``, why a schedule on the stack has another value, empty where it has this one.
    """

    key: str
    framework: str
    stack: str
    value: Any
    flag: str
    source: str
    since: str
    note: str


def defaults() -> tuple[Default, ...]:
    """All rows of the table."""
    with (stack_folder() / TABLE).open(encoding='utf-8', newline='') as file:
        return tuple(_default(row) for row in csv.DictReader(file))


def _default(row: dict[str, str]) -> Default:
    value = parse(f'value: {row["value"]}', TABLE).root['value']
    return Default(**{**row, 'value': value})


def on_stack(key: str, stack: str) -> Any:
    """What a schedule that is silent has on a stack. Arguments: ``key``, of ``plan`` or ``workload``."""
    schedule = load_stack(stack).schedule
    if key in schedule:
        return schedule[key]
    owner, _, name = key.partition('.')
    own = {one.name: one.default for one in fields(Plan if owner == 'plan' else Workload)}
    return own[name]
