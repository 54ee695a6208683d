"""Records of several hosts, and of devices: links inside and across, launches, the clock that is kept."""

import itertools
import json

import pytest
from bench_record import LATENCY, RATE, collective, figures, record, ring

from simpar.calibrate import calibrate, load_record, write_profile
from simpar.cost.collective import ClusterCollectives
from simpar.errors import ScheduleError
from simpar.profiles import cluster, load_profile, load_stack
from simpar.program import OpClass

FAR_LATENCY, FAR_RATE = 300e-6, 0.2e9


def collectives():
    """Pairs of a host of two, pairs with a rank on each of two hosts, and all four ranks."""
    found = []
    for operator, power in itertools.product(('all_reduce', 'all_gather', 'reduce_scatter'), range(5, 13)):
        for ranks, hosts in ((2, 1), (2, 2), (4, 2)):
            law = {} if hosts == 1 else {'latency': FAR_LATENCY, 'rate': FAR_RATE}
            one = collective(operator, ranks, 4**power, ring(operator, ranks, 4**power, **law))
            found.append({**one, 'nodes': hosts, 'algorithm': 'ring'})
    return found


def at_once(times):
    """All-reduces of one rank a host, alone and both at once, which takes so many times as long."""
    seconds = ring('all_reduce', 2, 2**20, latency=FAR_LATENCY, rate=FAR_RATE)
    return [
        {'groups': groups, 'ranks': 2, 'bytes': 2**20, 'seconds': figures(seconds * (times if groups > 1 else 1))}
        for groups in (1, 2)
    ]


def written(tmp_path, **changes):
    file = tmp_path / 'record.json'
    file.write_text(json.dumps(record(**changes)))
    write_profile(tmp_path / 'mine.yaml', calibrate(load_record(file)))
    return load_profile(tmp_path / 'mine.yaml')


@pytest.mark.parametrize(('times', 'per'), [(1.05, 'device'), (1.9, 'node')])
def test_two_hosts_have_a_link_inside_and_one_across(tmp_path, times, per):
    profile = written(tmp_path, collective=collectives(), hosts=2, crossing=at_once(times))
    assert profile.devices == 2
    near, far = profile.links
    assert (near.name, near.devices, near.per) == ('host', 2, 'device')
    assert (far.name, far.devices, far.per) == ('network', 0, per)
    assert near.rate == pytest.approx(RATE, rel=1e-3)
    assert near.latency.value == pytest.approx(LATENCY, rel=1e-3)
    assert far.rate == pytest.approx(FAR_RATE, rel=1e-3)
    assert far.latency.value == pytest.approx(FAR_LATENCY, rel=1e-3)


def test_a_pair_across_hosts_is_priced_by_its_own_curve(tmp_path):
    two = cluster(written(tmp_path, collective=collectives(), hosts=2), nodes=2)
    size = 4**9
    op = OpClass(name='sum', kind='collective', operator='all_reduce', phase='F', bytes=float(size), partition='data')
    costs = [ClusterCollectives(two).cost(op, ranks) for ranks in ((0, 1), (0, 2))]
    near, far = (cost.alpha + cost.transfer for cost in costs)
    assert near == pytest.approx(ring('all_reduce', 2, size), rel=1e-3)
    assert far == pytest.approx(ring('all_reduce', 2, size, latency=FAR_LATENCY, rate=FAR_RATE), rel=1e-3)


def test_a_device_has_launches_a_stack_and_the_clock_that_it_keeps(tmp_path):
    launches = [
        {'mode': mode, 'phase': phase, 'op': figures(seconds), 'step': figures(1e-4)}
        for mode, of in (('eager', (20e-6, 30e-6)), ('graph', (2e-6, 2e-6)))
        for phase, seconds in zip('FI', of, strict=True)
    ]
    sustained = {'size': 8192, 'seconds': 20.0, 'early': figures(0.9), 'late': figures(1.0)}
    of = {'device': 'cuda', 'dtype': 'bf16', 'library': 'nccl', 'machine': 'a GPU'}
    profile = written(tmp_path, launches=launches, sustained=sustained, **of)
    assert profile.host.issue['eager'].value == pytest.approx(1.02 * 25e-6)
    assert profile.host.issue['graph'].value == pytest.approx(1.02 * 2e-6)
    assert profile.device.sustained.value == pytest.approx(0.9)
    assert (set(profile.device.matrix), profile.library.name, profile.library.exchange) == ({'bf16'}, 'NCCL', None)
    assert profile.tables.matmul.dtype == 'bf16'
    stack = load_stack(str(tmp_path / 'mine.stack.yaml'))
    assert stack.host.forward.value == pytest.approx(1.02 * 20e-6)
    assert stack.host.backward.value == pytest.approx(1.02 * 30e-6)


def test_hosts_with_unlike_numbers_of_ranks_are_no_record(tmp_path):
    with pytest.raises(ScheduleError, match='4 ranks are not as many on each of 3'):
        written(tmp_path, hosts=3)
