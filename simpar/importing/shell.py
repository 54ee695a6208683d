"""A shell script, read and never run: the commands that it would come to, with the words that each would get.

Variables that are assigned plainly are substituted, conditions on them decided. ``--set NAME=value`` gives one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from simpar.importing import shell_tests
from simpar.importing.shell_blocks import Block, Case, Command, Function, If, Statement, blocks_of
from simpar.importing.shell_tests import Answer
from simpar.importing.shell_values import Values, unknowns
from simpar.importing.shell_words import ShellError, Word, words_of

_ASSIGNED: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)(\+?)=')
_DECLARES: Final = frozenset({'export', 'declare', 'local', 'readonly', 'typeset'})
_TESTS: Final = {'[': ']', '[[': ']]', 'test': ''}
_RUNS_TEXT: Final = frozenset({'-c', '-lc', '-xc', '-ec'})
_CALLS: Final = 20
MOST_COMMANDS: Final = 5000


@dataclass(frozen=True, slots=True)
class Given:
    """A word that a command gets, and the line that says it."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Script:
    """What a script would run.

    Arguments: ``commands``, each with its words; ``skipped``, words of branches and loops that it does not get to;
    ``notes``, what could not be followed; ``variables``, what was last assigned to each, in one piece.
    """

    commands: tuple[tuple[Given, ...], ...]
    skipped: tuple[Given, ...] = ()
    notes: tuple[str, ...] = ()
    variables: Mapping[str, Given] = field(default_factory=dict)


def read_script(text: str, given: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Script:
    """The commands of a script.

    Arguments: ``given``, variables that the script does not change; ``environment``, variables that it may assign anew.
    Raises `ShellError`.
    """
    walk = _Walk(Values({'PWD': '.', 'HOME': '~', **given}, environment or {}))
    walk.block(blocks_of(words_of(text)))
    variables = {name: told[0] for name, told in walk.origins.items() if len(told) == 1}
    return Script(tuple(walk.commands), tuple(walk.skipped), tuple(dict.fromkeys(walk.notes)), variables)


class _Walk:
    """Goes through statements in order; mutable."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.commands: list[tuple[Given, ...]] = []
        self.skipped: list[Given] = []
        self.notes: list[str] = []
        self.functions: dict[str, Block] = {}
        self.origins: dict[str, list[Given]] = {}
        self.calls = 0
        self.steps = 0

    def block(self, block: Block) -> Answer:
        answer: Answer = True
        for statement in block:
            self.steps += 1
            if self.steps > MOST_COMMANDS:
                raise ShellError(statement.line, f'more than {MOST_COMMANDS} commands')
            if isinstance(statement, Command) and not self.goes_on(statement, answer):
                self.skip((statement,))
                continue
            answer = self.statement(statement)
        return answer

    def goes_on(self, command: Command, before: Answer) -> bool:
        """Whether ``a && b`` and ``a || b`` come to b; where a is not known they do with ``&&`` alone."""
        if command.after == '||':
            return before is False
        return command.after != '&&' or before is not False

    def statement(self, statement: Statement) -> Answer:
        if isinstance(statement, Command):
            return self.command(statement)
        if isinstance(statement, If):
            self.condition(statement)
        elif isinstance(statement, Case):
            self.case(statement)
        elif isinstance(statement, Function):
            self.functions[statement.name] = statement.body
        else:
            self.notes.append(f'line {statement.line}: a loop is not followed')
            self.skip(statement.body)
        return None

    def condition(self, statement: If) -> None:
        taken = False
        for asked, body in statement.branches:
            answer = self.block(asked) if asked else True
            if answer is None and not taken:
                self.notes.append(f'line {statement.line}: a condition is not known, its branch is not taken')
            if taken or not answer:
                self.skip(body)
            else:
                taken = True
                self.block(body)

    def case(self, statement: Case) -> None:
        value = self.values.joined(statement.word)
        if unknowns(value):
            self.notes.append(f'line {statement.line}: case of {"".join(unknowns(value))}, which is not set')
        value, taken = ('' if unknowns(value) else value), False
        for patterns, body in statement.branches:
            if not taken and any(fnmatchcase(value, self.values.joined(one)) for one in patterns):
                taken = True
                self.block(body)
            else:
                self.skip(body)

    def skip(self, block: Block) -> None:
        """Keep the flags of what is not come to, so that none is dropped silently."""
        for statement in block:
            if isinstance(statement, Command):
                words = [one for word in statement.words for one in (word.array or (word,))]
                self.skipped += [
                    Given(word.text, word.line) for word in words if word.text.lstrip(' \n').startswith('--')
                ]
            elif isinstance(statement, If):
                for asked, body in statement.branches:
                    self.skip(asked + body)
            elif isinstance(statement, Case):
                for _, body in statement.branches:
                    self.skip(body)
            else:
                self.skip(statement.body)

    # commands

    def command(self, command: Command) -> Answer:
        words = list(command.words)
        while words and self.assigned(words[0]):
            words.pop(0)
        if not words:
            return True
        name = words[0].plain
        if name in _DECLARES:
            for word in words[1:]:
                self.assigned(word)
            return True
        if name in _TESTS:
            return self.test(name, words[1:])
        given = tuple(self.given(words))
        if given:
            self.ran(given)
        return {'true': True, ':': True, 'false': False}.get(name)

    def test(self, name: str, words: list[Word]) -> Answer:
        end = _TESTS[name]
        texts = [word.sign or self.values.joined(word) for word in words if word.plain != end or not end]
        return shell_tests.told(texts)

    def assigned(self, word: Word) -> bool:
        """Whether a word is ``NAME=value``; then it is assigned."""
        first = word.parts[0] if word.parts else None
        match = _ASSIGNED.match(first.text) if first and first.kind == 'text' and not first.quoted else None
        if match is None or first is None:
            return False
        name, more = match[1], bool(match[2])
        if word.array is not None:
            given = list(self.given(word.array))
            self.origins[name] = (self.origins.get(name, []) if more else []) + given
            self.values.assign(name, [one.text for one in given], more=more)
            return True
        rest = Word(word.line, (first._replace(text=first.text[match.end() :]), *word.parts[1:]))
        value = self.values.joined(rest)
        self.origins[name] = (self.origins.get(name, []) if more else []) + [Given(value, word.line)]
        self.values.assign(name, value, more=more)
        return True

    def given(self, words: tuple[Word, ...] | list[Word]) -> Iterator[Given]:
        """What words come to, each at the line that says it: that of the variable's own, for an array's elements."""
        for word in words:
            texts = self.values.split(word)
            yield from self.placed(word, texts)

    def placed(self, word: Word, texts: list[str]) -> Iterator[Given]:
        only = word.parts[0] if len(word.parts) == 1 else None
        name = re.match(r'[A-Za-z_][A-Za-z0-9_]*', only.text) if only and only.kind == 'variable' else None
        told = self.origins.get(name[0], []) if name else []
        pieces = [Given(piece, one.line) for one in told for piece in one.text.split()]
        lines = [one.line for one in (told if len(told) == len(texts) else pieces)]
        fits = len(lines) == len(texts)
        for place, text in enumerate(texts):
            yield Given(text, lines[place] if fits else word.line)

    def ran(self, given: tuple[Given, ...]) -> None:
        name = given[0].text
        if name in self.functions:
            self.called(name, given[0].line)
        elif name == 'eval':
            self.text(' '.join(one.text for one in given[1:]), given[0].line)
        else:
            inner = [place + 1 for place, one in enumerate(given[:-1]) if one.text in _RUNS_TEXT]
            if inner and ' ' in given[inner[0]].text:
                self.commands.append(given[: inner[0] - 1])
                self.text(given[inner[0]].text, given[inner[0]].line)
            else:
                self.commands.append(given)

    def called(self, name: str, line: int) -> None:
        self.calls += 1
        if self.calls > _CALLS:
            raise ShellError(line, f'more than {_CALLS} calls of functions')
        self.block(self.functions[name])

    def text(self, text: str, line: int) -> None:
        """Commands in a text, as of ``eval`` and ``bash -c``."""
        self.calls += 1
        if self.calls > _CALLS:
            raise ShellError(line, f'more than {_CALLS} texts are run')
        self.block(blocks_of(words_of(text, line)))
