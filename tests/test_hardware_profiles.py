"""Profiles: every number has a source and a grade, what is wrong is named with file and line."""

import dataclasses
import gzip
import os
import shutil
from math import prod
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tables import load_table

from simpar import document, load_case, shipped
from simpar.errors import ProfileError
from simpar.hardware import GRADES, Figure, TableFile
from simpar.profiles import (
    COLUMNS,
    cluster,
    load_profile,
    profile_folder,
    profile_names,
    profile_path,
    read_table,
    shaped,
)

NAMES = [
    'a100-pcie-8', 'a100-sxm-40-8', 'a100-sxm-8', 'a800-sxm-8', 'ascend910a-8', 'ascend910b-280t-8',
    'ascend910b-313t-8', 'ascend910b-8', 'ascend910c-16', 'ascend950-8', 'ascend950dt-8', 'b200-sxm-8', 'b300-sxm-8',
    'cloudmatrix384', 'cpu-gloo', 'gb200-nvl72', 'gb300-nvl72', 'gh200-4', 'h100-pcie-8', 'h100-sxm-8',
    'h100-sxm-96-8', 'h200-sxm-8', 'h800-sxm-8', 'l40s-8', 'mi300x-8', 'mi325x-8', 'mi350x-8', 'mi355x-8',
    'rtx4090-8', 'v100-sxm2-8',
]  # fmt: skip


def figures(value):
    """Every number of a profile."""
    if isinstance(value, Figure):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from figures(part)
    elif isinstance(value, tuple):
        for part in value:
            yield from figures(part)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from figures(getattr(value, field.name))


def test_the_names_that_users_are_promised():
    assert profile_names() == NAMES


@pytest.mark.parametrize('name', NAMES)
def test_every_number_says_where_it_is_from_and_how_good_it_is(name):
    """Quantities are figures; bare numbers only count devices and members."""
    found = list(figures(load_profile(name)))
    assert len(found) > 20
    for figure in found:
        assert len(figure.source) >= 8, figure
        assert figure.grade in GRADES
    counts = {'format', 'devices', 'algorithm', 'since'}

    def bare(value, key):
        if isinstance(value, (Figure, str, bool)) or value is None:
            return []
        if isinstance(value, (int, float)):
            return [] if key in counts else [key]
        if isinstance(value, dict):
            return [found for part, inner in value.items() for found in bare(inner, part)]
        if isinstance(value, tuple):
            return [found for inner in value for found in bare(inner, key)]
        return [found for f in dataclasses.fields(value) for found in bare(getattr(value, f.name), f.name)]

    assert bare(load_profile(name), name) == []


@pytest.mark.parametrize('name', NAMES)
def test_its_tables_can_be_read_and_it_can_be_written_and_read_again(name, put):
    """What calibration does: change a profile, dump it, and have it read as the same."""
    profile = load_profile(name)
    for kind, columns in COLUMNS.items():
        table = getattr(profile.tables, kind)
        if table is not None:
            rows = read_table(table, kind)
            assert len(rows) > 100
            assert {len(row) for row in rows} == {len(columns)}
            assert read_table(table, kind) is rows, 'read once'
    path = put('profile.yaml', yaml.safe_dump(document.dump(profile), sort_keys=False))
    assert load_profile(path) == profile


def test_all_profiles_stay_small():
    assert sum(path.stat().st_size for path in profile_folder().rglob('*') if path.is_file()) < 1.5e6


def test_known_data_sheets():
    device = load_profile('h100-sxm-8').device
    assert device.matrix['bf16'].value == 989.4e12
    assert device.memory.bandwidth.value == 3.35e12
    hccs = load_profile('ascend910a-8').links[0]
    assert hccs.devices == 4
    assert hccs.rate == pytest.approx(10e9, rel=2e-3)


def test_found_in_a_wheel_and_in_a_checkout(tmp_path, monkeypatch):
    package = tmp_path / 'simpar'
    package.mkdir()
    monkeypatch.setattr(shipped, '__file__', str(package / 'shipped.py'))
    shutil.copytree(profile_source('cpu-gloo'), tmp_path / 'hw_profiles' / 'beside')
    assert profile_names() == ['beside']
    shutil.copytree(profile_source('cpu-gloo'), package / 'hw_profiles' / 'inside')
    assert profile_names() == ['inside']
    assert load_profile('inside').name == 'cpu-gloo'


def profile_source(name):
    return Path(__file__).parent.parent / 'hw_profiles' / name


def test_by_path_of_file_or_folder():
    path = profile_path('cpu-gloo')
    assert load_profile(path).name == load_profile(path.parent).name == 'cpu-gloo'


def test_an_unknown_name_lists_the_names_and_guesses():
    with pytest.raises(ProfileError) as error:
        load_profile('ascend910a')
    [problem] = error.value.problems
    assert error.value.exit_code == 2
    assert problem.instead.startswith('did you mean ascend910a-8? profiles: a100-pcie-8, a100-sxm-40-8, ')
    with pytest.raises(ProfileError, match='no such file'):
        load_profile('nowhere/profile.yaml')


def test_a_cluster_counts_its_devices():
    profile = load_profile('h100-sxm-8')
    assert cluster(profile, nodes=3).world == 24
    assert cluster(profile, nodes=2, devices=4).world == 8
    assert cluster(load_profile('cpu-gloo'), devices=8).world == 8


@pytest.mark.parametrize(
    ('arguments', 'says'),
    [
        ({'nodes': 0}, '0 nodes'),
        ({'devices': 16}, 'devices: 16 in a node of 8'),
        ({'slow': {8: 0.5}}, 'there is no rank 8'),
        ({'slow': {0: 0.0}}, 'is no speed'),
        ({'slow': {0: float('nan')}}, 'is no speed'),
    ],
)
def test_a_cluster_that_cannot_be(arguments, says):
    with pytest.raises(ProfileError, match=says):
        cluster(load_profile('h100-sxm-8'), **arguments)


def test_a_shaped_net_replaces_links_and_the_curves_of_another():
    measured = dataclasses.replace(load_profile('h100-sxm-8'), net='paced:1gbit,50us')
    kept = shaped(measured, 'paced:1gbit,50us', 125e6, 50e-6)
    dropped = shaped(measured, 'lab:1gbit', 125e6, 0.0)
    assert kept.tables.collective is not None
    assert dropped.tables.collective is None
    assert [(link.rate, link.latency.value) for link in kept.links] == [(125e6, 50e-6)]


# Broken profiles: (what to replace in cpu-gloo's text, by what, what the problem must say). Each names file and line.
BROKEN = load_table(__file__, 'BROKEN')


@pytest.mark.parametrize('case', BROKEN)
def test_a_broken_profile_names_file_and_line(case, put):
    old, new, says = BROKEN[case]
    text = profile_path('cpu-gloo').read_text(encoding='utf-8')
    assert old in text
    path = put('profile.yaml', text.replace(old, new, 1))
    with pytest.raises(ProfileError) as error:
        load_profile(path)
    assert error.value.exit_code == 2
    assert says in str(error.value)
    for problem in error.value.problems:
        name, _, line = problem.where.rpartition(':')
        assert name == str(path)
        assert line.isdigit()


BROKEN_TABLES = load_table(__file__, 'BROKEN_TABLES')


@pytest.mark.parametrize('case', BROKEN_TABLES)
@pytest.mark.parametrize('name', ['collective.csv', 'collective.csv.gz'])
def test_a_broken_table_names_file_and_line(case, name, tmp_path):
    text, says = BROKEN_TABLES[case]
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith('gz') else text.encode())
    table = dataclasses.replace(load_profile('h100-sxm-8').tables.collective, file=str(path))
    with pytest.raises(ProfileError) as error:
        read_table(table, 'collective')
    assert str(error.value).startswith(f'{path}{says}')


def test_the_profile_in_the_manual(tmp_path):
    manual = (Path(__file__).parent.parent / 'docs' / 'proofs' / 'profiles.md').read_text(encoding='utf-8')
    text = manual.partition('```yaml\n')[2].partition('```')[0]
    (tmp_path / 'profile.yaml').write_text(text, encoding='utf-8')
    (tmp_path / 'matmul.csv').write_text('m,n,k,seconds\n32,512,784,5e-4\n')
    (tmp_path / 'operator.csv').write_text('operator,phase,bytes,seconds\nrelu,F,131072,2e-5\n')
    (tmp_path / 'collective.csv').write_text('operator,ranks,nodes,bytes,seconds\nall_reduce,2,1,1048576,9e-3\n')
    profile = load_profile(tmp_path)
    assert profile.net == 'paced:1gbit,50us'
    assert read_table(profile.tables.operator, 'operator') == (('relu', 'F', 131072, 2e-5),)


# A profile that extends another says what differs; what it does not say is the other's


MINE = load_table(__file__, 'MINE')


def write(folder, text, name='mine.yaml'):
    path = folder / name
    path.write_text(text, encoding='utf-8')
    return path


def test_a_users_own_cluster_takes_six_lines(tmp_path):
    mine, base = load_profile(write(tmp_path, MINE)), load_profile('h100-sxm-8')
    assert [link.bandwidth.value for link in mine.links] == [base.links[0].bandwidth.value, 25e9]
    assert (mine.links[1].bandwidth.grade, mine.links[1].bandwidth.source) == ('estimate', 'as stated in mine.yaml')
    assert (mine.device, mine.library, mine.tables) == (base.device, base.library, base.tables)


def test_half_the_network_is_half_the_network(tmp_path):
    """The same step as with the link of the profile at half its rate, which simpar knows without such a file."""
    text = """
simpar: 1
cluster: {profile: %s, nodes: 2%s}
workload:
  transformer: {layers: 2, hidden: 4096, heads: 32, vocab: 32000, sequence: 2048}
  batch: 16
plan: {data: 16, zero: 2}
"""
    mine = load_case(text % (write(tmp_path, MINE), '')).predict().step
    half = load_case(text % ('h100-sxm-8', ', links: {infiniband: 0.5}')).predict().step
    whole = load_case(text % ('h100-sxm-8', '')).predict().step
    assert mine == pytest.approx(half, rel=1e-9)
    assert mine > whole


def test_tables_of_another_device_are_none_of_its(tmp_path):
    device = MINE.replace('links:', 'device: {matrix: {bf16: 400 TFLOP/s, fp64: null}}\nlinks:')
    found = load_profile(write(tmp_path, device))
    assert found.device.matrix['bf16'].value == 4e14
    assert 'fp64' not in found.device.matrix
    assert (found.device.sustained, found.device.multiprocessors) == (None, None)
    assert (found.tables.matmul, found.tables.attention) == (None, None)
    # Collectives inside a node are those of the links, which are the same.
    assert found.tables.collective == load_profile('h100-sxm-8').tables.collective
    inner = load_profile(write(tmp_path, MINE.replace('infiniband', 'nvlink'), 'inner.yaml'))
    assert inner.tables.collective is None
    # The A100's were measured between nodes, too.
    assert load_profile(write(tmp_path, MINE.replace('h100', 'a100'), 'a.yaml')).tables.collective is None


def test_profiles_that_extend_each_other_are_told(tmp_path):
    for name, other in (('mine.yaml', 'next.yaml'), ('next.yaml', 'mine.yaml')):
        write(tmp_path, MINE.replace('h100-sxm-8', other), name)
    with pytest.raises(ProfileError, match=r'next\.yaml:3: extends: a profile that extends itself'):
        load_profile(tmp_path / 'mine.yaml')


@pytest.mark.parametrize(
    ('text', 'told'),
    [
        (MINE.replace('infiniband', 'infinband'), 'mine.yaml:6: links.infinband: no such link; links of h100-sxm-8'),
        (MINE.replace('h100-sxm-8', 'mine.yaml'), 'mine.yaml:3: extends: a profile that extends itself; name another'),
        (MINE.replace('h100-sxm-8', 'h1000'), "unknown profile 'h1000'; did you mean h100-sxm-8"),
        (MINE.replace('25 GB/s', '25 GBB'), "mine.yaml:5: links: unknown unit 'GBB' of rate"),
        (MINE.replace('25 GB/s', '-1 GB/s'), 'mine.yaml:5: links: not a quantity of rate (got "-1 GB/s")'),
        (MINE + 'colour: red\n', 'mine.yaml:7: colour: unknown key'),
    ],
)
def test_what_is_wrong_is_told_at_its_line(tmp_path, text, told):
    with pytest.raises(ProfileError) as error:
        load_profile(write(tmp_path, text))
    assert told in '\n'.join(map(str, error.value.problems))


def test_a_profile_that_was_edited_is_read_again(tmp_path):
    """Also where another one extends it, and in the same instant and of the same size."""
    base, mine = tmp_path / 'base.yaml', tmp_path / 'mine.yaml'
    base.write_text('{extends: h100-sxm-8, name: base, devices: 4}')
    mine.write_text('{extends: base.yaml, name: mine}')
    first = load_profile(mine)
    assert first.devices == 4
    assert load_profile(mine) is first
    stamp = base.stat().st_mtime_ns
    base.write_text(base.read_text().replace('devices: 4', 'devices: 2'))
    os.utime(base, ns=(stamp, stamp))
    assert load_profile(mine).devices == 2
    assert load_profile(base).devices == 2


def test_a_table_that_was_edited_is_read_again(tmp_path):
    path = tmp_path / 'operator.csv'
    table = TableFile(file=str(path), source='here', grade='measured')
    path.write_text('operator,phase,bytes,seconds\nnorm,F,1024,1e-6\n')
    assert read_table(table, 'operator') == (('norm', 'F', 1024.0, 1e-6),)
    stamp = path.stat().st_mtime_ns
    path.write_text(path.read_text().replace('1e-6', '2e-6'))
    os.utime(path, ns=(stamp, stamp))
    assert read_table(table, 'operator') == (('norm', 'F', 1024.0, 2e-6),)


# Topology: the levels that a group crosses and the channels that it uses


def topology(name, nodes=1, **arguments):
    return cluster(load_profile(name), nodes, **arguments).topology


def test_a_group_in_one_node_crosses_its_switch():
    shape = topology('h100-sxm-8', 2).shape([0, 3, 5])
    assert (shape.members, shape.domains, shape.ranks, shape.nodes) == ((3, 1), (1, 1), 3, 1)
    assert shape.outermost == 0


def test_one_rank_of_each_node_crosses_the_network_alone():
    shape = topology('h100-sxm-8', 4).shape([1, 9, 17, 25])
    assert (shape.members, shape.domains, shape.nodes) == ((1, 4), (4, 1), 4)
    assert shape.outermost == 1


def test_eight_ascend_910a_are_two_groups_of_four():
    shape = topology('ascend910a-8', 2).shape(range(16))
    assert shape.members == (4, 2, 2)
    assert shape.domains == (4, 2, 1)


def test_ports_pairs_and_cards():
    gpus, ascend = topology('h100-sxm-8'), topology('ascend910a-8')
    assert gpus.channels([2, 0], 0) == ('nvlink/2', 'nvlink/0')
    assert ascend.channels([0, 1, 3], 0) == ('hccs/0-1', 'hccs/0-3', 'hccs/1-3')
    assert ascend.channels(range(8), 0) == tuple(
        f'hccs/{a}-{b}' for base in (0, 4) for a in range(base, base + 4) for b in range(a + 1, base + 4)
    ), 'no HCCS between the two groups'
    assert ascend.channels([0, 4], 0) == ()


@pytest.mark.parametrize('name', ['ascend910a-8', 'ascend910b-8', 'h100-sxm-8', 'cpu-gloo'])
@given(ranks=st.sets(st.integers(0, 31), min_size=1, max_size=32))
def test_the_levels_hold_the_whole_group(name, ranks):
    """Members multiply to at least the ranks, and to exactly them where every domain holds as many."""
    made = topology(name, 32 if name == 'cpu-gloo' else 4)
    shape = made.shape(sorted(ranks))
    assert prod(shape.members) >= len(ranks)
    assert shape.domains[-1] == 1, 'the outermost level joins all'
    assert all(outer <= inner for inner, outer in zip((len(ranks), *shape.domains), shape.domains, strict=False))
    whole = made.shape(range(32))
    assert prod(whole.members) == 32
