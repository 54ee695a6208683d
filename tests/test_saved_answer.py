"""`simpar diff`: what changed between two saved answers, and whose doing it is."""

import json
import shutil
from pathlib import Path

import pytest

import simpar.saved_answer
from simpar import cli, load_schedule
from simpar.profiles import load_profile, load_stack, profile_folder

SCHEDULE = """\
simpar: 1
cluster: {profile: h100-sxm-8, devices: 2}
workload: {transformer: {layers: 2, hidden: 256, heads: 4, vocab: 512, sequence: 128}, batch: 8, precision: bf16}
plan: {tensor: 2}
"""


@pytest.fixture
def saved(tmp_path, capsys, monkeypatch):
    """Save the answer of the schedule with some settings."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'schedule.yaml').write_text(SCHEDULE)

    def save(name, *settings):
        words = [word for setting in settings for word in ('--set', setting)]
        assert cli.main(['run', 'schedule.yaml', '--quiet', '--save', name, *words]) == 0
        capsys.readouterr()
        return name

    return save


@pytest.fixture
def diff(capsys):
    def run(*names, code=0):
        assert cli.main(['diff', *names]) == code
        return capsys.readouterr()

    return run


def test_equal_answers_say_so(saved, diff):
    lines = diff(saved('a.json'), saved('b.json')).out.splitlines()
    assert lines[0].endswith(', as long')
    assert lines[1] == 'nothing that they rest on changed; the program is the same'


def test_another_plan_is_the_doing_of_the_schedule(saved, diff):
    lines = diff(saved('a.json'), saved('b.json', 'plan.copies=2')).out.splitlines()
    assert lines[1] == 'all of it comes from the schedule: nothing else changed; the program is another'
    assert lines[3:6] == ['schedule: 2 changed', '  plan.copies: 1 → 2', '  plan.copies_loss: - → mean']


def test_another_number_of_the_profile_is_named(saved, diff, tmp_path):
    shutil.copytree(profile_folder() / 'h100-sxm-8', tmp_path / 'mine')
    profile = tmp_path / 'mine' / 'profile.yaml'
    old = saved('a.json', 'cluster.profile=mine/profile.yaml')
    profile.write_text(profile.read_text().replace('bandwidth: {value: 450 GB/s', 'bandwidth: {value: 225 GB/s'))
    found = diff(old, saved('b.json', 'cluster.profile=mine/profile.yaml')).out
    assert 'all of it comes from the profile: nothing else changed; the program is the same' in found
    assert '  links[nvlink].bandwidth: 4.5e+11 → 2.25e+11' in found


def test_another_simpar_is_named(saved, diff, monkeypatch):
    old = saved('a.json')
    monkeypatch.setattr(simpar.saved_answer, '__version__', '9.9.9')
    found = diff(old, saved('b.json', 'plan.copies=2')).out
    assert 'simpar itself and the schedule changed' in found
    assert '  version: 0.1.0 → 9.9.9' in found


def test_the_json_has_every_change_and_figures_as_run_tells_them(saved, diff, json_of):
    found = json.loads(diff('--json', saved('a.json'), saved('b.json', 'plan.copies=2')).out)
    told = json_of('run', 'schedule.yaml', '--set', 'plan.copies=2')
    assert found['figures']['step'][1] == told['step']
    assert found['figures']['memory'][1] == max(rank['peak'] for rank in told['memory']['ranks'])
    assert found['figures']['rate'][1] == told['throughput']['per_second']
    assert found['changed'] == ['schedule']
    assert found['changes']['schedule'][0] == {'key': 'plan.copies', 'old': 1, 'new': 2}


def test_what_is_no_saved_answer_is_refused_in_a_line(saved, diff, tmp_path):
    good = saved('a.json')
    (tmp_path / 'other.json').write_text('{"layers": 2}')
    assert diff(good, 'other.json', code=2).err == (
        'other.json: is not a saved answer or trace; '
        'write one by `simpar run FILE --save` or `simpar measure FILE --save`\n'
    )
    content = json.loads((tmp_path / good).read_text())
    del content['answer']
    (tmp_path / 'old.json').write_text(json.dumps(content))
    expected = 'old.json: does not say what it rests on; write it again with `simpar run FILE --save`\n'
    assert diff('old.json', good, code=2).err == expected
    content['origin'] = 'measured'
    (tmp_path / 'measured.json').write_text(json.dumps(content))
    assert 'compare a prediction with a measurement by `simpar compare`' in diff(good, 'measured.json', code=2).err


# Files of commit 403c6f3 that users have: schedules, profiles, stacks, a saved answer, journals of two searches


OLDER = Path(__file__).parent / 'recorded' / 'older.tar.xz'


@pytest.fixture(scope='module')
def older(tmp_path_factory, unpack):
    folder = tmp_path_factory.mktemp('older')
    unpack(OLDER, folder)
    return folder


def test_all_schedules_are_read(older):
    paths = sorted((older / 'schedules').rglob('*.yaml'))
    assert len(paths) >= 27
    for path in paths:
        load_schedule(path)


def test_all_profiles_and_stacks_are_read(older):
    profiles = sorted((older / 'hw_profiles').glob('*/profile.yaml'))
    stacks = sorted((older / 'hw_profiles' / 'stacks').glob('*.yaml'))
    assert (len(profiles), len(stacks)) == (18, 20)
    for path in profiles:
        load_profile(path)
    for path in stacks:
        load_stack(str(path))


def test_a_saved_answer_is_compared(older, printed):
    assert 'step' in printed('compare', older / 'answer.json', older / 'answer.json')


@pytest.mark.parametrize(
    'words',
    [
        ['sweep', '--sweep', 'plan.copies=1,2', '--sweep', 'plan.zero=0,1'],
        ['plan', '--seconds', '1', '--jobs', '1', '--brief'],
    ],
)
def test_a_journal_is_gone_on_from(older, words, printed):
    journal = older / f'{words[0]}_journal'
    lines = len(journal.read_text().splitlines())
    printed(*words, str(older / 'transformer_h100.yaml'), '--journal', str(journal))
    # What it had stays, also where a silent file has a framework now, so that none of its rows is of this prediction.
    assert len(journal.read_text().splitlines()) >= lines
