"""The bench: computation, communication and both at once, on one set of ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from executor.bench.communication import RINGS, message_items, program_messages
from executor.bench.compute import grid_items, program_items, unique
from executor.bench.in_order import AlonePool, InOrder, put
from executor.bench.item import Item, twice
from executor.bench.journal import Journal
from executor.bench.kinds import Kind, at_once, crossing, kinds
from executor.bench.messages import Messages, Price, crossing_rows, rows, stream_rows
from executor.bench.of_device import of_device
from executor.bench.on import On
from executor.bench.overlap import measure_overlap
from executor.bench.ranks import TimedPool, Timer
from executor.bench.record import environment, figures, overlap_rows, table_rows
from executor.bench.sample import Samples, sample
from executor.bench.sizes import Sizes
from executor.bench.steady import repeat
from executor.host import this_host
from simpar.calibrate import Calibration, calibrate, load_record, write_profile
from simpar.cost.costs import Costs
from simpar.cost.price import price
from simpar.errors import Problem, ScheduleError
from simpar.hardware import Cluster
from simpar.hardware.net import Net
from simpar.profiles import cluster, load_profile, shaped
from simpar.program import Program

LONG = 3.0
"""With emulated compute there is time for messages so many times as long."""
Tables = dict[str, list[dict[str, Any]]]
AT_ONCE = 4
"""Messages of several streams are so many times shorter than the longest."""
CONTENDED = 0.2
"""Share of trials in which others took the processor; above it, the record says so."""


class Reporter(Protocol):
    """Learns how far a bench has come."""

    def part(self, name: str, turns: int) -> None:
        """A part of so many turns begins."""

    def turn(self) -> None:
        """One turn of it is done."""


def bench(
    ranks: int,
    net: Net,
    sizes: Sizes,
    reporter: Reporter,
    *,
    net_name: str = 'none',
    programs: Sequence[Program] = (),
    seed: int = 0,
    favour: bool = False,
    in_order: bool = True,
    on: On | None = None,
    journal: Journal | None = None,
) -> dict[str, Any]:
    """Measure this machine with so many ranks; the record as a JSON object.

    Arguments:
        net_name: the network as the user wrote it.
        programs: programs whose exact ops are measured too: in the order of their steps, where these ranks suffice.
        in_order: False where the caller does that itself.
        favour: whether communication is scheduled before computation, see ``Request``.
        on: the devices; None: this machine's processors.
        journal: keeps finished runs, and has those of an earlier start.
    Raises ``ScheduleError`` for fewer than two ranks, ``RunFailed`` where ranks cannot be started.
    """
    if ranks < 2:
        raise ScheduleError(Problem('--ranks', 'a profile needs collectives', 'write 2 or more'))
    on = on or On()
    whole = [program for program in programs if program.world <= ranks] if on.threads else []
    # One pool for all parts, pinned, so that kernels and messages are measured under the same conditions.
    where = {'device': on.device, 'transport': on.transport, 'dtype': on.dtype}
    with TimedPool(ranks, net=net, pinned=True, favour=favour, **where) as pool:
        timer = journal.over(pool) if journal else pool
        parts = [program for program in programs if program not in whole]
        record = measure(timer, sizes, reporter, net_name=net_name, programs=parts, talk=programs, seed=seed, on=on)
    if whole and in_order:
        put(record['tables'], _steps(whole, ranks, sizes, reporter, record, favour=favour))
    return record


def measure(
    timer: Timer,
    sizes: Sizes,
    reporter: Reporter,
    *,
    net_name: str,
    programs: Sequence[Program] = (),
    talk: Sequence[Program] = (),
    seed: int = 0,
    on: On | None = None,
    per_host: int = 0,
    cores: int = 0,
) -> dict[str, Any]:
    """Measure ranks that are there, wherever they are; the record as a JSON object.

    Arguments:
        programs: their exact ops are measured alone; ``talk``: their collectives.
        per_host: ranks of a host; 0: all. ``cores`` that they may use; 0: those of this process.
    """
    on, ranks, net = on or On(), timer.world, timer.net
    computing = unique([*grid_items(sizes, ranks), *_exact(programs, ranks)])
    talking = unique([*message_items(sizes, net, ranks, per_host), *_exact_messages(talk, ranks, per_host)])
    reporter.part(f'computation: {len(computing)} kernels', sizes.orders)
    kernels = sample(timer, computing, sizes.orders, sizes.trials, seed, reporter.turn)
    reporter.part(f'communication: {len(talking)} collectives', sizes.orders)
    messages = sample(timer, talking, sizes.orders, sizes.trials, seed, reporter.turn)
    reporter.part('both at once', 2 * len(sizes.beside) * sizes.rounds)
    beside = measure_overlap(timer, sizes, net.rate * sizes.message_seconds, reporter.turn, talk)
    reporter.part('sends, exchanges and several streams', sizes.orders)
    found = _kinds(ranks, net, sizes, sizes.message_seconds, besides=RINGS, per_host=per_host)
    others = Messages(timer, found, None, seed)
    notes = [*repeat(others, sizes.orders, reporter.turn), *timer.notes]
    tables = table_rows([*computing, *talking], [*kernels, *messages])
    tables['collective'] += rows(others, figures)
    return {
        **environment(ranks, net_name, on, per_host),
        'tables': tables,
        'overlap': overlap_rows(beside),
        'streams': stream_rows(others, figures),
        **({'crossing': crossing_rows(others, figures)} if 1 < (per_host or ranks) < ranks else {}),
        **(of_device(timer, sizes, on, reporter) if not on.threads else {}),
        'notes': [*notes, *(_notes(per_host or ranks, kernels, cores) if on.threads else on.notes)],
    }


def bench_messages(
    ranks: int,
    net: Net,
    sizes: Sizes,
    reporter: Reporter,
    *,
    net_name: str = 'none',
    seed: int = 0,
    journal: Journal | None = None,
) -> dict[str, Any]:
    """Measure the messages of emulated compute with so many ranks; the record as a JSON object.

    Arguments and errors as of ``bench``.
    """
    if ranks < 2:
        raise ScheduleError(Problem('--ranks', 'a profile needs collectives', 'write 2 or more'))
    hardware = given_cluster(ranks, net)

    def costs(program: Program) -> Costs:
        return price(program, hardware)

    wanted: Price = costs
    with TimedPool(ranks, net=net, pinned=True) as pool:
        timer = journal.over(pool) if journal else pool
        messages = Messages(timer, _kinds(ranks, net, sizes, LONG * sizes.message_seconds), wanted, seed)
        reporter.part(f'communication: {sum(map(len, messages.found))} messages', sizes.orders)
        notes = [*repeat(messages, sizes.orders, reporter.turn), *timer.notes, *_shared(ranks)]
    return {
        **environment(ranks, net_name),
        'compute': 'emulated',
        'tables': {'collective': rows(messages, figures)},
        'overlap': [],
        'streams': stream_rows(messages, figures),
        'notes': notes,
    }


def calibrated(record: dict[str, Any], folder: Path) -> tuple[Calibration, Cluster]:
    """What a record becomes, written and read as a user's would be; the folder is made, and keeps its tables."""
    folder.mkdir()
    (folder / 'record.json').write_text(json.dumps(record), encoding='utf-8')
    found = calibrate(load_record(folder / 'record.json'))
    write_profile(folder / 'calibrated.yaml', found)
    return found, cluster(load_profile(folder / 'calibrated.yaml'))


def given_cluster(ranks: int, net: Net) -> Cluster:
    """So many cores of the shipped profile, over the network: whose seconds emulated compute takes as given."""
    profile = load_profile('cpu-gloo')
    profile = shaped(profile, str(net), net.payload_rate, net.latency) if net.shaped else profile
    return cluster(replace(profile, devices=ranks))


def _kinds(
    ranks: int, net: Net, sizes: Sizes, seconds: float, besides: Sequence[str] = (), per_host: int = 0
) -> list[Kind]:
    """All kinds of messages but some, and several of the longest at once.

    Arguments: ``besides``, kinds that are not needed of neighbours.
    """
    found = kinds(ranks, sizes.messages[::2], net, seconds, per_host)
    longest = max(size for kind in found for size in kind.sizes)
    wanted = [kind for kind in found if kind.operator not in besides or kind.stride > 1]
    across = crossing(ranks, longest, per_host) if 1 < (per_host or ranks) < ranks else []
    return [*wanted, *at_once(ranks, longest // AT_ONCE, per_host), *across]


def _steps(
    programs: Sequence[Program], ranks: int, sizes: Sizes, reporter: Reporter, record: dict[str, Any], *, favour: bool
) -> Tables:
    """Rows of the ops of programs, timed in the order of their steps. Arguments: ``record``, what is known so far."""
    reporter.part(f'steps: {len(programs)} programs without messages', sizes.trials)
    with AlonePool(ranks, favour=favour) as pool, TemporaryDirectory() as folder:
        hardware = calibrated(record, Path(folder) / 'before')[1]
        steps = InOrder(pool, programs, lambda program: price(program, hardware))
        for _ in range(sizes.trials):
            steps.round()
            reporter.turn()
    return steps.rows()


def _exact(programs: Sequence[Program], ranks: int) -> list[Item]:
    """The compute ops of programs; a weight's gradient is also added to as often as a program does."""
    found: list[Item] = []
    for index, program in enumerate(programs):
        times = program.copies * program.micro_batches
        for item in program_items(program, ranks, f'job{index}'):
            found.append(item)
            # The first micro-batch creates a gradient, the others add to it, which reads one more tensor. ``weight``
            # mixes both times.
            if times > 1 and item.ops[-1].accumulates:
                found.append(replace(twice(item), weight=times - 1))
    return found


def _exact_messages(programs: Sequence[Program], ranks: int, per_host: int) -> list[Item]:
    return [
        item
        for index, program in enumerate(programs)
        for item in program_messages(program, ranks, f'job{index}', per_host)
    ]


def _notes(ranks: int, kernels: Sequence[Samples], cores: int) -> list[str]:
    """What a reader of the record must know."""
    notes = _shared(ranks, cores)
    contended = 1 - sum(float(found.quiet.sum()) for found in kernels) / sum(len(found.wall) for found in kernels)
    if contended > CONTENDED:
        notes.append(f'others took the processor in {contended:.0%} of the trials of kernels')
    return notes


def _shared(ranks: int, cores: int = 0) -> list[str]:
    cores = cores or this_host().cores
    return [f'{ranks} ranks shared {cores} cores'] if ranks > cores else []
