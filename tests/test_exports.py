"""The public names, pinned: adding one is a decision, losing one breaks users."""

import importlib
import subprocess
import sys

import simpar

NAMES = [
    'Case',
    'Effects',
    'Network',
    'Plan',
    'Prediction',
    'Program',
    'Schedule',
    'Trace',
    'Transformer',
    'Workload',
    '__version__',
    'case_of',
    'cluster',
    'load_case',
    'load_profile',
    'load_schedule',
    'load_sweep',
    'price',
    'profile_names',
    'simulate',
]


def test_the_public_names_are_these():
    assert simpar.__all__ == NAMES


def test_every_public_name_is_there_whatever_was_imported_before():
    for module in ('simpar.predict', 'simpar.lower', 'simpar.engine', 'simpar.case', 'simpar.compare'):
        importlib.import_module(module)
    for name in NAMES:
        value = getattr(simpar, name)
        assert callable(value) or name == '__version__', name


def test_importing_simpar_and_predicting_never_imports_torch_or_the_executor():
    code = (
        'import sys, simpar\n'
        'assert "numpy" not in sys.modules\n'
        'simpar.load_case("examples/multi_copy.yaml").predict()\n'
        'assert not {"torch", "executor", "matplotlib"} & set(sys.modules), sorted(sys.modules)\n'
    )
    subprocess.run([sys.executable, '-c', code], check=True)
