"""What a training trains, as its checkpoints keep it. How it is computed may change from run to run; it may not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from executor import data
from simpar.case import Case
from simpar.document import build, dump, one_screen
from simpar.document.tree import Tree
from simpar.errors import Problem, ScheduleError
from simpar.schedule import Schedule
from simpar.workload import MODEL, Workload

MAY_CHANGE: Final = frozenset(
    {
        *('strategy', 'layout', 'out_strategy', 'out_layout', 'comm_fusion', 'pipeline_stage', 'recompute'),
        *('loss_strategy', 'loss_strategies', 'loss_operators', 'loss_scale', 'attention', 'imbalance'),
    }
)
"""The keys of a workload that say how it is computed. Cluster, plan and number of steps may change, too; all else says
what is trained."""
_LONGEST: Final = 60


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training trains.

    Arguments:
        workload: the plain tree of the workload.
        dtype: what takes the place of every floating dtype; empty: nothing.
        data: where batches come from.
    """

    workload: Mapping[str, Any]
    dtype: str
    data: str

    @classmethod
    def of(cls, case: Case, dtype: str, *, own: bool) -> Trained:
        """Of a case. Arguments: ``own``, whether the caller gives batches."""
        workload = case.schedule.workload
        tree = dump(workload, Workload)
        source = 'given by the caller'
        if not own:
            drawn = workload.data == 'random'
            source = 'drawn' if drawn else data.identity(os.environ.get('DATA_PATH', ''))
        return cls({'model': tree.pop(MODEL), **tree}, dtype, source)

    def check(self, before: Trained, schedule: Schedule, folder: Path) -> None:
        """Raise ``ScheduleError`` with all that the checkpoint in a folder was trained with and this run is not."""
        problems = [
            Problem(schedule.where(key), f'{key}: is {_shown(now)}, but {folder} was trained with {_shown(then)}', _AS)
            for key, now, then in _differences(_rows(self._in_full(folder)), _rows(before._in_full(folder)))
        ]
        for name, now, then in (('dtype', self.dtype, before.dtype), ('data', self.data, before.data)):
            if now != then:
                what = f'is {now or _OWN}, but {folder} was trained with {then or _OWN}'
                problems.append(Problem(name, what, _AS))
        if problems:
            raise ScheduleError(one_screen(problems))

    def _in_full(self, folder: Path) -> Mapping[str, Any]:
        """The workload as this version writes it, with the defaults of keys that an older one did not know."""
        tree = {MODEL if key == 'model' else key: value for key, value in self.workload.items()}
        try:
            found = dump(build(Tree(root=tree, origins={}), Workload), Workload)
        except ScheduleError as error:
            first = error.problems[0]
            what = f'was trained with a workload that this version cannot read: {first}'
            raise ScheduleError(Problem(str(folder), what, 'go on with the version of simpar that wrote it')) from None
        return {**found.pop(MODEL), **found}


_OWN: Final = 'that of the schedule'
_AS: Final = 'write that again, or name another folder for a new training'


def _rows(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted key → value, of all that says what is trained; kinds and lengths of lists are rows, too."""
    return dict(_flat('workload', workload))


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if key.endswith('.module.graph'):
        graph = json.loads(value)
        # By name, so that one operator more is one difference. Sources and notes tell where it comes from.
        value = {node.pop('name'): node for node in graph['nodes']}
    if isinstance(value, Mapping):
        yield key, ', '.join(value) if len(value) == 1 else '{…}'
        for part, of in value.items():
            if part not in MAY_CHANGE:
                yield from _flat(f'{key}.{part}', of)
    elif isinstance(value, list) and any(isinstance(of, dict) for of in value):
        yield key, f'a list of {len(value)}'
        for place, of in enumerate(value):
            yield from _flat(f'{key}.{place}', of)
    else:
        yield key, value


def _differences(now: Mapping[str, Any], then: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Keys that differ, with both values; none below a key that differs already."""
    differing: set[str] = set()
    for key in dict.fromkeys((*now, *then)):
        parts = key.split('.')
        if any('.'.join(parts[:end]) in differing for end in range(1, len(parts))):
            continue
        if now.get(key, _ABSENT) != then.get(key, _ABSENT):
            differing.add(key)
            yield key, now.get(key, _ABSENT), then.get(key, _ABSENT)


_ABSENT: Final = object()


def _shown(value: Any) -> str:
    text = 'absent' if value is _ABSENT else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f'{text[: _LONGEST - 1]}…'
