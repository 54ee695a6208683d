"""The recorded settings of public files: enough of them, each with its source; docs have the score (test_registry)."""

import re
from collections import Counter

from field_score import FILES, files


def test_each_recorded_file_has_its_commit_and_settings():
    rows = files()
    assert len(rows) >= 150
    assert {row['launcher'] for row in rows} == {launcher for launcher, *_ in FILES}
    assert all(re.fullmatch(r'[\w.-]+/[\w.-]+@[0-9a-f]{12}', row['source']) for row in rows)
    assert all(row.get('tree') or row.get('flags') for row in rows)
    assert max(Counter((row['source'], row['path']) for row in rows).values()) == 1
