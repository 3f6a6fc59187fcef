"""What a check works with."""

from course_lib.grading.material import material


def test_an_answer_is_made_without_what_its_cell_shows():
    given = material("11.1")
    assert "draw_order(" in given.source
    shown = given.source.partition("draw_order(")[0] + "raise_if_run()"
    assert given.make(shown)(0, 1, 1) == [("F", 0), ("B", 0)]
