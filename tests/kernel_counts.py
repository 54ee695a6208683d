"""Kernels that torch launches, and bytes that they read and write, counted by torch's own dispatcher."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

VIEWS = {
    *('alias', 'as_strided', 'chunk', 'detach', 'expand', 'narrow', 'permute', 'reshape', 'select', 'slice', 'split'),
    *('squeeze', 't', 'transpose', 'unsqueeze', 'view', 'view_as_complex', 'view_as_real'),
    *('_unsafe_view', '_conj', '_reshape_alias'),
}
"""Operators that give memory another shape: no kernel. A gradient of a slice is one."""


def read_or_written(tensor):
    """Bytes in memory: what is spread over a dim is there once."""
    spread = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return torch.Size(spread).numel() * tensor.element_size()


class Kernels(TorchDispatchMode):
    """Counts kernels, and bytes that they read and write."""

    def __init__(self):
        super().__init__()
        self.number, self.moved = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ not in VIEWS:
            self.number += 1
            touched = tree_leaves((args, kwargs, result))
            self.moved += sum(read_or_written(one) for one in touched if isinstance(one, torch.Tensor))
        return result
