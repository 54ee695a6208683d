"""What owners of files meet: each kind of fault that was seen in public files, with the right value, and variants."""

from pathlib import Path

import pytest
import yaml
from every import some
from launch_sources import MODEL
from tables import load_table, load_tree

from simpar import cli, load_schedule
from simpar.case import choices, cluster_of, load_case
from simpar.errors import ScheduleError
from simpar.importing.mapping import schedule_text
from simpar.importing.read import imported

SIZES = '--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 '
SIZES += '--vocab-size 32000 --hidden-dropout 0 --attention-dropout 0 --bf16 '
COMMON = f'{SIZES}--micro-batch-size 1 --global-batch-size 64 '
EIGHT = f'torchrun --nproc_per_node 8 pretrain_gpt.py {COMMON}'
SPEED = f'deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py --deepspeed {COMMON}'
ASCEND = f'export HCCL_CONNECT_TIMEOUT=1\n{EIGHT}'
LLAMA = '--swiglu --disable-bias-linear --position-embedding-type rope '
MIXTURE = f'{LLAMA}--num-experts 8 --moe-router-topk 2 '
_T, _E = 'workload.transformer', 'workload.transformer.experts'
FORMERS = 'type: LlamaConfig, num_layers: 80, hidden_size: 8192, num_heads: 64, n_kv_heads: 8, vocab_size: 128256'
FORMERS = f'model: {{model_config: {{{FORMERS}, seq_length: 8192, ffn_dim_multiplier: 1.3, multiple_of: 256}}}}\n'
HYDRA = 'model.num_layers=8 model.hidden_size=512 model.num_attention_heads=8 model.encoder_seq_length=512 '
HYDRA += 'model.micro_batch_size=1 model.global_batch_size=64 trainer.precision=bf16 +model.vocab_size=32000'
ARGS = ''.join(f'  --{one.strip().replace(" ", ": ", 1)}\n' for one in COMMON.split('--') if ' ' in one.strip())

WORDS = {'EIGHT': EIGHT, 'SPEED': SPEED, 'ASCEND': ASCEND, 'MIXTURE': MIXTURE, 'LLAMA': LLAMA, 'FORMERS': FORMERS,
         'HYDRA': HYDRA, 'ARGS': ARGS, 'COMMON': COMMON, 'SIZES': SIZES}  # fmt: skip


def cases(kind):
    """Files of launch_cases.yaml by name: (name of the file, its text, what is expected)."""
    found = yaml.safe_load(Path(__file__).with_name('launch_cases.yaml').read_text(encoding='utf-8'))[kind]
    for one in found.values():
        for name, text in WORDS.items():
            one['text'] = one['text'].replace(f'<{name}>', text)
    return {name: tuple(one.values()) for name, one in found.items()}


RIGHT, REFUSED = cases('right'), cases('refused')
LOWERED = some(RIGHT, 6)


BATCH = 'micro_batch_size: 1, global_batch_size: 8, seq_length: 512'
ALONE = ('K10 a text for another script', 'K10 arrays alone', 'K10 an exported text', 'K8 GPT-NeoX',
         'K8 GPT-NeoX with a gate',
         'K8 arguments of tests', 'K8 Megatron-Bridge', 'K8 Megatron-Bridge sums of fewer bits',
         'K8 Megatron-Bridge recipe over sums', 'K8 Megatron-Bridge with FSDP', 'K8 Primus')  # fmt: skip
GIVEN = dict.fromkeys(ALONE, 8)
"""Devices of files that do not say them."""


def made_of(tmp_path, name, text, devices=0):
    path = tmp_path / name
    path.write_text(f'{text}\n', encoding='utf-8')
    given = {'nnodes': '1', 'nproc-per-node': str(devices)} if devices else {}
    return imported(path, given=given, model=str(MODEL) if name.endswith('.json') else '')


@pytest.mark.parametrize('case', RIGHT)
def test_a_file_comes_to_the_right_values_and_its_schedule_is_lowered(case, tmp_path):
    name, text, right = RIGHT[case]
    made = made_of(tmp_path, name, text, GIVEN.get(case, 0))
    assert {key: made.values.get(key) for key in right} == right
    schedule = load_schedule(schedule_text(made, name))
    # All that a program needs is chosen for each file; some of these programs are made.
    assert choices(schedule, cluster_of(schedule))
    assert case not in LOWERED or load_case(schedule_text(made, name)).program


@pytest.mark.parametrize('case', REFUSED)
def test_what_shapes_a_model_or_a_plan_and_is_not_understood_ends_the_import(case, tmp_path):
    name, text, said = REFUSED[case]
    with pytest.raises(ScheduleError) as error:
        made_of(tmp_path, name, text)
    assert said in str(error.value)


BESIDE = load_table(__file__, 'BESIDE')


@pytest.mark.parametrize('text', BESIDE)
def test_a_file_without_a_model_says_the_plan_of_one_that_is_given(text, tmp_path):
    (tmp_path / 'a.yaml').write_text(text)
    made = imported(tmp_path / 'a.yaml', given={}, model=str(MODEL))
    assert {key: made.values.get(key) for key in BESIDE[text]} == BESIDE[text]
    assert load_case(schedule_text(made, 'a.yaml')).program


OWN = 'model_name_or_path: x\nstage: sft\nfinetuning_type: full\ndeepspeed: ds.json\nbf16: true\ncutoff_len: 1024\n'
OWN += 'devices: 8\n'
ZERO = '"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": "auto"}'
_SHAPE = ('plan.micro_batches', 'workload.batch', 'workload.precision', 'plan.zero', 'plan.shard_threshold')
# A configuration, the DeepSpeed file that it names, and what both come to: huggingface/transformers 02348331be,
# integrations/deepspeed.py, fills auto in (10 × hidden numbers of 2 bytes stay whole) and takes no other difference.
AGREED = load_table(__file__, 'AGREED')


@pytest.mark.parametrize('case', AGREED)
def test_a_configuration_and_its_deepspeed_file_come_to_what_the_trainer_takes(case, tmp_path):
    own, beside, right = AGREED[case]
    (tmp_path / 'a.yaml').write_text(own)
    (tmp_path / 'ds.json').write_text(beside)
    made = imported(tmp_path / 'a.yaml', given={}, model=str(MODEL))
    assert tuple(made.values.get(key) for key in _SHAPE) == right


FOUR = f'{OWN}gradient_accumulation_steps: 4\n'
# What contradicts, and the two places that the error names.
CONTRADICTED = load_table(__file__, 'CONTRADICTED')


@pytest.mark.parametrize('case', CONTRADICTED)
def test_two_files_that_contradict_are_refused_with_the_lines_of_both(case, tmp_path):
    name, text, beside, told = CONTRADICTED[case]
    (tmp_path / name).write_text(f'{text}\n')
    (tmp_path / 'ds.json').write_text(beside or '{}')
    with pytest.raises(ScheduleError) as error:
        imported(tmp_path / name, given={}, model=str(MODEL) if name == 'a.yaml' else '')
    assert all(word in str(error.value) for word in told), str(error.value)


@pytest.mark.parametrize(('flags', 'told'), [
    (f'{EIGHT} {MIXTURE} --expert-model-parallel-size 4', 'allgather is taken where no moe-token-dispatcher-type'),
    (f'{ASCEND} --context-parallel-size 2', 'MindSpeed alone takes ulysses_cp_algo'),
])  # fmt: skip
def test_a_default_that_is_not_what_is_written_is_told(flags, told, tmp_path):
    (tmp_path / 'a.sh').write_text(f'{flags}\n')
    assert any(told in one for one in imported(tmp_path / 'a.sh', given={}).assumed)


def test_a_deepspeed_file_without_micro_batches_is_told(tmp_path):
    (tmp_path / 'a.yaml').write_text(FOUR)
    (tmp_path / 'ds.json').write_text(f'{{{ZERO}}}')
    made = imported(tmp_path / 'a.yaml', given={}, model=str(MODEL))
    assert any('takes 1 then' in one for one in made.assumed)


def test_a_file_of_deepspeed_beside_a_script_says_the_stage_of_zero(tmp_path):
    (tmp_path / 'ds.json').write_text('{"zero_optimization": {"stage": 2}}')
    made = made_of(tmp_path, 'a.sh', f'{SPEED} --deepspeed_config configs/ds.json')
    assert made.values['plan.zero'] == 2
    assert not any('is not here' in one for one in made.assumed)


def test_a_script_that_sources_another_has_its_variables(tmp_path):
    (tmp_path / 'sizes.sh').write_text('TP=4\nSIZES=(--num-layers 8)\n')
    text = f'source "$(dirname "$0")/sizes.sh"\n{EIGHT} "${{SIZES[@]}}" --tensor-model-parallel-size $TP'
    (tmp_path / 'run.sh').write_text(text)
    values = imported(tmp_path / 'run.sh', given={}).values
    assert (values['plan.tensor'], values[f'{_T}.layers']) == (4, 8)


def test_arguments_of_a_script_stand_behind_two_dashes(tmp_path, printed, refused):
    text = 'TP=${10}\nif [ $2 = 8B ]; then LAYERS=32; elif [ $2 = 70B ]; then LAYERS=80; fi\n'
    text += f'{EIGHT.replace("-layers 32", "-layers $LAYERS")} --tensor-model-parallel-size $TP\n'
    (tmp_path / 'a.sh').write_text(text)
    told = refused('import', tmp_path / 'a.sh')
    assert '--num-layers: $2 is not assigned; give it: --set 2=…, or all arguments of the script behind --' in told
    words = ['import', str(tmp_path / 'a.sh'), '--', 'dsw', '8B', *'3456789', '4']
    written = printed(*words)
    assert '  layers: 32 ' in written
    assert '  tensor: 4 ' in written


def test_a_model_of_primus_is_built_on_others_that_lie_beside_or_in_its_checkout(tmp_path):
    text = f'modules: {{pre_trainer: {{framework: megatron, model: "${{M:a}}.yaml", overrides: {{{BATCH}}}}}}}'
    models = tmp_path / 'primus/configs/models/megatron'
    models.mkdir(parents=True)
    (models / 'a.yaml').write_text('extends: [b.yaml]\nnum_layers: 8\nhidden_size: 512\nnum_attention_heads: 8\n')
    with pytest.raises(ScheduleError, match=r'b\.yaml: not modelled: a file that the model is built on'):
        made_of(tmp_path, 'job.yaml', text, 8)
    (models / 'b.yaml').write_text('num_layers: 2\nnum_experts: 4\nvocab_size: 32000\nposition_embedding_type: rope\n')
    values = made_of(tmp_path, 'job.yaml', text, 8).values
    assert (values[f'{_T}.layers'], values[f'{_E}.count']) == (8, 4)


def test_gaps_go_with_the_schedule_into_its_answer(tmp_path, capsys, printed):
    small = EIGHT.replace('32 --hidden', '2 --hidden').replace('4096', '64')
    (tmp_path / 'a.sh').write_text(f'{small} --cpu-offloading --frobnicate 3\n')
    out = tmp_path / 'a.yaml'
    assert cli.main(['import', str(tmp_path / 'a.sh'), '--output', str(out)]) == 0
    gaps = ('--cpu-offloading (offloading to host memory)', '--frobnicate 3')
    assert load_schedule(out).gaps == gaps
    capsys.readouterr()
    # Once, in the headline, and not again in a note.
    assert ' '.join(printed('run', out).split()).count(f'does not model (gaps): {", ".join(gaps)}.') == 1


def test_what_cannot_be_lowered_is_told_by_the_import(tmp_path, refused):
    """The schema takes 8 ranks that share 8 experts; 4 data ranks are no multiple of it."""
    (tmp_path / 'a.sh').write_text(f'{EIGHT} {MIXTURE} --tensor-model-parallel-size 2')
    assert 'a.sh: the schedule that it comes to cannot be: ' in refused(
        'import', tmp_path / 'a.sh', '--set', 'plan.expert=8'
    )


def test_a_path_that_names_an_accelerator_without_a_profile_is_told_first(tmp_path):
    made = made_of(tmp_path, 'train_mi250x.sh', EIGHT)
    said = 'h100-sxm-8: the file names mi250x, and no profile is of it; --cluster says another'
    assert made.assumed[0] == said
    assert 'the path of the file says b200' in made_of(tmp_path, '8xb200.sh', EIGHT).assumed[0]


@pytest.mark.parametrize(('name', 'profile'), [('a_A5_ptd.sh', 'ascend950-8'), ('a_A2_ptd.sh', 'ascend910b-8')])
def test_a_name_in_the_words_of_mindspeed_says_the_accelerator(tmp_path, name, profile):
    made = made_of(tmp_path, name, f'{ASCEND} --use-flash-attn')
    assert made.values['cluster.profile'] == profile
    assert ('the name of the file says A5' in made.assumed[0]) is (profile == 'ascend950-8')


FACTORY = 'stage: sft\nfinetuning_type: lora\nbf16: true\ncutoff_len: 64\ndevices: 8\nper_device_train_batch_size: 1\n'
ADAPTED = load_tree(__file__, 'ADAPTED')


@pytest.mark.parametrize('text', ADAPTED)
def test_adapters_of_llama_factory_stand_beside_the_model(text, tmp_path):
    (rank, scale, of), gap = ADAPTED[text]
    (tmp_path / 'a.yaml').write_text(f'{FACTORY}{text}\n')
    made = imported(tmp_path / 'a.yaml', given={}, model=str(MODEL))
    keys = ('workload.lora.rank', 'workload.lora.scale', 'workload.lora.of', 'workload.gradients')
    # What is trained is kept in fp32 and summed by torch, without DeepSpeed.
    assert tuple(made.values.get(key) for key in keys) == (rank, scale, of, 'fp32')
    assert made.values['plan.reduce_gradients'] == 'overlapped'
    assert gap in str(made.values.get('gaps', ''))
    assert bool(gap) is ('gaps' in made.values)
    lora = load_schedule(schedule_text(made, 'a.yaml')).workload.model.lora
    assert (lora.rank, lora.scale, list(lora.of)) == (rank, scale, of)


@pytest.mark.parametrize(('model', 'apart'), [('phi_3_mini_4k', False), ('phi_2', True)])
def test_which_modules_are_one_product_hangs_on_the_model(model, apart, tmp_path):
    (tmp_path / 'a.yaml').write_text(f'{FACTORY}lora_target: all\n')
    made = imported(tmp_path / 'a.yaml', given={}, model=f'tests/configs/{model}.json')
    assert ('gaps' in made.values) is apart
    assert 'gate_proj' not in str(made.values.get('gaps', ''))


NOT_ADAPTED = load_table(__file__, 'NOT_ADAPTED')


@pytest.mark.parametrize('text', NOT_ADAPTED)
def test_adapters_of_another_meaning_are_refused_by_name(text, tmp_path):
    model, told = NOT_ADAPTED[text]
    (tmp_path / 'a.yaml').write_text(f'{FACTORY}{text}\n')
    with pytest.raises(ScheduleError) as error:
        imported(tmp_path / 'a.yaml', given={}, model=f'tests/configs/{model}.json' if model else str(MODEL))
    assert told in str(error.value).replace('\n    ', ' ')


def test_settings_of_adapters_have_no_effect_without_these(tmp_path):
    (tmp_path / 'a.yaml').write_text(f'{FACTORY.replace("lora", "full")}lora_rank: 8\nlora_target: all\n')
    made = imported(tmp_path / 'a.yaml', given={}, model=str(MODEL))
    assert not [key for key in made.values if 'lora' in key or key == 'gaps']


def test_adapters_that_a_plan_cannot_shard_are_told_by_the_import(tmp_path, refused):
    (tmp_path / 'a.yaml').write_text(f'{FACTORY}deepspeed: ds_z3_config.json\nlora_target: o_proj\n')
    assert 'not yet beside workload.transformer.lora' in refused(
        'import', str(tmp_path / 'a.yaml'), '--model', str(MODEL)
    )


def test_adapters_of_a_script_stand_beside_the_model_that_is_given(tmp_path):
    text = f'{ASCEND} --lora-target-modules linear_qkv --lora-r 8 --lora-alpha 16'
    (tmp_path / 'a.sh').write_text(text)
    made = imported(tmp_path / 'a.sh', given={}, model=str(MODEL))
    assert (made.values['workload.lora.of'], made.values['workload.lora.scale']) == (['qkv'], 2.0)


def test_attention_and_states_that_both_wait_on_the_host_are_both_said(tmp_path):
    made = made_of(tmp_path, 'a.sh', f'{ASCEND} --use-flash-attn --swap-attention --swap-optimizer')
    assert made.values['plan.offload'] == ['attention', 'optimizer']
