"""Files of other launchers become schedules: what bash would hand on, sizes that were published, nothing left out."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from launch_sources import FOLDER, MODEL, SOURCES, model_beside

from simpar import cli
from simpar.cli import main
from simpar.huggingface.sizes import MODELS
from simpar.importing.flags import IDLE, MAPPED, NOT_MODELLED, NOT_TAKEN, UNSEEN
from simpar.importing.read import imported
from simpar.importing.shell import read_script
from simpar.importing.write import schedule_text
from simpar.schedule import load_schedule, written

OUTCOMES = {MAPPED, IDLE, NOT_MODELLED, UNSEEN, NOT_TAKEN}
SMALL = '--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 100 --bf16'
BATCH = '--micro-batch-size 1 --global-batch-size 32'

SCRIPTS = {
    'defaults': 'A=${B:-4}\nC=${A:+x}\nD="${NO-a b}"\ntorchrun --a $A --c $C --d "$D" ${NOT:-"q r"}',
    'arrays': "ARGS=(\n  --a 1 # why\n  # --b 2\n  '--c d'\n)\nARGS+=(--e \"f g\")\n"
    'torchrun ${ARGS[@]}\ntorchrun "${ARGS[@]}"',
    'continued': 'OPTS=" \\\n  --a 1 \\\n  --b two "\ntorchrun --x \\\n  $OPTS --y="a b" \\\n  --z',
    'sums': 'N=2\nG=8\nW=$(($N*G))\ntorchrun --w $W --d $((W / 4 + 1)) --m $(( W % 5 )) --l ${#N}',
    'branches': 'T=fp8\nif [[ "$T" == "fp8" ]] && [ 2 -gt 1 ]; '
    'then X="--fp8 hybrid"; elif [ $T = a ]; then X=b; else X=c; fi\n'
    'if [ -z "$UNSET_THING" ]; then Y=1; fi\ncase $T in a|b) Z=1;; fp*) Z=2;; *) Z=3;; esac\ntorchrun $X --y $Y --z $Z',
    'functions': 'launch() {\n  torchrun --n $N\n}\nN=3\nlaunch\ncmd="torchrun --e \'1 2\' --f $N"\neval $cmd',
    'joined': '[ 1 = 2 ] && A=1 || A=2\nfalse || B=3\ntorchrun --a $A --b $B >/dev/null --c; torchrun --d 2>&1',
    'cut': 'P=/x/y.tar.gz\ntorchrun ${P##*/} ${P%.*} ${P%%.*} ${P#/} ${P/x/z} ${P//\\//-}',
    'documents': 'cat <<EOF > /dev/null\ntorchrun --not me\nEOF\ntorchrun --a <<< "in" --b',
}  # fmt: skip


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
    made = imported(FOLDER / name, given={}, model=model_beside(name))
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
            told = [line.name for line in imported(FOLDER / name, given={}).lines]
            assert sorted(flags) == sorted(one for one in told if one.startswith('--')), name


PUBLISHED = {
    'megatron_llama3_8b_fp8.sh': 8_030_261_248,
    'torchtitan_llama3_8b.toml': 8_030_261_248,
    'mindformers_llama3_1_8b.yaml': 8_030_261_248,
    'torchtitan_llama3_405b.toml': 405_853_388_800,
    'mindspeed_llama2_7b.sh': 6_738_415_616,
    'mindspeed_qwen3_8b.sh': 8_190_735_360,
    'mindformers_qwen3_32b.yaml': 32_762_123_264,
    'megatron_mixtral_8x7b.sh': 46_702_792_704,
    'mindformers_mixtral_8x7b.yaml': 46_702_792_704,
}


@pytest.mark.parametrize('name', PUBLISHED)
def test_an_imported_model_has_the_published_parameters(name):
    workload = load_schedule(schedule_text(imported(FOLDER / name, given={}), name)).workload
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


def script(tmp_path, text, name='train.sh'):
    path = tmp_path / name
    path.write_text(text, encoding='utf-8')
    return str(path)


def test_what_is_not_assigned_is_asked_for_and_set(tmp_path, capsys):
    path = script(
        tmp_path, f'torchrun --nproc_per_node 8 pretrain_gpt.py {SMALL} {BATCH} --tensor-model-parallel-size $TP\n'
    )
    assert cli.main(['import', path]) == 2
    assert '--set TP=' in capsys.readouterr().err
    assert cli.main(['import', path, '--set', 'TP=4', '--set', 'plan.recompute=full', '--json']) == 0
    answer = json.loads(capsys.readouterr().out)
    plan = load_schedule(answer['schedule']).plan
    assert (plan.tensor, plan.recompute) == (4, 'full')
    assert {one['name'] for one in answer['settings']} >= {'--tensor-model-parallel-size', '--bf16'}


def test_a_list_of_arguments_and_printed_arguments_are_read(tmp_path):
    listed = imported(Path(script(tmp_path, f'{SMALL}\n{BATCH}\n--frobnicate 3\n', 'args.txt')), given={})
    assert next(line for line in listed.lines if line.name == '--frobnicate').outcome == UNSEEN
    printed = [one.partition(' ') for one in f' {SMALL} {BATCH}'.split(' --') if one]
    text = ''.join(f'  {name.replace("-", "_")} {"." * 20} {value or "True"}\n' for name, _, value in printed)
    again = imported(Path(script(tmp_path, text, 'log.txt')), given={})
    assert again.values == listed.values


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
    # Blocks of interleaved stages have no key: said, and full layers written.
    assert plan.recompute == 'full'
    assert next(line for line in made.lines if line.name == '--recompute-num-layers').outcome == NOT_MODELLED


@pytest.mark.parametrize(
    ('flags', 'exchange', 'receive'),
    [
        ('', 'fused', 'early'),
        ('--num-layers-per-virtual-pipeline-stage 1', 'separate', 'late'),
        ('--num-layers-per-virtual-pipeline-stage 1 --no-overlap-p2p-communication', 'fused', 'early'),
    ],
)
def test_virtual_stages_exchange_beside_computation_unless_a_flag_forbids(flags, exchange, receive, tmp_path):
    """Megatron-LM, arguments.py: overlap_p2p_comm is on, and set to False without the interleaved schedule."""
    flags = f'--pipeline-model-parallel-size 2 {flags}'
    path = script(tmp_path, f'torchrun --nproc_per_node 8 pretrain_gpt.py {SMALL} {BATCH} {flags}\n')
    plan = load_schedule(schedule_text(imported(Path(path), given={}), 'x')).plan
    # A fused exchange has its receives late, whatever this key says.
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
    'no ranks': ('train.sh', f'torchrun x.py {SMALL} {BATCH} --pipeline-model-parallel-size 0\n', 'pipeline'),
    'no number': ('train.sh', f'torchrun x.py {SMALL} {BATCH} --num-layers four\n', 'not a whole number'),
    'toml': ('x.toml', '[model\n', 'not TOML'),
    'flavour': ('x.toml', '[model]\nname = "llama9"\nflavor = "1T"\n', 'are not known'),
    'json': ('x.json', '{"zero_optimization": {"stage": 2}}', '--model config.json'),
    'another json': ('x.json', '{"a": 1}', 'no setting of DeepSpeed'),
    'yaml': ('x.yaml', 'a: [\n', 'x.yaml'),
    'another yaml': ('x.yaml', 'a: 1\n', 'no setting of MindFormers'),
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
    path = script(tmp_path, f'touch {victim}\nX=$(touch {victim})\n: `touch {victim}`\ntorchrun x.py {SMALL} {BATCH}\n')
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
def test_init_writes_a_schedule_of_every_model_that_it_knows(name, capsys):
    assert cli.main(['init', '--model', name, '--nodes', '16', '--batch', '1536']) == 0
    text = capsys.readouterr().out
    assert load_schedule(text).workload.batch == 1536
    assert text.count('#') >= 10


@pytest.mark.parametrize(('name', 'nodes', 'batch'), [('mixtral-8x7b', 2, 128), ('qwen3-235b-a22b', 16, 512)])
def test_a_first_schedule_with_experts_fits(name, nodes, batch, tmp_path, capsys):
    out = tmp_path / 'first.yaml'
    asked = ['--nodes', str(nodes), '--batch', str(batch), '--sequence', '4096', '--output', str(out)]
    assert cli.main(['init', '--model', name, *asked]) == 0
    capsys.readouterr()
    assert cli.main(['run', str(out), '--json']) == 0
    assert json.loads(capsys.readouterr().out)['fits']
    assert load_schedule(out).plan.expert > 1


def test_init_fits_and_reads_a_config(tmp_path, capsys, monkeypatch):
    assert cli.main(['init', '--model', str(MODEL), '--output', str(tmp_path / 'first.yaml'), '--batch', '64']) == 0
    assert not os.path.isabs(
        next(line for line in (tmp_path / 'first.yaml').read_text().splitlines() if 'model:' in line)[9:]
    )
    capsys.readouterr()
    assert cli.main(['run', str(tmp_path / 'first.yaml'), '--json']) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer['step'] > 0
    assert cli.main(['init', '--model', 'llama9']) == 2
    assert 'llama3-8b' in capsys.readouterr().err


def test_an_array_in_an_array_is_refused_however_deep(tmp_path, capsys):
    path = tmp_path / 'deep.sh'
    path.write_text('A=(' * 5000, encoding='utf-8')
    assert main(['import', str(path)]) == 2
    assert ':1: an array in an array, which bash has not' in capsys.readouterr().err
