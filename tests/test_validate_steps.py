"""`simpar validate`: rows are read, split, scored and told as docs/proofs/validate.md says."""

import csv
import json
from pathlib import Path

import pytest
from tables import load_table, load_tree

from simpar.cli import main
from simpar.profiles import profile_of_hardware
from simpar.shipped import measured_folder
from simpar.validate import columns
from simpar.validate.columns import Network, Precision, Skipped, network_of, precision_of, recompute_of, year_of
from simpar.validate.rows import COLUMNS, Row, is_for_fitting, read_rows, vocabulary_of
from simpar.validate.run import Pair, choice, null_rates, null_seconds, null_work, score
from simpar.validate.settings import assumed, schedule_tree

CELLS = load_table(__file__, 'CELLS')


def row(**cells: object) -> Row:
    told = {**CELLS, **{key: str(word) for key, word in cells.items()}}
    return Row(of='mine', cells=told, seconds=float(told['step_time_s']))


def write(folder: Path, *rows: dict[str, object], name: str = 'mine.csv') -> Path:
    with (folder / name).open('w', encoding='utf-8', newline='') as file:
        table = csv.DictWriter(file, [*CELLS, 'mfu_pct', 'recompute', 'n_experts', 'source', 'params_b', 'vocab'])
        table.writeheader()
        table.writerows({**CELLS, **cells} for cells in rows)
    return folder


def test_plans_and_batches_of_a_model_fall_on_one_side():
    rows = [row(tp=tp, dp=8 // tp, global_batch=batch) for tp in (1, 2, 4) for batch in (32, 64, 128)]
    assert len({is_for_fitting(one) for one in rows}) == 1


def test_about_a_third_is_for_fitting():
    sides = [is_for_fitting(row(model=f'model{number}')) for number in range(900)]
    assert 250 <= sum(sides) <= 350


def test_the_side_of_a_row_is_as_published():
    """By hand: sha256 of 'A100-SXM|small|4|1024|8|512' as a number, modulo 3; it must never change."""
    from hashlib import sha256

    digest = sha256(b'A100-SXM|small|4|1024|8|512').hexdigest()
    # The remainder of a hexadecimal number by 3 is that of the sum of its digits, as 16 leaves 1.
    assert is_for_fitting(row()) == (sum(int(digit, 16) for digit in digest) % 3 == 0)


def test_identical_rows_count_once_with_their_median(tmp_path):
    rows = [{'id': f'mine:{number}', 'step_time_s': seconds} for number, seconds in enumerate((0.1, 0.3, 0.2))]
    found = read_rows(write(tmp_path, *rows, {'id': 'mine:9', 'global_batch': 64}))
    assert [(one.seconds, one.same) for one in found] == [(0.2, 3), (0.1, 1)]


def test_a_vocabulary_that_contradicts_the_stated_weights_is_that_of_most_models(tmp_path):
    """46 layers of 5120 have 14.47 billion weights: 14.6 leaves room for 32000 tokens, and not for 50304."""
    large = {'source': 'paper', 'n_layers': 46, 'hidden': 5120, 'seq': 1024, 'vocab': 50304}
    small = {'id': 'mine:2', 'source': 'paper', 'n_layers': 22, 'hidden': 2304, 'params_b': '1.5', 'vocab': 50304}

    def vocabularies(*rows):
        return [one.text('vocab') for one in read_rows(write(tmp_path, *rows))]

    # Rows of one source have one tokenizer, also where a small model's weights would leave room for either.
    assert vocabularies({**large, 'params_b': '14.6'}, small) == ['32000', '32000']
    assert vocabularies({**large, 'params_b': '14.6'}, {**small, 'source': 'other'}) == ['32000', '50304']
    # Stated weights that fit, and some that neither fits, change nothing.
    assert vocabularies({**large, 'params_b': '14.7'}, small) == ['50304', '50304']
    assert vocabularies({**large, 'params_b': '19.9'}, small) == ['50304', '50304']


def test_zero_bubble_orders_with_post_validation_wait_for_no_norm():
    fork = {'framework': 'Megatron-LM fork (sail-sg zero-bubble)', 'overlap_flags': 'optimizer post-validation (ZB-*)'}
    names = {order: columns.stack_name(row(**fork, pp=8, dp=1, schedule=order)) for order in ('1F1B', 'ZB-1p', 'ZB-V')}
    assert names == {'1F1B': 'zero-bubble', 'ZB-1p': 'zero-bubble-post', 'ZB-V': 'zero-bubble-post'}
    tree = schedule_tree(row(**fork, pp=8, dp=1, global_batch=32, schedule='ZB-1p'))
    assert tree['workload']['clip_norm'] == 0
    assert tree['workload']['transformer']['tied'] is False


def test_the_null_model_is_exact_where_utilisation_is_constant():
    rows = [row(global_batch=batch, pp=pp, dp=8 // pp) for batch in (32, 64) for pp in (1, 2, 4)]
    made = [Row(of='mine', cells=one.cells, seconds=3e-15 * null_work(one)) for one in rows]
    rates = null_rates(made[:2])
    assert [null_seconds(one, rates) for one in made] == pytest.approx([one.seconds for one in made])


def test_the_bubble_of_the_null_model_is_that_of_textbooks():
    one, other = row(global_batch=16, micro_batch=2, dp=1), row(global_batch=16, micro_batch=2, dp=1, pp=4)
    assert null_work(other) / null_work(one) == pytest.approx(1 + 3 / 8)


def test_scores_by_hand():
    pairs = [Pair(row(model=name, step_time_s=1.0), seconds, 1.5) for name, seconds in (('a', 1.1), ('b', 0.7))]
    found = score(pairs)
    assert (found.rows, found.mape, found.bias) == (2, pytest.approx(0.2), pytest.approx(-0.1))
    assert (found.low, found.high) == (pytest.approx(0.1), pytest.approx(0.3))
    assert score(pairs, null=True).mape == pytest.approx(0.5)


def test_the_choice_among_plans_by_hand():
    """Predicted fastest is 1.2 s where 1.0 was to be had; of three pairs apart by more than 5 %, one is in order."""
    plans = [(1, 1.0, 3.0), (2, 1.2, 1.0), (4, 1.5, 2.0)]
    pairs = [Pair(row(tp=tp, dp=8 // tp, step_time_s=measured), guess, 0.0) for tp, measured, guess in plans]
    found = choice([*pairs, Pair(row(model='alone'), 1.0, 0.0)])
    assert (found.groups, found.regret, found.ordered, found.apart) == (1, pytest.approx(0.2), 1, 3)


@pytest.mark.parametrize(
    ('framework', 'stack'), load_table(__file__, 'test_a_framework_has_its_stack_and_an_unknown_one_the_default')
)
def test_a_framework_has_its_stack_and_an_unknown_one_the_default(framework, stack):
    assert columns.stack_name(row(framework=framework)) == stack


def test_flags_tell_scripts_of_mindspeed_that_fuse_less():
    """Where no flags are published, nothing is known of them."""
    for flags, stack in (('use-flash-attn', 'mindspeed-unfused'), ('use-mc2', 'mindspeed'), ('', 'mindspeed')):
        assert columns.stack_name(row(framework='MindSpeed-LLM Legacy', overlap_flags=flags)) == stack


def test_a_column_names_the_stack():
    assert columns.stack_name(row(stack='deepspeed')) == 'deepspeed'


def test_what_a_row_says_goes_before_its_stack():
    tree = schedule_tree(row(framework='Megatron-DeepSpeed'))
    assert tree['workload']['transformer']['attention'] == 'unfused'
    assert tree['plan']['micro_batches'] == 2


def test_context_ranks_and_experts_of_a_row_are_those_of_the_plan():
    long = schedule_tree(row(framework='MindSpeed-LLM Mcore', cp=4, dp=2, seq=4096))['plan']
    assert (long['context'], long['context_kind'], long['micro_batches']) == (4, 'ring', 8)
    mixture = schedule_tree(row(n_experts=8, topk=2, ep=4, moe_ffn=512))
    assert mixture['workload']['transformer']['experts'] == {'count': 8, 'top_k': 2, 'ffn': 512}
    assert mixture['plan']['expert'] == 4
    assert 'expert_ranks' not in mixture['plan']
    # Whole experts lie on tensor ranks, those of a sequence on context ranks; a part of the tensor ranks has no key.
    known = {'n_experts': 8, 'topk': 2, 'ep': 2, 'tp': 4, 'dp': 4, 'n_gpus': 16}
    assert schedule_tree(row(**known, etp=1))['plan']['expert_ranks'] == 'tensor'
    assert schedule_tree(row(**{**known, 'cp': 2, 'dp': 2}))['plan']['expert_ranks'] == 'context'
    with pytest.raises(Skipped, match='experts over some of their tensor ranks'):
        schedule_tree(row(**known, etp=2))
    # Of experts the null model counts those that a token goes to.
    dense, sparse = row(ffn=1024), row(ffn=4096, n_experts=8, topk=2, moe_ffn=512)
    assert null_work(dense) == null_work(sparse)


def test_rows_of_every_shipped_set_are_read():
    names = {one.of for one in read_rows(measured_folder())}
    assert names == {
        'vtrain_a100_measured', 'zero_bubble_a100', 'llm_foundry_mpt', 'mindspeed_ascend', 'mindformers_ascend',
    }  # fmt: skip


def test_the_command_tells_scores_and_what_was_left_out(tmp_path, json_of):
    rows = [{'id': f'mine:{n}', 'global_batch': 16 * n} for n in (1, 2)]
    write(tmp_path, *rows, {'id': 'mine:7', 'n_experts': 8}, {'id': 'mine:8', 'hardware': 'TPU'})
    answer = json_of('validate', '--data', tmp_path)['sets'][0]
    assert answer['skipped'] == {'not stated: topk': 1, 'no profile for TPU': 1}
    assert {one['id'] for one in answer['rows']} == {'mine:1', 'mine:2'}
    assert all(one['predicted'] > 0 for one in answer['rows'])


def test_files_that_are_no_sets_are_left_out_and_told(tmp_path, capsys):
    """A folder of measurements holds pairs, too."""
    write(tmp_path, {})
    (tmp_path / 'pairs.csv').write_text('hardware,feature,baseline\nH100,overlap,1.0\n', encoding='utf-8')
    assert main(['validate', '--data', str(tmp_path), '--json']) == 0
    found = capsys.readouterr()
    assert [one['name'] for one in json.loads(found.out)['sets']] == ['mine']
    assert 'pairs.csv is left out, as it is no set of steps: no column id, framework' in found.err
    assert main(['validate', '--data', str(tmp_path), '--set', 'pairs']) == 2


def test_rows_with_flags_of_megatron_are_read_by_them():
    """An interleaved pipeline in Megatron's spelling, and a stack whose modules take their time on the host."""
    flags = '--transformer-impl=transformer_engine --untie-embeddings-and-output-weights'
    told = row(framework='Megatron-LM (mcore)', hardware='H100', pp=4, dp=2, tp=1, n_gpus=8, n_layers=12,
               global_batch=32, vpp_chunks=3, schedule='interleaved_1f1b', flags=flags, optimizer='adam', vocab=50257,
               untied_embeddings=1, overlap_flags='overlap-p2p(default with vpp)', attention_kind='MHA; backend=auto',
               kv_heads=16, head_dim=64, ffn=4096)  # fmt: skip
    tree = schedule_tree(told)
    assert tree['cluster']['stack'] == 'megatron-te'
    assert (tree['plan']['order'], tree['plan']['chunks'], tree['plan']['receive']) == ('interleaved-1f1b', 3, 'early')
    assert tree['workload']['transformer']['tied'] is False


@pytest.mark.parametrize(
    ('text', 'told'),
    [
        ('id,model\n', ':1: no column framework, hardware'),
        (f'{",".join(COLUMNS)}\n{",".join(["mine:1", "f", "A100", "m", *["1"] * 10, "soon"])}\n',
         ":2: step_time_s: not a number (got 'soon')"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_told_with_its_line(tmp_path, refused, text, told):
    (tmp_path / 'bad.csv').write_text(text, encoding='utf-8')
    assert told in refused('validate', '--data', tmp_path)


def test_an_empty_folder_and_an_unknown_set_are_told(tmp_path, refused):
    assert main(['validate', '--data', str(tmp_path)]) == 2
    told = refused('validate', '--set', 'vtrain')
    assert 'no CSV files here' in told
    assert 'vtrain_a100_measured' in told


@pytest.mark.parametrize(
    ('column', 'word', 'told'), load_table(__file__, 'test_a_cell_that_says_nothing_is_told_with_its_column')
)
def test_a_cell_that_says_nothing_is_told_with_its_column(tmp_path, refused, column, word, told):
    write(tmp_path, {'id': 'mine:1', column: word})
    assert told in refused('validate', '--data', tmp_path)


def test_cells_of_a_row_without_a_step_are_read_by_nobody(tmp_path):
    """Such a row says what was trained elsewhere, in its own words; a vocabulary of 'none' is no number."""
    columns = [*COLUMNS, 'vocab', 'params_b', 'source']
    told = {'id': 'one', 'vocab': 'none', 'params_b': '6.7', 'n_layers': '32', 'hidden': '4096', 'source': 'a paper'}
    with (tmp_path / 'mine.csv').open('w', newline='', encoding='utf-8') as file:
        out = csv.DictWriter(file, columns)
        out.writeheader()
        out.writerow(told)
    assert [one.seconds for one in read_rows(tmp_path)] == [0.0]


@pytest.mark.parametrize(('text', 'dtype', 'fp8'), load_table(__file__, 'test_words_of_precision'))
def test_words_of_precision(text, dtype, fp8):
    assert precision_of(text) == Precision(dtype, fp8)


@pytest.mark.parametrize('text', ['NVFP4', 'mxfp4', 'int8', 'tf32', 'fp8 rowwise', 'float8/blockwise', 'mixed'])
def test_a_precision_that_is_not_modelled_is_named(text):
    with pytest.raises(Skipped):
        precision_of(text)


@pytest.mark.parametrize(('text', 'rate'), load_table(__file__, 'test_words_of_a_network'))
def test_words_of_a_network(text, rate):
    """Devices of a node: 8."""
    assert network_of(text, 8) == Network(rate)


def test_a_rate_that_may_be_a_cards_or_a_nodes_is_not_used_but_told():
    found = network_of('200 Gb/s InfiniBand', 8)
    assert (found.rate, 'of a card or of a node' in found.unsure) == (0, True)
    told = row(n_gpus=16, dp=16, inter_link='200 Gb/s InfiniBand', vocab=50257, dtype='bf16')
    assert 'links' not in schedule_tree(told)['cluster']
    assert list(assumed(told)) == [found.unsure, 'zero_stage of FSDP not stated: 3'][::-1]


@pytest.mark.parametrize(('cells', 'recompute'), load_tree(__file__, 'test_words_of_recomputation'))
def test_words_of_recomputation(cells, recompute):
    assert recompute_of(row(**cells)) == recompute


@pytest.mark.parametrize('text', ['full 30', 'offload', 'selective everything', '{"recompute": [1, 2, 3]}'])
def test_recomputation_in_other_words_is_named(text):
    with pytest.raises(Skipped, match='recomput'):
        recompute_of(row(recompute=text))


def test_torchtitan_keeps_every_second_product_of_a_layer():
    assert 'layer*.proj' in recompute_of(row(framework='torchtitan FSDP2', recompute='selective (op)'))


def test_sequence_parallelism_may_be_told_with_recomputation():
    assert schedule_tree(row(tp=2, dp=4, recompute='selective(attn)+seq-par'))['plan']['sequence_parallel'] is True


@pytest.mark.parametrize(('cells', 'year'), load_table(__file__, 'test_the_year_of_a_framework'))
def test_the_year_of_a_framework(cells, year):
    assert year_of(row(**cells)) == year


def test_the_year_reaches_the_table_of_stacks():
    assert columns.stack_name(row(framework='Megatron-LM', source='arXiv 2104.04473')) == 'megatron-2021'
    silent = row(framework='Megatron-LM', vocab=50257, dtype='bf16')
    assert columns.stack_name(silent) == 'megatron-te'
    assert list(assumed(silent)) == ['year of Megatron-LM not stated: its stack of today']


@pytest.mark.parametrize(('text', 'memory', 'profile'), load_table(__file__, 'test_words_of_an_accelerator'))
def test_words_of_an_accelerator(text, memory, profile):
    assert profile_of_hardware(text, memory) == profile


def test_devices_of_racks_divide_over_the_fewest_nodes():
    cluster = schedule_tree(row(hardware='GB200', n_gpus=256, dp=256, global_batch=512))['cluster']
    assert (cluster['nodes'], cluster['devices']) == (4, 64)


def test_latents_windows_and_shared_experts_are_read():
    kind = 'MLA q_lora=1536 kv_lora=512 qk_head=128 rope_head=64 v_head=128; backend=auto'
    told = row(attention_kind=kind, n_experts=8, topk=2, moe_shared_ffn=512, moe_layer_freq='([0]*1+[1]*3)')
    model = schedule_tree(told)['workload']['transformer']
    assert (model['kv_lora_rank'], model['v_head_dim'], model['position']) == (512, 128, 'rotary')
    assert model['experts'] == {'count': 8, 'top_k': 2, 'shared': 512, 'first_dense': 1}
    assert schedule_tree(row(attention_kind='sliding window 128'))['workload']['transformer']['window'] == 128
    for kind in ('MLA', 'sliding window', 'hybrid M-M*'):
        with pytest.raises(Skipped):
            schedule_tree(row(attention_kind=kind))


def test_mindspeed_without_its_flag_for_flash_attention_has_none():
    flags = {'framework': 'MindSpeed-LLM Mcore', 'overlap_flags': 'use-mc2'}
    assert schedule_tree(row(**flags))['workload']['transformer']['attention'] == 'unfused'
    assert 'attention' not in schedule_tree(row(**{**flags, 'overlap_flags': ''}))['workload']['transformer']


@pytest.mark.parametrize(
    ('model', 'vocabulary'), load_table(__file__, 'test_a_published_model_has_the_vocabulary_of_its_config')
)
def test_a_published_model_has_the_vocabulary_of_its_config(model, vocabulary):
    assert vocabulary_of(model) == vocabulary
