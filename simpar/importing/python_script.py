"""The syntax tree of a Python script, followed without running anything: classes, functions, and what calls make."""

import ast
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from simpar.errors import Problem

MOST_CALLS: Final = 10_000
"""Calls of a script's own functions and cells, so that a loop without an end is refused."""
BY_LAYERS: Final = 'write it by layers of nn or ops'
_COMPARES: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_SIGNS: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod,
}  # fmt: skip


@dataclass(eq=False)
class Thing:
    """What a call made that this reader knows by its name alone, e.g. ``nn.Dense``."""

    name: str
    line: int
    values: list[Any] = field(default_factory=list)
    named: dict[str, Any] = field(default_factory=dict)
    marks: dict[str, Any] = field(default_factory=dict)

    def argument(self, name: str, order: Sequence[str], otherwise: Any = None) -> Any:
        """A value by its name, or by its place among the arguments."""
        if name in self.named:
            return self.named[name]
        place = order.index(name) if name in order else len(self.values)
        return self.values[place] if place < len(self.values) else otherwise


@dataclass(eq=False)
class Cell:
    """An object of a class of the script."""

    of: ast.ClassDef
    attributes: dict[str, Any] = field(default_factory=dict)
    marks: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Data:
    """A tensor: the name of the layer that makes it; ``x``, the input."""

    name: str


@dataclass(frozen=True)
class Function:
    """A function of the script. Arguments: ``scope``, the names around it."""

    of: ast.FunctionDef
    scope: Mapping[str, Any]


class Unknown:
    """What is not known and may not matter."""


UNKNOWN: Final = Unknown()
Scope = dict[str, Any]


@dataclass(frozen=True)
class Module:
    """A name of a module, as the script imported it."""

    name: str


@dataclass(frozen=True)
class Method:
    """An attribute of an object that the object does not hold."""

    owner: Any
    name: str


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


@dataclass(eq=False)
class Reader(ABC):
    """A script as it is followed.

    Arguments:
        name: of the file. scope: its names.
        depth: how many cells are being called with tensors; what is not known may then not be passed over.
        problems: what was not understood.
    A subclass says what calls of a framework make, and what a layer does with tensors.
    """

    name: str
    scope: Scope = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    calls: int = 0
    depth: int = 0

    @abstractmethod
    def of_module(self, name: str, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        """What a call of an imported name makes."""

    @abstractmethod
    def method(self, of: Method, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        """What a call of an attribute makes, which its object does not hold."""

    @abstractmethod
    def apply(self, of: Thing | Cell, line: int, values: list[Any]) -> Any:
        """What a layer or a cell makes of tensors."""

    @abstractmethod
    def emit(self, kind: str, keys: Mapping[str, Any], data: Sequence[Data], line: int, name: str) -> Data:
        """A layer more, and its result."""

    def refuse(self, line: int, what: str, instead: str) -> Unknown:
        """Name what is not understood."""
        self.problems.append(Problem(f'{self.name}:{line}', what, instead))
        return UNKNOWN

    # statements

    def module(self, tree: ast.Module) -> None:
        try:
            self.run(tree.body, self.scope)
        except _Return:
            pass
        except RecursionError:
            self.refuse(1, 'functions call one another without an end', 'write the network in full')

    def run(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        for statement in body:
            self.statement(statement, scope)

    def statement(self, one: ast.stmt, scope: Scope) -> None:
        if isinstance(one, (ast.Import, ast.ImportFrom)):
            self.imports(one, scope)
        elif isinstance(one, ast.ClassDef):
            scope[one.name] = one
        elif isinstance(one, ast.FunctionDef):
            scope[one.name] = Function(one, scope)
        elif isinstance(one, ast.Assign):
            value = self.value(one.value, scope)
            for target in one.targets:
                self.assign(target, value, scope)
        elif isinstance(one, ast.AnnAssign) and one.value:
            self.assign(one.target, self.value(one.value, scope), scope)
        elif isinstance(one, ast.AugAssign):
            found = self.sign(one, self.value(one.target, scope), self.value(one.value, scope))
            self.assign(one.target, found, scope)
        elif isinstance(one, ast.Expr):
            self.value(one.value, scope)
        elif isinstance(one, ast.Return):
            raise _Return(self.value(one.value, scope) if one.value else None)
        elif isinstance(one, ast.If):
            self.branch(one, scope)
        elif isinstance(one, (ast.With, ast.Try)):
            self.run(one.body, scope)
        elif isinstance(one, ast.For):
            self.loop(one, scope)
        elif self.depth and not isinstance(one, (ast.Pass, ast.Assert, ast.AnnAssign)):
            self.refuse(
                one.lineno, f'{type(one).__name__.lower()} in a network is not read', 'write its layers in full'
            )

    def imports(self, one: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        module = '' if isinstance(one, ast.Import) else f'{one.module or ""}.'
        for alias in one.names:
            name = f'{module}{alias.name}'
            known = alias.asname or (alias.name if module else alias.name.partition('.')[0])
            scope[known] = Module(name if alias.asname or module else known)

    def branch(self, one: ast.If, scope: Scope) -> None:
        test = one.test
        is_main = isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == '__name__'
        taken = True if is_main else self.value(test, scope)
        if isinstance(taken, Unknown) and self.depth:
            self.refuse(one.lineno, 'which branch the network takes is not known', 'write the branch in its place')
            return
        if isinstance(taken, Unknown):
            # Both sides may set up what is asked about here; the first is how a script is written to run.
            self.run(one.body, scope)
            return
        self.run(one.body if taken else one.orelse, scope)

    def loop(self, one: ast.For, scope: Scope) -> None:
        """Of a known list each turn; of data one, as a training loop's turns are alike."""
        turns = self.turns(one.iter, scope)
        # A range is counted where a network is made, and stands for epochs where it is trained.
        for turn in turns if 'self' in scope else turns[:1]:
            self.assign(one.target, turn, scope)
            self.run(one.body, scope)

    def turns(self, one: ast.expr, scope: Scope) -> list[Any]:
        """What a loop goes through; one turn of what is not known."""
        over = self.value(one, scope)
        if isinstance(over, Thing) and over.name.endswith('CellList'):
            over = over.values[0] if len(over.values) == 1 and isinstance(over.values[0], list) else over.values
        return list(over)[:MOST_CALLS] if isinstance(over, (list, tuple, range)) else [UNKNOWN]

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, scope)
            if target.attr in ('pipeline_stage', 'pipeline_segment') and isinstance(owner, (Thing, Cell)):
                owner.marks[target.attr] = value
            elif isinstance(owner, Cell):
                owner.attributes[target.attr] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = list(value) if isinstance(value, (tuple, list)) else [UNKNOWN] * len(target.elts)
            for part, one in zip(target.elts, parts, strict=False):
                self.assign(part, one, scope)

    # expressions

    def value(self, one: ast.expr | None, scope: Scope) -> Any:
        if one is None:
            return None
        if isinstance(one, ast.Constant):
            return one.value
        if isinstance(one, ast.Name):
            return scope.get(one.id, self.scope.get(one.id, UNKNOWN))
        if isinstance(one, (ast.Tuple, ast.List)):
            found = [self.value(part, scope) for part in one.elts]
            return tuple(found) if isinstance(one, ast.Tuple) else found
        if isinstance(one, ast.Dict):
            pairs = zip(one.keys, one.values, strict=True)
            return {
                self.value(key, scope): self.value(value, scope)
                for key, value in pairs
                if isinstance(key, ast.Constant)
            }
        if isinstance(one, ast.BinOp):
            return self.sign(one, self.value(one.left, scope), self.value(one.right, scope))
        if isinstance(one, ast.UnaryOp):
            found = self.value(one.operand, scope)
            if isinstance(found, (Unknown, Thing, Cell, Data)):
                return UNKNOWN
            return -found if isinstance(one.op, ast.USub) else not found if isinstance(one.op, ast.Not) else UNKNOWN
        if isinstance(one, ast.Attribute):
            return self.attribute(one, scope)
        if isinstance(one, ast.Call):
            return self.call(one, scope)
        if isinstance(one, ast.ListComp) and len(one.generators) == 1 and not one.generators[0].ifs:
            found = []
            for turn in self.turns(one.generators[0].iter, scope):
                inner = dict(scope)
                self.assign(one.generators[0].target, turn, inner)
                found.append(self.value(one.elt, inner))
            return found
        if isinstance(one, ast.Compare) and len(one.ops) == 1:
            return _compared(one.ops[0], self.value(one.left, scope), self.value(one.comparators[0], scope))
        if isinstance(one, ast.IfExp):
            test = self.value(one.test, scope)
            return UNKNOWN if isinstance(test, Unknown) else self.value(one.body if test else one.orelse, scope)
        return UNKNOWN

    def sign(self, one: ast.BinOp | ast.AugAssign, left: Any, right: Any) -> Any:
        if isinstance(left, Data) or isinstance(right, Data):
            if isinstance(one.op, (ast.Add, ast.Mult)) and isinstance(left, Data) and isinstance(right, Data):
                return self.emit(
                    'add' if isinstance(one.op, ast.Add) else 'multiply', {}, [left, right], one.lineno, ''
                )
            return self.refuse(one.lineno, 'this arithmetic of tensors is not known', BY_LAYERS)
        known = (int, float, str)
        if isinstance(left, known) and isinstance(right, known) and type(one.op) in _SIGNS:
            try:
                return _SIGNS[type(one.op)](left, right)
            except (TypeError, ArithmeticError):
                return UNKNOWN
        return UNKNOWN

    def attribute(self, one: ast.Attribute, scope: Scope) -> Any:
        owner = self.value(one.value, scope)
        if isinstance(owner, Module):
            return Module(f'{owner.name}.{one.attr}')
        if isinstance(owner, Cell):
            return owner.attributes.get(one.attr, Method(owner, one.attr))
        return Method(owner, one.attr)

    def call(self, one: ast.Call, scope: Scope) -> Any:
        of = self.value(one.func, scope)
        values = [self.value(part, scope) for part in one.args]
        named = {word.arg: self.value(word.value, scope) for word in one.keywords if word.arg}
        self.calls += 1
        if self.calls > MOST_CALLS:
            self.problems.append(
                Problem(f'{self.name}:{one.lineno}', 'more calls than are read', 'write a shorter one')
            )
            raise _Return(UNKNOWN)
        if isinstance(of, ast.ClassDef):
            return self.cell(of, values, named)
        if isinstance(of, Function):
            return self.function(of.of, values, named, of.scope)
        if isinstance(of, Module):
            return self.of_module(of.name, one.lineno, values, named)
        if isinstance(of, Method):
            return self.method(of, one.lineno, values, named)
        if isinstance(of, (Thing, Cell)):
            return self.apply(of, one.lineno, values)
        if isinstance(one.func, ast.Name) and one.func.id in ('range', 'len', 'int', 'tuple', 'list', 'super'):
            return _builtin(one.func.id, values)
        if any(isinstance(value, Data) for value in values):
            return self.refuse(one.lineno, 'a call of tensors that is not known', BY_LAYERS)
        return UNKNOWN

    def function(
        self, of: ast.FunctionDef, values: Sequence[Any], named: Mapping[str, Any], scope: Mapping[str, Any]
    ) -> Any:
        names = [argument.arg for argument in (*of.args.args, *of.args.kwonlyargs)]
        defaults = dict(zip([one.arg for one in of.args.args][::-1], of.args.defaults[::-1], strict=False))
        inner: Scope = dict(scope) | dict.fromkeys(names, UNKNOWN)
        inner |= {name: self.value(value, self.scope) for name, value in defaults.items()}
        inner |= dict(zip(names, values, strict=False)) | dict(named)
        try:
            self.run(of.body, inner)
        except _Return as found:
            return found.value
        return None

    def cell(self, of: ast.ClassDef, values: Sequence[Any], named: Mapping[str, Any]) -> Cell:
        made = Cell(of)
        start = method_of(made, '__init__')
        if start:
            self.function(start, [made, *values], named, {})
        return made


def method_of(of: Cell, name: str) -> ast.FunctionDef | None:
    return next((one for one in of.of.body if isinstance(one, ast.FunctionDef) and one.name == name), None)


def _compared(sign: ast.cmpop, left: Any, right: Any) -> Any:
    """Of numbers and texts, and with None."""
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return UNKNOWN
    if isinstance(sign, (ast.Is, ast.IsNot)) and (left is None or right is None):
        return (left is right) == isinstance(sign, ast.Is)
    known = (int, float, str, type(None))
    try:
        known_values = isinstance(left, known) and isinstance(right, known)
        return _COMPARES[type(sign)](left, right) if known_values and type(sign) in _COMPARES else UNKNOWN
    except TypeError:
        return UNKNOWN


def _builtin(name: str, values: Sequence[Any]) -> Any:
    if name == 'range' and values and all(isinstance(value, int) for value in values):
        return range(*values)
    if name in ('tuple', 'list') and values and isinstance(values[0], (list, tuple, range)):
        return list(values[0]) if name == 'list' else tuple(values[0])
    if name == 'len' and isinstance(values[0], (list, tuple, range)):
        return len(values[0])
    return int(values[0]) if name == 'int' and isinstance(values[0], (int, float)) else UNKNOWN
