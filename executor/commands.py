"""What the verbs of ``python -m executor`` do."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from executor import checkpoint, devices, draws, numerics, state, train, validate
from executor.cluster import Launch, detect, external, meeting
from executor.host import free_memory
from executor.options import check_device, check_outputs, in_one_process
from executor.ranks.pool import Pool
from executor.ranks.watchdog import columns, many
from executor.state import Request
from executor.virtual.transport import VirtualWorld
from simpar import hardware, size, trace_files, units
from simpar.case import Case, load_case, on_net
from simpar.cost.costs import Costs
from simpar.engine import simulate
from simpar.errors import Deadlock, Infeasible, Problem, ProgramError, RunFailed, ScheduleError, SimparError
from simpar.files import write_atomically
from simpar.program import Program
from simpar.trace import PERCENTILE, Trace, joined

EMULATED = 'emulated compute shows dependencies, streams and communication, not compute'


@dataclass(frozen=True, slots=True)
class Job:
    """A program, its costs where compute is emulated, and how many work queues it asks for; 0: it does not say.

    Arguments:
        baseline: the job of the plan that gain is measured from, where it is measured, too.
        case: what the program is of; None of one that a function builds.
    """

    program: Program
    costs: Costs | None
    work_queues: int = 0
    baseline: Job | None = None
    case: Case | None = None

    @property
    def placement(self) -> hardware.Placement | None:
        """Which device a rank is on; raises ``ScheduleError`` where the baseline has another."""
        placements = {one.case.cluster.placement if one.case else None for one in self.all}
        if len(placements) > 1:
            what = 'the baseline has another, and a launcher starts the ranks once'
            raise ScheduleError(Problem('plan.placement', what, 'run each alone, and compare what they save'))
        return placements.pop()

    @property
    def all(self) -> tuple[Job, ...]:
        """The job and its baseline's."""
        return (self, self.baseline) if self.baseline else (self,)


def run_job(options: argparse.Namespace) -> int:
    """Run the job; rank 0, or the parent of the ranks, prints what will run and the result."""
    # ``--nproc`` says that ranks are started here, whatever a batch system has put into the environment.
    launch = None if options.nproc else detect(os.environ)
    if launch is not None and launch.idle:
        return 0
    try:
        _check_state(options)
        if launch is None or launch.rank == 0:
            check_outputs(options, 'run')
        check_device(options, launch.by if launch else '')
        job = load_job(options)
        # Before any process is started: gloo would abort or hang on what this finds.
        for one in job.all:
            validate.validate(one.program)
        launch = launch and launch.placed(job.placement)
    except SimparError as error:
        if launch is not None:
            external.refuse_external(launch, str(error))
        raise
    if options.nproc and options.nproc != job.program.world:
        raise RunFailed(f'the job is for {job.program.world} ranks, not for --nproc {options.nproc}')
    if options.checkpoint:
        return _train(options, launch, job)
    # One line for the whole job, not one a rank.
    if launch is None or launch.rank == 0:
        _say(_headline(options, launch, job.program))
    executions = _alone(options, job) if launch is None else _among(options, launch, job)
    if executions:
        _show(options, executions)
        if options.tensorboard and job.case:
            _log(options.tensorboard, job.case, executions[0])
    return 0


def _check_state(options: argparse.Namespace) -> None:
    """Refuse beforehand what would fail at the end of a run, and what a training with checkpoints does not do."""
    if options.checkpoint is None and options.resume:
        raise ScheduleError(Problem('--resume', 'goes on from a checkpoint', 'name its folder: --checkpoint DIR'))
    if options.checkpoint:
        measured = options.save or options.measured
        useless = {
            '--save': measured, '--compute emulated': options.compute == 'emulated', '--net': options.net.shaped,
            '--issue graph': options.issue == 'graph', '--order': options.order is not None,
            '--tensorboard': options.tensorboard,
        }  # fmt: skip
        what = 'a training with checkpoints has no such flag'
        if problems := [Problem(flag, what, 'leave it out') for flag, is_set in useless.items() if is_set]:
            raise ScheduleError(problems)
        if (folder := checkpoint.latest(options.checkpoint)) and not options.resume:
            instead = 'write --resume to go on from it, or name another folder'
            raise ScheduleError(Problem('--checkpoint', f'{folder} is there already', instead))
    if options.tensorboard and find_spec('tensorboard') is None:
        raise ScheduleError(Problem('--tensorboard', 'tensorboard is not installed', 'pip install tensorboard'))
    if options.save_state and options.compute == 'emulated':
        what = 'emulated compute has neither losses nor parameters'
        raise ScheduleError(Problem('--save-state', what, 'write --compute real'))


def _train(options: argparse.Namespace, launch: Launch | None, job: Job) -> int:
    """Train from one checkpoint to the next; rank 0, or the parent of the ranks, prints how it went."""
    assert job.case is not None
    speaks = launch is None or launch.rank == 0
    begun = checkpoint.latest(options.checkpoint)
    if speaks:
        _say(_headline(options, launch, job.program))
        from_where = f'goes on from {begun}' if begun else 'begins anew'
        _say(f'checkpoints: {options.checkpoint}, every {options.every} steps; {from_where}')
    result = train.train(
        job.case, steps=options.steps, seed=options.seed, dtype=options.dtype, timeout=options.timeout,
        checkpoint=options.checkpoint, every=options.every, device=options.device, transport=options.transport,
    )  # fmt: skip
    if not speaks:
        return 0
    _save_state(options, job.program, result)
    last = checkpoint.latest(options.checkpoint)
    if options.json:
        summary = {'program': job.program.hash, 'ranks': job.program.world, 'losses': list(result.losses)}
        print(json.dumps({**summary, 'from': str(begun or ''), 'checkpoint': str(last)}, ensure_ascii=False))
    else:
        print(f'{_losses(result)}; last: {last}')
    return 0


def _save_state(options: argparse.Namespace, program: Program, result: state.Result) -> None:
    if options.save_state:
        outcome = state.by_module(result) if options.module else result
        state.save_state(options.save_state, outcome, program=program.hash, seed=options.seed)


def _losses(result: state.Result) -> str:
    return f'loss {result.losses[0]:.6g}, after {len(result.losses)} steps {result.losses[-1]:.6g}'


def request_of(options: argparse.Namespace, job: Job) -> Request:
    """What every rank is asked to run."""
    same = ('compute', 'steps', 'seed', 'dtype', 'device', 'transport', 'issue')
    # The profile's link to the host is paced where the network is.
    link = job.case.cluster.profile.host_link if job.case and options.net.kind == 'paced' else None
    return Request(
        **{name: getattr(options, name) for name in same},
        costs=job.costs,
        keep=options.save_state is not None,
        favour=options.favour_communication,
        work_queues=job.work_queues,
        room=options.device_memory,
        to_host=(link.latency.value, link.bandwidth.value * link.share.value) if link else None,
    )


def load_job(options: argparse.Namespace) -> Job:
    """The job of a schedule file; ``module:function`` names a function that builds a program (and ``--costs`` one from
    a program to its costs), for tests."""
    emulated = options.compute == 'emulated'
    # A file whose name has a colon stays a file.
    if ':' in options.job and not os.path.exists(options.job):
        program = _function(options.job)()
        return Job(program, _function(options.costs)(program) if emulated else None)
    # On the same network as the prediction: costs say how much of a link a collective can take.
    case = on_net(_case(options), options.net)

    def job_of(one: Case) -> Job:
        queues = one.cluster.queues_asked
        costs = one.costs if emulated or queues else None
        if costs and costs.work_queues:
            # Streams that share a queue may hang where each alone would not: this raises ``Deadlock``.
            simulate(one.program, costs, steps=2)
        return Job(one.program, costs if emulated else None, queues, case=one)

    if options.save_baseline is None:
        return job_of(case)
    # The plan itself, where it has no baseline or is to be compared with itself.
    return replace(job_of(case), baseline=job_of(case if options.against_itself else case.baseline or case))


def _case(options: argparse.Namespace) -> Case:
    limit = size.parse_limit(options.limit)
    return load_case(options.job, options.set, limit=limit, module=draws.module_of(options))


def _function(reference: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
    module, _, name = reference.partition(':')
    return getattr(importlib.import_module(module), name)


OWN: Final = 70e6
"""Bytes that a rank has for itself before it has tensors: Private_Dirty of two idle ones was 71 and 72 MB."""


def _alone(options: argparse.Namespace, job: Job) -> tuple[state.Execution, ...]:
    """Run on ranks that this process starts, or on virtual accelerators in it."""
    if in_one_process(options):

        def virtual(program: Program, request: Request) -> state.Execution:
            return VirtualWorld(program, request, options.order).run(keep=request.keep)

        return _performed(options, job, virtual)
    world = max(one.program.world for one in job.all)
    if (free := free_memory()) and world * OWN > free:
        raise Infeasible(
            f'{world:,} ranks on this machine take at least {units.format_size(world * OWN)} of memory, and '
            f'{units.format_size(free)} are free; start them on several hosts (`simpar script`), or try them without '
            'devices (`simpar check FILE --fake`)'
        )
    # With more ranks than cores, pinning would make two ranks share one core while another idles.
    pinned = world <= (os.cpu_count() or 1)
    with Pool(world, net=options.net, timeout=options.timeout, port=options.port, pinned=pinned) as pool:
        return _timing_ops(options, job, pool.perform) if options.time_ops else _performed(options, job, pool.perform)


def _timing_ops(options: argparse.Namespace, job: Job, perform: state.Perform) -> tuple[state.Execution, ...]:
    """The same; behind each block of steps the ops run without messages, and their seconds go to a file."""
    # The bench is much code, which other runs do without.
    from executor.bench.rounds import AlonePool, InOrder

    programs = [one.program for one in job.all]
    costs = {one.program.hash: one.case.costs for one in job.all if one.case}
    favour = options.favour_communication
    with AlonePool(job.program.world, programs, lambda program: costs[program.hash], favour=favour) as alone:
        ops = InOrder(alone, programs)

        def and_ops(program: Program, request: Request) -> state.Execution:
            execution = perform(program, request)
            ops.round_of(program)
            return execution

        executions = _performed(options, job, and_ops)
    write_atomically(options.time_ops, json.dumps(ops.seconds()))
    return executions


def _performed(options: argparse.Namespace, job: Job, perform: state.Perform) -> tuple[state.Execution, ...]:
    if not options.measured:
        return (perform(job.program, request_of(options, job)),)
    runs = [(one.program, request_of(options, one)) for one in job.all]
    return state.in_turns(runs, options.measured, perform)


def _among(options: argparse.Namespace, launch: Launch, job: Job) -> tuple[state.Execution, ...]:
    """Run as one of the ranks that a launcher has started: the plan alone, for which they were started."""
    request = request_of(options, job)
    timing = (options.net, options.timeout, options.meet)
    with external.launched(launch, job.program, *timing, check=not options.no_preflight) as perform:
        execution = perform(request, None)
    if execution is None:
        return ()
    measured = options.measured
    return (replace(execution, trace=joined([execution.trace], state.FIRST_STEADY)) if measured else execution,)


def _headline(options: argparse.Namespace, launch: Launch | None, program: Program) -> str:
    """Say in one line what will run where."""
    where = f'{program.world} ranks on this machine' if launch is None else str(launch)
    device = '' if options.device == 'cpu' else f'; device {options.device} ({devices.KINDS[options.device].tried})'
    return f'executor: {where}; program {program.hash[:12]}; compute {options.compute}; network {options.net}{device}'


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(options: argparse.Namespace, executions: Sequence[state.Execution]) -> None:
    execution = executions[0]
    trace = execution.trace
    for path, one in zip((options.save, options.save_baseline), executions, strict=False):
        if path:
            trace_files.save_trace(path, replace(trace_files.to_saved(one.trace), net=options.net.flag))
    _save_state(options, trace.program, execution)
    emulated = trace.origin == 'emulated'
    notes = [
        *dict.fromkeys(note for one in executions for note in one.notes),
        *([EMULATED] if emulated else []),
        *filter(None, [devices.KINDS[options.device].note]),
        *_in_8_bits(trace.program, emulated=emulated),
    ]
    if options.json:
        answer = {
            'program': trace.program.hash,
            'origin': trace.origin,
            'ranks': trace.program.world,
            'network': str(options.net),
            'step_times': trace.step_times.tolist(),
            'losses': list(execution.losses),
            'notes': notes,
        }
        print(json.dumps(answer, ensure_ascii=False))
        return
    # What is measured is told beside the prediction.
    if not options.measured:
        print(f'cold step {units.format_time(trace.cold_step)}{_steady(trace)}')
    if execution.losses:
        print(_losses(execution))
    for note in notes:
        print(f'note: {note}')


def _log(folder: Path, case: Case, execution: state.Execution) -> None:
    """Each measured step and loss for TensorBoard, and under the same name, so in the same chart, what is predicted."""
    from torch.utils.tensorboard import SummaryWriter

    # The executor is no framework: one that only a rule chose is left out, as of ``simpar measure``.
    default = case.schedule.framework_is_default
    alone = replace(case, baseline=None, cluster=replace(case.cluster, stack=None) if default else case.cluster)
    trace, steps = execution.trace, alone.predict().trace.step_times.tolist()
    measured = trace.step_times.tolist()
    # A simulated step is as long as all behind it.
    predicted = [*steps, *steps[-1:] * len(measured)][: len(measured)]
    for name, times in (('predicted', predicted), (trace.origin, measured)):
        with SummaryWriter(str(folder / name)) as writer:
            for step, seconds in enumerate(times):
                writer.add_scalar('seconds of a step', seconds, step)
            for step, loss in enumerate(execution.losses if name != 'predicted' else ()):
                writer.add_scalar('loss', loss, step)
    _say(f'wrote {folder}; show it by: tensorboard --logdir {folder}')


def _in_8_bits(program: Program, *, emulated: bool) -> list[str]:
    if emulated or not any(op.dtype == 'fp8' for op in program.op_classes):
        return []
    return ['products in fp8 ran in fp32: no kernel here computes in 8 bits, so times and losses are not those of fp8']


def _steady(trace: Trace) -> str:
    if trace.steps == 1:
        return ''
    # The first step opens connections and warms caches; it is told, but not mixed with the others.
    steps = trace.step_times[trace.warm()].tolist()
    spread = f'{units.format_time(min(steps))} to {units.format_time(max(steps))}'
    step = units.format_time(trace.step_times[trace.that_counts])
    return f', then {step} a step ({PERCENTILE:.0f}th percentile of {len(steps)}, {spread})'


# ``preflight``: one process on each host, before any rank is started: who is missing, and what hosts lack.


def preflight_hosts(options: argparse.Namespace) -> int:
    """Meet the other hosts, check all, and let the first host print a table."""
    hosts = [name.strip() for name in options.hosts.split(',')]
    own = _own(hosts) if options.node_rank is None else options.node_rank
    if not 0 <= own < len(hosts) or not all(hosts):
        what = f'host {own} of {len(hosts)} named ones'
        raise ScheduleError(Problem('--node-rank', what, f'write 0 to {len(hosts) - 1}, and a name for each host'))
    launch = Launch('preflight', own, len(hosts), hosts[0], options.port, hosts=tuple(hosts), noun='host')
    try:
        return _met(options, launch, hosts, _program(options, len(hosts)))
    except ScheduleError as error:
        # Hosts that can read their job need not wait for one that cannot.
        with suppress(SimparError, RuntimeError):
            meeting.refuse(external.store_of(launch, external.REFUSAL), own, len(hosts), str(error).splitlines()[0])
        raise
    except RuntimeError as error:
        raise RunFailed(f'host {own} ({hosts[own]}): {str(error).splitlines()[0]}') from error


def _program(options: argparse.Namespace, hosts: int) -> Program:
    program = load_job(options).program
    validate.validate(program)
    if program.world % hosts:
        what = f'{hosts} hosts cannot share {program.world} ranks alike'
        raise ScheduleError(Problem('--hosts', what, 'name as many as divide the ranks'))
    return program


def _met(options: argparse.Namespace, launch: Launch, hosts: list[str], program: Program) -> int:
    own, count = launch.rank, len(hosts)
    each = program.world // count
    where = f'{launch.host}:{launch.port}'
    print(
        f'preflight: host {own} of {count}; all meet at {where} within {options.meet:g} s', file=sys.stderr, flush=True
    )
    store = external.store_of(launch, options.meet)
    wanted = meeting.asked(program, request_of(options, Job(program, None)), options.net)
    cards = meeting.shake_hands(store, launch, wanted, options.meet)
    places = meeting.places_of(cards, [range(first, first + each) for first in range(0, program.world, each)])
    needs = meeting.bytes_of_ranks(program, options.dtype)
    notes = meeting.preflight(store, own, cards, places, needs)
    clock, _ = external.common_clock(store, own, count)
    walls = external.wall_clocks(store, own, count, clock)
    notes += meeting.clocks_apart(places, {index * each: wall for index, wall in enumerate(walls)})
    if own == 0:
        _show_json(places, needs, notes) if options.json else _show_places(places, needs, notes)
    meeting.let_all_see(store, own, range(count), 'left')
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
            if meeting.local_address(host) == socket.gethostbyname(host):
                return index
    what = f'this host is called {name}, which is none of {", ".join(hosts)}'
    raise ScheduleError(Problem('--hosts', what, 'write its name or address, or give --node-rank'))


def _show_json(places: list[meeting.Place], needs: list[int], notes: tuple[str, ...]) -> None:
    hosts = [
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
    print(json.dumps({'hosts': hosts, 'notes': list(notes)}, ensure_ascii=False))


def _devices(place: meeting.Place) -> str:
    """``8 of cuda, 79.1 GB free, driver 12080, version of NCCL 2.27.3``."""
    survey = place.devices
    parts = [
        f'{survey.count} of {survey.kind}',
        *([f'{units.format_size(min(survey.free))} free'] if survey.free else []),
    ]
    parts += [f'driver {survey.driver}'] if survey.driver else []
    return ', '.join([*parts, *(f'{topic} {version}' for topic, version in survey.versions.items())])


def _show_places(places: list[meeting.Place], needs: list[int], notes: tuple[str, ...]) -> None:
    rows: list[tuple[str, ...]] = [('host', 'ranks', 'cores', 'memory needed', 'free')]
    for place in places:
        need = units.format_size(sum(needs[rank] for rank in place.ranks))
        free = units.format_size(place.host.free) if place.host.free else 'unknown'
        rows.append((place.host.name, many('rank', place.ranks), str(place.host.cores), need, free))
    if places[0].devices.kind:
        rows = [(*row, cell) for row, cell in zip(rows, ['devices', *map(_devices, places)], strict=True)]
    print(*columns(rows, '  '), sep='\n')
    for note in notes:
        print(f'note: {note}')
    print(f'all {len(places)} hosts are here, agree on job and versions, and reach one another')


# ``numerics``: every loss, gradient and parameter of some steps in process against torch autograd's.


def check_numerics(options: argparse.Namespace) -> int:
    """Train in process, compare with the unsharded model; raises ``NumericsWrong`` where they differ."""
    case = _case(options)
    report = numerics.check(case.program, case.schedule.workload, case.schedule.plan, options.steps, options.seed)
    worst = report.worst
    if options.json:
        summary = {'program': case.program.hash, 'compared': len(report.deviations), 'tolerance': report.tolerance}
        print(json.dumps({**summary, 'worst': {'step': worst.step, 'name': worst.name, 'error': worst.error}}))
    else:
        count = f'{len(report.deviations)} losses, gradients and parameters of {options.steps} steps'
        print(f'numerics: {count} equal those of the unsharded model in fp64 to {worst.error:.2g}; worst: {worst.name}')
    return 0


# ``dry-run``: what ranks would ask of devices, held against one another and against the program.


DRY_RUN: Final = '60s'
"""What a dry run may take where no flag says otherwise."""


def dry_run_job(options: argparse.Namespace) -> int:
    """Issue two steps without devices; raises ``RunFailed`` that names what would fail on them."""
    # It imports parts of torch that no other verb needs.
    from executor.virtual.dry_run import check_time, dry_run

    case = _case(options)
    check_time(case.program, size.parse_limit([DRY_RUN, *options.limit]))
    try:
        report = dry_run(case.program, options.device, dtype=options.dtype)
    except (ProgramError, Deadlock) as error:
        raise RunFailed(f'dry run on {options.device}: {error}') from error
    if options.json:
        print(json.dumps({'program': case.program.hash, **report.to_dict()}))
    else:
        print(*report.lines(), *_in_8_bits(case.program, emulated=False), sep='\n')
    if report.wrong:
        raise RunFailed('\n'.join(f'dry run on {options.device}: {what}' for what in report.wrong))
    return 0


COMMANDS: Final = {'run': run_job, 'preflight': preflight_hosts, 'numerics': check_numerics, 'dry-run': dry_run_job}
