"""What ``parallelize`` refuses: for each sentence a plan that it alone refuses, and one beside it that is run."""

import inspect

import pytest

from course_lib.finetuning.prefix import Prefix
from course_lib.finetuning.prompt import SoftPrompt
from course_lib.finetuning.side import SideTuning
from course_lib.models.bert import BertPooler
from course_lib.models.latent_attention import LatentAttention
from course_lib.parallelize.refusals import refusals, refuse
from simulator.export.course_lib import plan_refusals
from simulator.inputs.plan import Plan

SGD = {"optimizer": "sgd", "dp": 2}
SIDE, PROMPT, PREFIX = {"added": {SideTuning}}, {"added": {SoftPrompt}}, {"added": {Prefix}}
HOOK, PLACED, BY_SEQUENCE = {"hook": "top-k"}, {"placed": "heads"}, {"placed": "sequence"}
TOGETHER = {"dp": 2, "ep": 2, "pp": 2, "schedule": "dualpipe-v", "overlap": ("experts",)}
# How the sentence begins; the plan and what goes with it; what must change for it to be run.
REFUSED = [
    ("cp must be 1 with side tuning, a", {"cp": 2}, SIDE, {"cp": 1}),
    ("cp must be 1, not 2, for a model", {"cp": 2}, {"added": {BertPooler}}, {"cp": 1}),
    ("cp must be 1 with a placement", {"cp": 2}, PLACED, {"cp": 1}),
    (
        "shard must be the 4 data-parallel ranks with ep",
        {"ep": 2, "dp": 4, "zero": 3, "shard": 2},
        {},
        {"ep": 1},
    ),
    ("tp must be 1 for a model with latent", {"tp": 2}, {"added": {LatentAttention}}, {"tp": 1}),
    ("overlap of experts needs ep", TOGETHER | {"ep": 1}, {}, TOGETHER),
    ("overlap of experts needs ep", TOGETHER | {"schedule": "zb-v"}, {}, TOGETHER),
    ("overlap of experts needs ep", TOGETHER | {"cp": 2}, {}, {"cp": 1}),
    (
        "overlap of experts needs ep",
        TOGETHER | {"recompute": "offload"},
        {},
        TOGETHER | {"recompute": "none"},
    ),
    ("node_limit must be left out", {"ep": 2, "dp": 2, "node_limit": 1}, {}, {"node_limit": None}),
    ("ep must be 1 with compression, not 2: ", SGD | {"ep": 2}, HOOK, {"ep": 1}),
    ("zero must be 0 or 1 with pp 4, not 2: ", {"zero": 2, "dp": 2, "pp": 4}, {}, {"zero": 1}),
    ("shard must be the 4 data-par", {"zero": 1, "dp": 4, "shard": 2}, {}, {"zero": 3}),
    ("offload must be none, or par", {"offload": "optimizer"}, {}, {"offload": "none"}),
    ("tp must be 1 with the optimizer muon", {"tp": 2, "optimizer": "muon"}, {}, {"optimizer": "adam"}),
    (
        "sequence_parallel must be no with precision fp8",
        {"precision": "fp8", "tp": 2, "sequence_parallel": True},
        {},
        {"sequence_parallel": False},
    ),
    ("gradients must be same", {"precision": "bf16", "gradients": "fp32"}, {}, {"gradients": "same"}),
    (
        "overlap must be none, gradients or experts, not tensor: ",
        {"tp": 2, "overlap": ("gradients", "tensor")},
        {},
        {"overlap": ("gradients",)},
    ),
    (
        "sequence_parallel must be no with side",
        {"tp": 2, "sequence_parallel": True},
        SIDE,
        {"sequence_parallel": False},
    ),
    (
        "sequence_parallel must be no with a prompt",
        {"tp": 2, "sequence_parallel": True},
        PROMPT,
        {"sequence_parallel": False, "pp": 2},
    ),
    ("attention must not be placed by sequence", {"tp": 2}, PREFIX | BY_SEQUENCE, None),
    ("pp must be 1 with a placement, not 2: ", {"pp": 2, "tp": 2}, PLACED, {"pp": 1}),
    (
        "sequence_parallel must be no with a placement",
        {"tp": 2, "sequence_parallel": True},
        PLACED,
        {"sequence_parallel": False},
    ),
    ("zero must be 0 with compression, not 1: ", SGD | {"zero": 1}, HOOK, {"zero": 0}),
    ("pp must be 1 with compression, not 2: ", SGD | {"pp": 2}, HOOK, {"pp": 1}),
    ("tp must be 1 with compression, not 2: ", SGD | {"tp": 2}, HOOK, {"tp": 1}),
    ("dp must be at least 2 with compression", SGD | {"dp": 1}, HOOK, {"dp": 2}),
    ("overlap must be gradients with comp", SGD | {"overlap": ()}, HOOK, {"overlap": ("gradients",)}),
    ("precision must be fp32 or mixed with", SGD | {"precision": "bf16"}, HOOK, {"precision": "mixed"}),
    (
        "optimizer must be sgd or momentum with one-bit, not adam: ",
        SGD | {"optimizer": "adam"},
        {"hook": "one-bit"},
        {"optimizer": "momentum"},
    ),
]


@pytest.mark.parametrize(("begins", "plan", "around", "change"), REFUSED)
def test_each_sentence_refuses_what_no_other_does(begins, plan, around, change):
    (sentence,) = refusals(Plan(**plan), **around)
    assert sentence.startswith(begins)
    if change is None:  # what is placed otherwise is run
        around, change = around | PLACED, {}
    assert not list(refusals(Plan(**plan | change), **around))


def test_every_sentence_is_tried():
    tried = {begins for begins, *_ in REFUSED}
    sentences = sum(inspect.getsource(source).count("yield ") for source in (refusals, plan_refusals))
    assert len(tried) == sentences - 1, "one yields what the other does"


def test_a_compression_that_is_not_known_is_refused():
    with pytest.raises(
        ValueError, match=r"^the method of compression must be one of none, bytegrad, .*, not gzip"
    ):
        refuse(Plan(dp=2), compression={"method": "gzip"})
    refuse(Plan(), compression={"method": "none"})
