"""Writes executor/devices/dtypes.csv, kernels of CUDA by OpInfo (`python -m tests.prove_fake`, needs expecttest)."""

import csv
from collections import defaultdict
from pathlib import Path

from tests.tables import load_table

ROOT = Path(__file__).parent.parent
TABLE = ROOT / 'executor' / 'devices' / 'dtypes.csv'
SAME = load_table(__file__, 'SAME')
"""Operation → the entry of OpInfo that tests its kernel, where its own name is none."""


def opinfo() -> dict[str, tuple[set[str], set[str]]]:
    """Entry → dtypes of its forward and of its backward on CUDA, as of a device of compute capability 9."""
    from torch.testing._internal import common_cuda

    # In a wheel without CUDA these are false, and would take 16-bit kernels out.
    for name in dir(common_cuda):
        if name.startswith(('SM', 'PLATFORM_SUPPORTS')):
            setattr(common_cuda, name, True)
    from torch.testing._internal import common_methods_invocations as every

    found: dict[str, tuple[set[str], set[str]]] = {}
    for entries in (value for name, value in vars(every).items() if name.endswith('op_db') and isinstance(value, list)):
        for one in entries:
            forward = one.dtypesIf.get('cuda', one.dtypes)
            backward = (
                getattr(one, 'backward_dtypesIf', {}).get('cuda', ()) if hasattr(one, 'backward_dtypesIf') else ()
            )
            for name in {one.name.rpartition('.')[2], getattr(one, 'aten_name', None) or one.name}:
                both = found.setdefault(name, (set(), set()))
                for into, dtypes in zip(both, (forward, backward), strict=True):
                    into.update(str(dtype).removeprefix('torch.') for dtype in dtypes)
    return found


def dtypes_of(operation: str, known: dict[str, tuple[set[str], set[str]]]) -> list[str]:
    """The dtypes of the entry that stands for an operation; none where OpInfo knows none."""
    bare = SAME.get(operation, operation)
    for name in (bare, bare.rstrip('_'), bare.strip('_').removesuffix('_backward')):
        if name in known:
            forward, backward = known[name]
            found = backward if operation.endswith('_backward') and backward else forward
            return sorted(dtype for dtype in found if 'complex' not in dtype)
    return []


def kernels() -> None:
    """Write the table: a row for each set of dtypes, with all operations of torch for which it is that."""
    import torch

    known, rows = opinfo(), defaultdict[str, set[str]](set)
    every = {
        schema.name.removeprefix('aten::') for schema in torch._C._jit_get_all_schemas() if 'aten::' in schema.name
    }
    for operation in sorted(every):
        dtypes = dtypes_of(operation, known)
        if dtypes:
            rows[' '.join(dtypes)].add(operation)
    with TABLE.open('w', encoding='utf-8', newline='') as file:
        table = csv.writer(file, lineterminator='\n')
        table.writerow(('cuda', 'source', 'operations'))
        version = torch.__version__.partition('+')[0]
        table.writerows(
            (dtypes, f'OpInfo of torch {version}', ' '.join(sorted(of))) for dtypes, of in sorted(rows.items())
        )
    print(sum(map(len, rows.values())), 'operations in', len(rows), 'rows')


if __name__ == '__main__':
    kernels()
