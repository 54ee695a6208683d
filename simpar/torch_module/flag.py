"""``--module package:function``: the function that makes a module and example inputs, called in this process."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from typing import Any

from simpar.errors import Problem, RunFailed, ScheduleError
from simpar.torch_module.from_module import Imported, from_module

RETURNS = 'return (module, inputs), or (module, inputs, output)'


def imported(reference: str, seed: int = 0) -> Imported:
    """What the function of ``package:function`` returns, as a model.

    Arguments: ``seed``, that torch has when the function is called, so that every process begins with equal weights.
    Raises ``ScheduleError`` where there is no such function, it fails or returns something else.
    """
    if importlib.util.find_spec('torch') is None:
        raise RunFailed('torch is not installed; install the extra: pip install "simpar-parallel[torch]"')
    import torch

    function = _function(reference)
    _takes_nothing(reference, function)
    torch.manual_seed(seed)
    try:
        found: Any = function()
    except Exception as error:
        said = str(error).strip().splitlines()[0][:200] if str(error).strip() else ''
        raise _wrong(f'{reference} fails: {type(error).__name__}: {said}', 'call it in Python to see where') from error
    if isinstance(found, tuple) and found and isinstance(found[0], type):
        kind = found[0].__name__
        raise _wrong(f'{reference} returns the class {kind}, not a module', f'call it: {kind}(…)')
    if not isinstance(found, tuple) or len(found) not in (2, 3) or not isinstance(found[0], torch.nn.Module):
        raise _wrong(f'{reference} returns {type(found).__name__}, not a module with example inputs', RETURNS)
    module, inputs, *more = found
    if more and not isinstance(more[0], str):
        raise _wrong(f'{reference} returns an output of type {type(more[0]).__name__}', 'name it, e.g. "logits"')
    return from_module(module, inputs, output=more[0] if more else '')


def _takes_nothing(reference: str, function: Any) -> None:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        what = f'{reference} is called without arguments: {error}'
        raise _wrong(what, 'write a function that takes none, and calls it with yours') from error
    except ValueError:
        # Some functions in C do not tell what they take.
        return


def _function(reference: str) -> Any:
    package, _, name = reference.partition(':')
    if not package or not name:
        raise _wrong(f'is {reference}', 'write package:function, e.g. my_models:tiny_llama')
    # As ``python -m`` has it: packages of the current folder are found.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(package)
    except Exception as error:
        what = f'{package} cannot be imported: {type(error).__name__}: {str(error)[:200]}'
        raise _wrong(what, 'name a module that Python finds from here') from error
    function = getattr(module, name, None)
    if not callable(function):
        known = ', '.join(
            sorted(key for key, of in vars(module).items() if callable(of) and not key.startswith('_'))[:8]
        )
        raise _wrong(f'{package} has no function {name}', f'write one of {known}' if known else 'define it')
    return function


def _wrong(what: str, instead: str) -> ScheduleError:
    return ScheduleError(Problem('--module', what, instead))
