"""Links that are faster or slower than the profile's: what it does to collectives, and what is said of it."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar import cli
from simpar.case import load_case
from simpar.cost.collective import ClusterCollectives
from simpar.errors import ProfileError
from simpar.hardware import Tables
from simpar.profiles import cluster, load_profile, profile_names
from simpar.program import OpClass

MIB = 2.0**20
OPERATORS = ('all_reduce', 'all_gather', 'reduce_scatter')
PROFILES = {name: load_profile(name) for name in profile_names()}
BARE = {name: dataclasses.replace(profile, tables=Tables()) for name, profile in PROFILES.items()}
PLAIN = {
    name: dataclasses.replace(bare, library=dataclasses.replace(bare.library, tuning='none'))
    for name, bare in BARE.items()
}
"""By one algorithm: where NCCL chooses, a faster link may have another protocol, with a latency of its own."""
SCHEDULE = """\
simpar: 1
cluster: {profile: h100-sxm-8, nodes: 2, devices: 2, links: {infiniband: 0.5}, stack: none}
workload:
  transformer: {layers: 2, hidden: 1024, heads: 8, vocab: 1024, sequence: 1024}
  batch: 8
  precision: bf16
plan: {tensor: 4}
"""


def message(size, operator='all_reduce'):
    return OpClass(operator, 'collective', operator, 'F', bytes=float(size), dtype='bf16', partition='p')


def cost(profile, ranks, op, **links):
    return ClusterCollectives(cluster(profile, nodes=2, links=links)).cost(op, ranks)


def names(profile):
    return [link.name for link in profile.links]


@pytest.mark.parametrize('name', ['h100-sxm-8', 'a100-sxm-8', 'ascend910b-8'])
@pytest.mark.parametrize('factor', [0.25, 0.5, 4.0])
@pytest.mark.parametrize('measured', [True, False])
def test_inside_a_node_the_transfer_goes_with_the_bandwidth_and_alpha_stays(name, factor, measured):
    """One level of links: seconds of a transfer are bytes / bandwidth, by formula and on measured curves.

    Between the curves of four and eight, α + transfer is interpolated, so that the transfer of six is only nearly so.
    """
    profile = (PROFILES if measured else PLAIN)[name]
    inner = profile.links[0].name
    for ranks, operator in ((2, 'all_reduce'), (4, 'all_gather'), (8, 'reduce_scatter'), (6, 'all_reduce')):
        before = cost(profile, range(ranks), message(64 * MIB, operator))
        after = cost(profile, range(ranks), message(64 * MIB, operator), **{inner: factor})
        assert after.transfer == pytest.approx(before.transfer / factor, rel=5e-3 if ranks == 6 else 1e-6)
        assert after.alpha == pytest.approx(before.alpha)
        assert after.grade == 'estimate'


@pytest.mark.parametrize('name', PROFILES)
def test_a_factor_of_1_is_the_profile_to_the_bit(name):
    profile = PROFILES[name]
    same = dict.fromkeys(names(profile), 1.0)
    for operator in OPERATORS:
        for ranks in (range(2), range(profile.devices), range(2 * profile.devices)):
            assert cost(profile, ranks, message(MIB, operator), **same) == cost(profile, ranks, message(MIB, operator))


def test_a_group_that_does_not_cross_the_link_does_not_notice():
    profile = PROFILES['h100-sxm-8']
    assert cost(profile, range(8), message(MIB), infiniband=0.1) == cost(profile, range(8), message(MIB))


def test_a_link_that_does_not_set_the_pace_does_not_matter():
    """Over two nodes the ring waits for InfiniBand, a ninth of NVLink; a faster NVLink leaves the transfer as it is."""
    profile = BARE['h100-sxm-8']
    ranks = (0, 8)
    before, after = cost(profile, ranks, message(64 * MIB)), cost(profile, ranks, message(64 * MIB), nvlink=8.0)
    assert after.transfer == before.transfer
    slow = cost(profile, ranks, message(64 * MIB), infiniband=0.5)
    assert slow.transfer == pytest.approx(2 * before.transfer)


def test_ascends_phases_add_up():
    """All-reduce of eight 910A: what crosses HCCS and what crosses PCIe follow one another, so they stretch apart."""
    profile = BARE['ascend910a-8']
    op = dataclasses.replace(message(64 * MIB), dtype='fp32')
    hccs, pcie = 2 * 16 * MIB / (30e9 * 0.333), 16 * MIB / (16e9 * 0.85)
    assert cost(profile, range(8), op).transfer == pytest.approx(hccs + pcie)
    assert cost(profile, range(8), op, pcie=0.5).transfer == pytest.approx(hccs + 2 * pcie)
    assert cost(profile, range(8), op, hccs=4.0).transfer == pytest.approx(hccs / 4 + pcie)


@given(
    measured=st.booleans(),
    name=st.sampled_from(sorted(PROFILES)),
    size=st.floats(1e3, 1e9),
    operator=st.sampled_from(OPERATORS),
    ranks=st.integers(2, 16),
    factors=st.lists(st.floats(0.01, 100), min_size=2, max_size=2).map(sorted),
    level=st.integers(0, 1),
)
def test_a_faster_link_makes_no_collective_slower(measured, name, size, operator, ranks, factors, level):
    profile = (PROFILES if measured else BARE)[name]
    names = [link.name for link in profile.links]
    link, op = names[min(level, len(names) - 1)], message(size, operator)
    slow, fast = (cost(profile, range(ranks), op, **{link: factor}) for factor in factors)
    assert fast.alpha + fast.transfer <= (slow.alpha + slow.transfer) * (1 + 1e-9)
    assert fast.best <= fast.alpha + fast.transfer + 1e-15


def test_a_changed_link_says_so(tmp_path, capsys):
    path = tmp_path / 'schedule.yaml'
    path.write_text(SCHEDULE, encoding='utf-8')
    note = 'links are not as in the profile: infiniband × 0.5; what rests on their bandwidth is an estimate'
    assert cli.main(['run', str(path)]) == 0
    out = capsys.readouterr().out
    assert f'Note: {note}' in out
    assert 'estimate' in out[out.index('Grades of the numbers') : out.index('Note')]
    answers = []
    for words in ([], ['--set', 'cluster.links={infiniband: 1}'], ['--set', 'cluster.links={}']):
        assert cli.main(['run', str(path), '--json', *words]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    changed, same, none = answers
    assert note in changed['notes']
    assert same == none
    assert [one for one in same['notes'] if not one.startswith('no optimizer')] == []
    assert changed['grades']['estimate'] > same['grades'].get('estimate', 0.0)
    assert changed['step'] > same['step']


def test_a_changed_link_says_so_in_the_price_of_a_collective():
    h100 = PROFILES['h100-sxm-8']
    assert 'scaled to changed links' in cost(h100, range(8), message(MIB), nvlink=0.5).why
    links = cluster(h100, links={'nvlink': 0.5}).topology.links
    assert links[0].bandwidth.grade == 'estimate'
    assert links[0].bandwidth.source.endswith('times 0.5, as the schedule asks')
    assert links[1] == h100.links[1]


def test_a_baseline_may_have_the_links_of_the_profile(tmp_path):
    path = tmp_path / 'schedule.yaml'
    path.write_text(SCHEDULE + 'against: {cluster.links.infiniband: 1}\n', encoding='utf-8')
    prediction = load_case(path).predict()
    assert prediction.gain < 0
    assert prediction.baseline.step == load_case(path, ['cluster.links={}', 'against={}']).predict().step


def test_an_unknown_link_is_named_with_those_that_there_are(tmp_path, capsys):
    path = tmp_path / 'schedule.yaml'
    path.write_text(SCHEDULE.replace('infiniband', 'infinband'), encoding='utf-8')
    assert cli.main(['run', str(path)]) == 2
    assert capsys.readouterr().err == (
        f'{path}:2: cluster.links.infinband: there is no such link; did you mean infiniband? '
        'links of h100-sxm-8: nvlink, infiniband\n'
    )
    with pytest.raises(ProfileError, match='no bandwidth'):
        cluster(PROFILES['h100-sxm-8'], links={'nvlink': 0.0})
