"""Memory that a stack adds: each fact by hand on a small model, then all of them against Megatron-LM's own runs."""

from functools import cache

import pytest
from every import EVERY, some

from simpar import Plan, case_of
from simpar.document import Tree
from simpar.hardware import Beside, StackMemory, Workspace
from simpar.lower import lower
from simpar.memory import Framework, memory, sequential
from simpar.predict import predict
from simpar.profiles import load_stack
from simpar.schedule import schedule_of
from simpar.shipped import measured_folder
from simpar.validate.memory import measured, memory_pairs, memory_score
from simpar.validate.rows import read_rows
from simpar.workload import Adam, Transformer, Workload

MIB = 2**20
S, B, H, A, V = 32, 8, 64, 4, 4096
"""Sequence, batch, hidden width, heads, vocabulary."""
OURS = StackMemory(source='by hand')


def program_of(plan: Plan, *, precision='bf16', gradients='fp32', **model):
    shape = Transformer(layers=2, hidden=H, heads=A, vocab=V, sequence=S, **model)
    workload = Workload(
        model=shape, batch=B, precision=precision, gradients=gradients, optimizer=Adam(master_weights=True)
    )
    return lower(workload, plan, (plan.data or 1) * plan.tensor * plan.pipeline)


def last_rank(program, facts=None, *, device='A100', options=(), without=()):
    framework = facts and Framework(facts=facts, device=device, options=frozenset(options), without=frozenset(without))
    return memory(sequential(program), framework=framework).rank(program.world - 1)


def end_of(rank):
    return int(rank.lives.bytes[rank.lives.always | rank.lives.before].sum())


def facts(**changes):
    return StackMemory(source='by hand', **changes)


def beside(operators, **changes):
    return facts(beside={'it': Beside(operators=operators, source='by hand', **changes)})


def test_a_stack_without_facts_adds_nothing():
    program = program_of(Plan(data=1))
    plain, mine = last_rank(program), last_rank(program, OURS)
    assert (plain.peak_bytes, end_of(plain)) == (mine.peak_bytes, end_of(mine))


def test_workspaces_are_held_always_by_device_and_by_option():
    given = Workspace(bytes=MIB, on={'*h100*': 4 * MIB}, count=2, source='by hand')
    asked = Workspace(bytes=MIB, when='careful', source='by hand')
    ruled_out = Workspace(bytes=MIB, unless='careful', source='by hand')
    ours = facts(workspaces={'given': given, 'asked': asked, 'ruled out': ruled_out})
    program = program_of(Plan(data=1))
    plain = last_rank(program)
    for device, words, without, mib in (
        ('NVIDIA A100-SXM4-80GB', (), (), 3),
        ('NVIDIA H100', (), (), 9),
        ('NVIDIA H100', ('careful',), (), 9),
        ('NVIDIA H100', ('careful',), ('given',), 1),
        ('NVIDIA H100', (), ('given', 'ruled out'), 0),
    ):
        mine = last_rank(program, ours, device=device, options=words, without=without)
        assert mine.peak_bytes - plain.peak_bytes == mib * MIB
        assert end_of(mine) - end_of(plain) == mib * MIB


def test_a_contiguous_buffer_is_there_between_steps_and_zero_1_reduces_in_it():
    """As counted on Megatron's own runs: 18 bytes a parameter; with ZeRO-1 over d ranks 6 + 12 / d."""
    ours = facts(gradients='contiguous')
    for data, zero, each in ((1, 0, 18), (2, 0, 18), (2, 1, 12), (4, 1, 9)):
        program = program_of(Plan(data=data, zero=zero))
        parameters = sum(
            int(program.sizes[index]) // 2 for index, one in enumerate(program.tensors) if one.kind == 'parameter'
        )
        # What is never freed besides: a loss, a norm.
        assert end_of(last_rank(program, ours)) == pytest.approx(each * parameters, rel=1e-3)
    assert end_of(last_rank(program)) < 6 * parameters


def test_logits_in_fp32_are_six_bytes_each():
    """The loss of 16 bits alone holds 2 bytes forward and 4 backward."""
    program = program_of(Plan(data=1))
    ours = beside(('cross_entropy', 'ce_max', 'ce_sum'), kept=2, forward=2)
    more = last_rank(program, ours).peak_bytes - last_rank(program).peak_bytes
    assert more == 2 * B * S * V
    split = program_of(Plan(data=1, tensor=2))
    assert last_rank(split, ours).peak_bytes - last_rank(split).peak_bytes in range(2 * B * S * V // 2, 2 * B * S * V)


def test_what_attention_keeps_beside_is_held_by_every_layer_on_its_devices():
    program = program_of(Plan(data=1))
    ours = beside(('attention',), of='write', kept=2, on=('*a100*',))
    more = last_rank(program, ours, device='A100').peak_bytes - last_rank(program).peak_bytes
    # Two layers, a tensor of [B, S, H] in 16 bits each.
    assert more == 2 * 2 * B * S * H
    assert last_rank(program, ours, device='H100').peak_bytes == last_rank(program).peak_bytes
    assert last_rank(program, ours, without=('it',)).peak_bytes == last_rank(program).peak_bytes


def test_a_standing_buffer_is_one_for_all_layers():
    program = program_of(Plan(data=1), attention='unfused')
    ours = beside(('attention_scores',), of='write', kept=2, standing=True)
    assert end_of(last_rank(program, ours)) - end_of(last_rank(program)) == 2 * B * A * S * S


def test_fp32_gradients_of_fp16_stay_until_the_next_step():
    program = program_of(Plan(data=1), precision='fp16', gradients='fp16')
    ours = facts(gradients='contiguous', gradient_copies=4)
    with_, plain = last_rank(program, ours), last_rank(program, ours, without=('gradient_copies',))
    parameters = sum(int(program.sizes[i]) // 2 for i, one in enumerate(program.tensors) if one.kind == 'parameter')
    assert end_of(with_) - end_of(plain) == 4 * parameters
    # The peak is in the loss, behind the begin of the step.
    assert with_.peak_bytes == plain.peak_bytes


def test_tensors_at_stage_boundaries_and_masks():
    program = program_of(Plan(data=1, pipeline=2, micro_batches=2))
    received = B // 2 * S * H * 2
    assert end_of(last_rank(program, facts(boundary=2))) - end_of(last_rank(program)) == 2 * received
    assert end_of(last_rank(program, facts(mask=1))) - end_of(last_rank(program)) == B // 2 * S * S
    left_out = last_rank(program, facts(mask=1), options=('no-mask',))
    assert end_of(left_out) == end_of(last_rank(program))


# against measured runs


@cache
def rows():
    return read_rows(measured_folder() / 'memory', 'megatron_ci')


@cache
def scored():
    """Plans of the suite: each sixth, and all of latent attention; `make prove NAME=every` takes all."""
    plans = measured(rows())
    taken = {id(plan) for plan in some(plans, 6)}
    return memory_pairs([row for plan in plans if id(plan) in taken or is_latent(plan[0]) for row in plan])


def is_latent(row):
    return row.text('attention_kind').startswith('MLA')


def test_memory_of_megatrons_own_runs_is_within_its_bars():
    pairs, _ = scored()
    score = memory_score(pairs)
    assert score.plans >= (95 if EVERY == 1 else 16)
    assert score.peak <= 0.01
    assert score.near >= 0.95
    assert score.low <= 0.05
    assert score.worst <= 0.1
    assert score.end <= 0.015


def test_experts_and_latent_attention_are_among_them():
    pairs, _ = scored()
    latent = [pair for pair in pairs if is_latent(pair.row)]
    experts = [pair for pair in pairs if pair.row.whole('n_experts') > 1]
    assert len(latent) >= 3
    assert len(experts) >= (12 if EVERY == 1 else 2)
    assert max(abs(pair.peak_error) for pair in latent) <= 0.015
    assert sorted(abs(pair.peak_error) for pair in experts)[len(experts) // 2] <= 0.02


def test_a_peak_with_a_checkpoint_in_it_does_not_count_where_a_run_from_the_start_was_measured():
    told = {row.name: row for row in rows()}
    from_start, resumed = told['megatron_ci:0683'], told['megatron_ci:0684']
    assert [row.name for group in measured([resumed, from_start]) for row in group] == [from_start.name]
    assert [row.name for group in measured([resumed]) for row in group] == [resumed.name]


def test_the_command_prints_and_answers_as_json(tmp_path, json_of, printed, refused):
    lines = (measured_folder() / 'memory' / 'megatron_ci.csv').read_text(encoding='utf-8').splitlines()
    dense = [line for line in lines[1:] if 'tp1_pp1_resume_torch_dist_dist_optimizer,' in line]
    (tmp_path / 'mine.csv').write_text('\n'.join((lines[0], *dense)), encoding='utf-8')
    command = ['validate', '--memory', '--data', str(tmp_path)]
    assert 'peak         median |error| 0.' in printed(*command)
    # Without fp32 logits predictions are too low.
    assert json_of(*command, '--without', 'loss')['score']['bias'] < -0.05
    assert 'no stack has such facts (got los)' in refused(*command, '--without', 'los')


def test_the_forks_of_2021_keep_their_gradients_and_nothing_else_is_told():
    for name in ('megatron-2021', 'zero-bubble'):
        program = program_of(Plan(data=1))
        mine, plain = last_rank(program, load_stack(name).memory), last_rank(program)
        kept = memory(sequential(program), always={'parameter', 'state', 'gradient'}).rank(0)
        assert (mine.peak_bytes, end_of(mine)) == (kept.peak_bytes, end_of(kept))
        assert end_of(mine) > end_of(plain)


def test_a_prediction_on_a_stack_holds_what_the_stack_holds():
    def held(**cluster):
        tree = {
            'simpar': 1,
            'cluster': {'profile': 'a100-sxm-8', 'devices': 2, **cluster},
            'workload': {
                'transformer': {'layers': 2, 'hidden': H, 'heads': A, 'vocab': V, 'sequence': S, 'tied': True},
                'batch': B, 'precision': 'bf16', 'gradients': 'fp32', 'clip_norm': 1.0,
                'optimizer': {'adam': {'master_weights': True}},
            },
            'plan': {'data': 2},
        }  # fmt: skip
        case = case_of(schedule_of(Tree(root=tree, origins={(): 'here'})))
        return predict(case.program, None, case.cluster).memory.peak

    # Two workspaces of cuBLAS and one of Transformer Engine: 8.125, 8.125 and 4 MiB.
    alone = held(stack='none')
    assert held(stack='megatron-core') - alone > 20 * MIB
    assert held(stack='eager') == alone
