"""Machine code of kernels on the disk, called without numba, whose import takes longer than most simulations."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from simpar.errors import SimparError
from simpar.files import write_atomically
from simpar.short_cut import DONE, HEAD, IS_TOLD, LAYOUT, ShortCut, flat, has_short_cut, word_at
from simpar.short_cut import object_of as short_cut_to

_RESULTS: Final = {'int64': ctypes.c_int64, 'uint64': ctypes.c_uint64, 'uint32': ctypes.c_uint32, 'none': None}
_SHORT: Final = '.short'
"""Behind the name of a kernel, that of its short cut."""
_TRIED: Final = 4
"""So many short cuts are tried for arguments of the same types, the last found first."""
_lock: Final = threading.Lock()


class _Code(NamedTuple):
    """Machine code of a function with the name ``symbol`` in an object file, and of its short cut in another."""

    symbol: str
    result: str
    content: bytes
    short: bytes


class Kernel:
    """A kernel whose machine code is loaded from the disk, or compiled and written there; mutable.

    It is called as the function is. numba compiles it where it is not on the disk, and is not imported otherwise.
    """

    def __init__(self, module: str, name: str) -> None:
        """Name the module, which is imported where it must be compiled, and the function in it."""
        self._module, self._name = module, name
        self._loaded: dict[tuple[Any, ...], tuple[_Code | None, Callable[..., Any]]] = {}
        self._short: dict[tuple[type, ...], tuple[ShortCut, ...]] = {}

    @property
    def is_kept(self) -> bool:
        """Whether its code is on the disk, perhaps for other arguments than the next ones."""
        return any(any(folder.glob(f'{self._name}-{self._stamp}-*.code')) for folder in self._folders)

    def __call__(self, *arguments: Any) -> Any:
        """Call it; arrays, numbers and tuples of them are what it may be given."""
        given = flat(arguments)
        types = tuple(map(type, given))
        for short in self._short.get(types, ()):
            took, value = short.to(given)
            if took:
                return value
        return self._at_length(arguments, given, types)

    def _at_length(self, arguments: tuple[Any, ...], given: tuple[Any, ...], types: tuple[type, ...]) -> Any:
        """Call it with words, and from now on by a short cut where there is one."""
        found: list[Any] = []
        words: list[Any] = []
        _flatten(arguments, found, words)
        kinds = tuple(found)
        if kinds not in self._loaded:
            with _lock:
                self._loaded[kinds] = self._callable(kinds, arguments)
        code, call = self._loaded[kinds]
        if code and code.short and has_short_cut(code.result, given):
            short = ShortCut.of(self._name, _addresses(code)[1], code.result, given)
            self._short[types] = (short, *self._short.get(types, ()))[:_TRIED]
        return call(arguments, words)

    def _callable(self, kinds: tuple[Any, ...], arguments: tuple[Any, ...]) -> tuple[_Code | None, Callable[..., Any]]:
        """Its code, and what takes arguments, and the same as words."""
        name = f'{self._name}-{self._stamp}-{_hash([_host(), str(HEAD), repr(kinds)])}.code'
        code = next((code for folder in self._folders if (code := _read(folder / name))), None)
        if code is None:
            _tell_of_compiling(kept=any(map(_can_be_written, self._folders)))
            function = getattr(importlib.import_module(self._module), self._name)
            code = _compiled(function, arguments)
            # Numba that has other insides than those that are used here calls its kernels itself.
            if code is None:
                return None, lambda arguments, _: function(*arguments)
            self._keep(name, code)
        return code, _linked(code, kinds)

    def _keep(self, name: str, code: _Code) -> None:
        """Write code where it can be written; what older sources gave is left to lie, for it may be in use."""
        content = code.content + code.short
        head = json.dumps([code.symbol, code.result, hashlib.sha256(content).hexdigest(), len(code.content)])
        for folder in self._folders:
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(folder / name, head.encode() + b'\n' + content)
                return

    @property
    def _folders(self) -> tuple[Path, ...]:
        """Where it may be, as numba keeps its own: as told, beside the source, or in a folder of the user."""
        return _folders(os.environ.get('NUMBA_CACHE_DIR', ''), _source(self._module).parent / '__pycache__')

    @property
    def _stamp(self) -> str:
        return _stamp(_source(self._module).parent)


def is_started() -> bool:
    """Whether a kernel has been loaded in this process, so that others take little."""
    return bool(loader.cache_info().currsize)


def _folders(told: str, beside: Path) -> tuple[Path, ...]:
    if told:
        return (Path(told),)
    cache = os.environ.get('XDG_CACHE_HOME', '')
    # A user whom the system does not know, as in containers with any uid, has no home.
    with suppress(RuntimeError):
        cache = cache or str(Path.home() / '.cache')
    return (beside, Path(cache) / 'simpar') if cache else (beside,)


@cache
def _tell_of_compiling(*, kept: bool) -> None:
    """Say once, where it happens, why an answer takes longer than the next one. Arguments: ``kept``, on the disk."""
    once = 'once, about 20 s' if kept else f'about 20 s; {_NOWHERE}'
    print(f'compiling the engine ({once})', file=sys.stderr, flush=True)


_NOWHERE: Final = 'no folder keeps it: NUMBA_CACHE_DIR=DIR names one'


def _can_be_written(folder: Path) -> bool:
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    return False


def _flatten(values: Iterable[Any], kinds: list[Any], words: list[Any]) -> None:
    """Append the kind of each value, and the words that it is passed as: those of numba's convention."""
    for value in values:
        if isinstance(value, np.ndarray):
            kinds.append(('array', value.dtype, value.ndim, value.flags.num & LAYOUT))
            # Five times as fast as to ask numpy, and a kernel has up to thirty arrays. Kernels of numba read it, too.
            place = word_at(id(value) + HEAD).value if IS_TOLD else value.ctypes.data
            # The first two are of arrays that numba itself has made, or that Python objects own.
            words += (None, None, value.size, value.itemsize, place, *value.shape, *value.strides)
        elif isinstance(value, tuple):
            kinds.append(('tuple', type(value).__qualname__, len(value)))
            _flatten(value, kinds, words)
        elif isinstance(value, (bool, np.bool_)):
            kinds.append(('bool',))
            words.append(value)
        elif isinstance(value, (int, np.integer)):
            kinds.append(('number', value.dtype if isinstance(value, np.integer) else 'int'))
            words.append(int(value))
        else:
            raise TypeError(f'a kernel takes no {type(value).__name__}')


def _words_of(kind: tuple[Any, ...]) -> list[Any]:
    """The C types of what a value is passed as."""
    if kind[0] == 'array':
        return [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2 + [ctypes.c_void_p] + [ctypes.c_int64] * (2 * kind[2])
    if kind[0] == 'tuple':
        return []
    if kind[0] == 'bool':
        return [ctypes.c_bool]
    return [ctypes.c_int64 if kind[1] == 'int' else np.ctypeslib.as_ctypes_type(kind[1])]


def _linked(code: _Code, kinds: tuple[Any, ...]) -> Callable[..., Any]:
    """What calls machine code with words; the lock of Python's threads is free meanwhile."""
    result = _RESULTS[code.result]
    types = [ctypes.c_void_p, ctypes.c_void_p, *(word for kind in kinds for word in _words_of(kind))]
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *types)(_addresses(code)[0])

    def call(_: tuple[Any, ...], words: list[Any]) -> Any:
        value, error = (result or ctypes.c_int64)(), ctypes.c_void_p()
        done = function(ctypes.addressof(value), ctypes.addressof(error), *words)
        if done not in DONE:
            raise RuntimeError(f'the kernel {code.symbol} failed with status {done}')
        return value.value if result else None

    return call


@cache
def _addresses(code: _Code) -> tuple[int, int]:
    """Where code and its short cut lie, once they have been loaded; they stay for as long as the process lives."""
    from llvmlite import binding

    engine = loader()
    for content in filter(None, (code.content, code.short)):
        engine.add_object_file(binding.ObjectFileRef.from_data(content))
    engine.finalize_object()
    return engine.get_function_address(code.symbol), engine.get_function_address(code.symbol + _SHORT)


@cache
def loader() -> Any:
    """What loads machine code; from the first call on, small programs are simulated by kernels too."""
    from llvmlite import binding

    # Versions before 0.45 ask for it, and later ones refuse it.
    with suppress(RuntimeError):
        binding.initialize()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(codemodel='jitdefault')
    return binding.create_mcjit_compiler(binding.parse_assembly(''), machine)


def _compiled(function: Any, arguments: tuple[Any, ...]) -> _Code | None:
    """The code of a function for arguments like these; None where this numba does not give it."""
    from simpar.jit import object_of

    found = object_of(function, arguments)
    if not found or found[1] not in _RESULTS:
        return None
    symbol, result, content = found
    given = flat(arguments)
    short = short_cut_to(symbol, symbol + _SHORT, result, given) if has_short_cut(result, given) else b''
    return _Code(symbol, result, content, short)


def _read(path: Path) -> _Code | None:
    """The code in a file; None where there is none, or it is not whole."""
    with suppress(OSError, ValueError, TypeError):
        head, content = path.read_bytes().split(b'\n', 1)
        symbol, result, told, size = json.loads(head)
        if hashlib.sha256(content).hexdigest() == told and result in _RESULTS:
            return _Code(symbol, result, content[:size], content[size:])
    return None


@cache
def _stamp(folder: Path) -> str:
    """What kernels of a folder are compiled of: its files, how they are compiled, and by which versions."""
    paths = (*sorted(folder.glob('*.py')), *map(_source, ('simpar.jit', 'simpar.short_cut')))
    texts = [path.read_bytes().decode() for path in paths]
    return _hash([*texts, _version('numba'), _version('llvmlite')])


def _version(package: str) -> str:
    file = _source(f'{package}._version')
    return file.read_text(encoding='utf-8') if file.is_file() else str(importlib.import_module(package).__version__)


@cache
def _source(module: str) -> Path:
    """The file of a module, which is not imported."""
    package, _, inner = module.partition('.')
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise SimparError(f'{package} is not installed')
    return Path(found.origin).parent.joinpath(*inner.split('.')).with_suffix('.py')


@cache
def _host() -> str:
    """The processor that code is compiled for."""
    from llvmlite import binding

    return f'{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}'


def _hash(texts: list[str]) -> str:
    return hashlib.sha256('\0'.join(texts).encode()).hexdigest()[:16]
