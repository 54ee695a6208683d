"""Good schedules that tests read, change and break: the files of tests/schedules."""

from pathlib import Path

FOLDER = Path(__file__).parent / 'schedules'
TRANSFORMER, NETWORK, GRAPH = (
    (FOLDER / f'{name}.yaml').read_text(encoding='utf-8') for name in ('transformer', 'network', 'graph')
)
