"""What a task does not allow is refused under every name that leads to it, and nothing else is."""

import pytest

from course_lib.grading.not_allowed import uses

IMPORTS = {"torch": "torch", "checkpoint": "torch.utils.checkpoint.checkpoint"}
NOT_ALLOWED = ("torch.optim", "torch.utils.checkpoint")


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("torch.optim.AdamW([], lr=1)", "line 1 uses `torch.optim"),
        ("from torch.optim import AdamW", "`torch.optim.AdamW`"),
        ("from torch import optim as o\no.AdamW", "`torch.optim"),
        ("import torch.optim.adamw as a", "`torch.optim.adamw`"),
        ("t = torch\no = t.optim\no.AdamW", "`torch.optim"),
        ("getattr(torch, 'optim').AdamW", "`torch.optim"),
        ("def f(x):\n    return checkpoint(print, x)", "line 2 uses `torch.utils.checkpoint.checkpoint`"),
    ],
)
def test_it_is_refused_under_every_name(source, what):
    refusal = uses(source, IMPORTS, NOT_ALLOWED)
    assert what in refusal
    assert "the task does not allow" in refusal


@pytest.mark.parametrize(
    "source",
    [
        "optim = 3\nx = optim",
        "class A:\n    def optim(self): return self.checkpoint",
        "import torch.utils.data",
        "torch.optimum",
    ],
)
def test_other_things_of_the_same_name_are_fine(source):
    assert uses(source, {"torch": "torch"}, NOT_ALLOWED) is None


def test_where_everything_is_allowed_nothing_is_refused():
    assert uses("torch.optim.AdamW", IMPORTS, ()) is None
