"""Pictures that serve one chapter: what they say, and what they refuse."""

import math
from collections import Counter
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_hex

from course_lib.chapters.masks import plot_masks
from course_lib.chapters.roofline import _covers, _raised, plot_roofline
from course_lib.chapters.speedup_over_tokens import plot_speedup_over_tokens
from course_lib.chapters.tasks import plot_tasks
from course_lib.chapters.two_times import plot_two_times
from course_lib.chapters.virtual_places import COLOURS, COMPUTED, DRAWN, FROZEN, LAYERS, plot_virtual_places
from course_lib.text.objectives import blanks_of_glm, spans_of_t5
from simulator.inputs.known_devices import GPUS


def texts(picture):
    return [
        node.text for node in ElementTree.fromstring(picture.svg).iter("{http://www.w3.org/2000/svg}text")
    ]


def test_masks_are_drawn_square_by_square():
    picture = plot_masks({"causal": [[True, False], [True, True]]})
    fills = [patch.get_facecolor() for patch in picture._figure.axes[0].patches]
    assert len(fills) == 4
    assert fills[0] == fills[2] == fills[3] != fills[1]
    assert picture.alt == "Masks: causal, 3 of 4 pairs of a query and a key are allowed."


@pytest.mark.parametrize(
    ("masks", "words"), [({}, "nothing to draw"), ({"a": [[True], [True, True]]}, "'a'")]
)
def test_masks_refuse_what_cannot_be_drawn(masks, words):
    with pytest.raises(ValueError, match=words):
        plot_masks(masks)


def test_tasks_show_what_is_read_and_below_it_what_is_written():
    words, spans = ["the", "cat", "sat"], [(1, 2)]
    picture = plot_tasks({"blanks, GLM": blanks_of_glm(words, spans), "spans, T5": spans_of_t5(words, spans)})
    shown = [text.get_text() for text in picture._figure.axes[0].texts]
    assert shown[1:7] == ["the", "[M]", "sat", "[S]", "cat", "cat"]
    assert {"→", "<0>", "[E]", "sees both sides"} <= {*shown}
    assert "an encoder reads the <0> sat, a decoder [S] <0> cat, and writes <0> cat [E]" in picture.alt
    with pytest.raises(ValueError, match="at least one objective"):
        plot_tasks({})


def test_a_speedup_over_tokens_names_its_lines_and_tries():
    lines = {"with": (8, lambda tokens: tokens / 2), "without": (6, lambda tokens: tokens / 4)}
    picture = plot_speedup_over_tokens(8, 8, lines, [(2, 3), (4, 5)])
    words = {word.strip() for word in texts(picture)}
    assert {"with", "without", "your tries", "one GPU", "tokens on each GPU"} <= words
    assert "with: 4.0 at its end; without: 1.5 at its end; a try at 2: 3.00; a try at 4: 5.00" in picture.alt
    picture = plot_speedup_over_tokens(2, 8, {}, [(1, 2)], goal=4, others=[(1, 1)])
    assert "4 times" in texts(picture)
    dots = [line.get_fillstyle() for line in picture._figure.axes[0].lines if line.get_marker() == "o"]
    assert dots == ["none", "full"], "what does not belong to the curves is hollow"
    with pytest.raises(ValueError, match="give at least one try"):
        plot_speedup_over_tokens(8, 8, lines, [])


def test_a_roofline_says_where_it_bends_and_refuses_nonsense():
    picture = plot_roofline([GPUS["v100"], GPUS["h100"]], {"standard": 31.0, "tiles of 128": 124.0})
    assert picture.alt == "Rooflines that bend, in FLOPs for each byte: v100 at 139, h100 at 295."
    assert {"standard", "tiles of 128", "v100", "h100", "FLOPs for each byte moved"} <= set(texts(picture))
    names = _raised(
        {"far": 1000.0, "tiles of\n128": 124.0, "tiles of 256": 180.0, "standard": 31.0}, math.log(1e3)
    )
    assert names == {"standard": 0, "tiles of\n128": 0, "tiles of 256": 2, "far": 0}, "no two names overlap"
    assert _covers(GPUS["h100"], GPUS["h200"]), "both are flat at the same height"
    assert not _covers(GPUS["v100"], GPUS["h100"])
    for devices, work in (
        ([], {"a": 1.0}),
        ([GPUS["v100"]], {"a": 0.0}),
        ([GPUS["v100"]], {"a": float("nan")}),
    ):
        with pytest.raises(ValueError, match=r"nothing to draw|flops per byte"):
            plot_roofline(devices, work)


def test_two_times_say_both_of_each_step_and_refuse_nonsense():
    picture = plot_two_times({"scores": (3e-4, 1.1e-3), "softmax": (0.0, 2e-3)})
    assert picture.alt == (
        "Bars in pairs. scores: arithmetic 0.3, memory 1.1 ms; softmax: arithmetic 0, memory 2 ms."
    )
    assert {"scores", "softmax", "arithmetic", "memory", "time, ms", "1.1"} <= set(texts(picture))
    for steps in ({}, {"scores": (1.0, float("nan"))}, {"scores": (-1.0, 1.0)}):
        with pytest.raises(ValueError, match=r"nothing to draw|seconds"):
            plot_two_times(steps)


def test_each_method_trains_in_its_own_places():
    picture = plot_virtual_places()
    drawn = Counter(to_hex(patch.get_facecolor()) for axis in picture._figure.axes for patch in axis.patches)
    layers = len(LAYERS)
    assert {colour: drawn[colour] for colour in (*COLOURS.values(), FROZEN, COMPUTED)} == {
        COLOURS["all weights"]: layers + 2,  # the embedding and the head, too
        COLOURS["LoRA"]: layers,  # A and B
        COLOURS["prefix"]: DRAWN * layers,
        COLOURS["prompt"]: DRAWN,
        FROZEN: 3 * (layers + 2),
        COMPUTED: DRAWN * layers + DRAWN * 4 * (layers + 2),
    }
    alone = plot_virtual_places(only=("prompt",), virtual=["P1", "P2", "P3"], text=list("abcd"))
    assert {"layer 1", "embedding", "prompt", "P3", "d"} < set(texts(alone))
    boxes = Counter(to_hex(patch.get_facecolor()) for patch in alone._figure.axes[0].patches)
    assert (boxes[COLOURS["prompt"]], boxes[COMPUTED]) == (3, 3 * layers + 4 * (layers + 2))
    assert "LoRA" not in alone.alt
    picture = plot_virtual_places(dict.fromkeys(COLOURS, "2 million") | {"prompt": "0.08 million"})
    assert "0.08 million" in set(texts(picture))
    assert "prefix: 2 million" in picture.alt
