"""Lines of MindSpore: run against classes that take its calls, they say the plan; MindFormers' YAML comes back."""

import sys
import types
from pathlib import Path

import pytest
from drawn_plans import DRAWN
from every import some
from launch_sources import FOLDER, SOURCES

from simpar import case_of, load_schedule
from simpar.errors import ScheduleError
from simpar.exporting.export import TARGETS, export, reimported
from simpar.exporting.onto import onto
from simpar.exporting.settings import values_of
from simpar.importing.mapping import schedule_text
from simpar.importing.mindspore import plan_of
from simpar.importing.read import imported
from tests.prove_round_trip import Plan, returned

pytestmark = pytest.mark.usefixtures('one_session')
SIGNATURES = {
    'pipeline': {'stages', 'output_broadcast', 'interleave', 'scheduler'},
    'hsdp': {'shard_size', 'threshold', 'optimizer_level'},
    'comm_fusion': {'config'},
    'dataset_strategy': {'config'},
    'transformer_opt': {'file_path'},
}
"""Arguments of AutoParallel's calls: mindspore/python/mindspore/parallel/auto_parallel.py of 2.10."""
CONTEXT = {
    'parallel_mode', 'search_mode', 'device_num', 'dataset_strategy', 'pipeline_stages', 'pipeline_config',
    'enable_parallel_optimizer', 'parallel_optimizer_config', 'comm_fusion', 'enable_alltoall',
}  # fmt: skip
"""Of set_auto_parallel_context: mindspore.cn/docs r2.3.0."""


class Net:
    """A network that takes any call of a shard."""

    def __init__(self, said, name=''):
        self.said, self.name = said, name

    def __getattr__(self, name):
        return Net(self.said, f'{self.name}.{name}'.strip('.'))

    def shard(self, strategy):
        self.said[f'shard {self.name}'] = strategy


def ran(text, monkeypatch):
    """What the calls of an export say, by call."""
    said = {}

    class AutoParallel:
        def __init__(self, net, parallel_mode):
            said['mode'] = parallel_mode

        def __getattr__(self, name):
            def call(**words):
                assert words.keys() <= SIGNATURES[name]
                said[name] = words

            return call

    def wrapper(kind):
        def wrap(net, count):
            said[kind] = count
            return net

        return wrap

    def context(**words):
        assert words.keys() <= CONTEXT
        said['context'] = words

    root = types.ModuleType('mindspore')
    root.set_auto_parallel_context = context
    root.set_context = lambda **words: said.setdefault('passes', words)
    parallel, auto, nn = (types.ModuleType(f'mindspore.parallel{part}') for part in ('', '.auto_parallel', '.nn'))
    auto.AutoParallel = AutoParallel
    for kind in ('GradAccumulation', 'MicroBatchInterleaved', 'Pipeline'):
        setattr(nn, kind, wrapper(kind))
    for module in (root, parallel, auto, nn):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    space = {}
    exec(compile(text, 'export', 'exec'), space)
    space['parallel'](Net(said))
    space['set_context']()
    return said


def test_the_tutorial_of_copies_is_written_as_the_tutorial_has_it(monkeypatch):
    made = export(load_schedule('examples/multi_copy.yaml'), 'mindspore')
    said = ran(made.text, monkeypatch)
    assert made.unsaid == ()
    assert said['MicroBatchInterleaved'] == 2
    assert said['mode'] == 'semi_auto'
    # Seed of the tutorial: the first product by outputs, the second by inputs.
    assert said['shard dense0.matmul'] == ((2, 1), (4, 1))
    assert said['shard dense1.matmul'] == ((2, 4), (1, 4))
    assert said['context']['device_num'] == 8


def test_the_tutorial_of_optimizer_parallelism_calls_hsdp(monkeypatch):
    made = export(load_schedule('examples/optimizer_parallel.yaml'), 'mindspore')
    said = ran(made.text, monkeypatch)
    assert said['hsdp'] == {'shard_size': -1, 'threshold': 0, 'optimizer_level': 'level1'}
    assert said['context']['enable_parallel_optimizer'] is True


@pytest.mark.parametrize('seed', some(range(12)))
def test_a_drawn_plan_says_every_key_or_lists_it(seed, monkeypatch):
    schedule = load_schedule(DRAWN['mindspore'](seed))
    plan = schedule.plan
    pipeline, copies = plan.pipeline, plan.copies
    made = export(schedule, 'mindspore')
    said, unsaid = ran(made.text, monkeypatch), {one.key for one in made.unsaid}
    assert said.get('MicroBatchInterleaved', 1) == copies
    assert said.get('pipeline', {}).get('stages', 1) == pipeline
    assert max(said.get('Pipeline', 1), said.get('GradAccumulation', 1)) == plan.micro_batches
    assert ('plan.copies_loss' in unsaid) == (copies > 1 and plan.copies_loss == 'mean')
    values = values_of(schedule)
    if values.sharded:
        assert said['hsdp']['optimizer_level'] == plan.hsdp
    fused = said.get('comm_fusion', {}).get('config', {}).get('allreduce', {'mode': 'all'})
    if 'plan.fusion' in values.every:
        assert {'all': 'all', 'auto': 'auto', '8388608.0': 'size'}[str(plan.fusion)] == fused['mode']


@pytest.mark.parametrize('seed', some(range(12)))
def test_lines_of_a_drawn_plan_come_back_as_the_same_program(seed):
    assert returned(Plan('MindSpore', 'mindspore', load_schedule(DRAWN['mindspore'](seed)))) in (
        ('the same', []), ('listed', ['plan.copies_loss']),
    )  # fmt: skip


def test_lines_of_two_versions_that_do_not_agree_are_refused():
    text = export(load_schedule('examples/optimizer_parallel.yaml'), 'mindspore').text
    assert plan_of(text, Path('lines.py'), 8)[0]['plan.hsdp'] == 'level1'
    with pytest.raises(ScheduleError, match=r'plan.hsdp: set_context\(\) says another plan'):
        plan_of(text.replace("'optimizer_level': 'level1'", "'optimizer_level': 'level3'"), Path('lines.py'), 8)


FORMERS = [name for name in SOURCES if name.startswith('mindformers')]


@pytest.mark.parametrize('name', FORMERS)
def test_a_public_yaml_goes_out_and_comes_back_and_is_not_touched(name):
    schedule = load_schedule(schedule_text(imported(FOLDER / name, given={}), name))
    assert export(schedule, 'mindformers').unsaid == ()
    assert onto(schedule, 'mindformers', FOLDER / name).difference == ''


def test_a_yaml_is_edited_at_its_keys(tmp_path):
    own = tmp_path / 'own.yaml'
    own.write_text((FOLDER / FORMERS[0]).read_text(encoding='utf-8'), encoding='utf-8')
    made = schedule_text(imported(own, given={}), own.name)
    changes = ['plan.copies=2', 'plan.tensor=2', 'plan.data=4', 'plan.sequence_parallel=true', 'against={}']
    edited = onto(load_schedule(made, changes), 'mindformers', own)
    changed = [line for line in edited.difference.splitlines() if line[:1] in '+-' and line[:3] not in ('+++', '---')]
    assert '+micro_batch_interleave_num: 2' in changed
    assert '+  model_parallel: 2' in changed
    assert len(changed) <= 10


@pytest.mark.parametrize('seed', some(range(12)))
def test_a_drawn_plan_of_mindformers_comes_back_as_the_same_program(seed):
    schedule = load_schedule(DRAWN['mindformers'](seed))
    made = export(schedule, 'mindformers')
    assert made.unsaid == ()
    back = reimported(TARGETS['mindformers'], made.text, values_of(schedule), made.beside)
    other = load_schedule(schedule_text(back, 'mindformers.yaml'))
    assert case_of(schedule).program.hash == case_of(other).program.hash


def test_the_recorded_files_are_there():
    assert all((Path(FOLDER) / name).is_file() for name in FORMERS)
