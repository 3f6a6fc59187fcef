"""Backward's way: it ends at the first trained box, and what it passes has the bytes of the ledger."""

import re

import pytest

from course_lib.chapters.backward_way import plot_way
from course_lib.chapters.frozen import Refused, held
from course_lib.models.resnet import ResNet18

FROZEN = ["conv1", "layer1", "layer2"]


@pytest.fixture(scope="module")
def resnet():
    return ResNet18(width=8)


def test_backward_ends_at_the_first_trained_box_and_passes_frozen_ones(resnet):
    picture = plot_way(resnet, {"first": FROZEN, "second": ["bn1", *FROZEN]})
    first, second = picture.alt.split("; second: ")
    kept = held(resnet, FROZEN).activations["layer1"]
    assert (
        f"Backward goes to bn1; kept: bn1 13 MB, relu 13 MB, maxpool 6 MB, layer1 {kept / 1e6:.0f} MB"
        in first
    )
    assert "Backward goes to layer3; kept: layer3" in second
    assert "layer1" not in second


def test_what_is_kept_is_drawn_whole(resnet):
    """No box before the first trained one keeps anything, so that none of the bytes is left out."""
    for frozen in (FROZEN, ["bn1", *FROZEN], ["layer4"]):
        kept = held(resnet, frozen).activations
        alt = plot_way(resnet, {"run": frozen}).alt
        assert [part.split()[0] for part in alt.split("kept: ")[1].split(", ")] == list(kept)


def test_the_title_tells_activations_from_the_whole(resnet):
    step = held(resnet, FROZEN)
    title = plot_way(resnet, {"run": FROZEN}).alt.split("run: ")[1]
    states, kept, total = map(float, re.findall(r"\d+\.\d", title)[:3])
    assert title.startswith(f"{states:.1f} states + {kept:.1f} activations = {states + kept:.1f} MB; trains")
    assert total == pytest.approx(step.total / 1e6, abs=0.11)


def test_what_keeps_although_nothing_in_it_is_trained_is_hatched(resnet):
    def hatched(frozen):
        axis = plot_way(resnet, {"run": frozen})._figure.axes[0]
        return [patch.get_x() for patch in axis.patches if patch.get_hatch()][:-1]  # the last is the legend's

    assert hatched(FROZEN) == [2, 3, 4, 5]  # relu, maxpool, layer1 and layer2
    assert hatched(["bn1", *FROZEN]) == []
    assert hatched(["fc"]) == [2, 3]  # a frozen Linear keeps nothing


def test_too_little_trained_is_said(resnet):
    assert "too few" in plot_way(resnet, {"run": ["layer4"]}).alt
    assert "too few" not in plot_way(resnet, {"run": []}).alt


def test_a_box_that_cannot_be_frozen_is_refused(resnet):
    with pytest.raises(Refused, match="'relu' is no box"):
        plot_way(resnet, {"run": ["relu"]})
