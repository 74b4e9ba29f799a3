"""`Segment`: memory without a name that goes from process to process by its descriptor."""

import mmap
import os


class Segment:
    """The workers of this machine open it by `path`. It ends when all have gone that hold it, however they went."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor

    @classmethod
    def new(cls, size: int) -> "Segment":
        segment = cls(os.memfd_create("minivllm-kv"))
        os.ftruncate(segment.descriptor, size)
        return segment

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def map(self) -> mmap.mmap:
        return mmap.mmap(self.descriptor, 0)

    def __del__(self) -> None:
        os.close(self.descriptor)
