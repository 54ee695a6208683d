"""What ``python -m executor.bench`` does: measure on own ranks, or as one of those that a launcher has started."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from executor.bench.bench import Reporter, bench, bench_messages, measure
from executor.bench.jobs import schedule_programs
from executor.bench.journal import Journal
from executor.bench.launched import LaunchedPool
from executor.bench.on import On, look_at
from executor.bench.progress import progress
from executor.bench.record import machine
from executor.bench.sizes import NAMED
from executor.devices.flags import Wanted, in_one_process
from executor.devices.kinds import in_threads
from executor.external import refuse_external
from executor.handshake import software
from executor.launch import Launch
from executor.rank import Request
from simpar.calibrate import calibrate, load_record, require_profile_path, write_profile
from simpar.errors import Problem, ScheduleError, SimparError
from simpar.files import write_atomically
from simpar.hardware.net import parse_net
from simpar.program import Program

OWN: Final = 2
"""Ranks that are started here, unless told otherwise."""


def run(options: argparse.Namespace, launch: Launch | None) -> None:
    """Measure and write. Raises ``SimparError`` or ``OSError`` naming what is wrong, on every rank."""
    try:
        on = _checked(options, launch)
        programs = schedule_programs(options.schedule) if options.schedule else []
        kind = machine() if on.threads else on.name
        of = _identity(options, launch, programs)
        # Before minutes of measuring, and on rank 0 alone, which writes.
        journal = Journal(_folder(options), {**of, 'machine': kind}) if launch is None or launch.rank == 0 else None
    except (SimparError, OSError) as error:
        if launch is not None:
            refuse_external(launch, str(error))
        raise
    try:
        if launch is not None:
            _among(options, launch, on, of, programs, journal, kind)
        elif journal is not None:
            with progress() as reporter:
                _write(options, _alone(options, on, programs, journal, reporter), journal)
    except BaseException:
        if journal is not None:
            journal.leave()
        raise


def _checked(options: argparse.Namespace, launch: Launch | None) -> On:
    """What is measured on, where flags go together."""
    problems = list(_problems(options, launch))
    if problems:
        raise ScheduleError(problems)
    if options.profile:
        require_profile_path(options.profile)
    net = parse_net(options.net)
    wanted = Wanted(options.device, options.transport, compute=options.compute, net=net)
    wanted.check(launch.by if launch else '', processes=True)
    return look_at(options.device, options.transport, '' if options.dtype == 'fp32' else options.dtype)


def _problems(options: argparse.Namespace, launch: Launch | None) -> Iterator[Problem]:
    if not options.output and not options.profile:
        yield Problem(
            '--output', 'nothing would be written', 'write --profile my_cluster.yaml, or --output record.json'
        )
    world = launch.world if launch else options.ranks or OWN
    if world < 2:
        how = 'start' if launch else 'write'
        yield Problem('--ranks', f'a profile needs collectives, not {world} rank', f'{how} 2 or more')
    if launch and options.compute == 'emulated':
        yield Problem('--compute emulated', f'needs ranks of its own, but {launch.by} has started them', 'leave it out')
    if launch and options.net.startswith('netns'):
        yield Problem('--net', f'namespaces need ranks of their own, but {launch.by} has started them', 'leave it out')
    if in_one_process(options):
        yield Problem('--device virtual', 'each rank of a bench has a process of its own', 'add --transport gloo')
    if in_threads(options.device, options.transport) and options.dtype != 'fp32':
        yield Problem('--dtype', 'processors are measured in fp32', 'leave it out, or choose a --device')
    for name, path in (('--output', options.output), ('--profile', options.profile)):
        if path and not path.absolute().parent.is_dir():
            yield Problem(name, f'there is no folder {path.absolute().parent}', 'make it first')


def _folder(options: argparse.Namespace) -> Path:
    """Where finished runs are kept."""
    written: Path = options.profile or options.output
    return options.journal or written.with_name(f'{written.name}.journal')


def _identity(options: argparse.Namespace, launch: Launch | None, programs: Sequence[Program]) -> dict[str, str]:
    """What must be equal on all ranks, and where a bench goes on."""
    return {
        'ranks': str(launch.world if launch else options.ranks or OWN),
        'started by': launch.by if launch else 'itself',
        **software(),
        'sizes': options.sizes or ('quick' if options.quick else 'full'),
        'seed': str(options.seed),
        'network': options.net,
        'compute': options.compute,
        'dtype': options.dtype,
        'favoured': 'communication' if options.favour_communication else 'nothing',
        'device': f'{options.device} {options.transport}'.strip(),
        'schedule': ' '.join(program.hash[:12] for program in programs) or 'none',
    }


def _alone(
    options: argparse.Namespace, on: On, programs: Sequence[Program], journal: Journal, reporter: Reporter
) -> dict[str, Any]:
    ranks, net, sizes = options.ranks or OWN, parse_net(options.net), _sizes(options)
    more: dict[str, Any] = {'net_name': options.net, 'seed': options.seed, 'journal': journal}
    if options.compute == 'emulated':
        return bench_messages(ranks, net, sizes, reporter, **more)
    favour = options.favour_communication
    return bench(ranks, net, sizes, reporter, programs=programs, favour=favour, on=on, **more)


def _among(
    options: argparse.Namespace,
    launch: Launch,
    on: On,
    of: dict[str, str],
    programs: Sequence[Program],
    journal: Journal | None,
    kind: str,
) -> None:
    """As one of the ranks that a launcher has started; rank 0 writes."""
    request = Request(device=on.device, transport=on.transport, dtype=on.dtype, favour=options.favour_communication)
    ranks = LaunchedPool(launch, of, request, parse_net(options.net), options.timeout, options.meet, kind)
    with ranks:
        if journal is None:
            ranks.follow()
            return
        with progress() as reporter:
            record = measure(
                journal.over(ranks),
                _sizes(options),
                reporter,
                net_name=options.net,
                programs=programs,
                talk=programs,
                seed=options.seed,
                on=on,
                per_host=ranks.per_host,
                cores=ranks.cores,
            )
        _write(options, record, journal)


def _sizes(options: argparse.Namespace) -> Any:
    return NAMED[options.sizes or ('quick' if options.quick else 'full')]


def _write(options: argparse.Namespace, record: dict[str, Any], journal: Journal) -> None:
    """Write what was asked for; then the journal has done its work."""
    text = json.dumps(record) + '\n'
    if options.output:
        write_atomically(options.output, text)
    if options.profile:
        # Beside the runs, so that a record that makes no profile is not lost.
        kept = journal.folder / 'record.json'
        write_atomically(kept, text)
        for path in write_profile(options.profile, calibrate(load_record(kept))):
            print(f'wrote {path}')
    journal.remove()
