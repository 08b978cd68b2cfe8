"""The samples of each step: the same on any number of processes, and from any step on."""

from dataclasses import dataclass

import numpy as np

from ...utils.rng import hashed


@dataclass(frozen=True)
class Share:
    """Which of the processes this one is."""

    rank: int = 0
    processes: int = 1


ALONE = Share()


@dataclass(frozen=True)
class BatchOrder:
    """A new order of all samples in every epoch, cut into batches; an incomplete last batch is dropped."""

    images: int  # how many there are
    batch_size: int  # of a step, over all processes
    share: Share = ALONE
    accumulate: int = 1  # passes of a process that make a step
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch_size % self.parts:
            down = self.batch_size // self.parts * self.parts
            better = " or ".join(str(size) for size in (down, down + self.parts) if size)
            raise ValueError(
                f"batch_size {self.batch_size} does not divide into {self.parts} equal parts (processes times "
                f"accumulate): needs e.g. {better}"
            )
        if self.images < self.batch_size:
            raise ValueError(
                f"there are {self.images} images to learn from, fewer than a batch of {self.batch_size}: "
                f"needs a smaller --batch_size"
            )

    @property
    def parts(self) -> int:
        """Passes of all processes that make a step."""
        return self.share.processes * self.accumulate

    @property
    def steps(self) -> int:
        """In an epoch."""
        return self.images // self.batch_size

    def passes(self, epoch: int, first_step: int = 0) -> np.ndarray:
        """The samples of each pass of this process in an epoch, from a step on, as [passes, batch_size / parts]."""
        order = np.random.default_rng(int(hashed(self.seed, epoch))).permutation(self.images)
        steps = order[: self.steps * self.batch_size].reshape(self.steps, self.parts, -1)
        mine = steps[first_step:, self.share.rank :: self.share.processes]
        return mine.reshape(-1, mine.shape[-1])
