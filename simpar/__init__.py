"""simpar predicts, trains and compares multi-copy, pipeline and optimizer parallelism.

    import simpar

    case = simpar.load_case('examples/multi_copy.yaml', ['plan.copies=4'])
    prediction = case.predict()
    prediction.step, prediction.gain, prediction.critical_path.summary

Names are imported when they are used, so that ``import simpar`` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from simpar.case import Case, case_of, load_case
    from simpar.cost.price import Effects, price
    from simpar.engine.simulate import simulate
    from simpar.exporting.export import export
    from simpar.model import Network
    from simpar.model.library.gpt import Transformer
    from simpar.notebook import compare, compare_cases, sliders, to_dataframe
    from simpar.planner.plan import plan
    from simpar.plans import Plan
    from simpar.predict import Prediction
    from simpar.profiles import cluster, load_profile, profile_names
    from simpar.program import Program
    from simpar.schedule import Schedule, load_schedule
    from simpar.sweep import load_sweep
    from simpar.trace import Trace
    from simpar.workload import Workload

__version__: Final = '0.1.0'

_NAMES: Final = {
    'simpar.case': 'Case case_of load_case',
    'simpar.cost.price': 'Effects price',
    'simpar.engine': 'simulate',
    'simpar.exporting.export': 'export',
    'simpar.model': 'Network',
    'simpar.model.library.gpt': 'Transformer',
    'simpar.notebook': 'compare compare_cases sliders to_dataframe',
    'simpar.planner.plan': 'plan',
    'simpar.plans': 'Plan',
    'simpar.predict': 'Prediction',
    'simpar.profiles': 'cluster load_profile profile_names',
    'simpar.program': 'Program',
    'simpar.schedule': 'Schedule load_schedule',
    'simpar.sweep': 'load_sweep',
    'simpar.torch_module': 'from_module',
    'simpar.trace': 'Trace',
    'simpar.workload': 'Workload',
}
_HOMES: Final = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted([*_HOMES, '__version__'])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    # Names that were not imported yet are names all the same: notebooks complete them.
    return sorted({*globals(), *__all__})
