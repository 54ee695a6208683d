"""Blocks of a shell script: words become commands, conditions, cases, loops and functions; nothing is run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from simpar.importing.shell_words import DEPTH, ShellError, Word

_ENDS: Final = ('\n', ';', '&', '|')
_REDIRECTIONS: Final = ('>', '>>', '<', '<<', '<<-', '<<<', '>&', '<&', '&>', '&>>', '>|')
_JOINS: Final = ('&&', '||')


@dataclass(frozen=True, slots=True)
class Command:
    """Words that stand together. Arguments: ``after``, the ``&&`` or ``||`` before it, or nothing."""

    line: int
    words: tuple[Word, ...]
    after: str = ''


@dataclass(frozen=True, slots=True)
class If:
    """``if``: branches of a condition and what it leads to; that of ``else`` has no condition."""

    line: int
    branches: tuple[tuple[Block, Block], ...]


@dataclass(frozen=True, slots=True)
class Case:
    """``case``: a word, and patterns with what they lead to."""

    line: int
    word: Word
    branches: tuple[tuple[tuple[Word, ...], Block], ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """``for``, ``while`` or ``until``."""

    line: int
    body: Block


@dataclass(frozen=True, slots=True)
class Function:
    """``name() { … }``."""

    line: int
    name: str
    body: Block


Statement = Command | If | Case | Loop | Function
Block = tuple[Statement, ...]


def blocks_of(words: list[Word]) -> Block:
    """The statements of a script. Raises `ShellError`."""
    reader = _Reader(words)
    found = reader.block(())
    if (word := reader.ahead()) is not None:
        raise ShellError(word.line, f'{word.plain or word.sign} without its begin')
    return found


class _Reader:
    """Where reading stands; mutable."""

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
        found: list[Statement] = []
        after = ''
        while (word := self.ahead()) is not None:
            if word.sign in _ENDS or word.sign in _JOINS:
                after = self.take().sign if word.sign in _JOINS else after if word.sign == '\n' else ''
                self.take() if word.sign not in _JOINS else None
                continue
            if word.plain in ends or word.sign in (')', ';;'):
                break
            found.append(self.statement(after))
            after = ''
        self.depth -= 1
        return tuple(found)

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
            asked = self.block(('then',))
            self.expect('then', line)
            branches.append((asked, self.block(('elif', 'else', 'fi'))))
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
        found = []
        while not self.is_sign(')'):
            if self.ahead() is None:
                raise ShellError(line, 'a case without its )')
            word = self.take()
            found += [] if word.sign else [word]
        self.take()
        return tuple(found), self.block(('esac',))

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
