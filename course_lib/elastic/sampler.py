"""Which samples come next, whatever the number of ranks: a sampler that stops at any step and resumes exactly there.

The order of an epoch depends on the seed alone, and so does where each global batch begins. The ranks only cut each
global batch into slices. So three ranks go on where four have stopped: no sample is seen twice in an epoch, and none is
left out. Two numbers must be saved: the epoch and the position in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from course_lib.data.sharding import shuffled, split_range


class ElasticSampler:
    """Gives each rank its slice of the next global batch of an endless, shuffled run through the samples.

    The last batch of an epoch holds what is left, so it can be smaller. Slices differ in length by at most one, and
    a rank's slice can be empty. So a rank's loss is the sum over its samples divided by the size of the *global*
    batch, and gradients are summed over the ranks. The step is then that of one device, whatever the number of ranks.

    Args:
        samples: how many there are.
        batch_size: of the global batch.
        seed: of the order; each epoch has its own order.
    """

    def __init__(self, samples: int, batch_size: int, seed: int = 0) -> None:
        if not 1 <= batch_size <= samples:
            raise ValueError(f"batch_size is {batch_size}; it must lie between 1 and {samples} samples.")
        self.samples, self.batch_size, self.seed = samples, batch_size, seed
        self.epoch = self.position = 0  # the samples of this epoch that training has used

    def global_batch(self) -> Tensor:
        """The numbers of the samples that all ranks use next, int64."""
        return shuffled(self.samples, self.seed, self.epoch)[self.position : self.position + self.batch_size]

    def batch(self, rank: int, ranks: int) -> Tensor:
        """This rank's slice of the global batch. Asked again, it gives the same: a step that failed can be repeated."""
        batch = self.global_batch()
        own = split_range(len(batch), rank, ranks)
        return batch[own.start : own.stop]

    def advance(self) -> None:
        """The step is done: go on to the next global batch."""
        self.position += self.batch_size
        if self.position >= self.samples:
            self.epoch, self.position = self.epoch + 1, 0

    def next_batch(self, rank: int, ranks: int) -> Tensor:
        """``batch``, then ``advance``."""
        batch = self.batch(rank, ranks)
        self.advance()
        return batch

    def state_dict(self) -> dict[str, int]:
        """Whole numbers; they are the same on all ranks."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where another sampler stopped.

        Raises:
            ValueError: that one had other samples, another batch size or another seed.
        """
        for name in ("samples", "batch_size", "seed"):
            if state[name] != getattr(self, name):
                raise ValueError(
                    f"{name} is {getattr(self, name)} here; the saved sampler has {state[name]}."
                )
        self.epoch, self.position = state["epoch"], state["position"]
