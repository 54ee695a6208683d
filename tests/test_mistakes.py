"""Mistakes of users end with a message, never with an internal error; `make prove-mistakes` makes all of them."""

import pytest
from every import some

from simpar.cli import main
from tests.mistake import KINDS, MENDED, mistakes

ALL = {kind: list(mistakes(kind)) for kind in KINDS}
SLOW = ('measure', 'planner: a degree', 'validate', 'cluster and plan: pipeline', 'module')


def said(mistake, folder, monkeypatch, capsys):
    """Exit code and message of a mistake that is made in this process."""
    mistake.write(folder)
    monkeypatch.chdir(folder)
    try:
        code = main(mistake.words)
    except SystemExit as stop:
        code = stop.code
    told = capsys.readouterr()
    return code, told.err or told.out


@pytest.mark.parametrize('kind', sorted(ALL.keys() - {'modules'}))
def test_a_mistake_is_told_without_a_traceback(kind, tmp_path, monkeypatch, capsys):
    for number, mistake in enumerate(some(ALL[kind], 2)):
        if mistake.what.startswith(SLOW):
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        code, text = said(mistake, folder, monkeypatch, capsys)
        assert code in {0, 2, 3}, (mistake.what, text)
        assert text, mistake.what
        assert 'internal error' not in text, (mistake.what, text)


def test_what_was_graded_was_made_and_names_are_not_twice():
    names = [mistake.what for one in ALL.values() for mistake in one]
    assert len(set(names)) == len(names) >= 100
    assert MENDED.keys() <= set(names)
