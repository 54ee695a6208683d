"""Tree: a published row as a schedule file would have it."""

from __future__ import annotations

from typing import Any

from simpar.stacks import load_stack
from simpar.validate import megatron
from simpar.validate.rows import Row
from simpar.validate.settings import Skipped, cluster_of, plan_of, put_under, reason, stack_name, workload_of


def schedule_tree(row: Row) -> dict[str, Any]:
    """The tree of a schedule file for a row; raises ``Skipped`` where it says too little, or what is not modelled."""
    why = reason(row)
    if why:
        raise Skipped(why)
    tree: dict[str, Any] = {'simpar': 1, 'cluster': cluster_of(row)}
    if row.text('flags').startswith('--'):
        # Megatron-LM's own flags say more than the columns that all sets have.
        return tree | megatron.megatron_tree(row)
    tree |= {'workload': workload_of(row), 'plan': plan_of(row)}
    for key, value in load_stack(stack_name(row)).of_rows.items():
        put_under(tree, key.split('.'), value)
    return tree
