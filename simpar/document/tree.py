"""Tree: a file's plain values, and for each the place that it comes from: file:line, or the --set that wrote it."""

import copy
import difflib
import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeGuard

import yaml
from yaml.reader import Reader

from simpar.errors import Key, Problem, ScheduleError, dotted, refusal, refuse, shown_part
from simpar.files import read_regular

MAX_BYTES: Final = 2**20
MAX_DEPTH: Final = 32
MAX_VALUES: Final = 100_000

# libyaml's parser is many times faster; PyYAML may have been built without it.
_LOADER: Final[Any] = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
_NULL: Final = re.compile(r'~|null|Null|NULL|')
_TRUE: Final = re.compile(r'true|True|TRUE')
_FALSE: Final = re.compile(r'false|False|FALSE')
# YAML 1.2: 012 is twelve, and 12:30 is text; PyYAML's own resolver, of 1.1, says ten and 750.
_INT: Final = re.compile(r'[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+')
_FLOAT: Final = re.compile(r'[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?')
_NOT_FINITE: Final = re.compile(r'[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)')
_UNPRINTABLE: Final[re.Pattern[str]] = Reader.NON_PRINTABLE


class Fault(NamedTuple):
    """What is wrong with one value, and what to write instead."""

    what: str
    instead: str = ''


class Unreadable(Exception):
    """The text as a whole cannot be read; ``line`` from 1, 0 where it has none."""

    def __init__(self, line: int, what: str, instead: str = '') -> None:
        super().__init__(what)
        self.line = line
        self.fault = Fault(what, instead)


@dataclass(slots=True)
class Node:
    """A value as it stands in the text.

    Arguments:
        value: a scalar, a list of nodes, or a dict of (line of key, node).
        fault: why it cannot be used.
        key_faults: (line, fault) of keys that were left out of a mapping.
    """

    line: int
    value: Any = None
    fault: Fault | None = None
    key_faults: list[tuple[int, Fault]] = field(default_factory=list)


Entries = dict[str, tuple[int, Node]]


def scalar(text: str) -> Any:
    """The value of a plain scalar by YAML 1.2's core schema: 1e-6 is a number, on and yes are text.

    Raises `Unreadable` (without a line) for numbers that are not finite or have more than 18 digits.
    """
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
        return text[0] in 'tT'
    if _INT.fullmatch(text):
        # 64 bits hold 18 digits, and int() takes a time that is quadratic in them.
        if len(text) > 19:
            raise Unreadable(0, f'too large a number (got {_shortened(text)})', 'write at most 18 digits')
        return int(text, 0 if text[:2] in {'0o', '0x'} else 10)
    if _NOT_FINITE.fullmatch(text):
        raise Unreadable(0, f'not a finite number (got {text})', 'write a finite number')
    if not _FLOAT.fullmatch(text):
        return text
    # 1e999 is a number to YAML and infinite to Python.
    if float(text) in {float('inf'), float('-inf')}:
        raise Unreadable(0, f'not a finite number (got {_shortened(text)})', 'write a smaller number')
    return float(text)


def _shortened(text: str) -> str:
    return text if len(text) <= 12 else f'{text[:12]}…'


def check_printable(text: str) -> None:
    """Raises `Unreadable` at the first control character or half of a surrogate pair."""
    match = _UNPRINTABLE.search(text)
    if match:
        line = text.count('\n', 0, match.start()) + 1
        raise Unreadable(line, f'holds the character U+{ord(match[0]):04X}, so it is no YAML', 'write text in UTF-8')


def compose(text: str) -> Node:
    """The nodes of the one document in a text; aliases share their node.

    Raises `Unreadable` for what is not one YAML document, or too large, too deep or too repetitive a one.
    """
    check_printable(text)
    try:
        return _Composer(yaml.parse(text, Loader=_LOADER)).document()
    except yaml.MarkedYAMLError as error:
        # The parser's own message has several lines and a snippet; ours has the line and a remedy.
        raise _syntax_fault(text, error) from None
    except yaml.YAMLError:
        raise Unreadable(0, 'not YAML', 'write text in UTF-8') from None


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


def _syntax_fault(text: str, error: yaml.MarkedYAMLError) -> Unreadable:
    lines = text.rstrip().split('\n')
    mark = error.problem_mark or error.context_mark
    line = min(mark.line + 1, len(lines)) if mark else 1
    said = (error.problem or 'it cannot be read').split('\n')[0][:100]
    # The most common mistake, for which the parser's words are of no help.
    tabbed = lines[line - 1].lstrip(' ').startswith('\t')
    remedy = 'indent with spaces, not tabs' if tabbed else 'check quotes, brackets, colons and indentation'
    return Unreadable(line, f'not YAML: {said}', remedy)


class _Composer:
    """Walks the parser's events once; mutable, for one text."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self.events = events
        self.anchors: dict[str, Node] = {}
        self.values = 0

    def document(self) -> Node:
        node = Node(1)
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                node = self.node(next(self.events), 0)
                break
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                raise Unreadable(_line(event), 'a second document', 'remove the "---" before it')
        return node

    def node(self, event: yaml.Event, depth: int) -> Node:
        line = _line(event)
        # Counted before it is built: an input cannot make it grow first.
        self.count(line)
        # Far below Python's own limit of recursion, which would end in a traceback.
        if depth > MAX_DEPTH:
            raise Unreadable(line, f'more than {MAX_DEPTH} levels', 'write it flatter')
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event.anchor or '', line)
        node = self.fresh(event, line, depth)
        if event.anchor:  # type: ignore[attr-defined]  # every event but an alias that starts a node has one
            self.anchors[event.anchor] = node  # type: ignore[attr-defined]
        return node

    def fresh(self, event: yaml.Event, line: int, depth: int) -> Node:
        if isinstance(event, yaml.MappingStartEvent):
            node = self.mapping(line, depth)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self.sequence(line, depth)
        else:
            node = self.scalar(event, line)
        tag = getattr(event, 'tag', None)
        if tag is not None:
            node.fault = Fault(f'has the tag {tag.replace("tag:yaml.org,2002:", "!!")[:60]}', 'remove the tag')
        return node

    def count(self, line: int, more: int = 1) -> None:
        self.values += more
        if self.values > MAX_VALUES:
            raise Unreadable(line, f'more than {MAX_VALUES} values', 'write less')

    def alias(self, name: str, line: int) -> Node:
        target = self.anchors.get(name)
        if target is None:
            return Node(
                line, None, Fault(f'*{name[:40]} refers to itself or to no anchor', f'define &{name[:40]} before it')
            )
        # The value is shared and the line is the alias's own, so that problems name the place that was written.
        return Node(line, target.value, target.fault)

    def scalar(self, event: Any, line: int) -> Node:
        try:
            check_printable(event.value)
            # A style means quotes or a block: such a scalar is text whatever it looks like.
            return Node(line, event.value if event.style else scalar(event.value))
        except Unreadable as error:
            return Node(line, None, error.fault)

    def sequence(self, line: int, depth: int) -> Node:
        items: list[Node] = []
        for event in self.events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            items.append(self.node(event, depth + 1))
        return Node(line, items)

    def mapping(self, line: int, depth: int) -> Node:
        node = Node(line)
        merged: Entries = {}
        own: Entries = {}
        for event in self.events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            fault = self.entry(event, depth, own, merged)
            if fault:
                node.key_faults.append((_line(event), fault))
        # Own keys win over merged ones, in whatever order they stand (YAML's merge key).
        node.value = {**merged, **own}
        return node

    def entry(self, event: yaml.Event, depth: int, own: Entries, merged: Entries) -> Fault | None:
        key = self.key(event, depth)
        value = self.node(next(self.events), depth + 1)
        if isinstance(key, Fault):
            return key
        if key == '<<' and not getattr(event, 'style', None):
            return self.merge(merged, value)
        if key in own:
            return Fault(f'{key[:40]!r} is given twice', f'remove one; the first is on line {own[key][0]}')
        own[key] = (_line(event), value)
        return None

    def key(self, event: yaml.Event, depth: int) -> str | Fault:
        node = self.node(event, depth + 1)
        if node.fault:
            return node.fault
        if isinstance(event, yaml.ScalarEvent) and event.value:
            # Whole numbers lose signs and zeros in front, so that 01 and 1 are one key.
            return str(node.value) if type(node.value) is int else event.value
        return Fault('a key must be a word', 'write "key: value"')

    def merge(self, merged: Entries, value: Node) -> Fault | None:
        for source in value.value if isinstance(value.value, list) else [value]:
            if source.fault or not isinstance(source.value, dict):
                return source.fault or Fault('"<<" merges mappings only', 'write <<: *name of a mapping')
            # Merged keys count as written ones: a chain of merges could double at every step.
            self.count(source.line, len(source.value))
            for key, entry in source.value.items():
                merged.setdefault(key, entry)
        return None


Source = str | os.PathLike[str] | Mapping[str, Any]
_NO_FILE: Final = 'schedule'
"""Stands before line numbers of what is in no file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Plain values: dicts with text as keys, lists, and scalars, all of them finite.

    Arguments:
        root: the value.
        origins: the place that each key comes from.
        problems: what is already wrong with the text.
        refused: keys of values that stand as None because of a problem.
        shorts: keys whose value may be written short, as what stands under this name of the mapping in full; `put`
            goes below them whichever is written.
    """

    root: Any
    origins: Mapping[Key, str]
    problems: tuple[Problem, ...] = ()
    refused: frozenset[Key] = frozenset()
    shorts: Mapping[Key, str] = field(default_factory=dict)

    def where(self, key: Key) -> str:
        """The place of a key, or of the nearest key above it."""
        # What is missing has no place of its own: it is told where its mapping begins.
        return next(self.origins[key[:end]] for end in range(len(key), -1, -1) if key[:end] in self.origins)

    def get(self, key: Key) -> Any:
        """The value at a key; None where there is none."""
        node = self.root
        for part in key:
            node = _child(node, part)
        return node


def _child(node: Any, part: str | int) -> Any:
    if isinstance(node, dict):
        return node.get(str(part))
    if isinstance(node, list) and str(part).isdecimal() and len(str(part)) < 9 and int(part) < len(node):
        return node[int(part)]
    return None


def parse(text: str, name: str) -> Tree:
    """The tree of a text; ``name`` stands before each line number. Raises `Unreadable`."""
    origins, refused = dict[Key, str](), set[Key]()
    problems: list[Problem] = []
    numbers = count(1)

    def grown(node: Node, key: Key, line: int) -> Any:
        # Counted once more with aliases filled in: ten nested lists of ten aliases are 10¹⁰ values.
        if next(numbers) > MAX_VALUES or len(key) > MAX_DEPTH:
            limit = f'{MAX_DEPTH} levels' if len(key) > MAX_DEPTH else f'{MAX_VALUES} values'
            raise Unreadable(node.line, f'more than {limit} once aliases are filled in', 'write it without aliases')
        origins[key] = f'{name}:{line}'
        faults = [*node.key_faults, *([(line, node.fault)] if node.fault else [])]
        problems.extend(Problem(key, *fault).at(f'{name}:{at}') for at, fault in faults)
        if node.fault:
            refused.add(key)
            return None
        if isinstance(node.value, dict):
            return {part: grown(child, (*key, part), at) for part, (at, child) in node.value.items()}
        if isinstance(node.value, list):
            return [grown(child, (*key, place), child.line) for place, child in enumerate(node.value)]
        return node.value

    node = compose(text)
    root = grown(node, (), node.line)
    return Tree(root=root, origins=origins, problems=tuple(problems), refused=frozenset(refused))


def is_path(source: Source) -> TypeGuard[str | os.PathLike[str]]:
    """Whether a source is the path of a file, not its text or its values."""
    return not isinstance(source, Mapping) and not (isinstance(source, str) and '\n' in source)


def read(source: Source, *, error: type[ScheduleError] = ScheduleError) -> Tree:
    """Read YAML of at most 1 MiB.

    Arguments: ``source``, the path of a file, the text of one (of several lines), or the values as a dict.
    Returns a tree whose ``problems`` the caller reports (`build` does). Raises ``error`` for a file that is missing,
    no text in UTF-8, empty, not YAML, too large, too deep, or that grows too large by its aliases.
    """
    if is_path(source):
        return tree_of(text_of(source, error=error), _printable(source), error=error)
    if isinstance(source, Mapping):
        # Through text, so that values of a dict are held to the same rules as those of a file.
        return tree_of(yaml.safe_dump(dict(source), sort_keys=False, allow_unicode=True), _NO_FILE, error=error)
    return tree_of(str(source), _NO_FILE, error=error)


def text_of(path: str | os.PathLike[str], *, error: type[ScheduleError] = ScheduleError) -> str:
    """The text of a YAML file as it is now; raises ``error`` as ``read`` does."""
    with _telling(_printable(path), error):
        return _text(path)


def tree_of(text: str, name: str, *, error: type[ScheduleError] = ScheduleError) -> Tree:
    """The tree of a text; ``name`` stands before each line number. Raises ``error`` as ``read`` does."""
    with _telling(name, error):
        return parse(text, name)


@contextmanager
def _telling(name: str, error: type[ScheduleError]) -> Iterator[None]:
    """What cannot be read, as an error of a kind at its line."""
    try:
        yield
    except Unreadable as unreadable:
        where = f'{name}:{unreadable.line}' if unreadable.line else name
        raise error(Problem(where, *unreadable.fault)) from None


def _printable(path: object) -> str:
    name = str(path)
    return name if name.isprintable() else repr(name)


def _text(path: str | os.PathLike[str]) -> str:
    try:
        data = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        raise Unreadable(0, 'no such file', _neighbour(path)) from None
    except IsADirectoryError:
        raise Unreadable(0, 'a folder, not a file', 'name a YAML file in it') from None
    # A path with a NUL in it is a ValueError.
    except (OSError, ValueError) as failure:
        if getattr(failure, 'errno', None) == errno.EFBIG:
            raise Unreadable(0, f'more than {MAX_BYTES} bytes', 'keep tables in CSV files beside it') from None
        raise Unreadable(0, f'cannot be read: {getattr(failure, "strerror", None) or failure}') from None
    try:
        text = data.decode('utf-8-sig')
    except UnicodeDecodeError as failure:
        line = data.count(b'\n', 0, failure.start) + 1
        raise Unreadable(line, 'not text in UTF-8', 'save it as UTF-8') from None
    if not text.strip():
        raise Unreadable(1, 'the file is empty', 'start from one of the examples')
    return text


def _neighbour(path: str | os.PathLike[str]) -> str:
    folder = Path(path).parent
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.suffix in {'.yaml', '.yml'})
    except OSError:
        return f'there is no folder {_printable(folder)}'
    close = difflib.get_close_matches(Path(path).name, names, 1)
    return f'did you mean {_printable(folder / close[0])}?' if close else 'check the path'


def override(tree: Tree, settings: Iterable[str]) -> Tree:
    """Write values over a tree, each as ``a.b=value`` with the value in YAML, in this order.

    Raises `ScheduleError` with every setting that cannot be read or has no place to go.
    """
    problems: list[Problem] = []
    for setting in settings:
        tree = _set(tree, setting, problems)
    refuse(problems)
    return tree


def _label(setting: str) -> str:
    text = setting if setting.isprintable() else repr(setting)
    return f'--set {text if len(text) <= 60 else text[:59] + "…"}'


def _set(tree: Tree, setting: str, problems: list[Problem]) -> Tree:
    try:
        return _written(tree, setting)
    except ScheduleError as wrong:
        problems += wrong.problems
        return tree


def _written(tree: Tree, setting: str) -> Tree:
    key, sign, text = setting.partition('=')
    label = _label(setting)
    if not sign or not all(part.strip() for part in key.split('.')):
        raise refusal(label, 'not a key and a value', 'write e.g. --set plan.copies=4')
    try:
        value = parse(text, label)
    except Unreadable as unreadable:
        raise refusal(label, *unreadable.fault) from None
    if value.problems:
        first = value.problems[0]
        raise refusal(label, f'{shown_part(key)}: {first.what}', first.instead)
    return put(tree, key, value.root, label)


def put(tree: Tree, key: str, value: Any, origin: str) -> Tree:
    """A tree with a value at a dotted key; mappings on the way are made.

    Arguments: ``origin``, the place that problems with this value name. Raises `ScheduleError` where a text or a number
    stands in the way, or a list has no such place.
    """
    parts = [part.strip() for part in key.split('.')]
    if len(parts) > MAX_DEPTH:
        raise refusal(origin, f'more than {MAX_DEPTH} levels', 'write a shorter key')
    # Trees are values: the one that was read stays as it is. What is not on the way is shared with it.
    root = {} if tree.root is None else copy.copy(tree.root)
    node, path, made = root, (), {}  # type: Any, Key, dict[Key, str]
    try:
        for part, below in pairwise(parts):
            path = (*path, _place(node, part, path))
            if tree.get(path) is None:
                made[path] = origin
                node[path[-1]] = {}
            else:
                node[path[-1]] = copy.copy(node[path[-1]])
            node, path = _enter(node, path, below, tree.shorts)
        path = (*path, _place(node, parts[-1], path))
    except Unreadable as unreadable:
        raise refusal(origin, *unreadable.fault) from None
    node[path[-1]] = value
    # Whatever stood below the key is gone, and with it the lines that it came from.
    origins = {other: place for other, place in tree.origins.items() if other[: len(path)] != path}
    return replace(tree, root=root, origins={**origins, **made, path: origin})


def _enter(node: Any, path: Key, below: str, shorts: Mapping[Key, str]) -> tuple[Any, Key]:
    """What a path ends in, a copy already, in the form, short or full, with a place for the part below; its path."""
    value, name = node[path[-1]], shorts.get(path)
    if name is None:
        return value, path
    if isinstance(value, dict):
        if not (below.isdecimal() and isinstance(value.get(name), list)):
            return value, path
        value[name] = copy.copy(value[name])
        return value[name], (*path, name)
    if not (isinstance(value, list) and below.isdecimal()):
        node[path[-1]] = {name: value}
    return node[path[-1]], path


def _place(node: Any, part: str, path: Key) -> str | int:
    # isdecimal alone also takes digits of other scripts.
    number = int(part) if part.isascii() and part.isdecimal() and len(part) < 9 else None
    if isinstance(node, dict):
        return part if number is None else str(number)
    if not isinstance(node, list):
        raise Unreadable(0, f'{dotted(path)}: not a mapping', f'set {dotted(path)} as a whole')
    if number is None or number >= len(node):
        raise Unreadable(0, f'{dotted(path)}: has no item {shown_part(part)}', f'write a number below {len(node)}')
    return number
