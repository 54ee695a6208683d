"""`simpar script`: what it prints is what shells and Kubernetes read, and names as many ranks as the schedule has."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from executor.options import parser
from simpar.cli import main

JOB = ['examples/multi_copy.yaml', '--set', 'cluster.nodes=2', '--set', 'cluster.devices=4', '--set', 'plan.data=2']
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def at_home(monkeypatch):
    monkeypatch.chdir(ROOT)


def script(capsys, *words):
    assert main(['script', *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize('launcher', ['slurm', 'torchrun', 'mpirun', 'msrun'])
@pytest.mark.parametrize('hosts', [1, 2])
def test_the_script_is_one_that_bash_reads(capsys, launcher, hosts):
    job = JOB if hosts > 1 else JOB[:1]
    text = script(capsys, launcher, *job, '--steps', '7')
    bash = shutil.which('bash')
    if bash is None:
        pytest.skip('no bash')
    assert subprocess.run([bash, '-n'], input=text, text=True, check=False).returncode == 0
    assert '--steps 7' in text


@pytest.mark.parametrize(
    ('launcher', 'words'),
    [
        ('slurm', ['--nodes=2', '--ntasks-per-node=4', 'srun --kill-on-bad-exit=1 python -m executor']),
        ('torchrun', ['--nnodes 2 --nproc-per-node 4', 'executor preflight']),
        ('mpirun', ['-n 8', ':4', '-x MASTER_ADDR', '-genv MASTER_ADDR']),
        ('msrun', ['--worker_num 8 --local_worker_num 4', '--join True', 'executor preflight']),
    ],
)
def test_ranks_and_hosts_are_those_of_the_schedule(capsys, launcher, words):
    text = script(capsys, launcher, *JOB)
    assert [word for word in words if word not in text] == []


def test_what_ranks_run_is_a_command_line_of_the_executor(capsys):
    """Whatever flags the scripts write, the executor takes them."""
    for launcher in ('torchrun', 'slurm'):
        text = script(capsys, launcher, *JOB).replace('\\\n', ' ').replace('$NODE_RANK', '0')
        for line in text.splitlines():
            if '-m executor' in line and not line.startswith('#'):
                words = shlex.split(line.partition('-m executor ')[2].partition(' || {')[0])
                if words[0] != 'preflight':
                    words = ['run', *words]
                assert parser().parse_args(words).set == ['cluster.nodes=2', 'cluster.devices=4', 'plan.data=2']


def test_a_job_of_kubernetes_is_a_service_and_an_indexed_job(capsys):
    service, job = yaml.safe_load_all(script(capsys, 'k8s', *JOB))
    assert service['metadata']['name'] == job['spec']['template']['spec']['subdomain'] == 'multi-copy'
    assert (job['spec']['completions'], job['spec']['completionMode']) == (2, 'Indexed')
    (container,) = job['spec']['template']['spec']['containers']
    assert '--master-addr multi-copy-0.multi-copy' in container['args'][0]
    assert container['resources']['limits'] == {'huawei.com/Ascend910': 4}


def test_ranks_and_the_preflight_before_them_look_for_the_same_devices(capsys):
    text = script(capsys, 'torchrun', *JOB, '--device', 'npu').replace('\\\n', ' ').replace('$NODE_RANK', '0')
    lines = [line.partition('-m executor ')[2] for line in text.splitlines() if '-m executor ' in line]
    words = [shlex.split(line.partition(' || {')[0]) for line in lines]
    assert [one[0] for one in words] == ['preflight', JOB[0]]
    for one in words:
        assert parser().parse_args(one if one[0] == 'preflight' else ['run', *one]).device == 'npu'


def test_checkpoints_are_those_of_every_launcher_and_devices_those_of_the_profile(capsys):
    for launcher in ('slurm', 'torchrun', 'mpirun', 'msrun', 'k8s'):
        text = script(capsys, launcher, 'examples/transformer_h100.yaml', '--checkpoint', 'my kept', '--resume')
        assert "--device cuda --steps 3 --checkpoint 'my kept' --every 10 --resume" in text
        assert 'exit 5' in text
    assert main(['script', 'slurm', JOB[0], '--resume']) == 2


def test_a_wrong_file_is_one_line_and_exit_2(refused):
    assert 'nothing.yaml' in refused('script', 'slurm', 'nothing.yaml')


@pytest.mark.parametrize('name', ['1e3', 'null', 'on', 'y', '0x1f', '...'])
def test_names_that_yaml_reads_as_something_else_get_a_word_before_them(capsys, put, name):
    path = put(f'{name}.yaml', (ROOT / JOB[0]).read_text())
    service, _ = yaml.safe_load_all(script(capsys, 'k8s', str(path)))
    assert service['metadata']['name'] == f'simpar-{name.strip(".")}'.rstrip('-')
