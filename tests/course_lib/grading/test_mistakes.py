"""The lists of likely mistakes are diffs that are read without numbers of lines."""

import pytest

from course_lib.grading.mistakes import read_mistakes

SOLUTION = "a = 1\nb = 2\nc = a + b\n"
LISTED = """
=== 99.1
@@ when `a` is one too large
-1
+2
@@ slow, without idea: when all is 3: a, b and c
task: Add them up.
 a = 1
+a = 3
-2
+3
@@ wrong: nothing is added
says: c is 1
- + b
@@ right: in one line
+c = 3

=== 99.2
@@ hangs: when nobody sends
-a
+b
"""


@pytest.fixture
def read(tmp_path):
    def reads(text):
        path = tmp_path / "99_topic.diff"
        path.write_text(text)
        return read_mistakes(path)

    return reads


def test_each_answer_is_a_patch_of_the_solution_or_a_whole(read):
    assert [entry.patched(SOLUTION) for entry in read(LISTED)["99.1"]] == [
        "a = 2\nb = 2\nc = a + b\n",
        "a = 1\na = 3\nb = 3\nc = a + b\n",
        "a = 1\nb = 2\nc = a\n",
        "c = 3",
    ]


def test_what_stands_in_its_head_is_told(read):
    (one, slow, wrong, _), (hangs,) = read(LISTED).values()
    assert (one.named, one.words, one.when) == (True, (), "`a` is one too large")
    assert (slow.words, slow.when, slow.task) == (
        ("slow", "without idea"),
        "all is 3: a, b and c",
        "Add them up.",
    )
    assert (wrong.named, wrong.says, hangs.words) == (False, "c is 1", ("hangs",))


def test_a_place_stands_in_the_solution_exactly_once(read):
    for text in ("=", "d = 1"):
        [entry] = read(f"=== 99.1\n@@ when it is elsewhere\n-{text}\n+x")["99.1"]
        with pytest.raises(ValueError, match="exactly once"):
            entry.patched(SOLUTION)


@pytest.mark.parametrize("line", ["@@", "fast = true", "+x"])
def test_a_line_without_meaning_is_named(read, line):
    with pytest.raises(ValueError, match="line 2"):
        read(f"=== 99.1\n{line}\n")
