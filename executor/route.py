"""Which of this host's interfaces leads to another host: the route decides, not the name that the host gives itself."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

_SIOCGIFADDR: Final = 0x8915
_PORT: Final = 9
"""Any: nothing is sent there."""


def local_address(host: str) -> str:
    """The address from which packets to a host leave this one; empty where there is no route or no such name."""
    # Connecting a datagram socket sends nothing, but makes the kernel choose a route.
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, _PORT, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return ''


def loopback(address: str) -> bool:
    """Whether an address means the same host everywhere."""
    try:
        return ipaddress.ip_address(address.partition('%')[0]).is_loopback
    except ValueError:
        return False


def interface_of(address: str) -> str:
    """The interface that has an address of this host; empty where the kernel names none (then IPv6, or not Linux)."""
    return next((name for _, name in socket.if_nameindex() if address_of(name) == address), '')


def address_of(interface: str) -> str:
    """The address of an interface; empty where it is down or has none that the kernel tells (IPv6, or not Linux)."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        told = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack('256s', interface.encode()[:15]))
        return socket.inet_ntoa(told[20:24])
    return ''


def interface_to(addresses: list[str]) -> str:
    """The interface towards the first of some hosts that is reached over a network; empty where none is.

    Arguments: ``addresses``, of the store's host first, then of ranks on other hosts.
    """
    return next((name for found in _over_a_network(addresses) if (name := interface_of(found))), '')


def address_towards(addresses: list[str], interface: str = '') -> str:
    """This host's address towards the first of some hosts that is reached over a network; empty where none is.

    Arguments: ``interface``, whose address it is to be, where the user has chosen one.
    """
    return (interface and address_of(interface)) or next(_over_a_network(addresses), '')


def _over_a_network(addresses: list[str]) -> Iterator[str]:
    for address in addresses:
        found = local_address(address)
        if found and not loopback(found):
            yield found
