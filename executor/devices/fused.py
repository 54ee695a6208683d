"""Fused kernels of torch: which one an operator has on a kind of device, as kernels.csv says."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from simpar import files, program

TABLE = Path(__file__).parent / 'kernels.csv'


@cache
def rows(operator: str, device: str) -> tuple[Mapping[str, str], ...]:
    """The fused kernels of an operator on a kind of device, the preferred ones first; none where it is composed."""
    return tuple(
        row
        for row in files.read_csv(TABLE)
        if row['kernel'] and operator in row['operator'].split() and device in row['devices'].split()
    )


def fused(operator: str, op: program.OpClass, tensor: torch.Tensor) -> str:
    """The kernel for an op on the device of a tensor and in its dtype; empty: it is composed of others."""
    features, dtype = int(op.attributes.get('head_dim', 0)), str(tensor.dtype).removeprefix('torch.')
    for row in rows(operator, tensor.device.type):
        # What a row leaves empty is no limit; limits are of the features of a head.
        within = features <= int(row['largest'] or features) and not features % int(row['multiple'] or 1)
        if (
            within
            and dtype in (row['dtypes'].split() or (dtype,))
            and not op.attributes.keys() & row['without'].split()
        ):
            return row['kernel']
    return ''


@cache
def dtypes(device: str) -> dict[str, frozenset[str]]:
    """Fused kernel of a kind of device → the dtypes that it computes in; its backward's are the same."""
    kernels = {
        row['kernel']: frozenset(row['dtypes'].split())
        for row in files.read_csv(TABLE)
        if row['dtypes'] and device in row['devices'].split()
    }
    return kernels | {f'{name}_backward': of for name, of in kernels.items()}
