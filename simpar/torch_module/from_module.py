"""``from_module``: a torch module and example inputs become a model; ``--module``: the function that makes both."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from simpar.errors import RunFailed, ScheduleError, refusal
from simpar.model.model import FromModule
from simpar.torch_module import build, export, graph, rules

if TYPE_CHECKING:
    import torch

HERE: Final = '-'
"""The place of operators that this process has defined."""
RETURNS: Final = 'return (module, inputs), or (module, inputs, output)'
OUTPUTS: Final = ('logits', 'last_hidden_state', 'pooler_output')
"""Of a result with names, what the loss is put on where nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Imported:
    """A module as a model.

    Arguments:
        model: for a ``Workload``; plain data.
        weights: by the names of programs, what weights begin as and constants are; empty on the meta device.
        notes: what was left out.
        own: operators beside aten's that may be called, behind the function whose package has them; empty: none.
    """

    model: FromModule
    weights: Mapping[str, torch.Tensor]
    notes: tuple[str, ...] = ()
    own: str = ''

    @property
    def graph(self) -> str:
        """What ``load_case`` takes as ``module``."""
        return self.model.graph_text


def from_module(
    module: torch.nn.Module, inputs: Any, *, output: str = '', ops: Sequence[str] = (), reference: str = HERE
) -> Imported:
    """A model whose operators are those that a module calls, with its weights.

    Arguments:
        module: with real weights to train it, or on the meta device to predict it. Dropout and batch norm are as its
            ``training`` says.
        inputs: examples: a tensor, a tuple of them, or a dict by name. Dim 0 counts samples; what it holds tells how
            inputs are drawn: integers below their largest, ones where all are ones, else normal numbers.
        output: which of its results by name the loss is put on; unless given, ``logits``, else the first.
        ops: operators of your own and their kinds, as of ``--op``: ``lab::gate=pointwise``.
        reference: ``package:function``, where these are defined; unless given, in this process.

    Raises ``ScheduleError`` with every operator that is not supported, where it stands and what can be done.

    >>> found = simpar.from_module(torch.nn.Sequential(torch.nn.Linear(8, 8)), torch.randn(4, 8))  # doctest: +SKIP
    """
    positional, named = _examples(inputs)
    with export.batch_first(module):
        one, other = (export.traced(module, positional, named, count) for count in export.COUNTS)
    if len(one.nodes) != len(other.nodes):
        raise _wrong(
            module, 'does other work for other counts of samples', 'make control flow independent of the batch'
        )
    reader = graph.Reader(one, other, module)
    chosen = reader.nodes.get(_output(module, one.program, output))
    if chosen is None:
        raise _wrong(module, 'returns a result that is no tensor', 'return the output that the loss is put on first')
    examples = dict(zip((node.name for node in reader.inputs), _tensors(positional, named), strict=True))
    reader.values |= {node.name: examples[node.name] for node in reader.inputs}
    own = rules.own_rows(ops)
    builder = build.Builder(reader, module, chosen, own)
    builder.build(chosen)
    if idle := own.keys() - {node.base for node in builder.needed}:
        raise refusal('--op', f'the module does not call {", ".join(sorted(idle))}', 'leave it out')
    notes = _notes(one)
    used = {read for node in builder.made for read in node['reads']}
    sources = [
        {'name': builder.names[id(node)], 'shape': node.shapes[0], 'drawn': _drawn(builder, node, examples[node.name]),
         'integer': not node.floating}
        for node in builder.sources if builder.names[id(node)] in used
    ]  # fmt: skip
    text = builder.text(type(module).__name__, sources, notes)
    weights = {name: _part(reader.values[held], name) for name, held in builder.weights.items()}
    real = {name: value.detach().clone() for name, value in weights.items() if value.device.type != 'meta'}
    return Imported(
        model=FromModule(graph_text=text), weights={**real, **builder.constants.values}, notes=tuple(notes),
        own=' '.join((reference, *own)) if own else '',
    )  # fmt: skip


def _examples(inputs: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), inputs
    return (tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)), {}


def _tensors(positional: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    return [one for one in (*positional, *named.values()) if hasattr(one, 'shape')]


def _output(module: Any, program: Any, wanted: str) -> str:
    """The name of the node that the loss is put on."""
    names = [str(name) for name in program.graph_signature.user_outputs]
    tree = program.call_spec.out_spec.unflatten(names)
    if isinstance(tree, Mapping):
        chosen = wanted or next((name for name in OUTPUTS if name in tree), next(iter(tree)))
        if chosen not in tree:
            raise _wrong(module, f'returns no {chosen}', f'write one of {", ".join(tree)}')
        return str(tree[chosen])
    if wanted:
        raise _wrong(module, f'returns no result named {wanted}', 'leave output out')
    return names[0]


def _drawn(builder: Any, node: Any, example: Any) -> str:
    """How an input is drawn, from its example and from the table that it indexes."""
    rows = [
        one.arguments['weight'].shapes[0][0] for one in builder.read_by.get(id(node), []) if one.base == 'embedding'
    ]
    if rows and not node.floating:
        return f'tokens:{min(rows)}'
    if example.device.type == 'meta':
        return 'normal:1' if node.floating else 'tokens:2'
    for value, how in ((1, 'ones'), (0, 'zeros')):
        if bool((example == value).all()):
            return how
    return 'normal:1' if node.floating else f'tokens:{int(example.max()) + 1}'


def _notes(one: Any) -> list[str]:
    casts = sum(str(node.target).startswith('aten._to_copy') for node in one.nodes)
    text = 'casts of the module between floating types are left out: all of it is computed in workload.precision'
    return [f'{casts} {text}'] if casts else []


def _part(value: Any, name: str) -> Any:
    """A weight, or the part of it that a name tells."""
    part = name.partition('@')[2]
    if not part:
        return value
    which, _, rest = part.partition('of')
    count, _, dim = rest.partition('d')
    return value.chunk(int(count), int(dim))[int(which)]


def _wrong(module: Any, what: str, instead: str) -> ScheduleError:
    return refusal(type(module).__name__, what, instead)


# --module package:function: the function that makes a module and example inputs, called in this process


def imported(reference: str, seed: int = 0, ops: Sequence[str] = ()) -> Imported:
    """What the function of ``package:function`` returns, as a model.

    Arguments: ``seed``, that torch has when the function is called, so that every process begins with equal weights;
    ``ops``, operators of one's own and their kinds.
    Raises ``ScheduleError`` where there is no such function, it fails or returns something else.
    """
    if importlib.util.find_spec('torch') is None:
        raise RunFailed('torch is not installed; install the extra: pip install "simpar-parallel[torch]"')
    import torch

    function = function_of(reference)
    _takes_nothing(reference, function)
    torch.manual_seed(seed)
    try:
        answer: Any = function()
    except Exception as error:
        said = str(error).strip().splitlines()[0][:200] if str(error).strip() else ''
        raise _wrong_flag(
            f'{reference} fails: {type(error).__name__}: {said}', 'call it in Python to see where'
        ) from error
    if isinstance(answer, tuple) and answer and isinstance(answer[0], type):
        kind = answer[0].__name__
        raise _wrong_flag(f'{reference} returns the class {kind}, not a module', f'call it: {kind}(…)')
    if not isinstance(answer, tuple) or len(answer) not in (2, 3) or not isinstance(answer[0], torch.nn.Module):
        raise _wrong_flag(f'{reference} returns {type(answer).__name__}, not a module with example inputs', RETURNS)
    module, inputs, *more = answer
    if more and not isinstance(more[0], str):
        raise _wrong_flag(f'{reference} returns an output of type {type(more[0]).__name__}', 'name it, e.g. "logits"')
    return from_module(module, inputs, output=more[0] if more else '', ops=ops, reference=reference)


def _takes_nothing(reference: str, function: Any) -> None:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        what = f'{reference} is called without arguments: {error}'
        raise _wrong_flag(what, 'write a function that takes none, and calls it with yours') from error
    except ValueError:
        # Some functions in C do not tell what they take.
        return


def function_of(reference: str) -> Any:
    """The function of ``package:function``, whose package is imported. Raises ``ScheduleError``."""
    package, _, name = reference.partition(':')
    if not package or not name:
        raise _wrong_flag(f'is {reference}', 'write package:function, e.g. my_models:tiny_llama')
    # As ``python -m`` has it: packages of the current folder are found.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(package)
    except Exception as error:
        what = f'{package} cannot be imported: {type(error).__name__}: {str(error)[:200]}'
        raise _wrong_flag(what, 'name a module that Python finds from here') from error
    function = getattr(module, name, None)
    if not callable(function):
        choices = ', '.join(
            sorted(key for key, of in vars(module).items() if callable(of) and not key.startswith('_'))[:8]
        )
        raise _wrong_flag(f'{package} has no function {name}', f'write one of {choices}' if choices else 'define it')
    return function


def _wrong_flag(what: str, instead: str) -> ScheduleError:
    return refusal('--module', what, instead)
