"""``preflight``: one process on each host, before any rank is started: who is missing, and what hosts lack."""

from __future__ import annotations

import argparse
import socket
import time
from contextlib import suppress

from executor.commands.run import load_job, request_of
from executor.external import common_clock, store_of
from executor.handshake import asked, let_all_see, many, shake_hands
from executor.launch import Launch
from executor.preflight import Place, bytes_of_ranks, clocks_apart, places_of, preflight
from executor.route import local_address
from executor.validate import validate
from simpar.errors import Problem, RunFailed, ScheduleError
from simpar.units import format_size


def command(options: argparse.Namespace) -> int:
    """Meet the other hosts, check all, and let the first host print a table."""
    hosts = [name.strip() for name in options.hosts.split(',')]
    own = _own(hosts) if options.node_rank is None else options.node_rank
    if not 0 <= own < len(hosts) or not all(hosts):
        what = f'host {own} of {len(hosts)} named ones'
        raise ScheduleError(Problem('--node-rank', what, f'write 0 to {len(hosts) - 1}, and a name for each host'))
    job = load_job(options)
    validate(job.program)
    world = job.program.world
    if world % len(hosts):
        raise RunFailed(f'the job is for {world} ranks, which {len(hosts)} hosts cannot share alike')
    launch = Launch('preflight', own, len(hosts), hosts[0], options.port)
    store = store_of(launch, options.meet, 'host')
    wanted = asked(job.program, request_of(options, job), options.net)
    cards = shake_hands(
        store, own, len(hosts), hosts[0], wanted, seconds=options.meet, where=hosts.__getitem__, noun='host'
    )
    each = world // len(hosts)
    places = places_of(cards, [range(first, first + each) for first in range(0, world, each)])
    needs = bytes_of_ranks(job.program, options.dtype)
    notes = preflight(store, own, cards, places, needs)
    clock, _ = common_clock(store, own, len(hosts))
    store.set(f'simpar/wall/{own}', repr(time.time() - clock.now()))
    walls = {index * each: float(store.get(f'simpar/wall/{index}')) for index in range(len(hosts))}
    notes += clocks_apart(places, walls)
    if own == 0:
        _show(places, needs, notes)
    let_all_see(store, own, len(hosts), 'left')
    return 0


def _own(hosts: list[str]) -> int:
    """Which of the hosts this is: the one whose name it has, or whose address is its own."""
    name = socket.gethostname()
    for index, host in enumerate(hosts):
        if host in (name, name.partition('.')[0]) or host.partition('.')[0] == name:
            return index
    for index, host in enumerate(hosts):
        # Packets to oneself leave from the very address that they go to.
        with suppress(OSError):
            if local_address(host) == socket.gethostbyname(host):
                return index
    what = f'this host is called {name}, which is none of {", ".join(hosts)}'
    raise ScheduleError(Problem('--hosts', what, 'write its name or address, or give --node-rank'))


def _show(places: list[Place], needs: list[int], notes: tuple[str, ...]) -> None:
    rows = [('host', 'ranks', 'cores', 'memory needed', 'free')]
    for place in places:
        need = format_size(sum(needs[rank] for rank in place.ranks))
        free = format_size(place.host.free) if place.host.free else 'unknown'
        rows.append((place.host.name, many('rank', place.ranks), str(place.host.cores), need, free))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print('  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for note in notes:
        print(f'note: {note}')
    print(f'all {len(places)} hosts are here, agree on job and versions, and reach one another')
