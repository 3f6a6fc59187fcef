"""A weight freed and gathered by the learner's lines: the right ones, and what each wrong one is told."""

import pytest
import torch

from course_lib.chapters.freed_weight import all_gather, try_lines
from course_lib.chapters.refused import Refused


def functions(line_a, lines_b_c):
    """Functions with these bodies, which ranks get by value."""
    names = {"all_gather": all_gather, "torch": torch}
    body = "\n    ".join([*lines_b_c, "pass"])
    exec(f"def a(whole):\n    {line_a}\ndef b_c(whole, shard):\n    {body}", names)
    return names["a"], names["b_c"]


FREE, ROOM = "whole.untyped_storage().resize_(0)", "whole.untyped_storage().resize_(4 * shard.nbytes)"
GATHER = "all_gather(whole, shard)"


@pytest.mark.parametrize(
    ("line_a", "lines_b_c", "held", "ranks", "said"),
    [
        (FREE, [ROOM, GATHER], "0.00", 4, "Right: the memory is free in between"),
        (
            "whole.data = torch.empty(0)",
            [],
            "4.00",
            4,
            "still has 4,000,000 bytes. `whole` has another storage",
        ),
        ("pass", [ROOM, GATHER], "4.00", 4, "Autograd points at a storage that still has 4,000,000 bytes."),
        ("whole.zero_()", [], "4.00", 0, "Autograd points at a storage that still has 4,000,000 bytes."),
        (FREE, [], "0.00", 0, "Backward cannot run: autograd points at a storage of 0 bytes."),
        (
            FREE,
            ["whole.data = torch.empty(10**6)", GATHER],
            "0.00",
            0,
            "0 bytes. `whole` has another storage now.",
        ),
        (FREE, [ROOM], "0.00", 0, "without the weight: nothing was sent to fill it."),
        (FREE, [ROOM, GATHER, "whole[0] = 5"], "0.00", 0, "what was sent did not make it whole."),
        (
            FREE,
            ["whole.untyped_storage().resize_(10**7)", GATHER],
            "0.00",
            4,
            "storage is larger than the weight.",
        ),
        (FREE, [ROOM, GATHER, GATHER], "0.00", 4, "An all-gather of the shards sends 3 MB."),
    ],
)
def test_what_the_lines_did(line_a, lines_b_c, held, ranks, said, capsys):
    try_lines(*functions(line_a, lines_b_c))
    told = capsys.readouterr().out
    assert f"after forward: {held} MB" in told
    assert f"on {ranks} of 4 ranks" in told
    assert said in told
    assert ("Right:" in told) == (said.startswith("Right:"))


@pytest.mark.parametrize(
    ("line_a", "lines_b_c", "said"),
    [
        (FREE, [GATHER], "all_gather's output needs 4,000,000 bytes, and its storage has 0."),
        (FREE, ["whole.untyped_storage().resize_(10**6)", GATHER], "bytes, and its storage has 1,000,000."),
        (FREE, [ROOM, "all_gather(shard, whole)"], "here they have 250,000 and 1,000,000: swap them."),
        ("whole.data = torch.empty(0)", [GATHER], "here they have 0 and 250,000."),
        ("free(whole)", [], "A line stopped: NameError: name 'free' is not defined"),
        (FREE, ["whole.fill_(1)"], "A line read or wrote memory that is not there (signal 11)."),
    ],
)
def test_a_line_that_cannot_run_is_told_in_one_sentence(line_a, lines_b_c, said):
    with pytest.raises(Refused) as refused:
        try_lines(*functions(line_a, lines_b_c))
    assert str(refused.value).endswith(said)
