"""Memory as a person and as a program read it."""

from __future__ import annotations

from typing import Any

from simpar.memory.memory import Memory
from simpar.memory.rank import RankMemory
from simpar.units import format_size


def peak_summary(rank: RankMemory, size: float | None = None) -> str:
    """A rank's peak in a sentence: how much, of how much, at which op, of what; ``size``, bytes of its device."""
    kinds = ', '.join(f'{kind} {format_size(held)}' for kind, held in rank.peak_kinds.items())
    of = '' if size is None else f' of {format_size(size)}'
    more = f' (and {rank.ranks - 1} like it)' if rank.ranks > 1 else ''
    return f'rank {rank.rank}{more} holds {format_size(rank.peak_bytes)}{of} at {rank.peak_action}: {kinds}'


def memory_to_dict(memory: Memory, size: float | None = None) -> dict[str, Any]:
    """The peaks as one object, in bytes and seconds; ``size``, bytes of a device."""
    return {'peak': memory.peak, 'device': size, 'ranks': [_rank(rank) for rank in memory.ranks]}


def _rank(rank: RankMemory) -> dict[str, Any]:
    peak = rank.peak
    return {
        'rank': rank.rank,
        'stands_for': rank.ranks,
        'peak': peak.bytes,
        'time': peak.time,
        'op': peak.action,
        'always': rank.always,
        'kinds': peak.kinds,
        'activations': peak.operators,
        'slices': [
            {'micro_batch': micro_batch, 'copy': copy, 'bytes': size}
            # By micro-batch and copy: the order in which a reader looks for them.
            for (micro_batch, copy), size in sorted(peak.slices.items())
        ],
    }
