"""Pictures: the same file each time, readable aloud, and with the numbers that matter in them."""

import base64
import itertools
import re
from html import escape
from xml.etree import ElementTree

import pytest

from simulator.ledgers.memory import MemoryBreakdown
from simulator.ledgers.timeline import Span, Timeline
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule
from simulator.plots import (
    Picture,
    plot_bytes_over_time,
    plot_curves,
    plot_groups,
    plot_memory,
    plot_plans,
    plot_timeline,
)
from simulator.plots.curves import STROKES
from simulator.plots.parts import plot_parts
from simulator.plots.timeline import COLOURS, IDLE, category, lightness
from simulator.predict.memory_over_time import replay
from simulator.predict.overlap import ddp_timeline, fsdp_timeline

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: Picture) -> list[str]:
    return [node.text for node in ElementTree.fromstring(picture.svg).iter(f"{SVG}text")]


def all_pictures() -> list[Picture]:
    rank = MemoryBreakdown(2e9, 2e9, 12e9, 8e9, 1e9)
    histories = replay(simulate(make_schedule("zb-h1", 2, 3)), 1e9, 4e8)
    return [
        plot_timeline(simulate(make_schedule("zb-v", 2, 3), transfer=0.1)),
        plot_timeline(
            ddp_timeline([1, 1], [2, 2], [5, 5], ranks=2, bandwidth=5), titles=["DDP"], unit="seconds"
        ),
        plot_memory([rank, rank], rank, titles=["predicted", "measured"], capacity=40e9),
        plot_bytes_over_time(histories, titles=["zb-h1"]),
        plot_plans({"tp 8": ({"compute": 10, "bubble": 1}, rank)}, capacity=40e9),
        plot_curves({"1 rank": [2, 1], "2 ranks": [2, 1.5]}, {"1 rank": [2, 1]}, titles=["plain", "synced"]),
        plot_parts(
            {"1 rank": {"the same": 3e9, "divided": 8e9}, "2 ranks": {"the same": 3e9, "divided": 4e9}}
        ),
        plot_groups({"tp": [[0, 1], [2, 3]], "dp": [[0, 2], [1, 3]]}, node_size=2),
    ]


def test_every_picture_is_deterministic_small_and_has_its_sentence():
    for first, second in zip(all_pictures(), all_pictures(), strict=True):
        assert first.svg == second.svg
        assert len(first.svg) < 300_000
        root = ElementTree.fromstring(first.svg)
        assert root.get("role") == "img"
        assert root.get("aria-label") == root.find(f"{SVG}title").text == first.alt == repr(first)
        assert re.fullmatch(r"[A-Za-z].*\.", first.alt)
        shown = first._repr_mimebundle_()
        assert shown["text/plain"] == first.alt
        assert f'alt="{escape(first.alt, quote=True)}"' in shown["text/html"]
        assert base64.b64decode(shown["text/html"].split("base64,")[1].split('"')[0]).decode() == first.svg


def test_ranks_of_one_group_have_one_colour_and_one_letter():
    picture = plot_groups({"tp": [[0, 1], [2, 3]], "dp": [[0, 2], [1, 3]]}, node_size=2)
    assert "Groups along dp: 0 2, 1 3." in picture.alt
    assert [t for t in texts(picture) if t[0].isdigit()] == ["0a", "1a", "2b", "3b", "0a", "2a", "1b", "3b"]
    fills = re.findall(r"fill: (#\w{6})", picture.svg)
    assert len({fill for fill in fills if fill in ("#1b3a5c", "#a9cbe8")}) == 2
    with pytest.raises(ValueError, match="do not hold each of the 4 ranks once"):
        plot_groups({"tp": [[0, 1], [2, 3]], "dp": [[0, 2], [1, 2]]})
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_groups({})


def test_every_microbatch_number_is_readable_at_8_by_16():
    picture = plot_timeline(simulate(make_schedule("1f1b", 8, 16)), width=12)  # a file may be wider
    sizes = re.findall(r"font-size: ([\d.]+)px[^>]*>\d+</text>", picture.svg)
    assert len([text for text in texts(picture) if text.isdigit()]) >= 8 * 16 * 2
    assert min(map(float, sizes)) >= 8
    assert picture.alt == "Timeline of 1f1b on 8 ranks: 69 long, 30.4% of the computing time idle."


def test_three_at_8_by_16_stay_below_300_kilobytes():
    names = ("gpipe", "1f1b", "zb-h1")
    assert len(plot_timeline(*[simulate(make_schedule(name, 8, 16)) for name in names]).svg) < 300_000


def test_a_dense_timeline_becomes_pixels():
    picture = plot_timeline(simulate(make_schedule("1f1b", 16, 64)))
    assert "<image" in picture.svg
    assert len(picture.svg) < 300_000


def test_kinds_differ_in_lightness_so_that_print_keeps_them_apart():
    light = [lightness(IDLE)]
    for name in ("forward", "backward", "weight gradients"):  # each from its last chunk to its first
        light += [lightness(COLOURS[name][1]), lightness(COLOURS[name][0])]
    assert light == sorted(light, reverse=True)
    between = [light[0] - light[1], light[2] - light[3], light[4] - light[5]]
    assert min(between) > 0.05
    assert min(between[1:]) > 0.1
    assert (lightness("#000000"), lightness("#ffffff")) == pytest.approx((0, 1), abs=1e-3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("F3", "forward"),
        ("B12 stage 5", "backward"),
        ("W0", "weight gradients"),
        ("F3 stage 0 + B1 stage 3", "forward + backward"),
        ("forward block 2", "forward"),
        ("B layer4", "backward"),
        ("send F3", "send"),
        ("all-gather block 1", "all-gather"),
        ("bucket 2", "all-reduce"),
        ("coding", "coding"),
        ("Fetch", "other"),
    ],
)
def test_category_is_read_from_the_name(name, expected):
    assert category(name) == expected


def test_chunks_have_their_own_shade():
    picture = plot_timeline(simulate(make_schedule("interleaved-1f1b", 2, 4, 3)))
    assert {"forward", "backward", "idle", "(paler: a later chunk of the rank)"} <= set(texts(picture))
    assert set(COLOURS["forward"] + COLOURS["backward"]) <= set(re.findall("#[0-9a-f]{6}", picture.svg))


def test_a_measured_timeline_is_drawn_by_the_same_function():
    measured = Timeline(
        [Span(0, "compute", "F0", 12.5, 13), Span(0, "communication", "all-gather block 4", 12, 12.5)]
    )
    words = texts(plot_timeline(measured, titles=["measured"], unit="seconds"))
    assert {"rank 0", "communication", "measured", "time, seconds", "4"} <= set(words)


def test_fsdp_shows_blocks_and_collectives():
    words = texts(plot_timeline(fsdp_timeline([2, 2], [4, 4], [9, 9], ranks=2, bandwidth=5)))
    assert {"all-gather", "reduce-scatter", "forward", "backward", "communication"} <= set(words)


def test_the_peak_over_time_names_its_action():
    histories = replay(simulate(make_schedule("gpipe", 2, 3)), 1e9)
    picture = plot_bytes_over_time(histories)
    assert "3 GB at F2" in texts(picture)
    assert picture.alt == "Memory over time: rank 0 peaks at 3 GB at F2."


def test_two_pictures_of_bytes_share_an_axis():
    tall, short = (replay(simulate(make_schedule("gpipe", 2, m)), 1e9) for m in (8, 2))
    assert "10 GB" in texts(plot_bytes_over_time(tall))
    assert "10 GB" not in texts(plot_bytes_over_time(short))
    assert "10 GB" in texts(plot_bytes_over_time(short, top=11e9))
    with pytest.raises(ValueError, match="top must be a number more than 0"):
        plot_bytes_over_time(short, top=-1)


def test_bars_that_are_not_ranks_have_names():
    stages = [MemoryBreakdown(parameters=1e6), MemoryBreakdown(parameters=5e5)]
    picture = plot_memory(stages, stages, titles=["predicted", "measured"], bars=["DDP", "stage 3"])
    assert {"DDP", "stage 3"} <= set(texts(picture))
    assert "rank" not in texts(picture)
    assert picture.alt.startswith("Memory of predicted: DDP 1 MB, stage 3 500 kB; Memory of measured:")
    with pytest.raises(ValueError, match="2 bars are named, so each set must have as many, not 1"):
        plot_memory(stages[0], bars=["DDP", "stage 3"])


def test_save_writes_svg_and_png(tmp_path):
    picture = plot_memory(MemoryBreakdown(parameters=1e6))
    picture.save(tmp_path / "a.svg")
    picture.save(tmp_path / "a.png")
    assert (tmp_path / "a.svg").read_text() == picture.svg
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"can only be saved as \.svg, not \.png"):
        Picture("<svg></svg>", "Nothing.").save(tmp_path / "b.png")


def test_a_picture_of_any_svg_gets_its_label():
    picture = Picture('<?xml version="1.0"?><svg width="1"><g/></svg>', 'Two "ranks" & a link.')
    assert picture.svg == (
        '<svg role="img" aria-label="Two &quot;ranks&quot; &amp; a link." width="1">'
        "<title>Two &quot;ranks&quot; &amp; a link.</title><g/></svg>"
    )


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plot_timeline(),
        lambda: plot_timeline(Timeline([])),
        lambda: plot_memory(),
        lambda: plot_bytes_over_time(),
        lambda: plot_plans({}),
    ],
)
def test_nothing_to_draw(draw):
    with pytest.raises(ValueError, match="there is nothing to draw"):
        draw()


def test_titles_must_match():
    with pytest.raises(ValueError, match="1 drawings need as many titles, not 2"):
        plot_timeline(simulate(make_schedule("1f1b", 2, 2)), titles=["a", "b"])


def test_an_axis_begins_where_it_is_told():
    assert "0.0" not in texts(plot_curves({"bytes": [3.0, 4.0]}))
    assert "0.0" in texts(plot_curves({"bytes": [3.0, 4.0]}, bottom=0))


def test_steps_are_counted_from_the_first_one_and_counts_have_whole_ticks():
    picture = plot_curves({"loss": [3.0, 2.0]}, {"ranks": [4, 3]}, own_scales=True, bottom=0, first=1)
    loss, ranks = picture._figure.axes
    assert list(loss.lines[0].get_xdata()) == list(ranks.lines[0].get_xdata()) == [1, 2]
    assert all(tick == int(tick) for tick in ranks.get_yticks())
    assert any(tick != int(tick) for tick in loss.get_yticks())
    sparse = plot_curves({"loss": [3.0, 2.0, 1.0]}, first=50, every=50)
    assert list(sparse._figure.axes[0].lines[0].get_xdata()) == [50, 100, 150]


def test_stairs_keep_each_value_for_a_step():
    def lines(stairs):
        """Whether each line of the curve is upright or level."""
        svg = plot_curves({"scale": [4.0, 2.0, 8.0]}, stairs=stairs).svg
        drawn = re.findall(r'id="line2d_\d+">\s*<path d="([^"]+)"', svg)
        points = [re.findall(r"[ML] (\S+) (\S+)", path) for path in drawn]
        curve = next(found for found in points if len(found) > 2)
        return [one[0] == other[0] or one[1] == other[1] for one, other in itertools.pairwise(curve)]

    assert len(lines(stairs=True)) >= 5
    assert all(lines(stairs=True))
    assert not any(lines(stairs=False))


def test_marks_are_drawn_at_their_moment_with_their_words():
    histories = replay(simulate(make_schedule("1f1b", 1, 2)), 1e9, 4e8)
    plain, marked = (
        plot_bytes_over_time(histories, marks=marks) for marks in (None, {1.0: "forward ends", 3.0: "done"})
    )
    assert set(texts(marked)) - set(texts(plain)) == {"forward ends", "done"}
    assert marked.svg.count("stroke-dasharray") == plain.svg.count("stroke-dasharray") + 2


def test_the_legend_calls_a_category_as_it_is_told():
    histories = replay(simulate(make_schedule("1f1b", 1, 2)), 1e9, 4e8)
    plain, named = (plot_bytes_over_time(histories, names=names) for names in (None, {"activations": "kept"}))
    assert set(texts(plain)) - set(texts(named)) == {"activations"}
    assert set(texts(named)) - set(texts(plain)) == {"kept"}
    with pytest.raises(ValueError, match="another name to 'buffer'; the categories are parameters, "):
        plot_bytes_over_time(histories, names={"buffer": "temporary tensors"})


def test_curves_that_lie_on_each_other_are_all_seen():
    picture = plot_curves({name: [2.0, 1.0, 0.5] for name in ("1 rank", "2 ranks", "4 ranks")})
    assert {"step", "loss", "1 rank", "2 ranks", "4 ranks"} <= set(texts(picture))
    assert picture.alt == "Loss over step: 1 rank, 2 ranks, 4 ranks."
    widths = [width for _, width, _ in STROKES[:3]]
    assert min(a / b for a, b in itertools.pairwise(widths)) > 1.5
    shades = [lightness(colour) for colour, _, _ in STROKES[:3]]
    assert min(a - b for a, b in itertools.pairwise(shades)) > 0.15


@pytest.mark.parametrize(
    ("panels", "words"),
    [
        ([{}], "nothing to draw"),
        ([{"a": []}], "nothing to draw"),
        ([{str(i): [1] for i in range(6)}], "6 curves cannot be told apart; give at most 5"),
    ],
)
def test_curves_refuse_what_cannot_be_drawn(panels, words):
    with pytest.raises(ValueError, match=words):
        plot_curves(*panels)


def test_a_mark_stands_at_its_place_and_logarithmic_axes_write_plain_numbers():
    picture = plot_curves({"a": [0.01, 1.0, 100.0]}, log=True, mark=(1, "here"))
    axis = picture._figure.axes[0]
    assert list(axis.lines[1].get_xdata()) == [1, 1]
    assert {"here", "0.01", "100"} <= set(texts(picture))
    with pytest.raises(ValueError, match="mark must"):
        plot_curves({"a": [1.0]}, mark=(float("nan"), "here"))


def test_a_picture_can_say_what_is_seen_in_other_words():
    timeline = Timeline([Span(0, "compute", "F0", 0, 1)])
    assert plot_timeline(timeline, alt="One box.").alt == "One box."
    assert plot_curves({"a": [1]}, alt="One point.").alt == "One point."


def test_digits_inside_a_parameters_name_number_no_box():
    words = [
        [
            text
            for text in texts(plot_timeline(Timeline([Span(0, "communication", name, 0, 1)])))
            if text in ("0", "b0")
        ]
        for name in ("all-reduce layer1.0.bias", "bucket 0")
    ]
    assert [len(found) for found in words] == [0, 1]


def test_what_a_picture_says_keeps_its_decimals():
    """Coordinates are cut to two decimals, ticks are not: two ticks would say the same."""
    picture = plot_curves({"loss": [3.205, 3.21, 3.215]})
    ticks = [text for text in texts(picture) if text and text.startswith("3.2")]
    assert len(ticks) > 2
    assert len(set(ticks)) == len(ticks)


def test_stacked_parts_say_their_totals_and_refuse_nonsense():
    picture = plot_parts(
        {"1 rank": {"the same": 3e9, "divided": 8e9}, "2 ranks": {"the same": 3e9}}, x="ranks"
    )
    assert picture.alt == "Stacked bars: 1 rank 11 GB, 2 ranks 3 GB."
    assert {"11", "3", "divided", "the same", "ranks"} <= set(texts(picture))
    assert "#f2b98f" in plot_parts({"1 rank": {"all": 1.0}}, colours=["#f2b98f"]).svg
    dashed = [plot_parts({"1 rank": {"all": 1.0}}, line=n).svg.count("stroke-dasharray") for n in (None, 1.2)]
    assert dashed == [0, 1]
    labelled = plot_parts({"1": {"a": 1e9, "b": 3e9}, "2": {"a": 0, "b": 1e9}}, labels={"a": "A", "b": "B"})
    assert [texts(labelled).count(letter) for letter in "AB"] == [1, 2], "no label where there is no band"
    with pytest.raises(ValueError):
        plot_parts({"1 rank": {"all": 1.0}}, line=-1.0)
    for bars in ({}, {"1 rank": {}}, {"1 rank": {"a": -1.0}}, {"1 rank": {"a": float("nan")}}):
        with pytest.raises(ValueError):
            plot_parts(bars)


@pytest.mark.parametrize(
    ("along", "draw"),
    [
        (1, lambda held: plot_memory(held, capacity=80e9, device="one H100")),
        (0, lambda held: plot_plans({str(i): ({"b": 1}, one) for i, one in enumerate(held)}, 80e9)),
    ],
    ids=["standing bars", "lying bars"],
)
def test_no_number_lies_on_the_line_of_the_capacity(along, draw):
    totals = (40, 58, 64, 70, 76, 79, 82, 90, 200)
    figure = draw([MemoryBreakdown(parameters=total * 1e9) for total in totals])._figure
    figure.draw_without_rendering()
    axis = figure.axes[-1]
    line = axis.transData.transform((80, 80))[along]
    numbers = {text.get_text().strip(): text for text in axis.texts}
    for total in totals[:-1]:
        box = numbers[f"{total}"].get_window_extent()
        assert not box.min[along] < line < box.max[along], total
        at = numbers[f"{total}"].xy[along]
        assert at == total or (total < 80 and at == 80), f"{total} at its bar or at the line"
