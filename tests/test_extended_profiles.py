"""A profile that extends another says what differs; what it does not say is the other's."""

import os

import pytest

from simpar.case import load_case
from simpar.errors import ProfileError
from simpar.hardware import TableFile
from simpar.profiles import load_profile, read_table

MINE = """\
format: 1
name: mine
extends: h100-sxm-8
description: two servers of my own with 200 Gb/s for each GPU
links:
  infiniband: {bandwidth: 25 GB/s}
"""


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


def test_a_profile_beside_it_is_extended_by_its_path(tmp_path):
    write(tmp_path, MINE)
    text = MINE.replace('h100-sxm-8', 'mine.yaml').replace('name: mine', 'name: next').replace('25', '12.5')
    assert load_profile(write(tmp_path, text, 'next.yaml')).links[1].bandwidth.value == 12.5e9


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
