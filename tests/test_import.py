"""Files of other launchers become schedules: what bash would hand on, sizes that were published, nothing left out."""

import os
import subprocess
from pathlib import Path

import pytest
from docs_tables import schedule_table_keys
from every import EVERY
from launch_sources import FOLDER, MODEL, SOURCES, given_beside, model_beside
from tables import load_table

from simpar import cli, load_case, load_profile
from simpar.errors import ScheduleError
from simpar.exporting.export import export
from simpar.huggingface.families import MODELS
from simpar.importing import accelerate, deepspeed, megatron, mindformers, mindspeed, mixtures, torchtitan
from simpar.importing.findings import IDLE, MAPPED, NOT_MODELLED, NOT_TAKEN, UNSEEN
from simpar.importing.first import first_schedules
from simpar.importing.mapping import schedule_text
from simpar.importing.megatron import MEGATRON
from simpar.importing.read import imported
from simpar.importing.shell import read_script
from simpar.schedule import check_against_cluster, load_schedule, written
from simpar.units import parse

OUTCOMES = {MAPPED, IDLE, NOT_MODELLED, UNSEEN, NOT_TAKEN}
SMALL = '--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 100 --bf16'
BATCH = '--micro-batch-size 1 --global-batch-size 32'
RUN = 'torchrun --nproc_per_node 8 x.py'

SCRIPTS = load_table(__file__, 'SCRIPTS')


def from_bash(text, tmp_path):
    """The words that bash hands to torchrun and msrun; nothing else is in the path."""
    (tmp_path / 'script.sh').write_text(
        'torchrun() { printf \'%s\\0\' "$@" end >> "$FOUND"; }\nmsrun() { torchrun "$@"; }\ncat() { :; }\n' + text
    )
    found = tmp_path / 'found'
    found.write_text('')
    subprocess.run(['/bin/bash', tmp_path / 'script.sh'], check=False, env={'FOUND': str(found), 'PATH': ''})
    return [run.split('\0') for run in found.read_text().removesuffix('\0end\0').split('\0end\0')]


def from_us(text):
    commands = read_script(text, {}).commands
    return [[one.text for one in command[1:]] for command in commands if command[0].text in ('torchrun', 'msrun')]


@pytest.mark.skipif(not Path('/bin/bash').exists(), reason='bash is the oracle')
def test_a_script_comes_to_the_words_that_bash_makes_of_it(tmp_path):
    for name, text in SCRIPTS.items():
        assert from_us(text) == from_bash(text, tmp_path), name
    for name in SOURCES:
        if name.endswith('.sh'):
            text = (FOLDER / name).read_text(encoding='utf-8')
            assert from_us(text) == from_bash(text, tmp_path), name


@pytest.mark.parametrize('name', SOURCES)
def test_a_public_file_is_imported_and_its_schedule_says_the_same_again(name):
    made = imported(FOLDER / name, given=given_beside(name), model=model_beside(name))
    text = schedule_text(made, name)
    schedule = load_schedule(text)
    assert load_schedule(written(schedule)) == schedule
    assert {line.outcome for line in made.lines} <= OUTCOMES
    assert all(line.keys for line in made.lines if line.outcome == MAPPED)
    assert all(line.note or line.outcome in (MAPPED, UNSEEN, NOT_TAKEN) for line in made.lines)
    listed = [line for line in made.lines if line.outcome != MAPPED]
    assert all(f'{line.where}: {line.name}' in text for line in listed)


def test_every_flag_of_a_script_has_a_line(tmp_path):
    for name in SOURCES:
        if name.endswith('.sh'):
            words = from_us((FOLDER / name).read_text(encoding='utf-8'))[0]
            flags = [word for word in words if word.startswith('--')]
            told = [line.name for line in imported(FOLDER / name, given=given_beside(name)).lines]
            assert sorted(flags) == sorted(one for one in told if one.startswith('--')), name


PUBLISHED = load_table(__file__, 'PUBLISHED')


@pytest.mark.parametrize('name', PUBLISHED)
def test_an_imported_model_has_the_published_parameters(name):
    workload = load_schedule(schedule_text(imported(FOLDER / name, given=given_beside(name)), name)).workload
    assert workload.model.graph(workload.batch).parameters == PUBLISHED[name]


def test_a_plan_is_the_one_that_the_flags_say(tmp_path):
    """GPT-3 on the 128 devices that tensor 8 × pipeline 16 need, and Llama 3 405B on the 128 of its comment."""
    schedule = load_schedule(schedule_text(imported(FOLDER / 'megatron_gpt3_175b.sh', given={}), 'x'))
    model, plan = schedule.workload.model, schedule.plan
    assert (model.layers, model.hidden, model.heads, model.sequence) == (96, 12288, 96, 2048)
    assert (plan.tensor, plan.pipeline, plan.micro_batches, schedule.workload.batch) == (8, 16, 1536, 1536)
    assert schedule.cluster.nodes == 16
    schedule = load_schedule(schedule_text(imported(FOLDER / 'torchtitan_llama3_405b.toml', given={}), 'x'))
    assert (schedule.plan.tensor, schedule.plan.zero, schedule.plan.recompute) == (8, 3, 'full')
    assert (schedule.workload.batch, schedule.workload.fp8, schedule.cluster.nodes) == (32, 'hybrid', 16)


LAUNCHERS = (
    (megatron, MEGATRON), (mindspeed, mindspeed.MINDSPEED), (deepspeed, deepspeed.MEGATRON_DEEPSPEED),
    (torchtitan, torchtitan.TORCHTITAN), (deepspeed, deepspeed.DEEPSPEED),
    (mindformers, mindformers.MINDFORMERS), (megatron, megatron.NEMO), (deepspeed, deepspeed.GPT_NEOX),
    (accelerate, accelerate.ACCELERATE), (accelerate, accelerate.LLAMA_FACTORY),
)  # fmt: skip
KINDS = {'', 'count', 'count > 0', 'count > 1', 'number', 'number > 0', 'switch'}


@pytest.mark.parametrize(('module', 'source'), LAUNCHERS, ids=[source.name for _, source in LAUNCHERS])
def test_every_row_of_a_table_has_a_key_a_value_or_a_rule_and_its_names_once(module, source):
    keys = {line.rpartition('.0')[0] or line for line in schedule_table_keys()}
    keys |= {'workload.transformer', 'workload.sequence'}
    for row in source.table.rows.values():
        assert row.key in keys, row
        assert row.value in KINDS or row.value.startswith('= ') or row.choices, row
        assert row.value in ('count', 'number', 'switch') or row.rule, row
        # A fork has the rules of what it is built on.
        modules = (module, deepspeed, megatron, mixtures)
        assert not row.rule or any(callable(getattr(one, row.rule, None)) for one in modules), row
    assert not source.table.aliases.keys() & source.table.rows.keys()


def script(tmp_path, text, name='train.sh'):
    path = tmp_path / name
    path.write_text(text, encoding='utf-8')
    return str(path)


def test_what_is_not_assigned_is_asked_for_and_set(tmp_path, refused, json_of):
    path = script(
        tmp_path, f'torchrun --nproc_per_node 8 pretrain_gpt.py {SMALL} {BATCH} --tensor-model-parallel-size $TP\n'
    )
    assert '--set TP=' in refused('import', path)
    answer = json_of('import', path, '--set', 'TP=4', '--set', 'plan.recompute=full')
    plan = load_schedule(answer['schedule']).plan
    assert (plan.tensor, plan.recompute) == (4, 'full')
    assert {one['name'] for one in answer['settings']} >= {'--tensor-model-parallel-size', '--bf16'}


def test_a_list_of_arguments_and_printed_arguments_are_read(tmp_path):
    """A log says how many ranks there were; a list of flags has to be told."""
    path = Path(script(tmp_path, f'{SMALL}\n{BATCH}\n--frobnicate 3\n', 'args.txt'))
    listed = imported(path, given={'nnodes': '2', 'nproc-per-node': '8'})
    assert next(line for line in listed.lines if line.name == '--frobnicate').outcome == UNSEEN
    printed = [one.partition(' ') for one in f' {SMALL} {BATCH} --world_size 16'.split(' --') if one]
    text = ''.join(f'  {name.replace("-", "_")} {"." * 20} {value or "True"}\n' for name, _, value in printed)
    again = imported(Path(script(tmp_path, text, 'log.txt')), given={})
    assert {**again.values, 'gaps': ['--frobnicate 3']} == listed.values
    assert listed.values['cluster.nodes'] == 2


def test_pipelines_recomputation_and_shards_are_said_in_our_words(tmp_path):
    flags = (
        '--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 --recompute-granularity full '
        '--recompute-method block --recompute-num-layers 1 --use-distributed-optimizer --sequence-parallel '
        '--tensor-model-parallel-size 2 --tp-comm-overlap'
    )
    path = script(tmp_path, f'torchrun --nproc_per_node 8 pretrain_gpt.py {SMALL} {BATCH} {flags}\n')
    made = imported(Path(path), given={})
    plan = load_schedule(schedule_text(made, 'x')).plan
    assert (plan.order, plan.chunks, plan.zero, plan.tiles) == ('interleaved-1f1b', 2, 1, 2)
    assert plan.sequence_parallel
    # A block of one layer is all of a chunk that has one.
    assert plan.recompute == 'full'
    assert next(line for line in made.lines if line.name == '--recompute-num-layers').outcome == MAPPED


def plan_of(tmp_path, flags, sizes=SMALL):
    path = script(tmp_path, f'torchrun --nproc_per_node 8 pretrain_gpt.py {sizes} {BATCH} {flags}\n')
    made = imported(Path(path), given={})
    text = schedule_text(made, 'x')
    # What is written lowers, too: patterns name operators that there are.
    (tmp_path / 'plan.yaml').write_text(text)
    assert load_case(tmp_path / 'plan.yaml').program
    return load_schedule(text).plan


MIXTURE = f'{SMALL} --num-experts 8 --moe-layer-freq 2 --disable-bias-linear --swiglu'
MODULES = load_table(__file__, 'MODULES')


@pytest.mark.parametrize('modules', MODULES)
def test_modules_that_are_recomputed_are_patterns_of_their_operators(modules, tmp_path):
    sizes, recompute = MODULES[modules]
    flags = f'--recompute-granularity selective --recompute-modules {modules} --pipeline-model-parallel-size 2'
    assert plan_of(tmp_path, flags, sizes).recompute == recompute


LAYERS = load_table(__file__, 'LAYERS')


@pytest.mark.parametrize('flags', LAYERS)
def test_layers_lie_on_stages_as_the_flags_of_a_pipeline_say(flags, tmp_path):
    sizes = SMALL.replace('--num-layers 4', '--num-layers 6')
    plan = plan_of(tmp_path, f'--pipeline-model-parallel-size 4 {flags}', sizes)
    assert (plan.stages, plan.chunks, plan.recompute) == LAYERS[flags]


def test_a_script_with_lines_of_windows_is_the_same(tmp_path):
    texts = []
    for end in ('\n', '\r\n'):
        path = tmp_path / 'train.sh'
        flags = SMALL.replace(' --', ' \\\n --')
        text = f'ARGS="{flags} {BATCH}"\ntorchrun --nproc_per_node 8 pretrain_gpt.py $ARGS\n'
        path.write_bytes(text.replace('\n', end).encode())
        texts.append(schedule_text(imported(path, given={}), 'x'))
    assert texts[0] == texts[1]


def test_layers_of_multi_token_prediction_in_a_layout_are_listed(tmp_path):
    layout = '--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout "Et|t|t|tmL"'
    path = script(tmp_path, f'torchrun --nproc_per_node 8 pretrain_gpt.py {SMALL} {BATCH} {layout}\n')
    [gap] = load_schedule(schedule_text(imported(Path(path), given={}), 'x')).gaps
    assert gap.startswith('--pipeline-model-parallel-layout Et|t|t|tmL')


TWELVE = '--num-layers 12 --micro-batch-size 2 --global-batch-size 2048 '
TWELVE += '--tensor-model-parallel-size 4 --pipeline-model-parallel-size 12'
JOBS = load_table(__file__, 'JOBS')


@pytest.mark.parametrize('case', JOBS)
def test_what_a_job_asks_of_slurm_is_known_to_its_variables(case, tmp_path):
    """The cluster of BigScience's scripts: 24 nodes of 8, of which tensor 4 × pipeline 12 leave data 4."""
    asked, each, nodes, count, devices = JOBS[case]
    launch = f'torchrun --nproc_per_node {each} --nnodes {nodes}'
    text = f'#!/bin/bash\n{asked}\n{launch} x.py {SMALL} {TWELVE}\n'
    made = imported(Path(script(tmp_path, text)), given={})
    schedule = load_schedule(schedule_text(made, 'x'))
    assert (schedule.cluster.nodes, schedule.cluster.devices or 8) == (count, devices)
    assert (schedule.workload.batch, schedule.plan.micro_batches) == (2048, 256)


def test_processes_that_srun_starts_are_counted_where_no_launcher_is(tmp_path):
    flags = f'python x.py {SMALL} {BATCH}'
    for launch in (
        f'srun -N 4 --gres=gpu:a100:8 --ntasks-per-node=8 --label {flags}',
        f"srun --nodes=4 --ntasks-per-node 8 -J name bash -c '{flags}'",
        f'#SBATCH --ntasks=32\n#SBATCH --nodes=4\nsrun --kill-on-bad-exit=1 {flags}',
        f'N=4\nsbatch <<EOF\n#SBATCH --nodes=$N --ntasks-per-node=8\nEOF\n{flags}',
    ):
        made = imported(Path(script(tmp_path, launch)), given={})
        assert (made.values['cluster.nodes'], made.values.get('cluster.devices', 8)) == (4, 8), launch
        # One sample of each of 32 data ranks.
        assert made.values['plan.micro_batches'] == 1
        assert made.values['cluster.profile'] == ('a100-sxm-8' if 'a100' in launch else 'h100-sxm-8')


def test_nodes_are_as_large_as_the_script_has_them(tmp_path):
    """Four devices of each of 32 nodes are not sixteen full nodes; nodes of sixteen are of another machine."""
    launch = f'torchrun --nproc_per_node 4 --nnodes 32 x.py {SMALL} --micro-batch-size 1 --global-batch-size 128'
    made = imported(Path(script(tmp_path, launch)), given={})
    assert (made.values['cluster.nodes'], made.values['cluster.devices']) == (32, 4)
    launch = f'export HCCL_CONNECT_TIMEOUT=1\ntorchrun --nproc_per_node 16 --nnodes 2 x.py {SMALL} {BATCH}'
    made = imported(Path(script(tmp_path, launch)), given={})
    assert (made.values['cluster.profile'], made.values['cluster.nodes']) == ('ascend910c-16', 2)
    assert made.assumed[0].startswith('ascend910c-16: the file names no accelerator')
    made = imported(Path(script(tmp_path, launch)), given={}, profile='ascend910b-8')
    assert (made.values['cluster.nodes'], made.values.get('cluster.devices')) == (4, None)
    assert made.assumed[0] == 'nodes of 8 devices: the file has 16 on each, ascend910b-8 has 8'


def test_a_script_of_bigscience_has_its_cluster_its_age_and_its_framework(tmp_path):
    """As bigscience-workshop/bigscience tr1-13B: 24 nodes of V100, all layers made again, attention unfused."""
    flags = f'{TWELVE} --checkpoint-activations --deepspeed --deepspeed_config ds.json'
    text = (
        '#SBATCH --constraint=v100-32g\n#SBATCH --nodes=24\n#SBATCH --ntasks-per-node=1  # one launcher\n'
        '#SBATCH --gres=gpu:8   # of a node\nGPUS_PER_NODE=8\nNNODES=$SLURM_NNODES\n'
        'MASTER=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\n'
        'export LAUNCHER="python -m torch.distributed.launch --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES '
        f'--master_addr $MASTER"\nexport CMD="x.py {SMALL} {flags}"\n'
        "srun --jobid $SLURM_JOBID bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD' 2>&1 | tee log\n"
    )
    made = imported(Path(script(tmp_path, text)), given={})
    found = {key: made.values[f'cluster.{key}'] for key in ('profile', 'nodes', 'stack')}
    assert found == {'profile': 'v100-sxm2-8', 'nodes': 24, 'stack': 'megatron-2021'}
    assert made.values['plan.micro_batches'] == 256
    assert made.values['plan.recompute'] == 'full'
    assert made.values['workload.transformer.attention'] == 'unfused'


DEEPSPEED_RUN = 'deepspeed --num_nodes 4 --num_gpus 8 pretrain_gpt.py --deepspeed --deepspeed_config ds.json'
LLAMA_7B = '--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000 --bf16 '
LLAMA_7B += '--micro-batch-size 1 --global-batch-size 64 --swiglu --ffn-hidden-size 11008 --disable-bias-linear'
OF_DEEPSPEED = load_table(__file__, 'OF_DEEPSPEED')


@pytest.mark.parametrize('flags', OF_DEEPSPEED)
def test_flags_of_megatron_deepspeed_are_known(flags, tmp_path):
    made = imported(Path(script(tmp_path, f'{DEEPSPEED_RUN} {LLAMA_7B} {flags}\n')), given={})
    assert (made.kind, made.values['cluster.stack']) == ('Megatron-DeepSpeed', 'megatron-2021')
    assert {key: made.values.get(key) for key in OF_DEEPSPEED[flags]} == OF_DEEPSPEED[flags]
    assert not [line for line in made.lines if line.outcome == UNSEEN]


def test_a_here_document_says_the_stage_of_zero(tmp_path):
    text = 'Z=2\ncat <<EOT > ds.json\n{"train_batch_size": 64, "zero_optimization": {"stage": $Z}}\nEOT\n'
    text += f'{DEEPSPEED_RUN} {LLAMA_7B.replace("--vocab-size 32000", "--pad-vocab-size-to 250880")}\n'
    values = imported(Path(script(tmp_path, text)), given={}).values
    assert (values['plan.zero'], values['workload.transformer.vocab']) == (2, 250880)
    assert imported(Path(script(tmp_path, text)), given={'zero-stage': '1'}).values['plan.zero'] == 1


@pytest.mark.parametrize('flags', ['--full-attention-interval 4 --linear-num-value-heads 32', '--lora-r 16'])
def test_a_flag_that_makes_another_model_of_it_is_refused_unless_it_is_taken_away(flags, tmp_path, capsys):
    text = f'export HCCL_CONNECT_TIMEOUT=1\n{RUN} {SMALL} {BATCH} {flags}\n'
    assert cli.main(['import', script(tmp_path, text)]) == 2
    name = flags.split()[0][2:]
    told = capsys.readouterr().err
    assert f'--{name}: not modelled: ' in told
    assert f'--set {name}=false' in told
    away = [f'--set={one[2:]}=false' for one in flags.split() if one.startswith('--')]
    assert cli.main(['import', script(tmp_path, text), *away]) == 0


@pytest.mark.parametrize(
    'old', ['--checkpoint-activations --checkpoint-num-layers 2', '--activations-checkpoint-method uniform']
)
def test_full_layers_are_recomputed_in_the_words_of_before_2022(old, tmp_path):
    values = imported(Path(script(tmp_path, f'{RUN} {SMALL} {BATCH} {old}\n')), given={}).values
    assert values['plan.recompute'] == 'full'


def test_a_script_assigns_over_what_slurm_says(tmp_path):
    text = f'#SBATCH --nodes=8\nSLURM_NNODES=2\n{RUN.replace("8", "8 --nnodes $SLURM_NNODES")} {SMALL} {BATCH}'
    assert imported(Path(script(tmp_path, text)), given={}).values['cluster.nodes'] == 2
    assert imported(Path(script(tmp_path, text)), given={'SLURM_NNODES': '4'}).values['cluster.nodes'] == 4


def test_a_number_of_devices_that_nobody_says_is_asked_for(tmp_path, capsys, printed, refused):
    """Two data ranks or two thousand: the answer hangs on it, so none is guessed."""
    path = script(tmp_path, f'torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES x.py {SMALL} {BATCH}\n')
    assert ':1: --nnodes: $SLURM_NNODES is not known; give the number, e.g. --set SLURM_NNODES=8' in refused(
        'import', path
    )
    assert '  nodes: 4' in printed('import', path, '--set', 'SLURM_NNODES=4')
    for text in ('srun python x.py', 'torchrun x.py', 'torchrun --nnodes 1:4 --nproc_per_node 8 x.py'):
        assert cli.main(['import', script(tmp_path, f'{text} {SMALL} {BATCH}\n')]) == 2, text
        assert '--set nnodes=8' in capsys.readouterr().err
    for name, beside in (('x.toml', []), ('x.json', ['--model', str(MODEL)])):
        text = '[model]\nname = "llama3"\nflavor = "8B"\n' if name == 'x.toml' else '{"train_batch_size": 64}'
        assert '--set devices=' in refused('import', script(tmp_path, text, name), *beside)


def test_what_was_assumed_comes_first_and_the_mapped_rest_on_demand(tmp_path, capsys):
    path = script(tmp_path, f'{RUN} {SMALL} {BATCH} --frobnicate 3 --cpu-offloading\n')
    assert cli.main(['import', path]) == 0
    answer = capsys.readouterr()
    lines = answer.err.splitlines()
    assert lines[0] == 'Assumed: h100-sxm-8: the file names no accelerator; --cluster says another'
    assert lines[0] in answer.out.splitlines()[1]
    missing = [line.partition(' ')[0] for line in lines if 'Assumed' not in line][:-1]
    assert missing == ['unknown:', 'not']
    assert '--hidden-size' not in answer.err
    assert lines[-1].endswith('--full lists them')
    assert cli.main(['import', path, '--full', '--cluster', 'a100-sxm-8']) == 0
    told = capsys.readouterr().err
    assert '--hidden-size 64' in told
    assert 'names no accelerator' not in told


@pytest.mark.parametrize(
    ('flags', 'exchange', 'receive'),
    load_table(__file__, 'test_virtual_stages_exchange_beside_computation_unless_a_flag_forbids'),
)
def test_virtual_stages_exchange_beside_computation_unless_a_flag_forbids(flags, exchange, receive, tmp_path):
    """Megatron-LM, arguments.py: overlap_p2p_comm is on, and set to False without the interleaved schedule."""
    flags = f'--pipeline-model-parallel-size 2 {flags}'
    path = script(tmp_path, f'torchrun --nproc_per_node 8 pretrain_gpt.py {SMALL} {BATCH} {flags}\n')
    plan = load_schedule(schedule_text(imported(Path(path), given={}), 'x')).plan
    assert (plan.exchange, plan.receive) == (exchange, receive)
    assert plan.fusion == 'stage'


WRONG = {
    'quote': ('train.sh', 'torchrun "x\n', 'without its end'),
    'block': ('train.sh', 'if true; then\n  torchrun --a\n', 'fi'),
    'grows': ('train.sh', 'A=aaaaaaaa\n' + 'A=$A$A\n' * 40, 'grows'),
    'calls itself': ('train.sh', 'f() {\n  f\n}\nf\n', 'more than'),
    'deep': ('train.sh', '(' * 500, 'levels'),
    'no command': ('train.sh', 'echo hello\n', 'no command'),
    'no model': ('train.sh', 'torchrun --nproc_per_node 8 x.py --lr 1\n', 'trains no model'),
    'no ranks': ('train.sh', f'{RUN} {SMALL} {BATCH} --pipeline-model-parallel-size 0\n', 'pipeline'),
    'no number': ('train.sh', f'{RUN} {SMALL} {BATCH} --num-layers four\n', 'not a whole number'),
    'toml': ('x.toml', '[model\n', 'not TOML'),
    'digits': ('x.toml', 'steps = ' + '9' * 5000, 'not TOML that can be read'),
    'dots': ('x.toml', '\n' + 'a.' * 20_000 + 'a = 1', 'x.toml:2: more than 32 levels'),
    'flavour': ('x.toml', '[model]\nname = "llama9"\nflavor = "1T"\n', 'are not known'),
    'json': ('x.json', '{"zero_optimization": {"stage": 2}}', '--model config.json'),
    'another json': ('x.json', '{"a": 1}', 'cannot be told by its settings'),
    'yaml': ('x.yaml', 'a: [\n', 'x.yaml'),
    'another yaml': ('x.yaml', 'a: 1\n', 'cannot be told by its settings'),
    'bytes': ('x.sh', '\udcff', 'UTF-8'),
}


@pytest.mark.parametrize('case', WRONG)
def test_a_wrong_file_is_told_with_its_place(case, tmp_path, capsys):
    name, text, said = WRONG[case]
    (tmp_path / name).write_bytes(text.encode('utf-8', 'surrogateescape'))
    assert cli.main(['import', str(tmp_path / name)]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert (told.out, name in told.err) == ('', True)
    assert len(told.err.splitlines()) <= 25


def test_a_place_to_be_filled_in_swallows_no_flag(tmp_path):
    text = '#SBATCH <OPTIONS> --nodes=4 --ntasks-per-node=8\n'
    text += f'cmd="python x.py --save <PATH TO IT> {SMALL} {BATCH}"\nsrun sh -c "$cmd"\n'
    made = imported(Path(script(tmp_path, text)), given={})
    assert {'--save', '--num-layers', '#SBATCH --nodes'} <= {line.name for line in made.lines}
    assert made.values['cluster.nodes'] == 4


def test_a_script_is_never_run(tmp_path):
    victim = tmp_path / 'victim'
    path = script(tmp_path, f'touch {victim}\nX=$(touch {victim})\n: `touch {victim}`\n{RUN} {SMALL} {BATCH}\n')
    imported(Path(path), given={})
    assert not victim.exists()


def test_deepspeed_has_its_model_beside_and_the_schedule_finds_it(tmp_path, capsys):
    path = script(
        tmp_path, '{"train_batch_size": 64,\n\t"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}', 'ds.json'
    )
    out = tmp_path / 'below' / 'out.yaml'
    out.parent.mkdir()
    assert cli.main(['import', path, '--model', str(MODEL), '--set', 'devices=16', '--output', str(out)]) == 0
    assert 'sequence' in capsys.readouterr().err
    schedule = load_schedule(out)
    assert (schedule.workload.batch, schedule.plan.zero, schedule.cluster.nodes) == (64, 3, 2)
    assert schedule.workload.model.layers == 32


@pytest.mark.parametrize('name', MODELS)
def test_every_plan_that_init_compares_is_a_schedule(name):
    asked = {'nodes': 16, 'devices': 0, 'batch': 1536, 'sequence': 2048}
    firsts = first_schedules(MODELS[name], load_profile('h100-sxm-8'), **asked)
    assert 1 <= len(firsts) <= 6
    for first in firsts:
        schedule = load_schedule(first.text())
        assert schedule.workload.batch == 1536
        assert check_against_cluster(schedule, 128).plan.data == first.plan.data
        assert first.text().count('#') >= 10


def test_init_proposes_the_fastest_of_the_plans_that_it_compares(tmp_path, printed):
    """Of 13 billion weights on two servers; where RoCE is slow, gathers take longer than messages within a node."""
    out = tmp_path / 'first.yaml'
    asked = ['--cluster', 'ascend910b-8', '--nodes', '2', '--sequence', '4096', '--output', str(out)]
    printed('init', '--model', 'llama2-13b', *asked)

    def step(*settings):
        return load_case(out, ['against={}', *settings]).predict(tell=False)

    best = step()
    assert best.fits
    lines = [line for line in out.read_text().splitlines() if line.startswith('# Compared: ')]
    assert len(lines) >= 3
    # What it draws on from few micro-batches is what all of them take.
    assert parse(lines[0].rpartition(': ')[2].removesuffix(' a step'), 'time') == pytest.approx(best.step, rel=0.02)
    shards = ('plan.data=16', 'plan.tensor=1', 'plan.pipeline=1', 'plan.zero=3', 'plan.micro_batches=4')
    node = ('plan.data=2', 'plan.tensor=8', 'plan.pipeline=1', 'plan.zero=1', 'plan.micro_batches=32')
    plans = (('plan.sequence_parallel=false', *shards), ('plan.sequence_parallel=true', *node))
    assert all(step(*plan).step >= best.step for plan in plans)
    gathered, within = (step(*plan, 'cluster.links.roce=0.1').step for plan in plans)
    assert gathered > 1.15 * within


def test_a_first_schedule_with_experts_fits(tmp_path, printed):
    out = tmp_path / 'first.yaml'
    asked = ['--nodes', '2', '--batch', '16', '--sequence', '4096', '--output', str(out)]
    printed('init', '--model', 'mixtral-8x7b', *asked)
    case = load_case(out, ['against={}'])
    assert case.predict(tell=False).fits
    assert case.plan.expert > 1


def test_init_fits_and_reads_a_config(tmp_path, capsys, refused, json_of, monkeypatch):
    assert cli.main(['init', '--model', str(MODEL), '--output', str(tmp_path / 'first.yaml'), '--batch', '64']) == 0
    assert not os.path.isabs(
        next(line for line in (tmp_path / 'first.yaml').read_text().splitlines() if 'model:' in line)[9:]
    )
    capsys.readouterr()
    answer = json_of('run', str(tmp_path / 'first.yaml'))
    assert answer['step'] > 0
    assert 'llama3-8b' in refused('init', '--model', 'llama9')


def test_an_array_in_an_array_is_refused_however_deep(put, refused):
    path = put('deep.sh', 'A=(' * 5000)
    assert ':1: an array in an array, which bash has not' in refused('import', path)


FORMERS = """\
context: {max_device_memory: 58GB, ascend_config: {parallel_speed_up_json_path: ./below/speed_up.json}}
model: {model_config: {type: LlamaConfig, num_layers: 4, hidden_size: 64, num_heads: 4, vocab_size: 9, seq_length: 32}}
parallel_config: {data_parallel: 4, model_parallel: 2}
"""


def test_the_passes_of_mindspore_are_off_but_for_those_that_its_file_turns_on(tmp_path, capsys):
    """In MindSpore's own context each of them is false; MindFormers names a JSON beside its YAML."""
    path = script(tmp_path, FORMERS, 'llama.yaml')
    assert cli.main(['import', path]) == 0
    answer = capsys.readouterr()
    assert load_schedule(answer.out).plan.overlap == ()
    guesses = [line for line in answer.err.splitlines() if line.startswith('Assumed')]
    assert any('./below/speed_up.json is not here' in line for line in guesses)
    text = (
        '{"matmul_grad_comm_overlap": true, "recompute_comm_overlap": "false", "computation_allgather_overlap": true,'
    )
    (tmp_path / 'speed_up.json').write_text(text + ' "enable_task_opt": true}')
    made = imported(Path(path), given={})
    plan = load_schedule(schedule_text(made, 'x')).plan
    assert plan.overlap == ('matmul_grad_comm_overlap', 'enable_opt_shard_comm_opt')
    outcomes = {line.name: line.outcome for line in made.lines}
    assert outcomes['enable_task_opt'] == NOT_MODELLED
    assert outcomes['recompute_comm_overlap'] == IDLE
    assert outcomes['context.ascend_config.parallel_speed_up_json_path'] == MAPPED


def test_a_list_of_mindformers_recomputes_the_first_layers_of_each_stage(tmp_path):
    text = FORMERS.replace('num_layers: 4', 'num_layers: 8') + 'recompute_config: {select_recompute: [2, 1, 0, 1]}\n'
    text = text.replace('model_parallel: 2', 'pipeline_stage: 4, micro_batch_num: 4')
    path = Path(script(tmp_path, text, 'llama.yaml'))
    layers = (0, 1, 2, 6)
    told = tuple(f'layer{layer}.{one}' for layer in layers for one in ('norm*', 'swiglu'))
    assert load_schedule(schedule_text(imported(path, given={}), 'x')).plan.recompute == told
    path = Path(
        script(tmp_path, text.replace('select_recompute:', 'recompute: [1, 0, 0, 0], select_recompute:'), 'x.yaml')
    )
    assert load_schedule(schedule_text(imported(path, given={}), 'x')).plan.recompute == ('layer0.*', *told[2:])


def test_a_list_of_mindformers_for_ranks_takes_layers_of_each_chunk_in_turn(tmp_path):
    """Of four layers of rank 0, in chunks of two, three are recomputed; of rank 1 none."""
    text = FORMERS.replace('num_layers: 4', 'num_layers: 8, pp_interleave_num: 2')
    text = text.replace('model_parallel: 2', 'pipeline_stage: 2, micro_batch_num: 4')
    path = Path(script(tmp_path, text + 'recompute_config: {recompute: [3, 0]}\n', 'llama.yaml'))
    plan = load_schedule(schedule_text(imported(path, given={}), 'x')).plan
    assert plan.recompute == ('layer0.*', 'layer1.*', 'layer4.*')


def test_positions_of_gpt_2_have_the_mark_of_its_embedding(tmp_path):
    """set_layer_stage of MindFormers marks embeddings, norm and head with the number of groups, layers from 1 on."""
    text = FORMERS.replace('LlamaConfig', 'GPT2Config').replace('model_parallel', 'gradient_aggregation_group')
    path = Path(script(tmp_path, text, 'gpt.yaml'))
    schedule = load_schedule(schedule_text(imported(path, given={}), 'x'))
    assert schedule.plan.fusion_ids == (2, 2, 1, 1, 2, 2, 2, 2)


def test_a_multiplier_of_mindformers_has_its_hundredth(tmp_path):
    """Llama 3.1 70B, of research/llama3_1: feed-forwards of 28,672."""
    sizes = 'num_layers: 80, hidden_size: 8192, num_heads: 64, n_kv_heads: 8, ffn_dim_multiplier: 1.3, multiple_of: 256'
    text = f'model: {{model_config: {{type: LlamaConfig, {sizes}, vocab_size: 128256, seq_length: 8192}}}}\n'
    path = Path(script(tmp_path, f'{text}parallel_config: {{data_parallel: 8}}\n', 'llama.yaml'))
    workload = load_schedule(schedule_text(imported(path, given={}), 'x')).workload
    assert workload.model.graph(workload.batch).parameters == 70_553_706_496


def test_gelu_tanh_of_mindspeed_is_gated(tmp_path):
    """Gemma 2 9B, as scripts of MindSpeed-LLM have it."""
    flags = '--num-layers 42 --hidden-size 3584 --ffn-hidden-size 14336 --num-attention-heads 16 --kv-channels 256 '
    flags += '--group-query-attention --num-query-groups 8 --vocab-size 256000 --seq-length 64 --normalization RMSNorm '
    flags += '--position-embedding-type rope --disable-bias-linear --gelu-tanh --post-norm --bf16'
    path = Path(script(tmp_path, f'export HCCL_CONNECT_TIMEOUT=1\n{RUN} {flags} {BATCH}\n'))
    workload = load_schedule(schedule_text(imported(path, given={}), 'x')).workload
    assert workload.model.graph(workload.batch).parameters == 9_241_705_984


def test_memory_that_mindspore_may_not_take_is_reserved(tmp_path, refused):
    path = Path(script(tmp_path, FORMERS, 'llama.yaml'))
    left = load_schedule(schedule_text(imported(path, given={}), 'x')).cluster.reserve
    # 58 GB of 2^30 bytes of the 64 GB of a 910B.
    assert left == pytest.approx(load_profile('ascend910b-8').device.memory.size.value - 58 * 2**30, rel=1e-3)
    assert 'cluster.reserve' not in imported(path, given={'context.max_device_memory': '80GB'}).values
    assert 'no number of GB' in refused('import', path, '--set', 'max_device_memory=much')


# The thousands of slots of GPT-3 take seconds; so do two other large models, which `make prove NAME=every` takes.
LARGE = ('gpt3', *([] if EVERY == 1 else ['deepseek3', '405b']))


@pytest.mark.parametrize('name', [name for name in SOURCES if not any(one in name for one in LARGE)])
def test_an_imported_plan_has_a_question_that_can_be_answered(name, tmp_path, capsys):
    """The baseline is a schedule of its own, and differs from the plan."""
    out = tmp_path / 'out.yaml'
    beside = [f'--set={key}={value}' for key, value in given_beside(name).items()]
    beside += ['--model', model_beside(name)] if model_beside(name) else []
    assert cli.main(['import', str(FOLDER / name), '--output', str(out), *beside]) == 0
    schedule = load_schedule(out)
    baseline = schedule.baseline()
    if baseline is None:
        assert '# The baseline of the gain: no baseline is known' in out.read_text()
    else:
        assert baseline.plan != schedule.plan


# torchtitan's registries, by its names of August 2026


REGISTRY = load_table(__file__, 'REGISTRY')


def a_checkout(tmp_path):
    registry = tmp_path / 'torchtitan' / 'models' / 'llama3' / 'config_registry.py'
    registry.parent.mkdir(parents=True)
    registry.write_text(REGISTRY)
    return registry


def test_a_function_of_a_registry_is_a_plan(tmp_path):
    """Its tokens are samples of a step, and what it does not say is as torchtitan has it."""
    registry = a_checkout(tmp_path)
    small = load_schedule(schedule_text(imported(registry, given={'config': 'small', 'devices': '16'}), 'x'))
    assert (small.workload.model.layers, small.workload.model.sequence, small.workload.batch) == (32, 4096, 2 * 16)
    assert (small.plan.zero, small.plan.micro_batches, small.workload.optimizer.beta1) == (3, 1, 0.8)
    assert 'layer*.swiglu' in small.plan.recompute
    large = load_schedule(schedule_text(imported(registry, given={'config': 'large', 'devices': '64'}), 'x'))
    assert (large.workload.model.layers, large.plan.tensor, large.plan.tiles) == (80, 8, 8)
    assert (large.plan.recompute, large.workload.batch) == ('full', 2 * 8)


@pytest.mark.parametrize(('given', 'error'), load_table(__file__, 'test_what_only_running_a_registry_says_is_an_error'))
def test_what_only_running_a_registry_says_is_an_error(given, error, tmp_path):
    with pytest.raises(ScheduleError, match=error):
        imported(a_checkout(tmp_path), given=given)


def test_a_command_line_goes_over_the_registry_that_it_names(tmp_path):
    a_checkout(tmp_path)
    script = tmp_path / 'run.sh'
    for start in (
        'torchrun --nnodes 2 --nproc_per_node 8 -m torchtitan.train --module llama3 --config large',
        'NGPU=16 MODULE=llama3 CONFIG=large ./run_train.sh',
    ):
        script.write_text(f'{start} --parallelism.tensor_parallel_degree 4 --training.num_tokens_per_train_step=131072')
        plan = load_schedule(schedule_text(imported(script, given={}), 'x'))
        # 8,192 tokens on each of four data ranks, four times.
        assert (plan.plan.tensor, plan.plan.micro_batches, plan.workload.batch) == (4, 4, 32)
    script.write_text(f'{start.replace("large", "other")} --parallelism.tensor_parallel_degree 4')
    with pytest.raises(ScheduleError, match='no function of this name'):
        imported(script, given={})
    script.write_text('torchrun --nproc_per_node 8 -m torchtitan.train --module qwen3 --config qwen3_8b')
    with pytest.raises(ScheduleError, match=r'qwen3/config_registry.py is not here'):
        imported(script, given={})


@pytest.mark.parametrize(
    'plan', ['{tensor: 4, zero: 3, micro_batches: 2, sequence_parallel: true}',
             '{tensor: 2, pipeline: 4, zero: 3, micro_batches: 8, order: interleaved-1f1b, chunks: 2}'],
)  # fmt: skip
def test_the_flags_of_an_export_are_the_plan_over_a_registry(plan, tmp_path):
    """An exported TOML has them in comments, for torchtitan has none to read since 2026."""
    a_checkout(tmp_path)
    of_8b = schedule_text(imported(a_checkout(tmp_path / 'first'), given={'config': 'small', 'devices': '16'}), 'x')
    text = of_8b[: of_8b.index('\nplan:')] + f'\nplan: {plan}\n'
    schedule = load_schedule(text.replace('batch: 32 ', 'batch: 64 '))
    flags = [line.removeprefix('#   ') for line in str(export(schedule, 'torchtitan')).splitlines() if '#   --' in line]
    script = tmp_path / 'run.sh'
    start = 'torchrun --nnodes 2 --nproc_per_node 8 -m torchtitan.train --module llama3 --config small'
    script.write_text(' '.join([start, *flags]))
    back = load_schedule(schedule_text(imported(script, given={}), 'x'))
    for key in ('tensor', 'pipeline', 'micro_batches', 'order', 'chunks', 'zero'):
        assert getattr(back.plan, key) == getattr(schedule.plan, key), key
    assert (back.workload.batch, back.workload.model) == (64, schedule.workload.model)


def test_a_variable_that_a_file_leaves_open_is_given_by_its_name(tmp_path):
    """As the model files of Megatron's benchmarks have them: ``${TP}``."""
    file = tmp_path / 'model_config.yaml'
    file.write_text(
        'MODEL_ARGS:\n  --num-layers: 4\n  --hidden-size: 64\n  --num-attention-heads: 4\n  --seq-length: 32\n'
        '  --vocab-size: 100\n  --micro-batch-size: 1\n  --global-batch-size: ${GBS}\n'
        '  --tensor-model-parallel-size: ${TP}\n  --bf16: true\n'
    )
    devices = {'nnodes': '1', 'nproc-per-node': '8'}
    with pytest.raises(ScheduleError, match=r'tensor-model-parallel-size: TP is not assigned; give it: --set TP=') as e:
        imported(file, given=devices)
    assert 'not a number' not in str(e.value)
    made = imported(file, given={**devices, 'TP': '2', 'GBS': '16'})
    assert (made.values['plan.tensor'], made.values['workload.batch']) == (2, 16)
