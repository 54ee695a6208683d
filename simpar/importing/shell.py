"""A shell script, read and never run: the commands that it would come to, with the words that each would get.

Variables that are assigned plainly are substituted, conditions on them decided. ``--set NAME=value`` gives one.
What cannot be known, such as ``$(hostname)`` or a variable that nobody assigns, stands in a value as its name between
two NULs, so that it is found wherever it ends up.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from simpar.importing import shell_syntax

_ASSIGNED: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)(\+?)=')
_DECLARES: Final = frozenset({'export', 'declare', 'local', 'readonly', 'typeset'})
_TESTS: Final = {'[': ']', '[[': ']]', 'test': ''}
_RUNS_TEXT: Final = frozenset({'-c', '-lc', '-xc', '-ec'})
_CALLS: Final = 20
MOST_COMMANDS: Final = 5000
Answer = bool | None
"""Whether a condition holds; None where it is not known."""
Value = str | list[str]
MOST: Final = 200_000
"""Letters of a value: variables that double themselves grow without end."""
MOST_NAMES: Final = 10_000
"""Nodes of a job that are listed by name."""
_COUNTED: Final = {
    re.compile(r'^scontrol show host(name|names|list)\b'): 'SLURM_NNODES',
    re.compile(r'^nvidia-smi (-L|--list-gpus)\b'): 'SLURM_GPUS_ON_NODE',
}
"""Commands that print a line for each node, or each device of a node, and the variable that counts these."""
UNKNOWN: Final = re.compile('\0([^\0]+)\0')
_FORM: Final = re.compile(
    r'(?P<size>#?)(?P<name>[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])(?:\[(?P<index>[^\]]*)\])?(?P<rest>.*)', re.DOTALL
)
_DEFAULT: Final = re.compile(r'(:?[-=+?])(.*)', re.DOTALL)
_CUT: Final = re.compile(r'(##|#|%%|%)(.*)', re.DOTALL)
_REPLACED: Final = re.compile(r'(//?)((?:\\.|[^/])+)(?:/(.*))?', re.DOTALL)
_HIDDEN: Final = str.maketrans(' \t\n', '\1\2\3')
_BARE: Final = str.maketrans('\1\2\3', ' \t\n')


def _quotient(one: int, other: int) -> int:
    """As bash divides, towards zero."""
    return abs(one) // abs(other) * (1 if (one < 0) == (other < 0) else -1)


_OPERATORS: Final[Mapping[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: _quotient,
    ast.Mod: lambda one, other: one - other * _quotient(one, other), ast.Lt: operator.lt, ast.Gt: operator.gt,
    ast.LtE: operator.le, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Argument:
    """A word that a command gets, and the line that says it."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Script:
    """What a script would run.

    Arguments: ``commands``, each with its words; ``skipped``, words of branches and loops that it does not get to;
    ``notes``, what could not be followed; ``variables``, the words that were last assigned to each.
    """

    commands: tuple[tuple[Argument, ...], ...]
    skipped: tuple[Argument, ...] = ()
    notes: tuple[str, ...] = ()
    variables: Mapping[str, tuple[Argument, ...]] = field(default_factory=dict)

    def variable(self, name: str) -> Argument | None:
        """What was last assigned to a variable in one piece."""
        words = self.variables.get(name, ())
        return words[0] if len(words) == 1 else None


def read_script(
    text: str,
    constants: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    sourced: Callable[[str], str] = lambda _: '',
) -> Script:
    """The commands of a script.

    Arguments: ``constants``, variables that the script does not change; ``environment``, those that it may assign anew;
    ``arguments`` of the script, ``$1`` and on; ``sourced``, the text of a script that it sources, where that is here.
    Raises `ShellError`.
    """
    walk = _Walk(Values({'PWD': '.', 'HOME': '~', **constants}, environment or {}), sourced)
    walk.values.take(arguments) if arguments else None
    walk.block(shell_syntax.blocks_of(shell_syntax.words_of(text)))
    variables = {name: tuple(words) for name, words in walk.origins.items()}
    return Script(tuple(walk.commands), tuple(walk.skipped), tuple(dict.fromkeys(walk.notes)), variables)


class _Walk:
    """Goes through statements in order; mutable."""

    def __init__(self, values: Values, sourced: Callable[[str], str]) -> None:
        self.values, self.sourced = values, sourced
        self.commands: list[tuple[Argument, ...]] = []
        self.skipped: list[Argument] = []
        self.notes: list[str] = []
        self.functions: dict[str, shell_syntax.Block] = {}
        self.origins: dict[str, list[Argument]] = {}
        self.doubts: dict[str, None] = {}
        self.calls = 0
        self.steps = 0

    def block(self, block: shell_syntax.Block) -> Answer:
        answer: Answer = True
        for statement in block:
            self.steps += 1
            if self.steps > MOST_COMMANDS:
                raise shell_syntax.ShellError(statement.line, f'more than {MOST_COMMANDS} commands')
            after = statement.after if isinstance(statement, shell_syntax.Command) else ''
            # ``a && b`` and ``a || b`` may not come to b; where a is not known they do with ``&&`` alone.
            if (after == '||' and answer is not False) or (after == '&&' and answer is False):
                self.skip((statement,))
                continue
            answer = self.statement(statement)
        return answer

    def statement(self, statement: shell_syntax.Statement) -> Answer:
        if isinstance(statement, shell_syntax.Command):
            return self.command(statement)
        if isinstance(statement, shell_syntax.If):
            self.condition(statement)
        elif isinstance(statement, shell_syntax.Case):
            self.case(statement)
        elif isinstance(statement, shell_syntax.Function):
            self.functions[statement.name] = statement.body
        else:
            self.notes.append(f'line {statement.line}: a loop is not followed')
            self.skip(statement.body, None)
        return None

    def condition(self, statement: shell_syntax.If) -> None:
        is_done, self.doubts = False, {}
        for test, body in statement.branches:
            answer = self.block(test) if test and not is_done else True
            if answer is None and not is_done:
                self.notes.append(f'line {statement.line}: a condition is not known, its branch is not taken')
            if is_done or not answer:
                self.skip(body, None if answer is None else tuple(self.doubts))
            else:
                is_done, doubts = True, self.doubts
                self.block(body)
                self.doubts = doubts

    def case(self, statement: shell_syntax.Case) -> None:
        value = self.values.joined(statement.word)
        doubts = tuple(unknowns(value))
        if doubts:
            self.notes.append(f'line {statement.line}: case of {"".join(unknowns(value))}, which is not set')
        value, is_done = ('' if doubts else value), False
        for patterns, body in statement.branches:
            if not is_done and any(fnmatchcase(value, self.values.joined(one)) for one in patterns):
                is_done = True
                self.block(body)
            else:
                self.skip(body, doubts)

    def skip(self, block: shell_syntax.Block, doubts: tuple[str, ...] | None = None) -> None:
        """Keep the flags of what is not come to, so that none is dropped silently.

        Arguments: ``doubts``, variables that nobody assigns and that decided it; None where it was not decided.
        """
        for statement in block:
            if isinstance(statement, shell_syntax.Command):
                words = [one for word in statement.words for one in (word.array or (word,))]
                self.elsewhere(statement, doubts)
                self.skipped += [
                    Argument(word.text, word.line) for word in words if word.text.lstrip(' \n').startswith('--')
                ]
            elif isinstance(statement, shell_syntax.If):
                for test, body in statement.branches:
                    self.skip(test + body, doubts)
            elif isinstance(statement, shell_syntax.Case):
                for _, body in statement.branches:
                    self.skip(body, doubts)
            else:
                self.skip(statement.body)

    def elsewhere(self, command: shell_syntax.Command, doubts: tuple[str, ...] | None) -> None:
        """Note what a command would assign that is not come to; flags are empty then, as they are for bash."""
        for word in command.words if doubts is not None else ():
            match = _ASSIGNED.match(word.text)
            value = (word.array[0].text if word.array else word.text[match.end() :]) if match else ''
            if match and doubts is not None:
                self.values.elsewhere[match[1]] = () if value.lstrip().startswith('--') or not value else doubts

    # commands

    def command(self, command: shell_syntax.Command) -> Answer:
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
        if name == '((':
            answer = self.values.joined(words[1])
            self.doubts |= dict.fromkeys(unknowns(answer))
            return None if unknowns(answer) else answer != '0'
        if name == 'shift':
            self.values.take(self.values.arguments[1:])
            return True
        arguments = tuple(self.given(words))
        if arguments:
            self.ran(arguments)
        return {'true': True, ':': True, 'false': False}.get(name)

    def test(self, name: str, words: list[shell_syntax.Word]) -> Answer:
        end = _TESTS[name]
        texts = [word.sign or self.values.joined(word) for word in words if word.plain != end or not end]
        self.doubts |= dict.fromkeys(name for text in texts for name in unknowns(text))
        return told(texts)

    def assigned(self, word: shell_syntax.Word) -> bool:
        """Whether a word is ``NAME=value``; then it is assigned."""
        first = word.parts[0] if word.parts else None
        match = _ASSIGNED.match(first.text) if first and first.kind == 'text' and not first.quoted else None
        if match is None or first is None:
            return False
        name, more = match[1], bool(match[2])
        if word.array is not None:
            elements = list(self.given(word.array))
            self.origins[name] = (self.origins.get(name, []) if more else []) + elements
            self.values.assign(name, [one.text for one in elements], more=more)
            return True
        rest = shell_syntax.Word(word.line, (first._replace(text=first.text[match.end() :]), *word.parts[1:]))
        value = self.values.joined(rest)
        self.origins[name] = (self.origins.get(name, []) if more else []) + [Argument(value, word.line)]
        self.values.assign(name, value, more=more)
        return True

    def given(self, words: tuple[shell_syntax.Word, ...] | list[shell_syntax.Word]) -> Iterator[Argument]:
        """What words come to, each at the line that says it: that of the variable's own, for an array's elements."""
        for word in words:
            texts = self.values.split(word)
            only = word.parts[0] if len(word.parts) == 1 else None
            name = re.match(r'[A-Za-z_][A-Za-z0-9_]*', only.text) if only and only.kind == 'variable' else None
            origins = self.origins.get(name[0], []) if name else []
            pieces = [Argument(piece, one.line) for one in origins for piece in one.text.split()]
            lines = [one.line for one in (origins if len(origins) == len(texts) else pieces)]
            if len(lines) != len(texts):
                lines = [word.line] * len(texts)
            yield from map(Argument, texts, lines)

    def ran(self, arguments: tuple[Argument, ...]) -> None:
        name = arguments[0].text
        if name in self.functions:
            self.called(name, arguments)
        elif name == 'eval':
            self.text(' '.join(one.text for one in arguments[1:]), arguments[0].line)
        elif name in ('source', '.') and len(arguments) > 1:
            self.text(self.sourced(arguments[1].text), arguments[0].line)
        else:
            inner = [place + 1 for place, one in enumerate(arguments[:-1]) if one.text in _RUNS_TEXT]
            # What Python runs is no text of a shell.
            is_python = inner and re.search(r'python[\d.]*$', arguments[inner[0] - 2].text)
            if inner and ' ' in arguments[inner[0]].text and not is_python:
                self.commands.append(arguments[: inner[0] - 1])
                self.text(arguments[inner[0]].text, arguments[inner[0]].line)
            else:
                self.commands.append(arguments)

    def called(self, name: str, arguments: tuple[Argument, ...]) -> None:
        self.calls += 1
        if self.calls > _CALLS:
            raise shell_syntax.ShellError(arguments[0].line, f'more than {_CALLS} calls of functions')
        outside = self.values.arguments
        self.values.take([one.text for one in arguments[1:]])
        self.block(self.functions[name])
        self.values.take(outside)

    def text(self, text: str, line: int) -> None:
        """Commands in a text, as of ``eval`` and ``bash -c``."""
        self.calls += 1
        if self.calls > _CALLS:
            raise shell_syntax.ShellError(line, f'more than {_CALLS} texts are run')
        self.block(shell_syntax.blocks_of(shell_syntax.words_of(text, line)))


# conditions

_NUMBERS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    '-eq': lambda a, b: a == b, '-ne': lambda a, b: a != b, '-lt': lambda a, b: a < b, '-le': lambda a, b: a <= b,
    '-gt': lambda a, b: a > b, '-ge': lambda a, b: a >= b,
}  # fmt: skip


def told(words: Sequence[str]) -> Answer:
    """What a test says; None where it asks for files or for what is not known.

    A variable that nobody assigns is empty, as it is for bash; the result of a command is not known.
    Arguments: ``words``, without the brackets.
    """
    for sign, decides in (('||', True), ('-o', True), ('&&', False), ('-a', False)):
        if sign in words[1:]:
            place = words.index(sign, 1)
            sides = (told(words[:place]), told(words[place + 1 :]))
            return decides if decides in sides else None if None in sides else not decides
    if words and words[0] == '!':
        answer = told(words[1:])
        return None if answer is None else not answer
    if any(name.startswith('$(') for word in words for name in UNKNOWN.findall(word)):
        return None
    return _single([UNKNOWN.sub('', word) for word in words])


def _single(words: Sequence[str]) -> Answer:
    if not words:
        return False
    first, *rest = words
    if not rest and first not in ('-z', '-n'):
        return bool(first)
    if first in ('-z', '-n') and len(rest) <= 1:
        is_empty = not any(rest)
        return is_empty if first == '-z' else not is_empty
    if len(rest) != 2:
        return None
    left, sign, right = words
    if sign in ('=', '=='):
        return fnmatchcase(left, right)
    if sign == '!=':
        return not fnmatchcase(left, right)
    if sign in _NUMBERS and re.fullmatch(r'-?[0-9]{1,18}', left) and re.fullmatch(r'-?[0-9]{1,18}', right):
        return _NUMBERS[sign](int(left), int(right))
    # An empty number is an error in bash, and the condition does not hold.
    return False if sign in _NUMBERS and '' in (left, right) else None


# values: ${NAME:-default}, $(( … )), arrays and word splitting, as bash does them


def unknown(name: str) -> str:
    """What stands in a value for something that is not known."""
    return f'\0{name}\0'


def unknowns(value: str) -> list[str]:
    """Names of what is not known in a value."""
    return UNKNOWN.findall(value)


def shown(value: str) -> str:
    """A value as a person reads it."""
    return UNKNOWN.sub(lambda match: match[1] if match[1].startswith('$') else f'${match[1]}', value)


class Values:
    """Variables of a script; mutable.

    Arguments: ``given``, those of the command line, which no script changes; ``environment``, what they are before it.
    """

    def __init__(self, constants: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self.given = dict(constants)
        self.environment = dict(environment)
        self.held: dict[str, Value] = {**environment, **constants}
        self.arguments: Sequence[str] = ()
        self.elsewhere: dict[str, tuple[str, ...]] = {}

    def take(self, arguments: Sequence[str]) -> None:
        """Arguments of the script or of a function, ``$1`` and on."""
        for place in range(len(self.arguments)):
            self.held.pop(str(place + 1), None)
        self.arguments = arguments
        self.held |= {str(place): text for place, text in enumerate(arguments, 1)}
        self.held |= {'@': list(arguments), '*': list(arguments), '#': str(len(arguments))}

    def assign(self, name: str, value: Value, *, more: bool = False) -> None:
        """``name=value``, or ``name+=value``."""
        if name in self.given:
            return
        old = self.held.get(name)
        if more and old is not None:
            if isinstance(old, list):
                value = old + (value if isinstance(value, list) else [value])
            else:
                value = [old, *value] if isinstance(value, list) else old + value
        if sum(map(len, value)) + len(value) > MOST:
            raise shell_syntax.ShellError(0, f'{name} grows to more than {MOST} letters')
        self.held[name] = value

    # words

    def split(self, word: shell_syntax.Word) -> list[str]:
        """A word as bash hands it on: expanded, split where it is not quoted; none, one or several."""
        done: list[str] = []
        open_word = False
        for part in word.parts:
            pieces = self.part(part)
            if part.quoted or part.kind == 'text':
                fields = pieces
                before = after = False
            else:
                text = ' '.join(pieces)
                fields = text.split()
                before, after = text[:1].isspace(), text[-1:].isspace()
            if not fields:
                open_word = open_word and not before
                continue
            if open_word and not before:
                done[-1] += fields[0]
                fields = fields[1:]
            done += fields
            open_word = not after
        if sum(map(len, done)) > MOST:
            raise shell_syntax.ShellError(word.line, f'a word grows to more than {MOST} letters')
        return [one.translate(_BARE) for one in done]

    def joined(self, word: shell_syntax.Word) -> str:
        """A word that is not split, as behind ``=``."""
        return ''.join(' '.join(self.part(part)) for part in word.parts).translate(_BARE)

    def part(self, part: shell_syntax.Part) -> list[str]:
        if part.kind == 'text':
            return [part.text]
        if part.kind == 'command':
            return [self.command(part.text)]
        if part.kind == 'sum':
            return [self.sum(part.text)]
        return self.variable(part.text)

    def command(self, text: str) -> str:
        """What a command would print: nodes and devices of a Slurm job where these are known, else not known."""
        words = ' '.join(text.split())
        for command, counted in _COUNTED.items():
            match = command.search(words)
            number = self.environment.get(counted, '')
            if match and number:
                if re.search(r'\| ?wc -l$', words):
                    return number
                if '|' not in words and int(number) <= MOST_NAMES:
                    return ' '.join(f'node{place}' for place in range(int(number)))
        # Its name has no blanks, at which words are split.
        return unknown(f'$({words.partition(" ")[0][:40]}…)' if ' ' in words else f'$({words[:60]})')

    def text(self, text: str) -> str:
        """A default such as ``"6000"`` or ``$OTHER``, expanded."""
        words = [word for word in shell_syntax.words_of(text) if not word.sign]
        return ' '.join(''.join(map(self._default_text, word.parts)) for word in words)

    def _default_text(self, part: shell_syntax.Part) -> str:
        """A part of a default; what stands between quotes is not split where the default ends up."""
        text = ' '.join(self.part(part))
        return text.translate(_HIDDEN) if part.quoted else text

    # ${ … }

    def variable(self, form: str) -> list[str]:
        match = _FORM.fullmatch(form)
        if match is None:
            return [unknown(f'${{{form[:60]}}}')]
        name, index, rest = match['name'], match['index'], match['rest']
        held = self.held.get(name)
        if match['size']:
            # What a command prints may be any number of words.
            is_known = held is not None and not any('\0$(' in one for one in held)
            return [str(len(held)) if held is not None and is_known else unknown(f'${{{form}}}')]
        if index in ('@', '*'):
            all_of = held if isinstance(held, list) else [held] if held is not None else None
            return all_of if all_of is not None else self.missing(name, rest)
        if index is not None:
            return self.item(held, index, form)
        if name in ('@', '*') and isinstance(held, list):
            return held
        one = (held[0] if held else '') if isinstance(held, list) else held
        return self.changed(name, one, rest) if rest else [one] if one is not None else self.missing(name, '')

    def missing(self, name: str, rest: str) -> list[str]:
        if rest:
            return self.changed(name, None, rest)
        # What other branches alone assign is empty here; where a variable decided it that nobody assigns, ask for that.
        doubts = self.elsewhere.get(name, (name,))
        return [] if name in ('@', '*') or not doubts else [unknown(doubts[0])]

    def item(self, held: Value | None, index: str, form: str) -> list[str]:
        place = self.sum(index)
        if isinstance(held, list) and re.fullmatch(r'-?[0-9]{1,6}', place) and -len(held) <= int(place) < len(held):
            return [held[int(place)]]
        return [unknown(f'${{{form}}}')]

    def changed(self, name: str, value: str | None, rest: str) -> list[str]:
        """``${NAME:-default}`` and its kin."""
        if match := _DEFAULT.fullmatch(rest):
            sign, text = match[1], match[2]
            empty = value is None or (sign.startswith(':') and value == '')
            if sign[-1] == '+':
                return [] if empty else [self.text(text)]
            if not empty:
                return [value or '']
            if sign[-1] == '?':
                return [unknown(name)]
            default = self.text(text)
            if sign[-1] == '=':
                self.assign(name, default.translate(_BARE))
            return [default] if default else ['']
        if value is None:
            return [unknown(name)]
        if len(value) > 4096:
            return [unknown(name)]
        if match := _CUT.fullmatch(rest):
            return [_cut(value, match[1], self.text(match[2]))]
        if match := _REPLACED.fullmatch(rest):
            new = self.text(match[3] or '')
            old = re.sub(r'\\(.)', r'\1', match[2])
            return [value.replace(old, new, -1 if match[1] == '//' else 1)]
        if rest in (',,', '^^'):
            return [value.lower() if rest == ',,' else value.upper()]
        return [unknown(f'${{{name}{rest}}}')]

    # $(( … ))

    def sum(self, text: str) -> str:
        """Whole numbers added up; what cannot be is not known."""
        filled = self.text(f'"{text}"').translate(_BARE) if '$' in text else text
        if '\0' in filled:
            return unknown(unknowns(filled)[0])
        names = re.sub(r'\b[A-Za-z_]\w*', lambda match: self.number(match[0]), filled)
        if '\0' in names:
            return unknown(unknowns(names)[0])
        if len(names) > 400 or '**' in names:
            return unknown(f'$(({text[:60]}))')
        try:
            return str(int(_sum(ast.parse(_python(names.strip()).replace('/', '//'), mode='eval').body)))
        except (SyntaxError, ValueError, ZeroDivisionError, KeyError, RecursionError, MemoryError, StopIteration):
            return unknown(f'$(({text[:60]}))')

    def number(self, name: str) -> str:
        held = self.held.get(name)
        return f'({held})' if isinstance(held, str) and held else unknown(name)


def _cut(value: str, sign: str, pattern: str) -> str:
    places: Iterator[int] | range = range(len(value) + 1)
    if sign[0] == '#':
        fits = [end for end in places if fnmatchcase(value[:end], pattern)]
        return value[(max if len(sign) == 2 else min)(fits) :] if fits else value
    fits = [start for start in places if fnmatchcase(value[start:], pattern)]
    return value[: (min if len(sign) == 2 else max)(fits)] if fits else value


def _python(text: str) -> str:
    """A sum with ``a ? b : c`` and the signs of conditions, as Python writes it."""
    depth, marks = 0, []
    for place, letter in enumerate(text):
        depth += (letter == '(') - (letter == ')')
        if letter in '?:' and depth == 0:
            marks.append(place)
    if marks:
        # Of a ? b : c ? d : e the first question has all behind its colon.
        question, other = marks[0], next(place for place in marks if text[place] == ':')
        yes, no = _python(text[question + 1 : other].strip()), _python(text[other + 1 :].strip())
        return f'(({yes}) if ({_python(text[:question].strip())}) else ({no}))'
    start = text.find('(')
    if start >= 0:
        depth = 0
        for place in range(start, len(text)):
            depth += (text[place] == '(') - (text[place] == ')')
            if depth == 0:
                inner = _python(text[start + 1 : place].strip())
                return f'{_signs(text[:start])}({inner}){_python(text[place + 1 :])}'
    return _signs(text)


def _signs(text: str) -> str:
    # A sign of Python that binds as tightly; bash's own one is of bits, which are not read.
    if '~' in text:
        raise ValueError
    return re.sub(r'!(?!=)', '~', text.replace('&&', ' and ').replace('||', ' or '))


def _sum(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < 2**63:
        return node.value
    if isinstance(node, ast.IfExp):
        return _sum(node.body) if _sum(node.test) else _sum(node.orelse)
    if isinstance(node, ast.BoolOp):
        answers = [bool(_sum(one)) for one in node.values]
        return int(all(answers) if isinstance(node.op, ast.And) else any(answers))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return int(not _sum(node.operand))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_sum(node.operand)
    if isinstance(node, ast.BinOp):
        made = _OPERATORS[type(node.op)](_sum(node.left), _sum(node.right))
        if abs(made) >= 2**63:
            raise ValueError
        return made
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _OPERATORS[type(node.ops[0])](_sum(node.left), _sum(node.comparators[0]))
    raise ValueError
