"""Ask Holistic Trace Analysis for the overlap in our traces, and record its answer.

    pip install HolisticTraceAnalysis==0.5.0 'pandas<3'     # 300 MB: into an environment of its own
    python tests/recorded/hta/redo.py write FOLDER           # with simpar installed
    python tests/recorded/hta/redo.py read FOLDER            # with HTA installed

``write`` makes the traces of every case below, ``read`` writes ``recorded.json``. HTA rounds times inwards to whole
microseconds unless told not to; it is asked both ways. Programs and costs are made up here, so that nothing but the
engine's semantics can change the traces: HTA is asked about intervals, not about models or hardware.
"""

import itertools
import json
import os
import random
import sys
from pathlib import Path

HERE = Path(__file__).parent
CASES = ('worked', 'worked-slow-rank', 'random-1', 'random-2', 'random-3-slow-rank', 'pipeline')


def trace_of(case):
    """The trace of a case."""
    from simpar.engine import simulate

    slow = 'slow-rank' in case
    if case.startswith('worked'):
        sys.path.insert(0, str(HERE.parent.parent))
        from worked import worked_costs, worked_program

        program = worked_program()
        costs = worked_costs(program, {1: 0.5} if slow else {}, unit=2.0**-10)
    else:
        draw = random.Random(case)
        program = pipeline_program() if case == 'pipeline' else random_program(draw)
        costs = random_costs(draw, program, slow=slow)
    return simulate(program, costs, steps=3)


def random_program(draw, ops=150):
    """A made-up step of four ranks: computing, and all-reduces over two partitions on streams of their own."""
    from simpar.program import OpClass, ProgramBuilder, Tensor, grid

    build = ProgramBuilder(4, grid(4, {'data': 2, 'tensor': 2}).values())
    build.add_tensor(Tensor('x0', 'input', (8,), 'fp32'))
    slots = []
    for number in range(ops):
        build.add_tensor(Tensor(f'x{number + 1}', 'activation', (8,), 'fp32'))
        stream = draw.choices(['compute', 'tensor', 'data'], [6, 2, 1])[0]
        needs = tuple(f'x{max(0, number - draw.randrange(12))}' for _ in range(2))
        work = {'reads': needs, 'writes': (f'x{number + 1}',)}
        if stream == 'compute':
            build.add_op_class(OpClass(f'op{number}', 'compute', 'block', draw.choice('FIW'), **work))
        else:
            work |= {'bytes': 32.0, 'partition': stream, 'reduce': 'sum'}
            build.add_op_class(OpClass(f'op{number}', 'collective', 'all_reduce', 'F', **work))
        slots.append((f'op{number}', stream, 0, 0))
    build.add_role('all', range(4), slots, ('compute', 'tensor', 'data'))
    return build.build()


def pipeline_program(micro_batches=4):
    """Two pipeline ranks of two tensor ranks: a block and its all-reduce, on to the next rank; and all the way back."""
    from simpar.program import OpClass, ProgramBuilder, Tensor, grid

    build = ProgramBuilder(4, grid(4, {'pipeline': 2, 'tensor': 2}).values())
    for phase, stage, what in itertools.product('FI', (0, 1), ('in', 'partial', 'out')):
        build.add_tensor(Tensor(f'{what}{phase}{stage}', 'activation', (8,), 'fp32', batch_dim=0))
    work = {}
    for phase, stages in (('F', (0, 1)), ('I', (1, 0))):
        for stage, receives in zip(stages, (False, True), strict=True):
            place = f'{phase}{stage}'
            kinds = ['recv', 'compute', 'collective'] if receives else ['compute', 'collective', 'send']
            for kind in kinds:
                touched = {
                    'recv': {'writes': (f'in{place}',), 'partition': 'pipeline', 'peer': 1},
                    'compute': {'reads': (f'in{place}',) * receives, 'writes': (f'partial{place}',)},
                    'collective': {
                        'reads': (f'partial{place}',), 'writes': (f'out{place}',), 'partition': 'tensor',
                        'reduce': 'sum',
                    },
                    'send': {'reads': (f'out{place}',), 'partition': 'pipeline', 'peer': 1},
                }[kind]  # fmt: skip
                operator = {'compute': 'block', 'collective': 'all_reduce'}.get(kind, kind)
                size = 0.0 if kind == 'compute' else 32.0
                build.add_op_class(OpClass(f'{kind}{place}', kind, operator, phase, bytes=size, stage=stage, **touched))
            work[stage, phase] = kinds
    streams = {'compute': 'compute', 'collective': 'tensor'}
    for stage in (0, 1):
        slots = [
            (f'{kind}{phase}{stage}', streams.get(kind, f'pipeline.{phase}'), micro_batch, 0)
            for phase in 'FI'
            for micro_batch in range(micro_batches)
            for kind in work[stage, phase]
        ]
        ranks = [2 * stage, 2 * stage + 1]
        build.add_role(f'stage{stage}', ranks, slots, ('compute', 'tensor', 'pipeline.F', 'pipeline.I'))
    return build.build(micro_batches=micro_batches)


def random_costs(draw, program, *, slow):
    """Made-up costs from 20 us to 2 ms, so that there is something to hide and something that cannot be hidden."""
    import numpy as np

    from simpar.cost.costs import Communication, Costs
    from simpar.units import quantise

    def seconds():
        return quantise(draw.uniform(20e-6, 2e-3))

    ops = program.op_classes
    groups = {name: len(partition.groups_GP) for name, partition in program.partitions.items()}
    return Costs(
        compute=np.array([seconds() if op.kind == 'compute' else 0.0 for op in ops]),
        host=np.full(len(ops), quantise(30e-6)),
        beside_communication=np.full(len(ops), 0.75),
        beside_compute=np.full(len(ops), 0.875),
        communication={
            index: (Communication(quantise(40e-6), seconds(), ((0, 0.75),)),) * groups[op.partition]
            for index, op in enumerate(ops)
            if op.kind != 'compute'
        },
        links=('wire',),
        rank_speed=np.array([1.0, 1.0, 0.75 if slow else 1.0, 1.0]),
    )


def write(folder):
    """The traces of every case, as HTA reads them."""
    from simpar.kineto import write_kineto

    for case in CASES:
        write_kineto(folder / case, trace_of(case))


def read(folder):
    """HTA's answer for every case and rank, into ``recorded.json``."""
    from importlib.metadata import version

    answer = {
        'tool': f'HolisticTraceAnalysis {version("HolisticTraceAnalysis")}, get_comm_comp_overlap',
        'pandas': version('pandas'),
        'overlap in percent': overlaps(folder, 'exact'),
        'overlap in percent, times rounded to microseconds': overlaps(folder, 'rounded'),
    }
    (HERE / 'recorded.json').write_text(json.dumps(answer, indent=1) + '\n', encoding='utf-8')


def overlaps(folder, times):
    """Overlap by case and rank."""
    from hta.analyzers.communication_analysis import CommunicationAnalysis
    from hta.trace_analysis import TraceAnalysis

    os.environ['HTA_DISABLE_NS_ROUNDING'] = '1' if times == 'exact' else '0'
    found = {}
    for case in CASES:
        analysis = TraceAnalysis(trace_dir=str(folder / case))
        table = CommunicationAnalysis.get_comm_comp_overlap(analysis.t, visualize=False)
        found[case] = {str(int(row['rank'])): row['comp_comm_overlap_pctg'] for _, row in table.iterrows()}
        found[case] = dict(sorted(found[case].items()))
    return found


if __name__ == '__main__':
    {'write': write, 'read': read}[sys.argv[1]](Path(sys.argv[2]))
