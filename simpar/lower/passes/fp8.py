"""Products in 8 bits: what they read is cast before them, as TransformerEngine does with one scale a tensor (Hopper).

A cast writes rows for the forward and the gradient of what is read, and columns (``.columns``) for the gradient of the
weight: 8-bit matrix units contract the last dim of both operands alone. So of what a product reads one byte a number is
kept for the backward, not two. What is gathered for products alone is cast before it travels. Weights are cast before
their first product of a step, and both forms kept to the last; weights that are gathered on use, before each use.

Does not model: scales, their history and the sums of it over ranks; a cast fused into the operator before it.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final

from simpar import plans, program
from simpar.lower.passes.optimizer_parallel import choice_of
from simpar.lower.tape import Tape, named_by_nothing
from simpar.workload import Workload

FP8: Final = 'fp8'
ROWS, COLUMNS = '.fp8', '.fp8.columns'
PRODUCTS: Final = frozenset({'matmul', 'grouped_matmul'})
HEAD: Final = 'head'
NEVER: Final = ('*.router', '*.gate')
"""Of mixtures of experts: small products, on whose last bits it depends where tokens go."""
MULTIPLE: Final = 16
"""Rows, outputs and inputs of an 8-bit product are multiples of this (cuBLASLt)."""


def in_fp8(tape: Tape, workload: Workload, plan: plans.Plan) -> None:
    """Have the products of a tape read 8 bits; adds casts and their tensors, and a note for products that cannot.

    Raises ``Infeasible`` where a product that is to be left out is none of them.
    """
    if workload.fp8 == 'none':
        return
    sizes = {op.name.removesuffix('.F'): op.dims for op in tape.ops if op.operator in PRODUCTS and op.phase == 'F'}
    _check(workload.fp8_except, sizes)
    # Heads of tokens further on are the same product.
    patterns = (*workload.fp8_except, *(f'{HEAD}.*' for one in workload.fp8_except if one == HEAD), *NEVER)
    wanted = [name for name in sizes if not any(fnmatchcase(name, pattern) for pattern in patterns)]
    # Rows of each expert are filled up.
    dims = {name: 'nk' if 'groups' in sizes[name] else 'mnk' for name in wanted}
    chosen = {name for name in wanted if all(sizes[name][dim] % MULTIPLE == 0 for dim in dims[name])}
    left = [name for name in wanted if name not in chosen]
    # One name for all layers that are alike.
    names = ', '.join(dict.fromkeys(re.sub(r'\d+', '*', name) for name in left))
    if left:
        tape.notes.append(
            f'fp8: {names} stay in {tape.dtype}: rows, outputs and inputs on a rank must be multiples of {MULTIPLE}'
        )
    phases = 'F' if workload.phase == 'forward' else 'FIW'
    choice = choice_of(plan)
    # A group of one rank gathers nothing.
    once = 'weights' not in choice.parts or 'on-use' not in choice.gather or plan.shard_group == 1
    _Rewriting(tape, frozenset(chosen), workload.fp8, once=once, phases=phases).run()


def _check(patterns: Sequence[str], products: Collection[str]) -> None:
    for pattern in patterns:
        # The default names the head, which not every model has.
        if pattern != HEAD and not any(fnmatchcase(name, pattern) for name in products):
            raise named_by_nothing('workload.fp8_except', pattern, 'product', products)


@dataclass(slots=True, eq=False)
class _Rewriting:
    """One tape being rewritten.

    Arguments: ``chosen``, products by name; ``form`` of numbers; ``once``: weights are cast once a step;
        ``phases``, whose products matter; others stay as they are.
    """

    tape: Tape
    chosen: frozenset[str]
    form: str
    once: bool
    phases: str
    made: list[program.OpClass] = field(default_factory=list)
    cast: set[str] = field(default_factory=set)
    wanted: dict[str, dict[str, None]] = field(default_factory=dict)
    """By tensor, the forms that products read it in."""
    gathered: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    """Tensors that something else reads, too."""

    def run(self) -> None:
        ops = self.tape.ops
        for op in (op for op in ops if op.phase in self.phases):
            operands = self._operands(op)
            for name, form in operands.items():
                self.wanted.setdefault(name, {})[form] = None
            self.others.update(name for name in op.reads if name not in operands)
        for op in ops:
            self._put(op)
        self.tape.ops[:] = self.made

    def _operands(self, op: program.OpClass) -> dict[str, str]:
        """What a chosen product reads in 8 bits, and in which form; nothing of other ops."""
        name, _, phase = op.name.rpartition('.')
        if op.operator not in PRODUCTS or name not in self.chosen or phase not in self.phases:
            return {}
        first, second = op.reads[:2]
        return {first: COLUMNS if phase == 'W' else ROWS, second: ROWS if phase == 'F' else COLUMNS}

    def _put(self, op: program.OpClass) -> None:
        gathered = op.writes[0] if op.operator == 'all_gather' and op.phase in self.phases else ''
        if gathered in self.wanted and gathered not in self.others and len(op.reads) == 1:
            self._gather(op, gathered)
            return
        operands = self._operands(op)
        for name, form in operands.items():
            self._cast(op, name)
            if name in self.gathered and form == COLUMNS and f'{name}{form}' not in self.cast:
                # What was gathered in rows is turned only where columns are read, so that nothing waits for it.
                self._register(name, COLUMNS)
                self.cast.add(f'{name}{form}')
                self._emit(op, f'{name}{ROWS}', name, (COLUMNS,), name=f'{name}.columns')
        self.made.append(self._product(op, operands) if operands else op)

    def _product(self, op: program.OpClass, operands: Mapping[str, str]) -> program.OpClass:
        reads = tuple(f'{name}{operands[name]}' if name in operands else name for name in op.reads)
        held = self.tape.held_bytes
        saved = sum(held(name) - held(f'{name}{form}') for name, form in operands.items())
        return replace(op, reads=reads, bytes=op.bytes - saved, dtype=FP8)

    def _gather(self, op: program.OpClass, full: str) -> None:
        """A gather of 8 bits: what it gathers is cast before it."""
        (source,), target = op.reads, f'{full}{ROWS}'
        # The cast of what is gathered serves its gather in the backward, too.
        self.wanted.setdefault(source, {})[ROWS] = None
        self._cast(op, source, (ROWS,))
        self._register(full, ROWS)
        self.gathered.add(full)
        self.made.append(
            replace(
                op, name=op.name.replace(full, target, 1), bytes=float(self.tape.held_bytes(target)), dtype=FP8,
                reads=(f'{source}{ROWS}',), writes=(target,),
            )
        )  # fmt: skip

    def _cast(self, op: program.OpClass, name: str, forms: Sequence[str] = ()) -> None:
        """Cast a tensor before its first product, to all forms that are read."""
        of_weight = self.tape.tensors[name].kind == 'parameter'
        forms = tuple(forms or sorted(self.wanted[name]))
        if of_weight and not self.once:
            # Gathered anew for the backward: cast to the form that is read there.
            forms = (self._operands(op)[name],)
        forms = tuple(form for form in forms if f'{name}{form}' not in self.cast)
        if name in self.gathered or not forms:
            return
        for form in forms:
            self._register(name, form, once=of_weight and self.once)
            self.cast.add(f'{name}{form}')
        self._emit(op, name, name, forms, once=of_weight and self.once)

    def _emit(
        self, op: program.OpClass, source: str, of: str, forms: Sequence[str], *, name: str = '', once: bool = False
    ) -> None:
        """Arguments: ``op``, before which it stands; ``source``, what is cast to the forms of a tensor."""
        writes = tuple(f'{of}{form}' for form in forms)
        phase: program.Phase = 'F' if once else op.phase
        ending = '' if len(self.wanted[of]) == len(forms) or name else ''.join(forms).removeprefix(ROWS)
        held = self.tape.held_bytes
        outputs = op.attributes.get('outputs')
        made = program.OpClass(
            name=f'{name or source}.cast{ending}.{phase}',
            kind='compute',
            operator='cast',
            phase=phase,
            flops=float(self.tape.held(source)),
            bytes=float(held(source) + sum(map(held, writes))),
            dtype=self.tape.dtype,
            reads=(source,),
            writes=writes,
            attributes={
                'format': 'e5m2' if self.form == 'hybrid' and of.startswith('d:') else 'e4m3',
                # Of a weight: how many of its dims are outputs, as products say it.
                **({'outputs': outputs} if self.tape.tensors[of].kind == 'parameter' and outputs else {}),
            },
            stage=op.stage,
        )
        (self.tape.casts if once else self.made).append(made)

    def _register(self, name: str, form: str, *, once: bool = False) -> None:
        tensor: program.Tensor = self.tape.tensors[name]
        kind: program.TensorKind = 'gathered' if once else 'activation'
        like = name if once else ''
        made = replace(tensor, name=f'{name}{form}', kind=kind, dtype=FP8, initial='', like=like)
        self.tape.tensors[made.name] = made
        self.tape.place(made.name, self.tape.layouts[name])
