from course_lib.chapters.places import show_places


def test_the_list_is_shown_before_and_after_it_is_sorted():
    written, after = repr(show_places(lambda kind, r, i: i, m=2)).split("; ")
    assert written == "written: F0 at 0, F1 at 1, BW0 at 0, BW1 at 1"
    assert after == "sorted: F0 at 0, BW0 at 0, F1 at 1, BW1 at 1."


def test_a_rank_has_its_own_places():
    after = repr(show_places(lambda kind, r, i: i - r * (kind == "B"), 2, 1, ("F", "B", "W"))).split("; ")[1]
    assert after == "sorted: B0 at -1, F0 at 0, B1 at 0, W0 at 0, F1 at 1, W1 at 1."
