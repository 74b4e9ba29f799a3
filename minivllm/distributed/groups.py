"""Ranks and their groups: which workers share layers and which follow each other. Pure; for executors and workers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where one worker stands among those of its engine core."""

    rank: int = 0
    tensor_rank: int = 0  # among those that share its layers
    tensor_size: int = 1
    pipeline_rank: int = 0  # its stage
    pipeline_size: int = 1
    local_rank: int = 0  # among those on its machine
    local_size: int = 1

    @property
    def speaks(self) -> bool:
        """Whether it is the one that samples for all, and sends the results of steps."""
        return self.tensor_rank == 0 and self.pipeline_rank == self.pipeline_size - 1


ALONE = Place()


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks of one engine core: rank = pipeline_rank * tensor_size + tensor_rank, so that those that talk most are adjacent.
    Machines have equally many each, in the order of the ranks.
    """

    tensor_size: int = 1
    pipeline_size: int = 1
    num_machines: int = 1

    @property
    def world_size(self) -> int:
        return self.tensor_size * self.pipeline_size

    def tensor_groups(self) -> list[list[int]]:
        """Ranks that share the same layers."""
        size = self.tensor_size
        return [list(range(first, first + size)) for first in range(0, self.world_size, size)]

    def pipeline_groups(self) -> list[list[int]]:
        """Ranks that follow each other, stage by stage."""
        return [list(range(first, self.world_size, self.tensor_size)) for first in range(self.tensor_size)]

    def place(self, rank: int) -> Place:
        assert 0 <= rank < self.world_size and self.world_size % self.num_machines == 0
        stage, share = divmod(rank, self.tensor_size)
        local_size = self.world_size // self.num_machines
        return Place(rank, share, self.tensor_size, stage, self.pipeline_size, rank % local_size, local_size)
