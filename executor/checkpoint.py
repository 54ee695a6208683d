"""Checkpoints: parameters and optimizer states by name, whole or not at all, read back into any plan.

A checkpoint is a folder in the format of torch.distributed.checkpoint, with a list of its own, ``simpar.json``, of what
stands where. torch's list, ``.metadata``, is a pickle, which can run code: it is written for other readers, and never
read here. Tensors are read by ``torch.load(weights_only=True)``.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import math
import os
import pickle
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from executor import data
from executor.tensors import Piece, bounds, names, persistent, pieces
from simpar import document, files
from simpar.case import Case
from simpar.document.tree import Tree
from simpar.errors import Problem, ScheduleError, refusal, refuse
from simpar.program import Program
from simpar.schedule import Schedule
from simpar.torch_module.graph import module_name
from simpar.workload import MODEL, Workload

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

MAY_CHANGE: Final = frozenset(
    {
        *('strategy', 'layout', 'out_strategy', 'out_layout', 'comm_fusion', 'pipeline_stage', 'recompute'),
        *('loss_strategy', 'loss_strategies', 'loss_operators', 'loss_scale', 'attention', 'imbalance'),
    }
)
"""The keys of a workload that say how it is computed. Cluster, plan and number of steps may change, too; all else says
what is trained."""
_LONGEST: Final = 60


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training trains.

    Arguments:
        workload: the plain tree of the workload.
        dtype: what takes the place of every floating dtype; empty: nothing.
        data: where batches come from.
    """

    workload: Mapping[str, Any]
    dtype: str
    data: str

    @classmethod
    def of(cls, case: Case, dtype: str, *, own: bool) -> Trained:
        """Of a case. Arguments: ``own``, whether the caller gives batches."""
        workload = case.schedule.workload
        tree = document.dump(workload, Workload)
        source = 'given by the caller'
        if not own:
            drawn = workload.data == 'random'
            source = 'drawn' if drawn else data.identity(os.environ.get('DATA_PATH', ''))
        return cls({'model': tree.pop(MODEL), **tree}, dtype, source)

    def check(self, before: Trained, schedule: Schedule, folder: Path) -> None:
        """Raise ``ScheduleError`` with all that the checkpoint in a folder was trained with and this run is not."""
        problems = [
            Problem(schedule.where(key), f'{key}: is {_text(now)}, but {folder} was trained with {_text(then)}', _AS)
            for key, now, then in _differences('workload', self._in_full(folder), before._in_full(folder))
        ]
        for name, now, then in (('dtype', self.dtype, before.dtype), ('data', self.data, before.data)):
            if now != then:
                what = f'is {now or _OWN}, but {folder} was trained with {then or _OWN}'
                problems.append(Problem(name, what, _AS))
        refuse(document.one_screen(problems))

    def _in_full(self, folder: Path) -> Mapping[str, Any]:
        """The workload as this version writes it, with the defaults of keys that an older one did not know."""
        tree = {MODEL if key == 'model' else key: value for key, value in self.workload.items()}
        try:
            workload = document.dump(document.build(Tree(root=tree, origins={}), Workload), Workload)
        except ScheduleError as error:
            first = error.problems[0]
            what = f'was trained with a workload that this version cannot read: {first}'
            raise refusal(folder, what, 'go on with the version of simpar that wrote it') from None
        return {**workload.pop(MODEL), **workload}


_OWN: Final = 'that of the schedule'
_AS: Final = 'write that again, or name another folder for a new training'


def _differences(key: str, now: Any, then: Any) -> Iterator[tuple[str, Any, Any]]:
    """Keys that say what is trained and differ, with both values; none below a key that differs already."""
    if key.endswith('.module.graph'):
        # By name, so that one operator more is one difference. Sources and notes tell where it comes from.
        now, then = ({node.pop('name'): node for node in json.loads(one)['nodes']} for one in (now, then))
    mine, theirs = _kind(now), _kind(then)
    if mine != theirs:
        yield key, mine, theirs
    elif mine is not now:
        ours, others = (one if isinstance(one, Mapping) else dict(enumerate(one)) for one in (now, then))
        for part in dict.fromkeys((*ours, *others)):
            if part not in MAY_CHANGE:
                yield from _differences(f'{key}.{part}', ours.get(part, _ABSENT), others.get(part, _ABSENT))


def _kind(value: Any) -> Any:
    """A value; of one whose parts are compared one by one, its kind or length."""
    if isinstance(value, Mapping):
        return ', '.join(value) if len(value) == 1 else '{…}'
    return f'a list of {len(value)}' if isinstance(value, list) and any(isinstance(of, dict) for of in value) else value


_ABSENT: Final = object()


def _text(value: Any) -> str:
    text = 'absent' if value is _ABSENT else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f'{text[: _LONGEST - 1]}…'


# What a checkpoint's list says: which tensors it holds, where their bytes are, and what was trained.

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


def for_torch(contents: Contents) -> Metadata:
    """The list as torch.distributed.checkpoint reads it; it takes two seconds to import, which other ranks spare."""
    from torch.distributed.checkpoint import metadata as dcp
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    tensors: dict[str, Any] = {}
    places = {}
    for name, stored in contents.tensors.items():
        chunks = [dcp.ChunkStorageMetadata(torch.Size(one.offsets), torch.Size(one.sizes)) for one in stored.chunks]
        properties = dcp.TensorProperties(dtype=getattr(torch, stored.dtype))
        tensors[name] = dcp.TensorStorageMetadata(properties, torch.Size(stored.shape), chunks)
        for one in stored.chunks:
            places[dcp.MetadataIndex(name, one.offsets)] = _StorageInfo(one.file, one.offset, one.length)
    return dcp.Metadata(state_dict_metadata=tensors, storage_data=places)


# Checkpoints: parameters and optimizer states by name, whole or not at all, read back into any plan.

LOCK: Final = '.lock'
KEPT: Final = 2
"""Checkpoints that stay: the last, and the one before it."""
MOST_BYTES: Final = 2**32
_FOLDER: Final = re.compile(r'step-(\d{6,})')
_FILE: Final = re.compile(r'__\d+_0\.distcp')


def write_rank(folder: Path, program: Program, rank: int, held: Mapping[str, torch.Tensor]) -> str:
    """Write what a rank holds and no lower rank does, into the folder of a checkpoint that is not yet whole.

    Returns the entries of its file as JSON: name, shape and dtype of a tensor, and a ``Chunk``.
    """
    folder = _unfinished(folder)
    folder.mkdir(parents=True, exist_ok=True)
    name = f'__{rank}_0.distcp'
    entries = []
    with files.naming(folder / name), (folder / name).open('wb') as file:
        for piece in _own(program, rank, held):
            begin, content = file.tell(), io.BytesIO()
            # A clone: a view would be saved with all of the memory that it looks into.
            torch.save(piece.values.detach().cpu().clone(memory_format=torch.contiguous_format), content)
            # Of the bytes in memory: those on the disk may differ already.
            digest = hashlib.sha256(content.getbuffer()).hexdigest()
            length = file.write(content.getbuffer())
            chunk = {'offsets': piece.offsets, 'sizes': piece.sizes, 'file': name, 'offset': begin, 'length': length}
            dtype = str(piece.values.dtype).removeprefix('torch.')
            entries.append((piece.name, piece.shape, dtype, {**chunk, 'digest': digest}))
        file.flush()
        os.fsync(file.fileno())
    return json.dumps(entries)


def finish(folder: Path, written: Iterable[str], contents: Contents) -> Path:
    """Make a checkpoint whole once all ranks have written; removes old ones. Returns its folder."""
    tensors: dict[str, dict[str, Any]] = {}
    for name, shape, dtype, chunk in chain.from_iterable(map(json.loads, written)):
        tensors.setdefault(name, {'shape': shape, 'dtype': dtype, 'chunks': []})['chunks'].append(chunk)
    whole = contents.model_copy(update={'tensors': {name: Stored(**of) for name, of in tensors.items()}})
    unfinished = _unfinished(folder)
    _all_here(unfinished, whole)
    files.write_atomically(unfinished / '.metadata', pickle.dumps(for_torch(whole)))
    text = whole.model_dump_json().encode()
    files.write_atomically(unfinished / DIGEST, f'{hashlib.sha256(text).hexdigest()}  {LIST}\n')
    files.write_atomically(unfinished / LIST, text)
    _sync(unfinished)
    # What stands there is not whole, or the training would have gone on from it.
    shutil.rmtree(folder, ignore_errors=True)
    # One rename: a reader finds all of it or nothing.
    unfinished.rename(folder)
    _sync(folder.parent)
    for old in _all(folder.parent)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def _all_here(folder: Path, contents: Contents) -> None:
    """Raise where a rank has written on another host's disk."""
    for name in sorted({chunk.file for stored in contents.tensors.values() for chunk in stored.chunks}):
        if not (folder / name).is_file():
            what = f'{name} is not there: its rank wrote on another disk'
            raise refusal(folder, what, 'give a folder that all hosts share')


def folder_of(root: Path, step: int) -> Path:
    """Where the checkpoint after so many steps is."""
    return root / f'step-{step:06d}'


def latest(root: Path) -> Path | None:
    """The last whole checkpoint of a folder; None where it has none."""
    return checkpoints[-1] if (checkpoints := _all(root)) else None


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Within it, no other training writes into a folder; raises ``ScheduleError`` that names who does."""
    with files.naming(root):
        root.mkdir(parents=True, exist_ok=True)
        handle = os.open(root / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.write(handle, f'process {os.getpid()} on {os.uname().nodename}'.encode())
        yield
    except BlockingIOError:
        who = os.read(handle, 200).decode(errors='replace')
        raise refusal(root, f'another training writes here ({who})', 'let it end, or name another folder') from None
    finally:
        os.close(handle)


def clear(root: Path) -> None:
    """Remove what an interrupted run has left half written."""
    for path in root.glob('step-*.unfinished'):
        shutil.rmtree(path, ignore_errors=True)


def contents_of(folder: Path) -> Contents:
    """Read the list of a checkpoint; raises ``ScheduleError`` where it is none."""
    contents, problem = _list_of(folder)
    if contents is None:
        raise _damaged(folder, problem)
    return contents


def _list_of(folder: Path) -> tuple[Contents | None, Problem]:
    """The list of a checkpoint, or what is wrong with it."""
    path, digest = folder / LIST, folder / DIGEST
    try:
        text = files.read_regular(path, MOST_BYTES)
        stated = files.read_regular(digest, len(text) + 1024).split()[:1] if digest.exists() else []
        # Before it is parsed: a changed byte is damage, whether or not it reads as a list still.
        if stated and stated != [hashlib.sha256(text).hexdigest().encode()]:
            return None, Problem(str(path), f'is damaged: its digest is not the one in {DIGEST}')
        contents = Contents.model_validate_json(text)
    except OSError as error:
        return None, Problem(str(path), error.strerror or str(error))
    except ValidationError as error:
        first = error.errors()[0]
        place = '.'.join(map(str, first['loc'])) or 'the file'
        return None, Problem(str(path), f'is not the list of a checkpoint: {place}: {first["msg"]}')
    if not stated and contents.format != OLD:
        return None, Problem(str(path), f'is damaged: it has no digest in {DIGEST}')
    for name, stored in contents.tensors.items():
        if not all(_FILE.fullmatch(chunk.file) for chunk in stored.chunks):
            what = f'{name} is said to be in a file of another name than __RANK_0.distcp'
            return None, Problem(str(path), what)
        if any({len(chunk.offsets), len(chunk.sizes)} != {len(stored.shape)} for chunk in stored.chunks):
            return None, Problem(str(path), f'{name} has a part of other dims than its {len(stored.shape)}')
        if not isinstance(getattr(torch, stored.dtype, None), torch.dtype):
            return None, Problem(str(path), f'{name} has no dtype of torch (got {stored.dtype[:40]!r})')
    return contents, Problem(str(path), '')


def check_names(folder: Path, contents: Contents, program: Program) -> None:
    """Raise ``ScheduleError`` where a checkpoint has tensors that a program does not have: it is of another model."""
    more = sorted(contents.tensors.keys() - names(program))
    if more:
        what = f'has {more[0]}' + (f' and {len(more) - 1} more tensors' if len(more) > 1 else '')
        raise _wrong(folder / LIST, f'{what}, which this model and optimizer do not have')


def read_rank(folder: Path, contents: Contents, program: Program, rank: int, held: Mapping[str, torch.Tensor]) -> None:
    """Fill what a rank holds from a checkpoint of any plan of the same model.

    Raises ``ScheduleError`` where something is missing or has another shape.
    """
    of_tensors = (pieces(program, rank, tensor, held[tensor.name]) for tensor in persistent(program, rank))
    _fill(folder, contents, chain.from_iterable(of_tensors))


def parameters_of(folder: Path, contents: Contents, program: Program) -> dict[str, torch.Tensor]:
    """The full parameters of a checkpoint, by the names that the program has for them."""
    parts = {}
    for tensor in program.tensors:
        for name in (tensor.members or (tensor.name,)) if tensor.kind == 'parameter' else ():
            weight = program.tensor[name]
            own, shape = module_name(weight.like or name), tuple(weight.shape)
            dtype = getattr(torch, contents.tensors[own].dtype) if own in contents.tensors else torch.float32
            parts[weight.like or name] = Piece(own, shape, (0,) * len(shape), shape, torch.empty(shape, dtype=dtype))
    _fill(folder, contents, parts.values())
    return {name: piece.values for name, piece in parts.items()}


def _fill(folder: Path, contents: Contents, wanted: Iterable[Piece]) -> None:
    """Fill boxes of tensors from a checkpoint."""
    of_chunks: dict[Chunk, list[Piece]] = {}
    for piece in wanted:
        for chunk in _overlapping(folder, contents, piece):
            of_chunks.setdefault(chunk, []).append(piece)
    # File after file, each from its beginning to its end.
    for chunk in sorted(of_chunks, key=lambda one: (one.file, one.offset)):
        values = _values(folder, chunk)
        for piece in of_chunks[chunk]:
            if tuple(values.shape) != chunk.sizes:
                what = f'{piece.name} has shape {list(values.shape)}, not {list(chunk.sizes)}'
                raise _wrong(folder / chunk.file, what)
            both = _overlap(piece, chunk)
            here, there = (
                tuple(slice(low - at, high - at) for (low, high), at in zip(both, corner, strict=True))
                for corner in (piece.offsets, chunk.offsets)
            )
            piece.values[here].copy_(values[there])


def _overlapping(folder: Path, contents: Contents, piece: Piece) -> list[Chunk]:
    """The chunks of a checkpoint that a piece has elements of; together they must have all of them."""
    stored = contents.tensors.get(piece.name)
    if stored is None:
        what = f'has no {piece.name}; it has {len(contents.tensors)} tensors of another model or optimizer'
        raise _wrong(folder / LIST, what)
    if stored.shape != piece.shape:
        raise _wrong(folder / LIST, f'{piece.name} has shape {list(stored.shape)}, the model {list(piece.shape)}')
    chunks = [chunk for chunk in stored.chunks if all(low < high for low, high in _overlap(piece, chunk))]
    covered = sum(math.prod(high - low for low, high in _overlap(piece, chunk)) for chunk in chunks)
    if covered != piece.values.numel():
        raise _wrong(folder / LIST, f'{piece.name} is not whole: {covered} of {piece.values.numel()} elements')
    return chunks


def _overlap(piece: Piece, chunk: Chunk) -> list[tuple[int, int]]:
    """Begin and end of what both have, along each dim of the full tensor."""
    return [
        (max(mine, theirs), min(mine + size, theirs + length))
        for mine, size, theirs, length in zip(piece.offsets, piece.sizes, chunk.offsets, chunk.sizes, strict=True)
    ]


def _values(folder: Path, chunk: Chunk) -> torch.Tensor:
    path = folder / chunk.file
    try:
        content = _content(folder, chunk)
    except OSError as error:
        raise _damaged(folder, Problem(str(path), f'cannot be read: {error.strerror or error}')) from None
    if chunk.digest and hashlib.sha256(content).hexdigest() != chunk.digest:
        where = f'bytes {chunk.offset} to {chunk.offset + chunk.length}'
        raise _damaged(folder, Problem(str(path), f'is damaged: {where} do not have their digest'))
    try:
        # Tensors alone: a file that is read must not run code.
        tensor = torch.load(io.BytesIO(content), weights_only=True)
    # What torch makes of broken bytes fails in any way.
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _damaged(folder, Problem(str(path), f'cannot be read: {reason[:100]}')) from None
    if not isinstance(tensor, torch.Tensor):
        raise _wrong(path, 'holds something else than tensors')
    return tensor


def _content(folder: Path, chunk: Chunk) -> bytes:
    with (folder / chunk.file).open('rb') as file:
        file.seek(chunk.offset)
        return file.read(chunk.length)


def _own(program: Program, rank: int, held: Mapping[str, torch.Tensor]) -> Iterable[Piece]:
    """The pieces of a rank that no lower rank has."""
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for tensor in persistent(program, rank):
        # Replicas: the lowest of the ranks whose shards begin at one place writes.
        if _first_holder(program, tensor.name, rank) == rank:
            for piece in pieces(program, rank, tensor, held[tensor.name]):
                if (piece.name, piece.offsets) not in seen:
                    seen.add((piece.name, piece.offsets))
                    yield piece


def _first_holder(program: Program, name: str, rank: int) -> int:
    """The lowest rank that holds the same shard as this one."""
    tensor = program.tensor[name]
    # A packed tensor's members may be shards of their own, by other partitions.
    parts = [tensor, *(program.tensor[member] for member in tensor.members)]
    mine = [bounds(program, part, rank) for part in parts]
    for other in range(rank):
        if program.holds(other, name) and [bounds(program, part, other) for part in parts] == mine:
            return other
    return rank


def _all(root: Path) -> Sequence[Path]:
    """All whole checkpoints of a folder, the oldest first."""
    folders = [path for path in root.glob('step-*') if _FOLDER.fullmatch(path.name) and (path / LIST).is_file()]
    return sorted(folders, key=_step)


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix('step-'))


def _unfinished(folder: Path) -> Path:
    return folder.with_name(f'{folder.name}.unfinished')


def _sync(folder: Path) -> None:
    """Let the disk know of a rename."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _wrong(path: Path, what: str) -> ScheduleError:
    return refusal(path, what, 'name a folder that a run with checkpoint=DIR has written, whole')


def _damaged(folder: Path, problem: Problem) -> ScheduleError:
    """What is wrong with a checkpoint that a run has written, and which earlier one is good."""
    for earlier in reversed(_all(folder.parent)):
        if _step(earlier) < _step(folder) and _is_good(earlier):
            return refusal(problem.place, problem.what, f'remove {folder}, and training goes on from {earlier.name}')
    remedy = 'no earlier checkpoint is good: copy this one again, or begin in another folder'
    return refusal(problem.place, problem.what, remedy)


def _is_good(folder: Path) -> bool:
    """Whether everything in a checkpoint has its digest; one of the old format has none."""
    contents, _ = _list_of(folder)
    if contents is None:
        return False
    chunks = [chunk for stored in contents.tensors.values() for chunk in stored.chunks]
    try:
        return all(hashlib.sha256(_content(folder, chunk)).hexdigest() == (chunk.digest or None) for chunk in chunks)
    except OSError:
        return False
