"""Lines of MindSpore that ``simpar export`` writes, as keys of a plan: a module that wraps a network and has none."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simpar.errors import Problem, ScheduleError
from simpar.importing.mindspore import Script
from simpar.importing.python_script import UNKNOWN, Function, Method, Thing, tree_of

_NETWORK = 'the network of parallel()'


@dataclass(eq=False)
class _Lines(Script):
    """Lines around a network that is not there."""

    def method(self, of: Method, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        names: list[str] = []
        owner = of.owner
        while isinstance(owner, Method):
            names, owner = [owner.name, *names], owner.owner
        is_operator = isinstance(owner, Thing) and owner.name == _NETWORK and bool(names)
        if is_operator and of.name == 'shard' and len(values) == 1 and not named:
            self.strategies['.'.join(names)] = self.slices(line, values[0])[1]
            return UNKNOWN
        return super().method(of, line, values, named)


def plan_of(text: str, path: Path, ranks: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys of the plan that lines say, and strategies of operators by their names in the network.

    Arguments: ``path`` of the lines, beside which the JSON of overlap passes lies; ``ranks`` that they run on.
    Raises ``ScheduleError`` where the lines of 2.3, ``set_context()``, say another plan than those of ``parallel()``.
    """
    said: dict[str, Any] = {}
    strategies: dict[str, Any] = {}
    for name, values in (('parallel', [Thing(_NETWORK, 0)]), ('set_context', [])):
        reader = _Lines(str(path), path.parent, world=ranks, is_bare=True, strategies=dict(strategies))
        reader.module(tree_of(text, path), reader.scope)
        of = reader.scope.get(name)
        if not isinstance(of, Function):
            raise ScheduleError(Problem(str(path), f'has no {name}()', 'write it by simpar export --to mindspore'))
        reader.function(of.of, values, {}, of.scope)
        stages = reader.number('pipeline_stages', 1)
        reader.reads(ranks // stages)
        plan = reader.plan(ranks, stages, [])
        reader.leftover()
        other = [key for key in plan if said.get(key, plan[key]) != plan[key]]
        if other:
            what = f'{", ".join(other)}: set_context() says another plan than parallel()'
            reader.refuse(of.of.lineno, what, 'write the same')
        if reader.problems:
            raise ScheduleError(reader.problems)
        # What only 2.3 has a setting for is not of parallel().
        said, strategies = said or plan, reader.strategies
    return said, strategies
