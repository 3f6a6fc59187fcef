"""A pipeline pays with its bubble, FSDP with messages: the network decides."""

import pytest

from course_lib.chapters.two_cuts import (
    COMPUTING,
    FORWARD,
    MESSAGE,
    RANKS,
    SEQUENCES,
    SHAPE,
    break_even,
    plot_two_cuts,
    sent,
    two_cuts,
)


def test_without_messages_only_the_bubble_is_left():
    pipeline, fsdp = two_cuts(1e15).values()
    assert pipeline[1] / sum(pipeline) == pytest.approx((RANKS - 1) / (SEQUENCES + RANKS - 1))
    assert pipeline[2] == pytest.approx(0, abs=1e-4)
    assert fsdp == (COMPUTING, 0, 0)


def test_fsdp_sends_seven_eighths_of_the_weights_three_times():
    assert sent()["FSDP"].sent == pytest.approx(3 * 7 / 8 * 2 * SHAPE.parameters)


def test_what_the_chapter_says_of_the_networks():
    for bandwidth, sequences, shorter in (
        (10e9, 32, "pipeline, 1F1B"),
        (12e9, 32, "pipeline, 1F1B"),
        (13e9, 32, "FSDP"),
        (40e9, 32, "FSDP"),
    ):
        steps = {name: sum(parts) for name, parts in two_cuts(bandwidth, sequences).items()}
        assert min(steps, key=steps.get) == shorter
    assert break_even() == pytest.approx(12.6e9, rel=0.005)
    assert break_even(8) == pytest.approx(33.6e9, rel=0.005)
    assert "pipeline, 1F1B 5.3 s" in plot_two_cuts(40e9).alt
    assert "FSDP 4.3 s" in plot_two_cuts(40e9).alt
    assert "pipeline, 1F1B 5.5 s" in plot_two_cuts(10e9).alt
    assert "FSDP 6.8 s" in plot_two_cuts(10e9).alt


def test_at_ten_gigabits_a_message_takes_as_long_as_a_forward_and_fsdp_pays_from_ten_times_that_on():
    assert pytest.approx(10e9, rel=0.01) == 8 * MESSAGE / FORWARD
    assert MESSAGE / break_even() / FORWARD == pytest.approx(0.1, rel=0.02)
