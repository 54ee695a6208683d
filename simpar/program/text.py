"""Text form of a program: one line a fact, a keyword and then JSON; what the hash is taken of, and a file to read or
keep.

    simpar-program 1
    program {"world": 2, "micro_batches": 1, "copies": 2, "notes": []}
    partition {"name": "tensor", "groups": [[0, 1]]}
    tensor {"name": "dense0.weight", "kind": "parameter", "shape": [512, 784], "dtype": "fp32", ...}
    op {"name": "dense0.F", "kind": "compute", "operator": "matmul", ...}
    role {"name": "all", "streams": ["compute", "tensor"], "ranks": [0, 1]}
    slot ["dense0.F", "compute", micro-batch, copy, [needs], [needs of the step before]]

Fields that hold their default are left out.
"""

import json
import math
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from simpar.errors import Problem, ScheduleError
from simpar.program.op import OpClass, Partition, Split, Tensor
from simpar.program.program import HEADER, Program, digest, format_program
from simpar.program.role import Csr, Role

Row = TypeVar('Row', OpClass, Tensor)
__all__ = ['HEADER', 'digest', 'format_program', 'parse_program']


def parse_program(text: str, where: str = 'program') -> Program:
    """Read a text form back; raises ``ScheduleError`` with the line that is wrong."""
    lines = text.splitlines()
    if not lines or lines[0] != HEADER:
        raise ScheduleError(Problem(f'{where}:1', 'not a program of simpar', f'the first line is "{HEADER}"'))
    parts = _Parts()
    for number, line in enumerate(lines[1:], start=2):
        keyword, _, rest = line.partition(' ')
        try:
            parts.take(keyword, json.loads(rest, parse_float=_finite, parse_constant=_finite))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError) as error:
            what = f'cannot be read ({type(error).__name__}: {error})'
            raise ScheduleError(Problem(f'{where}:{number}', f'{keyword or "line"}: {what}')) from error
    return parts.build(where)


def _finite(word: str) -> float:
    """A number of the text; what is none, or too large for one, is refused here, as no program could be written so."""
    value = float(word)
    if not math.isfinite(value):
        raise ValueError(f'{word[:20]} is no finite number')
    return value


class _Parts:
    """What has been read so far."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        self.partitions: dict[str, Partition] = {}
        self.tensors: list[Tensor] = []
        self.ops: dict[str, OpClass] = {}
        self.roles: list[tuple[dict[str, Any], list[list[Any]]]] = []

    def take(self, keyword: str, value: Any) -> None:
        if keyword == 'program':
            self.head = value
        elif keyword == 'partition':
            groups = np.array(value['groups'], dtype=np.int32)
            if groups.ndim != 2:
                raise ValueError('groups must be lists of ranks of equal length')
            self.partitions[value['name']] = Partition(value['name'], groups)
        elif keyword == 'tensor':
            splits = tuple(Split(int(dim), str(partition)) for dim, partition in value.pop('cuts', ()))
            self.tensors.append(_row(Tensor, value, splits=splits))
        elif keyword == 'op':
            self.ops[value['name']] = _row(OpClass, value)
        elif keyword == 'role':
            self.roles.append((value, []))
        elif keyword == 'slot':
            self._check(value)
            self.roles[-1][1].append(value)
        else:
            raise ValueError('unknown keyword; one of program, partition, tensor, op, role, slot')

    def _check(self, slot: list[Any]) -> None:
        op, stream, micro_batch, copy, needs, carry = slot
        if op not in self.ops or stream not in self.roles[-1][0]['streams']:
            raise ValueError(f'op {op!r} or stream {stream!r} is not declared above')
        if not all(type(number) is int and number >= 0 for number in (micro_batch, copy, *needs, *carry)):
            raise ValueError('micro-batch, copy and needs are whole numbers from 0')

    def build(self, where: str) -> Program:
        try:
            return Program(
                roles=tuple(self._role(role, slots) for role, slots in self.roles),
                role_of_rank=self._role_of_rank(),
                partitions=self.partitions,
                op_classes=tuple(self.ops.values()),
                tensors=tuple(self.tensors),
                micro_batches=int(self.head['micro_batches']),
                copies=int(self.head['copies']),
                notes=tuple(self.head['notes']),
                batched=bool(self.head.get('batched', False)),
            )
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
            raise ScheduleError(Problem(where, f'not a whole program ({type(error).__name__}: {error})')) from error

    def _role_of_rank(self) -> NDArray[np.int32]:
        world = int(self.head['world'])
        # Before room is made for them.
        if not 0 < world <= sum(len(role['ranks']) for role, _ in self.roles):
            raise ValueError('every rank needs a role')
        role_of_rank = np.full(world, -1, dtype=np.int32)
        for index, (role, _) in enumerate(self.roles):
            role_of_rank[role['ranks']] = index
        if (role_of_rank < 0).any():
            raise ValueError('every rank needs a role')
        return role_of_rank

    def _role(self, role: dict[str, Any], slots: list[list[Any]]) -> Role:
        index = {name: position for position, name in enumerate(self.ops)}
        stream = {name: position for position, name in enumerate(role['streams'])}
        needs, carry = (_lists([row[column] for row in slots]) for column in (4, 5))
        # A need on a later slot of its own step could never be met; validator and engines count on that.
        if (needs.item >= needs.row).any() or (carry.item >= len(slots)).any():
            raise ValueError(f'role {role["name"]}: a need must stand before its slot')
        return Role(
            name=role['name'],
            streams=tuple(role['streams']),
            op_class=np.array([index[row[0]] for row in slots], dtype=np.uint32),
            stream=np.array([stream[row[1]] for row in slots], dtype=np.uint16),
            micro_batch=np.array([row[2] for row in slots], dtype=np.uint16),
            copy=np.array([row[3] for row in slots], dtype=np.uint16),
            need=needs,
            carry=carry,
        )


def _lists(rows: list[list[int]]) -> Csr:
    count = np.array([len(row) for row in rows], dtype=np.int64)
    return Csr.counted(count, np.array([item for row in rows for item in row], dtype=np.int32))


def _row(kind: type[Row], fields: dict[str, Any], **made: Any) -> Row:
    """A row of a table; lists become tuples.

    Arguments: ``made``, fields that are values already; a text that has one of them by this name is refused.
    """
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    return kind(**made, **values)
