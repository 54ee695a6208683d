"""What steps gave: losses, tensors and traces, kept as files, and statistics of repeats."""

import io
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import torch

from executor.ranks.request import Compute, Outcome, Part, Request
from executor.tensors import as_named, assemble
from executor.walk import Place, seat
from simpar import errors, files
from simpar.program import Program
from simpar.torch_module.graph import module_tensors
from simpar.trace import RankTimes, Times, Trace, joined

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


FORMAT: Final = 'simpar state 1'
MOST_BYTES: Final = 2**36


def save_state(path: str | os.PathLike[str], result: Result, *, program: str, seed: int) -> None:
    """Write a result as a dict of tensors and plain values, whole or not at all.

    Arguments:
        program: the hash of the program that was run.
        seed: of weights and data.
    Read it with ``load_state``, or with ``torch.load(path, weights_only=True)``.
    """
    content = {
        'format': FORMAT,
        'program': program,
        'seed': seed,
        'losses': list(result.losses),
        'parameters': {name: tensor.contiguous() for name, tensor in result.parameters.items()},
        'gradients': {name: tensor.contiguous() for name, tensor in result.gradients.items()},
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    files.write_atomically(Path(path), buffer.getvalue())


def load_state(path: str | os.PathLike[str]) -> Result:
    """Read what ``save_state`` wrote; raises ``ScheduleError`` for another file, and ``OSError``."""
    content = files.read_regular(path, MOST_BYTES)
    try:
        # Tensors and plain values only: a file that is read must not run code.
        found = torch.load(io.BytesIO(content), weights_only=True)
    # What torch makes of broken bytes fails in any way.
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _wrong(path, f'cannot be read: {reason[:100]}') from None
    kinds = {'losses': list, 'parameters': dict, 'gradients': dict}
    if not isinstance(found, dict) or found.get('format') != FORMAT:
        raise _wrong(path, 'is not the state of a run')
    if lacking := [name for name, kind in kinds.items() if not isinstance(found.get(name), kind)]:
        raise _wrong(path, f'is not a whole state: it has no {lacking[0]}')
    return Result(tuple(found['losses']), found['parameters'], found['gradients'])


def _wrong(path: str | os.PathLike[str], what: str) -> errors.ScheduleError:
    return errors.refusal(path, what, 'write it with --save-state')


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
    found: list[list[Execution]] = [[] for _ in runs]
    for counted in blocks_of(steps, len(runs)):
        for (program, request), executions in zip(runs, found, strict=True):
            block = replace(request, steps=steps_of(program, counted), keep=request.keep and len(runs) == 1)
            executions.append(perform(program, block))
    whole = [_whole(executions) for executions in found]
    program, request = runs[0]
    if request.keep and len(runs) > 1:
        # A state is of one training, and each block begins a training anew.
        kept = perform(program, replace(request, steps=steps_of(program, steps)))
        whole[0] = replace(kept, trace=whole[0].trace, notes=_notes([whole[0], kept]))
    return tuple(whole)


def steps_of(program: Program, counted: int) -> int:
    """Steps of a block: those before do not count, nor does the last where the next would run into it."""
    return FIRST_STEADY + counted + program.followed


def _whole(executions: Sequence[Execution]) -> Execution:
    trace = joined([one.trace for one in executions], FIRST_STEADY)
    return replace(executions[0], trace=trace, notes=_notes(executions))


def _notes(executions: Sequence[Execution]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for one in executions for note in one.notes))
