"""What ranks are asked to run, and what steps gave: losses, tensors, traces and their files, figures of repeats."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
import torch

from executor import checkpoint, devices, draws
from executor.tensors import as_named, assemble
from executor.walk import Place, seat
from simpar import files
from simpar.cost.costs import Costs
from simpar.program import Program
from simpar.torch_module.graph import module_tensors
from simpar.trace import RankTimes, Times, Trace, joined

# What a rank is asked to run, and what it answers: requests, stretches of a training, outcomes.


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps of a training from one checkpoint to the next.

    Arguments:
        first: the number of its first step.
        source: the folder of the checkpoint that it begins from; empty: from the stretch before, or from the seed.
        save: the folder of the checkpoint that it ends with; empty: none.
        batches: the user's, one a step; empty: drawn from the seed.
        losses: of the steps before it.
        trained: what its training trains.
    """

    first: int = 0
    source: str = ''
    save: str = ''
    batches: tuple[draws.Batch, ...] = ()
    losses: tuple[float, ...] = ()
    trained: checkpoint.Trained | None = None


INIT_TIMEOUT: Final = 60.0
Pair = tuple[float, float]


Compute = Literal['real', 'emulated']


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to run.

    Arguments:
        costs: seconds of every op, for emulated compute.
        dtype: takes the place of every floating dtype in real compute.
        keep: whether parameters and gradients come back.
        favour: whether communication goes first where both want one core.
        stretch: which part of a longer training this is.
        device: the kind of device; cpu: threads in place of its streams.
        transport: ``native``, the collectives of the device's own library; ``gloo``; empty: what suits the device.
        issue: ``eager``, op by op, or ``graph``, as captured graphs.
        work_queues: how many a device has, which streams share; 0: as the costs say, or one for each.
        room: bytes that a rank's device has for tensors; 0: as many as it needs.
        to_host: latency and bytes a second of a link to the host that is paced; none: as fast as memory copies.
        clocks: whether threads of streams read clocks of CPU time before and behind each op.
    """

    compute: Compute = 'real'
    costs: Costs | None = None
    steps: int = 3
    seed: int = 0
    dtype: str = ''
    keep: bool = False
    favour: bool = False
    stretch: Stretch | None = None
    device: str = 'cpu'
    transport: str = ''
    issue: str = 'eager'
    work_queues: int = 0
    room: int = 0
    to_host: Pair | None = None
    clocks: bool = False

    @property
    def threads(self) -> bool:
        """Whether streams are threads, and collectives rings over gloo."""
        return devices.in_threads(self.device, self.transport)

    @property
    def queues(self) -> int:
        """How many work queues a device has; 0: one for each stream."""
        return self.work_queues or (self.costs.work_queues if self.costs else 0)

    def __post_init__(self) -> None:
        if self.compute == 'emulated' and self.costs is None:
            raise ValueError('emulated compute needs costs')


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rank saw: times since the program began, shape [steps, slots]; its shards of losses, parameters and
    gradients; ``notes``, what was logged; ``written``, its part of a checkpoint; ``cpu``, see ``Streams``."""

    arrive_KS: Times
    end_KS: Times
    notes: tuple[str, ...] = ()
    losses: list[dict[Part, torch.Tensor]] = field(default_factory=list)
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    written: str = ''
    cpu: Times = field(default_factory=lambda: np.zeros(0))


Part = tuple[str, int, int]
"""A tensor of one micro-batch and copy."""


# What training steps gave: losses, full tensors and a trace, of what every rank saw; in memory, and as a file.


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Arguments:
    losses: one a step.
    parameters: after the last step.
    gradients: those of the last step.
    """

    losses: tuple[float, ...]
    parameters: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]


def save_state(path: str | os.PathLike[str], result: Result, *, program: str, seed: int) -> None:
    """Write a result as a dict of tensors and plain values, whole or not at all.

    Arguments:
        program: the hash of the program that was run.
        seed: of weights and data.
    Read it with ``torch.load(path, weights_only=True)``.
    """
    content = {
        'format': 'simpar state 1',
        'program': program,
        'seed': seed,
        'losses': list(result.losses),
        'parameters': {name: tensor.contiguous() for name, tensor in result.parameters.items()},
        'gradients': {name: tensor.contiguous() for name, tensor in result.gradients.items()},
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    files.write_atomically(Path(path), buffer.getvalue())


# From what every rank saw to one Trace and full tensors.

Key = TypeVar('Key')
Shards = Mapping[str, torch.Tensor]
Losses = Sequence[Mapping[Part, torch.Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class Execution(Result):
    """A run on real ranks: its trace, and what it gave.

    Arguments:
        losses: one a step; empty where compute was emulated.
        parameters, gradients: full tensors by name; empty unless asked for.
        notes: what a reader of the times must know, in words.
    """

    trace: Trace
    notes: tuple[str, ...] = ()


Finish = Callable[[Execution, Sequence[Outcome]], None]
"""What is done with a run before its ranks go on."""


def assemble_run(
    program: Program, outcomes: Sequence[Outcome], compute: Compute, notes: tuple[str, ...] = ()
) -> Execution:
    """Make one Execution of the outcomes of all ranks.

    Raises ``NumericsWrong`` where ranks that should hold the same tensor do not.
    """
    starts = _starts(program, outcomes)
    representatives = [
        RankTimes(rank, outcome.arrive_KS, starts[rank], outcome.end_KS) for rank, outcome in enumerate(outcomes)
    ]
    trace = Trace(
        program=program,
        origin='emulated' if compute == 'emulated' else 'measured',
        representatives=tuple(representatives),
        representative_of_rank=np.arange(program.world, dtype=np.int32),
    )
    result = full_result(
        program,
        [outcome.losses for outcome in outcomes],
        [outcome.parameters for outcome in outcomes],
        [outcome.gradients for outcome in outcomes],
    )
    # All ranks log the same note, e.g. on generated data; a reader wants it once.
    notes = tuple(dict.fromkeys((*notes, *(note for outcome in outcomes for note in outcome.notes))))
    return Execution(result.losses, result.parameters, result.gradients, trace=trace, notes=notes)


def full_result(
    program: Program, losses: Sequence[Losses], parameters: Sequence[Shards], gradients: Sequence[Shards]
) -> Result:
    """Full tensors, and a loss a step, of what each rank has of them.

    Raises ``NumericsWrong`` where ranks that should hold the same tensor do not.
    """
    return Result(
        losses=tuple(_loss(program, list(of_step)) for of_step in zip(*losses, strict=True)),
        parameters=_full(program, parameters),
        gradients=_full(program, gradients),
    )


def _starts(program: Program, outcomes: Sequence[Outcome]) -> list[Times]:
    """Find the starts: a compute op starts when it arrives, a collective or transfer when its last participant does."""
    starts = [outcome.arrive_KS.copy() for outcome in outcomes]
    # Machines report arrivals alone, since no rank knows when the others came; starts follow only from all ranks'
    # times.
    for meeting in meetings(program):
        # One maximum over the steps of all participants: a meeting occurs once in every step.
        latest = np.max([outcomes[rank].arrive_KS[:, slot] for rank, slot in meeting], axis=0)
        for rank, slot in meeting:
            starts[rank][:, slot] = latest
    return starts


def meetings(program: Program) -> list[list[tuple[int, int]]]:
    """List the (rank, slot) that meet: the n-th of each participant at one place."""
    met: dict[tuple[Place, int], list[tuple[int, int]]] = {}
    for rank in range(program.world):
        role, times = program.role(rank), Counter[Place]()
        for slot, stream in enumerate(role.stream.tolist()):
            op = program.op(role, slot)
            if op.kind != 'compute':
                place, *_ = seat(op, role.streams[stream], program.partitions[op.partition], rank)
                met.setdefault((place, times[place]), []).append((rank, slot))
                times[place] += 1
    return list(met.values())


def _loss(program: Program, losses: Sequence[Mapping[Part, torch.Tensor]]) -> float:
    """Sum a step's loss over micro-batches, copies and the shards that ranks hold."""
    # Sorted, so that the floating-point sum does not depend on which rank reported first.
    parts = sorted({part for held in losses for part in held})
    return sum(float(assemble(program, program.tensor[part[0]], _shards_of(losses, part)).sum()) for part in parts)


def _full(program: Program, held: Sequence[Shards]) -> dict[str, torch.Tensor]:
    names = dict.fromkeys(name for shards in held for name in shards)
    named = as_named(program, {name: _shards_of(held, name) for name in names})
    return {name: assemble(program, tensor, shards) for name, (tensor, shards) in named.items()}


def _shards_of(held: Sequence[Mapping[Key, torch.Tensor]], key: Key) -> dict[int, torch.Tensor]:
    return {rank: shards[key] for rank, shards in enumerate(held) if key in shards}


AnyResult = TypeVar('AnyResult', bound=Result)


def by_module(result: AnyResult) -> AnyResult:
    """A result whose parameters and gradients have the module's own names."""
    gradients = module_tensors({name.removeprefix('d:'): of for name, of in result.gradients.items()})
    return replace(
        result,
        parameters=module_tensors(result.parameters),
        gradients={f'd:{name}': of for name, of in gradients.items()},
    )


# Measurement: statistics of repeats, and programs run in turns, so that drift of the machine hits all alike.

FIRST_STEADY = 2
"""Step from which on steps count: end(k) − end(k−1), k = 3 being the first; ``Trace.warm`` tells the last."""


DIGITS: Final = 5
"""Significant digits of a time: more would be noise."""


def figures(samples: Any, low: float | None = None) -> dict[str, float] | None:
    """What a reader must know of some repeats; None where there are none.

    A machine that is shared adds time and never takes any, so a low quantile tells what was measured, the median what a
    user sees, and the spread how much to believe either.
    Arguments: ``low``, the number to use of them, where it is not their 10th percentile.
    """
    if not len(samples):
        return None
    return {
        'n': len(samples),
        'median': _short(np.median(samples)),
        'p10': _short(np.quantile(samples, 0.1)),
        'iqr': _short(np.subtract(*np.quantile(samples, [0.75, 0.25]))),
        'cv': round(float(np.std(samples) / np.mean(samples)), 4),
        **({} if low is None else {'low': _short(low)}),
    }


def _short(seconds: Any) -> float:
    return float(f'{float(seconds):.{DIGITS}g}')


BLOCK: Final = 5
"""Steps that count in a block: more would let the machine drift between plan and baseline, fewer mostly warm up."""
Perform = Callable[[Program, Request], Execution]
Run = tuple[Program, Request]
"""What is run: a program, and a request whose number of steps a block replaces."""


def blocks_of(steps: int, programs: int) -> list[int]:
    """How many steps count in each block: of one program all in one, of several a few, and at least two blocks."""
    count = 1 if programs == 1 else min(max(2, round(steps / BLOCK)), steps)
    return [steps // count + (number < steps % count) for number in range(count)]


def in_turns(runs: Sequence[Run], steps: int, perform: Perform) -> tuple[Execution, ...]:
    """Run programs in turns; of each an execution, whose trace has the steps of all its blocks.

    Arguments:
        runs: programs with their requests; the first may keep parameters and gradients.
        steps: how many of each program count, over all blocks.
        perform: runs a program.
    """
    by_run: list[list[Execution]] = [[] for _ in runs]
    for counted in blocks_of(steps, len(runs)):
        for (program, request), executions in zip(runs, by_run, strict=True):
            block = replace(request, steps=steps_of(program, counted), keep=request.keep and len(runs) == 1)
            executions.append(perform(program, block))
    whole = [_whole(executions) for executions in by_run]
    program, request = runs[0]
    if request.keep and len(runs) > 1:
        # A state is of one training, and each block begins a training anew.
        training = perform(program, replace(request, steps=steps_of(program, steps)))
        whole[0] = replace(training, trace=whole[0].trace, notes=_notes([whole[0], training]))
    return tuple(whole)


def steps_of(program: Program, counted: int) -> int:
    """Steps of a block: those before do not count, nor does the last where the next would run into it."""
    return FIRST_STEADY + counted + program.followed


def _whole(executions: Sequence[Execution]) -> Execution:
    trace = joined([one.trace for one in executions], FIRST_STEADY)
    return replace(executions[0], trace=trace, notes=_notes(executions))


def _notes(executions: Sequence[Execution]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for one in executions for note in one.notes))
