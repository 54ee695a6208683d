"""Write the table of docs/proofs/memory_tables.md: `python -m tests.memory_page`, or `make prove-memory-page`.

Every plan of Megatron-LM's own runs is lowered once, and its last rank is asked what it holds with all facts of its
stack and without one at a time.
"""

from pathlib import Path

from simpar.errors import SimparError
from simpar.profiles import load_stack
from simpar.shipped import measured_folder
from simpar.validate.columns import Skipped
from simpar.validate.memory import OF_ALL, MemoryPair, held_of, measured, memory_score, pair_of, program_of
from simpar.validate.rows import read_rows
from tests.accuracy_page import put
from tests.proof import table

PAGE = Path(__file__).parent.parent / 'docs' / 'proofs' / 'memory_tables.md'
HEADS = 'without | median of peak | bias | worst | within 4 % | too low by > 3 % | median at the end of a step'


def variants() -> dict[str, tuple[str, ...]]:
    """What is left out, by the name of its line."""
    facts = load_stack('megatron-core').memory
    assert facts
    names = (*OF_ALL, *facts.workspaces, *facts.beside)
    return {'– (all facts)': (), **{name: (name,) for name in names}, 'any': names}


def pairs() -> dict[str, list[MemoryPair]]:
    """Of each line every plan that can be predicted."""
    wanted = variants()
    found: dict[str, list[MemoryPair]] = {name: [] for name in wanted}
    for group in measured(read_rows(measured_folder() / 'memory')):
        try:
            program = program_of(group[0])
        except (Skipped, SimparError):
            continue
        for name, without in wanted.items():
            found[name].append(pair_of(group, held_of(group[0], program, without)))
    return found


def lines() -> list[str]:
    body = []
    for name, told in pairs().items():
        score = memory_score(told)
        assert score
        first = f'{score.peak:.2%}', f'{score.bias:+.2%}', f'{score.worst:.1%}'
        body.append((name, *first, f'{score.near:.0%}', f'{score.low:.0%}', f'{score.end:.2%}'))
    return [f'{len(told)} plans.', '', *table(HEADS, body)]


if __name__ == '__main__':
    put('measured', lines(), PAGE)
