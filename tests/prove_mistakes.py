"""Make every mistake of `tests/mistakes`, and write docs/proofs/mistakes.md: `make prove-mistakes`."""

import re
import sys
import tempfile
from pathlib import Path

from tests.mistake import KINDS, MENDED, ROOT, Answer, Mistake, make, mistakes
from tests.proof import page_head, table

PAGE = ROOT / 'docs' / 'proofs' / 'mistakes.md'
LONGEST = 150


def row(mistake: Mistake, answer: Answer) -> tuple[str, int, str]:
    """A row of the long table: what is wrong, the exit code, and the beginning of the message."""
    first = next((line for line in answer.said.splitlines() if line), '')
    first = re.sub(r'\S*/site-packages/', '…/', first)
    return told(mistake.what), answer.code, code(f'{first[:LONGEST]}…' if len(first) > LONGEST else first)


def told(text: str) -> str:
    """Text of a cell."""
    return text.replace('|', '\\|').replace('<', '&lt;')


def code(text: str) -> str:
    """Text of a message."""
    return '`` ' + text.replace('|', '\\|') + ' ``'


def page(answers: list[tuple[Mistake, Answer]], more: int) -> str:
    """The page."""
    broken = sum(
        len(re.findall(r'^=== ', path.read_text(), re.MULTILINE)) for path in (ROOT / 'tests' / 'broken').glob('*.txt')
    )
    good = len(answers) - len(MENDED)
    numbers = {'number': len(answers), 'more': more, 'good': good, 'mended': len(MENDED), 'weak': 'none stays'}
    parts = [page_head('mistakes', **numbers, broken=broken)]
    mended = ((told(what), why) for what, why in MENDED.items())
    for title, lines in (
        ('Mended', table('mistake | what it said, and says', mended)),
        ('All', table('mistake | exit code | first line', map(row, *zip(*answers, strict=True)))),
    ):
        parts.append('\n'.join([f'## {title}\n', *lines, '']))
    return '\n'.join(parts)


def main() -> int:
    """Make them; ends with 1 where one ends with a traceback, or has no message."""
    answers = []
    wrong = 0
    for kind in KINDS:
        for mistake in mistakes(kind):
            with tempfile.TemporaryDirectory(prefix='simpar-mistake-') as folder:
                answer = make(mistake, Path(folder))
            answers.append((mistake, answer))
            bad = not answer.said or 'Traceback' in answer.said or answer.code not in (0, 2, 3)
            wrong += bad
            print(f'{"WRONG " if bad else ""}{mistake.what}: {answer.code}: {answer.said[:200]}', flush=True)
    unknown = MENDED.keys() - {mistake.what for mistake, _ in answers}
    if unknown:
        print('graded, but no mistake:', sorted(unknown))
    if '--write' in sys.argv:
        PAGE.write_text(page(answers, sum(1 for _ in mistakes('more'))), encoding='utf-8')
    return int(wrong > 0 or bool(unknown))


if __name__ == '__main__':
    sys.exit(main())
