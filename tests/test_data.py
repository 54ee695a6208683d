"""MNIST's files, read or refused in words, and the generated images that stand in for them."""

import gzip
import logging
import struct

import numpy as np
import pytest
import torch

from executor import data
from simpar.errors import ScheduleError

pytestmark = pytest.mark.usefixtures('generated_images')


def idx(values):
    """IDX bytes as the format's page says, written here without the reader's help."""
    return bytes([0, 0, 8, values.ndim]) + b''.join(struct.pack('>i', n) for n in values.shape) + values.tobytes()


@pytest.fixture
def digits():
    draw = np.random.default_rng(3)
    return draw.integers(256, size=(50, 28, 28), dtype=np.uint8), draw.integers(10, size=50, dtype=np.uint8)


@pytest.fixture
def folder(tmp_path, digits):
    images, labels = digits
    (tmp_path / data.IMAGES).write_bytes(idx(images))
    (tmp_path / f'{data.LABELS}.gz').write_bytes(gzip.compress(idx(labels)))
    return tmp_path


def test_files_are_read_gzipped_or_not(folder, digits):
    read = data.load(str(folder))
    np.testing.assert_array_equal(read.images, digits[0])
    np.testing.assert_array_equal(read.labels, digits[1])


def test_a_batch_holds_normalised_images_and_their_labels(folder, digits, monkeypatch):
    monkeypatch.setenv('DATA_PATH', str(folder))
    x = data.batch((20, 784), torch.float64, seed=1, index=0)
    labels = data.batch((20,), torch.int64, seed=1, index=0)
    pixels = ((x * 0.3081 + 0.1307) * 255).round().to(torch.uint8).reshape(20, 28, 28).numpy()
    for image, label in zip(pixels, labels.tolist(), strict=True):
        (found,) = np.flatnonzero((digits[0] == image).all(axis=(1, 2)))
        assert digits[1][found] == label


def test_an_epoch_shows_every_image_once_and_the_next_in_another_order(folder, monkeypatch):
    monkeypatch.setenv('DATA_PATH', str(folder))
    epochs = [torch.cat([data.batch((10, 28, 28), torch.float64, 7, e * 5 + i) for i in range(5)]) for e in range(2)]
    images = [{image.numpy().tobytes() for image in epoch} for epoch in epochs]
    assert len(images[0]) == 50
    assert images[0] == images[1]
    assert not torch.equal(*epochs)
    assert torch.equal(data.batch((10, 28, 28), torch.float64, 7, 0), epochs[0][:10])
    assert not torch.equal(data.batch((10, 28, 28), torch.float64, 8, 0), epochs[0][:10])


def test_without_files_images_are_generated_and_that_is_said_once(caplog, monkeypatch, tmp_path):
    monkeypatch.setenv('DATA_PATH', str(tmp_path))
    with caplog.at_level(logging.WARNING, 'executor'):
        for index in range(3):
            data.batch((32, 784), torch.float32, seed=0, index=index)
    (record,) = caplog.records
    assert record.message == (
        f'DATA_PATH {tmp_path} has no train-images-idx3-ubyte[.gz]: training on generated images of 10 classes'
    )


def broken_magic(folder):
    (folder / data.IMAGES).write_bytes(b'\x89PNG' + bytes(100))


def broken_gzip(folder):
    content = (folder / f'{data.LABELS}.gz').read_bytes()
    (folder / f'{data.LABELS}.gz').write_bytes(content[: len(content) // 2])


def swapped(folder):
    (folder / data.IMAGES).write_bytes(gzip.decompress((folder / f'{data.LABELS}.gz').read_bytes()))


@pytest.mark.parametrize(
    ('breaks', 'message'),
    [
        (broken_magic, 'is no IDX file of bytes in 3 dims (starts with 89504e47)'),
        (broken_gzip, 'cannot be read: '),
        (swapped, 'is no IDX file of bytes in 3 dims (starts with 00000801)'),
    ],
)
def test_broken_files_are_refused_by_name(folder, breaks, message):
    breaks(folder)
    with pytest.raises(ScheduleError) as caught:
        data.load(str(folder))
    (problem,) = caught.value.problems
    assert problem.where.startswith(str(folder))
    assert message in str(problem)


def test_a_batch_larger_than_the_data_is_refused(folder, monkeypatch):
    monkeypatch.setenv('DATA_PATH', str(folder))
    with pytest.raises(ScheduleError, match='a batch of 51 is asked of 50 images; write at most 50'):
        data.batch((51, 784), torch.float32, 0, 0)
