"""The executor on pipelines: what is refused before launch, and ``python -m executor`` on a schedule with stages."""

import json

import pytest
from pipeline_cases import edited
from tables import load_table

from executor.options import parser
from executor.validate import validate
from simpar import Plan, Transformer, Workload, load_case
from simpar.errors import ProgramError
from simpar.lower import lower
from simpar.trace_files import load_trace

GPT = Workload(model=Transformer(layers=2, hidden=8, heads=2, vocab=12, sequence=4, tied=True), batch=8)
PLAN = Plan(data=1, pipeline=2, micro_batches=4)
SENT, RECEIVED = 'layer0.residual2.send.F', 'layer0.residual2.recv.F'


def test_a_stream_for_every_direction_and_copy_has_room():
    program = lower(
        GPT, Plan(data=1, pipeline=3, micro_batches=2, copies=4, order='zb-v', stages=(1, 0, 0, 0, 0, 1)), 3
    )
    assert [len(role.streams) for role in program.roles] == [17, 33, 17]
    validate(program)


def at(slots, named, micro_batch=0):
    return next(index for index, slot in enumerate(slots) if (slot[0], slot[2]) == (named, micro_batch))


def left_out(named):
    return lambda slots: [slot for slot in slots if (slot[0], slot[2]) != (named, 0)]


def swapped(named):
    """The first two micro-batches in each other's place."""

    def change(slots):
        one, two = at(slots, named), at(slots, named, 1)
        return [slots[{one: two, two: one}.get(index, index)] for index in range(len(slots))]

    return change


def moved(named, behind, micro_batch=0):
    """A slot of the first micro-batch right behind another op."""

    def change(slots):
        slot = slots[at(slots, named)]
        rest = [other for other in slots if other != slot]
        place = at(rest, behind, micro_batch) + 1
        return [*rest[:place], slot, *rest[place:]]

    return change


@pytest.mark.parametrize(
    ('role', 'change', 'what'),
    [
        (0, left_out(SENT), r'rank 0 has 3 sends and rank 1 4 receives from it'),
        (1, left_out(RECEIVED), r'rank 0 has 4 sends and rank 1 3 receives from it'),
        (1, swapped(RECEIVED), rf'message 0 is {SENT}\.mb0 .* on rank 0 but {RECEIVED}\.mb1 .* on rank 1'),
        (0, moved('d:layer0.residual2.received.recv.I', 'layer0.fc2.W'), 'which nothing has written'),
        (1, left_out('layer1.residual1.F'), 'reads layer1.residual1, which nothing has written'),
    ],
)
def test_stages_that_do_not_fit_together_are_refused(role, change, what):
    validate(lower(GPT, PLAN, 2))
    with pytest.raises(ProgramError, match=what):
        validate(edited(lower(GPT, PLAN, 2), change, role))


JOB = load_table(__file__, 'JOB')


@pytest.fixture
def job(put):
    def write(pipeline, order, tensor=1):
        return put('job.yaml', JOB.format(world=pipeline * tensor, pipeline=pipeline, tensor=tensor, order=order))

    return write


def executed(capsys, *arguments):
    """What the verb ``run`` prints, as the object that it is."""
    from executor.commands import run_job as command

    assert command(parser().parse_args(['run', *map(str, arguments), '--json'])) == 0
    return json.loads(capsys.readouterr().out)


def losses(job, steps):
    from executor.inprocess import InProcess

    return InProcess(load_case(job).program, seed=0, dtype=None).run(steps).losses


def test_a_pipeline_runs_from_its_file(job, capsys, tmp_path):
    """Every order trains over gloo in `test_numerics_gloo`."""
    path = job(2, 'dualpipe-v')
    facts = executed(capsys, path, '--steps', 2, '--save', tmp_path / 'trace.json')
    assert (facts['ranks'], facts['origin']) == (2, 'measured')
    assert facts['losses'] == pytest.approx(losses(path, 2), rel=1e-6)
    assert load_trace(tmp_path / 'trace.json').program == load_case(path).program.hash


def test_its_compute_is_emulated(job, capsys, tmp_path):
    """Messages are real: both ends of each are told the same start, and end after it."""
    path = job(4, '1f1b')
    facts = executed(capsys, path, '--compute', 'emulated', '--net', 'paced:1gbit,50us', '--save', tmp_path / 'trace')
    assert (facts['origin'], facts['losses']) == ('emulated', [])
    program, lanes = load_case(path).program, load_trace(tmp_path / 'trace').representatives
    starts = {'send': [], 'recv': []}
    for lane in lanes:
        role = program.role(lane.rank)
        assert (lane.end_KS >= lane.start_KS).all()
        for slot in range(len(role)):
            starts.get(program.op(role, slot).kind, []).extend(lane.start_KS[:, slot].tolist())
    crossings, micro_batches, copies, steps = 3, 4, 2, 3
    assert len(starts['send']) == steps * (2 * crossings * micro_batches * copies + 2)
    assert sorted(starts['send']) == sorted(starts['recv'])
