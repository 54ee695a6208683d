"""Budget: days, device-hours and money for a training run of so many tokens, failures and checkpoints included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import exp, isfinite
from typing import Any, Final

from simpar.throughput import Throughput
from simpar.units import format_count, format_duration, parse

_PREFIXES: Final = {'K': 1e3, 'M': 1e6, 'B': 1e9, 'G': 1e9, 'T': 1e12}
_DAYS: Final = {'d': 86400.0, 'h': 3600.0, 'min': 60.0}
KEYS: Final = 'tokens, price, mtbf, checkpoint_every, checkpoint_time, restart'


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a training run is asked about.

    Arguments:
        tokens: of the whole run; samples where the model reads no tokens.
        price: of an hour of one device, in any currency; 0: not asked.
        mtbf: seconds between two failures of one device, in the mean; 0: none fails.
        checkpoint_every: seconds of training between two checkpoints.
        checkpoint_time: seconds that a checkpoint stops training for.
        restart: seconds from a failure until training goes on.
    """

    tokens: float
    price: float = 0.0
    mtbf: float = 0.0
    checkpoint_every: float = 3600.0
    checkpoint_time: float = 0.0
    restart: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training run from its first step to its last token.

    Arguments:
        seconds: expected, with checkpoints and failures.
        trains: seconds of them in which steps count.
        device_hours: of all devices.
        cost: in the currency of the price; None without one.
    """

    seconds: float
    trains: float
    device_hours: float
    cost: float | None


def training_run(budget: Budget, throughput: Throughput, step: float) -> Run:
    """What a budget comes to.

    Arguments: ``step``, seconds.
    Source: the expected time of a run with failures at random and checkpoints at equal distances, M e^(R/M)
    (e^((τ+δ)/M) − 1) T/τ (Daly 2006, "A higher order estimate of the optimum checkpoint interval", equation 13).
    Does not model: devices in reserve, failures that slow and do not stop, checkpoints that training does not wait for.
    """
    trains = throughput.seconds(step, budget.tokens)
    every, pause = budget.checkpoint_every, budget.checkpoint_time
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
    return Run(seconds=seconds, trains=trains, device_hours=hours, cost=hours * budget.price if budget.price else None)


def parse_budget(texts: Sequence[str]) -> Budget:
    """Read ``--train KEY=VALUE``; raises ``ValueError`` saying what to write."""
    found: dict[str, float] = {}
    for text in texts:
        key, equals, value = text.partition('=')
        if not equals or key not in {field.name for field in fields(Budget)}:
            raise ValueError(f'{text!r} is not KEY=VALUE of {KEYS}; write e.g. tokens=15T')
        if key in found:
            raise ValueError(f'{key} is given twice')
        found[key] = _value(key, value)
    if 'tokens' not in found:
        raise ValueError('--train needs tokens; write e.g. --train tokens=15T')
    return Budget(**found)


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
    value = _time(text)
    if value <= 0 and key in ('mtbf', 'checkpoint_every'):
        raise ValueError(f'{key}={text} must be above 0; leave it out where nothing fails')
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
    lost = (1 - run.trains / run.seconds) * 100
    spent = (
        f'{format_duration(run.seconds)} on {throughput.devices} devices, {format_count(run.device_hours)} device-hours'
    )
    cost = '' if run.cost is None else f' and cost {format_count(run.cost)} at {budget.price:g} a device-hour'
    wasted = f'; {lost:.1f} % of it goes to checkpoints and failures' if lost >= 0.05 else ''
    return f'{what} take {spent}{cost}{wasted}.'


def run_to_dict(budget: Budget, run: Run) -> dict[str, Any]:
    """A run as one object, in seconds."""
    return {
        **{field.name: getattr(budget, field.name) for field in fields(Budget)},
        'seconds': run.seconds if isfinite(run.seconds) else None,
        'seconds_of_training': run.trains,
        'device_hours': run.device_hours if isfinite(run.seconds) else None,
        'cost': run.cost if isfinite(run.seconds) else None,
    }
