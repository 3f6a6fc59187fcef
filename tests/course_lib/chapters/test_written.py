"""Chapter 02's tune: RoPE's places decide what is written, and the kept keys tell them."""

import pytest
import torch

from course_lib.chapters.written import play_tune, plot_next, plot_tune, right_step, turned, write_tune
from simulator.plots.picture import smallest_text

from_zero = right_step(lambda x, kept: torch.arange(len(x)))
behind = right_step(lambda x, kept: kept[0].shape[1] + torch.arange(len(x)))


def test_the_tune_goes_on_with_the_right_places():
    for way in (write_tune(behind), write_tune(behind, cache=False), write_tune(from_zero, cache=False)):
        assert way == ("CAGECAGECAGE", [*range(12)])


def test_new_notes_at_place_0_write_the_note_that_stands_there():
    assert write_tune(from_zero) == ("CAGE" + "C" * 8, [0, 1, 2, 3] + [0] * 8)


def test_keys_without_places_are_all_alike_and_the_first_note_wins():
    nowhere = right_step(lambda x, kept: torch.zeros(len(x)))
    assert write_tune(nowhere) == ("CAGE" + "C" * 8, [0] * 12)


def test_a_turn_the_other_way_plays_another_tune(monkeypatch):
    monkeypatch.setattr("course_lib.chapters.written.RATES", -torch.ones(16))
    assert write_tune(behind, cache=False)[0] == "CAGECAGECAGE"  # head and judge turn alike
    monkeypatch.undo()

    def other(x, W, kept):
        q, k, v = (x @ W[name].T for name in "qkv")
        at = torch.arange(len(x))
        hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        scores = turned(q[None], -at)[0] @ turned(k[None], -at)[0].T / 32**0.5
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v, (k[None], v[None])

    text, places = write_tune(other, cache=False)
    assert text != "CAGECAGECAGE"
    assert places[1:] == [0] * 11  # its keys are not turned


def test_hugging_face_turns_alike():
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as theirs

    config = LlamaConfig(hidden_size=256, num_attention_heads=8)
    x, places = torch.randn(1, 8, 24, 32, generator=torch.Generator().manual_seed(0)), torch.arange(24)
    rope = theirs.LlamaRotaryEmbedding(config)
    wanted = theirs.apply_rotary_pos_emb(x, x, *rope(x, places[None]))[0]
    torch.testing.assert_close(turned(x[0], places), wanted[0], atol=1e-4, rtol=1e-4)


def test_the_picture_counts_right_notes_and_shows_the_places():
    picture = plot_tune({"all": write_tune(from_zero, cache=False), "cache": write_tune(from_zero)})
    assert "all: 8 of 8 written notes are right: CAGECAGECAGE" in picture.alt
    assert "cache: 2 of 8 written notes are right: CAGECCCCCCCC; places 0, 1, 2, 3, 0" in picture.alt
    assert smallest_text(picture.svg) >= 11
    right = play_tune(lambda x, kept: kept[0].shape[1] + torch.arange(len(x)))
    assert "with your places: 8 of 8" in right.alt
    with pytest.raises(ValueError, match="one or more ways"):
        plot_tune({})


def test_keys_that_were_dropped_have_no_place():
    def forgets(x, W, kept):
        result, (k, v) = from_zero(x, W, kept)
        return result, (k[:, -len(x) :], v[:, -len(x) :])

    assert write_tune(forgets)[1] == [None] * 11 + [0]
    assert "places no key, no key" in plot_tune({"all": write_tune(forgets)}).alt


def test_what_is_no_result_is_refused():
    with pytest.raises(ValueError, match="gives NoneType; a result for 4 tokens"):
        write_tune(lambda x, W, kept: (None, kept))
    with pytest.raises(ValueError, match="one head's are"):
        write_tune(lambda x, W, kept: (x, (x, x)))
    with pytest.raises(ValueError, match="gives int; a tensor of 4 places"):
        play_tune(lambda x, kept: 0)
    with pytest.raises(ValueError, match=r"gives \(1,\); a tensor of 4 places"):
        play_tune(lambda x, kept: torch.zeros(1))


def test_next_tokens_are_compared_place_by_place_and_the_cache_with_what_is_needed():
    picture = plot_next([7, 8, 255], [7, 9, 255], kept=4096, enough=1024)
    assert "the same next token at 2 of 3 places: 1, 3;" in picture.alt
    assert picture.alt.endswith(
        "a token leaves 4,096 bytes (in all layers, 2 a number), 4 times what is needed."
    )
    assert plot_next([7], [7], kept=1024, enough=1024).alt.endswith("2 a number).")
    with pytest.raises(ValueError, match="for 1 and 2"):
        plot_next([1], [1, 2], 1, 1)
