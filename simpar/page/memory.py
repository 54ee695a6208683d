"""The memory of a page: bytes that the fullest rank holds over a step, by what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from simpar.memory import RankMemory, peak_summary
from simpar.memory.rank import KINDS
from simpar.predict import Prediction

MOST_POINTS: Final = 1500
"""Moments of a step that are drawn: about as many as a screen has pixels."""
MOST_LAYERS: Final = 11
"""Kinds of memory that are told apart; the others are one."""
OTHERS: Final = 'others'


def layers_of(sides: Sequence[Prediction]) -> list[str]:
    """Names of the layers, from the bottom: what stays, then what takes most at some time; the same for all sides."""
    most: dict[str, int] = {}
    for line in (side.memory.fullest.by_operator() for side in sides):
        for name, held in zip(line.names, line.bytes.max(axis=0).tolist(), strict=True):
            most[name] = max(most.get(name, 0), held)
    chosen = sorted(most, key=lambda name: -most[name])[:MOST_LAYERS]
    return [*sorted(chosen, key=lambda name: name not in KINDS), OTHERS]


def memory_of(prediction: Prediction, names: Sequence[str], unit: float) -> dict[str, Any]:
    """What the page draws of one side; arguments: names of the layers, seconds of a tick."""
    rank = prediction.memory.fullest
    times, held = _layers(rank, names)
    return {
        'name': prediction.name,
        'step': round(prediction.step / unit),
        'device': prediction.device_memory,
        'words': f'{peak_summary(rank, prediction.device_memory)}.',
        'times': [round(time / unit) for time in times],
        'layers': [{'name': name, 'bytes': column} for name, column in zip(names, held, strict=True)],
        'peak': {'time': round(rank.peak.time / unit), 'bytes': rank.peak.bytes, 'op': rank.peak.action},
    }


def _layers(rank: RankMemory, names: Sequence[str]) -> tuple[list[float], list[list[int]]]:
    """Moments, and bytes of each layer from that moment on."""
    line = rank.by_operator()
    columns = {name: np.zeros(len(line.bytes), dtype=np.int64) for name in names}
    for name, held in zip(line.names, line.bytes.T, strict=True):
        columns[name if name in columns else OTHERS] += held
    moments = _moments(line.total)
    return line.times[:-1][moments].tolist(), [column[moments].tolist() for column in columns.values()]


def _moments(total: Any) -> Any:
    """Which moments to draw: of each stretch the fullest, so that no peak is lost."""
    if len(total) <= MOST_POINTS:
        return np.arange(len(total))
    parts = np.array_split(np.arange(len(total)), MOST_POINTS)
    return np.array([part[int(np.argmax(total[part]))] for part in parts])
