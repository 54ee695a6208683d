"""``preflight``: one process on each host, before any rank is started: who is missing, and what hosts lack."""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict

from executor.cluster.external import REFUSAL
from executor.cluster.handshake import asked, let_all_see, local_address, many, refuse, shake_hands
from executor.cluster.launch import Launch
from executor.cluster.preflight import Place, bytes_of_ranks, clocks_apart, places_of, preflight
from executor.cluster.store import common_clock, store_of
from executor.commands.run import Job, load_job, request_of
from executor.validate import validate
from simpar.errors import Problem, RunFailed, ScheduleError, SimparError
from simpar.program import Program
from simpar.units import format_size


def command(options: argparse.Namespace) -> int:
    """Meet the other hosts, check all, and let the first host print a table."""
    hosts = [name.strip() for name in options.hosts.split(',')]
    own = _own(hosts) if options.node_rank is None else options.node_rank
    if not 0 <= own < len(hosts) or not all(hosts):
        what = f'host {own} of {len(hosts)} named ones'
        raise ScheduleError(Problem('--node-rank', what, f'write 0 to {len(hosts) - 1}, and a name for each host'))
    launch = Launch('preflight', own, len(hosts), hosts[0], options.port)
    try:
        return _checked(options, launch, hosts, _program(options, len(hosts)))
    except ScheduleError as error:
        # Hosts that can read their job need not wait for one that cannot.
        with suppress(SimparError, RuntimeError):
            refuse(store_of(launch, REFUSAL, 'host'), own, len(hosts), str(error).splitlines()[0])
        raise
    except RuntimeError as error:
        raise RunFailed(f'host {own} ({hosts[own]}): {str(error).splitlines()[0]}') from error


def _program(options: argparse.Namespace, hosts: int) -> Program:
    program = load_job(options).program
    validate(program)
    if program.world % hosts:
        what = f'{hosts} hosts cannot share {program.world} ranks alike'
        raise ScheduleError(Problem('--hosts', what, 'name as many as divide the ranks'))
    return program


def _checked(options: argparse.Namespace, launch: Launch, hosts: list[str], program: Program) -> int:
    own, count = launch.rank, len(hosts)
    each = program.world // count
    where = f'{launch.host}:{launch.port}'
    print(
        f'preflight: host {own} of {count}; all meet at {where} within {options.meet:g} s', file=sys.stderr, flush=True
    )
    store = store_of(launch, options.meet, 'host')
    wanted = asked(program, request_of(options, Job(program, None)), options.net)
    cards = shake_hands(store, own, count, hosts[0], wanted, seconds=options.meet, where=hosts.__getitem__, noun='host')
    places = places_of(cards, [range(first, first + each) for first in range(0, program.world, each)])
    needs = bytes_of_ranks(program, options.dtype)
    notes = preflight(store, own, cards, places, needs)
    clock, _ = common_clock(store, own, count)
    store.set(f'simpar/wall/{own}', repr(time.time() - clock.now()))
    walls = {index * each: float(store.get(f'simpar/wall/{index}')) for index in range(count)}
    notes += clocks_apart(places, walls)
    if own == 0:
        _show_json(places, needs, notes) if options.json else _show(places, needs, notes)
    let_all_see(store, own, range(count), 'left')
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


def _show_json(places: list[Place], needs: list[int], notes: tuple[str, ...]) -> None:
    found = [
        {
            'host': place.host.name,
            'ranks': list(place.ranks),
            'cores': place.host.cores,
            'bytes_needed': sum(needs[rank] for rank in place.ranks),
            'bytes_free': place.host.free,
            **({'devices': asdict(place.devices)} if place.devices.kind else {}),
        }
        for place in places
    ]
    print(json.dumps({'hosts': found, 'notes': list(notes)}, ensure_ascii=False))


def _devices(place: Place) -> str:
    """``8 of cuda, 79.1 GB free, driver 12080, version of NCCL 2.27.3``."""
    found = place.devices
    told = [f'{found.count} of {found.kind}', *([f'{format_size(min(found.free))} free'] if found.free else [])]
    told += [f'driver {found.driver}'] if found.driver else []
    return ', '.join([*told, *(f'{topic} {version}' for topic, version in found.versions.items())])


def _show(places: list[Place], needs: list[int], notes: tuple[str, ...]) -> None:
    rows: list[tuple[str, ...]] = [('host', 'ranks', 'cores', 'memory needed', 'free')]
    for place in places:
        need = format_size(sum(needs[rank] for rank in place.ranks))
        free = format_size(place.host.free) if place.host.free else 'unknown'
        rows.append((place.host.name, many('rank', place.ranks), str(place.host.cores), need, free))
    if places[0].devices.kind:
        rows = [(*row, cell) for row, cell in zip(rows, ['devices', *map(_devices, places)], strict=True)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print('  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for note in notes:
        print(f'note: {note}')
    print(f'all {len(places)} hosts are here, agree on job and versions, and reach one another')
