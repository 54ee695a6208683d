"""How many recorded cases of MindSpore's compiler are compared, and equal: the table in docs/proofs/strategy_tables.md.

``python tests/golden_counts.py`` compares them again and puts the table into the documentation. A case is equal where
the test of its kind passes.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import colrow_cases
import golden_steps as steps
import golden_transformers as transformers
import test_colrow_golden as colrow
import test_redistribution_golden as redistributed
import test_strategy_golden as products
import test_strategy_search_golden as searches
import test_strategy_training_golden as trained
import test_transformer_golden as blocks
from golden_shapes import SHIPPED

DOCUMENT = Path(__file__).parent.parent / 'docs' / 'proofs' / 'strategy_tables.md'
BEGIN = '| group | version |'
COLUMNS = ('cases', 'strategies', 'collectives', 'slices of parameters', 'messages', 'of one number', 'left out')
VERSIONS = ('2.0.0', '2.10.0')
BLOCKS = ('speedup', 'interleave', 'recompute')
"""Groups of networks of column-cut and row-cut products."""
GROUPS = ('matmul8', 'redist', 'seeds', 'prop', 'rec_chain', 'rec_transformer', 'opt', 'fusion', *BLOCKS)


Compare = Callable[[Callable[[str], None], str], bool]
"""Whether a test passes for a case of this name."""


def passes(test: Callable[[str], None], name: str) -> bool:
    try:
        test(name)
    except AssertionError:
        return False
    return True


@dataclass
class Count:
    """Cases compared, and those of them that are equal."""

    compare: Compare = passes
    compared: int = 0
    equal: int = 0

    def add(self, test: Callable[[str], None], name: str) -> None:
        self.compared += 1
        self.equal += self.compare(test, name)

    def __str__(self) -> str:
        return f'{self.equal} / {self.compared}' if self.compared else ''


@dataclass
class Row:
    """Of one group and version."""

    strategies: Count
    collectives: Count
    slices: Count
    cases: int = 0
    recorded: int = 0
    numbers: int = 0
    messages: int = 0
    """Recorded messages, those of one number that are not compared, and those that are compared."""

    def add(self, compared: Collection[dict[str, Any]]) -> None:
        self.messages += len(compared)
        self.numbers -= sum(map(steps.of_one_number, compared))

    @property
    def left_out(self) -> int:
        """Messages of more than one number that are not compared, where any are."""
        return self.recorded - self.numbers - self.messages if self.messages else 0

    def cells(self) -> tuple[object, ...]:
        told = (self.messages, self.numbers, self.left_out) if self.messages else ('', '', '')
        return self.cases, self.strategies, self.collectives, self.slices, *told


Rows = dict[tuple[str, str], Row]


def rows(compare: Compare = passes) -> Rows:
    """By group and version."""
    found: Rows = defaultdict(lambda: Row(*(Count(compare) for _ in range(3))))
    groups = {}
    for path in sorted(SHIPPED.rglob('*.json')):
        version, group = path.parent.parent.name.removeprefix('v'), path.parent.name
        groups[version, path.stem] = found[group, version]
        found[group, version].cases += 1
        case = json.loads(path.read_text(encoding='utf-8'))
        _messages(found[group, version], case.get('final_comm') or [])
    for name in searches.CASES:
        version, _, stem = name.partition('/')
        groups[version.removeprefix('v'), stem].strategies.add(searches.test_strategies_and_their_bytes, name)
    for name, case in steps.CASES.items():
        _step(groups[case['mindspore'], case['case']['name']], name, case)
    for name, case in transformers.CASES.items():
        _transformer(groups[case['mindspore'], case['case']['name']], name, case)
    for name, case in products.CASES.items():
        _product(groups[case['mindspore'], case['case']['name']], name, case)
    for name, case in redistributed.CASES.items():
        row = groups[case['mindspore'], case['case']['name']]
        row.collectives.add(redistributed.test_collectives_of_every_pair_and_shapes_of_all_messages, name)
        row.messages += redistributed.Recorded(case).messages.total()
    for group in BLOCKS:
        _blocks(found[group, VERSIONS[-1]], colrow.RECORDED[group])
    return found


def _messages(row: Row, ops: list[dict[str, Any]]) -> None:
    known = [op for op in ops if op['op'] in steps.KINDS]
    row.recorded += len(known)
    row.numbers += sum(map(steps.of_one_number, known))


def _step(row: Row, name: str, case: dict[str, Any]) -> None:
    row.collectives.add(trained.test_collectives_of_a_training_step_and_slices_of_parameters, name)
    row.add(steps.Recorded(case).compared)
    if case.get('parameters_after'):
        row.slices.add(trained.test_collectives_of_a_training_step_and_slices_of_parameters, name)


def _transformer(row: Row, name: str, case: dict[str, Any]) -> None:
    row.collectives.add(blocks.test_collectives_of_a_training_step_and_slices_of_parameters, name)
    row.add(transformers.RecordedBlocks(case).compared)
    if case['parameters_after']:
        row.slices.add(blocks.test_collectives_of_a_training_step_and_slices_of_parameters, name)


def _product(row: Row, name: str, case: dict[str, Any]) -> None:
    row.collectives.add(products.test_collectives_of_a_training_step, name)
    row.add(products.Recorded(case).compared)
    if case['parameters_after']:
        row.slices.add(products.test_strategy_and_slices_and_the_mirror_over_all_ranks_with_the_same_slice, name)


def _blocks(row: Row, cases: dict[str, dict[str, Any]]) -> None:
    def by_degrees_and_by_strategies(name: str) -> None:
        colrow.test_messages_are_those_of_the_compiler_and_parameters_and_states_are_cut_alike(name)
        colrow.test_messages_of_strategies_are_those_of_the_compiler(name)

    for name, case in cases.items():
        row.collectives.add(by_degrees_and_by_strategies, name)
        row.slices.add(by_degrees_and_by_strategies, name)
        recorded = colrow_cases.Recorded(case)
        row.add(recorded.messages + recorded.losses)


def table(found: Rows) -> Iterable[str]:
    """Lines of the table."""
    yield f'{BEGIN} {" | ".join(COLUMNS)} |'
    yield f'|{"---|" * (2 + len(COLUMNS))}'
    for group in GROUPS:
        for version in VERSIONS:
            row = found.get((group, version))
            if row is not None:
                cells = ' | '.join(map(str, (f'`{group}`', version, *row.cells())))
                yield f'| {cells} |'.replace('|  |', '| |').replace('|  |', '| |')


def documented(text: str) -> list[str]:
    """Lines of the table in a document."""
    lines = text.split('\n')
    first = next(place for place, line in enumerate(lines) if line.startswith(BEGIN))
    last = next(place for place in range(first, len(lines)) if not lines[place].startswith('|'))
    return lines[first:last]


def main() -> None:
    """Put the table into the documentation."""
    text = DOCUMENT.read_text(encoding='utf-8')
    DOCUMENT.write_text(text.replace('\n'.join(documented(text)), '\n'.join(table(rows()))), encoding='utf-8')


if __name__ == '__main__':
    main()
