"""The syntax tree of a Python script, followed without running anything: classes, functions, and what calls make."""

import ast
import contextlib
import operator
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from simpar import errors, files

MOST_CALLS: Final = 10_000
"""Calls of a script's own functions and cells, so that a loop without an end is refused."""
IN_PLACE: Final = 'write what the script does in its place'
_FILE: Final = 10_000_000
"""Lines of a file that the script imports are counted from a multiple of this."""
_GLOBALS: Final = 'global '
"""In a scope: the names that belong to the module; no name of Python has a blank."""
_MOST: Final = 2**63
_COMPARES: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_SIGNS: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_OF_NUMBERS: Final[Mapping[str, Callable[..., Any]]] = {
    'int': int, 'float': float, 'str': str, 'bool': bool, 'abs': abs, 'min': min, 'max': max, 'round': round,
    'sum': sum,
}  # fmt: skip
_OF_LISTS: Final[Mapping[str, Callable[..., Any]]] = {
    'tuple': tuple, 'list': list, 'len': len, 'enumerate': lambda one: list(enumerate(one)),
    'zip': lambda *all_of: [tuple(one) for one in zip(*all_of, strict=False)], 'reversed': lambda one: list(one)[::-1],
}  # fmt: skip
_CHANGES: Final = frozenset({'append', 'extend', 'insert', 'pop', 'remove', 'clear', 'reverse', 'sort', 'update'})
"""Methods that change a list or a dict."""
_HIDDEN: Final = ('exec', 'eval', 'globals', 'locals', 'vars', 'delattr', '__import__')
_CONTAINERS: Final = ('CellList', 'SequentialCell')


@dataclass(eq=False)
class Thing:
    """What a call made that this reader knows by its name alone, e.g. ``nn.Dense``."""

    name: str
    line: int
    values: list[Any] = field(default_factory=list)
    named: dict[str, Any] = field(default_factory=dict)
    marks: dict[str, Any] = field(default_factory=dict)

    @property
    def last(self) -> str:
        """Its name without its module."""
        return self.name.rpartition('.')[2]

    def argument(self, name: str, order: Sequence[str], otherwise: Any = None) -> Any:
        """A value by its name, or by its place among the arguments."""
        return said_of(order, self.values, self.named).get(name, otherwise)


@dataclass(eq=False)
class Cell:
    """An object of a class of the script. Arguments: ``chain``, its class and those of the script that it extends."""

    of: ast.ClassDef
    chain: tuple[ast.ClassDef, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    marks: dict[str, Any] = field(default_factory=dict)

    def method(self, name: str) -> tuple[ast.FunctionDef, ast.ClassDef] | None:
        """A method, and the class that has it."""
        functions = ((line, one) for one in self.chain for line in one.body if isinstance(line, ast.FunctionDef))
        return next(((line, one) for line, one in functions if line.name == name), None)


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
REFUSED: Final = Unknown()
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
    """The end of a function. Arguments: what it returns."""


class _Turn(Exception):
    """The end of a loop's turn. Arguments: whether the loop ends."""


@dataclass(eq=False)
class Reader(ABC):
    """A script as it is followed.

    Arguments:
        name: of the file. folder: in which files lie that it imports. scope: its names.
        depth: how many cells are being called with tensors; what is not known may then not be passed over.
        changes: how often something was said of model or plan, so that a loop or a branch that says nothing is known.
        guards: how often it was not known whether a loop's turn ends.
        problems: what was not understood.
        others: names of files that it imports. modules: names of each.
        around: names around each class. fields: those in it. defaults: of arguments of each function.
        unsure: in how many branches we are of which it is not known whether they are taken.
    A subclass says what calls of a framework make, and what a layer does with tensors.
    """

    name: str
    folder: Path = Path()
    scope: Scope = field(default_factory=dict)
    problems: list[errors.Problem] = field(default_factory=list)
    calls: int = 0
    depth: int = 0
    changes: int = 0
    guards: int = 0
    unsure: int = 0
    others: list[str] = field(default_factory=list)
    modules: dict[str, Scope] = field(default_factory=dict)
    around: dict[int, Scope] = field(default_factory=dict)
    fields: dict[int, Scope] = field(default_factory=dict)
    defaults: dict[int, Scope] = field(default_factory=dict)

    @abstractmethod
    def of_module(self, name: str, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        """What a call of an imported name makes."""

    @abstractmethod
    def method(self, of: Method, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        """What a call of an attribute makes, which its object does not hold."""

    @abstractmethod
    def apply(self, of: Thing | Cell, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        """What a layer or a cell makes of tensors."""

    @abstractmethod
    def arithmetic(self, one: ast.BinOp | ast.AugAssign, left: Any, right: Any) -> Any:
        """What a sign makes of two values of which at least one is a tensor."""

    @abstractmethod
    def sets(self, owner: Any, name: str, value: Any, line: int) -> None:
        """An attribute of what is no cell of the script is set."""

    @abstractmethod
    def iterated(self, over: Any) -> None:
        """A loop goes through what is no list, e.g. a dataset."""

    def place(self, line: int) -> str:
        """File and line."""
        return f'{[self.name, *self.others][line // _FILE]}:{line % _FILE}'

    def refuse(self, line: int, what: str, instead: str = 'write it by layers of nn or ops') -> Unknown:
        """Name what is not understood."""
        self.problems.append(errors.Problem(self.place(line), what, instead))
        return REFUSED

    # statements

    def module(self, tree: ast.Module, scope: Scope) -> None:
        with contextlib.suppress(_Return, _Turn):
            self.run(tree.body, scope)

    def run(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        for statement in body:
            self.statement(statement, scope)

    def statement(self, one: ast.stmt, scope: Scope) -> None:
        if isinstance(one, (ast.Import, ast.ImportFrom)):
            self.imports(one, scope)
        elif isinstance(one, ast.ClassDef):
            self.defined(one, scope)
        elif isinstance(one, ast.FunctionDef):
            self.defaults[id(one)] = self.usual(one, scope)
            scope[one.name] = self.decorated(one.decorator_list, Function(one, scope), scope)
        elif isinstance(one, (ast.Assign, ast.AnnAssign)) and one.value:
            value = self.value(one.value, scope)
            for target in one.targets if isinstance(one, ast.Assign) else [one.target]:
                self.assign(target, value, scope)
        elif isinstance(one, ast.AugAssign):
            left, right = self.value(one.target, scope), self.value(one.value, scope)
            outcome = self.sign(one, left, right)
            if isinstance(left, list) and isinstance(outcome, list):
                left[:], outcome, self.changes = outcome, left, self.changes + 1
            self.assign(one.target, outcome, scope)
        elif isinstance(one, ast.Expr):
            self.value(one.value, scope)
        elif isinstance(one, ast.Return):
            raise _Return(self.value(one.value, scope) if one.value else None)
        elif isinstance(one, (ast.Break, ast.Continue)):
            raise _Turn(isinstance(one, ast.Break))
        elif isinstance(one, ast.If):
            self.branch(one, scope)
        elif isinstance(one, ast.With) and not self.depth:
            for item in one.items:
                if item.optional_vars is not None:
                    self.assign(item.optional_vars, UNKNOWN, scope)
            self.run(one.body, scope)
        elif isinstance(one, ast.Try) and not self.depth:
            self.run([*one.body, *one.orelse, *one.finalbody], scope)
        elif isinstance(one, ast.For):
            self.loop(one, scope)
        elif isinstance(one, ast.Global):
            scope[_GLOBALS] = {*scope.get(_GLOBALS, ()), *one.names}
        elif isinstance(one, ast.While) and not self.depth:
            self.maybe([one.body], one.lineno, scope, is_open=False)
        elif isinstance(one, ast.Match) and not self.depth:
            self.maybe([case.body for case in one.cases], one.lineno, scope)
        elif isinstance(one, ast.Delete) and all(isinstance(target, ast.Name) for target in one.targets):
            pass
        elif isinstance(one, (ast.Nonlocal, ast.Delete)):
            self.refuse(one.lineno, f'{type(one).__name__.lower()} is not read', IN_PLACE)
        elif self.depth and not isinstance(one, (ast.Pass, ast.Assert, ast.AnnAssign)):
            self.refuse(
                one.lineno, f'{type(one).__name__.lower()} in a network is not read', 'write its layers in full'
            )

    def defined(self, one: ast.ClassDef, scope: Scope) -> None:
        """A class: what its body and its methods' defaults say is known where it stands."""
        self.around[id(one)] = scope
        own = self.fields[id(one)] = Scope()
        for line in one.body:
            if isinstance(line, ast.FunctionDef):
                self.defaults[id(line)] = self.usual(line, {**scope, **own})
            elif isinstance(line, ast.Assign):
                value = self.value(line.value, {**scope, **own})
                own.update((target.id, value) for target in line.targets if isinstance(target, ast.Name))
            elif isinstance(line, ast.AnnAssign) and line.value and isinstance(line.target, ast.Name):
                own[line.target.id] = self.value(line.value, {**scope, **own})
        scope[one.name] = self.decorated(one.decorator_list, one, scope)

    def usual(self, of: ast.FunctionDef, scope: Scope) -> Scope:
        """Defaults of a function's arguments."""
        places = [argument.arg for argument in (*of.args.posonlyargs, *of.args.args)]
        defaults = dict(zip(places[::-1], of.args.defaults[::-1], strict=False))
        alone = zip(of.args.kwonlyargs, of.args.kw_defaults, strict=True)
        defaults |= {argument.arg: value for argument, value in alone if value is not None}
        return {name: self.value(value, scope) for name, value in defaults.items()}

    def decorated(self, decorators: Sequence[ast.expr], of: Any, scope: Scope) -> Any:
        """What functions of the script make of a function or a class; those of modules leave what it computes."""
        for one in reversed(decorators):
            by = self.value(one, scope)
            if isinstance(by, Function):
                of = self.function(by.of, [of], {}, by.scope)
        return of

    def imports(self, one: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        module = '' if isinstance(one, ast.Import) else f'{one.module or ""}.'
        own = self.beside(one.module) if isinstance(one, ast.ImportFrom) and one.module and one.level < 2 else None
        for alias in one.names:
            name = f'{module}{alias.name}'
            local_name = alias.asname or (alias.name if module else alias.name.partition('.')[0])
            if own is not None and alias.name == '*':
                scope.update(own)
            elif own is not None:
                scope[local_name] = own.get(alias.name, UNKNOWN)
            else:
                scope[local_name] = Module(name if alias.asname or module else local_name)

    def beside(self, module: str) -> Scope | None:
        """Names of a file beside the script; None where there is none."""
        if module in self.modules:
            return self.modules[module]
        path = self.folder / f'{module.replace(".", "/")}.py'
        if not files.is_file(path):
            return None
        self.others.append(str(path))
        scope = self.modules[module] = Scope()
        tree = tree_of(files.read_regular(path, 2**20).decode('utf-8', 'replace'), path)
        ast.increment_lineno(tree, _FILE * len(self.others))
        self.module(tree, scope)
        return scope

    def branch(self, one: ast.If, scope: Scope) -> None:
        test = one.test
        is_main = isinstance(test, ast.Compare) and _named(test.left, '__name__')
        truth = scope is self.scope if is_main else self.truth(self.value(test, scope))
        if isinstance(truth, Unknown) and self.depth:
            self.refuse(one.lineno, 'which branch the network takes is not known', 'write the branch in its place')
        elif isinstance(truth, Unknown):
            self.maybe([one.body, one.orelse], one.lineno, scope)
        else:
            self.run(one.body if truth else one.orelse, scope)

    def truth(self, value: Any) -> Any:
        """Whether a value counts as true; what is not known is not."""
        return UNKNOWN if isinstance(value, (Thing, Module, Method, Data)) else value

    def maybe(self, bodies: Sequence[Sequence[ast.stmt]], line: int, scope: Scope, *, is_open: bool = True) -> None:
        """Of bodies one is run, and which is not known: they may say nothing, and names that they set are not known.

        A body that leaves what it stands in is a guard. Arguments: ``is_open``, whether a body may be left out.
        """
        before, changes = dict(scope), self.changes
        for body in bodies:
            inner = Scope(before)
            self.unsure += is_open
            try:
                self.run(body, inner)
            except _Return as found:
                if found.args[0] is not None and not isinstance(found.args[0], Unknown):
                    self.refuse(line, 'whether this is what is returned is not known', IN_PLACE)
                continue
            except _Turn:
                self.guards += 1
            finally:
                self.unsure -= is_open
            scope.update(_set_since(before, inner))
        if self.changes != changes:
            what = 'whether this is done is not known, and model or plan hang on it'
            self.refuse(line, what, IN_PLACE + ', or --set NAME=value for an option or a variable of the environment')

    def loop(self, one: ast.For, scope: Scope) -> None:
        """Each turn of what is known. A range that says nothing of model or plan stands for epochs, and has one."""
        over = self.value(one.iter, scope)
        parts = self.parts(over)
        if parts is None:
            self.iterated(over)
            if self.depth:
                self.refuse(one.lineno, 'how often this loop turns is not known', IN_PLACE)
                return
        before, changes, guards = dict(scope), self.changes, self.guards
        is_cut = parts is None
        for turn in [UNKNOWN] if parts is None else parts[:MOST_CALLS]:
            self.assign(one.target, turn, scope)
            try:
                self.run(one.body, scope)
            except _Turn as end:
                if end.args[0]:
                    break
            if isinstance(over, range) and self.changes == changes and not (self.depth or 'self' in scope):
                is_cut = True
                break
        # Turns of what a call made, e.g. of a dataset, are alike.
        is_open = parts is None and not isinstance(over, Thing)
        if self.changes != changes and (is_open or self.guards != guards):
            self.refuse(one.lineno, 'over what this loop goes is not known, and model or plan hang on it', IN_PLACE)
        if is_cut:
            # Other turns may set them otherwise.
            scope.update(_set_since(before, scope))

    def parts(self, over: Any) -> list[Any] | None:
        """What a list, a range or a container of cells holds; the list itself, so that it can grow."""
        if isinstance(over, Thing) and over.last in _CONTAINERS:
            if len(over.values) == 1 and isinstance(over.values[0], (list, tuple)):
                over.values = list(over.values[0])
            return over.values
        if isinstance(over, list):
            return over
        return list(over) if isinstance(over, (tuple, range)) and not over[MOST_CALLS:] else None

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope[target.id] = value
            if target.id in scope.get(_GLOBALS, ()):
                self.scope[target.id] = value
                self.changes += not isinstance(value, Unknown)
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, scope)
            is_method = isinstance(value, Function) or target.attr in ('construct', '__init__', '__call__')
            if is_method and isinstance(owner, (Cell, ast.ClassDef)) and 'self' not in scope:
                self.refuse(target.lineno, f'.{target.attr} is set anew, which is not followed', IN_PLACE)
            elif isinstance(owner, ast.ClassDef):
                self.changes += 1
                self.fields[id(owner)][target.attr] = value
            elif isinstance(owner, Cell) and target.attr not in ('pipeline_stage', 'pipeline_segment'):
                self.changes += 1
                owner.attributes[target.attr] = value
            else:
                self.sets(owner, target.attr, value, target.lineno)
        elif isinstance(target, ast.Subscript):
            self.put(target, value, scope)
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = list(value) if isinstance(value, (tuple, list)) else [UNKNOWN] * len(target.elts)
            for part, one in zip(target.elts, parts, strict=False):
                self.assign(part, one, scope)

    def put(self, target: ast.Subscript, value: Any, scope: Scope) -> None:
        """Set an element of a list or a dict."""
        owner, index = self.value(target.value, scope), self.value(target.slice, scope)
        parts = owner if isinstance(owner, dict) else self.parts(owner)
        is_inside = isinstance(index, int) and parts and -len(parts) <= index < len(parts)
        if isinstance(parts, dict) and isinstance(index, (int, str)):
            parts[index] = value
            self.changes += not isinstance(value, Unknown)
        elif parts and is_inside and isinstance(owner, (list, Thing)):
            parts[index] = value
            self.changes += 1
        elif self.depth or parts is not None:
            self.refuse(target.lineno, 'which element this sets is not known', IN_PLACE)

    # expressions

    def value(self, one: ast.expr | None, scope: Scope) -> Any:
        if one is None:
            return None
        if isinstance(one, ast.Constant):
            return one.value
        if isinstance(one, ast.Name):
            return scope.get(one.id, self.scope.get(one.id, UNKNOWN))
        if isinstance(one, (ast.Tuple, ast.List)):
            elements = list(self.spread(one.elts, scope))
            return tuple(elements) if isinstance(one, ast.Tuple) else elements
        if isinstance(one, ast.Dict):
            return self.dictionary(one, scope)
        if isinstance(one, ast.BinOp):
            return self.sign(one, self.value(one.left, scope), self.value(one.right, scope))
        if isinstance(one, ast.UnaryOp):
            found_one = self.truth(self.value(one.operand, scope))
            if isinstance(found_one, (Unknown, Cell)) or not isinstance(one.op, (ast.USub, ast.Not)):
                return UNKNOWN
            return not found_one if isinstance(one.op, ast.Not) else -found_one if _is_number(found_one) else UNKNOWN
        if isinstance(one, ast.Attribute):
            return self.attribute(one, scope)
        if isinstance(one, ast.Subscript):
            return self.element(one, scope)
        if isinstance(one, ast.Call):
            return self.call(one, scope)
        return self.rarer(one, scope)

    def rarer(self, one: ast.expr, scope: Scope) -> Any:
        """Values of lists made by a loop, comparisons, choices and functions without a name."""
        if isinstance(one, (ast.ListComp, ast.GeneratorExp)) and len(one.generators) == 1:
            return self.listed(one.elt, one.generators[0], scope)
        if isinstance(one, ast.Compare) and len(one.ops) == 1:
            return _compared(one.ops[0], self.value(one.left, scope), self.value(one.comparators[0], scope))
        if isinstance(one, ast.BoolOp):
            for part in one.values:
                value = self.truth(self.value(part, scope))
                if isinstance(value, Unknown) or bool(value) == isinstance(one.op, ast.Or):
                    return value
            return value
        if isinstance(one, ast.IfExp):
            test = self.truth(self.value(one.test, scope))
            return UNKNOWN if isinstance(test, Unknown) else self.value(one.body if test else one.orelse, scope)
        if isinstance(one, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.FormattedValue) else part for part in one.values)
            texts = [self.value(part, scope) for part in parts]
            is_known = all(isinstance(text, (int, str)) and len(str(text)) < MOST_CALLS for text in texts)
            is_plain = all(getattr(part, 'format_spec', None) is None for part in one.values)
            return ''.join(map(str, texts)) if is_known and is_plain else UNKNOWN
        if isinstance(one, ast.Lambda):
            body = ast.Return(one.body, lineno=one.lineno, col_offset=0)
            return Function(ast.FunctionDef('lambda', one.args, [body], [], lineno=one.lineno, col_offset=0), scope)
        return UNKNOWN

    def dictionary(self, one: ast.Dict, scope: Scope) -> Any:
        """A dict whose keys are known."""
        entries: dict[Any, Any] = {}
        for key, value in zip(one.keys, one.values, strict=True):
            name, inner = self.value(key, scope), self.value(value, scope)
            if key is None and isinstance(inner, dict):
                entries |= inner
            elif isinstance(name, (int, str)):
                entries[name] = inner
            else:
                return UNKNOWN
        return entries

    def listed(self, of: ast.expr, over: ast.comprehension, scope: Scope) -> Any:
        """A list that a loop makes, of the turns that its conditions leave."""
        parts = self.parts(self.value(over.iter, scope))
        elements = []
        for turn in parts or ():
            inner = dict(scope)
            self.assign(over.target, turn, inner)
            left = [self.truth(self.value(test, inner)) for test in over.ifs]
            if any(isinstance(one, Unknown) for one in left):
                return UNKNOWN
            if all(left):
                elements.append(self.value(of, inner))
        return UNKNOWN if parts is None else elements

    def spread(self, parts: Sequence[ast.expr], scope: Scope) -> Iterator[Any]:
        """Values of a list or of arguments, with what a star takes apart."""
        for part in parts:
            if not isinstance(part, ast.Starred):
                yield self.value(part, scope)
                continue
            elements = self.parts(self.value(part.value, scope))
            yield from [UNKNOWN] if elements is None else elements

    def element(self, one: ast.Subscript, scope: Scope) -> Any:
        """An element of a list, a dict or a container of cells; a part of a list."""
        owner = self.value(one.value, scope)
        if isinstance(one.slice, ast.Slice):
            ends = [self.value(end, scope) for end in (one.slice.lower, one.slice.upper, one.slice.step)]
            parts = self.parts(owner)
            is_known = parts is not None and all(end is None or isinstance(end, int) for end in ends) and ends[2] != 0
            return parts[slice(*ends)] if is_known and parts is not None else UNKNOWN
        index = self.value(one.slice, scope)
        if isinstance(owner, dict):
            return owner.get(index, UNKNOWN) if isinstance(index, (int, str)) else UNKNOWN
        parts = self.parts(owner)
        is_inside = parts is not None and isinstance(index, int) and -len(parts) <= index < len(parts)
        return parts[index] if is_inside and parts is not None else UNKNOWN

    def sign(self, one: ast.BinOp | ast.AugAssign, left: Any, right: Any) -> Any:
        if isinstance(left, Data) or isinstance(right, Data):
            return self.arithmetic(one, left, right)
        if isinstance(one.op, ast.Add) and isinstance(left, (list, tuple)) and isinstance(right, type(left)):
            both = [*left, *right][: MOST_CALLS + 1]
            return UNKNOWN if len(both) > MOST_CALLS else both if isinstance(left, list) else tuple(both)
        if isinstance(one.op, ast.Mult) and isinstance(left, (list, tuple)) and isinstance(right, int):
            return left * right if len(left) * right <= MOST_CALLS else UNKNOWN
        texts = isinstance(left, str) and isinstance(right, str) and isinstance(one.op, ast.Add)
        if (texts or (_is_number(left) and _is_number(right))) and type(one.op) in _SIGNS:
            if isinstance(one.op, ast.Pow) and not (abs(left) <= _MOST and 0 <= right <= 64):
                return UNKNOWN
            try:
                outcome = _SIGNS[type(one.op)](left, right)
            except (TypeError, ArithmeticError):
                return UNKNOWN
            return outcome if (len(outcome) < MOST_CALLS if texts else abs(outcome) < _MOST) else UNKNOWN
        return UNKNOWN

    def attribute(self, one: ast.Attribute, scope: Scope) -> Any:
        owner = self.value(one.value, scope)
        if isinstance(owner, Module):
            own = self.beside(owner.name) if '.' not in owner.name else None
            return Module(f'{owner.name}.{one.attr}') if own is None else own.get(one.attr, UNKNOWN)
        if isinstance(owner, Cell) and one.attr in owner.attributes:
            return owner.attributes[one.attr]
        if isinstance(owner, (Cell, ast.ClassDef)):
            for of in owner.chain if isinstance(owner, Cell) else self.chain(owner):
                if one.attr in self.fields[id(of)]:
                    return self.fields[id(of)][one.attr]
        if isinstance(owner, Thing) and one.attr in owner.marks.get('options', {}):
            return owner.marks['options'][one.attr]
        return Method(owner, one.attr)

    def call(self, one: ast.Call, scope: Scope) -> Any:
        if isinstance(one.func, ast.Attribute) and _is_super(one.func.value):
            return self.above(one.func.attr, one, scope)
        of = self.value(one.func, scope)
        values, named = self.arguments(one, scope)
        self.calls += 1
        if self.calls > MOST_CALLS:
            self.refuse(one.lineno, 'more calls than are read', 'write a shorter one')
            raise _Return(UNKNOWN)
        answer = self.invoke(of, one.lineno, values, named)
        if answer is not NotImplemented:
            return answer
        name = one.func.id if isinstance(one.func, ast.Name) else ''
        if name in ('getattr', 'setattr') and len(values) > 1:
            return self.by_name(one, values, scope)
        reads = has_data(*values, *named.values())
        if name and name not in scope and name not in self.scope and (not reads or name == 'print'):
            return self.builtin(name, one.lineno, values)
        if reads:
            return self.refuse(one.lineno, 'a call of tensors that is not known')
        return UNKNOWN

    def invoke(self, of: Any, line: int, values: list[Any], named: dict[str, Any]) -> Any:
        """Call what is known; ``NotImplemented`` where nothing is."""
        if isinstance(of, ast.ClassDef):
            return self.cell(of, values, named)
        if isinstance(of, Function):
            return self.function(of.of, values, named, of.scope)
        if isinstance(of, Module):
            return self.of_module(of.name, line, values, named)
        if isinstance(of, Method):
            is_of_list = isinstance(of.owner, (list, dict)) or self.parts(of.owner) is not None
            answer = self.of_list(of, line, values) if is_of_list else NotImplemented
            return self.method(of, line, values, named) if answer is NotImplemented else answer
        if isinstance(of, Thing) and of.name == 'functools.partial' and of.values:
            return self.invoke(of.values[0], line, [*of.values[1:], *values], {**of.named, **named})
        return self.apply(of, line, values, named) if isinstance(of, (Thing, Cell)) else NotImplemented

    def arguments(self, one: ast.Call, scope: Scope) -> tuple[list[Any], dict[str, Any]]:
        named: dict[str, Any] = {}
        for word in one.keywords:
            value = self.value(word.value, scope)
            if word.arg:
                named[word.arg] = value
            elif isinstance(value, dict):
                named |= {str(key): inner for key, inner in value.items()}
            else:
                # Of these nothing is known, not even their names.
                named['**'] = UNKNOWN
        return list(self.spread(one.args, scope)), named

    def of_list(self, of: Method, line: int, values: list[Any]) -> Any:
        """A method of a list, a dict or a container of cells; ``NotImplemented`` where it is of the framework."""
        parts = of.owner if isinstance(of.owner, dict) else self.parts(of.owner)
        one = values[0] if values else UNKNOWN
        if isinstance(parts, dict):
            if of.name == 'get' and isinstance(one, (int, str)):
                return parts.get(one, values[1] if len(values) > 1 else UNKNOWN)
            if of.name in ('items', 'keys', 'values'):
                return list(getattr(parts, of.name)())
            if of.name == 'update' and isinstance(one, dict):
                parts.update(one)
                self.changes += 1
                return None
        elif isinstance(of.owner, (list, Thing)) and parts is not None and of.name in _CHANGES:
            more = self.parts(one)
            if of.name == 'append' and values:
                parts.append(one)
            elif of.name == 'extend' and more is not None and len(parts) + len(more) <= MOST_CALLS:
                parts.extend(more)
            elif of.name == 'insert' and isinstance(one, int) and len(values) > 1:
                parts.insert(one, values[1])
            else:
                return self.refuse(line, f'.{of.name}() of this list is not read', IN_PLACE)
            self.changes += 1
            return of.owner
        return (
            self.refuse(line, f'.{of.name}() of this is not read', IN_PLACE) if of.name in _CHANGES else NotImplemented
        )

    def by_name(self, one: ast.Call, values: list[Any], scope: Scope) -> Any:
        """``getattr`` and ``setattr`` with a name that the script says."""
        name = values[1]
        if not isinstance(name, str):
            return self.refuse(one.lineno, 'which attribute this is, is not known', IN_PLACE)
        where = ast.Attribute(one.args[0], name, ast.Load(), lineno=one.lineno, col_offset=0)
        if _named(one.func, 'setattr') and len(values) > 2:
            self.assign(where, values[2], scope)
            return None
        return self.attribute(where, scope)

    def builtin(self, name: str, line: int, values: Sequence[Any]) -> Any:
        if name in _HIDDEN:
            return self.refuse(line, f'what {name}() does is not followed', IN_PLACE)
        if name == 'map' and len(values) == 2 and (parts := self.parts(values[1])) is not None:
            return [self.invoke(values[0], line, [part], {}) for part in parts]
        if name == 'range' and values and all(isinstance(value, int) for value in values):
            return range(*values) if len(values) < 3 or values[2] else UNKNOWN
        lists = [part for part in map(self.parts, values) if part is not None]
        try:
            if name in _OF_LISTS and values and len(lists) == len(values):
                return _OF_LISTS[name](*lists)
            if name in ('sum', 'min', 'max') and len(lists) == len(values) == 1 and all(map(_is_number, lists[0])):
                return _OF_NUMBERS[name](lists[0])
            if name in _OF_NUMBERS and values and all(isinstance(value, (int, float, str)) for value in values):
                return _OF_NUMBERS[name](*values)
        except (TypeError, ValueError, OverflowError):
            return UNKNOWN
        return [] if name in ('list', 'tuple') and not values else UNKNOWN

    def function(
        self, of: ast.FunctionDef, values: Sequence[Any], named: Mapping[str, Any], scope: Mapping[str, Any]
    ) -> Any:
        places = [argument.arg for argument in (*of.args.posonlyargs, *of.args.args)]
        alone = [argument.arg for argument in of.args.kwonlyargs]
        inner: Scope = dict(scope) | dict.fromkeys((*places, *alone), UNKNOWN)
        inner.pop(_GLOBALS, None)
        inner |= self.defaults[id(of)] if id(of) in self.defaults else self.usual(of, dict(scope))
        inner |= dict(zip(places, values, strict=False))
        inner |= {name: value for name, value in named.items() if name in inner or of.args.kwarg is None}
        if of.args.vararg:
            inner[of.args.vararg.arg] = tuple(values[len(places) :])
        if of.args.kwarg:
            inner[of.args.kwarg.arg] = {name: value for name, value in named.items() if name not in (*places, *alone)}
        try:
            self.run(of.body, inner)
        except _Return as found:
            return found.args[0]
        return None

    # classes

    def chain(self, of: ast.ClassDef, depth: int = 0) -> tuple[ast.ClassDef, ...]:
        """A class, and those of the script that it extends."""
        bases = [self.value(base, self.around.get(id(of), self.scope)) for base in of.bases]
        above = (one for base in bases if isinstance(base, ast.ClassDef) for one in self.chain(base, depth + 1))
        return (of, *dict.fromkeys(above)) if depth < 32 else (of,)

    def cell(self, of: ast.ClassDef, values: Sequence[Any], named: Mapping[str, Any]) -> Cell:
        made = Cell(of, self.chain(of))
        if method := made.method('__init__'):
            self.bound(made, method, values, named)
        return made

    def bound(
        self, owner: Cell, method: tuple[ast.FunctionDef, ast.ClassDef], values: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """Call a method of a cell, or a static one."""
        function, of = method
        is_static = any(_named(one, 'staticmethod') for one in function.decorator_list)
        around = {**self.around.get(id(of), self.scope), '__class__': of}
        return self.function(function, [*([] if is_static else [owner]), *values], named, around)

    def above(self, name: str, one: ast.Call, scope: Scope) -> Any:
        """``super().name(…)``: of the next class of the script that has it; nothing of what a framework's has."""
        owner, of = scope.get('self', UNKNOWN), scope.get('__class__')
        values, named = self.arguments(one, scope)
        if not isinstance(owner, Cell) or of not in owner.chain:
            return UNKNOWN
        rest = Cell(owner.of, owner.chain[owner.chain.index(of) + 1 :])
        method = rest.method(name)
        if method is None and has_data(*values):
            return self.refuse(one.lineno, f'super().{name}() is not of this script')
        return self.bound(owner, method, values, named) if method else UNKNOWN


def tree_of(text: str, path: Path) -> ast.Module:
    """The syntax tree of a file. Raises ``ScheduleError`` where it is no Python."""
    try:
        with warnings.catch_warnings():
            # Of the script's own style; what it means is the same.
            warnings.simplefilter('ignore', SyntaxWarning)
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, why = getattr(error, 'lineno', None) or 1, str(error) or 'it nests too deep'
        raise errors.ScheduleError(errors.Problem(f'{path}:{line}', f'is no Python: {why}', 'check the file')) from None


def said_of(order: Sequence[str], values: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a call by their names. Arguments: ``order``, the names of those that are said by their place."""
    return {**dict(zip(order, values, strict=False)), **named}


def last(value: Any) -> str:
    """``ms.ParallelMode.AUTO_PARALLEL`` as ``AUTO_PARALLEL``; the name of a call; any other value as a text."""
    if isinstance(value, (Module, Method, Thing)):
        return value.name.rpartition('.')[2]
    if isinstance(value, (Unknown, Cell, Function)):
        return 'which is not known'
    return str(value).rpartition('.')[2] if isinstance(value, str) else str(value)


def has_data(*values: Any) -> bool:
    return any(isinstance(value, Data) for value in values)


def _set_since(before: Scope, scope: Scope) -> Scope:
    """Names that were set, of which it is not known to what."""
    names = (name for name in scope if name not in before or scope[name] is not before[name])
    return {name: UNKNOWN for name in names if name != _GLOBALS}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _named(one: ast.expr, name: str) -> bool:
    return isinstance(one, ast.Name) and one.id == name


def _is_super(one: ast.expr) -> bool:
    return isinstance(one, ast.Call) and _named(one.func, 'super')


def _compared(sign: ast.cmpop, left: Any, right: Any) -> Any:
    """Of numbers and texts, and with None."""
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return UNKNOWN
    if isinstance(sign, (ast.Is, ast.IsNot)) and (left is None or right is None):
        other = right if left is None else left
        # What a call of a class makes is never None.
        is_made = isinstance(other, Thing) and other.last[:1].isupper()
        is_open = isinstance(other, (Method, Module, Thing)) and not is_made
        return UNKNOWN if is_open else (left is right) == isinstance(sign, ast.Is)
    types = (int, float, str, type(None))
    try:
        known_values = isinstance(left, types) and isinstance(right, types)
        return _COMPARES[type(sign)](left, right) if known_values and type(sign) in _COMPARES else UNKNOWN
    except TypeError:
        return UNKNOWN
