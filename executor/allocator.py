"""The C library's memory: a rank keeps what it has freed, so that no step after the first asks the kernel for pages.

By default glibc gives large blocks back as soon as they are free, and each thread allocates from an arena of its own.
Then every step maps its activations anew, and the kernel zeroes their pages: time that comes and goes with the machine.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

TRIM_THRESHOLD: Final = -1
TOP_PAD: Final = -2
MMAP_MAX: Final = -4
ARENA_MAX: Final = -8
"""Numbers of glibc's ``mallopt``."""
MOST: Final = 2**31 - 1
PAD: Final = 2**24
"""Bytes by which memory grows at once."""
CHOSEN: Final = ('MALLOC_', 'LD_PRELOAD', 'GLIBC_TUNABLES')
"""How variables begin by which a user has chosen settings or another allocator."""


def keep_memory() -> bool:
    """Have this process keep its memory; threads that have allocated before keep their arenas.

    Returns False where the C library cannot be told, or the user has chosen otherwise.
    """
    library = ctypes.CDLL(None)
    # musl and macOS have no such call.
    if not hasattr(library, 'mallopt') or any(name.startswith(CHOSEN) for name in os.environ):
        return False
    # One arena: what one thread frees another uses. No mapped blocks and no trimming: nothing goes back.
    chosen = ((ARENA_MAX, 1), (MMAP_MAX, 0), (TRIM_THRESHOLD, MOST), (TOP_PAD, PAD))
    return bool(min(library.mallopt(number, value) for number, value in chosen) == 1)
