"""simpar predicts, trains and compares multi-copy, pipeline and optimizer parallelism.

    import simpar

    case = simpar.load_case('examples/multi_copy.yaml', ['plan.copies=4'])
    prediction = case.predict()
    prediction.step, prediction.gain, prediction.critical_path.summary

Names are imported when they are used, so that ``import simpar`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from simpar.case import Case as Case
    from simpar.case import case_of as case_of
    from simpar.case import load_case as load_case
    from simpar.cost.price import Effects as Effects
    from simpar.cost.price import price as price
    from simpar.engine import simulate as simulate
    from simpar.exporting.export import export as export
    from simpar.model import Network as Network
    from simpar.model.library.gpt import Transformer as Transformer
    from simpar.notebook.compared import compare as compare
    from simpar.notebook.compared import compare_cases as compare_cases
    from simpar.notebook.frames import to_dataframe as to_dataframe
    from simpar.notebook.sliders import sliders as sliders
    from simpar.planner.plan import plan as plan
    from simpar.plans import Plan as Plan
    from simpar.predict import Prediction as Prediction
    from simpar.profiles import cluster as cluster
    from simpar.profiles import load_profile as load_profile
    from simpar.profiles import profile_names as profile_names
    from simpar.program import Program as Program
    from simpar.schedule import Schedule as Schedule
    from simpar.schedule import load_schedule as load_schedule
    from simpar.sweep import load_sweep as load_sweep
    from simpar.trace import Trace as Trace
    from simpar.workload import Workload as Workload

__version__: Final = '0.1.0'

_HOMES: Final = {
    'compare': 'simpar.notebook.compared',
    'compare_cases': 'simpar.notebook.compared',
    'sliders': 'simpar.notebook.sliders',
    'to_dataframe': 'simpar.notebook.frames',
    'Case': 'simpar.case',
    'Effects': 'simpar.cost.price',
    'Network': 'simpar.model',
    'Plan': 'simpar.plans',
    'Prediction': 'simpar.predict',
    'Program': 'simpar.program',
    'Schedule': 'simpar.schedule',
    'Trace': 'simpar.trace',
    'Transformer': 'simpar.model.library.gpt',
    'Workload': 'simpar.workload',
    'case_of': 'simpar.case',
    'cluster': 'simpar.profiles',
    'export': 'simpar.exporting.export',
    'from_module': 'simpar.torch_module',
    'load_case': 'simpar.case',
    'load_profile': 'simpar.profiles',
    'load_schedule': 'simpar.schedule',
    'load_sweep': 'simpar.sweep',
    'plan': 'simpar.planner.plan',
    'price': 'simpar.cost.price',
    'profile_names': 'simpar.profiles',
    'simulate': 'simpar.engine',
}

__all__ = sorted([*_HOMES, '__version__'])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    # Names that were not imported yet are names all the same: notebooks complete them.
    return sorted({*globals(), *__all__})
