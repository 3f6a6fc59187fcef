"""Muon on one device: equal to torch's. On ranks it is a row of test_equal.py."""

import pytest
import torch
from torch.optim._muon import _zeropower_via_newtonschulz as torch_orthogonalize

from course_lib.by_hand import muon


@pytest.mark.parametrize("shape", [(20, 50), (50, 20), (7, 7)])
def test_a_matrix_is_turned_as_torch_turns_it(shape):
    torch.manual_seed(0)
    g = torch.randn(shape)
    theirs = torch_orthogonalize(g.clone(), (3.4445, -4.7750, 2.0315), 5, 1e-7)
    assert torch.equal(muon.orthogonalize(g.bfloat16()), theirs)
    assert torch.linalg.svdvals(muon.orthogonalize(g.double())).min() > 0.6


def test_a_step_of_one_device_is_a_step_of_torch(monkeypatch):
    """Both turn in bf16, as torch does."""
    ours = muon.orthogonalize
    monkeypatch.setattr(muon, "orthogonalize", lambda g: ours(g.bfloat16()))
    torch.manual_seed(0)
    whole = [torch.nn.Parameter(torch.randn(shape)) for shape in ((20, 50), (50, 20))]
    copies = [torch.nn.Parameter(w.detach().clone()) for w in whole]
    hand = muon.OneDevice(whole, lr=0.02)
    official = torch.optim.Muon(copies, lr=0.02, weight_decay=0)
    for _ in range(3):
        for w, copy in zip(whole, copies, strict=True):
            w.grad = torch.randn_like(w)
            copy.grad = w.grad.clone()
        hand.grads = hand.gradients()
        hand.step()
        official.step()
    for w, copy in zip(whole, copies, strict=True):
        torch.testing.assert_close(w, copy, rtol=0, atol=1e-6)
