"""YAML text to plain values with a line for each, by YAML 1.2's rules, bounded in size, depth and repetition.

Built on PyYAML's events: no tag can build an object, and no input can make it recurse or grow without limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import yaml
from yaml.reader import Reader

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
    found = _UNPRINTABLE.search(text)
    if found:
        line = text.count('\n', 0, found.start()) + 1
        raise Unreadable(line, f'holds the character U+{ord(found[0]):04X}, so it is no YAML', 'write text in UTF-8')


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
