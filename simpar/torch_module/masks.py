"""Masks of attention that are constants: causal ones become a flag, open ones go; and indices of own samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simpar.torch_module.constants import NO_VALUE, Constants
from simpar.torch_module.export import COUNTS
from simpar.torch_module.graph import Node


def plain_attention(node: Node, constants: Constants) -> Node:
    """The call without its mask where that is causal or hides nothing."""
    mask = node.arguments.get('attn_mask')
    if mask is None or mask.kind != 'constant' or node.arguments['is_causal']:
        return node
    kind = _kind(constants.value(mask))
    if not kind:
        return node
    query, key, value, *_ = node.positional
    named: dict[str, Any] = {'is_causal': kind == 'causal', 'scale': node.arguments.get('scale'),
                             'enable_gqa': node.arguments.get('enable_gqa', False)}  # fmt: skip
    arguments = {**node.arguments, **named, 'attn_mask': None}
    return replace(node, positional=[query, key, value], named=named, arguments=arguments)


def _kind(mask: Any) -> str:
    """``causal`` or ``open``; empty: another mask, or one whose values are not known."""
    import torch

    if mask is NO_VALUE:
        return ''
    seen = mask if mask.dtype == torch.bool else mask == 0
    hidden = mask[~seen]
    # Of numbers that are added, what hides must hide all of it.
    if mask.dtype != torch.bool and not bool((hidden <= torch.finfo(mask.dtype).min / 2).all()):
        return ''
    if bool(seen.all()):
        return 'open'
    square = seen.shape[-1] == seen.shape[-2]
    lower = torch.ones(seen.shape[-2:], dtype=torch.bool).tril()
    return 'causal' if square and bool((seen == lower).all()) else ''


def own_row(node: Node, constants: Constants) -> Node:
    """``x[row of each sample, indices]`` as ``x[:, indices]``."""
    import torch

    x, indices = node.positional
    first = indices[0]
    if not isinstance(first, Node) or first.kind != 'constant':
        return node
    value = constants.value(first)
    alone = first.scales and len(first.shapes[0]) == value.ndim and value.numel() == COUNTS[0]
    if value is NO_VALUE or not alone or not bool((value.flatten() == torch.arange(COUNTS[0])).all()):
        return node
    others: list[Any] = []
    for one in indices[1:]:
        if one is not None and len(one.shapes[0]) == value.ndim:
            if one.shapes[0][0] != 1:
                return node
            # Its dim of samples is that of x now.
            shapes = (one.shapes[0][1:], one.shapes[1][1:])
            one = Node(f'{one.name}_row', one.kind, shapes, one.dtype, 'select.int',  # noqa: PLW2901
                       {'self': one, 'dim': 0, 'index': 0}, (one, 0, 0), fx=one.fx)  # fmt: skip
        others.append(one)
    wanted = [None, *others]
    return replace(node, positional=[x, wanted], arguments={'self': x, 'indices': wanted})
