"""The recorded settings of public files: enough of them, each with its source; docs have the score (test_registry)."""

import re
from collections import Counter

import pytest
from field_score import FILES, files

from tests.prove_round_trip import of_field, returned

pytestmark = pytest.mark.usefixtures('one_session')


def test_each_recorded_file_has_its_commit_and_settings():
    rows = files()
    assert len(rows) >= 150
    assert {row['launcher'] for row in rows} == {launcher for launcher, *_ in FILES}
    assert all(re.fullmatch(r'[\w.-]+/[\w.-]+@[0-9a-f]{12}', row['source']) for row in rows)
    assert all(row.get('tree') or row.get('flags') for row in rows)
    assert max(Counter((row['source'], row['path']) for row in rows).values()) == 1


# `make prove NAME=round_trip` takes all of them.
FEW = ('qwen3/pretrain_qwen3_0point6b_4K_ptd.sh', 'finetune_qwen2_5_0_5b_8k.yaml', 'llama/train_llama3_8b_h100_fp8.sh')


@pytest.mark.parametrize('ending', FEW)
def test_a_recorded_file_goes_out_comes_back_and_is_not_touched(ending, tmp_path):
    (plan,) = of_field(tmp_path, [row for row in files() if row['path'].endswith(ending)])
    assert returned(plan) == ('the same', [])
