"""What a host has of a kind of device: how many, how much memory is free, and versions that ranks must agree on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from executor.devices.kinds import KINDS, in_threads
from executor.devices.open import device_module
from simpar.errors import RunFailed


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
    found = {
        f'runtime of {kind}': _text(getattr(torch.version, kind, '')),
        f'version of {backend.upper()}': _text(collectives() if callable(collectives) else ''),
    }
    return {topic: version for topic, version in found.items() if version}


def _text(version: Any) -> str:
    return '.'.join(map(str, version)) if isinstance(version, tuple) else str(version or '')
