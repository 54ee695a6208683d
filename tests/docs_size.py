"""How long the docs outside docs/proofs are, and how long their sentences: `python -m tests.docs_size`.

Translations in docs/zh repeat pages, so that they count neither as pages nor as words.
"""

import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent.parent / 'docs'
LONG = 25
"""Words: a longer sentence must be read twice."""


def pages() -> list[Path]:
    """The pages that a reader reads."""
    return sorted(path for path in DOCS.glob('*.md'))


def sentences(text: str) -> Iterator[str]:
    """Sentences of prose and of lists; not of code, tables and headings."""
    text = re.sub(r'^ {0,3}```.*?^ {0,3}```|<!--.*?-->', '', text, flags=re.DOTALL | re.MULTILINE)
    for part in re.split(r'\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )', text):
        if re.match(r'\s*(?:#|\||!!!)| {4}', part.strip('\n')):
            continue
        prose = re.sub(r'\]\([^)]*\)', ']', re.sub(r'`[^`]+`', 'CODE', ' '.join(part.split())))
        yield from (one for one in re.split(r'(?<=[.!?])[\])*]*\s+', prose) if one.strip())


def words(text: str) -> int:
    """As `wc -w` counts them."""
    return len(text.split())


def size() -> tuple[int, int, list[str], int]:
    """Pages, words, the long sentences, and all sentences."""
    texts = [path.read_text(encoding='utf-8') for path in pages()]
    all_of_them = [one for text in texts for one in sentences(text)]
    return len(texts), sum(map(words, texts)), [one for one in all_of_them if words(one) > LONG], len(all_of_them)


def main() -> None:
    """Print it, and each page's words and share of long sentences."""
    for path in pages():
        found = list(sentences(path.read_text(encoding='utf-8')))
        long = [one for one in found if words(one) > LONG]
        print(f'{words(path.read_text(encoding="utf-8")):6}  {len(long):3} of {len(found):4}  {path.name}')
    number, count, long, every = size()
    print(f'{number} pages, {count:,} words, {len(long) / max(every, 1):.1%} of {every:,} sentences over {LONG} words')


if __name__ == '__main__':
    main()
