"""The public names, pinned: adding one is a decision, losing one breaks users."""

import importlib
import subprocess
import sys

from tables import load_tree

import simpar

NAMES = load_tree(__file__, 'NAMES')


def test_the_public_names_are_these():
    assert simpar.__all__ == NAMES


def test_every_public_name_is_there_whatever_was_imported_before():
    for module in ('simpar.predict', 'simpar.lower', 'simpar.engine', 'simpar.case', 'simpar.comparison'):
        importlib.import_module(module)
    for name in NAMES:
        value = getattr(simpar, name)
        assert callable(value) or name == '__version__', name


def test_what_is_heavy_is_imported_where_it_is_used():
    code = (
        'import sys, simpar\n'
        'assert "numpy" not in sys.modules\n'
        'import simpar.document, simpar.plot\n'
        'assert not {"pydantic", "matplotlib"} & set(sys.modules), sorted(sys.modules)\n'
        'prediction = simpar.load_case("examples/multi_copy.yaml", ["cluster.stack=none"]).predict()\n'
        'assert not {"torch", "executor", "matplotlib", "numba"} & set(sys.modules), sorted(sys.modules)\n'
        'simpar.plot.timeline(prediction.trace)\n'
        'assert "matplotlib.pyplot" not in sys.modules\n'
    )
    subprocess.run([sys.executable, '-c', code], check=True)


def test_former_names_still_work():
    prediction = simpar.load_case('examples/multi_copy.yaml').predict()
    trace = prediction.trace
    assert trace.lanes is trace.representatives
    assert trace.lane_of_rank is trace.representative_of_rank
    assert prediction.critical_path.words == prediction.critical_path.summary
