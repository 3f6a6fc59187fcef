"""Chapter 13: a layer on two devices, the link that pays, the three layouts, and a run on slowed ranks."""

import re
from dataclasses import replace

import pytest
import torch

from course_lib.by_hand.galaxy import train
from course_lib.chapters.break_even import (
    Pair,
    deal_sequences,
    plan_pair,
    plot_ceiling,
    plot_over_sequences,
    tell_step,
)
from course_lib.chapters.layouts import HAS, plot_layouts
from course_lib.chapters.shared_layer import plot_shared_layer, waiting
from course_lib.chapters.unequal import between_messages, measure, sent_in_a_step
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime import launch
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.ledgers.timeline import Span, Timeline
from simulator.planner.layer_split import price_layer
from simulator.planner.split_timeline import split_timeline
from simulator.plots.picture import smallest_text

BERT, LAPTOP = MODELS["bert-base"], GPUS["laptop-cpu"]


def test_grey_is_what_rank_0_waits_for():
    layer = Timeline(
        [
            *(Span(0, "compute", "forward of block 1", 0, 1), Span(1, "compute", "forward of block 1", 0, 3)),
            *(Span(rank, "communication", "all-gather", 3, 4) for rank in (0, 1)),
        ]
    )
    assert waiting(layer) == 2
    picture = plot_shared_layer({"half each": layer})
    assert picture.alt == "half each, of which A100 waits 2000 ms."
    assert "messages" in picture.svg
    assert ">gather<" in picture.svg.replace(" ", "")
    assert "stroke: #ffffff; stroke-width: 1.5" in plot_shared_layer({"half each": layer}, alone=2).svg
    assert "backward" not in picture.svg  # of the legend, only what is there
    assert "thin boxes" not in picture.svg
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_shared_layer({})


def test_thin_boxes_are_named_and_the_dashed_line_crosses_no_name():
    split = price_layer(BERT, [LAPTOP, LAPTOP.slowed(3)], heads=[9, 3], columns=[2304, 768])
    timeline = split_timeline(split)
    picture = plot_shared_layer({"cut": timeline})
    assert "thin boxes: residual sums, norms, and the norms' gradients; time" in picture.svg
    named = max((s for s in timeline.of(0) if s.name.endswith("3")), key=lambda span: span.end - span.start)
    crossed = plot_shared_layer({"cut": timeline}, alone=(named.start + named.end) / 2).svg
    before, beside = (re.findall(r'x="([^"]+)"[^>]*>MLP<', svg) for svg in (picture.svg, crossed))
    assert len(before) == len(beside)
    rows = len(timeline.ranks)
    assert (
        picture.svg.count(">attention<") == 2 * rows
    )  # in forward and backward, upright where a box is narrow
    assert before != beside  # the name stands on one side of the line


def test_the_layouts_are_of_one_tensor_and_can_be_read():
    assert smallest_text(plot_layouts().svg) >= 11
    assert "sum: your laptop 2 and 1, the old one 5 and 2" in plot_layouts().alt
    whole = {tuple(map(int, numbers)) for numbers in HAS["whole"]}
    assert whole == {tuple(sum(map(int, token)) for token in zip(*HAS["sum"], strict=True))}
    assert whole == {tuple(int("".join(token)) for token in zip(*HAS["part"], strict=True))}


def test_a_slow_device_adds_its_own_speed_at_most():
    picture = plot_ceiling(60, 20)
    assert "25% of the work: 1.33 times, with 50% of the work: 0.67 times" in picture.alt
    assert "with 50% of the work: 2.00 times" in plot_ceiling(20, 20).alt
    assert smallest_text(picture.svg) >= 11
    with pytest.raises(ValueError, match="the fast device first"):
        plot_ceiling(20, 60)


def test_a_pair_deals_by_speed_and_its_smallest_step_is_the_smallest():
    assert deal_sequences(120, 166_000, 84_000) == [80, 40]
    assert deal_sequences(4, 3, 1) == [3, 1]
    assert deal_sequences(2, 9, 1) == [2, 0]
    # A sequence takes 1 s, on the slow one 2 s, and the gradients 4 s: 10 + 4 is less than 15, 10 + 4 not than 14.
    pair = Pair(fast=10, slow=5, parameters=4, link=4, tokens=10, overlap=False)
    assert plan_pair(pair, step=12) == (
        "shares = [8, 4]: 1.000 times as fast as one alone\nsmallest step that is faster: [10, 5]"
    )
    with pytest.raises(ValueError, match="the fast device first"):
        Pair(fast=5, slow=10, parameters=4, link=4)
    with pytest.raises(ValueError, match="from 0 to 4 embeddings"):
        Pair(10, 5, 4, 4, embeddings=5)


BOTH = Pair(166_000, 84_000, 109.5e6, 12e9, embeddings=24e6)


def test_a_share_has_whole_microbatches():
    four = replace(BOTH, microbatches=4)
    assert plan_pair(four, step=60) == (
        "shares = [40, 20]: 1.312 times as fast as one alone\nsmallest step that is faster: [20, 12]"
    )
    assert plan_pair(BOTH, step=60).startswith("shares = [40, 20]: 1.384 times")
    with pytest.raises(ValueError, match="50 sequences a step are not 4 equal microbatches"):
        four.deal(50)


def test_messages_are_hidden_by_the_last_backward_and_those_of_embeddings_are_not():
    after = replace(BOTH, overlap=False)
    assert after.seconds([80, 40]) == pytest.approx(80 * 512 / 166_000 + 438e6 / 12e9)
    # The last layer's gradients, and those of the embeddings.
    late = (4 * 85.5e6 / 12 + 96e6) / 12e9
    assert BOTH.seconds([80, 40]) == pytest.approx(80 * 512 / 166_000 + late)
    assert BOTH.exposed([80, 40]) == pytest.approx(late)
    assert BOTH.seconds([80, 40]) < replace(BOTH, microbatches=8).seconds([80, 40]) < after.seconds([80, 40])
    # Forward, backward of one layer, then the link is busy to the end.
    computing = 6 * 512 / 84_000
    assert BOTH.seconds([11, 6]) == pytest.approx(computing * (1 / 3 + 2 / 36) + 438e6 / 12e9)


@pytest.mark.parametrize(
    ("pair", "gain"),
    [(BOTH, 1), (BOTH, 1.3), (replace(BOTH, overlap=False), 1.3), (replace(BOTH, microbatches=3), 1.2)],
)
def test_no_step_is_smaller(pair, gain):
    of = pair.microbatches  # of which a share has whole ones
    deals = ([of * a, of * (n - a)] for n in range(2, 130) for a in range(1, n))
    assert sum(pair.smallest(gain)) == sum(next(deal for deal in deals if pair.times(deal) > gain))
    with pytest.raises(ValueError, match=r"less than 1\.51 times"):
        pair.smallest(1.6)


@pytest.mark.parametrize(
    ("shares", "said"),
    [([8, 8], "not yet"), ([21, 12], "not yet"), ([22, 11], "with the fewest"), ([40, 20], "but fewer do")],
)
def test_a_step_says_what_its_messages_are_and_whether_fewer_sequences_do(shares, said):
    told = tell_step(BOTH, shares, wanted=1.3)
    assert "hide: 10.4 ms (embeddings 8.0, lowest layer 2.4)" in told
    assert told.endswith(said)
    assert "36.5 ms (embeddings 8.0, lowest layer 2.4, layers above 26.1)" in tell_step(
        replace(BOTH, overlap=False), shares, wanted=1.3
    )


def test_the_picture_says_from_how_many_sequences_on():
    picture = plot_over_sequences(BOTH)
    assert "during backward from 17 sequences a step on, with messages after backward from 36" in picture.alt
    assert smallest_text(picture.svg) >= 11


def test_a_measured_row_says_how_long_it_computes():
    step = Timeline([Span(rank, "compute", "computing", 0, 1 + rank) for rank in (0, 1)])
    svg = plot_shared_layer({"measured": step}).svg
    assert "computes 2.00 s" in svg
    assert "waits 1.00 s" in svg


def test_work_is_what_lies_between_messages():
    step = Timeline([Span(0, "compute", "step", 1, 5), Span(0, "communication", "tile passed on", 2, 3)])
    assert [(s.start, s.end) for s in between_messages(step).spans] == [(0, 1), (2, 4)]


def small():
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(hidden_size=32, num_layers=1))


def on_two_ranks():
    model, texts = small(), (torch.arange(32).view(2, 16), torch.ones(2, 16, dtype=torch.long))
    optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
    steps = train(model, [texts] * 5, optimizer, cross_entropy, power=[3, 1], overlap=False)
    return measure(model, steps, slowness=[1, 3])


def test_a_run_sends_what_was_predicted():
    fast, slow = launch(on_two_ranks, ranks=2, backend="gloo")
    assert fast.sent == slow.sent == sent_in_a_step(small(), tokens=32)
    assert fast.held > slow.held
    assert fast.losses == slow.losses
    assert fast.losses[-1] < fast.losses[0]
