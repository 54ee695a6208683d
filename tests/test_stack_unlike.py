"""A stack whose framework does more with a plan than the schedule says: notes, and one exchange between two stages."""

import json

import pytest

from simpar.cli import main
from simpar.importing.mapping import schedule_text
from simpar.importing.read import imported

SCRIPT = """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 --bf16 \\
  --seq-length 1024 --vocab-size 1024 --micro-batch-size 2 --global-batch-size 64 --pipeline-model-parallel-size 4
"""


@pytest.fixture
def answer(tmp_path, capsys):
    """The answer to an imported script, with further words of the command line."""
    script, file = tmp_path / 'train.sh', tmp_path / 'plan.yaml'
    script.write_text(SCRIPT)
    text = schedule_text(imported(script, given={}), script)
    # The plan alone, on the stack that a test names.
    file.write_text(''.join(line for line in text.splitlines(keepends=True) if '  stack: ' not in line))

    def told(*words):
        asked = [word for one in words for word in ('--set', one)]
        assert main(['run', str(file), '--json', *asked]) == 0
        return json.loads(capsys.readouterr().out)

    return told


def test_an_imported_pipeline_idles_as_its_stages_do_in_the_textbook(answer):
    """One exchange has the receives of the next computation alone: no stage waits for a forward that it needs later."""
    alone = 'cluster.stack=none'
    found = answer(alone)
    stages, micro_batches = 4, 64 // 2 // 2
    textbook = (stages - 1) / (micro_batches + stages - 1)
    assert found['steady']['bubble'] / found['step'] == pytest.approx(textbook, abs=0.06)
    assert answer(alone, 'plan.receive=late')['step'] == found['step']


def test_what_the_file_has_otherwise_than_its_framework_is_told(answer):
    def told(*words):
        return [line for line in answer('cluster.stack=megatron-te', *words)['beside_stack'] if 'Otherwise' in line]

    assert told() == []
    (line,) = told('plan.exchange=separate', 'plan.receive=early')
    assert line == (
        'Otherwise than megatron-te has it of itself: '
        'plan.exchange is separate, there fused; plan.receive is early, there late.'
    )
    assert told('plan.exchange=separate', 'plan.pipeline=1', 'plan.micro_batches=8', 'plan.order=1f1b') == []


def test_what_can_have_no_effect_is_not_told(answer):
    words = ('plan.streams=group', 'plan.scatter_gather=false', 'plan.receive=early')
    (line,) = [one for one in answer('cluster.stack=megatron-2021', *words)['beside_stack'] if 'Otherwise' in one]
    assert 'plan.streams is group, there messages' in line
    assert 'workload.transformer.attention is flash, there unfused' in line
    assert 'scatter_gather' not in line
    assert 'plan.receive' not in line


@pytest.mark.parametrize(('value', 'queues'), [('1', 1), ('8', 8), ('0', None), ('33', None), ('$UNSET', None)])
def test_queues_of_the_environment_are_those_of_the_schedule(tmp_path, value, queues):
    script = tmp_path / 'train.sh'
    script.write_text(SCRIPT.replace('CONNECTIONS=1', f'CONNECTIONS={value}'))
    found = imported(script, given={})
    assert found.values.get('cluster.work_queues') == queues
    (line,) = [line for line in found.lines if line.name == 'CUDA_DEVICE_MAX_CONNECTIONS']
    assert line.keys == (('cluster.work_queues',) if queues else ())
    elsewhere = imported(script, given={}, profile='ascend910b-8')
    assert 'cluster.work_queues' not in elsewhere.values
