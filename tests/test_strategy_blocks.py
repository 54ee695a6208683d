"""The table of transformer blocks in docs/proofs/strategy_tables.md: what their programs send, and how long they take.

``python tests/test_strategy_blocks.py`` makes it anew (two minutes of CPU).
"""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from every import some

from simpar import Plan, Workload, cluster, load_profile
from simpar.hardware import Cluster
from simpar.model.library.blocks import block_network
from simpar.resolve import Strategies, find_strategies
from simpar.resolve.strategies import Proposal, least_first
from tests.strategy_traffic import Block, recorded_blocks

DOCUMENT = Path(__file__).parent.parent / 'docs' / 'proofs' / 'strategy_tables.md'
PLAN = Plan(search='exact', dataset='full-batch', all_to_all=True)
HEADER = '| block | devices | MindSpore 2.10 | 2.0 | data × tensor | `bytes` | `time` | by |\n'
PLACE = re.compile(re.escape(HEADER) + r'\|(?:---\|)+\n(?P<rows>(?:\|.*\n)+)')
FEW = some([block for block in recorded_blocks() if block.devices in (4, 8)], 2)


def workload_of(block: Block) -> Workload:
    """The block as a network."""
    network = block_network(block.sequence, block.hidden, block.heads, block.ffn)
    return Workload(model=network, batch=block.batch * block.sequence, loss='mse', precision='fp32')


def machine(block: Block) -> Cluster:
    """Nodes of eight."""
    return cluster(load_profile('h100-sxm-8'), nodes=max(1, block.devices // 8), devices=min(8, block.devices))


@cache
def found(block: Block, objective: str) -> Strategies:
    """Both searches of a block."""
    return find_strategies(workload_of(block), replace(PLAN, objective=objective), machine(block))


def named(proposals: tuple[Proposal, ...], start: str) -> list[tuple[str, Proposal]]:
    """Proposals of those whose name begins so."""
    return [(name, one) for one in proposals for name in (one.name, *one.also) if name.startswith(start)]


def row(block: Block) -> str:
    """A line of the table."""
    proposals, timed = (found(block, objective).proposals for objective in ('bytes', 'time'))
    compat = [shown(named(proposals, f'double recursive {version}')[0][1]) for version in ('2.10', '2.0')]
    least, fastest = proposals[0], timed[0]
    cells = [*compat, by_degrees(proposals), shown(least), shown(fastest), fastest.name.split(',')[0]]
    name = f'b{block.batch} s{block.sequence} h{block.hidden}'
    return f'| {name} | {block.devices} | {" | ".join(cells)} |\n'


def shown(one: Proposal) -> str:
    """MB and ms."""
    return f'{one.sent / 1e6:.2f}, {one.step * 1e3:.3f}'


def by_degrees(proposals: tuple[Proposal, ...]) -> str:
    """The data × tensor layouts that send least and that are fastest."""
    laid = named(proposals, 'data ')
    if not laid:
        return 'none divides'
    (least, one), (fastest, other) = (min(laid, key=lambda pair: least_first(by)(pair[1])) for by in ('bytes', 'time'))
    degrees = [name.removeprefix('data ').replace('tensor ', '') for name in (least, fastest)]
    if degrees[0] == degrees[1]:
        return f'{shown(one)} ({degrees[0]})'
    return f'{one.sent / 1e6:.2f} ({degrees[0]}), {other.step * 1e3:.3f} ({degrees[1]})'


def rows() -> list[list[str]]:
    """Cells of the table that is written down."""
    place = PLACE.search(DOCUMENT.read_text(encoding='utf-8'))
    assert place
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in place['rows'].splitlines()]


def test_all_blocks_are_in_the_table() -> None:
    assert [(line[0], int(line[1])) for line in rows()] == [
        (f'b{block.batch} s{block.sequence} h{block.hidden}', block.devices) for block in recorded_blocks()
    ]


@pytest.mark.parametrize('block', FEW, ids=str)
def test_a_line_is_what_is_found(block: Block) -> None:
    assert row(block) in DOCUMENT.read_text(encoding='utf-8')


@pytest.mark.parametrize('line', some(rows(), 4), ids=lambda line: f'{line[0]} on {line[1]}')
def test_neither_objective_is_worse_than_any_other_way(line: list[str]) -> None:
    cells = [re.sub(r' \([^)]*\)', '', cell) for cell in line[2:7] if cell != 'none divides']
    sent, steps = zip(*(map(float, cell.split(', ')) for cell in cells), strict=True)
    assert sent[-2] == min(sent)
    assert steps[-1] == min(steps)


def test_what_the_text_says_of_the_table() -> None:
    text = DOCUMENT.read_text(encoding='utf-8')
    wide = [line for line in rows() if line[0].split()[2] in ('h2048', 'h4096')]
    steps = [[float(line[column].split(', ')[1]) for column in (2, 3, 5, 6)] for line in wide]
    assert f'up to {max(max(compat) / best for *compat, _, best in steps):.1f} times its step' in text
    assert f'up to {max(sending / best - 1 for *_, sending, best in steps):.0%}'.replace('%', ' %') in text


def test_programs_send_what_the_first_table_counts() -> None:
    """Up to 1 % more, for the reshapes that they do not have; the loss's number is not sent."""
    line_of_first = re.compile(r'^\| (b\S+ s\S+ h\S+) \| (\d+) \| [\d.]+ \|.* ([\d.]+) \| [\d.]+ \|$', re.MULTILINE)
    first = line_of_first.findall(DOCUMENT.read_text(encoding='utf-8'))
    counted = {(block, devices): float(least) for block, devices, least in first}
    assert len(counted) == len(rows())
    for line in rows():
        sent = float(line[5].split(', ')[0])
        assert counted[line[0], line[1]] - 0.005 <= sent <= 1.01 * counted[line[0], line[1]] + 0.005


@pytest.mark.parametrize('block', FEW[:2], ids=str)
def test_the_search_by_time_is_no_slower_than_what_the_one_by_bytes_tried(block: Block) -> None:
    by_bytes, by_time = (found(block, objective) for objective in ('bytes', 'time'))
    assert by_time.proposals[0].step <= min(one.step for one in by_bytes.proposals)
    assert by_time.workload == min(by_time.proposals, key=least_first('time')).workload


@pytest.mark.parametrize('block', FEW, ids=str)
def test_a_program_sends_what_the_sum_over_operators_says(block: Block) -> None:
    by_bytes = found(block, 'bytes')
    assert by_bytes.proposals[0].sent == pytest.approx(by_bytes.bound, rel=1e-12)


if __name__ == '__main__':
    text = DOCUMENT.read_text(encoding='utf-8')
    made = ''.join(map(row, recorded_blocks()))
    DOCUMENT.write_text(PLACE.sub(lambda place: place[0].replace(place['rows'], made), text), encoding='utf-8')
