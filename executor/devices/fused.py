"""Fused kernels of torch: which one an operator has on a kind of device, as kernels.csv says."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from simpar import files, program

TABLE = Path(__file__).parent / 'kernels.csv'


@dataclass(frozen=True, slots=True)
class Fused:
    """A fused kernel, and what it takes.

    Arguments:
        kernel: an operation of aten.
        dtypes: those that it computes in; empty: all.
        without: attributes of an op that it does not know.
        largest, multiple: of features of a head; 0: any.
    """

    kernel: str
    dtypes: frozenset[str]
    without: frozenset[str]
    largest: int
    multiple: int

    def takes(self, op: program.OpClass, dtype: torch.dtype) -> bool:
        """Whether it does an op in a dtype."""
        features = int(op.attributes.get('head_dim', 0))
        return (
            (not self.dtypes or str(dtype).removeprefix('torch.') in self.dtypes)
            and not self.without & op.attributes.keys()
            and (not self.largest or features <= self.largest)
            and (not self.multiple or features % self.multiple == 0)
        )


@cache
def rows(operator: str, device: str) -> tuple[Fused, ...]:
    """The fused kernels of an operator on a kind of device, the preferred ones first; none where it is composed."""
    return tuple(
        Fused(
            row['kernel'],
            frozenset(row['dtypes'].split()),
            frozenset(row['without'].split()),
            int(row['largest'] or 0),
            int(row['multiple'] or 0),
        )
        for row in files.read_csv(TABLE)
        if row['kernel'] and operator in row['operator'].split() and device in row['devices'].split()
    )


def fused(operator: str, op: program.OpClass, tensor: torch.Tensor) -> str:
    """The kernel for an op on the device of a tensor and in its dtype; empty: it is composed of others."""
    found = (row.kernel for row in rows(operator, tensor.device.type) if row.takes(op, tensor.dtype))
    return next(found, '')


@cache
def dtypes(device: str) -> dict[str, frozenset[str]]:
    """Fused kernel of a kind of device → the dtypes that it computes in; its backward's are the same."""
    found = {
        row['kernel']: frozenset(row['dtypes'].split())
        for row in files.read_csv(TABLE)
        if row['dtypes'] and device in row['devices'].split()
    }
    return found | {f'{name}_backward': of for name, of in found.items()}
