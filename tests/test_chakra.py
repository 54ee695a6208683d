"""Chakra execution traces: what is written is replayed to the same step, and files of others are read as they mean."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tables import load_table

from simpar import chakra, load_case, simulate
from simpar.errors import ScheduleError

RECORDED = Path(__file__).parent / 'recorded' / 'chakra'
EXAMPLE = Path(__file__).parent.parent / 'examples' / 'multi_copy.yaml'
PLAN = load_table(__file__, 'PLAN')
PLANS = load_table(__file__, 'PLANS')


def replayed(path):
    """The seconds of a replayed step."""
    job = chakra.read_chakra(path)
    return float(simulate(job.program, job.costs, steps=1).step_times[0])


@pytest.mark.parametrize('plan', PLANS)
def test_what_is_written_is_replayed_to_the_same_step(tmp_path, plan):
    (tmp_path / 'plan.yaml').write_text(PLAN.replace('PLAN', f'{{{plan}}}'))
    prediction = load_case(tmp_path / 'plan.yaml', ['against={}']).predict()
    # The host's launches are not written, so there are none.
    costs = replace(prediction.costs, host=0 * prediction.costs.host)
    trace = simulate(prediction.trace.program, costs, steps=1)
    chakra.write_chakra(tmp_path / 'et', trace, 'plan')
    assert replayed(tmp_path / 'et') == pytest.approx(float(trace.step_times[0]), rel=1e-9)


def test_every_op_of_a_rank_is_a_node_that_waits_for_what_the_op_waits_for(tmp_path):
    (tmp_path / 'plan.yaml').write_text(PLAN.replace('PLAN', f'{{{PLANS[0]}}}'))
    trace = load_case(tmp_path / 'plan.yaml', ['against={}']).predict().trace
    chakra.write_chakra(tmp_path / 'et', trace, 'plan')
    groups = json.loads((tmp_path / 'et' / 'comm_groups.json').read_text())
    for rank in range(trace.program.world):
        nodes = list(chakra.unpacked((tmp_path / 'et' / f'plan.{rank}.et').read_bytes()))
        role = trace.program.role(rank)
        ops = [trace.program.op(role, slot) for slot in range(len(role))]
        assert [node.name.split()[0] for node in nodes] == [op.name for op in ops]
        kinds = {'compute': chakra.COMPUTE, 'collective': chakra.COLLECTIVE, 'send': chakra.SEND, 'recv': chakra.RECV}
        assert [node.type for node in nodes] == [kinds[op.kind] for op in ops]
        for node, op, needs in zip(nodes, ops, role.needs(), strict=True):
            assert set(needs) <= set(node.data_deps)
            if op.kind == 'collective':
                members = trace.program.partitions[op.partition].members(rank)
                assert tuple(groups[chakra.valued(node)['pg_name']]) == members


def test_a_ring_that_others_wrote_takes_its_seven_reductions(tmp_path, unpack):
    # Eight ranks add seven times, 7 us each; messages have no duration there.
    unpack(RECORDED / 'custom_allreduce.tar.gz', tmp_path)
    job = chakra.read_chakra(tmp_path)
    assert (job.program.world, sum(map(len, job.program.roles)), job.silent) == (8, 280, 112)
    assert replayed(tmp_path / 'custom_allreduce.3.et') == pytest.approx(49e-6, rel=1e-6)


def test_a_collective_that_others_wrote_is_one_of_all_ranks():
    (op,) = chakra.read_chakra(RECORDED).program.op_classes
    assert (op.kind, op.operator, op.bytes, op.partition) == ('collective', 'all_gather', 4 * 2.0**20, 'all ranks')


def node(number, kind=chakra.COMPUTE, waits=(), micros=10, **told):
    """A node; values of attributes are integers or texts."""
    values = {key: ('string_val' if isinstance(one, str) else 'int64_val', one) for key, one in told.items()}
    made = chakra.messages().Node(id=number, name=f'n{number}', type=kind, data_deps=waits, duration_micros=micros)
    made.attr.extend(chakra.attributes(values))
    return made


def written(folder, *ranks, **groups):
    """Files of hand-made nodes, one a rank."""
    folder.mkdir()
    for rank, nodes in enumerate(ranks):
        (folder / f'job.{rank}.et').write_bytes(chakra.packed(nodes, {}))
    if groups:
        (folder / 'groups.json').write_text(json.dumps(groups))
    return folder


def test_what_waits_for_what_decides_the_step(tmp_path):
    # 10, then a message of 20 that both need, then 10 on one rank: 40 us.
    talk = {'kind': chakra.COLLECTIVE, 'micros': 20, 'comm_type': 0, 'comm_size': 64, 'pg_name': 'g'}
    one = [node(5), node(7, waits=(5,), **talk), node(9, waits=(7,))]
    other = [node(1, **talk), node(2, micros=5)]
    folder = written(tmp_path / 'et', one, other, g=[0, 1])
    assert replayed(folder) == pytest.approx(40e-6, rel=1e-6)


def test_collectives_without_a_duration_are_priced_by_a_clusters_links_or_refused(tmp_path, json_of, refused):
    """Four devices of H100 gather 16 MiB at NVLink's rate: some 12 MiB a device over 450 GB/s, and a few us."""
    assert 'no duration; name the devices that price them, --cluster PROFILE' in refused('replay', RECORDED)
    assert 28e-6 < json_of('replay', RECORDED, '--cluster', 'h100-sxm-8')['step'] < 90e-6
    folder = written(tmp_path / 'et', [node(1, micros=0, num_ops=8)])
    assert 'computes and has no duration' in refused('replay', folder, '--cluster', 'h100-sxm-8')


TALK = {'kind': chakra.COLLECTIVE, 'comm_type': 0, 'comm_size': 64}


@pytest.mark.parametrize(
    ('ranks', 'groups', 'what'),
    [
        ([[node(1, waits=(2,)), node(2, waits=(1,))]], {}, 'in a circle'),
        ([[node(1, waits=(8,))]], {}, 'waits for node 8, which is not there'),
        ([[node(1)]], {'a\nb': 3}, r"group 'a\\nb': not a list"),
        ([[node(1), node(1)]], {}, 'two nodes have one id'),
        ([[node(1)], []], {}, 'rank 1 has no node'),
        ([[node(1, kind=9)]], {}, 'type 9 is none that is replayed'),
        ([[node(1, **{**TALK, 'comm_type': 77})]], {}, 'comm_type is no collective'),
        ([[node(1, kind=chakra.SEND, comm_dst=4)]], {}, 'is none of 1 ranks'),
        ([[node(1, kind=chakra.SEND, comm_dst=0)]], {}, 'rank 0 sends to itself'),
        (
            [[node(1, kind=chakra.SEND, comm_src=1, comm_dst=0)], [node(1)]],
            {},
            'in the file of rank 0, and is of rank 1',
        ),
        ([[node(1, **TALK, pg_name='g' * 90)]], {}, 'pg_name is longer than 80 letters'),
        ([[node(1, **TALK, pg_name='g')], []], {}, 'group g is not told'),
        ([[node(1, **TALK, pg_name='g')], []], {'g': [0, 7]}, 'not a list of ranks below 2'),
        ([[node(1, **TALK)], [node(1, **{**TALK, 'comm_size': 32})]], {}, 'unlike collectives'),
        ([[node(1, **TALK, pg_name='g')], [node(1)], [node(1)]], {'g': [0, 1]}, 'make no groups of its size'),
    ],
)
def test_what_cannot_be_replayed_is_named(tmp_path, ranks, groups, what):
    with pytest.raises(ScheduleError, match=what):
        chakra.read_chakra(written(tmp_path / 'et', *ranks, **groups))


def test_a_missing_protobuf_is_named_with_its_extra(tmp_path, monkeypatch, refused):
    for name in {'google', *(name for name in sys.modules if name.startswith('google.'))}:
        monkeypatch.setitem(sys.modules, name, None)
    chakra.messages.cache_clear()
    for words in (['run', EXAMPLE, '--chakra', tmp_path], ['replay', RECORDED]):
        assert 'pip install "simpar-parallel[chakra]"' in refused(*words)


def test_files_that_are_broken_or_missing_are_named(tmp_path):
    folder = written(tmp_path / 'et', [node(1)], [node(1)], [node(1)])
    (folder / 'job.1.et').write_bytes((folder / 'job.1.et').read_bytes()[:-3])
    with pytest.raises(ScheduleError, match=r'job\.1\.et: is no Chakra trace'):
        chakra.read_chakra(folder)
    (folder / 'job.1.et').unlink()
    with pytest.raises(ScheduleError, match='no file of rank 1'):
        chakra.read_chakra(folder)
    shutil.copy(folder / 'job.0.et', folder / 'other.0.et')
    with pytest.raises(ScheduleError, match='files of 2 jobs'):
        chakra.read_chakra(folder)
