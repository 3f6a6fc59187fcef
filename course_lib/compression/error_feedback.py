"""Error feedback: what was not sent in this step is added to the gradient of the next step.

Proposed for 1-bit gradients by Seide et al. (Interspeech 2014). Karimireddy et al. (arXiv:1901.09847) prove that SGD
with it converges as fast as without compression, for every compressor C with |C(x) - x|² <= (1 - d) |x|², d > 0.
"""

from __future__ import annotations

from torch import Tensor


class ErrorFeedback:
    """Keeps a residual for each bucket: what this rank wanted to send until now and has not sent.

    The parts that all ranks hand in add up to the average gradient. So the residuals of all ranks add up to what is
    missing in the averages so far: sum of true averages = sum of averages given out + sum of residuals.

    Attributes:
        residuals: bucket name -> tensor of the shape that is sent.
    """

    def __init__(self) -> None:
        self.residuals: dict[str, Tensor] = {}

    def add(self, name: str, tensor: Tensor) -> Tensor:
        """``tensor`` plus the residual of the bucket ``name``: what this rank wants to send now, a new tensor.

        Raises:
            ValueError: the residual has another shape, because the hook has served another model.
        """
        residual = self.residuals.get(name)
        if residual is None:
            return tensor.clone()
        if residual.shape != tensor.shape:
            raise ValueError(
                f"the residual of {name} has the shape {tuple(residual.shape)}, and now comes a bucket of "
                f"{tuple(tensor.shape)}: give each model a hook of its own"
            )
        return tensor + residual

    def keep(self, name: str, wanted: Tensor, sent: Tensor) -> None:
        """The new residual is ``wanted - sent``."""
        self.residuals[name] = wanted - sent
