"""A stack whose framework does more with a plan than the schedule says: notes, and one exchange between two stages."""

import json

import pytest

from simpar.cli import main
from simpar.importing.read import imported
from simpar.importing.write import schedule_text

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
    found = answer()
    stages, micro_batches = 4, 64 // 2 // 2
    textbook = (stages - 1) / (micro_batches + stages - 1)
    assert found['steady']['bubble'] / found['step'] == pytest.approx(textbook, abs=0.06)
    assert answer('plan.receive=late')['step'] == found['step']


def test_what_a_stack_has_otherwise_is_told_unless_the_user_asked_for_it(answer):
    def notes(*words):
        return [note for note in answer('cluster.stack=megatron-te', *words)['notes'] if 'itself has' in note]

    assert notes() == []
    (note,) = notes('plan.exchange=separate')
    assert note.startswith('megatron-te itself has plan.receive: late (here early); write what it has')
    assert notes('plan.exchange=separate', 'plan.receive=early') == []
    assert notes('plan.exchange=separate', 'plan.pipeline=1', 'plan.micro_batches=8') == []


def test_what_can_have_no_effect_is_not_told(answer):
    (note,) = [note for note in answer('cluster.stack=megatron-2021')['notes'] if 'itself has' in note]
    assert 'plan.streams: messages (here group)' in note
    assert 'plan.fusion: all (here layer)' in note
    assert 'scatter_gather' not in note
    assert 'plan.receive' not in note


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
