"""Sources and tables say the same in HTML and in text, name no file, and read on light and dark pages."""

import re
from contextlib import contextmanager

import pytest

from course_lib.observe.show.amounts import amount, scale_of
from course_lib.observe.show.compare import Row, compare
from course_lib.observe.show.source import show_source, without_docstrings
from course_lib.observe.show.tables import table


class Shelf:
    """A shelf."""

    size = 3

    def put(self, book: str) -> str:
        """Put it.

        Then say so.
        """

        # a comment stays
        return f"{book} <put>"

    @property
    def empty(self) -> bool:
        """Only a docstring."""


@contextmanager
def opened():
    yield Shelf()


def words_of(html: str) -> str:
    text = re.sub(r"<[^>]*>", "", html)
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&#39;", "'")


def test_the_source_is_complete_and_names_no_file():
    shown = show_source(Shelf, opened)
    assert "class Shelf:" in shown.text
    assert "Then say so." in shown.text
    assert "@contextmanager\ndef opened():" in shown.text  # through the decorator, to the source itself
    assert ".py" not in shown.text + shown.html
    assert "/" not in shown.text


def test_a_listing_of_the_course_links_to_its_file():
    link = re.search(r'<figcaption[^>]*><a href="([^"]+)"', show_source(show_source).html)
    assert link[1] == "../course_lib/observe/show/source.py"
    assert "<a " not in show_source(re.sub).html


def test_a_triton_kernel_shows_the_function_that_it_was_made_of():
    flash_kernels = pytest.importorskip("course_lib.attention.flash_kernels")
    shown = str(show_source(flash_kernels.forward_kernel, flash_kernels.visible))
    assert "# course_lib.attention.flash_kernels.forward_kernel" in shown
    assert "def forward_kernel(q, k, v" in shown
    assert "def visible(row, key" in shown


def test_html_and_text_are_the_same_words():
    shown = show_source(Shelf)
    source = shown.text.split("\n", 1)[1]
    assert source in words_of(shown.html)
    bundle = shown._repr_mimebundle_()
    assert bundle == {"text/plain": repr(shown), "text/html": shown.html}


def test_a_line_that_wraps_goes_on_four_columns_further_in():
    lines = [line for line in show_source(Shelf.put).html.split("\n") if "return" in line]
    assert 'padding-left:4.8em; text-indent:-4.8em">    <span' in lines[0]


def test_a_method_and_a_property_are_shown_from_the_margin():
    shown = show_source(Shelf.put, Shelf.empty)
    assert "\ndef put(self" in shown.text
    assert "\n@property\ndef empty(self" in shown.text


def test_docstrings_can_be_left_out():
    assert show_source(Shelf, docstrings=False).text.split("\n", 1)[1] == "\n".join(
        [
            "class Shelf:",
            "    size = 3",
            "",
            "    def put(self, book: str) -> str:",
            "        # a comment stays",
            '        return f"{book} <put>"',
            "",
            "    @property",
            "    def empty(self) -> bool:",
            "        ...",
        ]
    )
    assert without_docstrings('"""Module."""\n\nx = "no docstring"') == 'x = "no docstring"'


@pytest.mark.parametrize("thing", [3, len])
def test_what_has_no_source_is_refused(thing):
    with pytest.raises(ValueError, match=re.escape(repr(thing))):
        show_source(thing)
    with pytest.raises(ValueError, match="at least one"):
        show_source()


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_colour_of_the_source_reads_on_white():
    from pygments.styles import get_style_by_name

    from course_lib.observe.show.source import STYLE

    colours = {style["color"] for _, style in get_style_by_name(STYLE) if style["color"]}
    assert len(colours) > 3
    for colour in colours:
        assert 1.05 / (luminance(f"#{colour}") + 0.05) >= 4.5, colour
    shown = show_source(Shelf)
    assert "<pre style" in shown.html
    assert "background:#ffffff; color:#000000" in shown.html


def test_compare_lays_the_columns_side_by_side():
    shown = compare(
        Row("sent by each rank", guess=45e6, predicted=67.1e6, measured=67.1e6, official=67.2e6, unit="B"),
        Row("messages", predicted=60, measured=62, official=3),
        Row("step", measured=0.0123, unit="s"),
        official="torch DDP",
        title="one step",
    )
    lines = [re.sub(" +", " ", line).strip() for line in shown.text.split("\n")]
    assert lines[:2] + lines[3:] == [
        "one step",
        "your guess predicted measured torch DDP measured / predicted",
        "sent by each rank (MB) 45.0 67.1 67.1 67.2 exactly 1",
        "messages 60 62 3 1.033",
        "step (ms) 12.3",
    ]
    for cell in (
        "your guess",
        "torch DDP",
        "sent by each rank (MB)",
        "45.0",
        "exactly 1",
        "one step",
        "12.3",
    ):
        assert f">{cell}</" in shown.html


def test_compare_shows_only_columns_with_something_in_them():
    shown = compare(Row("step", measured=2.0, official=1.0, unit="s"))
    assert shown.text.split("\n")[0].split() == ["measured", "official", "measured", "/", "official"]
    assert "2.000" in shown.text
    assert compare(Row("calls", predicted=3)).text.split() == ["predicted", "-" * 16, "calls", "3"]


def test_nearly_equal_is_not_called_exact():
    assert "exactly" not in compare(Row("x", predicted=3.0, measured=3.0000001)).text
    assert compare(Row("x", predicted=0, measured=2)).text.split("\n")[2].split() == ["x", "0", "2"]


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [
        (67_108_864, "B", "67.1 MB"),
        (0, "B", "0 B"),
        (999, "B", "999 B"),
        (0.00125, "s", "1.25 ms"),
        (90, "s", "1.50 min"),
        (11_689_512, "", "11,689,512"),
        (0.4567, "%", "45.7 %"),
        (312e12, "FLOP/s", "312 TFLOP/s"),
        (-2.5e9, "B", "-2.50 GB"),
    ],
)
def test_amounts(value, unit, written):
    assert amount(value, unit) == written


def test_bad_input_says_what_is_accepted():
    with pytest.raises(ValueError, match="'furlong' is not known; known are 'B'"):
        scale_of(1, "furlong")
    with pytest.raises(ValueError, match="at least one Row"):
        compare()
    with pytest.raises(ValueError, match="has 1 cells, the table 2 columns"):
        table(["a", "b"], [["x"]])


def test_table_escapes_and_formats():
    shown = table(["rank", "bytes"], [["<0>", 1234567], ["1", None]], title="t")
    assert "&lt;0&gt;" in shown.html
    assert "1,234,567" in shown.text
    assert "None" not in shown.text + shown.html
