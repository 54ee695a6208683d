"""Devices of this machine, by kind, on ``torch.accelerator`` and its device modules."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

import torch

from executor.devices.kinds import KINDS, Kind
from simpar.errors import RunFailed


@dataclass(frozen=True, slots=True)
class Device:
    """One device: its kind, its device module, and what tensors call it."""

    kind: Kind
    module: Any
    name: torch.device


def require(kind: str) -> None:
    """Raises ``RunFailed`` where this machine has no device of a kind."""
    if not device_module(kind).is_available():
        raise RunFailed(f'no device of kind {kind} is available to torch {torch.__version__} on this machine')


def open_device(kind: str, local: int = 0) -> Device:
    """The device of a rank, by the rank's number on this machine; ranks share devices where there are too few.

    Raises ``RunFailed`` where there is none of this kind.
    """
    require(kind)
    row = KINDS[kind]
    module = device_module(kind)
    index = local % module.device_count()
    module.set_device(index)
    return Device(row, module, torch.device(kind, index) if row.numbered else torch.device(kind))


def device_module(name: str) -> Any:
    """The device module of a kind; raises ``RunFailed`` where a package is missing."""
    kind = KINDS[name]
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
