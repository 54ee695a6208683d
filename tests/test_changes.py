"""Changes that are kept as patches apply to the source as it is, within their bound of files.

`make prove NAME=changes` runs the tests of each, too.
"""

import subprocess

import pytest

from tests.prove_changes import ROOT, changes, counted


@pytest.mark.parametrize('change', changes().values(), ids=lambda change: change.change)
def test_a_patch_applies_and_touches_few_files(change):
    assert counted(change)[0] <= change.most_files
    done = subprocess.run(
        ['git', 'apply', '--check', str(change.patch)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
