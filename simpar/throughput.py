"""Throughput: the numbers that engineers quote of a step: tokens or samples a second, FLOP/s, utilisation.

And of a training run of so many tokens: days, device-hours and money, failures and checkpoints included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import exp, isfinite, prod
from typing import Any, Final

import numpy as np

from simpar.cost.compute import MATRIX
from simpar.hardware import Profile
from simpar.hardware.profile import Dtype
from simpar.layout import replicated
from simpar.lower.graph.move import Mover, Site
from simpar.lower.issue import mesh_of
from simpar.lower.tape import Tape, Value
from simpar.model.model import AHEAD, Graph
from simpar.model.ops import Ops
from simpar.plans import Plan
from simpar.program import Program
from simpar.program.op import BYTES
from simpar.units import format_count, format_duration, format_size, format_time, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What a step does, by which its seconds become rates; see "Throughput" in docs/reading.md.

    Arguments:
        samples, tokens: of a step, over all devices; tokens 0: its samples have none.
        devices: ranks.
        parameters: numbers that the model trains.
        model_flops: of the products and attention of a step, forward and backward, without recomputation.
        hardware_flops: of the same as devices do it, with recomputation, the update, and what ranks repeat.
        peak: FLOP/s of one device in the step's precision; 0: its profile has none.
        checkpoint: bytes of weights and of the optimizer's states, each once, as the executor writes them.
    Example: ``prediction.throughput.mfu(prediction.step)``.
    """

    samples: int
    tokens: int
    devices: int
    parameters: int
    model_flops: float
    hardware_flops: float
    peak: float
    checkpoint: int = 0

    @property
    def unit(self) -> str:
        """What the model reads: tokens, or samples where these have none."""
        return 'tokens' if self.tokens else 'samples'

    @property
    def work(self) -> int:
        """How many of them a step reads."""
        return self.tokens or self.samples

    def rate(self, step: float) -> float:
        """Tokens (samples without any) a second of all devices; argument: seconds of a step."""
        return self.work / step

    def flops(self, step: float) -> float:
        """Model FLOP/s of a device; argument: seconds of a step."""
        return self.model_flops / self.devices / step

    def mfu(self, step: float) -> float | None:
        """Model FLOPs utilisation (Chowdhery et al. 2022, appendix B), from 0 to 1; None where the peak is unknown."""
        return self.flops(step) / self.peak if self.peak else None

    def hfu(self, step: float) -> float | None:
        """Hardware FLOPs utilisation: the same with all that the devices do."""
        return self.hardware_flops / self.devices / step / self.peak if self.peak else None

    def seconds(self, step: float, amount: float) -> float:
        """Seconds of training on so many tokens (samples without any) without a pause; ``step`` in seconds."""
        return amount / self.rate(step)


def throughput(program: Program, graph: Graph, profile: Profile, *, batch: int, precision: Dtype) -> Throughput:
    """What a step of a program does.

    Arguments:
        graph: the model's, of the whole batch.
        batch: samples of a step.
        precision: of activations and weights.
    """
    device = profile.device
    peak = device.matrix.get(precision) or device.vector.get(precision)
    forward, backward = flops_of_model(graph, precision)
    trains = any(op.phase == 'I' for op in program.cost_kinds[1])
    return Throughput(
        samples=batch,
        # Indices are read by an embedding: each is a token, once. Images and features are none.
        tokens=sum(prod(source.shape) for source in graph.sources if source.integer and AHEAD not in source.name),
        devices=program.world,
        parameters=graph.parameters,
        model_flops=forward + (backward if trains else 0.0),
        hardware_flops=_flops(program),
        peak=peak.value if peak else 0.0,
        checkpoint=_checkpoint(program),
    )


def _checkpoint(program: Program) -> int:
    total = 0
    for tensor in program.tensors:
        if tensor.kind in ('parameter', 'state'):
            # A packed tensor is a rank's part of its members: they have the shapes over all ranks.
            whole = [program.tensor[name] for name in tensor.members] or [tensor]
            total += sum(prod(one.shape) for one in whole) * BYTES[tensor.dtype]
    return total


def flops_of_model(graph: Graph, precision: Dtype) -> tuple[float, float]:
    """FLOPs of the products and attention of a graph, forward and backward, each counted once, whatever the plan."""
    # One device that has everything in full: ranks of a plan may repeat products, which is no work of the model.
    tape = Tape(mesh_of(Plan(), 1, 1), precision)
    mover = Mover(tape)
    values = {one.name: _whole(one.name, one.shape, needs_gradient=False) for one in graph.sources}
    counts: dict[object, tuple[float, float]] = {}
    forward = backward = 0.0
    for node in graph.nodes:
        operator, shape = node.operator, graph.shapes[node.name]
        reads = [values[name] for name in node.reads]
        trained = node.name not in graph.frozen and any(one.trained for one in operator.parameters(shape))
        y = _whole(node.name, shape, needs_gradient=trained or any(read.needs_gradient for read in reads))
        values[node.name] = y = y._replace(load=operator.load(*(read.load for read in reads)))
        if MATRIX.isdisjoint(operator.primitives):
            continue
        # Most layers are alike.
        key = (operator, trained, *(read._replace(name='') for read in reads))
        if key not in counts:
            rule = operator.axes(node.name, *(read.shape for read in reads))
            layouts = tuple(replicated(1, len(dims)) for dims in rule.inputs)
            of = {**dict(zip(operator.roles, reads, strict=False)), 'y': y}
            ops = operator.ops(Site(tape=tape, mover=mover, name=node.name, values=of, inputs=layouts,
                                    output=y.layout, deviation=0.0))  # fmt: skip
            counts[key] = _both_ways(ops, of, trained=trained, every=not graph.frozen)
        forward, backward = forward + counts[key][0], backward + counts[key][1]
    return forward, backward


def _whole(name: str, shape: tuple[int, ...], *, needs_gradient: bool) -> Value:
    return Value(name, shape, replicated(1, len(shape)), needs_gradient)


def _both_ways(ops: Ops, values: Mapping[str, Value], *, trained: bool, every: bool) -> tuple[float, float]:
    """FLOPs of an operator forward and backward. Arguments: ``every``, no weight of the model is frozen."""
    if ops.F.operator not in MATRIX:
        return 0.0, 0.0
    # The backward of a product is two products of its size. Attention that does its scores again counts them once.
    twice = 2 * ops.F.flops
    if every:
        return ops.F.flops, twice
    wanted = [work for role, work in ops.I.items() if work and values[role].needs_gradient]
    wanted += [ops.W] if trained and ops.W else []
    return ops.F.flops, min(twice, sum(work.flops for work in wanted))


def _flops(program: Program) -> float:
    """FLOPs of products and attention over all ranks."""
    each = np.array([op.flops if op.operator in MATRIX else 0.0 for op in program.op_classes])
    ranks = np.bincount(program.role_of_rank, minlength=len(program.roles))
    return float(
        sum(
            count * (np.bincount(role.op_class, minlength=len(each)) @ each)
            for count, role in zip(ranks.tolist(), program.roles, strict=True)
        )
    )


_PREFIXES: Final = {'K': 1e3, 'M': 1e6, 'B': 1e9, 'G': 1e9, 'T': 1e12}
_DAYS: Final = {'d': 86400.0, 'h': 3600.0, 'min': 60.0}
KEYS: Final = 'tokens, price, mtbf, checkpoint_every, checkpoint_time, checkpoint_link, restart'
_ABOVE: Final = {
    'checkpoint_link': 'checkpoints take no time', 'mtbf': 'nothing fails', 'checkpoint_every': 'nothing fails',
}  # fmt: skip
"""Keys that are above 0, and where they are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a training run is asked about.

    Arguments:
        tokens: of the whole run; samples where the model reads no tokens.
        price: of an hour of one device, in any currency; 0: not asked.
        mtbf: seconds between two failures of one device, in the mean; 0: none fails.
        checkpoint_every: seconds of training between two checkpoints.
        checkpoint_time: seconds that a checkpoint stops training for.
        checkpoint_link: bytes a second of all ranks together to where checkpoints are kept; 0: not said. The time
            then follows from the size of a checkpoint.
        restart: seconds from a failure until training goes on.
    """

    tokens: float
    price: float = 0.0
    mtbf: float = 0.0
    checkpoint_every: float = 3600.0
    checkpoint_time: float = 0.0
    checkpoint_link: float = 0.0
    restart: float = 600.0

    def pause(self, throughput: Throughput) -> float:
        """Seconds that a checkpoint stops training for."""
        return throughput.checkpoint / self.checkpoint_link if self.checkpoint_link else self.checkpoint_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training run from its first step to its last token.

    Arguments:
        seconds: expected, with checkpoints and failures.
        trains: seconds of them in which steps count.
        device_hours: of all devices.
        cost: in the currency of the price; None without one.
        saves: seconds of them in which checkpoints stop training; what is left goes to failures.
        pause: seconds of one checkpoint.
    """

    seconds: float
    trains: float
    device_hours: float
    cost: float | None
    saves: float = 0.0
    pause: float = 0.0

    @property
    def goodput(self) -> float:
        """The share of the run in which steps count."""
        return self.trains / self.seconds


def training_run(budget: Budget, throughput: Throughput, step: float) -> Run:
    """What a budget comes to.

    Arguments: ``step``, seconds.
    Source: the expected time of a run with failures at random and checkpoints at equal distances, M e^(R/M)
    (e^((τ+δ)/M) − 1) T/τ (Daly 2006, "A higher order estimate of the optimum checkpoint interval", equation 13).
    Does not model: devices in reserve, failures that slow and do not stop, checkpoints that training does not wait for.
    """
    trains = throughput.seconds(step, budget.tokens)
    every, pause = budget.checkpoint_every, budget.pause(throughput)
    if budget.mtbf:
        # Any device's failure stops all of them.
        mean = budget.mtbf / throughput.devices
        # Beyond e^700 a float ends: then nothing is ever finished.
        grows = (every + pause) / mean + budget.restart / mean
        seconds = (
            mean * exp(budget.restart / mean) * (exp((every + pause) / mean) - 1) * trains / every
            if grows < 700
            else float('inf')
        )
    else:
        seconds = trains * (1 + pause / every)
    hours = seconds * throughput.devices / 3600
    return Run(
        seconds=seconds,
        trains=trains,
        device_hours=hours,
        cost=hours * budget.price if budget.price else None,
        saves=trains * pause / every,
        pause=pause,
    )


def parse_budget(texts: Sequence[str]) -> Budget:
    """Read ``--train KEY=VALUE``; raises ``ValueError`` saying what to write."""
    numbers: dict[str, float] = {}
    for text in texts:
        key, equals, value = text.partition('=')
        if not equals or key not in {field.name for field in fields(Budget)}:
            raise ValueError(f'{text!r} is not KEY=VALUE of {KEYS}; write e.g. tokens=15T')
        if key in numbers:
            raise ValueError(f'{key} is given twice')
        numbers[key] = _value(key, value)
    if 'tokens' not in numbers:
        raise ValueError('--train needs tokens; write e.g. --train tokens=15T')
    if {'checkpoint_time', 'checkpoint_link'} <= numbers.keys():
        raise ValueError(
            'checkpoint_link gives the time of a checkpoint, as checkpoint_time does; leave out one of them'
        )
    return Budget(**numbers)


def _value(key: str, text: str) -> float:
    if key in ('tokens', 'price'):
        number, factor = (text[:-1], _PREFIXES[text[-1:]]) if text[-1:] in _PREFIXES else (text, 1.0)
        try:
            value = float(number) * factor
        except ValueError:
            value = -1.0
        if not isfinite(value) or value <= 0:
            raise ValueError(
                f'{key}={text} is no number above 0; write e.g. {key}={"15T" if key == "tokens" else "2.5"}'
            )
        return value
    value = parse(text, 'rate') if key == 'checkpoint_link' else _time(text)
    if value <= 0 and key in _ABOVE:
        raise ValueError(f'{key}={text} must be above 0; leave it out where {_ABOVE[key]}')
    return value


def _time(text: str) -> float:
    """A time with a unit; days, hours and minutes too, which no time inside a step has."""
    unit = next((unit for unit in sorted(_DAYS, key=len, reverse=True) if text.endswith(unit)), None)
    if unit is None:
        return parse(text, 'time')
    try:
        value = float(text.removesuffix(unit)) * _DAYS[unit]
    except ValueError:
        value = -1.0
    if not isfinite(value) or value < 0:
        raise ValueError(f'not a time: {text!r}; write e.g. 30min, 12h or 50000h')
    return value


def run_line(budget: Budget, run: Run, throughput: Throughput) -> str:
    """A run in a sentence."""
    what = f'{format_count(budget.tokens)} {throughput.unit}'
    if not isfinite(run.seconds):
        return f'{what} are never finished: failures come more often than checkpoints.'
    spent = (
        f'{format_duration(run.seconds)} on {throughput.devices} devices, {format_count(run.device_hours)} device-hours'
    )
    cost = '' if run.cost is None else f' and cost {format_count(run.cost)} at {budget.price:g} a device-hour'
    if run.goodput > 0.9995:
        return f'{what} take {spent}{cost}.'
    failures = run.seconds - run.trains - run.saves
    lost = [f'{run.saves / run.seconds * 100:.1f} % to checkpoints ({_size(throughput)}{format_time(run.pause)} each)']
    lost = (lost if run.saves else []) + ([f'{failures / run.seconds * 100:.1f} % to failures'] if budget.mtbf else [])
    return f'{what} take {spent}{cost}. Goodput {run.goodput * 100:.1f} %: {", ".join(lost)}.'


def _size(throughput: Throughput) -> str:
    return f'{format_size(throughput.checkpoint)}, ' if throughput.checkpoint else ''


def run_to_dict(budget: Budget, run: Run) -> dict[str, Any]:
    """A run as one object, in seconds."""
    return {
        **asdict(budget),
        'seconds': run.seconds if isfinite(run.seconds) else None,
        'seconds_of_training': run.trains,
        'device_hours': run.device_hours if isfinite(run.seconds) else None,
        'cost': run.cost if isfinite(run.seconds) else None,
        'goodput': run.goodput,
        'seconds_of_checkpoints': run.saves,
        'seconds_of_a_checkpoint': run.pause,
    }
