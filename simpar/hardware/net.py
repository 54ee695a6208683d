"""What ``--net`` says of the network that joins ranks: as it is, paced by the executor, or shaped by the kernel."""

import math
import re
from dataclasses import dataclass
from typing import Final, Literal

from simpar.units import format_rate, format_time, parse

NetKind = Literal['none', 'paced', 'netns']
USAGE: Final = 'none, paced:RATE,LATENCY (paced:1Gbit/s,50us) or netns:RATE (netns:1Gbit/s)'
FRAME: Final = 1514
PAYLOAD: Final = 1448
"""Bytes of a full Ethernet frame, and what TCP carries in it: the kernel shapes the former."""
_BITS: Final = re.compile(r'([0-9.]+)\s*([kmg])bit')


@dataclass(frozen=True, slots=True)
class Net:
    """What ``--net`` says.

    Arguments:
        rate: bytes/s of each rank's link, in one direction.
        latency: seconds that are added to every message; they keep no link busy.
    """

    kind: NetKind = 'none'
    rate: float = math.inf
    latency: float = 0.0

    @property
    def shaped(self) -> bool:
        """Whether rate and latency are those of this network, and not of the machine."""
        return self.kind != 'none'

    @property
    def payload_rate(self) -> float:
        """Bytes/s of messages that a link carries, without headers."""
        return self.rate * PAYLOAD / FRAME if self.kind == 'netns' else self.rate

    @property
    def flag(self) -> str:
        """As ``--net`` writes it: ``parse_net`` reads the very same network."""
        if not self.shaped:
            return self.kind
        # Without blanks, so that a shell takes it as one word.
        rate, latency = (repr(value).removesuffix('.0') for value in (self.rate, self.latency))
        return f'{self.kind}:{rate}B/s{f",{latency}s" if self.latency else ""}'

    def __str__(self) -> str:
        if not self.shaped:
            return 'as it is'
        latency = f' with {format_time(self.latency)} a message' if self.latency else ''
        return f'{self.kind} at {format_rate(self.rate)}{latency}'


def parse_net(text: str) -> Net:
    """Read ``none``, ``paced:RATE,LATENCY`` or ``netns:RATE``; raises ``ValueError`` saying what to write.

    Rates are written as everywhere (``125 MB/s``, ``1Gbit/s``) or as tc writes them (``1gbit``).
    """
    kind, _, rest = text.partition(':')
    parts = [part for part in rest.split(',') if part]
    if kind == 'none' and not parts:
        return Net()
    if kind == 'paced' and len(parts) in (1, 2):
        return Net('paced', _rate(parts[0]), parse(parts[1], 'time') if len(parts) == 2 else 0.0)
    # ``lab`` is what ``netns`` was called before; scripts and documents still write it.
    if kind in ('netns', 'lab') and len(parts) == 1:
        return Net('netns', _rate(parts[0]))
    raise ValueError(f'not a network: {text!r}; write {USAGE}')


def _rate(text: str) -> float:
    match = _BITS.fullmatch(text.strip())
    rate = parse(f'{match[1]} {match[2].upper()}bit/s' if match else text, 'rate')
    if rate <= 0:
        raise ValueError(f'a rate of {text} carries nothing; write e.g. 1Gbit/s')
    return rate
