"""Tiles against copies as schedules: sums of tensor parallelism hide under the next tile, or under the other copy."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from executor.validation.cases import ValidationCase
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.plan import Plan
from simpar.workload import Workload

BLOCKS: Final = 2
WIDTH, INNER = 1024, 4096
ROWS: Final = 512
"""Of a step, for each rank: messages grow with the ranks that share the machine; the least have 0.5 MB a rank."""
TILES: Final = (1, 2, 4)
COPIES: Final = (1, 2)
WITHOUT: Final = 'without matmul_grad_comm_overlap'


def workload(ranks: int, rows: int) -> Workload:
    """Blocks of a column-parallel and a row-parallel layer, with a relu between all of them."""
    up, down = Dense(inputs=WIDTH, outputs=INNER, bias=False), Dense(inputs=INNER, outputs=WIDTH, bias=False)
    layers = (up, Relu(), down, Relu()) * BLOCKS
    return Workload(model=Network(layers=layers[:-1]), batch=rows * ranks, loss='mse')


def tile_cases(
    ranks: int, *, tiles: tuple[int, ...] = TILES, copies: tuple[int, ...] = COPIES, rows: int = ROWS
) -> list[ValidationCase]:
    """Every number of tiles with every number of copies; one of each also with sums of dx that wait for gradients of
    weights.

    Arguments: ``rows`` for each rank. Gain is measured from one of each.
    """
    model, plan = workload(ranks, rows), Plan(tensor=ranks)
    found: list[ValidationCase] = []
    for count in copies:
        for number in tiles:
            program = lower(model, replace(plan, copies=count, tiles=number), ranks)
            against = found[0].name if found else ''
            found.append(ValidationCase(name=f'tiles {number}, copies {count}', program=program, against=against))
    # Without the pass that starts a sum of dx beside the gradient of the weight.
    waiting = replace(plan, overlap=('enable_grad_comm_opt', 'enable_opt_shard_comm_opt'))
    return [*found, ValidationCase(name=WITHOUT, program=lower(model, waiting, ranks), against=found[0].name)]
