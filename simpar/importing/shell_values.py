"""Values of shell variables: ``${NAME:-default}``, ``$(( … ))``, arrays and word splitting, as bash does them.

What cannot be known, such as ``$(hostname)`` or a variable that nobody assigns, stands in a value as its name between
two NULs, so that it is found wherever it ends up.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

from simpar.importing.shell_words import Part, ShellError, Word, words_of

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
_OPERATORS: Final[Mapping[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Lt: operator.lt, ast.Gt: operator.gt, ast.LtE: operator.le, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


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

    def __init__(self, given: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self.given = dict(given)
        self.environment = dict(environment)
        self.held: dict[str, Value] = {**environment, **given}

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
            raise ShellError(0, f'{name} grows to more than {MOST} letters')
        self.held[name] = value

    # words

    def split(self, word: Word) -> list[str]:
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
            raise ShellError(word.line, f'a word grows to more than {MOST} letters')
        return [one.translate(_BARE) for one in done]

    def joined(self, word: Word) -> str:
        """A word that is not split, as behind ``=``."""
        return ''.join(' '.join(self.part(part)) for part in word.parts).translate(_BARE)

    def part(self, part: Part) -> list[str]:
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
        return unknown(f'$({words[:60]})')

    def text(self, text: str) -> str:
        """A default such as ``"6000"`` or ``$OTHER``, expanded."""
        words = [word for word in words_of(text) if not word.sign]
        return ' '.join(''.join(map(self._kept, word.parts)) for word in words)

    def _kept(self, part: Part) -> str:
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
        one = (held[0] if held else '') if isinstance(held, list) else held
        return self.changed(name, one, rest) if rest else [one] if one is not None else self.missing(name, '')

    def missing(self, name: str, rest: str) -> list[str]:
        if rest:
            return self.changed(name, None, rest)
        return [] if name in ('@', '*') else [unknown(name)]

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
            told = self.text(text)
            if sign[-1] == '=':
                self.assign(name, told.translate(_BARE))
            return [told] if told else ['']
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
            return str(int(_sum(ast.parse(names.strip().replace('/', '//'), mode='eval').body)))
        except (SyntaxError, ValueError, ZeroDivisionError, KeyError, RecursionError, MemoryError):
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


def _sum(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < 2**63:
        return node.value
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
