"""``run``: a job on real ranks, started here or by somebody else."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
from dataclasses import dataclass

from executor.assemble import Execution
from executor.devices.flags import check_device, in_one_process
from executor.devices.kinds import KINDS
from executor.launch import Launch, detect
from executor.rank import Request
from executor.validate import validate
from simpar.cost.costs import Costs
from simpar.errors import Problem, RunFailed, ScheduleError, SimparError
from simpar.program import Program
from simpar.units import format_time

EMULATED = 'emulated compute shows dependencies, streams and communication, not compute'


@dataclass(frozen=True, slots=True)
class Job:
    """A program, its costs where compute is emulated, and how many work queues it asks for; 0: it does not say."""

    program: Program
    costs: Costs | None
    work_queues: int = 0


def command(options: argparse.Namespace) -> int:
    """Run the job; rank 0, or the parent of the ranks, prints what will run and the result."""
    # ``--nproc`` says that ranks are started here, whatever a batch system has put into the environment.
    launch = None if options.nproc else detect(os.environ)
    if launch is not None and launch.idle:
        return 0
    try:
        _check_state(options)
        check_device(options, launch.by if launch else '')
        job = load_job(options)
        # Before any process is started: gloo would abort or hang on what this finds.
        validate(job.program)
    except SimparError as error:
        if launch is not None:
            from executor.external import refuse_external

            refuse_external(launch, str(error))
        raise
    if options.nproc and options.nproc != job.program.world:
        raise RunFailed(f'the job is for {job.program.world} ranks, not for --nproc {options.nproc}')
    # One line for the whole job, not one a rank.
    if launch is None or launch.rank == 0:
        _say(_found(options, launch, job.program))
    request = request_of(options, job)
    execution = _alone(options, job, request) if launch is None else _among(options, launch, job, request)
    if execution is not None:
        _show(options, execution)
    return 0


def _check_state(options: argparse.Namespace) -> None:
    """Refuse beforehand what would fail at the end of a run."""
    if options.save_state is None:
        return
    if options.compute == 'emulated':
        what = 'emulated compute has neither losses nor parameters'
        raise ScheduleError(Problem('--save-state', what, 'write --compute real'))
    options.save_state.parent.mkdir(parents=True, exist_ok=True)


def request_of(options: argparse.Namespace, job: Job) -> Request:
    """What every rank is asked to run."""
    return Request(
        compute=options.compute,
        costs=job.costs,
        steps=options.steps,
        seed=options.seed,
        dtype=options.dtype,
        keep=options.save_state is not None,
        favour=options.favour_communication,
        faults=tuple(options.fault),
        device=options.device,
        transport=options.transport,
        issue=options.issue,
        work_queues=job.work_queues,
    )


def load_job(options: argparse.Namespace) -> Job:
    """The job of a schedule file; ``module:function`` names a function that builds a program (and ``--costs`` one from
    a program to its costs), for tests."""
    emulated = options.compute == 'emulated'
    # A file whose name has a colon stays a file.
    if ':' in options.job and not os.path.exists(options.job):
        program = _function(options.job)()
        return Job(program, _function(options.costs)(program) if emulated else None)
    from executor.given import module_of
    from simpar.case import load_case, on_net
    from simpar.clocks import under_load
    from simpar.cost.price import price
    from simpar.engine import simulate
    from simpar.size import parse_limit

    # On the same network as the prediction: costs say how much of a link a collective can take.
    case = on_net(
        load_case(options.job, options.set, limit=parse_limit(options.limit), module=module_of(options)), options.net
    )
    asked = case.cluster.queues_asked
    costs = price(case.program, under_load(case.program, case.cluster)) if emulated or asked else None
    if costs and costs.work_queues:
        # Streams that share a queue may hang where each alone would not: this raises ``Deadlock``.
        simulate(case.program, costs, steps=2)
    return Job(case.program, costs if emulated else None, asked)


def _function(reference: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
    module, _, name = reference.partition(':')
    return getattr(importlib.import_module(module), name)


def _alone(options: argparse.Namespace, job: Job, request: Request) -> Execution:
    """Run on ranks that this process starts, or on virtual accelerators in it."""
    if in_one_process(options):
        from executor.virtual.world import VirtualWorld

        return VirtualWorld.of(job.program, request, options.order).run(keep=request.keep)
    from executor.backend import Pool

    world = job.program.world
    # With more ranks than cores, pinning would make two ranks share one core while another idles.
    pinned = world <= (os.cpu_count() or 1)
    with Pool(world, net=options.net, timeout=options.timeout, port=options.port, pinned=pinned) as pool:
        return pool.perform(job.program, request)


def _among(options: argparse.Namespace, launch: Launch, job: Job, request: Request) -> Execution | None:
    """Run as one of the ranks that a launcher has started."""
    from executor.external import run_external

    return run_external(
        launch, job.program, request, options.net, options.timeout, meet=options.meet, check=not options.no_preflight
    )


def _found(options: argparse.Namespace, launch: Launch | None, program: Program) -> str:
    """Say in one line what will run where."""
    where = f'{program.world} ranks on this machine' if launch is None else str(launch)
    device = '' if options.device == 'cpu' else f'; device {options.device} ({KINDS[options.device].tried})'
    return f'executor: {where}; program {program.hash[:12]}; compute {options.compute}; network {options.net}{device}'


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(options: argparse.Namespace, execution: Execution) -> None:
    trace = execution.trace
    if options.save:
        from simpar.trace_files import save_trace

        save_trace(options.save, trace)
    if options.save_state:
        from executor.given import by_module
        from executor.state import save_state

        kept = by_module(execution) if options.module else execution
        save_state(options.save_state, kept, program=trace.program.hash, seed=options.seed)
    emulated = trace.origin == 'emulated'
    notes = [
        *execution.notes,
        *([EMULATED] if emulated else []),
        *filter(None, [KINDS[options.device].note]),
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
    # The first step opens connections and warms caches; it is told, but not mixed with the others.
    steady = trace.step_times[trace.warm()].tolist() if trace.steps > 1 else []
    print(f'cold step {format_time(trace.cold_step)}{_steady(steady)}')
    if execution.losses:
        print(f'loss {execution.losses[0]:.6g}, after {len(execution.losses)} steps {execution.losses[-1]:.6g}')
    for note in notes:
        print(f'note: {note}')


def _in_8_bits(program: Program, *, emulated: bool) -> list[str]:
    if emulated or not any(op.dtype == 'fp8' for op in program.op_classes):
        return []
    return ['products in fp8 ran in fp32: no kernel here computes in 8 bits, so times and losses are not those of fp8']


def _steady(steps: list[float]) -> str:
    if not steps:
        return ''
    spread = f'{format_time(min(steps))} to {format_time(max(steps))}'
    return f', then {format_time(statistics.median(steps))} a step (median of {len(steps)}, {spread})'
