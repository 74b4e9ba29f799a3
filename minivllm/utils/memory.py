"""Pages of mapped files. Used by the sources of weights."""

import ctypes
import mmap
import sys


def drop_pages(data: mmap.mmap, begin: int, end: int) -> None:
    """Take whole pages of the range out of this process's memory; they stay in the system's file cache."""
    first, last = _whole_pages(begin, end)
    if last > first and sys.platform == "linux":
        data.madvise(mmap.MADV_DONTNEED, first, last - first)


def drop_mapped(address: int, num_bytes: int) -> None:
    """The same where a library has mapped the file. In memory of another kind the data would be lost."""
    first, last = _whole_pages(address, address + num_bytes)
    if last > first and sys.platform == "linux":
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


def _whole_pages(begin: int, end: int) -> tuple[int, int]:
    return -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
