"""Short cuts: functions that call a kernel with where its arrays lie alone, for to pass what is in them takes longer.

numba passes an array as seven words and more, which Python would have to look up, and ctypes to convert, one by one. A
short cut is machine code, too: it reads them from the array objects, whose layout is part of numpy's stable interface.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LAYOUT: Final = 0x503
"""The flags of an array that numba compiles for: in C order, in Fortran's, aligned, writeable."""
HEAD: Final = object.__basicsize__
"""How long that is what every object begins with; behind it, an array tells where its data lies."""
_DIMS, _SHAPE, _STRIDES, _DTYPE, _FLAGS = (HEAD + offset for offset in (8, 16, 24, 40, 48))
word_at: Final = ctypes.c_size_t.from_address
_int_at: Final = ctypes.c_int32.from_address
_WORD: Final = 2**64 - 1
DONE: Final = (0, -2)
"""What a kernel that numba has compiled returns where all went well: with a value, and with None."""
# No kernel returns numbers like these; most return how many there are of something.
_FAILED: Final = -(2**63) + 1
_REFUSED: Final = -(2**63)
_NUMBERS: Final = (int, bool, np.uint64)
_RESULTS: Final = ('int64', 'uint32', 'none')


def _is_told() -> bool:
    """Whether arrays tell there what they always did."""
    array = np.zeros((2, 3))[:, 1:]
    place = id(array)
    lists = [[word_at(word_at(place + at).value + 8 * dim).value for dim in (0, 1)] for at in (_SHAPE, _STRIDES)]
    return (
        (word_at(place + HEAD).value, word_at(place + _DTYPE).value) == (array.ctypes.data, id(array.dtype))
        and (_int_at(place + _DIMS).value, _int_at(place + _FLAGS).value) == (2, array.flags.num)
        and lists == [list(array.shape), list(array.strides)]
    )


IS_TOLD: Final = ctypes.sizeof(ctypes.c_void_p) == 8 and _is_told()


def flat(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a kernel is given; its only argument may be a record of it all."""
    return arguments[0] if len(arguments) == 1 and isinstance(arguments[0], tuple) else arguments


def has_short_cut(result: str, given: Iterable[Any]) -> bool:
    """Whether there can be a short cut to a kernel with this type of result, for arguments like these."""
    return IS_TOLD and result in _RESULTS and all(type(value) in (np.ndarray, *_NUMBERS) for value in given)


class ShortCut(NamedTuple):
    """A short cut for arrays of exactly these dtypes, which are kept, so that others do not come to lie there.

    Arguments:
        name: of the kernel.
        call: returns what it returns.
        head: where the dtypes lie.
        pack: makes words of numbers.
        numbers: the places of arguments that are no arrays.
    """

    name: str
    call: Callable[[bytes], int]
    head: bytes
    pack: Callable[..., bytes]
    numbers: tuple[int, ...]
    dtypes: tuple[np.dtype[Any], ...]
    is_none: bool

    @classmethod
    def of(cls, name: str, address: int, result: str, given: Sequence[Any]) -> ShortCut:
        """The short cut to the kernel of that name whose code lies there, for arguments like these."""
        dtypes = tuple(value.dtype for value in given if isinstance(value, np.ndarray))
        numbers = tuple(place for place, value in enumerate(given) if not isinstance(value, np.ndarray))
        call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p)(address)
        head = Struct(f'{len(dtypes)}Q').pack(*map(id, dtypes))
        return cls(name, call, head, Struct(f'{len(given)}Q').pack, numbers, dtypes, result == 'none')

    def to(self, given: Sequence[Any]) -> tuple[bool, Any]:
        """Whether it took these arguments, for which ``has_short_cut`` holds; and what the kernel returned."""
        words = list(map(id, given))
        for place in self.numbers:
            words[place] = int(given[place]) & _WORD
        found = self.call(self.head + self.pack(*words))
        if found == _FAILED:
            raise RuntimeError(f'the kernel {self.name} failed')
        return found != _REFUSED, None if self.is_none else found


def object_of(symbol: str, named: str, result: str, given: Sequence[Any]) -> bytes:
    """An object file with a function of that name, a short cut to a kernel.

    It takes where words lie: for each array where its dtype lies, and then for each argument where the array lies, or
    the number. Where an array is of another kind, it returns a number of its own, as where the kernel failed.

    Arguments: ``symbol`` and ``result``, of the kernel; ``given``, arguments like those that it will be called with.
    """
    from llvmlite import binding

    machine = binding.Target.from_default_triple().create_target_machine(opt=2, codemodel='jitdefault')
    found: bytes = machine.emit_object(binding.parse_assembly(str(_module(symbol, named, result, given))))
    return found


def _module(symbol: str, named: str, result: str, given: Sequence[Any]) -> Any:
    from llvmlite import ir

    word, half = ir.IntType(64), ir.IntType(32)
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(word, [word]), named)
    build = ir.IRBuilder(function.append_basic_block())
    arrays = [value for value in given if isinstance(value, np.ndarray)]
    words = [_load(build, function.args[0], 8 * place, word) for place in range(len(arrays) + len(given))]
    dtypes, unlike, passed = iter(words), word(0), []
    for value, at in zip(given, words[len(arrays) :], strict=True):
        if isinstance(value, np.ndarray):
            unlike = build.or_(unlike, build.xor(_load(build, at, _DTYPE, word), next(dtypes)))
            unlike = build.or_(unlike, build.zext(_unlike(build, at, value, half), word))
            passed += _passed(build, at, value, word)
        else:
            passed.append(build.trunc(at, ir.IntType(8)) if isinstance(value, bool) else at)
    with build.if_then(build.icmp_unsigned('!=', unlike, word(0))):
        build.ret(word(_REFUSED))
    # Numba's kernels write there what they return, and why they failed.
    room = [build.alloca(half if result == 'uint32' else word), build.alloca(word)]
    passed = [build.ptrtoint(one, word) for one in room] + passed
    kernel = ir.Function(module, ir.FunctionType(half, [one.type for one in passed]), symbol)
    status = build.call(kernel, passed)
    done = reduce(build.or_, [build.icmp_signed('==', status, half(one)) for one in DONE])
    value = word(0) if result == 'none' else build.load(room[0])
    build.ret(build.select(done, build.zext(value, word) if value.type == half else value, word(_FAILED)))
    return module


def _load(build: Any, place: Any, offset: int, kind: Any) -> Any:
    return build.load(build.inttoptr(build.add(place, place.type(offset)), kind.as_pointer()))


def _unlike(build: Any, place: Any, array: Array, half: Any) -> Any:
    """Anything but 0 where the array that lies there has other dimensions or flags than this one."""
    layout = build.and_(_load(build, place, _FLAGS, half), half(LAYOUT))
    dims = build.xor(_load(build, place, _DIMS, half), half(array.ndim))
    return build.or_(dims, build.xor(layout, half(array.flags.num & LAYOUT)))


def _passed(build: Any, place: Any, array: Array, word: Any) -> list[Any]:
    """What numba passes of the array that lies there."""
    shape, strides = (
        [_load(build, _load(build, place, lists, word), 8 * dim, word) for dim in range(array.ndim)]
        for lists in (_SHAPE, _STRIDES)
    )
    # The first two are of arrays that numba itself has made, or that Python objects own.
    size = reduce(build.mul, shape, word(1))
    return [word(0), word(0), size, word(array.itemsize), _load(build, place, HEAD, word), *shape, *strides]
