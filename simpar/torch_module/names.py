"""Names of a module's operators in programs, and the layers that they belong to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

_NUMBER: Final = re.compile(r'^(.*?)\.?(\d+)(?:\.|$)')


def program_name(name: str) -> str:
    """``h.0.attn.weight`` → ``h/0/attn.weight``: programs take what stands before the first dot for the layer."""
    owner, _, leaf = name.rpartition('.')
    return f'{owner.replace(".", "/")}.{leaf}' if owner else leaf


def module_name(name: str) -> str:
    """The module's name of a tensor of a program."""
    return name.replace('/', '.')


def path_of(node: Any) -> str:
    """Which part of the module a node comes from; empty: the module itself."""
    stack = list((node.meta.get('nn_module_stack') or {}).values())
    path = stack[-1][0] if stack else ''
    return path.removeprefix("L['self']").lstrip('.')


def source_of(node: Any) -> str:
    """file:line in the module's own code; empty where torch does not tell."""
    # Not code that torch has generated, as for the branches of a condition.
    frames = re.findall(r'File "([^"<]+)", line (\d+)', node.meta.get('stack_trace') or '')
    return f'{frames[-1][0]}:{frames[-1][1]}' if frames else ''


def layers_of(paths: Iterable[str], products: Iterable[bool]) -> tuple[list[int], int]:
    """For each operator its layer, and how many layers there are.

    Layers are the parts of the module's lists, the outermost ones; where it has none of two parts, products with what
    follows them. What stands before the first is −1, what stands behind the last their count.
    """
    paths, products = list(paths), list(products)
    blocks = [found[1] + '.' + found[2] if (found := _NUMBER.match(path)) else '' for path in paths]
    order = list(dict.fromkeys(block for block in blocks if block))
    if len(order) < 2:
        return _by_products(products)
    place = {block: number for number, block in enumerate(order)}
    found_layers, now = [], -1
    for block in blocks:
        # Operators of one list part may stand among those of the next; stages only go on.
        now = max(now, place.get(block, now))
        found_layers.append(now)
    behind = max(index for index, block in enumerate(blocks) if block) + 1
    return [len(order) if index >= behind else layer for index, layer in enumerate(found_layers)], len(order)


def _by_products(products: list[bool]) -> tuple[list[int], int]:
    now, made = -1, []
    for product in products:
        now += product
        made.append(max(now, 0))
    return made, max(1, now + 1)


_PART: Final = re.compile(r'^(.*)@(\d+)of(\d+)d(\d)$')


def module_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of a program by the module's own names, the parts of a weight in one."""
    import torch

    found: dict[str, torch.Tensor] = {}
    parts: dict[tuple[str, int], dict[int, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        part = _PART.match(name)
        if part is None:
            found[module_name(name)] = tensor
        else:
            parts.setdefault((module_name(part[1]), int(part[4])), {})[int(part[2])] = tensor
    for (name, dim), of in parts.items():
        found[name] = torch.cat([of[place] for place in sorted(of)], dim)
    return found
