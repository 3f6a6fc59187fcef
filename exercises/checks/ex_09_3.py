"""09.3: a residual block on ranks, and its gradients."""

from course_checks.on_ranks import on_ranks
from course_checks.residual_block import PARTS, Case, measured_against_one_device, on_rank

from course_lib.grading.judge import Fact

__all__ = ["measured_against_one_device"]  # for the notebook

OUTPUT = "every rank returns the whole output"
WHOLE = "after backward every rank has the whole gradient of `x`, of the norm's parameters, of `gain` and of…"
TARGET = "one all-reduce in forward and one in backward, each of a tensor as large as `x`, and no other…"
FACTS = {
    "shape": Fact("the output", OUTPUT, each="rank"),
    "output": Fact("the output", OUTPUT, tolerance=1e-4, each="rank"),
    **{part: Fact("the gradient of {}", WHOLE, tolerance=1e-4, each="rank") for part in PARTS},
    "forward": Fact("collectives in forward", TARGET, most=1),
    "sent forward": Fact("bytes sent in forward beyond those of `x`", TARGET, most=0, beyond=True),
    "backward": Fact("collectives in backward", TARGET, most=1),
    "sent backward": Fact("bytes sent in backward beyond those of `x`", TARGET, most=0, beyond=True),
}
CASES = [
    Case("2 ranks", 2, 5, 4, 12),
    Case("3 ranks", 3, 4, 3, 6),
    Case("3 ranks, `down` without a bias", 3, 4, 5, 3, False),
    Case("1 rank", 1, 3, 4, 4),
]

observe = on_ranks(FACTS)(on_rank)
