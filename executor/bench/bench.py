"""The bench: computation, communication and both at once, on own ranks or on those that a launcher has started."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from executor import devices, host
from executor.bench import items, kinds, rounds
from executor.bench.ranks import Journal, LaunchedPool, TimedPool, Timer
from executor.cluster import Launch, external, meeting
from executor.options import check_outputs, in_one_process, run_options
from executor.state import Request
from simpar import calibrate, files, profiles
from simpar.case import load_case
from simpar.cost.price import price
from simpar.errors import Problem, SimparError, refusal, refuse
from simpar.hardware import Cluster
from simpar.hardware.net import Net, parse_net
from simpar.program import Program


@contextmanager
def progress() -> Iterator[rounds.Reporter]:
    """Says how far a bench has come while it is entered."""
    # A bar's control characters would fill a log file.
    if not sys.stderr.isatty():
        yield rounds.Reporter()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn('{task.description}'), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield rounds.Reporter(bar)


# The programs of a schedule file whose exact ops are measured: its own, its baseline's, and those of other copies.

COPIES: Final = (1, 2, 4)


def schedule_programs(path: Path) -> list[Program]:
    """Programs of a schedule; copies that the batch cannot be split into are left out.

    Raises ``ScheduleError`` where the file is wrong.
    """
    case = load_case(path)
    programs = [case.program, *([case.baseline.program] if case.baseline else [])]
    programs += [program for copies in COPIES if (program := _with_copies(path, copies))]
    # The file's own copies are often among COPIES; equal programs are measured once.
    return list({program.hash: program for program in programs}.values())


def _with_copies(path: Path, copies: int) -> Program | None:
    try:
        return load_case(path, [f'plan.copies={copies}']).program
    # The file itself was read before, so what fails here is this number of copies, which the bench can do without.
    except SimparError:
        return None


# The bench: computation, communication and both at once, on one set of ranks.

LONG = 3.0
"""With emulated compute there is time for messages so many times as long."""
Record = dict[str, Any]
"""A JSON object."""
Tables = dict[str, list[Record]]
AT_ONCE = 4
"""Messages of several streams are so many times shorter than the longest."""
CONTENDED = 0.2
"""Share of trials in which others took the processor; above it, the record says so."""


def bench(
    ranks: int,
    net: Net,
    sizes: items.Sizes,
    reporter: rounds.Reporter,
    *,
    net_name: str = 'none',
    programs: Sequence[Program] = (),
    seed: int = 0,
    favour: bool = False,
    in_order: bool = True,
    on: items.On = items.CPU,
    journal: Journal | None = None,
) -> Record:
    """Measure this machine with so many ranks; the record as a JSON object.

    Arguments:
        net_name: the network as the user wrote it.
        programs: programs whose exact ops are measured too: in the order of their steps, where these ranks suffice.
        in_order: False where the caller does that itself.
        favour: whether communication is scheduled before computation, see ``Request``.
        on: the devices.
        journal: keeps finished runs, and has those of an earlier start.
    Raises ``ScheduleError`` for fewer than two ranks, ``RunFailed`` where ranks cannot be started.
    """
    whole = [program for program in programs if program.world <= ranks] if on.threads else []
    with _timer(ranks, net, _request(on, favour=favour), journal) as timer:
        parts = [program for program in programs if program not in whole]
        record = measure(timer, sizes, reporter, net_name=net_name, programs=parts, talk=programs, seed=seed, on=on)
    if whole and in_order:
        rounds.put(record['tables'], _steps(whole, ranks, sizes.trials, reporter, record, favour))
    return record


@contextmanager
def _timer(ranks: int, net: Net, request: Request, journal: Journal | None) -> Iterator[Timer]:
    """One pool for all parts, pinned, so that kernels and messages are measured under the same conditions."""
    if ranks < 2:
        raise refusal('--ranks', 'a profile needs collectives', 'write 2 or more')
    with TimedPool(ranks, request, net=net, pinned=True) as pool:
        yield journal.over(pool) if journal else pool


def _request(on: items.On, *, favour: bool) -> Request:
    return Request(device=on.device, transport=on.transport, dtype=on.dtype, favour=favour)


def measure(
    timer: Timer,
    sizes: items.Sizes,
    reporter: rounds.Reporter,
    *,
    net_name: str,
    programs: Sequence[Program] = (),
    talk: Sequence[Program] = (),
    seed: int = 0,
    on: items.On = items.CPU,
    per_host: int = 0,
    cores: int = 0,
) -> Record:
    """Measure ranks that are there, wherever they are; the record as a JSON object.

    Arguments:
        programs: their exact ops are measured alone; ``talk``: their collectives.
        per_host: ranks of a host; 0: all. ``cores`` that they may use; 0: those of this process.
    """
    ranks, net = timer.world, timer.net
    computing = items.unique([*items.grid_items(sizes, ranks), *_exact(programs, ranks)])
    of_programs = (items.program_messages(one, ranks, f'job{at}', per_host) for at, one in enumerate(talk))
    talking = items.unique([*items.message_items(sizes, net, ranks, per_host), *chain.from_iterable(of_programs)])
    reporter.part(f'computation: {len(computing)} kernels', sizes.orders)
    kernels = rounds.sample(timer, computing, sizes, seed, reporter.turn)
    reporter.part(f'communication: {len(talking)} collectives', sizes.orders)
    messages = rounds.sample(timer, talking, sizes, seed, reporter.turn)
    crossed = rounds.messages_beside(sizes, net.rate * sizes.message_seconds, talk)
    reporter.part('both at once', 2 * len(crossed) * sizes.rounds)
    beside = rounds.measure_overlap(timer, crossed, sizes.rounds, reporter.turn, talk)
    reporter.part('sends, exchanges and several streams', sizes.orders)
    message_kinds = _kinds(ranks, net, sizes, sizes.message_seconds, besides=items.RINGS, per_host=per_host)
    others = kinds.Messages(timer, message_kinds, None, seed)
    notes = [*kinds.repeat(others, sizes.orders, reporter.turn), *timer.notes]
    tables = rounds.table_rows([*computing, *talking], [*kernels, *messages])
    tables['collective'] += kinds.rows(others)
    return {
        **rounds.environment(ranks, net_name, on, per_host),
        'tables': tables,
        'overlap': rounds.overlap_rows(beside),
        'streams': kinds.stream_rows(others),
        **({'crossing': kinds.crossing_rows(others)} if 1 < (per_host or ranks) < ranks else {}),
        **(rounds.of_device(timer, sizes, on, reporter) if not on.threads else {}),
        'notes': [*notes, *(_notes(per_host or ranks, kernels, cores) if on.threads else on.notes)],
    }


def bench_messages(
    ranks: int,
    net: Net,
    sizes: items.Sizes,
    reporter: rounds.Reporter,
    *,
    net_name: str = 'none',
    seed: int = 0,
    journal: Journal | None = None,
) -> Record:
    """Measure the messages of emulated compute with so many ranks; the record as a JSON object.

    Arguments and errors as of ``bench``.
    """
    hardware = given_cluster(ranks, net)
    with _timer(ranks, net, Request(), journal) as timer:
        message_kinds = _kinds(ranks, net, sizes, LONG * sizes.message_seconds)
        messages = kinds.Messages(timer, message_kinds, lambda program: price(program, hardware), seed)
        reporter.part(f'communication: {sum(map(len, messages.found))} messages', sizes.orders)
        notes = [*kinds.repeat(messages, sizes.orders, reporter.turn), *timer.notes, *_shared(ranks)]
    return {
        **rounds.environment(ranks, net_name),
        'compute': 'emulated',
        'tables': {'collective': kinds.rows(messages)},
        'overlap': [],
        'streams': kinds.stream_rows(messages),
        'notes': notes,
    }


def calibrated(record: Record, folder: Path) -> tuple[calibrate.Calibration, Cluster]:
    """What a record becomes, written and read as a user's would be; the folder is made, and keeps its tables."""
    folder.mkdir()
    (folder / 'record.json').write_text(json.dumps(record), encoding='utf-8')
    calibration = calibrate.calibrate(calibrate.load_record(folder / 'record.json'))
    calibrate.write_profile(folder / 'calibrated.yaml', calibration)
    return calibration, profiles.cluster(profiles.load_profile(folder / 'calibrated.yaml'))


def given_cluster(ranks: int, net: Net) -> Cluster:
    """So many cores of the shipped profile, over the network: whose seconds emulated compute takes as given."""
    profile = profiles.load_profile('cpu-gloo')
    profile = profiles.shaped(profile, str(net), net.payload_rate, net.latency) if net.shaped else profile
    return profiles.cluster(replace(profile, devices=ranks))


def _kinds(
    ranks: int, net: Net, sizes: items.Sizes, seconds: float, besides: Sequence[str] = (), per_host: int = 0
) -> list[kinds.Kind]:
    """All kinds of messages but some, and several of the longest at once.

    Arguments: ``besides``, kinds that are not needed of neighbours.
    """
    message_kinds = kinds.kinds(ranks, sizes.messages[::2], net, seconds, per_host)
    longest = max(size for kind in message_kinds for size in kind.sizes)
    wanted = [kind for kind in message_kinds if kind.operator not in besides or kind.stride > 1]
    across = kinds.crossing(ranks, longest, per_host) if 1 < (per_host or ranks) < ranks else []
    return [*wanted, *kinds.at_once(ranks, longest // AT_ONCE, per_host), *across]


def _steps(
    programs: Sequence[Program], ranks: int, trials: int, reporter: rounds.Reporter, record: Record, favour: bool
) -> Tables:
    """Rows of the ops of programs, timed in the order of their steps. Arguments: ``record``, what is known so far."""
    reporter.part(f'steps: {len(programs)} programs without messages', trials)
    with TemporaryDirectory() as folder:
        hardware = calibrated(record, Path(folder) / 'before')[1]
        pool = rounds.AlonePool(ranks, programs, lambda program: price(program, hardware), favour=favour)
    with pool:
        steps = rounds.InOrder(pool, programs)
        for _ in range(trials):
            steps.round()
            reporter.turn()
    return steps.rows()


def _exact(programs: Sequence[Program], ranks: int) -> list[items.Item]:
    """The compute ops of programs; a weight's gradient is also added to as often as a program does."""
    exact_items: list[items.Item] = []
    for index, program in enumerate(programs):
        times = program.copies * program.micro_batches
        for item in items.program_items(program, ranks, f'job{index}'):
            exact_items.append(item)
            # The first micro-batch creates a gradient, the others add to it, which reads one more tensor. ``weight``
            # mixes both times.
            if times > 1 and item.ops[-1].accumulates:
                exact_items.append(replace(items.twice(item), weight=times - 1))
    return exact_items


def _notes(ranks: int, kernels: Sequence[rounds.Samples], cores: int) -> list[str]:
    """What a reader of the record must know."""
    notes = _shared(ranks, cores)
    contended = 1 - sum(float(kernel.quiet.sum()) for kernel in kernels) / sum(len(kernel.wall) for kernel in kernels)
    if contended > CONTENDED:
        notes.append(f'others took the processor in {contended:.0%} of the trials of kernels')
    return notes


def _shared(ranks: int, cores: int = 0) -> list[str]:
    cores = cores or host.this_host().cores
    return [f'{ranks} ranks shared {cores} cores'] if ranks > cores else []


# What ``python -m executor.bench`` does: measure on own ranks, or as one of those that a launcher has started.

OWN: Final = 2
"""Ranks that are started here, unless told otherwise."""


def run(options: argparse.Namespace, launch: Launch | None) -> None:
    """Measure and write. Raises ``SimparError`` or ``OSError`` naming what is wrong, on every rank."""
    try:
        on = _checked(options, launch)
        programs = schedule_programs(options.schedule) if options.schedule else []
        kind = rounds.machine() if on.threads else on.name
        of = _identity(options, launch, programs)
        # Before minutes of measuring, and on rank 0 alone, which writes.
        journal = Journal(_folder(options), {**of, 'machine': kind}) if launch is None or launch.rank == 0 else None
    except (SimparError, OSError) as error:
        if launch is not None:
            external.refuse_external(launch, str(error))
        raise
    sizes = items.NAMED[options.sizes or ('quick' if options.quick else 'full')]
    net, request = parse_net(options.net), _request(on, favour=options.favour_communication)
    more: dict[str, Any] = {'net_name': options.net, 'seed': options.seed}
    try:
        if launch is not None:
            with LaunchedPool(launch, of, request, net, options.timeout, options.meet, kind) as ranks:
                if journal is None:
                    ranks.follow()
                    return
                more |= {'per_host': ranks.per_host, 'cores': ranks.cores, 'programs': programs, 'talk': programs}
                with progress() as reporter:
                    record = measure(journal.over(ranks), sizes, reporter, on=on, **more)
                _write(options, record, journal)
        elif journal is not None:
            with progress() as reporter:
                own = options.ranks or OWN, net, sizes, reporter
                if options.compute == 'emulated':
                    record = bench_messages(*own, journal=journal, **more)
                else:
                    record = bench(*own, programs=programs, favour=request.favour, on=on, journal=journal, **more)
                _write(options, record, journal)
    except BaseException:
        if journal is not None:
            journal.leave()
        raise


def _checked(options: argparse.Namespace, launch: Launch | None) -> items.On:
    """What is measured on, where flags go together."""
    refuse(_problems(options, launch))
    check_outputs(options, 'bench')
    if options.profile:
        calibrate.require_profile_path(options.profile)
    by, net = launch.by if launch else '', parse_net(options.net)
    run_options(options.device, options.transport, by, compute=options.compute, net=net)
    return items.look_at(options.device, options.transport, '' if options.dtype == 'fp32' else options.dtype)


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
    if devices.in_threads(options.device, options.transport) and options.dtype != 'fp32':
        yield Problem('--dtype', 'processors are measured in fp32', 'leave it out, or choose a --device')


def _folder(options: argparse.Namespace) -> Path:
    """Where finished runs are kept."""
    written: Path = options.profile or options.output
    return options.journal or written.with_name(f'{written.name}.journal')


def _identity(options: argparse.Namespace, launch: Launch | None, programs: Sequence[Program]) -> dict[str, str]:
    """What must be equal on all ranks, and where a bench goes on."""
    return {
        'ranks': str(launch.world if launch else options.ranks or OWN),
        'started by': launch.by if launch else 'itself',
        **meeting.software(),
        'sizes': options.sizes or ('quick' if options.quick else 'full'),
        'seed': str(options.seed),
        'network': options.net,
        'compute': options.compute,
        'dtype': options.dtype,
        'favoured': 'communication' if options.favour_communication else 'nothing',
        'device': f'{options.device} {options.transport}'.strip(),
        'schedule': ' '.join(program.hash[:12] for program in programs) or 'none',
    }


def _write(options: argparse.Namespace, record: Record, journal: Journal) -> None:
    """Write what was asked for; then the journal has done its work."""
    text = json.dumps(record) + '\n'
    if options.output:
        files.write_atomically(options.output, text)
    if options.profile:
        # Beside the runs, so that a record that makes no profile is not lost.
        record_path = journal.folder / 'record.json'
        files.write_atomically(record_path, text)
        for path in calibrate.write_profile(options.profile, calibrate.calibrate(calibrate.load_record(record_path))):
            print(f'wrote {path}')
    journal.remove()
