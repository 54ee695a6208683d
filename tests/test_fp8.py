"""Products in 8 bits: what is cast, kept, sent and priced, and that the casts change nothing of what is computed."""

import re
from dataclasses import replace

import pytest
from tables import load_table
from trains import ONCE, plans, trains

from simpar import Plan, load_case, load_profile
from simpar.cost.compute import DeviceCompute
from simpar.errors import SimparError
from simpar.lower import lower
from simpar.model.library.experts import Experts
from simpar.program import BYTES
from simpar.workload import AdamW, Muon, Transformer, Workload

SIZES = {'layers': 3, 'hidden': 64, 'heads': 4, 'vocab': 48, 'sequence': 32, 'init_std': 0.3, 'ffn': 128}
LLAMA = Transformer(**SIZES, norm='rms_norm', activation='swiglu', bias=(), position='rotary')
GPT = Transformer(**SIZES)
MLA = replace(
    LLAMA, kv_lora_rank=32, q_lora_rank=48, qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=16,
)  # fmt: skip
MIXTURE = replace(MLA, experts=Experts(count=4, top_k=2, ffn=32, shared=32, first_dense=1, aux_loss=0.1))
PLANS = plans(__file__, 'PLANS')


def workload(model, **more):
    return Workload(model=model, batch=8, **{'optimizer': AdamW(learning_rate=0.01), 'fp8': 'hybrid', **more})


@pytest.mark.parametrize(
    ('model', 'plan'),
    [
        (LLAMA, 'split'),
        (GPT, 'flat'),
        (MLA, 'flat'),
        (LLAMA, 'on use'),
        (GPT, 'zero bubble'),
        (MLA, 'tiles'),
        (MIXTURE, 'experts'),
    ],
)
def test_held_in_more_bits_it_trains_as_the_unsharded_model(model, plan):
    chosen, ranks = PLANS[plan]
    case = workload(model, **({'optimizer': Muon()} if plan == 'flat' else {}))
    program = trains(case, chosen, ranks, steps=ONCE)
    assert any(op.operator == 'cast' for op in program.op_classes)


def ops_of(program):
    return {op.name: op for op in program.op_classes}


def test_weights_are_cast_once_a_step_and_what_is_gathered_on_use_for_each_use():
    def casts(plan, ranks):
        program = lower(workload(LLAMA), plan, ranks)
        names = [program.op_classes[index].name for index in program.roles[0].op_class]
        return names.count('layer1.qkv.weight.cast.F'), names.count('layer1.qkv.weight.cast.columns.I')

    assert casts(Plan(micro_batches=4), 1) == (1, 0)
    assert casts(Plan(data=2, zero=1, micro_batches=4), 2) == (1, 0)
    assert casts(Plan(data=2, zero=3, micro_batches=4), 2) == (4, 4)


def kept(program):
    """Bytes of activations of layer 1 that the backward reads and the forward made."""
    tensors = {tensor.name: tensor for tensor in program.tensors}
    made = {name for op in program.op_classes if op.phase == 'F' for name in op.writes}
    read = {name for op in program.op_classes if op.phase in 'IW' for name in op.reads}
    mine = [tensors[name] for name in made & read if name.startswith('layer1.') and tensors[name].kind == 'activation']
    return {one.name.removeprefix('layer1.'): one.shape[-1] * BYTES[one.dtype] for one in mine if one.shape[-1] > 1}


def test_what_products_read_is_kept_in_one_byte_a_number():
    wide, narrow = (kept(lower(workload(LLAMA, precision='bf16', fp8=fp8), Plan(), 1)) for fp8 in ('none', 'hybrid'))
    # The norms' results, those of attention and of the gate go into products; attention reads its own and its result.
    assert wide['norm1'] == wide['norm2'] == 2 * 64
    assert wide['swiglu'] == 2 * 128
    changed = {'norm1': 64, 'norm2': 64, 'swiglu': 128, 'attention': 64}
    assert {name: narrow[f'{name}.fp8.columns'] for name in changed} == changed
    assert narrow['attention'] == wide['attention'] == 2 * 64
    assert set(narrow) - set(wide) == {f'{name}.fp8.columns' for name in changed}
    assert set(wide) - set(narrow) == {'norm1', 'norm2', 'swiglu'}


def test_a_product_moves_a_byte_for_each_number_that_it_reads():
    program = lower(workload(LLAMA, precision='bf16'), Plan(), 1)
    fc1 = ops_of(program)['layer1.fc1.F']
    tokens = 8 * 32
    assert fc1.dtype == 'fp8'
    assert fc1.bytes == tokens * 64 + 64 * 256 + 2 * tokens * 256
    assert fc1.flops == 2 * tokens * 64 * 256
    cast = ops_of(program)['layer1.norm2.cast.F']
    assert cast.bytes == tokens * 64 * (2 + 1 + 1)


def test_a_large_product_is_faster_by_its_share_of_twice_the_peak():
    sizes = {'hidden': 8192, 'ffn': 32768, 'heads': 64, 'sequence': 8192}
    compute = DeviceCompute(load_profile('h100-sxm-8'))

    def seconds(fp8):
        program = lower(workload(replace(LLAMA, **sizes), precision='bf16', fp8=fp8), Plan(), 1)
        return compute.seconds(ops_of(program)['layer1.fc2.F']).seconds

    # 0.698 of 1,979 TFLOP/s, beside a table whose large rows of 16 bits have 0.70 to 0.75 of 989.
    assert 1.8 < seconds('none') / seconds('e4m3') < 2.0
    assert 'roofline' in compute.seconds(ops_of(lower(workload(LLAMA), Plan(), 1))['layer1.fc2.F']).why


SCHEDULE = load_table(__file__, 'SCHEDULE')


def written(folder, cluster='h100-sxm-8', precision='bf16', more='', **changes):
    path = folder / 'schedule.yaml'
    path.write_text(SCHEDULE.format(cluster=cluster, precision=precision, more=more))
    return path


def test_a_device_without_eight_bits_is_said_so(tmp_path):
    case = load_case(written(tmp_path, 'a100-sxm-8'))
    assert any('has no rate for fp8' in note for note in case.notes)
    assert not any('fp8' in note for note in load_case(written(tmp_path)).notes)
    costs = DeviceCompute(load_profile('a100-sxm-8'))
    assert costs.seconds(ops_of(case.program)['layer1.fc1.F']).why.startswith('no 8 bits on this device, in bf16: ')


def test_what_cannot_be_in_eight_bits_is_said(tmp_path):
    case = load_case(written(tmp_path, more='  fp8_except: [layer0.fc1]'))
    assert case.program.notes == ('fp8: head stay in bf16: rows, outputs and inputs on a rank must be multiples of 16',)


@pytest.mark.parametrize(('precision', 'more', 'told'), load_table(__file__, 'test_what_does_not_fit_is_told'))
def test_what_does_not_fit_is_told(precision, more, told, tmp_path):
    with pytest.raises(SimparError, match=re.escape(told)):
        load_case(written(tmp_path, precision=precision, more=more))


MPT_3B = load_table(__file__, 'MPT_3B')


def test_a_published_step_in_eight_bits_takes_its_published_share_of_the_time_in_sixteen(put):
    """MosaicML's llm-foundry (scripts/train/benchmarking, 8c8dd48f7): 7.7014 s, and 8.8945 s in bf16."""
    steps = {}
    for fp8 in ('none', 'hybrid'):
        path = put(f'{fp8}.yaml', MPT_3B.replace('FP8', fp8))
        steps[fp8] = load_case(path).predict().step
    # The only pair of equal settings that was found; nothing was fitted to it.
    assert steps['hybrid'] / steps['none'] == pytest.approx(7.7014 / 8.8945, rel=0.05)
