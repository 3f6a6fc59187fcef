"""Equal distances, equal angles."""

import re

import pytest

from course_lib.chapters.turned import plot_turned


def test_the_angle_depends_on_the_distance_alone():
    alt = plot_turned([(5, 3), (1005, 1003), (5, 2)]).alt
    near, far, other = re.findall(r"(\d+) degrees", alt)
    assert near == far != other


def test_before_the_turn_both_point_the_same_way():
    assert re.findall(r"(\d+) degrees", plot_turned([(0, 0), (1, 0), (6, 0)]).alt) == ["0", "57", "16"]


def test_the_cosine_of_the_angle_is_said():
    alt = plot_turned([(1, 0), (3, 0), (6, 0), (9, 3)]).alt
    assert re.findall(r"cos ([+−]\d\.\d\d)", alt) == ["+0.54", "−0.99", "+0.96", "+0.96"]


def test_nothing_to_draw_is_said():
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_turned([])
