"""What a waiting rank says it waits for."""

import sys

import pytest
import torch

from course_lib.runtime.stack_inspection import _arguments


def send(t, to, group=None):
    return _arguments(sys._getframe())


def receive(like, source, group=None):
    return _arguments(sys._getframe())


def recv(tensor, src=None, group=None):
    return _arguments(sys._getframe())


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda t: send(t, 2), "float32[3] to rank 2"),
        (lambda t: receive(t, 0), "float32[3] from rank 0"),
        (lambda t: recv(t, src=1), "float32[3] from rank 1"),
        (lambda t: recv(t), "float32[3]"),
    ],
)
def test_tensor_and_peer_tell_calls_apart(call, said):
    assert call(torch.ones(3)) == said
