"""Files of commit 403c6f3 that users have: schedules, profiles, stacks, a saved answer, journals of two searches."""

import tarfile
from pathlib import Path

import pytest

from simpar.cli import main
from simpar.profiles import load_profile, load_stack
from simpar.schedule import load_schedule

OLDER = Path(__file__).parent / 'recorded' / 'older.tar.xz'


@pytest.fixture(scope='module')
def older(tmp_path_factory):
    folder = tmp_path_factory.mktemp('older')
    with tarfile.open(OLDER) as packed:
        packed.extractall(folder, filter='data')
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
def test_a_journal_is_gone_on_from(older, capsys, words):
    journal = older / f'{words[0]}_journal'
    lines = len(journal.read_text().splitlines())
    assert main([*words, str(older / 'transformer_h100.yaml'), '--journal', str(journal)]) == 0
    capsys.readouterr()
    # What it had stays, also where a silent file has a framework now, so that none of its rows is of this prediction.
    assert len(journal.read_text().splitlines()) >= lines
