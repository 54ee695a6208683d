"""Compute: exact on measured rows, the formulas where there are none, and what halving a matrix product costs."""

import dataclasses
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.cost.compute import DeviceCompute
from simpar.errors import ProfileError
from simpar.hardware import TableFile, Tables
from simpar.profiles import load_profile, read_table
from simpar.program import OpClass

PROFILES = {name: load_profile(name) for name in ('ascend910a-8', 'h100-sxm-8', 'a100-sxm-8', 'cpu-gloo')}
MODELS = {name: DeviceCompute(profile) for name, profile in PROFILES.items()}
DIM = st.integers(1, 100_000)


def matmul(m, n, k, dtype='bf16', phase='F'):
    width = {'fp64': 8, 'fp32': 4}.get(dtype, 2)
    return OpClass(
        name=f'matmul.{phase}',
        kind='compute',
        operator='matmul',
        phase=phase,
        dims={'m': m, 'n': n, 'k': k},
        flops=2.0 * m * n * k,
        bytes=float(width * (m * n + n * k + m * k)),
        dtype=dtype,
    )


def attention(batch, sequence, heads, kv_heads, head_dim, phase='F', dtype='bf16'):
    dims = {'batch': batch, 'sequence': sequence, 'heads': heads, 'kv_heads': kv_heads, 'head_dim': head_dim}
    flops = (2.0 if phase == 'F' else 5.0) * batch * heads * sequence**2 * head_dim
    moved = 2.0 * batch * sequence * head_dim * (2 * heads + 2 * kv_heads)
    return OpClass('attention', 'compute', 'attention', phase, dims, flops, moved, dtype)


def streaming(operator, size, flops=0.0, dtype='fp16', phase='F'):
    return OpClass(operator, 'compute', operator, phase, {}, flops, float(size), dtype)


@pytest.mark.parametrize('name', ['h100-sxm-8', 'a100-sxm-8'])
def test_exact_on_the_rows_of_the_matmul_table(name):
    rows = read_table(PROFILES[name].tables.matmul, 'matmul')
    for m, n, k, seconds in rows[::97]:
        cost = MODELS[name].seconds(matmul(int(m), int(n), int(k)))
        assert cost.seconds == pytest.approx(seconds, rel=1e-9)
        assert cost.grade == 'measured'
        assert cost.why.startswith('a row of the matmul table')


def test_exact_on_the_rows_of_the_attention_table():
    for queries, width, sequence, pairs, seconds in read_table(PROFILES['h100-sxm-8'].tables.attention, 'attention')[
        ::41
    ]:
        if pairs < queries:
            continue
        op = attention(int(pairs / queries), int(sequence), int(queries), 1, int(width))
        assert MODELS['h100-sxm-8'].seconds(op).seconds == pytest.approx(seconds, rel=1e-9)


def test_the_backward_of_attention_by_its_stated_factor():
    model, factor = MODELS['h100-sxm-8'], PROFILES['h100-sxm-8'].device.attention.backward
    forward, backward = (model.seconds(attention(4, 2048, 16, 16, 128, phase)) for phase in 'FI')
    assert backward.seconds == pytest.approx(factor.value * forward.seconds)
    assert (forward.grade, backward.grade) == ('measured', factor.grade)
    assert 2.5 < factor.value < 3.5, 'five products for two, at no better an efficiency'


# Medians over n, k ≥ 1024 of the 25,599 H100 shapes, taken from the full table by another hand.
@pytest.mark.parametrize(
    ('m', 'penalty'), [(256, 1.80), (512, 1.37), (1024, 1.09), (2048, 1.03), (4096, 1.00), (8192, 1.00)]
)
def test_what_halving_the_rows_of_a_matmul_costs(m, penalty):
    table = read_table(PROFILES['h100-sxm-8'].tables.matmul, 'matmul')
    sides = {(int(n), int(k)) for _, n, k, _ in table if min(n, k) >= 1024}
    seconds = MODELS['h100-sxm-8'].seconds
    found = median(
        2 * seconds(matmul(m // 2, n, k)).seconds / seconds(matmul(m, n, k)).seconds for n, k in sorted(sides)
    )
    assert found == pytest.approx(penalty, abs=0.03)


def test_the_formula_alone_sees_the_penalty_too():
    """Without the table: at least the size of the effect, so that a device without tables is not ideal."""
    profile = dataclasses.replace(PROFILES['h100-sxm-8'], tables=Tables())
    seconds = DeviceCompute(profile).seconds
    penalties = [
        2 * seconds(matmul(m // 2, 4096, 4096)).seconds / seconds(matmul(m, 4096, 4096)).seconds
        for m in (256, 1024, 8192)
    ]
    assert penalties == sorted(penalties, reverse=True)
    assert penalties[0] > 1.2
    assert 1.0 < penalties[-1] < 1.02


@pytest.mark.parametrize(('name', 'bound'), [('h100-sxm-8', 0.08), ('a100-sxm-8', 0.11)])
def test_the_formula_against_the_table(name, bound):
    """Its constants were fitted on 3,000 of 25,599 rows, of which the table here holds a thinned quarter."""
    formula = DeviceCompute(dataclasses.replace(PROFILES[name], tables=Tables())).seconds
    rows = [row for row in read_table(PROFILES[name].tables.matmul, 'matmul') if min(row[1], row[2]) >= 256]
    errors = [abs(formula(matmul(int(m), int(n), int(k))).seconds / t - 1) for m, n, k, t in rows]
    assert median(errors) < bound


def test_the_roofline_by_hand():
    device = PROFILES['ascend910a-8'].device
    m, n, k = 1024, 2048, 512
    full = 256e12 * device.matmul.share.value
    waste = (1 + device.matmul.half_area.value / (m * n)) * (1 + device.matmul.half_depth.value / k)
    cost = MODELS['ascend910a-8'].seconds(matmul(m, n, k, 'fp16'))
    assert cost.seconds == pytest.approx(5e-6 + 2 * m * n * k / full * waste)
    assert cost.best == pytest.approx(2 * m * n * k / full)
    assert cost.grade == 'estimate'


def test_a_thin_matmul_is_bound_by_memory():
    cost = MODELS['ascend910a-8'].seconds(matmul(1, 10_000, 10_000, 'fp16'))
    assert cost.seconds > 2e8 / (1.2e12 * 0.6)
    assert 'memory' not in MODELS['ascend910a-8'].seconds(matmul(8192, 8192, 8192, 'fp16')).why


def test_memory_bound_operators_by_hand():
    cost = MODELS['ascend910a-8'].seconds(streaming('norm', 720e6))
    assert cost.seconds == pytest.approx(2e-6 + 720e6 / 720e9)
    assert cost.best == pytest.approx(1e-3)
    assert 'memory at 720 GB/s' in cost.why
    busy = MODELS['ascend910a-8'].seconds(streaming('gelu', 1e6, flops=2e9))
    assert busy.seconds == pytest.approx(2e-6 + 1e-3)
    assert 'vector units' in busy.why


@pytest.mark.parametrize('name', ['ascend910a-8', 'cpu-gloo'])
@given(size=st.tuples(DIM, DIM, DIM), more=st.tuples(DIM, DIM, DIM))
def test_the_roofline_rises_with_every_dim(name, size, more):
    larger = tuple(a + b for a, b in zip(size, more, strict=True))
    seconds = MODELS[name].seconds
    assert seconds(matmul(*size, 'fp32')).seconds <= seconds(matmul(*larger, 'fp32')).seconds


@given(size=st.tuples(DIM, DIM, DIM), name=st.sampled_from(sorted(MODELS)))
def test_best_is_a_bound_and_positive(size, name):
    for op in (matmul(*size, 'fp32'), matmul(*size, 'fp16'), streaming('norm', size[0], size[1])):
        cost = MODELS[name].seconds(op)
        assert 0 < cost.best <= cost.seconds


def test_a_data_type_that_the_device_does_not_know():
    with pytest.raises(ProfileError, match=r'no rate for bf16.*choose a precision among fp16, fp32'):
        MODELS['ascend910a-8'].seconds(matmul(8, 8, 8, 'bf16'))


def test_attention_without_a_table():
    device = PROFILES['ascend910a-8'].device
    forward, backward = (MODELS['ascend910a-8'].seconds(attention(8, 1024, 4, 4, 80, phase, 'fp16')) for phase in 'FI')
    work = 2 * 8 * 4 * 1024**2 * 80 / (256e12 * device.attention.share.value)
    assert forward.seconds == pytest.approx(5e-6 + work)
    assert backward.seconds == pytest.approx(5e-6 + 2.9 * work)


def calibrated(tmp_path, **tables):
    """cpu-gloo with tables as calibration writes them."""
    files = {}
    for kind, text in tables.items():
        path = tmp_path / f'{kind}.csv'
        path.write_text(text)
        files[kind] = TableFile(file=str(path), source='a test', grade='measured', dtype='fp32')
    return DeviceCompute(dataclasses.replace(PROFILES['cpu-gloo'], tables=Tables(**files)))


def test_a_calibrated_operator_by_its_own_curve(tmp_path):
    model = calibrated(tmp_path, operator='operator,phase,bytes,seconds\ngelu,F,1000,2e-6\ngelu,F,4000,5e-6\n')
    assert model.seconds(streaming('gelu', 1000)).seconds == pytest.approx(2e-6)
    assert model.seconds(streaming('gelu', 4000)).seconds == pytest.approx(5e-6)
    assert 2e-6 < model.seconds(streaming('gelu', 2000)).seconds < 5e-6
    assert model.seconds(streaming('gelu', 2000, phase='I')).why.startswith('roofline'), 'phases have their own'
    assert model.seconds(streaming('norm', 2000)).why.startswith('roofline')


def test_calibrated_shapes_in_no_grid(tmp_path):
    model = calibrated(tmp_path, matmul='m,n,k,seconds\n32,512,784,5e-4\n16,512,784,3e-4\n512,784,32,6e-4\n')
    assert model.seconds(matmul(16, 512, 784, 'fp32')).seconds == 3e-4
    between = model.seconds(matmul(24, 512, 784, 'fp32')).seconds
    assert 3e-4 < between < 5e-4


@pytest.mark.parametrize('operator', ['batch_matmul', 'attention_scores', 'attention_values'])
def test_products_of_many_matrices_cost_what_a_product_of_all_their_rows_does(operator):
    op = matmul(6 * 24 * 1024, 1024, 96)
    same = dataclasses.replace(op, operator=operator)
    assert MODELS['a100-sxm-8'].seconds(same) == MODELS['a100-sxm-8'].seconds(op)
    assert MODELS['ascend910a-8'].seconds(dataclasses.replace(same, dtype='fp16')).seconds > 0
