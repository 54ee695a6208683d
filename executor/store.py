"""The store at which ranks meet that somebody else has started, and the clock that they agree on there."""

from __future__ import annotations

import datetime
import os
import socket
import time
from typing import Final

import torch.distributed as dist

from executor.clock import Clock, host_identity, offset_by_ping
from executor.handshake import Store
from executor.launch import Launch
from executor.preflight import knock
from executor.rank import INIT_TIMEOUT
from simpar.errors import RunFailed

PINGS: Final = 16


def common_clock(store: Store, rank: int, world: int) -> tuple[Clock, tuple[str, ...]]:
    """Return rank 0's clock, and a note where ranks on other hosts estimate it by pings."""
    store.set(f'simpar/host/{rank}', host_identity().encode())
    # Only ranks away from rank 0 need pings: one host has one monotonic clock.
    hosts = [store.get(f'simpar/host/{other}') for other in range(world)]
    away = [other for other in range(world) if hosts[other] != hosts[0]]
    notes = (f'clocks of {len(away)} ranks on other hosts were aligned by pings',) if away else ()
    if rank == 0:
        for other in away:
            for turn in range(PINGS):
                # One ping at a time: two at once would queue, and bias the estimate.
                store.wait([f'simpar/ping/{other}/{turn}'])
                store.set(f'simpar/pong/{other}/{turn}', repr(time.perf_counter()))
    if rank not in away:
        return Clock(), notes
    turns = iter(range(PINGS))
    offset, _ = offset_by_ping(lambda: _ping(store, rank, next(turns)), PINGS)
    return Clock(offset), notes


def _ping(store: Store, rank: int, turn: int) -> tuple[float, float, float]:
    sent = time.perf_counter()
    store.set(f'simpar/ping/{rank}/{turn}', b'1')
    stamped = float(store.get(f'simpar/pong/{rank}/{turn}'))
    return sent, stamped, time.perf_counter()


def store_of(launch: Launch, seconds: float = INIT_TIMEOUT, noun: str = 'rank') -> Store:
    """The store at which all ranks meet.

    Arguments: ``seconds`` to wait for it; ``noun``, what meets there, ranks or hosts.
    """
    timeout = datetime.timedelta(seconds=seconds)
    serve = launch.rank == 0 and not launch.served
    place = f'{launch.host}:{launch.port}'
    try:
        # A name that nobody knows would be asked for again and again for a minute.
        socket.getaddrinfo(launch.host, launch.port)
        # torch waits twice as long as it is told to, and prints its C++ stack.
        if not serve and (reason := knock(launch.host, launch.port, seconds)):
            server = f'the launcher on {launch.host}' if launch.served else f'{noun} 0 (on {launch.host})'
            raise RunFailed(
                f'{noun} {launch.rank}: nothing answers at {place} ({reason}): {server} did not come within '
                f'{seconds:g} s, or a firewall keeps it away'
            )
        # Without waiting for workers: ranks arrive in any order, and the timeout belongs to what they wait for.
        store = dist.TCPStore(launch.host, launch.port, is_master=serve, timeout=timeout, wait_for_workers=False)
        # torchrun's own store outlives a restart of the ranks, with all that was written there before.
        return dist.PrefixStore(f'simpar/{os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")}', store)
    except (RuntimeError, OSError) as error:
        text = str(error).splitlines()[0]
        if serve and ('EADDRINUSE' in text or 'in use' in text):
            raise RunFailed(f'{noun} 0: port {launch.port} is taken; choose another by MASTER_PORT') from None
        raise RunFailed(f'{noun} {launch.rank}: no store at {place}: {text}') from None
