"""What is measured, and how often: a minute's worth, five minutes' worth, and next to nothing for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Probe:
    """A transformer of one layer, whose operators besides products and attention are measured."""

    batch: int
    sequence: int
    hidden: int
    vocab: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Grids and repeats.

    Arguments:
        products: values of each of m, n and k; every combination is measured.
        head_dims, sequences, pairs: values for attention; ``scores``: combinations with more scores are left out.
        probes: see ``Probe``; ``moved``: operators that move more bytes are left out.
        messages: bytes of collectives; on a shaped network, up to ``message_seconds`` of its rate.
        orders: shuffled orders of all items; ``trials`` of each that count; ``rounds`` of overlapped runs.
        beside: kinds of collectives that run beside kernels.
        load_seconds: for how long a device makes large products, to see which clock it keeps; ``load``: m, n and k.
    """

    products: tuple[int, ...]
    head_dims: tuple[int, ...]
    sequences: tuple[int, ...]
    pairs: tuple[int, ...]
    scores: int
    probes: tuple[Probe, ...]
    moved: float
    messages: tuple[int, ...]
    message_seconds: float
    orders: int
    trials: int
    rounds: int
    beside: tuple[str, ...] = ('all_reduce',)
    load_seconds: float = 5.0
    load: int = 8192


QUICK: Final = Sizes(
    products=(8, 32, 128, 512, 1024),
    head_dims=(32, 64, 128),
    sequences=(16, 32, 64, 128, 256),
    pairs=(1, 4, 16, 64),
    scores=2**20,
    probes=(
        Probe(4, 16, 32, 512),
        Probe(4, 32, 64, 1024),
        Probe(4, 64, 128, 2048),
        Probe(4, 128, 256, 4096),
        Probe(4, 256, 512, 8192),
    ),
    moved=64e6,
    messages=tuple(2**power for power in range(8, 25)),
    message_seconds=0.05,
    orders=3,
    trials=6,
    rounds=8,
)
FULL: Final = Sizes(
    products=(8, 16, 32, 64, 128, 256, 512, 1024),
    head_dims=(16, 32, 64, 128),
    sequences=(16, 32, 64, 128, 256, 512, 1024),
    pairs=(1, 4, 16, 64, 256),
    scores=2**21,
    probes=(
        *QUICK.probes,
        Probe(8, 16, 32, 512),
        Probe(8, 32, 64, 1024),
        Probe(8, 64, 128, 2048),
        Probe(8, 128, 256, 4096),
        Probe(8, 256, 512, 8192),
        Probe(8, 256, 1024, 16384),
    ),
    moved=128e6,
    messages=tuple(2**power for power in range(8, 27)),
    message_seconds=0.2,
    orders=4,
    trials=8,
    rounds=16,
    beside=('all_reduce', 'all_gather', 'reduce_scatter'),
    load_seconds=20.0,
)
TINY: Final = Sizes(
    products=(16, 256),
    head_dims=(16,),
    sequences=(16, 32),
    pairs=(2,),
    scores=2**12,
    probes=(Probe(2, 8, 32, 64), Probe(4, 16, 32, 64)),
    moved=1e6,
    messages=(2**10, 2**14, 2**18),
    message_seconds=0.01,
    orders=2,
    trials=5,
    rounds=2,
    load_seconds=0.05,
    load=32,
)
LEAST: Final = Sizes(
    products=(16,),
    head_dims=(16,),
    sequences=(16,),
    pairs=(2,),
    scores=2**12,
    probes=(Probe(2, 8, 32, 64),),
    moved=1e6,
    messages=(2**10, 2**16),
    message_seconds=0.01,
    orders=1,
    trials=2,
    rounds=1,
    load_seconds=0.02,
    load=16,
)
NAMED: Final = {'least': LEAST, 'tiny': TINY, 'quick': QUICK, 'full': FULL}
