"""What a machine with accelerators shows in 8 minutes, with two or more of them in 15: ``make gpu``.

Losses against the CPU, several ranks on one device over gloo, no waiting host inside of a step, flat memory, for twelve
schedules the measured step against the one that is predicted from op times of another run, and a profile. With two
devices the twelve run over their own links and are predicted by that profile. Nothing is fetched from a network. Parts
are kept in a folder: the same command goes on. Rehearsed with ``--device virtual --size tiny``: times say nothing.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

from executor import inprocess, validate
from executor.devices import KINDS, issue
from executor.devices.open import Device, open_device
from executor.ranks.pool import Pool
from executor.ranks.real import Copies, Start, Transport
from executor.state import Request
from executor.tensors import TORCH
from simpar import __version__, files, plans, profiles, units
from simpar.chakra import recorded_costs
from simpar.cost.costs import Communication, Costs
from simpar.cost.price import price
from simpar.engine import simulate
from simpar.errors import RunFailed, SimparError
from simpar.lower import lower
from simpar.memory import memory
from simpar.program import Program
from simpar.workload import AdamW, Transformer, Workload

FILL: Final = 512
"""Rows of the products that keep a device busy while the host gets ahead of it."""
RANK: Final = 0


@dataclass(frozen=True, slots=True)
class Alone:
    """What was seen.

    Arguments:
        step: median seconds of a steady step.
        ops: op class → median seconds on the device.
        host: seconds that the host took to issue an op, in the mean.
        bytes: the most that tensors took on the device; 0 where it is not known.
    """

    step: float
    ops: dict[str, float]
    host: float
    bytes: int


def run_alone(program: Program, device: Device, *, steps: int, dtype: str = '', ahead: int = 0) -> Alone:
    """Run rank 0's role.

    Arguments: ``ahead``, products that the device has to do before each step, so that it never waits for the host.
    """
    issuer = _alone(program, device, steps, dtype)
    filler = torch.ones(FILL, FILL, device=device.name) if ahead else None
    device.module.reset_peak_memory_stats(device.name)
    hosts = []
    for step in range(steps):
        issuer.keep_near(step)
        with device.module.stream(issuer.streams[0]), torch.no_grad():
            for _ in range(ahead):
                torch.mm(filler, filler)
        begun = time.perf_counter()
        issuer.issue(step)
        hosts.append((time.perf_counter() - begun) / len(issuer.slots))
    issuer.finish()
    ends = issuer.end_KS.max(axis=1)
    steady = slice(min(2, steps - 1), None)
    return Alone(
        step=float(np.median(np.diff(ends)[1:] if steps > 2 else np.diff(ends))),
        ops=_of_ops(program, issuer, steady),
        host=float(np.median(hosts[steady])),
        bytes=int(device.module.max_memory_allocated(device.name)),
    )


def _alone(program: Program, device: Device, steps: int, dtype: str = '') -> issue.Issuer:
    """The host of rank 0, with copies in place of messages."""
    transports: dict[tuple[str, str], Transport] = {
        (partition.name, stream): Copies(partition.size, partition.place(RANK)[1])
        for partition, stream in validate.communicators(program)
    }
    issuer = issue.Issuer(Start(program, RANK, dtype=TORCH[dtype] if dtype else None, steps=steps), device, transports)
    issuer.begin(time.perf_counter, -1)
    return issuer


def _of_ops(program: Program, issuer: issue.Issuer, steady: slice) -> dict[str, float]:
    seconds = defaultdict(list)
    took = np.median((issuer.end_KS - issuer.arrive_KS)[steady], axis=0)
    for slot, value in zip(issuer.slots, took.tolist(), strict=True):
        seconds[slot.op.name].append(value)
    return {name: float(np.median(values)) for name, values in seconds.items()}


def costs_of(program: Program, seen: dict[str, float], host: float) -> Costs:
    """Costs of a program whose op classes took so long; those of other ranks alone take no time."""
    took = [(op, units.quantise(seen.get(op.name, 0.0))) for op in program.op_classes]
    talk = {
        index: [Communication(seconds, 0.0)] * len(program.partitions[op.partition].groups_GP)
        for index, (op, seconds) in enumerate(took)
        if op.kind in ('collective', 'send')
    }
    compute = np.array([seconds if op.kind == 'compute' else 0.0 for op, seconds in took])
    issuing = np.array([units.quantise(host) if op.name in seen else 0.0 for op, _ in took])
    return replace(recorded_costs(program, compute, talk), host=issuing)


# The parts, each of which has its minutes.

BAR: Final = 0.08
"""Share by which predicted steps may differ in the median."""
LOSSES: Final = {'fp32': 1e-4, 'bf16': 3e-2}
"""How far losses of a dtype may be from those of the CPU in fp64."""
SIZES: Final = {
    'tiny': Transformer(layers=4, hidden=16, heads=2, vocab=32, sequence=8, init_std=0.1),
    'small': Transformer(layers=4, hidden=256, heads=4, vocab=1024, sequence=128, init_std=0.02),
    'full': Transformer(layers=8, hidden=2048, heads=16, vocab=16384, sequence=1024, init_std=0.02),
}
PLANS: Final = {
    'data 2': plans.Plan(data=2),
    'data 2, zero 3': plans.Plan(data=2, zero=3),
    'tensor 2': plans.Plan(tensor=2),
    'tensor 2, copies 2': plans.Plan(tensor=2, copies=2),
    'tensor 2, copies 4': plans.Plan(tensor=2, copies=4),
    'tensor 2, sequence parallel, copies 2': plans.Plan(tensor=2, sequence_parallel=True, copies=2),
    'tensor 2, recomputed': plans.Plan(tensor=2, recompute='full'),
    'data 2, zero 1': plans.Plan(data=2, zero=1),
    'data 2, zero 2, 2 micro-batches': plans.Plan(data=2, zero=2, micro_batches=2),
    'data 2, offload': plans.Plan(data=2, offload=('activations', 'optimizer')),
    'pipeline 2, 4 micro-batches': plans.Plan(pipeline=2, micro_batches=4),
    'pipeline 2, interleaved': plans.Plan(pipeline=2, chunks=2, order='interleaved-1f1b', micro_batches=4),
}
BASES: Final = {name: name.partition(',')[0] for name in PLANS if name.startswith(('data 2,', 'tensor 2,'))}
"""Plan → the plan that it is a gain or a loss over."""
NOISE: Final = 0.02
"""A measured gain of less has no sign."""
WORLD: Final = 2
STEPS: Final = {'full': 10, 'small': 4, 'tiny': 4}
"""Of a schedule that is timed, by the size that was asked for: a rehearsal's tell nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """One finding.

    Arguments: ``right``, None where nothing is asked of it.
    """

    part: str
    name: str
    found: str
    right: bool | None = None
    seconds: float = 0.0


Share = Callable[[Device, argparse.Namespace], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class PartOf:
    """A part of the check.

    Arguments: ``minutes``, as planned; ``devices``, how many it needs; ``writes``, beside its findings; ``rehearsed``,
    whether it belongs to a rehearsal alone.
    """

    run: Share
    minutes: float
    devices: int = 1
    writes: str = ''
    rehearsed: bool = False


def main(arguments: list[str] | None = None) -> int:
    """Say what is planned, check, print and keep what was found; 4 where something is not as wanted."""
    options = _parser().parse_args(arguments)
    torch.manual_seed(0)
    try:
        device = open_device(options.device)
    except SimparError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    options.folder.mkdir(parents=True, exist_ok=True)
    there, rehearsed = device.module.device_count(), options.size != 'full'
    planned = [name for name, part in PARTS.items() if part.devices <= there and (rehearsed or not part.rehearsed)]
    planned = options.only or planned
    minutes = sum(PARTS[name].minutes for name in planned)
    print(f'{len(planned)} parts, {minutes:g} minutes on {options.device}; findings and their page in {options.folder}')
    for name in planned:
        suffix = ', kept' if _earlier_rows(options, name) else ''
        also = f', writes {PARTS[name].writes}' if PARTS[name].writes else ''
        print(f'  {name}: {PARTS[name].minutes:g} minutes{also}{suffix}')
    rows = [row for name in planned for row in _rows(name, device, options)]
    wrong = [row for row in rows if row.right is False]
    (options.folder / 'page.md').write_text('\n'.join(_page(rows)) + '\n', encoding='utf-8')
    print(f'{len(rows)} findings, {len(wrong)} of them not as wanted')
    return 4 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m executor.gpu_check', allow_abbrev=False)
    parser.add_argument('--device', choices=[name for name in KINDS if KINDS[name].numbered], default='cuda')
    parser.add_argument(
        '--size', choices=tuple(SIZES), default='full', help='of the model that is timed; other than full: a rehearsal'
    )
    parser.add_argument('--only', nargs='*', choices=tuple(PARTS), metavar='PART', help=', '.join(PARTS))
    parser.add_argument('--folder', type=Path, default=Path('out/gpu'), help='what is kept (default: out/gpu)')
    return parser


def _file(options: argparse.Namespace, name: str) -> Path:
    folder: Path = options.folder
    return folder / f'{options.device} {options.size} {name}.json'.replace(' ', '_')


def _earlier_rows(options: argparse.Namespace, name: str) -> list[Row]:
    """What a part has found before, on such a device."""
    file = _file(options, name)
    return [Row(**one) for one in json.loads(file.read_text(encoding='utf-8'))] if file.exists() else []


def _rows(name: str, device: Device, options: argparse.Namespace) -> list[Row]:
    """What a part finds; one that fails leaves the others, and is tried again by the next command."""
    if earlier := _earlier_rows(options, name):
        return earlier
    begun, rows = time.perf_counter(), list[Row]()
    try:
        for row in PARTS[name].run(device, options):
            rows.append(replace(row, seconds=round(time.perf_counter() - begun, 1)))
            print(_line(rows[-1]), flush=True)
    # A machine that is lent for minutes must not lose the other parts to one error.
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else ''
        rows.append(Row(name, 'failed', f'{type(error).__name__}: {reason}', right=False))
        print(_line(rows[-1]), flush=True)
        return rows
    files.write_atomically(_file(options, name), json.dumps([asdict(row) for row in rows], indent=1) + '\n')
    return rows


def _line(row: Row) -> str:
    mark = {None: ' ', True: '+', False: '-'}[row.right]
    return f'{mark} {row.part}: {row.name}: {row.found} ({row.seconds:g} s)'


def _page(rows: Sequence[Row]) -> Iterator[str]:
    """All findings as a page of the docs."""
    yield from ('# What accelerators showed', '', 'Written by `make gpu`.', '')
    yield from ('| part | what | found | as wanted | s |', '|---|---|---|---|---:|')
    for row in rows:
        wanted = {None: '', True: 'yes', False: '**no**'}[row.right]
        yield f'| {row.part} | {row.name} | {row.found} | {wanted} | {row.seconds:g} |'


def _machine(device: Device, options: argparse.Namespace) -> Iterator[Row]:
    named = getattr(device.module, 'get_device_name', lambda index: options.device)(0)
    text = f'{named}, torch {torch.__version__}, Python {platform.python_version()}, {device.module.device_count()}'
    yield Row('machine', 'device', f'{text} of this kind')
    words = ['git', '-C', str(Path(__file__).parent), 'rev-parse', '--short', 'HEAD']
    process = subprocess.run(words, capture_output=True, text=True, check=False) if shutil.which('git') else None
    yield Row('machine', 'simpar', f'{__version__}, commit {process.stdout.strip() if process else ""}')


def workload(model: Transformer, batch: int = 8) -> Workload:
    """A model as each part trains it."""
    return Workload(model=model, batch=batch, optimizer=AdamW(learning_rate=1e-3))


def _losses(device: Device, options: argparse.Namespace) -> Iterator[Row]:
    """World 1: copies and streams, in single precision and in 16 bits."""
    for copies in (1, 4):
        program = lower(workload(SIZES['tiny']), plans.Plan(copies=copies), 1)
        wanted = inprocess.InProcess(program).run(3).losses
        for dtype, bar in LOSSES.items():
            losses = _train(device, program, dtype)
            worst = max(abs(a - b) / abs(b) for a, b in zip(losses, wanted, strict=True))
            yield Row('losses', f'copies {copies}, {dtype}', f'{worst:.1e} from fp64 on the CPU', worst <= bar)


def _train(device: Device, program: Program, dtype: str) -> tuple[float, ...]:
    issuer = _alone(program, device, 3, dtype)
    for step in range(3):
        issuer.keep_near(step)
        issuer.issue(step)
    issuer.finish()
    return tuple(
        sum(float(loss.sum()) for loss in losses.values()) for _, losses in sorted(issuer.computation.losses.items())
    )


def _shared(device: Device, options: argparse.Namespace) -> Iterator[Row]:
    """Two ranks on the one device."""
    with Pool(WORLD, timeout=60) as pool:
        for name in ('tensor 2, copies 2', 'data 2, zero 3'):
            program = lower(workload(SIZES['tiny']), PLANS[name], WORLD)
            request = Request(steps=3, dtype='fp32', device=options.device, transport='gloo')
            losses = pool.perform(program, request).losses
            wanted = inprocess.InProcess(program).run(3).losses
            worst = max(abs(a - b) / abs(b) for a, b in zip(losses, wanted, strict=True))
            yield Row('two ranks on one device', name, f'{worst:.1e} from fp64 on the CPU', worst <= LOSSES['fp32'])


def _no_waiting(device: Device, options: argparse.Namespace) -> Iterator[Row]:
    """Torch itself raises where the host would wait for the device inside of a step."""
    strict = getattr(device.module, 'set_sync_debug_mode', None)
    if strict is None:
        yield Row('no waiting host', 'not asked', f'{options.device} cannot tell')
        return
    program = lower(workload(SIZES['tiny']), PLANS['tensor 2, copies 2'], WORLD)
    issuer = _alone(program, device, 3)
    issuer.issue(0)
    strict('error')
    try:
        issuer.issue(1)
    finally:
        strict('default')
    issuer.finish()
    yield Row('no waiting host', 'tensor 2, copies 2', 'none inside of a step', right=True)


def _flat(device: Device, options: argparse.Namespace) -> Iterator[Row]:
    """Bytes in use after many steps."""
    program = lower(workload(SIZES['tiny']), PLANS['tensor 2, copies 2'], WORLD)
    seen: list[int] = []
    for steps in (40, 200) if options.size == 'full' else (4, 12):
        run_alone(program, device, steps=steps)
        seen.append(int(device.module.memory_reserved(device.name)))
    # Virtual streams are new each time, and so are their blocks.
    wanted = seen[1] <= seen[0] if options.size == 'full' else None
    yield Row('memory', 'reserved after few and many steps', f'{seen[0]:,} and {seen[1]:,} bytes', wanted)


def _predicted(device: Device, options: argparse.Namespace) -> Iterator[Row]:
    """Steps with copies as traffic, predicted from a run of the same ops on one stream, one after the other.

    Tiny ones wait for their host.
    """
    is_full, steps = options.size == 'full', STEPS[options.size]
    step_pairs = dict[tuple[str, str], tuple[float, float]]()
    for size in dict.fromkeys((options.size, 'tiny')):
        for name, plan in PLANS.items():
            model = workload(SIZES[size])
            program, single = (lower(model, one, WORLD) for one in (plan, replace(plan, streams='single')))
            # The device never waits for the host in the run that is calibrated on, or ops would seem longer.
            serial = run_alone(single, device, steps=steps, dtype='bf16', ahead=200 if is_full else 2)
            seen = run_alone(program, device, steps=steps, dtype='bf16')
            trace = simulate(program, costs_of(program, serial.ops, seen.host))
            step = float(trace.step_times[-1])
            step_pairs[size, name] = step, seen.step
            memory_of = f'{memory(trace).peak:,} bytes for {seen.bytes:,}'
            yield Row('prediction', f'{size}: {name}', f'{_compared(step, seen.step)}; {memory_of}')
    yield from _summary('prediction', step_pairs, is_full)


def _compared(step: float, seen: float) -> str:
    return f'{step * 1e3:.3f} ms for {seen * 1e3:.3f} ms: {step / seen - 1:+.1%}'


def _summary(part: str, step_pairs: dict[tuple[str, str], tuple[float, float]], is_full: bool) -> Iterator[Row]:
    """How far steps are off in the median, and how many gains over a plan's base have the sign that was predicted.

    Arguments: ``step_pairs``, by size and plan the predicted and the measured step.
    """
    median = float(np.median([abs(step / seen - 1) for step, seen in step_pairs.values()]))
    yield Row(part, f'{len(step_pairs)} schedules', f'{median:.1%} in the median', median <= BAR if is_full else None)
    gains = []
    for (size, name), (step, seen) in step_pairs.items():
        if name in BASES:
            base, seen_base = step_pairs[size, BASES[name]]
            gains.append((step / base - 1, seen / seen_base - 1))
    signs = [predicted * measured > 0 for predicted, measured in gains if abs(measured) > NOISE]
    yield Row(part, 'signs of gains', f'{sum(signs)} of {len(signs)} right', all(signs) if is_full else None)


def _profile(device: Device, options: argparse.Namespace) -> Iterator[Row]:
    """Products, attention, kernels bound by memory, launches, and two ranks' messages, as `simpar calibrate` has it."""
    words = ['--ranks', '2', '--device', options.device, '--dtype', 'bf16', '--profile', str(_profile_of(options))]
    # One device carries no messages of two ranks by its own library.
    words += ['--transport', 'gloo'] if device.module.device_count() < WORLD or options.size != 'full' else []
    words += ['--quick'] if options.size == 'full' else ['--sizes', 'least']
    done = subprocess.run([sys.executable, '-m', 'executor.bench', *words], capture_output=True, text=True, check=False)
    said = (done.stderr.strip().splitlines() or [''])[-1]
    if done.returncode:
        raise RunFailed(said)
    yield Row('profile', 'written', str(_profile_of(options)), right=True)


def _profile_of(options: argparse.Namespace) -> Path:
    path: Path = options.folder / f'{options.device}_{options.size}.yaml'
    return path


def _ranks(device: Device, options: argparse.Namespace) -> Iterator[Row]:
    """The same schedules on two devices, over their own links, predicted by the profile that was just measured."""
    step_pairs, transport = dict[tuple[str, str], tuple[float, float]](), 'native' if options.size == 'full' else 'gloo'
    here = profiles.cluster(profiles.load_profile(str(_profile_of(options))), devices=WORLD)
    with Pool(WORLD, timeout=60) as pool:
        for name, plan in PLANS.items():
            program = lower(replace(workload(SIZES[options.size]), precision='bf16'), plan, WORLD)
            request = Request(steps=STEPS[options.size], device=options.device, transport=transport)
            seen = float(np.median(pool.perform(program, request).trace.step_times[1:]))
            step = float(simulate(program, price(program, here)).step_times[-1])
            step_pairs[options.size, name] = step, seen
            yield Row('ranks', name, _compared(step, seen))
    yield from _summary('ranks', step_pairs, options.size == 'full')


def _issued(device: Device, options: argparse.Namespace) -> Iterator[Row]:
    """The schedules in full size, issued on a GPU that is not there."""
    from executor.virtual.dry_run import dry_run

    for name, plan in PLANS.items():
        report = dry_run(lower(replace(workload(SIZES['full']), precision='bf16'), plan, WORLD))
        text = '; '.join(report.wrong) or f'{sum(report.calls.values())} operations'
        yield Row('issued', name, text, not report.wrong)


PARTS: Final[dict[str, PartOf]] = {
    'machine': PartOf(_machine, 0.1),
    'losses': PartOf(_losses, 0.5),
    'shared': PartOf(_shared, 0.8),
    'no waiting': PartOf(_no_waiting, 0.1),
    'memory': PartOf(_flat, 0.5),
    'prediction': PartOf(_predicted, 3.0),
    'profile': PartOf(_profile, 3.0, writes='a profile with a table for each kind of operator'),
    'ranks': PartOf(_ranks, 7.0, devices=WORLD),
    'issued': PartOf(_issued, 0.0, rehearsed=True),
}


if __name__ == '__main__':
    sys.exit(main())
