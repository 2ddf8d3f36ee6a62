"""The memory of a server process: it keeps what it will need again in the next turn or commit.

Nearly everything is freed by reference counts, so the garbage collector rarely has anything to find. And the C library
returns the buffers of every large commit to the kernel, which clears their pages and maps them again for the next one.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc

_COLLECT_AFTER = (50_000, 20, 100)
_KEPT_BYTES = 16 << 20
_LARGEST_KEPT_BYTES = 4 << 20
# from glibc's malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_memory() -> None:
    """Call it once the server has started: what exists now is not looked at again by the garbage collector."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    with contextlib.suppress(AttributeError, OSError, TypeError):  # only glibc can be told
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        set_option(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
