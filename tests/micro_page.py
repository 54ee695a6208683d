"""Write docs/proofs/micro.md: products and collectives that were left out of tables: `python -m tests.micro_page`.

Every fifth block (n, k) of a table of products, by sha256, is left out with all its m. It is predicted from the rest as
simpar predicts sizes that nobody measured. Every fifth point of a table of collectives is left out alone. Then each
device is predicted by formula, with the constants of the other devices and its own data sheet.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from statistics import fmean, median

from simpar.cost.collective import ClusterCollectives
from simpar.cost.compute import MATMUL_AXES, by_products, waves
from simpar.cost.formula import terms
from simpar.cost.tables import Curve, Grid, Scatter
from simpar.hardware import Device
from simpar.profiles import cluster, load_profile, read_table
from simpar.program import OpClass
from tests.proof import ROOT, page_head, table

PAGE = ROOT / 'docs' / 'proofs' / 'micro.md'
DEVICES = ('a100-sxm-8', 'h100-sxm-8', 'h200-sxm-8', 'b200-sxm-8')
FIFTH = 5
LARGE = 1024
SWEEP = 300
MIB = 2**20
Row = Sequence[float]


def left_out(*key: float | str) -> bool:
    told = '|'.join(str(part if isinstance(part, str) else int(part)) for part in key)
    return int(sha256(told.encode()).hexdigest(), 16) % FIFTH == 0


def middle(errors: Iterable[float]) -> str:
    """The median size of errors, and of how many."""
    sizes = [abs(error) for error in errors]
    return f'{median(sizes):.1%} of {len(sizes)}' if sizes else 'none'


def products(name: str) -> tuple[Row, ...]:
    known = load_profile(name).tables.matmul
    return read_table(known, 'matmul') if known else ()


def predicted(rows: Sequence[Row], seconds: Callable[..., float]) -> list[tuple[Row, float]]:
    return [(row, seconds(*row[:3]) / row[3] - 1) for row in rows]


def nearest(known: Sequence[Row]) -> Callable[..., float]:
    """The rate of the measured block (n, k) that is nearest in log(size), at the same m."""
    by: dict[float, list[Row]] = {}
    for row in known:
        by.setdefault(row[0], []).append(row)

    def seconds(m: float, n: float, k: float) -> float:
        row = min(by[m], key=lambda row: math.dist((math.log(row[1]), math.log(row[2])), (math.log(n), math.log(k))))
        return row[3] * n * k / (row[1] * row[2])

    return seconds


def of_products() -> Iterator[tuple[str, ...]]:
    for name in DEVICES:
        rows = products(name)
        out, known = ([row for row in rows if left_out(*row[1:3]) == is_out] for is_out in (True, False))
        cells = []
        for model in (Grid(MATMUL_AXES, known), nearest(known)):
            found = predicted(out, model)
            cells += [middle(e for _, e in found), middle(e for row, e in found if min(row[:3]) >= LARGE)]
        yield name, f'{len(out)} of {len(rows)}', *cells


def of_collectives() -> Iterator[tuple[str, ...]]:
    for name in DEVICES:
        known = load_profile(name).tables.collective
        curves: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
        for operator, ranks, nodes, size, seconds in read_table(known, 'collective') if known else ():
            curves.setdefault((str(operator), int(ranks), int(nodes)), []).append((size, seconds))
        yield name, middle(_interpolated(curves)), middle(_by_formula(name, curves))


def _interpolated(curves: dict[tuple[str, int, int], list[tuple[float, float]]]) -> Iterator[float]:
    for key, points in curves.items():
        known = Curve([point for point in points if not left_out(*key, point[0])])
        yield from (known(size) / seconds - 1 for size, seconds in points if left_out(*key, size))


def _by_formula(name: str, curves: dict[tuple[str, int, int], list[tuple[float, float]]]) -> Iterator[float]:
    for (operator, ranks, nodes), points in curves.items():
        hardware = cluster(load_profile(name), nodes=max(nodes, 1))
        model = ClusterCollectives(hardware)
        inner = -(-ranks // nodes)
        members = [place // inner * 8 + place % inner for place in range(ranks)]
        for size, seconds in points:
            if size > 8 * MIB:
                op = OpClass(
                    name=operator, kind='collective', operator=operator, phase='F', bytes=size, dtype='bf16',
                    partition='all',
                )  # fmt: skip
                found = terms(op, hardware.topology.shape(tuple(members)), hardware.topology, model.library)
                yield (found.alpha + found.transfer) / seconds - 1


def by_class(name: str) -> Device:
    """A device by its data sheet, with the constants of products that the others have in the mean."""
    others = [load_profile(other).device for other in DEVICES if other != name]
    own = load_profile(name).device
    parts = ('share', 'half_area', 'half_depth')
    mean = {part: fmean(getattr(one.matmul, part).value for one in others) for part in parts}
    matmul = replace(own.matmul, **{part: replace(getattr(own.matmul, part), value=mean[part]) for part in parts})
    kernel = replace(own.kernel.matrix, value=fmean(one.kernel.matrix.value for one in others))
    return replace(own, matmul=matmul, kernel=replace(own.kernel, matrix=kernel))


def of_devices() -> Iterator[tuple[str, ...]]:
    for name in DEVICES:
        device = by_class(name)

        def formula(m: float, n: float, k: float, device: Device = device) -> float:
            moved = 2.0 * (m * n + n * k + m * k)
            return by_products(device, device.matrix['bf16'], (m, n, k), moved).seconds

        rows = [row for row in products(name) if min(row[1:3]) >= 256]
        plain = predicted(rows, formula)
        sweep = sorted(rows, key=lambda row: sha256(str(row[:3]).encode()).digest())[:SWEEP]
        kept = {row[:3] for row in sweep}
        swept = predicted([row for row in rows if row[:3] not in kept], Scatter(sweep, formula, waves(device)))
        yield name, middle(e for _, e in plain), middle(e for _, e in swept)


def main() -> None:
    of = {
        'products': ('left out | interpolated | … 1024 and more | nearest block | … 1024 and more', of_products()),
        'collectives': ('interpolated, a fifth left out | by formula alone, more than 8 MiB', of_collectives()),
        'devices': (f'by class and data sheet | with a sweep of {SWEEP} of its own products', of_devices()),
    }
    tables = {name: '\n'.join(table(f'device | {heads}', rows)) for name, (heads, rows) in of.items()}
    what = (__doc__ or '').partition('\n')[2].strip()
    PAGE.write_text(page_head('micro', what=what, sweep=SWEEP, **tables), encoding='utf-8')


if __name__ == '__main__':
    main()
