"""The schedules that are predicted and measured: what overlaps, how much, and one where splitting loses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from simpar.lower import lower
from simpar.plan import Plan
from simpar.program import Program
from simpar.workload import Dense, Network, Relu, Workload

BLOCKS = 2
WIDTH, INNER = 1024, 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceCase:
    """One schedule.

    Arguments: ``against``, the name of the case that its gain is measured from; empty for a baseline.
    """

    name: str
    program: Program
    against: str = ''


def network(batch: int, width: int = WIDTH, inner: int = INNER, blocks: int = BLOCKS) -> Workload:
    """Blocks of a column-cut and a row-cut layer, so that every sum carries batch × width × 4 bytes."""
    layers: list[Dense | Relu] = []
    for _ in range(blocks):
        layers += [
            Dense(inputs=width, outputs=inner, bias=False),
            Relu(),
            Dense(inputs=inner, outputs=width, bias=False),
            Relu(),
        ]
    return Workload(model=Network(layers=tuple(layers[:-1])), batch=batch, loss='mse')


def cases(world: int, *, copies: tuple[int, ...] = (2, 4)) -> list[EvidenceCase]:
    """Schedules on ``world`` ranks whose messages are so long that the rate decides."""
    found: list[EvidenceCase] = []
    for label, batch in (('', 1024), (' of half the batch', 512)):
        serial = Plan(tensor=world, streams='single')
        found += _family(label, network(batch), serial, world, copies if batch == 1024 else copies[:1])
    if world > 2:
        mixed = Plan(data=2, tensor=world // 2)
        found += _family(f' with data 2 × tensor {world // 2}', network(2048), mixed, world, (2,), serial=False)
    else:
        found += _family(' in data parallel', network(256), Plan(data=world), world, (), serial=True)
    return found


def losing_cases(world: int) -> list[EvidenceCase]:
    """Schedules for a network of long latency: a copy more is one latency more for every sum, and splitting loses."""
    return _family(
        ' at long latency', network(512, width=512, inner=1024), Plan(tensor=world), world, (2,), serial=False
    )


def _family(
    label: str, workload: Workload, plan: Plan, world: int, copies: tuple[int, ...], *, serial: bool = True
) -> list[EvidenceCase]:
    """A baseline and what it becomes with overlap and with copies."""
    streams: Literal['single', 'group'] = 'single' if serial else 'group'
    first = f'{"serial" if serial else "copies 1"}{label}'
    rows = [EvidenceCase(name=first, program=lower(workload, replace(plan, streams=streams), world))]
    if serial:
        overlapped = lower(workload, replace(plan, streams='group'), world)
        rows.append(EvidenceCase(name=f'gradients overlap{label}', program=overlapped, against=first))
    for count in copies:
        program = lower(workload, replace(plan, copies=count, streams='group'), world)
        rows.append(EvidenceCase(name=f'copies {count}{label}', program=program, against=first))
    return rows
