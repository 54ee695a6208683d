"""What the house costs in CPU seconds and bytes, beside commit 403c6f3, in turns on one machine.

    python -m tests.prove_costs --rounds 5 --write docs/proofs/costs.md

Both trees run the same commands with the same Python; each command runs once before it counts, so that kernels are
compiled. A ratio is the median of the ratios of its rounds; `--plan` adds the search for GPT-3's plan.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.code_lines import ROOT, git
from tests.proof import arguments, end, line, page_head, table

BEFORE: Final = '403c6f3'
STRUCTURE: Final = (
    'plan.zero=0,1,2,3',
    'plan.recompute=none,selective,full',
    'plan.fusion=none,layer',
    'plan.copies=1,2',
)
PRICES: Final = ('cluster.links.nvlink=' + ','.join(f'{0.25 * one:g}' for one in range(1, 25)), 'plan.copies=1,2')


class Command(NamedTuple):
    """One command. Arguments: ``most``, the ratio of CPU seconds that is allowed."""

    name: str
    words: tuple[str, ...]
    most: float


def sweep(file: str, keys: Sequence[str]) -> tuple[str, ...]:
    return ('sweep', f'examples/{file}', *(word for key in keys for word in ('--sweep', key)), '--jobs', '1', '--json')


COMMANDS: Final = (
    Command('a small example', ('run', 'examples/multi_copy.yaml'), 1.5),
    Command('pipeline_h100', ('run', 'examples/pipeline_h100.yaml'), 1.8),
    Command('GPT-3 on 1,024', ('run', 'examples/gpt3_175b.yaml'), 1.6),
    Command('48 rows of structure', sweep('transformer_h100.yaml', STRUCTURE), 1.7),
    Command('48 rows of prices', sweep('transformer_h100.yaml', PRICES), 1.7),
)
PLAN: Final = Command(
    'plan of GPT-3', ('plan', 'examples/plans/gpt3_512_a100.yaml', '--jobs', '1', '--json', '--brief'), 1.8
)
ALONE: Final = ('--set', 'cluster.stack=none')
"""A silent file has a framework since; before it was the device alone, which is what is compared."""
MEMORY: Final = 1.5
"""The ratio of the largest resident set that is allowed."""


class Cost(NamedTuple):
    """CPU seconds and bytes of one run."""

    seconds: float
    peak: int


def cost(tree: Path, words: Sequence[str]) -> Cost:
    """Run a command of a tree, in the tree; raises RuntimeError where it fails."""
    # As every process has it, whatever the shell had.
    env = {**os.environ, 'PYTHONPATH': str(tree)}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, '-m', 'simpar', *words], cwd=tree, env=env, stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f'{tree}: simpar {" ".join(words)}: {errors.read().decode()}')
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def rows(commands: Sequence[Command], before: Path, rounds: int) -> Iterator[tuple[Command, list[Cost], list[Cost]]]:
    for command in commands:
        now = (*command.words, *ALONE)
        cost(before, command.words)
        cost(ROOT, now)
        pairs = [(cost(before, command.words), cost(ROOT, now)) for _ in range(rounds)]
        yield command, [one for one, _ in pairs], [one for _, one in pairs]


def cells(command: Command, was: list[Cost], now: list[Cost]) -> list[str]:
    """The row of a command; the last says whether it holds."""
    ratios = [one.seconds / other.seconds for one, other in zip(now, was, strict=True)]
    ratio = statistics.median(ratios)
    seconds, peaks = (
        [statistics.median(one[figure] for one in of) for of in (was, now)] for figure in range(len(Cost._fields))
    )
    return [
        *(command.name, *(f'{one:.2f}' for one in seconds)),
        *(f'{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})', f'{command.most:g}'),
        *(f'{one / 1e6:.0f}' for one in peaks),
        'holds' if ratio <= command.most and peaks[1] <= MEMORY * peaks[0] else '**does not hold**',
    ]


def main() -> int:
    """The command line."""
    options = arguments(
        __doc__, rounds=5, plan=(False, "the search for GPT-3's plan, too"), write=(Path, 'where the page goes')
    )
    before = ROOT / 'out' / BEFORE
    if not before.exists():
        git('worktree', 'add', '--detach', str(before), BEFORE)
    found = []
    for row in rows((*COMMANDS, *([PLAN] if options.plan else [])), before, options.rounds):
        found.append(cells(*row))
        print(line(found[-1]), flush=True)
    heads = 'command | s before | s now | ratio | at most | MB before | MB now |'
    text = page_head('costs', before=BEFORE, rounds=options.rounds) + '\n'.join([*table(heads, found), ''])
    return end(text, options.write, all(row[-1] == 'holds' for row in found))


if __name__ == '__main__':
    sys.exit(main())
