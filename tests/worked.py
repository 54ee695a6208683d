"""The worked program: two dense blocks, tensor 2, copies 2, on two devices; see docs/proofs/worked_program.md.

Every span is worked out by hand there; the tables below are copied from there.
"""

import numpy as np
from tables import load_table

from simpar.cost.costs import Communication, Costs
from simpar.program import OpClass, Partition, Program, ProgramBuilder, Split, Tensor

# slot | step 1: start, end | step 2: start, end (both ranks alike)
SPANS = load_table(__file__, 'SPANS')

# slot | rank 0: arrive, start, end | rank 1: arrive, start, end (rank 1 at half speed, step 1)
SLOW_SPANS = load_table(__file__, 'SLOW_SPANS')


def table(text: str) -> dict[str, tuple[float, ...]]:
    """Rows of one of the tables above by slot."""
    rows = (line.split() for line in text.strip().splitlines())
    return {slot: tuple(float(cell) for cell in cells) for slot, *cells in rows}


def worked_program(rows: int = 4, width: int = 8) -> Program:
    """The worked program.

    Arguments: ``rows`` of a batch and ``width`` of its samples; they size the messages (rows × width × 2 bytes a copy)
    and change no span.
    """
    build = ProgramBuilder(2, [Partition('tp', np.array([[0, 1]], dtype=np.int32))])
    _add_tensors(build, rows, width)
    message = rows // 2 * width * 4.0

    def compute(name: str, operator: str, phase: str, reads: str, writes: str = '', **more: tuple[str, ...]) -> None:
        build.add_op_class(
            OpClass(name, 'compute', operator, phase, reads=tuple(reads.split()), writes=tuple(writes.split()), **more)
        )

    def reduce(name: str, phase: str, source: str, target: str) -> None:
        build.add_op_class(
            OpClass(
                name, 'collective', 'all_reduce', phase, bytes=message, partition='tp', reduce='sum',
                reads=(source,), writes=(target,),
            )
        )  # fmt: skip

    compute('FA', 'block', 'F', 'x weightA', 'partial_yA savedA')
    reduce('RA', 'F', 'partial_yA', 'yA')
    compute('FB', 'block', 'F', 'yA weightB', 'partial_yB savedB')
    reduce('RB', 'F', 'partial_yB', 'yB')
    compute('L', 'mean', 'F', 'yB', 'loss dyB')
    compute('IB', 'block', 'I', 'dyB weightB savedB', 'partial_dyA')
    reduce('GB', 'I', 'partial_dyA', 'dyA')
    compute('WB', 'block', 'W', 'dyB savedB', accumulates=('dweightB',), frees=('savedB',))
    compute('WA', 'block', 'W', 'dyA savedA', accumulates=('dweightA',), frees=('savedA',))
    compute('U', 'sgd', 'U', 'dweightA dweightB weightA weightB', 'weightA weightB', frees=('dweightA', 'dweightB'))
    slots = [slot.partition('.')[::2] for slot in table(SPANS)]
    build.add_role(
        'all', [0, 1], [(op, 'tp' if op[0] in 'RG' else 'compute', 0, int(copy or 0)) for op, copy in slots],
        ('compute', 'tp'),
    )  # fmt: skip
    return build.build(copies=2)


def _add_tensors(build: ProgramBuilder, rows: int, width: int) -> None:
    def activation(name: str, *, cut: bool = False, partial: bool = False) -> Tensor:
        cuts, sums = (Split(1, 'tp'),) * cut, ('tp',) * partial
        return Tensor(name, 'activation', (rows, width), 'fp32', splits=cuts, partial=sums, batch_dim=0)

    build.add_tensor(Tensor('x', 'input', (rows, width), 'fp32', batch_dim=0))
    build.add_tensor(Tensor('loss', 'activation', (), 'fp32'))
    for block in 'AB':
        shape, cuts = (width, width), (Split(0, 'tp'),)
        build.add_tensor(Tensor(f'weight{block}', 'parameter', shape, 'fp32', cuts, initial='normal:0.02'))
        build.add_tensor(Tensor(f'dweight{block}', 'gradient', shape, 'fp32', cuts, like=f'weight{block}'))
        build.add_tensor(activation(f'partial_y{block}', partial=True))
        build.add_tensor(activation(f'y{block}'))
        build.add_tensor(activation(f'dy{block}'))
        build.add_tensor(activation(f'saved{block}', cut=True))
    build.add_tensor(activation('partial_dyA', partial=True))


def worked_costs(
    program: Program,
    slow: dict[int, float] | None = None,
    *,
    host: float = 0.125,
    beside_communication: float = 0.5,
    waiting_slows: bool = False,
    unit: float = 1.0,
) -> Costs:
    """The costs of the worked program.

    Arguments: ``slow``, speeds of ranks that are not nominal; ``unit``, seconds that the page's second lasts (a power
    of two, so that spans scale exactly).
    """
    seconds = {'L': 1.0, 'U': 2.0}
    speed = np.ones(program.world)
    for rank, value in (slow or {}).items():
        speed[rank] = value
    names = [op.name for op in program.op_classes]
    kinds = [op.kind for op in program.op_classes]
    return Costs(
        compute=np.array([unit * seconds.get(n, 4.0) * (k == 'compute') for n, k in zip(names, kinds, strict=True)]),
        host=np.full(len(names), unit * host),
        beside_communication=np.full(len(names), beside_communication),
        beside_compute=np.ones(len(names)),
        communication={
            index: (Communication(alpha=unit, transfer=3 * unit, links=((0, 1.0),)),)
            for index, kind in enumerate(kinds)
            if kind == 'collective'
        },
        links=('wire',),
        rank_speed=speed,
        waiting_slows=waiting_slows,
    )


def shared_link_program() -> Program:
    """Two collectives A and B on different streams of disjoint groups; B waits for two seconds of compute, W."""
    build = ProgramBuilder(4, [Partition('pair', np.array([[0, 1], [2, 3]], dtype=np.int32))])
    build.add_tensor(Tensor('x', 'input', (8,), 'fp32'))
    build.add_tensor(Tensor('y', 'activation', (8,), 'fp32', partial=('pair',)))
    build.add_op_class(OpClass('W', 'compute', 'block', 'F', reads=('x',), writes=('y',)))
    for name, source in (('A', 'x'), ('B', 'y')):
        build.add_tensor(Tensor(f'z{name}', 'activation', (8,), 'fp32'))
        build.add_op_class(
            OpClass(
                name, 'collective', 'all_reduce', 'F', bytes=32.0, partition='pair', reduce='sum',
                reads=(source,), writes=(f'z{name}',),
            )
        )  # fmt: skip
    build.add_role('first', [0, 1], [('A', 'a', 0, 0)], ('a',))
    build.add_role('second', [2, 3], [('W', 'compute', 0, 0), ('B', 'b', 0, 0)], ('compute', 'b'))
    return build.build()


def shared_link_costs(program: Program) -> Costs:
    """A: α 1, transfer 3, demand 1 of the wire. B: α 1, transfer 3, demand 1/2."""
    demand = {'A': 1.0, 'B': 0.5}
    index = {op.name: number for number, op in enumerate(program.op_classes)}
    return Costs(
        compute=np.array([2.0 if op.kind == 'compute' else 0.0 for op in program.op_classes]),
        host=np.zeros(len(index)),
        beside_communication=np.ones(len(index)),
        beside_compute=np.ones(len(index)),
        communication={
            index[name]: (Communication(alpha=1.0, transfer=3.0, links=((0, share),)),) * 2
            for name, share in demand.items()
        },
        links=('wire',),
        rank_speed=np.ones(4),
    )
