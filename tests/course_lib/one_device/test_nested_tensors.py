"""Tensors are found and replaced in every container that a model may return."""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass, field

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutputWithPast

from course_lib.one_device.nested_tensors import map_tensors, tensors_in

Pair = namedtuple("Pair", "first second")


@dataclass
class Output:
    logits: torch.Tensor
    cache: object = None
    name: str = "output"


@dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    derived: int = field(init=False, default=3)


class Record(dict):
    """What many configuration libraries return."""


class Rows(list):
    pass


A, B = torch.tensor(1.0), torch.tensor(2.0)

NESTS = {
    "tensor": (A, [A]),
    "nothing": (None, []),
    "tuple and list": ((A, [B, 3]), [A, B]),
    "named tuple": (Pair(A, Pair(1, B)), [A, B]),
    "dicts": ({"x": A, "y": OrderedDict(z=B)}, [A, B]),
    "dataclass": (Output(A, cache=(B, None)), [A, B]),
    "frozen dataclass in a list": ([Frozen(A), B], [A, B]),
    "dataclass in a dict in a dataclass": (Output(A, cache={"inner": Output(B)}), [A, B]),
    "Hugging Face": (BaseModelOutputWithPast(last_hidden_state=A, hidden_states=(B, B)), [A, B, B]),
    "subclass of dict": (Record(x=A, y=[B]), [A, B]),
    "subclass of list": (Rows([A, Output(B)]), [A, B]),
    "user's mapping": (UserDict(x=A), [A]),
    "torch's own result": (torch.ones(2, 2).max(0), [torch.ones(2), torch.zeros(2)]),
}


@pytest.mark.parametrize("name", NESTS)
def test_found_in_order_and_replaced_in_place(name):
    nest, expected = NESTS[name]
    found = tensors_in(nest)
    assert [t.tolist() for t in found] == [t.tolist() for t in expected]
    doubled = map_tensors(lambda t: t * 2, nest)
    assert type(doubled) is type(nest)
    assert [t.tolist() for t in tensors_in(doubled)] == [(2 * t).tolist() for t in expected]
    assert [id(t) for t in tensors_in(nest)] == [id(t) for t in found], "the original is unchanged"


def test_an_output_keeps_what_is_no_tensor():
    doubled = map_tensors(lambda t: t * 2, Output(A, cache=[Frozen(B)], name="mine"))
    assert (doubled.name, doubled.cache[0].derived) == ("mine", 3)
    output = map_tensors(lambda t: t * 2, BaseModelOutputWithPast(last_hidden_state=A))
    assert output["last_hidden_state"] is output.last_hidden_state
    assert output.last_hidden_state == 2
    empty = Output(None, name="no tensor here")
    assert map_tensors(lambda t: t * 2, (empty,))[0] is empty


def test_another_kind_of_leaf():
    assert map_tensors(lambda n: n + 1, Output(1, cache=[2]), kind=int) == Output(2, cache=[3])
