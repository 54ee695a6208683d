"""The house keeps its floors: a file imports lower floors, or to its left on its own; torch stays in the executor."""

import ast
from functools import cache
from pathlib import Path

from tests.code_lines import nodes, syntax

ROOT = Path(__file__).parent.parent
FLOORS = [
    [*('lazy', 'errors', 'units', 'interval_sets', 'files', 'keys', 'compiler'), *('kernels', 'shipped', 'document')],
    [*('program', 'layout', 'model', 'workload', 'plans', 'session'), *('hardware', 'profiles')],
    ['trace', 'pipeline', 'cost', 'huggingface', 'torch_module', 'importing'],
    ['lower', 'engine', 'memory', 'metrics', 'critical_path', 'trace_files', 'kineto', 'chakra', 'headline', 'plot'],
    [
        *('throughput', 'strategy_search', 'schedule', 'interval'),
        *('predict', 'numbers', 'diagnosis', 'traces', 'recording', 'report', 'page'),
    ],
    [
        *('numbers', 'resolve', 'ablation', 'size', 'case', 'exporting', 'sweep', 'planner'),
        *('comparison', 'calibrate', 'validate', 'saved_answer', 'notebook', 'listing'),
    ],
    ['__init__', 'commands', 'cli', '__main__'],
]
READS_TORCH = 'torch_module'
"""The one room that imports torch, and only where a module is read."""
PLACE = {name: (floor, place) for floor, names in enumerate(FLOORS) for place, name in enumerate(names)}
FILES = sorted((ROOT / 'simpar').rglob('*.py'))


def dotted(path: Path) -> str:
    """The name that a file is imported by."""
    return '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')


KNOWN = set(map(dotted, FILES))


@cache
def imported(path: Path) -> set[str]:
    """Dotted names of all modules that a file imports, also inside functions."""
    names = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f'{path}: relative import'
            names |= _modules(node)
    return names


def _modules(node: ast.ImportFrom) -> set[str]:
    """What is imported: a name of a package may be a module."""
    return {f'{node.module}.{alias.name}' for alias in node.names} & KNOWN or {node.module or ''}


def imported_on_top(path: Path) -> set[str]:
    """The same, but for imports inside functions, which run when all modules are there; a name may be a module."""
    names = set()
    for node in syntax(path).body:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= _modules(node)
    return names


def test_every_room_has_a_floor():
    rooms = {path.relative_to(ROOT / 'simpar').parts[0].removesuffix('.py') for path in FILES}
    assert rooms <= set(PLACE), (
        f'no floor for {sorted(rooms - set(PLACE))}: add them to FLOORS and docs/architecture.md'
    )


def test_a_file_imports_lower_floors_or_to_its_left():
    for path in FILES:
        room = path.relative_to(ROOT / 'simpar').parts[0].removesuffix('.py')
        for name in imported(path):
            parts = name.split('.')
            assert parts[0] != 'executor', f'{path.name} imports {name}'
            assert parts[0] != 'torch' or room == READS_TORCH, f'{path.name} imports {name}'
            if parts[0] == 'simpar' and len(parts) > 1 and parts[1] != room:
                assert PLACE[parts[1]] < PLACE[room], f'{path.name} on floor {PLACE[room][0]} imports {name}'


def test_torch_is_imported_when_a_module_is_read_and_not_before():
    for path in (ROOT / 'simpar' / READS_TORCH).rglob('*.py'):
        # What stands under TYPE_CHECKING is no import; it is indented.
        assert not [name for name in imported_on_top(path) if name.partition('.')[0] == 'torch'], path.name


def test_lowering_knows_neither_cost_nor_hardware():
    names = set().union(*(imported(path) for path in FILES if path.relative_to(ROOT).parts[1] in ('lower', 'program')))
    assert not [name for name in names if name.startswith(('simpar.cost', 'simpar.hardware', 'simpar.engine'))]


def test_no_two_files_import_each_other_in_a_circle():
    """Within a folder, too, where files may import one another."""
    imports = {dotted(path): imported_on_top(path) & KNOWN for path in FILES}
    left = dict(imports)
    while ready := [name for name, needs in left.items() if not needs & left.keys() - {name}]:
        for name in ready:
            del left[name]
    assert not left, f'import each other: {sorted(left)}'
