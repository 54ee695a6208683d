"""Broken schedules: every fault is told at its line, with its key and a remedy, all at once and with exit code 2.

Cases stand in ``broken/*.txt``, each behind ``=== name``: the file, ``# ! text`` behind a line that has this
problem, ``! line: text`` for lines that can bear no comment, and ``--set a.b=v`` for settings; … is any text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from good_schedules import TRANSFORMER

from simpar.errors import ScheduleError
from simpar.schedule import load_schedule

BROKEN = Path(__file__).parent / 'broken'


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    overrides: tuple[str, ...]
    expected: tuple[tuple[str, str], ...]
    """Pairs of a line (or a setting) and the text of the problem, … for any text."""


def cases() -> list[Case]:
    texts = [path.read_text(encoding='utf-8') for path in sorted(BROKEN.glob('*.txt'))]
    return [case(part) for text in texts for part in text.split('=== ')[1:]]


def case(part: str) -> Case:
    name, _, rest = part.partition('\n')
    lines = rest.rstrip('\n').split('\n')
    overrides = tuple(line.removeprefix('--set ') for line in lines if line.startswith('--set '))
    expected = [
        (where.strip(), text.strip())
        for where, _, text in (line[2:].partition(': ') for line in lines if line.startswith('! '))
    ]
    file = [line for line in lines if not line.startswith(('--set ', '! '))]
    for number, line in enumerate(file, 1):
        expected += [(str(number), text.strip()) for text in line.split(' # ! ')[1:]]
    return Case(name, '\n'.join(file) + '\n', overrides, tuple(expected))


def fits(text: str, pattern: str) -> bool:
    return re.fullmatch('.*'.join(re.escape(piece) for piece in pattern.split('…')), text) is not None


def test_there_are_enough_broken_schedules():
    assert len(cases()) >= 60


@pytest.mark.parametrize('case', cases(), ids=lambda case: case.name)
def test_every_fault_is_told_at_its_line_with_a_remedy(case, tmp_path):
    path = tmp_path / 'schedule.yaml'
    path.write_text(case.text, encoding='utf-8')
    with pytest.raises(ScheduleError) as caught:
        load_schedule(path, case.overrides)
    assert caught.value.exit_code == 2
    told = [(problem.where.removeprefix(f'{path}:'), str(problem)) for problem in caught.value.problems]
    left = list(told)
    for where, text in case.expected:
        found = [one for one in left if one[0] == where and fits(one[1].partition(f'{where}: ')[2], text)]
        assert found, f'no {where}: {text}\nin {told}'
        left.remove(found[0])
    assert not left
    assert all(problem.instead for problem in caught.value.problems)


def test_problems_stand_in_the_order_of_the_file_on_one_screen(tmp_path):
    text = TRANSFORMER + ''.join(f'wrong{number}: 1\n' for number in range(100))
    (tmp_path / 'schedule.yaml').write_text(text)
    with pytest.raises(ScheduleError) as caught:
        load_schedule(tmp_path / 'schedule.yaml')
    lines = str(caught.value).split('\n')
    assert [line.partition(': ')[2].partition(':')[0] for line in lines[:20]] == [f'wrong{n}' for n in range(20)]
    assert lines[20] == f'{tmp_path}/schedule.yaml:28: and 80 more'
    assert len(lines) == 21
