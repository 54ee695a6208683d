"""The tables of stacks, of docs/my_framework.md (the rule) and docs/proofs/stacks.md (all others).

`python -m tests.stack_table` writes them; tests/test_stacks.py holds the cheap ones.
"""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path

from simpar import load_schedule, load_sweep
from simpar.case import cluster_of, load_case
from simpar.files import read_csv
from simpar.profiles import NONE, TABLE, UNKNOWN, load_stack, stack_folder, stack_names
from simpar.sweep.table import as_markdown
from simpar.units import format_time

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / 'examples'
PAGE = ROOT / 'docs' / 'proofs' / 'stacks.md'
SHORT = ROOT / 'docs' / 'my_framework.md'
"""The page that has the rule."""
SETS = ROOT / 'measured_steps'
SLOWER = 1.6
"""An example whose step is longer by more than this, over that of devices alone, has its reason in the table."""
REASON = 0.1
"""A row of `why` is told where it is this share of what the framework adds."""

RULE = '| in the schedule | devices whose collectives are | stack |'
EXAMPLE = '| example | stack | step | `none` | ratio | MFU | MFU of `none` | what it adds, by `why` |'
PUBLISHED = '| published steps | hardware | rows that state an MFU | median MFU |'
WHICH = '| stack | step |'
FILLED = '| stacks | keys where the schedule is silent |'
WORDS = {
    '': 'nothing of it',
    'network': "`workload.network`: MindSpore's layers",
    'copies': '`plan.copies`, in the plan, `against` or `sweep`',
    'hsdp': '`plan.hsdp`',
    'overlap': '`plan.overlap`',
}
"""What a word of the table of frameworks stands for in a schedule."""


def rule_table() -> Iterator[str]:
    """The rows of hw_profiles/stacks/frameworks.csv for a schedule that names no framework, in their order."""
    yield RULE
    yield '|---|---|---|'
    for row in read_csv(stack_folder() / TABLE):
        framework = row['framework']
        if framework.startswith(UNKNOWN):
            words = framework.removeprefix(UNKNOWN).strip('*')
            library = 'any other' if row['hardware'] == '*' else row['hardware'].upper()
            yield f'| {WORDS[words]} | {library} | `{row["stack"]}` |'


def example_names() -> list[str]:
    """Examples whose schedule names no stack of its own, or one that is a framework."""
    return [path.stem for path in sorted(EXAMPLES.glob('*.yaml')) if cluster_of(load_schedule(path)).stack is not None]


def example_row(name: str) -> str:
    """An example under its framework, beside the same plan on devices alone."""
    path = EXAMPLES / f'{name}.yaml'
    stack = load_case(path).schedule.cluster.stack
    found = load_case(path, [f'cluster.stack={stack}', f'against={{cluster.stack: {NONE}}}']).predict()
    assert found.baseline is not None
    alone = found.baseline
    ratio = found.step / alone.step
    added = found.step - alone.step
    told = sorted(found.explanation, key=lambda row: row.seconds)
    reasons = [f'{row.effect} {format_time(-row.seconds)}' for row in told if -row.seconds > REASON * added]
    shares = [f'{100 * mfu:.0f} %' if (mfu := one.throughput.mfu(one.step)) else '–' for one in (found, alone)]
    return (
        f'| `{name}` | `{stack}` | {format_time(found.step)} | {format_time(alone.step)} | {ratio:.2f} '
        f'| {shares[0]} | {shares[1]} | {", ".join(reasons) if ratio > SLOWER else ""} |'
    )


def example_table() -> Iterator[str]:
    """All examples that run under a framework."""
    yield EXAMPLE
    yield '|---|---|---:|---:|---:|---:|---:|---|'
    yield from map(example_row, example_names())


def published_table() -> Iterator[str]:
    """The median of the MFU that published rows state, by set and hardware."""
    yield PUBLISHED
    yield '|---|---|---:|---:|'
    stated: dict[tuple[str, str], list[float]] = {}
    for path in sorted(SETS.glob('*.csv')):
        for row in read_csv(path):
            if row['mfu_pct']:
                # What stands in brackets is the server; the device is before it.
                device = row['hardware'].partition(' (')[0]
                stated.setdefault((f'`{path.name}`, {row["framework"]}', device), []).append(float(row['mfu_pct']))
    for (source, device), shares in stated.items():
        yield f'| {source} | {device} | {len(shares)} | {statistics.median(shares):.0f} % |'


def which_table() -> Iterator[str]:
    """What the sweep of examples/which_framework.yaml prints."""
    yield from as_markdown(load_sweep(EXAMPLES / 'which_framework.yaml').predict()).splitlines()


def filled_table() -> Iterator[str]:
    """The keys that each shipped stack has where a schedule is silent; stacks of equal keys share a row."""
    yield FILLED
    yield '|---|---|'
    alike: dict[str, list[str]] = {}
    for name in stack_names():
        keys = load_stack(name).schedule
        told = ', '.join(f'`{key}: {json.dumps(value)}`'.replace('"', '') for key, value in keys.items())
        alike.setdefault(told, []).append(f'`{name}`')
    for told, names in alike.items():
        yield f'| {", ".join(names)} | {told or "none"} |'


TABLES = (
    (RULE, rule_table),
    (FILLED, filled_table),
    (EXAMPLE, example_table),
    (PUBLISHED, published_table),
    (WHICH, which_table),
)


def held(first: str) -> list[str]:
    """The lines of the table that begins so, on its page."""
    lines = _page(first).read_text(encoding='utf-8').split('\n')
    start = next(place for place, line in enumerate(lines) if line.startswith(first))
    end = next(place for place in range(start, len(lines)) if not lines[place].startswith('|'))
    return lines[start:end]


def _page(first: str) -> Path:
    return SHORT if first == RULE else PAGE


def main() -> None:
    """Write all tables into their pages."""
    for first, made in TABLES:
        page = _page(first)
        text = page.read_text(encoding='utf-8')
        page.write_text(text.replace('\n'.join(held(first)), '\n'.join(made())), encoding='utf-8')


if __name__ == '__main__':
    main()
