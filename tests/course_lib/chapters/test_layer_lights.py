"""Chapter 02's layer: each function alone is LLaMA's or not, whatever the others are."""

import pytest
import torch
import torch.nn.functional as F

from course_lib.chapters.layer_lights import CHANGED, is_llamas, plot_layer, plot_next

RATES = 10000.0 ** (-torch.arange(0, 32, 2) / 32)


def turn(x, places):
    a, b = x.chunk(2, -1)
    cos, sin = (places[:, None] * RATES).cos(), (places[:, None] * RATES).sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


RIGHT = {
    "norm": lambda x, weight: F.rms_norm(x, x.shape[-1:], weight, 1e-5),
    "turn": turn,
    "share": lambda x, heads: x.repeat_interleave(heads // len(x), 0),
    "mlp": lambda x, W: (F.silu(x @ W["gate"].T) * (x @ W["up"].T)) @ W["down"].T,
}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("norm", lambda x, weight: F.layer_norm(x, x.shape[-1:], weight)),
        ("norm", lambda x, weight: F.rms_norm(x, x.shape[-1:], None, 1e-5)),
        ("mlp", lambda x, W: x @ W["gates"].T),
        ("turn", lambda x, places: x),
        ("turn", lambda x, places: turn(x, -places)),
        ("share", lambda x, heads: x.repeat(heads // len(x), 1, 1)),
        ("share", lambda x, heads: x),
        ("mlp", lambda x, W: F.gelu(x @ W["up"].T) @ W["down"].T),
        ("mlp", lambda x, W: x @ W["down"].T),
        ("mlp", None),
    ],
)
def test_one_wrong_function_is_seen_alone(name, wrong):
    assert is_llamas(**RIGHT) == dict.fromkeys(CHANGED, True)
    found = is_llamas(**RIGHT | {name: wrong})
    assert found == dict.fromkeys(CHANGED, True) | {name: False}
    assert f"{name}: not Llama-2's" in plot_layer(found).alt


def test_before_anything_is_known_the_places_are_empty():
    shown = [text.get_text() for text in plot_layer()._figure.axes[0].texts]
    assert shown.count("?") == 2
    assert "share" not in shown
    some = is_llamas(norm=RIGHT["norm"], share=RIGHT["share"])
    shown = [text.get_text() for text in plot_layer(some)._figure.axes[0].texts]
    assert shown.count("?") == 1
    assert "share" in shown


def test_next_tokens_are_compared_place_by_place():
    picture = plot_next([7, 8, 255], [7, 9, 255])
    assert picture.alt.endswith("the same at 2 of 3 places: 1, 3.")
    with pytest.raises(ValueError, match="for 1 and 2"):
        plot_next([1], [1, 2])
