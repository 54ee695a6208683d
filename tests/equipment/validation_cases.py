"""The schedules that are predicted and measured: what overlaps, how much, and one where splitting loses."""

from dataclasses import dataclass, replace
from typing import Final, Literal

from simpar import Plan, Program, Workload
from simpar.hardware import Cluster
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.resolve import resolve

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


# Optimizer parallelism as schedules: where gradients are summed, what is sharded, when weights are gathered.

WIDTHS: Final = {2: 768, 4: 1088}
"""By ranks: a shard of a weight has 1.2 MB."""
LAYERS: Final = 6
SAMPLES: Final = 768
"""Of a data rank in a step."""
OF_PIPELINE: Final = 4
"""Of a pipeline."""
BUCKET: Final = 2.1
"""Weights that a bucket stays below."""
VARIANTS: Final[dict[str, Plan]] = {
    'sums at the end': Plan(reduce_gradients='end'),
    'unfused': Plan(fusion='none'),
    # In place of auto, as many bytes as BUCKET weights have.
    'buckets': Plan(fusion='auto'),
    'ZeRO 1': Plan(zero=1),
    'ZeRO 2': Plan(zero=2),
    'ZeRO 3': Plan(zero=3, prefetch=0),
    'ZeRO 3, prefetch': Plan(zero=3, prefetch=1),
    'hsdp level 1, prefetch': Plan(hsdp='level1', prefetch=2),
}


def _squares(ranks: int, data: int) -> Workload:
    """Square layers, one behind the other, of 2.4 MB each on 2 ranks, of 4.7 on 4."""
    width = WIDTHS[ranks]
    layers = tuple(Dense(inputs=width, outputs=width, bias=False) for _ in range(LAYERS))
    return Workload(model=Network(layers=layers), batch=SAMPLES * data, loss='mse')


def optimizer_cases(ranks: int, *, copies: tuple[int, ...] = (1, 2)) -> list[ValidationCase]:
    """Every variant with copies; on 4 ranks with a pipeline of 2 as well. Gain is measured from sums at the end."""
    pipelines = (1, 2) if ranks > 2 else (1,)
    return [case for pipeline in pipelines for count in copies for case in _optimizer_family(ranks, pipeline, count)]


def _optimizer_family(ranks: int, pipeline: int, copies: int) -> list[ValidationCase]:
    label = (f', copies {copies}' if copies > 1 else '') + (f', pipeline {pipeline}' if pipeline > 1 else '')
    data = ranks // pipeline
    first = f'{next(iter(VARIANTS))}{label}'
    found = []
    for name, variant in VARIANTS.items():
        micro_batches = OF_PIPELINE if pipeline > 1 else 1
        plan = replace(variant, data=data, pipeline=pipeline, micro_batches=micro_batches, copies=copies)
        # In bytes of this width, so that a bucket holds as many weights on 2 ranks as on 4.
        if plan.fusion == 'auto':
            plan = replace(plan, fusion=BUCKET * 4 * WIDTHS[ranks] ** 2)
        case = f'{name}{label}'
        program = lower(_squares(ranks, data), plan, ranks)
        found.append(ValidationCase(name=case, program=program, against='' if case == first else first))
    return found


# Tiles against copies as schedules: sums of tensor parallelism hide under the next tile, or under the other copy.

TILE_INNER: Final = 4096
TILES: Final = (1, 2, 4)
COPIES: Final = (1, 2)
WITHOUT: Final = 'without matmul_grad_comm_overlap'


def _up_and_down(ranks: int, rows: int) -> Workload:
    """Blocks of a column-parallel and a row-parallel layer, with a relu between all of them."""
    up, down = Dense(inputs=WIDTH, outputs=TILE_INNER, bias=False), Dense(inputs=TILE_INNER, outputs=WIDTH, bias=False)
    layers = (up, Relu(), down, Relu()) * BLOCKS
    return Workload(model=Network(layers=layers[:-1]), batch=rows * ranks, loss='mse')


def tile_cases(
    ranks: int, *, tiles: tuple[int, ...] = TILES, copies: tuple[int, ...] = COPIES, rows: int = ROWS
) -> list[ValidationCase]:
    """Every number of tiles with every number of copies; one of each also with sums of dx that wait for gradients of
    weights.

    Arguments: ``rows`` of a step for each rank: messages grow with the ranks that share the machine. Gain is measured
    from one of each.
    """
    model, plan = _up_and_down(ranks, rows), Plan(tensor=ranks)
    found: list[ValidationCase] = []
    for count in copies:
        for number in tiles:
            program = lower(model, replace(plan, copies=count, tiles=number), ranks)
            against = found[0].name if found else ''
            found.append(ValidationCase(name=f'tiles {number}, copies {count}', program=program, against=against))
    # Without the pass that starts a sum of dx beside the gradient of the weight.
    waiting = replace(plan, overlap=('enable_grad_comm_opt', 'enable_opt_shard_comm_opt'))
    return [*found, ValidationCase(name=WITHOUT, program=lower(model, waiting, ranks), against=found[0].name)]
