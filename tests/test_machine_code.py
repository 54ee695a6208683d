"""Machine code of kernels is kept on the disk, and called without numba."""

import subprocess
import sys

import numpy as np
import pytest

from simpar import machine_code, short_cut
from simpar.machine_code import Kernel
from simpar.short_cut import ShortCut

# A chain 2 → 0 → 1: each node, and which come after it.
START, AFTER = np.array([0, 1, 1, 2], dtype=np.int32), np.array([1, 0], dtype=np.int32)


def order_of_a_chain(kernel):
    """The order that the kernel finds of a chain."""
    order = np.empty(3, dtype=np.int64)
    assert kernel(START, AFTER, np.array([1, 1, 0], dtype=np.int32), order) == 3
    return order.tolist()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv('NUMBA_CACHE_DIR', str(tmp_path / 'kept'))
    return tmp_path / 'kept'


def topological():
    return Kernel('simpar.engine.compiled.order', 'topological')


def test_code_is_written_once_and_compiled_again_where_its_file_is_broken(folder, monkeypatch):
    assert not topological().is_kept
    assert order_of_a_chain(topological()) == [2, 0, 1]
    assert topological().is_kept
    (file,) = folder.glob('*.code')
    whole = file.read_bytes()
    # From now on, it can only be read.
    monkeypatch.setattr('simpar.machine_code._compiled', lambda function, arguments: pytest.fail('compiled again'))
    assert order_of_a_chain(topological()) == [2, 0, 1]
    for broken in (b'', b'[]\n', b'{"a": 1}\n', whole[:-1], whole.replace(b'int64', b'int46', 1)):
        file.write_bytes(broken)
        with pytest.raises(pytest.fail.Exception, match='compiled again'):
            order_of_a_chain(topological())


def test_each_type_of_array_has_code_of_its_own(folder):
    kernel = topological()
    assert order_of_a_chain(kernel) == [2, 0, 1]
    order = np.empty(3, dtype=np.int32)
    assert kernel(START.astype(np.int64), AFTER, np.array([1, 1, 0], dtype=np.int32), order) == 3
    assert order.tolist() == [2, 0, 1]
    assert len(list(folder.glob('*.code'))) == 2
    with pytest.raises(TypeError, match='a kernel takes no list'):
        kernel([0, 1], AFTER, AFTER, AFTER)


def test_numba_is_not_imported_where_code_is_on_the_disk(folder):
    assert order_of_a_chain(topological()) == [2, 0, 1]
    script = (
        'import sys\n'
        'from test_machine_code import order_of_a_chain, topological\n'
        'assert order_of_a_chain(topological()) == [2, 0, 1]\n'
        'assert "numba" not in sys.modules'
    )
    subprocess.run([sys.executable, '-c', script], check=True, cwd='tests', timeout=60)


def test_where_numba_does_not_tell_its_code_it_calls_its_kernels_itself(folder, monkeypatch):
    monkeypatch.setattr('simpar.machine_code._compiled', lambda function, arguments: None)
    assert order_of_a_chain(topological()) == [2, 0, 1]
    assert not topological().is_kept


@pytest.mark.parametrize('is_told', [True, False])
def test_kernels_are_told_where_arrays_of_any_kind_lie(is_told, monkeypatch):
    monkeypatch.setattr(machine_code, 'IS_TOLD', is_told)
    whole = np.arange(12.0).reshape(3, 4)
    still = whole.copy()
    still.flags.writeable = False
    arrays = (whole, whole[1:, 2:], still, np.zeros(0), np.zeros(2, dtype=[('a', 'f8'), ('b', 'u4')]), np.array(1))
    for array in arrays:
        words = []
        machine_code._flatten([array], [], words)
        assert words == [None, None, array.size, array.itemsize, array.ctypes.data, *array.shape, *array.strides]


def test_short_cuts_are_taken_from_the_second_call_on_where_there_are_any(folder, monkeypatch):
    took, to = [], ShortCut.to

    def watched(short, given):
        took.append(to(short, given))
        return took[-1]

    monkeypatch.setattr(ShortCut, 'to', watched)
    kernel = topological()
    assert [order_of_a_chain(kernel) for _ in range(3)] == [[2, 0, 1]] * 3
    assert took == [(True, 3)] * 2
    monkeypatch.setattr(machine_code, 'has_short_cut', lambda result, given: False)
    kernel = topological()
    assert [order_of_a_chain(kernel) for _ in range(3)] == [[2, 0, 1]] * 3
    assert len(took) == 2


def test_a_short_cut_takes_no_array_of_another_kind(folder):
    kernel = topological()
    left, order = np.array([1, 1, 0], dtype=np.int32), np.empty(3, dtype=np.int64)
    kernel(START, AFTER, left, order)
    ((short,),) = kernel._short.values()
    left[:] = 1, 1, 0
    assert short.to((START, AFTER, left, order)) == (True, 3)
    assert order.tolist() == [2, 0, 1]
    apart = np.empty(6, dtype=np.int64)[::2]
    still = START.copy()
    still.flags.writeable = False
    unaligned = np.frombuffer(bytearray(25), dtype=np.int64, count=3, offset=1)
    swapped = order.astype(order.dtype.newbyteorder())
    for array in (apart, unaligned, swapped, order[None], left, order.astype(float)):
        assert not short.to((START, AFTER, left, array))[0]
    assert not short.to((still, AFTER, left, order))[0]
    # One of another kind has a short cut of its own, and both are taken from then on.
    for array in (apart, order, apart, order):
        left[:] = 1, 1, 0
        assert kernel(START, AFTER, left, array) == 3
        assert array.tolist() == [2, 0, 1]
    assert len(*kernel._short.values()) == 2


def test_short_cuts_are_few(folder):
    """Though each record may have a dtype of its own."""
    kernel = topological()
    for _ in range(9):
        start, after, filled, number = (np.dtype(of, metadata={'of': 'this call'}) for of in ('i4', 'i4', 'i4', 'i8'))
        left, order = np.array([1, 1, 0], dtype=filled), np.empty(3, dtype=number)
        assert kernel(START.astype(start), AFTER.astype(after), left, order) == 3
        assert order.tolist() == [2, 0, 1]
    assert len(*kernel._short.values()) == 4


def test_a_kernel_that_fails_on_a_short_cut_is_named(folder):
    kernel = topological()
    order_of_a_chain(kernel)
    ((short,),) = kernel._short.values()
    broken = short._replace(call=lambda words: short_cut._FAILED)
    with pytest.raises(RuntimeError, match=f'the kernel {kernel._name} failed'):
        broken.to((START, AFTER, np.array([1, 1, 0], dtype=np.int32), np.empty(3, dtype=np.int64)))
