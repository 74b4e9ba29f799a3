"""Pages of mapped files. Used by the sources of weights."""

import mmap
import sys


def drop_pages(data: mmap.mmap, begin: int, end: int) -> None:
    """Take whole pages of the range out of this process's memory; they stay in the system's file cache."""
    first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first and sys.platform == "linux":
        data.madvise(mmap.MADV_DONTNEED, first, last - first)
