"""Kinds of devices: one row each, and nothing else in the executor asks which kind it is."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any, Final

import torch

from simpar.errors import RunFailed


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of device.

    Arguments:
        module: its device module, which has what ``torch.cuda`` has: Stream, Event, stream, current_stream, ...
        needs: the package that registers it with torch; empty: torch itself.
        backend: the backend of ``torch.distributed`` whose collectives run on its streams.
        pins: whether copies to it need pinned memory to be asynchronous.
        graphs: whether it captures what is issued and plays it again.
        tried: where this has been run.
    """

    name: str
    module: str
    needs: str
    backend: str
    pins: bool
    graphs: bool
    tried: str


KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind('cpu', 'executor.devices.blocking', '', 'gloo', pins=False, graphs=False, tried='in the test suite'),
        Kind('cuda', 'torch.cuda', '', 'nccl', pins=True, graphs=True, tried='built, not run'),
        Kind('npu', 'torch.npu', 'torch_npu', 'hccl', pins=True, graphs=False, tried='built, not run'),
        Kind('virtual', 'executor.virtual', '', 'virtual', pins=False, graphs=False, tried='in the test suite'),
    )
}


@dataclass(frozen=True, slots=True)
class Device:
    """One device: its kind, its device module, and what tensors call it."""

    kind: Kind
    module: Any
    name: torch.device


def open_device(kind: str, index: int = 0) -> Device:
    """A device of this machine.

    Raises ``RunFailed`` where there is none of this kind or number.
    """
    row = KINDS[kind]
    module = _module(row)
    if not module.is_available():
        raise RunFailed(f'no device of kind {kind} is available to torch {torch.__version__} on this machine')
    if index >= module.device_count():
        raise RunFailed(f'device {kind}:{index} is asked for, but there are {module.device_count()} on this machine')
    module.set_device(index)
    return Device(row, module, torch.device(kind, index) if module.device_count() > 1 or index else torch.device(kind))


def _module(kind: Kind) -> Any:
    if kind.needs:
        if importlib.util.find_spec(kind.needs) is None:
            raise RunFailed(f'--device {kind.name} needs {kind.needs}; install it for torch {torch.__version__}')
        importlib.import_module(kind.needs)
    if not kind.module.startswith('executor.'):
        # torch's own, or what the package has put there.
        return torch.get_device_module(kind.name)
    module = importlib.import_module(kind.module)
    module.install()
    return module
