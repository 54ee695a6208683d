"""Handwritten digits: MNIST's IDX files from the folder DATA_PATH, or generated images of ten learnable classes.

IDX as http://yann.lecun.com/exdb/mnist describes it: big-endian magic 0x0000 08 <dims>, one size a dim, then bytes.
"""

import gzip
import hashlib
import io
import logging
import os
import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from simpar import files
from simpar.errors import refusal

Bytes = NDArray[np.uint8]
IMAGES: Final = 'train-images-idx3-ubyte'
LABELS: Final = 'train-labels-idx1-ubyte'
INITIAL: Final = 'mnist'
"""How a tensor says that it holds these data."""
CLASSES: Final = 10
SIDE: Final = 28
GENERATED: Final = 8192
MOST_BYTES: Final = 2**30
"""Of a file, unpacked."""
MEAN, DEVIATION = 0.1307, 0.3081
"""Of MNIST's training pixels in [0, 1], as the tutorials normalise them."""


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """Images in bytes, shape [count, rows, columns], and their classes, shape [count]."""

    images: Bytes
    labels: Bytes


def batch(shape: tuple[int, ...], dtype: torch.dtype, seed: int, index: int) -> torch.Tensor:
    """Batch number ``index`` of a shuffle that is new each epoch: normalised images, or classes for an integer dtype.

    Arguments: ``shape`` [batch, pixels...] or [batch]. Raises ``ScheduleError`` where the images are not of this shape.
    """
    digits = load(os.environ.get('DATA_PATH', ''))
    # Images and labels of one batch number are drawn by separate calls, so the shuffle must follow from its arguments.
    rows = _shuffle(len(digits.labels), shape[0], seed, index)
    if not dtype.is_floating_point:
        return torch.from_numpy(digits.labels[rows].astype(np.int64)).to(dtype)
    pixels = digits.images[rows].astype(np.float64).reshape(shape[0], -1)
    if pixels.shape[1] != prod(shape[1:]):
        raise refusal('workload', f'an image has {pixels.shape[1]} pixels, the network takes {prod(shape[1:])} inputs')
    return torch.from_numpy((pixels / 255 - MEAN) / DEVIATION).reshape(shape).to(dtype)


@lru_cache(maxsize=1)
def load(folder: str) -> Digits:
    """The images of a folder, or generated ones (saying so) where it has none of the files.

    Raises: ScheduleError where the files are there and are not MNIST's.
    """
    digits = _read(folder)
    # Tests and first trials should run without a download; a warning says that digits are generated.
    if digits is None:
        where = f'DATA_PATH {folder} has no {IMAGES}[.gz]' if folder else 'DATA_PATH is not set'
        logging.getLogger('executor').warning('%s: training on generated images of %d classes', where, CLASSES)
        return generate()
    return digits


def identity(folder: str) -> str:
    """A digest of the images that ``load`` would give: equal for equal data, wherever they lie."""
    digits = _read(folder)
    if digits is None:
        return 'generated images'
    digest = hashlib.sha256(np.ascontiguousarray(digits.images).tobytes())
    digest.update(digits.labels.tobytes())
    return f'images {digest.hexdigest()[:12]}'


def _read(folder: str) -> Digits | None:
    """The images of a folder; None where it has none of the files."""
    images, labels = (_find(folder, name) for name in (IMAGES, LABELS))
    if images is None and labels is None:
        return None
    if images is None or labels is None:
        raise refusal(folder, f'{LABELS if images else IMAGES}[.gz] is missing', 'put both files there, or neither')
    digits = Digits(read_idx(images, dims=3), read_idx(labels, dims=1))
    if len(digits.images) != len(digits.labels):
        raise refusal(labels, f'{len(digits.labels)} labels for {len(digits.images)} images')
    if digits.labels.size and digits.labels.max() >= CLASSES:
        raise refusal(labels, f'a label is {digits.labels.max()}, but there are {CLASSES} classes')
    return digits


def read_idx(path: Path, dims: int) -> Bytes:
    """An IDX file of bytes, gzipped or not.

    Raises: ScheduleError where it is none, has other dims, or is cut short.
    """
    try:
        content = files.read_regular(path, MOST_BYTES)
        if path.suffix == '.gz':
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(MOST_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise refusal(path, f'cannot be read: {error}', 'fetch it again') from error
    head = 4 + 4 * dims
    # 8 is IDX's code of unsigned bytes.
    if len(content) < head or content[:4] != bytes((0, 0, 8, dims)):
        raise refusal(
            str(path), f'is no IDX file of bytes in {dims} dims (starts with {content[:4].hex() or "nothing"})'
        )
    sizes = struct.unpack(f'>{dims}I', content[4:head])
    # A download that broke off has a right header and too few bytes.
    if len(content) != head + prod(sizes):
        raise refusal(path, f'holds {len(content) - head} bytes, its header says {prod(sizes)}', 'fetch it again')
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(sizes)


def generate(count: int = GENERATED) -> Digits:
    """Images like MNIST's in size and brightness: a pattern for each class, its strength and every pixel disturbed."""
    # A fixed seed: the data set is the same whatever the seed of a run, as MNIST is.
    draw = np.random.default_rng(0)
    # Blocks of 4 × 4 pixels, a fifth of them set: about MNIST's share of ink, and patterns that a network tells apart.
    coarse = draw.random((CLASSES, SIDE // 4, SIDE // 4)) < 0.2
    patterns = np.kron(coarse, np.ones((4, 4)))
    labels = draw.integers(CLASSES, size=count).astype(np.uint8)
    strength = draw.uniform(0.5, 1.0, size=(count, 1, 1))
    noise = draw.normal(0.0, 0.15, size=(count, SIDE, SIDE))
    return Digits((np.clip(patterns[labels] * strength + noise, 0, 1) * 255).astype(np.uint8), labels)


def _find(folder: str, name: str) -> Path | None:
    candidates = (Path(folder, name), Path(folder, f'{name}.gz')) if folder else ()
    return next((path for path in candidates if path.is_file()), None)


def _shuffle(count: int, size: int, seed: int, index: int) -> NDArray[np.int64]:
    if count < size:
        raise refusal('workload.batch', f'a batch of {size} is asked of {count} images', f'write at most {count}')
    # A rest that fills no batch is left out of its epoch, so that all batches have one shape.
    epoch, within = divmod(index, count // size)
    return _permutation(count, seed, epoch)[within * size : (within + 1) * size]


@lru_cache(maxsize=2)
def _permutation(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, epoch)).permutation(count)
