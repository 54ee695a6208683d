"""What a bench runs on: processors, or devices of a kind, and what a record says of them."""

from __future__ import annotations

from dataclasses import dataclass

from executor.devices.kinds import KINDS, in_threads


@dataclass(frozen=True, slots=True)
class On:
    """The devices of a bench.

    Arguments:
        device, transport, dtype: as of ``Request``.
        name: what the device calls itself; ``memory``: its bytes, 0 where its module does not tell.
    """

    device: str = 'cpu'
    transport: str = ''
    dtype: str = ''
    name: str = ''
    memory: int = 0

    @property
    def threads(self) -> bool:
        """Whether streams are threads of the processor."""
        return in_threads(self.device, self.transport)

    @property
    def library(self) -> str:
        """What carries messages."""
        return 'gloo' if self.transport == 'gloo' else KINDS[self.device].backend

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of times on this kind of device must know."""
        return tuple(filter(None, [KINDS[self.device].note]))


def look_at(device: str, transport: str, dtype: str) -> On:
    """The devices of this machine, as their module tells. Raises ``RunFailed`` where there are none."""
    if in_threads(device, transport):
        return On(device, transport, dtype)
    from executor.devices.open import device_module, require

    require(device)
    module = device_module(device)
    name = getattr(module, 'get_device_name', lambda index: f'{device} device')(0)
    ask = getattr(module, 'mem_get_info', None)
    return On(device, transport, dtype, str(name), int(ask(0)[1]) if ask else 0)
