"""Draws, alike in any plan: weights and batches by (seed, name, step), masks of dropout; and tensors that are given.

Draws are made in fp64 and then cast.
"""

import argparse
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Final

import torch

from executor import data, devices
from simpar import errors, files
from simpar.model.model import AHEAD

Kept = dict[object, torch.Tensor]
_CONSTANTS: Final[ContextVar[tuple[Kept, bool] | None]] = ContextVar('constants', default=None)


@contextmanager
def constants(store: Kept, *, again: bool) -> Iterator[None]:
    """Within it, constants are remembered; ``again``: those that were remembered are given.

    A graph that is captured cannot read memory of the host, for the host has dropped it when the graph is replayed.
    """
    token = _CONSTANTS.set((store, again))
    try:
        yield
    finally:
        _CONSTANTS.reset(token)


def on_device(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor of the host where another one is; its dtype stays."""
    if tensor.device == like.device:
        return tensor
    store, again = _CONSTANTS.get() or (None, False)
    key = None
    if store is not None:
        cells = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b''
        key = (like.device, tensor.dtype, tuple(tensor.shape), cells)
        if again and key in store:
            return store[key]
    # A copy from memory that is not pinned would have the host wait for all that the stream has to do.
    host = tensor.pin_memory() if devices.KINDS[like.device.type].pins else tensor
    moved = host.to(like.device, non_blocking=True)
    if store is not None:
        store.setdefault(key, moved)
    return moved


# A sequence as context ranks hold it balanced: of 2 N chunks rank i has chunks i and 2 N − 1 − i.


def in_sequence(index: torch.Tensor, sequence: int, ranks: int) -> torch.Tensor:
    """Places in a sequence of what stands at some indices where it lies balanced; ``ranks`` 0: the same."""
    if not ranks:
        return index
    length = sequence // (2 * ranks)
    number, inside = index // length, index % length
    rank = number // 2
    return torch.where(number % 2 == 0, rank, 2 * ranks - 1 - rank) * length + inside


# Tensors that a torch module has: its weights and constants, by their names in programs.

VARIABLE: Final = 'SIMPAR_GIVEN'
OWN: Final = 'SIMPAR_OWN_OPS'
"""Names operators beside aten's that a module may call, behind the function whose package has them."""


@lru_cache(maxsize=1)
def _module_tensors(path: str) -> Mapping[str, torch.Tensor]:
    """The tensors that a file holds; none where no file is named."""
    tensors: Mapping[str, torch.Tensor] = torch.load(path, weights_only=True) if path else {}
    return tensors


def given(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of the module; raises ``ProgramError`` where there is none of this name and shape."""
    tensor = _module_tensors(os.environ.get(VARIABLE, '')).get(name)
    if tensor is None:
        raise errors.ProgramError(
            f'{name}: the values of the module are not known here; pass --module package:function, and build it with '
            'weights, not on the meta device'
        )
    if tuple(tensor.shape) != shape:
        raise errors.ProgramError(f'{name}: the module has shape {list(tensor.shape)}, its graph says {list(shape)}')
    return tensor.detach().to(dtype)


def keep(tensors: Mapping[str, torch.Tensor], own: str = '') -> None:
    """Give this process and those that it starts these tensors, and operators of one's own, until it ends."""
    os.environ[OWN] = own
    folder = Path(tempfile.mkdtemp(prefix='simpar-module-'))
    files.remove_at_the_end(folder)
    previous = _module_tensors(os.environ.get(VARIABLE, ''))
    torch.save({**previous, **tensors}, folder / 'given.pt')
    os.environ[VARIABLE] = str(folder / 'given.pt')


def own_operator(target: str, own: str) -> Callable[..., torch.Tensor]:
    """An operator of the user's own, which its package defines in every process that imports it.

    Arguments: ``own``, what ``OWN`` of the environment says. Raises ``ProgramError`` for one that it does not name.
    """
    from simpar.torch_module.from_module import HERE, function_of

    reference, *names = own.split() or [HERE]
    full, _, overload = target.partition('.')
    if full not in names:
        what = f'{full} is no operator of aten; say its kind: --op {full}=pointwise, beside --module'
        raise errors.ProgramError(what)
    if reference != HERE:
        function_of(reference)
    library, _, name = full.partition('::')
    operator: Callable[..., torch.Tensor] = getattr(getattr(getattr(torch.ops, library), name), overload or 'default')
    return operator


def module_of(options: argparse.Namespace) -> str:
    """The graph of the module that ``--module`` names, whose tensors are kept; empty: there is no flag."""
    if not options.module:
        return ''
    # Exporting imports much of torch, which others do without.
    from simpar.torch_module.from_module import imported

    module = imported(options.module, options.seed, options.op)
    keep(module.weights, module.own)
    return module.graph


Batch = Mapping[str, torch.Tensor]
"""The inputs of one step in full, by the names that they have in the program."""


def draw(initial: str, shape: Sequence[int], dtype: torch.dtype, seed: int, *key: object) -> torch.Tensor:
    """A full tensor.

    Arguments:
        initial: ``normal:DEVIATION``, ``zeros``, ``ones``, ``given:NAME`` (of a module), ``tokens:COUNT`` or
            ``classes:COUNT`` (integers below COUNT).
        key: what is drawn, e.g. name, step, micro-batch.
    Raises ``ProgramError`` for another ``initial``.
    """
    how, _, number = initial.partition(':')
    if how == 'given':
        return given(number, tuple(shape), dtype)
    # A generator for each draw: its result must not depend on what was drawn before.
    generator = torch.Generator().manual_seed(stable_seed(seed, *key))
    if how == 'normal' and number:
        # In fp64 and then cast, so that all dtypes start from the same numbers.
        return (torch.randn(*shape, generator=generator, dtype=torch.float64) * float(number)).to(dtype)
    if how in ('tokens', 'classes') and number:
        return torch.randint(int(number), tuple(shape), generator=generator).to(dtype)
    if initial in ('zeros', 'ones'):
        return torch.full(tuple(shape), float(initial == 'ones'), dtype=dtype)
    raise errors.ProgramError(
        f'{key[0]}: nothing is drawn as {initial!r}; '
        'write normal:DEVIATION, zeros, ones, tokens:COUNT, classes:COUNT or mnist'
    )


def stable_seed(seed: int, *key: object) -> int:
    """A seed of 63 bits that depends on nothing but its arguments."""
    # Not ``hash``, which differs from process to process.
    digest = hashlib.sha256('\0'.join(str(part) for part in (seed, *key)).encode()).digest()
    # 63 bits: torch takes signed seeds.
    return int.from_bytes(digest[:8], 'big') >> 1


def batch_of(
    name: str,
    initial: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    seed: int,
    step: int,
    batches: Mapping[int, Batch] | None = None,
) -> torch.Tensor:
    """One input of a step in full: drawn, or of the user's own batches, by step."""
    # Tokens further on are those of another input, and not drawn by themselves.
    name = name.partition(AHEAD)[0]
    if not batches or step not in batches:
        return _drawn(name, initial, shape, dtype, seed, step)
    return _as_held(batches[step][name].to(dtype), initial)


def _as_held(full: torch.Tensor, initial: str) -> torch.Tensor:
    """Samples as ranks hold them: further on by ``+COUNT=FILL``, then as ``@RANKS`` balanced context ranks do."""
    spec, _, ranks = initial.partition('@')
    ahead, _, fill = spec.partition(AHEAD)[2].partition('=')
    if ahead:
        full = torch.cat([full[:, int(ahead) :], torch.full_like(full[:, : int(ahead)], int(fill or 0))], 1)
    return full[:, in_sequence(torch.arange(full.shape[1]), full.shape[1], int(ranks))] if ranks else full


@lru_cache(maxsize=16)
def _drawn(name: str, initial: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int, step: int) -> torch.Tensor:
    """Draw one input of a step in full (all micro-batches, data ranks, copies), so that every plan sees the same."""
    if initial == data.INITIAL:
        return data.batch(shape, dtype, stable_seed(seed, 'mnist'), step)
    # Balanced context ranks hold a sequence in another order: drawn in its own, then brought into theirs.
    return _as_held(draw(initial.partition('@')[0].partition(AHEAD)[0], shape, dtype, seed, name, step), initial)


# Dropout masks: a hash of a sample's key, of where in the model it is, and of the element's place in the full
# tensor.

_BITS: Final = 53


def dropout_mask(
    keys_B: torch.Tensor,
    site: str,
    full: Sequence[int],
    probability: float,
    shard: tuple[int, int, int] = (0, 0, 0),
    places: Mapping[int, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Which elements stay, as booleans [B, rest of ``full`` ...], or of one shard of it.

    Arguments:
        full: shape without the batch.
        shard: (dim, first, length), a part along one dim of ``full``; length 0: all.
        places: dim → which places along it, in any order.
    """
    dim, first, length = shard
    rows = [torch.arange(size, device=keys_B.device) for size in full]
    if length:
        rows[dim] = rows[dim][first : first + length]
    for axis, index in (places or {}).items():
        rows[axis] = on_device(index, keys_B)
    # The element's number in the full tensor: a shard computes the same numbers for its part.
    index = torch.zeros((), dtype=torch.int64, device=keys_B.device)
    for axis, row in enumerate(rows):
        shape = [-1 if other == axis else 1 for other in range(len(rows))]
        index = index + row.reshape(shape) * prod(full[axis + 1 :])
    # The site keeps two dropouts of one sample apart.
    start = _mixed(keys_B ^ stable_seed(0, site)).reshape(-1, *(1,) * len(rows))
    # 53 bits, as many as a double's mantissa has; the shift also drops the sign.
    uniform = torch.bitwise_right_shift(_mixed(start + index), 10) & ((1 << _BITS) - 1)
    return uniform >= int(probability * (1 << _BITS))


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64 (Steele, Lea and Flood 2014): neighbours become independent. Integers wrap around in torch."""
    x = x * _signed(0x9E3779B97F4A7C15)
    x = (x ^ _right(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _right(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _right(x, 31)


def _right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shifted without the sign."""
    # torch shifts int64 with its sign; SplitMix64 is defined on unsigned words.
    # By this name CUDA's table of kernels has it.
    return torch.bitwise_right_shift(x, bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


# One thread for small tensors.


@contextmanager
def single_thread() -> Iterator[None]:
    """Torch on one thread of this process: the same bits on any number of cores, no spinning for tiny tensors."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
