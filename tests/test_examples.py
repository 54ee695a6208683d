"""The examples of optimizer parallelism: what they promise in their first lines, and what their tables must show."""

import time

import pytest
from every import EVERY, some
from example_sweeps import ROOT, answer

from simpar import load_case

EXAMPLES = ROOT / 'examples'
H100, ASCEND, PAYS = 'transformer_h100_7b.yaml', 'transformer_910b_7b.yaml', 'when_sharding_pays.yaml'
LEVEL = {H100: 'plan.zero', ASCEND: 'plan.hsdp'}
SECONDS = 60
"""A sweep takes 4 to 8 alone; this holds on a busy machine."""


def by_choices(name, sweeps=(), sets=()):
    """Rows of a table by level, recomputation and fusion."""
    begin = time.process_time()
    found = answer(f'examples/{name}', sweeps, sets)
    assert time.process_time() - begin < SECONDS
    rows = [(*map(str, result.settings.values()), result.outcome) for result in found.results]
    assert found.keys == (LEVEL[name], 'plan.recompute', 'plan.fusion')
    return {tuple(row[:3]): row[3] for row in rows}


@pytest.fixture(scope='module', params=[H100, ASCEND])
def table(request):
    """As the framework of the devices runs it."""
    return by_choices(request.param)


@pytest.fixture(scope='module', params=some([H100, ASCEND], 2))
def devices(request):
    """What devices alone do, in the same plans, or in the first and the last of them."""
    few = f'{LEVEL[request.param]}={"0,3" if request.param == H100 else "off,level3"}', 'plan.recompute=none,full'
    sweeps = () if EVERY == 1 else (*few, 'plan.fusion=layer,auto,all')
    return by_choices(request.param, sweeps, ('cluster.stack=none',))


def parts(table):
    """The values of each key, in the order given."""
    return [list(dict.fromkeys(row[place] for row in table)) for place in range(3)]


def test_whole_states_do_not_fit_and_cut_ones_do(table):
    """6.7 billion weights of 16 bytes are 107 GB; over the ranks there is room for activations."""
    levels, recomputes, fusions = parts(table)
    off, *_, most = levels
    for recompute in recomputes:
        for fusion in fusions:
            assert not table[off, recompute, fusion].feasible
            assert table[off, recompute, fusion].peak > 107e9
            assert table[most, recompute, fusion].feasible


def test_every_level_needs_less_memory_than_the_one_before(table):
    levels, recomputes, fusions = parts(table)
    for recompute in recomputes:
        for fusion in fusions[:2]:
            peaks = [table[level, recompute, fusion].peak for level in levels]
            assert peaks == sorted(peaks, reverse=True)
            assert peaks[0] > 1.5 * peaks[-1]


def test_recomputing_all_is_a_third_more_computing_and_least_memory(devices):
    """A forward is a third of forward and backward; 32·s·b·h bytes of each layer's activations become 2·s·b·h."""
    levels, _, _ = parts(devices)
    level = levels[-1]
    none, full = devices[level, 'none', 'layer'], devices[level, 'full', 'layer']
    assert 1.25 < full.figures.compute / none.figures.compute < 4 / 3
    saved = 31 * 30 * 4096 * 2 * 4096
    assert none.peak - full.peak == pytest.approx(saved, rel=0.03)


def test_flash_attention_leaves_nothing_for_selective_recomputation(table):
    """Its matrices are never kept, so that recomputing it costs time and saves next to nothing."""
    levels, _, _ = parts(table)
    none, selective = table[levels[-1], 'none', 'layer'], table[levels[-1], 'selective', 'layer']
    assert selective.figures.step > 1.02 * none.figures.step
    assert none.peak - selective.peak < 0.01 * none.peak


def test_one_message_for_everything_exposes_most(devices):
    """Where nothing else keeps sums from the backward, as Megatron Core does of itself (`reduce_gradients: end`)."""
    levels, recomputes, fusions = parts(devices)
    for level in levels:
        for recompute in recomputes:
            rows = {fusion: devices[level, recompute, fusion] for fusion in fusions}
            if all(row.feasible for row in rows.values()):
                assert max(rows, key=lambda fusion: rows[fusion].figures.exposed) == 'all'
                assert max(rows, key=lambda fusion: rows[fusion].figures.step) == 'all'


@pytest.mark.parametrize('name', [H100, ASCEND])
def test_the_step_is_no_faster_than_the_arithmetic(name):
    """6·P operations a token and 6·L·h·s of causal attention, at between a third and three quarters of the peak."""
    case = load_case(EXAMPLES / name)
    tokens = case.schedule.workload.batch * 4096 / case.program.world
    operations = tokens * (6 * (32 * 12 * 4096**2 + 32000 * 4096) + 6 * 32 * 4096 * 4096)
    peak = case.cluster.profile.device.matrix['bf16'].value
    assert 1 / 3 < operations / peak / case.predict().step < 3 / 4


@pytest.fixture(scope='module')
def pays():
    """Steps by hidden width, bandwidth and stage; None where it does not fit."""
    return {
        (result.settings['workload.transformer']['hidden'], *list(result.settings.values())[1:]): result.step
        for result in answer(f'examples/{PAYS}', ()).results
    }


def test_cutting_states_pays_for_these_models_and_cutting_weights_only_makes_them_fit(pays):
    """Cut weights move three times the bytes for each of two micro-batches: on a slow network twice the step."""
    for hidden in (1024, 2048):
        for network in (0.125, 1):
            assert pays[hidden, network, 1] < pays[hidden, network, 0]
            assert pays[hidden, network, 1] <= pays[hidden, network, 2] < pays[hidden, network, 3]
        assert pays[hidden, 0.125, 3] > 1.8 * pays[hidden, 0.125, 0]
    assert pays[4096, 1, 0] is None
    assert pays[4096, 1, 3] is not None


def test_slower_links_never_make_a_step_faster(pays):
    for hidden, network, zero in pays:
        if (hidden, network / 2, zero) in pays and pays[hidden, network, zero] is not None:
            assert pays[hidden, network / 2, zero] >= pays[hidden, network, zero]
