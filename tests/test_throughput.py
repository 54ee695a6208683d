"""The numbers engineers quote: tokens a second and FLOPs by published formulas, days and cost by trials of chance."""

import json
import random
import re
from dataclasses import replace

import pytest

from simpar import cli, load_case
from simpar.report import render, to_dict
from simpar.throughput import Budget, Throughput, parse_budget, run_line, training_run

GPT = """
simpar: 1
cluster: {{profile: h100-sxm-8}}
workload:
  transformer: {{layers: {layers}, hidden: {hidden}, heads: 16, sequence: {sequence}, vocab: {vocab}}}
  batch: {batch}
  precision: bf16
  optimizer: {{adam: {{}}}}
plan: {{data: 2, tensor: 4, copies: 2{more}}}
"""
SIZES = {'layers': 3, 'hidden': 1024, 'sequence': 512, 'vocab': 8192, 'batch': 8}


def gpt(folder, more=''):
    path = folder / 'gpt.yaml'
    path.write_text(GPT.format(**SIZES, more=more))
    return load_case(path)


def test_flops_are_those_of_the_published_formula(tmp_path):
    """Narayanan et al. 2021 (arXiv 2104.04473, appendix): 24 B s l h² + 4 B s² l h and 2 B s h V a forward, the
    backward twice that; causal attention does half of its products."""
    layers, h, s, v, b = SIZES.values()
    products = 24 * b * s * layers * h**2 + 2 * b * s * h * v
    attention = 4 * b * s**2 * layers * h / 2
    case = gpt(tmp_path)
    assert case.throughput.model_flops == 3 * (products + attention)
    assert case.throughput.tokens == b * s
    # What is recomputed is work of the devices, and none of the model's.
    again = gpt(tmp_path, ', recompute: full').throughput
    assert again.model_flops == case.throughput.model_flops
    extra = again.hardware_flops - case.throughput.hardware_flops
    assert 0.9 < extra / (24 * b * s * layers * h**2 + attention) <= 1


LATENT = """
simpar: 1
cluster: {profile: h100-sxm-8}
workload:
  transformer: {layers: 2, hidden: 512, heads: 16, ffn: 1024, sequence: 256, vocab: 4096, position: rotary,
    q_lora_rank: 96, kv_lora_rank: 64, qk_nope_head_dim: 32, qk_rope_head_dim: 16, v_head_dim: 24}
  batch: 16
  precision: bf16
plan: {data: 8}
"""
PLANS = ('data: 8', 'tensor: 8', 'tensor: 8, sequence_parallel: true', 'tensor: 4, data: 2, recompute: full',
         'tensor: 2, pipeline: 2, micro_batches: 4', 'copies: 2, tensor: 4, data: 2')  # fmt: skip


@pytest.mark.parametrize('plan', PLANS)
def test_flops_of_the_model_do_not_depend_on_the_plan(plan):
    """Latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): tensor ranks repeat its products to latents."""
    q_down, q_up = 512 * 96, 96 * 16 * (32 + 16)
    kv_down, kv_up, out = 512 * (64 + 16), 64 * 16 * (32 + 24), 16 * 24 * 512
    of_a_token = 2 * (q_down + q_up + kv_down + kv_up + out + 2 * 512 * 1024) + 512 * 4096
    # Scores over 48 features and values over 24, of the half of all pairs that the mask leaves.
    attention = 2 * 16 * 256**2 / 2 * (48 + 24)
    found = load_case(LATENT, [f'plan={{{plan}}}']).throughput
    assert found.model_flops == 3 * 2 * 16 * (256 * of_a_token + attention)
    if plan == 'tensor: 8':
        # Devices do both products to latents eight times, and flash attention's scores again in its backward.
        again = 7 * 2 * 3 * 2 * 16 * 256 * (q_down + kv_down)
        assert found.hardware_flops == found.model_flops + again + 2 * 2 * 16 * 16 * 256**2 / 2 * 48


def test_rates_stand_on_the_screen_and_in_json(tmp_path):
    case = gpt(tmp_path)
    prediction = case.predict()
    found = to_dict(prediction)['throughput']
    assert found['per_second'] == SIZES['batch'] * SIZES['sequence'] / prediction.step
    assert found['mfu'] == pytest.approx(found['model_flops'] / 8 / prediction.step / 989.4e12)
    assert 0 < found['mfu'] < 1
    screen = render(prediction, colour=False)
    assert 'tokens a second' in screen
    assert f'{found["mfu"] * 100:3.0f} %' in screen


def test_a_plan_that_does_not_fit_is_said_in_the_first_words(tmp_path, capsys):
    path = tmp_path / 'large.yaml'
    path.write_text(GPT.format(**{**SIZES, 'batch': 4096, 'sequence': 4096}, more=''))
    assert cli.main(['run', str(path)]) == 3
    assert capsys.readouterr().out.split('\n')[0].startswith('copies 2 does not fit: ')
    assert cli.main(['run', str(path), '--json']) == 3
    assert json.loads(capsys.readouterr().out)['fits'] is False


def test_the_answer_in_brief_is_one_screen_of_figures_that_are_worth_their_digits(printed):
    screen, _, legend = printed('run', 'examples/transformer_h100.yaml', '--legend').partition('\ncompute  ')
    assert len(screen.splitlines()) <= 20
    assert screen.startswith('copies 2: 379 ms a step, 51 % slower than copies 1 (251 ms), as Megatron Core')
    assert 'Why: lost to launches by the host' in screen
    assert '(1 more: --full)' in ' '.join(screen.split())
    assert re.search(r'\d{4}|\d\.\d{3}', screen.partition('step')[2].partition('Why')[0]) is None
    assert 'tensor           stream: messages of the ranks that split each layer' in legend
    assert 'expert ' not in legend


WORK = Throughput(samples=1, tokens=1000, devices=4, parameters=1, model_flops=1.0, hardware_flops=1.0, peak=1.0)


def test_without_failures_a_run_is_its_steps_and_checkpoints():
    budget = Budget(tokens=1e6, price=2.0, checkpoint_every=100.0, checkpoint_time=10.0)
    run = training_run(budget, WORK, step=0.5)
    assert run.trains == 500.0
    assert run.seconds == pytest.approx(550.0)
    assert run.cost == pytest.approx(550.0 * 4 / 3600 * 2.0)


def test_goodput_is_what_checkpoints_over_their_link_and_failures_leave():
    work = replace(WORK, checkpoint=4 * 10**9)
    budget = parse_budget(['tokens=1M', 'checkpoint_every=100s', 'checkpoint_link=400 MB/s'])
    run = training_run(budget, work, step=0.5)
    assert run.pause == 10.0
    assert run.goodput == pytest.approx(100 / 110)
    assert 'Goodput 90.9 %: 9.1 % to checkpoints (4 GB, 10 s each).' in run_line(budget, run, work)
    fails = replace(budget, mtbf=4e6)
    assert 'to failures' in run_line(fails, training_run(fails, work, step=0.5), work)


def test_with_failures_a_run_lasts_as_long_as_trials_do():
    budget = Budget(tokens=2e6, mtbf=1600.0, checkpoint_every=100.0, checkpoint_time=10.0, restart=40.0)
    run = training_run(budget, WORK, step=0.5)
    random.seed(5)
    trials = [trial(segments=10, mean=400.0, length=110.0, restart=40.0) for _ in range(4000)]
    # Ten segments whose times are independent: 4,000 trials tell their mean to less than 1 %.
    assert run.seconds == pytest.approx(sum(trials) / len(trials), rel=0.02)


def trial(segments, mean, length, restart):
    """Seconds until so many segments are done, each anew after a failure; restarts may fail, too."""
    clock, starts = 0.0, 0.0
    while segments:
        fails = random.expovariate(1 / mean)
        if fails < starts + length:
            clock, starts = clock + fails, restart
        else:
            clock, starts, segments = clock + starts + length, 0.0, segments - 1
    return clock


@pytest.mark.parametrize(
    ('texts', 'what'),
    [
        (['price=2'], 'needs tokens'),
        (['tokens=-3'], 'no number above 0'),
        (['tokens=15T', 'mtbf=0h'], 'above 0'),
        (['tokens=15T', 'mtbf=12'], 'of time'),
        (['tokens=15T', 'days=3'], 'KEY=VALUE'),
        (['tokens=15T', 'tokens=1T'], 'twice'),
        (['tokens=15T', 'checkpoint_link=20'], 'of rate'),
        (['tokens=15T', 'checkpoint_link=0 GB/s'], 'above 0'),
        (['tokens=15T', 'checkpoint_link=1GB/s', 'checkpoint_time=1s'], 'leave out one of them'),
    ],
)
def test_a_budget_says_what_is_wrong(texts, what):
    with pytest.raises(ValueError, match=what):
        parse_budget(texts)


def test_a_run_that_fails_more_often_than_it_saves_never_ends():
    budget = parse_budget(['tokens=1T', 'mtbf=1s', 'checkpoint_every=1h'])
    assert 'never finished' in run_line(budget, training_run(budget, WORK, step=0.5), WORK)


def test_examples_are_listed_printed_and_copied(tmp_path, printed, refused):
    assert 'multi_copy\n' in printed('examples')
    printed('examples', '--copy', str(tmp_path / 'mine'))
    copied = tmp_path / 'mine' / 'llama3_8b_h100.yaml'
    assert copied.with_name('llama3_8b.json').exists()
    # What was copied stands alone.
    printed('check', str(copied))
    assert 'did you mean multi_copy?' in refused('examples', 'multi_copi')
    assert 'there already' in refused('examples', '--copy', str(tmp_path / 'mine'))


def test_simpar_alone_shows_the_way_in(printed):
    assert 'simpar run' in printed()
