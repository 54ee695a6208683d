"""The house keeps its floors: a file imports lower floors, or to its left on its own; torch stays in the executor."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = [
    ['errors', 'units', 'intervals', 'files', 'document'],
    [
        *('layout', 'program', 'model', 'workload', 'plan'),
        *('hardware', 'profiles'),
    ],
    ['trace', 'pipeline', 'cost'],
    ['lower', 'engine', 'memory', 'metrics', 'critical_path', 'recording', 'kineto', 'plot'],
    ['strategy_search', 'schedule', 'predict', 'report'],
    ['resolve', 'ablation', 'case', 'written_out', 'sweep', 'compare', 'calibrate'],
    ['__init__', 'commands', 'cli', '__main__'],
]
PLACE = {name: (floor, place) for floor, names in enumerate(FLOORS) for place, name in enumerate(names)}
FILES = sorted((ROOT / 'simpar').rglob('*.py'))


def imported(path: Path) -> set[str]:
    """Dotted names of all modules that a file imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f'{path}: relative import'
            names.add(node.module or '')
    return names


def test_every_room_has_a_floor():
    rooms = {path.relative_to(ROOT / 'simpar').parts[0].removesuffix('.py') for path in FILES}
    assert rooms <= set(PLACE), (
        f'no floor for {sorted(rooms - set(PLACE))}: add them to FLOORS and docs/architecture.md'
    )


@pytest.mark.parametrize('path', FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_lower_floors_or_to_its_left(path):
    room = path.relative_to(ROOT / 'simpar').parts[0].removesuffix('.py')
    for name in imported(path):
        parts = name.split('.')
        assert parts[0] not in ('executor', 'torch'), f'{path.name} imports {name}'
        if parts[0] == 'simpar' and len(parts) > 1 and parts[1] != room:
            assert PLACE[parts[1]] < PLACE[room], f'{path.name} on floor {PLACE[room][0]} imports {name}'


def test_lowering_knows_neither_cost_nor_hardware():
    names = set().union(*(imported(path) for path in FILES if 'lower' in path.parts or 'program' in path.parts))
    assert not [name for name in names if name.startswith(('simpar.cost', 'simpar.hardware', 'simpar.engine'))]


@pytest.mark.parametrize(
    'path', FILES + sorted((ROOT / 'executor').rglob('*.py')), ids=lambda p: str(p.relative_to(ROOT))
)
def test_no_file_is_longer_than_400_lines(path):
    assert len(path.read_text(encoding='utf-8').splitlines()) <= 400
