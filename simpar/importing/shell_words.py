"""Words of a shell script: text becomes words and signs, with their lines; nothing is run.

What bash would expand is kept as a part of its word: ``$NAME`` and ``${…}``, ``$(( … ))``, ``$( … )``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Literal, NamedTuple

DEPTH: Final = 40
"""Levels of quotes, brackets and blocks that a script may have."""
_NAME: Final = re.compile(r'[A-Za-z_][A-Za-z0-9_]*')
_RUN: Final = re.compile(r'[^\s;&|()<>\'"\\$`]+')
_QUOTED_RUN: Final = re.compile(r'[^"\\$`]+')
_BLANK: Final = re.compile(r'<[A-Za-z](?:[^<>\n;|&]*[^<>\s;|&])?>')
"""A place that a published script leaves to be filled in, such as <PATH TO DATA>; for bash it is a redirection."""
_REDIRECTED: Final = re.compile(r'[0-9]+(?=[<>])')
_BEFORE_ARRAY: Final = re.compile(r'[A-Za-z_][A-Za-z0-9_]*\+?=')
_SIGNS: Final = (
    '&>>',
    '<<<',
    '<<-',
    '&&',
    '||',
    ';;',
    '&>',
    '>>',
    '<<',
    '>&',
    '<&',
    '>|',
    ';',
    '&',
    '|',
    '(',
    ')',
    '<',
    '>',
)


class ShellError(Exception):
    """A script that has no end where it needs one, or too many levels."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line, self.what = line, what


class Part(NamedTuple):
    """A stretch of a word. Arguments: ``text``, that of a variable without ``$`` and braces; ``quoted``: not split."""

    kind: Literal['text', 'variable', 'sum', 'command']
    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Word:
    """A word, or a sign between words. Arguments: ``array``, the elements of ``NAME=( … )``."""

    line: int
    parts: tuple[Part, ...] = ()
    sign: str = ''
    array: tuple[Word, ...] | None = None

    @property
    def plain(self) -> str:
        """Its text where nothing is expanded and nothing quoted, else nothing: words of the shell itself are so."""
        if len(self.parts) == 1 and self.array is None and self.parts[0].kind == 'text' and not self.parts[0].quoted:
            return self.parts[0].text
        return ''

    @property
    def text(self) -> str:
        """As a person would find it in the script, more or less."""
        marks = {'text': '{}', 'variable': '${{{}}}', 'sum': '$(({}))', 'command': '$({})'}
        return ''.join(marks[part.kind].format(part.text) for part in self.parts)


def words_of(text: str, line: int = 1) -> list[Word]:
    """All words and signs of a text; a new line is the sign ``\\n``. Raises `ShellError`."""
    return _Reader(text, line).all()


@dataclass(slots=True)
class _Reader:
    """Where reading stands; mutable."""

    text: str
    line: int
    place: int = 0
    waiting: list[str] = field(default_factory=list)
    in_array: bool = False

    def all(self) -> list[Word]:
        words = []
        while (word := self.next()) is not None:
            words.append(word)
            if word.sign == '\n' and self.waiting:
                self.skip_documents()
            elif word.sign in ('<<', '<<-'):
                self.document()
        return words

    def ahead(self, count: int = 1) -> str:
        return self.text[self.place : self.place + count]

    def go(self, count: int) -> str:
        passed = self.ahead(count)
        self.line += passed.count('\n')
        self.place += count
        return passed

    def blanks(self) -> None:
        while self.place < len(self.text):
            if self.ahead() in ' \t\r':
                self.go(1)
            elif self.ahead(2) == '\\\n' or self.ahead(3) == '\\\r\n':
                self.go(3 if self.ahead(3) == '\\\r\n' else 2)
            elif self.ahead() == '#':
                end = self.text.find('\n', self.place)
                self.place = len(self.text) if end < 0 else end
            else:
                return

    def next(self) -> Word | None:
        self.blanks()
        line = self.line
        if self.place >= len(self.text):
            return None
        if self.ahead() == '\n':
            self.go(1)
            return Word(line, sign='\n')
        if _REDIRECTED.match(self.text, self.place):
            self.run(_REDIRECTED)
        if match := _BLANK.match(self.text, self.place):
            return Word(line, (Part('text', self.go(len(match[0])), True), *self.word().parts))
        for sign in _SIGNS:
            if self.ahead(len(sign)) == sign:
                self.go(len(sign))
                return Word(line, sign=sign)
        return self.word()

    def word(self) -> Word:
        line, parts = self.line, []  # type: int, list[Part]
        while self.place < len(self.text) and self.ahead() not in ' \t\r\n;&|()<>':
            if self.ahead(2) == '\\\n':
                self.go(2)
                continue
            parts += self.part()
            if self.ahead() == '(' and _BEFORE_ARRAY.fullmatch(_unquoted(parts)):
                if self.in_array:
                    raise ShellError(line, 'an array in an array, which bash has not')
                self.go(1)
                return Word(line, _joined(parts), array=self.elements(line))
        return Word(line, _joined(parts))

    def elements(self, line: int) -> tuple[Word, ...]:
        found: list[Word] = []
        self.in_array = True
        while (word := self.next()) is not None:
            if word.sign == ')':
                self.in_array = False
                return tuple(found)
            if word.sign in ('', '\n'):
                found += [] if word.sign else [word]
        raise ShellError(line, 'an array without its end, )')

    def part(self) -> list[Part]:
        here = self.ahead()
        if here == "'" or self.ahead(2) == "$'":
            self.go(1 if here == "'" else 2)
            return [Part('text', self.until("'"), True)]
        if here == '"':
            self.go(1)
            return self.double()
        if here == '\\':
            self.go(1)
            return [Part('text', self.go(1), True)]
        if here in '$`':
            return [self.expansion(quoted=False)]
        return [Part('text', self.run(_RUN), False)]

    def run(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.place)
        return self.go(len(match[0]) if match else 1)

    def until(self, end: str) -> str:
        line, place = self.line, self.text.find(end, self.place)
        if place < 0:
            raise ShellError(line, f'a {end} without its end')
        return self.go(place - self.place + 1)[:-1]

    def double(self) -> list[Part]:
        """What stands between double quotes."""
        line, parts = self.line, [Part('text', '', True)]
        while self.place < len(self.text):
            here = self.ahead()
            if here == '"':
                self.go(1)
                return parts
            if here == '\\':
                self.go(1)
                follows = self.go(1)
                text = '' if follows == '\n' else follows if follows in '"\\$`' else f'\\{follows}'
                parts.append(Part('text', text, True))
            elif here in '$`':
                parts.append(self.expansion(quoted=True))
            else:
                parts.append(Part('text', self.run(_QUOTED_RUN), True))
        raise ShellError(line, 'a " without its end')

    def expansion(self, *, quoted: bool) -> Part:
        if self.ahead() == '`':
            self.go(1)
            return Part('command', self.until('`'), quoted)
        self.go(1)
        if self.ahead(2) == '((':
            inner = self.closed('(', ')')
            return Part('sum', inner[1:-1] if inner.endswith(')') else inner[1:], quoted)
        if self.ahead() == '(':
            return Part('command', self.closed('(', ')'), quoted)
        if self.ahead() == '{':
            return Part('variable', self.closed('{', '}'), quoted)
        name = _NAME.match(self.text, self.place)
        if name:
            return Part('variable', self.go(len(name[0])), quoted)
        if self.ahead() and self.ahead() in '0123456789@*#?$!-':
            return Part('variable', self.go(1), quoted)
        return Part('text', '$', quoted)

    def closed(self, opens: str, closes: str) -> str:
        """What stands in brackets that begin here; quotes hide brackets."""
        line, start, depth, quote = self.line, self.place + 1, 0, ''
        while self.place < len(self.text):
            here = self.go(1)
            if here == '\\':
                self.go(1)
            elif quote:
                quote = '' if here == quote else quote
            elif here in '\'"':
                quote = here
            elif here == opens:
                depth += 1
            elif here == closes:
                depth -= 1
                if depth == 0:
                    return self.text[start : self.place - 1]
        raise ShellError(line, f'a {opens} without its end')

    def document(self) -> None:
        """Note the word that ends a here-document."""
        self.blanks()
        end = ''.join(part.text for part in self.word().parts)
        self.waiting.append(end)

    def skip_documents(self) -> None:
        for end in self.waiting:
            while self.place < len(self.text):
                stop = self.text.find('\n', self.place)
                stop = len(self.text) if stop < 0 else stop + 1
                if self.go(stop - self.place).strip() == end:
                    break
        self.waiting = []


def _unquoted(parts: list[Part]) -> str:
    return ''.join(part.text if part.kind == 'text' and not part.quoted else '\0' for part in parts)


def _joined(parts: list[Part]) -> tuple[Part, ...]:
    """Neighbours of one kind as one part."""
    joined: list[Part] = []
    for (kind, quoted), group in groupby(parts, key=lambda part: (part.kind, part.quoted)):
        same = list(group)
        joined += [Part('text', ''.join(part.text for part in same), quoted)] if kind == 'text' else same
    return tuple(joined)
