"""Devices of this machine, by kind, on ``torch.accelerator`` and its device modules; what a host has of them."""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from executor.devices import KINDS, Kind, in_threads
from simpar.errors import RunFailed


@dataclass(frozen=True, slots=True)
class Device:
    """One device: its kind, its device module, and what tensors call it."""

    kind: Kind
    module: Any
    name: torch.device

    def empty(self, shape: Sequence[int], dtype: torch.dtype, *, host: bool = False) -> torch.Tensor:
        """Memory of the device; or of its host, to and from which copies are asynchronous."""
        if not host:
            return torch.empty(shape, dtype=dtype, device=self.name)
        made = getattr(self.module, 'empty_on_host', None)
        return made(shape, dtype) if made else torch.empty(shape, dtype=dtype, pin_memory=self.kind.pins)


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


# What a host has of a kind of device: how many, how much memory is free, and versions that ranks must agree on.


@dataclass(frozen=True, slots=True)
class Survey:
    """The devices of a host.

    Arguments:
        kind: of device; empty: streams are threads, and nobody asks for devices.
        native: whether the device's own library was asked for by name.
        count: how many there are.
        free: bytes that are free on each, where the device module tells.
        lacking: why there is none; empty where there is.
        driver: its version, which hosts may differ in.
        versions: topic → version, equal on all hosts.
    """

    kind: str = ''
    native: bool = False
    count: int = 0
    free: tuple[int, ...] = ()
    lacking: str = ''
    driver: str = ''
    versions: dict[str, str] = field(default_factory=dict)


def survey(kind: str, transport: str) -> Survey:
    """Look at the devices of this host; never raises."""
    if in_threads(kind, transport):
        return Survey()
    native = transport == 'native'
    try:
        module = device_module(kind)
    except RunFailed as error:
        return Survey(kind, native, lacking=str(error))
    if not module.is_available():
        return Survey(kind, native, lacking=f'torch {torch.__version__} sees no device of kind {kind}')
    count = module.device_count()
    ask = getattr(module, 'mem_get_info', None)
    free = tuple(int(ask(index)[0]) for index in range(count)) if ask else ()
    driver = getattr(torch._C, f'_{kind}_getDriverVersion', None)
    return Survey(kind, native, count, free, '', _text(driver() if driver else ''), versions(kind, module))


def versions(kind: str, module: Any) -> dict[str, str]:
    """Versions of runtime and collectives, as far as torch tells them."""
    backend = KINDS[kind].backend
    collectives = getattr(getattr(module, backend, None), 'version', None)
    by_topic = {
        f'runtime of {kind}': _text(getattr(torch.version, kind, '')),
        f'version of {backend.upper()}': _text(collectives() if callable(collectives) else ''),
    }
    return {topic: version for topic, version in by_topic.items() if version}


def _text(version: Any) -> str:
    return '.'.join(map(str, version)) if isinstance(version, tuple) else str(version or '')
