"""Tests that measure time run alone; all others share the cores (``make test`` runs both)."""

from pathlib import Path

import pytest

ALONE = frozenset(
    {
        'test_bench',
        'test_calibrate',
        'test_engine_speed',
        'test_validation',
        'test_validation_optimizer',
        'test_validation_pipeline',
        'test_validation_tiles',
        'test_executor_command',
        'test_executor_faults',
        'test_executor_launch',
        'test_executor_measure',
        'test_executor_net',
        'test_executor_pipeline',
        'test_executor_pool',
        'test_executor_watchdog',
        'test_executor_worked',
        'test_files',
        'test_measure',
        'test_lower_speed',
    }
)


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.fspath).stem in ALONE:
            item.add_marker(pytest.mark.alone)
