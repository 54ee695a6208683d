"""Calibration: known laws are found again, doubtful numbers are said to be so, and broken records are refused."""

import itertools
import json
import sys

import bench_record as records
import numpy as np
import pytest
from bench_record import LATENCY, RATE, collective, figures, record, ring
from every import draws
from hypothesis import given
from hypothesis import strategies as st

import simpar.commands.recorded as command
from simpar.calibrate import calibrate, load_record, write_profile
from simpar.calibrate.figures import relative_fit
from simpar.cli import main
from simpar.cost.collective import ClusterCollectives
from simpar.cost.compute import DeviceCompute
from simpar.errors import ScheduleError
from simpar.profiles import cluster, load_profile, load_stack
from simpar.program import OpClass
from tests.pooled_records import pooled


def calibrated(tmp_path, content):
    file = tmp_path / 'bench.json'
    file.write_text(json.dumps(content))
    return calibrate(load_record(file))


def written(tmp_path, content):
    """The profile that is written of a record, read again."""
    path = tmp_path / 'mine.yaml'
    write_profile(path, calibrated(tmp_path, content))
    return load_profile(path)


def op(operator, **dims):
    m, n, k = dims['m'], dims['n'], dims['k']
    return OpClass(
        'op', 'compute', operator, 'F', dims=dims, flops=2.0 * m * n * k, bytes=4.0 * (m * n + n * k + m * k)
    )


def message(operator, size):
    return OpClass('op', 'collective', operator, 'F', bytes=float(size), partition='all')


# what is known is found


def test_known_laws_are_found_again(tmp_path):
    number = {key: number.value for key, number in calibrated(tmp_path, records.record()).numbers.items()}
    assert number['device.vector.fp32'] * number['device.matmul.share'] == pytest.approx(records.PEAK, rel=1e-6)
    assert number['device.kernel.matrix'] == pytest.approx(records.KERNEL, rel=1e-5)
    assert number['device.matmul.half_area'] == pytest.approx(records.AREA, rel=1e-5)
    assert number['device.matmul.half_depth'] == pytest.approx(records.DEPTH, rel=1e-5)
    assert number['device.kernel.memory'] == pytest.approx(records.STREAM_START, rel=1e-5)
    assert number['device.memory.bandwidth'] * number['device.memory.share'] == pytest.approx(
        10**7 / (records.STREAM_START + 10**7 / records.STREAM_RATE), rel=1e-2
    )
    assert number['device.attention.backward'] == pytest.approx(records.BACKWARD)
    assert number['links.bandwidth'] == pytest.approx(records.RATE, rel=1e-6)
    assert number['links.latency'] == pytest.approx(records.LATENCY, rel=1e-6)
    assert number['library.start'] == pytest.approx(records.START, rel=1e-6)
    assert number['slow_down.matrix'] == pytest.approx(1 / 1.25)
    assert number['slow_down.memory'] == pytest.approx(1 / 2.0)
    assert number['slow_down.collective'] == pytest.approx(1 / 2.0)  # between 1.6 and 2.5, as factors go


@draws(40)
@given(start=st.floats(1e-6, 1e-3), latency=st.floats(1e-6, 1e-3), rate=st.floats(1e7, 1e11))
def test_any_latency_and_bandwidth_are_found_again(tmp_path_factory, start, latency, rate):
    law = records.collectives(lambda *what: records.ring(*what, start=start, latency=latency, rate=rate))
    number = calibrated(tmp_path_factory.mktemp('law'), records.record(collective=law)).numbers
    assert number['links.latency'].value == pytest.approx(latency, rel=1e-4)
    assert number['library.start'].value == pytest.approx(start, rel=1e-4)
    assert number['links.bandwidth'].value == pytest.approx(rate, rel=1e-4)


def test_the_profile_prices_what_was_measured_and_what_lies_between(tmp_path):
    profile = written(tmp_path, records.record())
    compute, network = DeviceCompute(profile), ClusterCollectives(cluster(profile))
    for m, n, k in ((8, 32, 512), (512, 512, 512)):
        cost = compute.seconds(op('matmul', m=m, n=n, k=k))
        assert cost.seconds == pytest.approx(records.product(m, n, k), rel=1e-4)
        assert cost.grade == 'measured'
    assert compute.seconds(op('matmul', m=64, n=200, k=300)).seconds == pytest.approx(
        records.product(64, 200, 300), rel=0.2
    )
    for operator, ranks, size in (('all_reduce', 4, 4**8), ('reduce_scatter', 2, 4**11), ('all_gather', 4, 4**12)):
        cost = network.cost(message(operator, size), range(ranks))
        assert cost.alpha + cost.transfer == pytest.approx(records.ring(operator, ranks, size), rel=1e-4)
    cost = network.cost(message('all_reduce', 3_000_000), range(2))
    assert cost.alpha + cost.transfer == pytest.approx(records.ring('all_reduce', 2, 3_000_000), rel=0.1)


def test_kernels_count_by_their_cpu_time_and_collectives_by_the_clock(tmp_path):
    busy = records.record(
        matmul=[records.row(1e-3, wall=3.0, m=8, n=8, k=8, phase='F')],
        collective=[
            records.row(1e-3, wall=3.0, operator='all_reduce', ranks=2, nodes=1, bytes=10**6, algorithm='ring')
        ],
    )
    tables = calibrated(tmp_path, busy).tables
    assert tables['matmul'].lines[0].seconds == 1e-3
    assert tables['collective'].lines[0].seconds == 3e-3


# what is doubtful is said to be so


def spread_out(rows, which, cv):
    return [{**one, 'cpu': {**one['cpu'], 'cv': cv}} if which(one) else one for one in rows]


def test_a_line_that_varies_is_an_estimate_and_no_other(tmp_path):
    noisy = spread_out(
        records.products(), lambda one: (one['m'], one['n'], one['k'], one['phase']) == (8, 32, 128, 'W'), 0.3
    )
    found = calibrated(tmp_path, records.record(matmul=noisy))
    assert list(found.flags) == ['matmul 8×32×128: varies by 30%']
    (line,) = found.tables['matmul'].flagged
    assert (line.key, line.grade) == ((8, 32, 128), 'estimate')
    assert found.tables['matmul'].grade == 'measured'


def test_the_written_profile_carries_grades_and_words(tmp_path):
    noisy = records.record(
        matmul=spread_out(records.products(), lambda one: True, 0.5),
        overlap=[records.stretch('matrix', 'all-reduces', 2, 0.4)],
    )
    profile = written(tmp_path, noisy)
    text = (tmp_path / 'mine.yaml').read_text()
    assert profile.tables.matmul.grade == 'estimate'
    assert profile.tables.collective.grade == 'measured'
    assert profile.slow_down.matrix.grade == profile.slow_down.memory.grade == 'estimate'
    assert 'matmul table: 64 of 64 lines are uncertain' in text
    assert 'beside all-reduces varies by 40%' in profile.slow_down.matrix.source
    lines = (tmp_path / 'mine.matmul.csv').read_text().splitlines()
    assert lines[1].startswith('m,n,k,seconds,grade,n,median,p10,iqr,cv,F,I,W,flags')
    assert all(',estimate,' in line and line.endswith('varies by 50%') for line in lines[2:])


def test_more_work_in_less_time_is_doubtful(tmp_path):
    rows = records.products()
    for one in rows:
        if (one['m'], one['n'], one['k']) == (512, 512, 512):
            one['cpu']['p10'] /= 8
    (line,) = calibrated(tmp_path, records.record(matmul=rows)).tables['matmul'].flagged
    assert line.key == (512, 512, 512)
    assert line.flags == ('quicker than 128×512×512',)


def test_collectives_that_are_not_latency_and_bandwidth_are_doubtful(tmp_path):
    bent = records.collectives(lambda operator, ranks, size: 1e-6 * size**0.5)
    number = calibrated(tmp_path, records.record(collective=bent)).numbers
    for key in ('links.bandwidth', 'links.latency', 'library.start'):
        assert number[key].grade == 'estimate'
        assert 'the fit misses' in number[key].flags[0]


def test_overlap_that_was_not_seen_is_a_guess_and_a_speed_up_is_doubted(tmp_path):
    overlap = [
        {'what': 'matrix', 'beside': 'all-reduces', 'factor': None},
        records.stretch('memory', 'all-reduces', 0.5),
    ]
    number = calibrated(tmp_path, records.record(overlap=overlap)).numbers
    assert (number['slow_down.matrix'].value, number['slow_down.matrix'].grade) == (0.8, 'estimate')
    assert 'a guess' in number['slow_down.matrix'].source
    assert (number['slow_down.memory'].value, number['slow_down.memory'].grade) == (1.0, 'estimate')
    assert '2.00 times as quick' in number['slow_down.memory'].flags[0]


@draws(40)
@given(data=st.data())
def test_a_fit_is_never_negative_and_exact_where_it_can_be(data):
    floats = st.floats(0.1, 10.0)
    truth = np.array(data.draw(st.lists(floats, min_size=3, max_size=3)))
    terms = np.array(data.draw(st.lists(st.lists(floats, min_size=3, max_size=3), min_size=6, max_size=6)))
    noise = np.array(data.draw(st.lists(st.floats(0.2, 5.0), min_size=6, max_size=6)))
    fit = relative_fit(terms, noise * (terms @ truth))
    assert min(fit.values) >= 0
    assert np.allclose(fit.residuals, terms @ np.array(fit.values) / (noise * (terms @ truth)) - 1)
    assert all(fit.values[place] == 0 for place in fit.negative)
    assert relative_fit(terms, terms @ truth).worst < 1e-6


# messages of emulated compute


def emulated(law=records.ring, **more):
    """A record of messages alone; sends and exchanges beside rings."""
    rows = records.collectives(law)
    rows += [records.collective('send', 2, 4**power, law('all_gather', 2, 2 * 4**power)) for power in range(4, 13)]
    rows = [{**row, 'algorithm': 'direct'} if row['operator'] == 'send' else row for row in rows]
    return {**records.record(), 'compute': 'emulated', 'tables': {'collective': rows}, 'overlap': [], **more}


@pytest.mark.parametrize(('net', 'middle'), [('none', 1.0), ('paced:1Gbit/s,50us', 1.02)])
def test_a_paced_message_counts_with_its_median_and_one_that_wants_the_processor_with_a_quick_repeat(
    tmp_path, net, middle
):
    network = ClusterCollectives(cluster(written(tmp_path, {**records.record(), 'net': net})))
    size = 4**9
    cost = network.cost(OpClass('op', 'collective', 'all_gather', 'F', bytes=float(size), partition='all'), (0, 1))
    assert cost.alpha + cost.transfer == pytest.approx(middle * records.ring('all_gather', 2, size), rel=1e-3)


def test_messages_alone_make_a_profile_with_the_device_that_emulated_compute_takes_as_given(tmp_path):
    profile = written(tmp_path, emulated(net='netns:1Gbit/s'))
    given = load_profile('cpu-gloo')
    assert (profile.device, profile.host) == (given.device, given.host)
    assert profile.slow_down.collective.value == 1.0
    network = ClusterCollectives(cluster(profile))
    for operator in ('send', 'recv'):
        pair = OpClass('op', operator, operator, 'F', bytes=4.0**9, partition='all')
        cost = network.cost(pair, (0, 1))
        # The usual time counts: a step waits for many messages.
        assert cost.alpha + cost.transfer == pytest.approx(1.02 * records.ring('all_gather', 2, 2 * 4**9), rel=1e-4)


def test_all_reduces_have_a_curve_on_each_side_of_the_size_at_which_their_algorithm_changes(tmp_path):
    def law(operator, ranks, size):
        exchanged = operator == 'all_reduce' and size <= 4096
        return records.LATENCY + (ranks - 1) * size / records.RATE if exchanged else records.ring(operator, ranks, size)

    profile = written(tmp_path, emulated(law))
    assert profile.library.exchange.value == 4096
    network = ClusterCollectives(cluster(profile))
    cost = network.cost(message('all_reduce', 4000), range(4))
    assert cost.alpha + cost.transfer == pytest.approx(1.02 * law('all_reduce', 4, 4000), rel=0.05)
    cost = network.cost(message('all_reduce', 16384), range(4))
    assert cost.alpha + cost.transfer == pytest.approx(1.02 * law('all_reduce', 4, 16384), rel=1e-4)
    # Its latency is that of six steps, though its quickest message is longer.
    assert cost.alpha == pytest.approx(1.02 * (records.START + 6 * records.LATENCY), rel=0.05)


@pytest.mark.parametrize(('carried', 'flagged'), [(1.0, False), (0.7, True)])
def test_several_streams_that_carry_less_than_one_are_told(tmp_path, carried, flagged):
    seconds = 2 * 4**12 / (carried * records.RATE)
    streams = [{'streams': 2, 'ranks': 2, 'bytes': 4**12, 'seconds': records.figures(seconds)}]
    number = calibrated(tmp_path, records.record(streams=streams)).numbers['links.bandwidth']
    assert any('streams at once' in flag for flag in number.flags) == flagged


# broken records


def broken(**changes):
    return json.dumps(records.record(**changes))


WHOLE = json.dumps(records.record())
BROKEN = {
    'no JSON': 'matmul: 3',
    'cut short': WHOLE[: len(WHOLE) // 2],
    'another format': broken(format='simpar trace 1'),
    'no rows': broken(matmul=[]),
    'no tables': json.dumps({**records.record(), 'tables': {}}),
    'no time': broken(matmul=[{'m': 1, 'n': 1, 'k': 1, 'phase': 'F'}]),
    'infinity': broken(matmul=[records.row(float('inf'), m=8, n=8, k=8, phase='F')]),
    'a time below zero': broken(collective=[records.collective('all_reduce', 2, 10**6, -1.0)]),
    'NaN': WHOLE.replace('"cv": 0.02', '"cv": NaN', 1),
    'an unknown collective': broken(collective=[records.collective('broadcast', 2, 10**6, 1.0)]),
    'one rank': broken(ranks=1),
    'everything wrong': broken(matmul=[records.row(-1.0, m=0, n=0, k=0, phase='X')] * 50),
}


@pytest.mark.parametrize('text', BROKEN.values(), ids=BROKEN)
def test_a_broken_record_is_refused_on_one_screen(put, text):
    file = put('bench.json', text)
    with pytest.raises(ScheduleError) as refused:
        load_record(file)
    lines = str(refused.value).splitlines()
    assert 0 < len(lines) <= 20
    assert all(line.startswith(str(file)) for line in lines)


@draws(40)
@given(place=st.integers(0, len(WHOLE) - 1), junk=st.sampled_from(['', '0', '-', '"', '}', 'null', '1e999', '\x00']))
def test_a_damaged_record_is_refused_or_still_makes_a_profile(tmp_path_factory, place, junk):
    folder = tmp_path_factory.mktemp('damaged')
    file = folder / 'bench.json'
    file.write_text(WHOLE[:place] + junk + WHOLE[place + 1 :])
    try:
        found = load_record(file)
    except ScheduleError:
        return
    write_profile(folder / 'mine.yaml', calibrate(found))
    load_profile(folder / 'mine.yaml')


# the verb


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """Stands in for the bench: writes a record, or ends with an exit code."""

    def stand_in(text='', code=0):
        script = (
            'import pathlib, sys\n'
            f'pathlib.Path(sys.argv[sys.argv.index("--output") + 1]).write_text({text!r})\n'
            f'sys.exit({code})'
        )
        monkeypatch.setattr(command, 'BENCH', (sys.executable, '-c', script))
        monkeypatch.setattr(command.common, 'need_torch', lambda: None)

    return stand_in


def test_the_verb_writes_a_profile_and_says_what_it_found(bench, tmp_path, printed):
    bench(WHOLE)
    path = tmp_path / 'new' / 'profile.yaml'
    shown = printed('calibrate', path)
    assert 'network          1.5 GB/s, 100 us a step and 20 us a collective' in shown
    assert f'wrote {path}' in shown
    assert load_profile(path.parent).name == 'new'


def test_the_verb_passes_the_bench_failure_on_and_writes_nothing(bench, tmp_path):
    bench(code=5)
    assert main(['calibrate', str(tmp_path / 'mine.yaml')]) == 5
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('flags', [['mine.txt'], ['.'], ['mine.yaml', '--ranks', '1']])
def test_the_verb_refuses_wrong_use_before_it_measures(flags, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    assert 0 < len(refused('calibrate', *flags).splitlines()) <= 3


def test_without_torch_the_verb_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    assert main(['calibrate', str(tmp_path / 'mine.yaml')]) == 5
    assert (
        capsys.readouterr().err == 'torch is not installed; install the extra: pip install "simpar-parallel[torch]"\n'
    )


# Records of several hosts, and of devices: links inside and across, launches, the clock that is kept


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


def written_of_hosts(tmp_path, **changes):
    file = tmp_path / 'record.json'
    file.write_text(json.dumps(record(**changes)))
    write_profile(tmp_path / 'mine.yaml', calibrate(load_record(file)))
    return load_profile(tmp_path / 'mine.yaml')


@pytest.mark.parametrize(('times', 'per'), [(1.05, 'device'), (1.9, 'node')])
def test_two_hosts_have_a_link_inside_and_one_across(tmp_path, times, per):
    profile = written_of_hosts(tmp_path, collective=collectives(), hosts=2, crossing=at_once(times))
    assert profile.devices == 2
    near, far = profile.links
    assert (near.name, near.devices, near.per) == ('host', 2, 'device')
    assert (far.name, far.devices, far.per) == ('network', 0, per)
    assert near.rate == pytest.approx(RATE, rel=1e-3)
    assert near.latency.value == pytest.approx(LATENCY, rel=1e-3)
    assert far.rate == pytest.approx(FAR_RATE, rel=1e-3)
    assert far.latency.value == pytest.approx(FAR_LATENCY, rel=1e-3)


def test_a_pair_across_hosts_is_priced_by_its_own_curve(tmp_path):
    two = cluster(written_of_hosts(tmp_path, collective=collectives(), hosts=2), nodes=2)
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
    profile = written_of_hosts(tmp_path, launches=launches, sustained=sustained, **of)
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
        written_of_hosts(tmp_path, hosts=3)


# Records of several benches, as one


def record_of_sizes(p10, factor, *, size=4096, notes=()):
    seconds = {'n': 20, 'median': 2 * p10, 'p10': p10, 'iqr': p10, 'cv': 0.1}
    row = {'bytes': size, 'operator': 'all_reduce', 'wall': seconds, 'quiet': 0.9}
    beside = {'what': 'matmul', 'beside': 'all_reduce', 'factor': {**seconds, 'median': factor}}
    return {'ranks': 2, 'tables': {'collective': [row]}, 'overlap': [beside], 'cpu': None, 'notes': [*notes]}


def test_of_several_benches_the_quiet_one_counts_and_the_middle_slow_down():
    found = pooled(
        [
            record_of_sizes(3e-3, 2.0, notes=['busy']),
            record_of_sizes(1e-3, 2.2, notes=['busy']),
            record_of_sizes(2e-3, 3.0),
        ]
    )
    seconds = found['tables']['collective'][0]['wall']
    assert seconds['n'] == 60
    assert seconds['p10'] == pytest.approx(1.2e-3)
    assert seconds['cv'] == 0.1
    assert found['overlap'][0]['factor']['median'] == 2.2
    assert found['notes'] == ['busy']
    assert (found['ranks'], found['cpu']) == (2, None)


def test_one_bench_says_what_it_said():
    assert pooled([record_of_sizes(1e-3, 2.0)]) == record_of_sizes(1e-3, 2.0)


def test_what_one_bench_has_no_repeats_of_is_told_by_the_others():
    without = record_of_sizes(1e-3, 2.0)
    without['tables']['collective'][0]['wall'] = None
    assert pooled([without, record_of_sizes(1e-3, 2.0)])['tables'] == record_of_sizes(1e-3, 2.0)['tables']


def test_benches_of_different_sizes_are_not_one():
    with pytest.raises(ValueError, match='4096'):
        pooled([record_of_sizes(1e-3, 2.0), record_of_sizes(1e-3, 2.0, size=8192)])
