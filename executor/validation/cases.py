"""The schedules that are predicted and measured: what overlaps, how much, and one where splitting loses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from simpar.hardware import Cluster
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.plan import Plan
from simpar.program import Program
from simpar.resolve import resolve
from simpar.workload import Workload

Receive = Literal['early', 'late']
RECEIVES: Final[tuple[Receive, ...]] = ('early', 'late')
ORDERS: Final = ('gpipe', '1f1b', 'interleaved-1f1b', 'zb-h1')
MICRO_BATCHES = 8
ROWS: Final = 512
"""Samples of a micro-batch: one of two copies sends 1 MB, next to which it matters little when a thread wakes up."""
BLOCKS = 2
WIDTH, INNER = 1024, 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationCase:
    """One schedule.

    Arguments: ``against``, the name of the case that its gain is measured from; empty for a baseline.
    """

    name: str
    program: Program
    against: str = ''


def network(batch: int, width: int = WIDTH, inner: int = INNER, blocks: int = BLOCKS) -> Workload:
    """Blocks of a column-parallel and a row-parallel layer, so that every sum carries batch × width × 4 bytes."""
    layers: list[Dense | Relu] = []
    for _ in range(blocks):
        layers += [
            Dense(inputs=width, outputs=inner, bias=False),
            Relu(),
            Dense(inputs=inner, outputs=width, bias=False),
            Relu(),
        ]
    # Without the last relu: the loss follows the last product directly.
    return Workload(model=Network(layers=tuple(layers[:-1])), batch=batch, loss='mse')


def cases(world: int, *, copies: tuple[int, ...] = (2, 4)) -> list[ValidationCase]:
    """Schedules on ``world`` ranks whose messages are so long that the rate decides, the longer the more ranks."""
    found: list[ValidationCase] = []
    full_batch = 512 * world
    for label, batch in (('', full_batch), (' of half the batch', full_batch // 2)):
        # One stream overlaps nothing: the baseline that all gains are measured from.
        serial = Plan(tensor=world, streams='single')
        found += _family(label, network(batch), serial, world, copies if batch == full_batch else copies[:1])
    if world > 2:
        mixed = Plan(data=2, tensor=world // 2)
        found += _family(f' with data 2 × tensor {world // 2}', network(2048), mixed, world, (2,), serial=False)
    else:
        found += _family(' in data parallel', network(256), Plan(data=world), world, (), serial=True)
    return found


def losing_cases(world: int) -> list[ValidationCase]:
    """Schedules for a network of long latency: a copy more is one latency more for every sum, and splitting loses."""
    return _family(
        ' at long latency', network(512, width=512, inner=1024), Plan(tensor=world), world, (2,), serial=False
    )


def pipeline_cases(
    ranks: int,
    *,
    orders: tuple[str, ...] = ORDERS,
    copies: tuple[int, ...] = (1, 2),
    receives: tuple[Receive, ...] = RECEIVES,
    rows: int = ROWS,
) -> list[ValidationCase]:
    """Pipelines over all ranks: every order with copies, receives posted early and late.

    Arguments: ``rows`` of a micro-batch. Gain is measured from the same order with one copy and early receives.
    """
    found = []
    for order in orders:
        first = f'{order}'
        for receive in receives:
            for count in copies:
                plan = Plan(pipeline=ranks, micro_batches=MICRO_BATCHES, order=order, copies=count, receive=receive)
                name = (
                    first
                    + (f', copies {count}' if count > 1 else '')
                    + (', late receives' if receive == 'late' else '')
                )
                program = lower(chain(2 * ranks, rows), plan, ranks)
                found.append(ValidationCase(name=name, program=program, against='' if name == first else first))
    return found


def balance_cases(ranks: int, hardware: Cluster, rows: int = ROWS) -> list[ValidationCase]:
    """A chain whose last layers are heavy, in stages of equal counts and balanced."""
    workload = chain(3 * ranks, rows, heavy=True)
    # Heavy layers at the end, so that equal counts load the last stage most.
    equal = Plan(pipeline=ranks, micro_batches=MICRO_BATCHES)
    found = resolve(workload, replace(equal, stages='balanced'), hardware)
    return [
        ValidationCase(name='equal stages', program=lower(workload, equal, ranks)),
        ValidationCase(name='balanced stages', program=lower(workload, found, ranks), against='equal stages'),
    ]


def chain(layers: int, rows: int, *, heavy: bool = False) -> Workload:
    """Square layers, one behind the other; where ``heavy``, the last two are four times as large each."""
    square = Dense(inputs=WIDTH, outputs=WIDTH, bias=False)
    wide = Dense(inputs=WIDTH, outputs=4 * WIDTH, bias=False)
    back = Dense(inputs=4 * WIDTH, outputs=WIDTH, bias=False)
    tail = [wide, back] if heavy else []
    return Workload(
        model=Network(layers=tuple([square] * (layers - len(tail)) + tail)), batch=rows * MICRO_BATCHES, loss='mse'
    )


def _family(
    label: str, workload: Workload, plan: Plan, world: int, copies: tuple[int, ...], *, serial: bool = True
) -> list[ValidationCase]:
    """A baseline and what it becomes with overlap and with copies."""
    streams: Literal['single', 'group'] = 'single' if serial else 'group'
    first = f'{"serial" if serial else "copies 1"}{label}'
    rows = [ValidationCase(name=first, program=lower(workload, replace(plan, streams=streams), world))]
    if serial:
        overlapped = lower(workload, replace(plan, streams='group'), world)
        rows.append(ValidationCase(name=f'gradients overlap{label}', program=overlapped, against=first))
    for count in copies:
        program = lower(workload, replace(plan, copies=count, streams='group'), world)
        rows.append(ValidationCase(name=f'copies {count}{label}', program=program, against=first))
    return rows
