"""What a checkpoint's list says: which tensors it holds, where their bytes are, and what was trained."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

from executor.trained import Trained

LIST: Final = 'simpar.json'
DIGEST: Final = 'simpar.json.sha256'
"""The digest of the list, as sha256sum writes it. Those of tensors are in the list."""
FORMAT: Final = 'simpar checkpoint 2'
OLD: Final = 'simpar checkpoint 1'
"""The format without digests, and without what was trained."""


def _loss(value: object) -> object:
    """The old format wrote null for what is no finite number."""
    return math.nan if value is None else value


class Chunk(BaseModel):
    """A box of a tensor, and where its bytes are.

    Arguments: ``digest``, SHA-256 of the bytes; empty in the old format.
    """

    model_config = ConfigDict(extra='forbid', frozen=True)
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    offset: int
    length: int
    digest: str = ''


class Stored(BaseModel):
    """A full tensor."""

    model_config = ConfigDict(extra='forbid', frozen=True)
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[Chunk, ...]


class Contents(BaseModel):
    """What a checkpoint holds.

    Arguments:
        step: how many steps were trained.
        seed: of weights and data.
        program: the hash of the program that wrote it.
        losses: of all steps so far; under a loss scale, one may be no finite number.
        trained: what was trained; None in the old format.
    """

    # JSON has no numbers that are not finite; by default they would be written as null.
    model_config = ConfigDict(extra='forbid', frozen=True, ser_json_inf_nan='strings')
    format: Literal['simpar checkpoint 2', 'simpar checkpoint 1'] = FORMAT
    step: int
    seed: int
    program: str
    losses: tuple[Annotated[float, BeforeValidator(_loss)], ...]
    tensors: dict[str, Stored]
    trained: Trained | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What one rank has written: the entries of its file, by name of the tensor."""

    entries: tuple[tuple[str, tuple[int, ...], str, Chunk], ...]

    def packed(self) -> str:
        """As JSON."""
        return json.dumps([[name, shape, dtype, chunk.model_dump()] for name, shape, dtype, chunk in self.entries])

    @classmethod
    def read(cls, text: str) -> Written:
        """From JSON."""
        return cls(tuple((name, tuple(shape), dtype, Chunk(**chunk)) for name, shape, dtype, chunk in json.loads(text)))


def for_torch(contents: Contents) -> dcp.Metadata:
    """The list as torch.distributed.checkpoint reads it."""
    tensors: dict[str, Any] = {}
    places = {}
    for name, stored in contents.tensors.items():
        chunks = [dcp.ChunkStorageMetadata(torch.Size(one.offsets), torch.Size(one.sizes)) for one in stored.chunks]
        properties = dcp.TensorProperties(dtype=getattr(torch, stored.dtype))
        tensors[name] = dcp.TensorStorageMetadata(properties, torch.Size(stored.shape), chunks)
        for one in stored.chunks:
            places[dcp.MetadataIndex(name, one.offsets)] = _StorageInfo(one.file, one.offset, one.length)
    return dcp.Metadata(state_dict_metadata=tensors, storage_data=places)
