"""The syntax of a shell script: text becomes words, and these become statements, with their lines; nothing is run.

What bash would expand is kept as a part of its word: ``$NAME`` and ``${…}``, ``$(( … ))``, ``$( … )``.
"""

from __future__ import annotations

import re
from collections.abc import Collection
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
_LETTER: Final = re.compile(r'\\.|.', re.DOTALL)
_SPACE: Final = re.compile(r'(?:[ \t\r]|\\\r?\n|#[^\n]*)*')
_SIGN: Final = re.compile(r'&>>|<<<|<<-|&&|\|\||;;|&>|>>|<<|>&|<&|>\||[;&|()<>]')
_CONDITION: Final = re.compile(r'\(\(((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*)\)\)(?=\s|;|$|&)')
"""``(( a > b ))``, with brackets within."""
_ENDS: Final = ('\n', ';', '&', '|')
_REDIRECTIONS: Final = ('>', '>>', '<', '<<', '<<-', '<<<', '>&', '<&', '&>', '&>>', '>|')
_JOINS: Final = ('&&', '||')


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
    return _Letters(text, line).all()


@dataclass(slots=True)
class _Letters:
    """Where reading of a text stands; mutable."""

    text: str
    line: int
    place: int = 0
    waiting: list[str] = field(default_factory=list)
    ahead_words: list[Word] = field(default_factory=list)
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

    def next(self) -> Word | None:
        if self.ahead_words:
            return self.ahead_words.pop()
        self.run(_SPACE)
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
        if condition := _CONDITION.match(self.text, self.place):
            self.go(len(condition[0]))
            self.ahead_words.append(Word(line, (Part('sum', condition[1], True),)))
            return Word(line, (Part('text', '((', False),))
        if sign := _SIGN.match(self.text, self.place):
            return Word(line, sign=self.go(len(sign[0])))
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
        words: list[Word] = []
        self.in_array = True
        while (word := self.next()) is not None:
            if word.sign == ')':
                self.in_array = False
                return tuple(words)
            if word.sign in ('', '\n'):
                words += [] if word.sign else [word]
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
        for match in _LETTER.finditer(self.text, self.place):
            here = match[0]
            if quote:
                quote = '' if here == quote else quote
            elif here in ('"', "'"):
                quote = here
            depth += not quote and (here == opens) - (here == closes)
            if depth == 0:
                self.go(match.end() - self.place)
                return self.text[start : match.start()]
        raise ShellError(line, f'a {opens} without its end')

    def document(self) -> None:
        """Note the word that ends a here-document."""
        self.run(_SPACE)
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


# statements


class Command(NamedTuple):
    """Words that stand together. Arguments: ``after``, the ``&&`` or ``||`` before it, or nothing."""

    line: int
    words: tuple[Word, ...]
    after: str = ''


class If(NamedTuple):
    """``if``: branches of a condition and what it leads to; that of ``else`` has no condition."""

    line: int
    branches: tuple[tuple[Block, Block], ...]


class Case(NamedTuple):
    """``case``: a word, and patterns with what they lead to."""

    line: int
    word: Word
    branches: tuple[tuple[tuple[Word, ...], Block], ...]


class Loop(NamedTuple):
    """``for``, ``while`` or ``until``."""

    line: int
    body: Block


class Function(NamedTuple):
    """``name() { … }``."""

    line: int
    name: str
    body: Block


Statement = Command | If | Case | Loop | Function
Block = tuple[Statement, ...]


def blocks_of(words: list[Word]) -> Block:
    """The statements of a script. Raises `ShellError`."""
    reader = _Words(words)
    block = reader.block(())
    if (word := reader.ahead()) is not None:
        raise ShellError(word.line, f'{word.plain or word.sign} without its begin')
    return block


class _Words:
    """Where reading of words stands; mutable."""

    def __init__(self, words: list[Word]) -> None:
        self.words, self.place, self.depth = words, 0, 0

    def ahead(self) -> Word | None:
        return self.words[self.place] if self.place < len(self.words) else None

    def is_sign(self, *signs: str) -> bool:
        word = self.ahead()
        return word is not None and word.sign in signs and word.sign != ''

    def is_word(self, names: Collection[str]) -> bool:
        word = self.ahead()
        return word is not None and word.plain in names and word.plain != ''

    def take(self) -> Word:
        word = self.words[self.place]
        self.place += 1
        return word

    def expect(self, name: str, line: int) -> None:
        while self.is_sign('\n', ';', '&'):
            self.take()
        if not (self.is_word((name,)) or self.is_sign(name)):
            raise ShellError(line, f'a block without its {name}')
        self.take()

    def block(self, ends: Collection[str]) -> Block:
        """Statements up to one of these words, which is left to be taken."""
        self.depth += 1
        if self.depth > DEPTH:
            raise ShellError(self.words[self.place - 1].line, f'more than {DEPTH} levels')
        statements: list[Statement] = []
        after = ''
        while (word := self.ahead()) is not None:
            if word.sign in _ENDS or word.sign in _JOINS:
                after = self.take().sign if word.sign in _JOINS else after if word.sign == '\n' else ''
                self.take() if word.sign not in _JOINS else None
                continue
            if word.plain in ends or word.sign in (')', ';;'):
                break
            statements.append(self.statement(after))
            after = ''
        self.depth -= 1
        return tuple(statements)

    def statement(self, after: str) -> Statement:
        word = self.take()
        compound = {'if': self.condition, 'case': self.case, 'for': self.loop, 'while': self.loop, 'until': self.loop,
                    'select': self.loop}  # fmt: skip
        if word.plain in compound:
            return compound[word.plain](word.line)
        if word.plain == '{':
            return self.group('}', word.line)
        if word.sign == '(':
            return self.group(')', word.line)
        if word.plain == 'function' and (name := self.ahead()) is not None and name.plain:
            self.take()
            return self.function(name.plain, word.line)
        if word.plain and self.is_sign('('):
            return self.function(word.plain, word.line)
        return self.command(word, after)

    def group(self, end: str, line: int) -> Statement:
        """A group is a condition that always holds."""
        body = self.block((end,))
        self.expect(end, line)
        return If(line, (((), body),))

    def function(self, name: str, line: int) -> Statement:
        while self.is_sign('(', ')', '\n'):
            self.take()
        if not self.is_word(('{',)):
            raise ShellError(line, 'a function without its {')
        self.take()
        body = self.block(('}',))
        self.expect('}', line)
        return Function(line, name, body)

    def condition(self, line: int) -> Statement:
        branches = []
        name = 'if'
        while name in ('if', 'elif'):
            test = self.block(('then',))
            self.expect('then', line)
            branches.append((test, self.block(('elif', 'else', 'fi'))))
            if self.ahead() is None:
                raise ShellError(line, 'an if without its fi')
            name = self.take().plain
        if name == 'else':
            branches.append(((), self.block(('fi',))))
            self.expect('fi', line)
        return If(line, tuple(branches))

    def loop(self, line: int) -> Statement:
        self.block(('do',))
        self.expect('do', line)
        body = self.block(('done',))
        self.expect('done', line)
        self.redirections()
        return Loop(line, body)

    def case(self, line: int) -> Statement:
        if self.ahead() is None:
            raise ShellError(line, 'a case without its word')
        word = self.take()
        self.expect('in', line)
        branches = []
        while True:
            while self.is_sign('\n', ';', ';;'):
                self.take()
            if self.ahead() is None or self.is_word(('esac',)):
                break
            branches.append(self.patterns(line))
        self.expect('esac', line)
        return Case(line, word, tuple(branches))

    def patterns(self, line: int) -> tuple[tuple[Word, ...], Block]:
        choices = []
        while not self.is_sign(')'):
            if self.ahead() is None:
                raise ShellError(line, 'a case without its )')
            word = self.take()
            choices += [] if word.sign else [word]
        self.take()
        return tuple(choices), self.block(('esac',))

    def redirections(self) -> None:
        while self.is_sign(*_REDIRECTIONS):
            self.take()
            word = self.ahead()
            if word is not None and not word.sign:
                self.take()

    def command(self, first: Word, after: str) -> Statement:
        words = [] if first.sign else [first]
        if first.sign in _REDIRECTIONS:
            self.place -= 1
            self.redirections()
        # (( … )) and [[ a && b ]] have signs of their own within.
        inside = first.plain == '[['
        while (word := self.ahead()) is not None:
            if inside:
                self.take()
                words.append(word)
                inside = word.plain != ']]' and word.sign != '\n'
            elif word.sign in _REDIRECTIONS:
                self.redirections()
            elif word.sign:
                break
            else:
                words.append(self.take())
        return Command(first.line, tuple(words), after)
