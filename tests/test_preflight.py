"""Before a run on several hosts: who is missing, what hosts lack, who does not reach whom. Hosts are threads here."""

import threading
import time
from dataclasses import replace
from functools import partial

import torch.distributed as dist
from at_once import at_once

from executor.cluster import Launch, meeting
from executor.cluster.meeting import Card
from executor.devices.open import Survey
from executor.host import Host, Process, free_memory, this_host
from executor.ranks import watchdog
from simpar.case import load_case
from simpar.errors import RunFailed

GB = 10**9


def cards(*names, free=8 * GB, cores=4):
    return [
        Card({'seed': '0'}, Process(f'kernel of {name}', 1), '127.0.0.1', host=Host(name, cores, free))
        for name in names
    ]


def each_in_a_thread(jobs):
    """What each job gave, or how it failed."""

    def run(job):
        try:
            return job()
        except RunFailed as error:
            return str(error)

    return at_once(*(partial(run, job) for job in jobs))


def places(of, *ranks):
    return meeting.places_of(of, ranks or [(index,) for index in range(len(of))])


def test_missing_ranks_are_named_with_their_hosts():
    store, begin = dist.HashStore(), time.perf_counter()
    hosts = ('node0', 'node0', 'node1', 'node1', 'node2')

    def come(rank):
        return meeting.shake_hands(store, Launch('a test', rank, 5, 'localhost', 0, hosts=hosts), {}, 0.3)

    here = this_host().name
    told = each_in_a_thread([lambda: come(0), lambda: come(4)])
    assert told == [f'ranks 1 to 3 (on node0, node1) did not come within 0.3 s; here: ranks 0, 4 on {here}'] * 2
    assert time.perf_counter() - begin < 5


def test_memory_of_a_rank_is_that_of_its_shards(tmp_path):
    """Two products of n × n in fp64 sharded over four ranks: their weights, gradients and momentum, and the process."""
    size = 2048
    text = f"""
simpar: 1
cluster: {{profile: cpu-gloo, devices: 4}}
workload:
  network: [{{dense: {{in: {size}, out: {size}, bias: false}}}}, {{dense: {{in: {size}, out: {size}, bias: false}}}}]
  batch: 4
  loss: mse
  precision: fp32
  optimizer: {{momentum: {{learning_rate: 0.1, momentum: 0.9}}}}
plan: {{data: 4, zero: 3}}
"""
    full = meeting.bytes_of_ranks(load_case(text).program, 'fp64')
    shards = 3 * 2 * size * size * 8 / 4
    # Beside them, at most both gathered weights and one full gradient.
    assert shards <= full[0] - meeting.RANK_BYTES <= shards + 3.5 * size * size * 8
    assert full == full[:1] * 4
    half = meeting.bytes_of_ranks(load_case(text).program, '')
    assert 1.8 < (full[0] - meeting.RANK_BYTES) / (half[0] - meeting.RANK_BYTES) <= 2


def test_hosts_that_reach_each_other_pass_and_one_that_does_not_is_named(monkeypatch):
    of = cards('a', 'b', 'c')
    monkeypatch.setattr(meeting, 'address_towards', lambda *_: '127.0.0.1')

    def check():
        store = dist.HashStore()
        jobs = [lambda own=own: meeting.preflight(store, own, of, places(of), [0] * 3) for own in range(3)]
        return each_in_a_thread(jobs)

    assert check() == [()] * 3
    knock = meeting.knock
    # A firewall before b: its door is closed to all others.
    doors = {}
    monkeypatch.setattr(meeting, 'REACH', 0.2)

    def door(address, opened=meeting.door):
        found = opened(address)
        if threading.current_thread().name.startswith('b'):
            doors[found.getsockname()[1]] = True
        return found

    def behind(address, port, seconds):
        return 'no answer' if port in doors else knock(address, port, seconds)

    monkeypatch.setattr(meeting, 'door', door)
    monkeypatch.setattr(meeting, 'knock', behind)
    store = dist.HashStore()

    def of_b():
        threading.current_thread().name = 'b'
        return meeting.preflight(store, 1, of, places(of), [0] * 3)

    jobs = [lambda: meeting.preflight(store, 0, of, places(of), [0] * 3), of_b,
            lambda: meeting.preflight(store, 2, of, places(of), [0] * 3)]  # fmt: skip
    told = each_in_a_thread(jobs)
    assert told[0] == told[1] == told[2]
    lines = told[0].splitlines()
    assert [line.partition(' at ')[0] for line in lines] == [
        'a (rank 0) cannot reach b (rank 1)',
        'c (rank 2) cannot reach b (rank 1)',
    ]


def test_a_door_that_is_closed_is_not_reached():
    door = meeting.door('127.0.0.1')
    port = door.getsockname()[1]
    assert meeting.knock('127.0.0.1', port, 1.0) == ''
    door.close()
    assert meeting.knock('127.0.0.1', port, 0.3) == 'Connection refused'


def test_a_rank_that_dies_while_others_prepare_is_named(monkeypatch):
    """Rank 1 gives signs of life, then none; rank 2 is through and may be silent."""
    monkeypatch.setattr(watchdog, 'PERIOD', 0.02)
    monkeypatch.setattr(watchdog, 'LOST', 0.4)
    store, told = dist.HashStore(), []
    store.set('simpar/ready/2', b'1')
    with watchdog.Pulse(lambda: store, 1, 'abc', 'ready', told.append):
        time.sleep(0.1)
    with watchdog.Pulse(lambda: store, 0, 'abc', 'ready', told.append):
        time.sleep(0.2)
        assert told == []
        time.sleep(0.6)
    assert told == ['rank 1 on b died or lost the network outside of a step']


def test_free_memory_is_what_kernel_and_control_group_leave(tmp_path, put):
    kernel = put('meminfo', 'MemTotal: 900 kB\nMemAvailable: 700 kB\n')
    assert free_memory(kernel, tmp_path) == 700 * 1024
    (tmp_path / 'memory.max').write_text('500000\n')
    (tmp_path / 'memory.current').write_text('100000\n')
    assert free_memory(kernel, tmp_path) == 400_000
    (tmp_path / 'memory.max').write_text('max\n')
    assert free_memory(kernel, tmp_path) == 700 * 1024
    assert free_memory(tmp_path / 'none', tmp_path / 'none') == 0


def on_devices(*surveys):
    of = [replace(card, devices=survey) for card, survey in zip(cards('a', 'b'), surveys, strict=True)]
    return places(of, (0, 1), (2, 3))


def test_devices_that_are_missing_too_few_or_full_are_named():
    def told(*surveys):
        return meeting.wrong_devices(on_devices(*surveys), [3 * GB] * 4)

    two = Survey('cuda', count=2, free=(8 * GB, 8 * GB))
    assert told(Survey(), Survey()) == told(two, two) == []
    (line,) = told(two, Survey('cuda', lacking='torch 9 sees no device of kind cuda'))
    assert line.startswith('b (ranks 2, 3): torch 9 sees no device of kind cuda; install')
    (line,) = told(two, replace(two, free=(8 * GB, 2 * GB)))
    assert line.startswith('b (ranks 2, 3) needs about 3 GB on cuda:1, but 2 GB are free')
    # One device for two ranks: gloo goes through the host, unless the other host would go another way.
    one = Survey('cuda', count=1, free=(8 * GB,))
    assert told(one, one) == []
    assert meeting.shared(on_devices(one, one))[0].startswith('more ranks than devices: a (ranks 0, 1) has 1; b')
    assert 'a (ranks 0, 1) has 1 of cuda for 2 ranks' in told(one, two)[0]
    assert len(told(replace(one, native=True), replace(one, native=True))) == 2
    apart = meeting.shared(on_devices(replace(two, driver='550'), replace(two, driver='570')))
    assert apart == ('drivers of cuda differ: 550 on a (ranks 0, 1), 570 on b (ranks 2, 3)',)


def test_a_card_carries_what_its_host_has_of_devices(monkeypatch):
    """As torch tells it, versions among what all must agree on; a device that is not there is said, and not raised."""
    from executor import virtual
    from executor.devices.open import survey

    monkeypatch.setattr(virtual, 'mem_get_info', lambda index: (index, 99), raising=False)
    monkeypatch.setattr('torch._C._virtual_getDriverVersion', lambda: 12080, raising=False)
    monkeypatch.setattr('torch.version.virtual', '12.8', raising=False)
    found = survey('virtual', '')
    assert (found.count, found.free[:3], found.driver) == (64, (0, 1, 2), '12080')
    assert found.versions == {'runtime of virtual': '12.8'}
    card = replace(cards('a')[0], devices=found)
    assert Card.read(card.packed()) == card
    assert survey('cpu', '') == Survey()
    assert 'needs torch_npu' in survey('npu', '').lacking
