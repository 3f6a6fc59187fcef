"""Every kind of picture, held to the rules: text of 11 px in a window of 1,100 px, nothing cut, nothing overlapping."""

import itertools
import math
import re
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from course_lib.chapters.all_reduce_times import plot_all_reduce_times
from course_lib.chapters.checkpoints import Chain, plot_checkpoints
from course_lib.chapters.cut_matrices import plot_cut_mlp
from course_lib.chapters.masks import plot_masks
from course_lib.chapters.shares import plot_shares
from course_lib.chapters.states import Arrow, plot_states
from course_lib.chapters.tensor_cuts import plot_cut_loss, plot_shared_heads
from course_lib.chapters.useful_time import plot_useful_time
from course_lib.observe.networks.draw import draw
from course_lib.observe.show.collectives import plot_rounds
from course_lib.observe.show.exponents import plot_exponents
from course_lib.observe.show.held_parts import Held, plot_held
from course_lib.runtime import collectives
from simulator.inputs.hardware import Link
from simulator.ledgers.memory import MemoryBreakdown
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
from simulator.plots.parts import plot_parts
from simulator.plots.picture import smallest_text
from simulator.predict.memory_over_time import replay
from simulator.predict.overlap import ddp_timeline, fsdp_timeline

SMALLEST = 11  # px

STAGES = ("DDP", "stage 1", "stage 2", "stage 3")
RANK = MemoryBreakdown(30e9, 30e9, 180e9, 12e9, 8e9)


def histories(name: str, ranks: int = 4, microbatches: int = 8):
    run = simulate(make_schedule(name, ranks, microbatches), forward=1, backward_input=1, backward_weight=1)
    return replay(run, 1.3e9, 0.6e9, [MemoryBreakdown(1e9, 1e9, 6e9)] * ranks)


def drawn() -> Iterator[tuple[str, Picture]]:
    schedules = [simulate(make_schedule(name, 4, 8)) for name in ("gpipe", "1f1b")]
    layers = dict(ranks=4, bandwidth=5)
    yield "timelines of schedules", plot_timeline(*schedules, unit="forwards of one microbatch")
    yield "timeline of chunks", plot_timeline(simulate(make_schedule("zb-v", 4, 8), transfer=0.1))
    yield (
        "timeline of DDP",
        plot_timeline(
            ddp_timeline([1, 2, 3], [2, 4, 6], [9, 5, 3], **layers), titles=["each bucket"], unit="seconds"
        ),
    )
    yield "timeline of FSDP", plot_timeline(fsdp_timeline([2] * 4, [4] * 4, [9] * 4, **layers), unit="ms")
    yield (
        "memory of stages",
        plot_memory([RANK] * 4, titles=["one of 64 ranks"], bars=STAGES, capacity=80e9, device="one A100"),
    )
    yield (
        "memory, predicted and measured",
        plot_memory([RANK] * 4, [RANK] * 4, titles=["a rank of four, predicted", "measured"], bars=STAGES),
    )
    yield "memory of ranks", plot_memory([RANK] * 8, titles=["GPT-3 on 64 GPUs"], capacity=300e9)
    yield "memory of many ranks", plot_memory([RANK] * 64, [RANK] * 64, titles=["a", "b"], capacity=300e9)
    yield "memory of one device", plot_memory(RANK, titles=["GPT-3"], capacity=80e9, device="one H100")
    yield (
        "bytes over time, two",
        plot_bytes_over_time(
            histories("gpipe"), histories("1f1b"), titles=["GPipe", "1F1B"], capacity=16e9, device="one V100"
        ),
    )
    yield (
        "bytes over time, three",
        plot_bytes_over_time(
            *[histories(name)[:1] for name in ("gpipe", "1f1b", "zb-h1")],
            titles=["GPipe", "1F1B", "zb-h1"],
            unit="forwards",
        ),
    )
    plans = {
        f"tp {2**i}, pp {8 - i}": ({"compute": 10, "bubble": i, "all-reduce": 2.5}, RANK) for i in range(4)
    }
    yield "plans", plot_plans(plans, capacity=80e9, device="one A100")
    curve = [3.2 * 0.9**i for i in range(40)]
    yield "curves", plot_curves({"one device": curve, "4 ranks": curve[:30]}, titles=["plain"])
    yield "three panels of curves", plot_curves(*[{"a": curve, "b": curve[::-1]}] * 3, titles=["x", "y", "z"])
    far = {"a": [1e-3 * 1.1**i for i in range(100)]}
    yield (
        "marked, logarithmic curves",
        plot_curves(far, {"b": curve}, log=True, own_scales=True, mark=(30, "end")),
    )
    triangle = [[key <= query for key in range(8)] for query in range(8)]
    yield "masks", plot_masks({"causal": triangle, "prefix of 3": triangle, "padding": triangle})
    pairs = [[2 * i, 2 * i + 1] for i in range(8)]
    yield "groups", plot_groups({"tp": pairs, "dp": [list(range(8)), list(range(8, 16))]})
    peaks = {k: 1e7 * (k + 36 / k) for k in range(1, 37)}
    yield (
        "checkpoints",
        plot_checkpoints(Chain("36 layers", peaks, {1: 3.7e8, 6: 1.2e8}), Chain("a GPT's blocks", peaks)),
    )
    yield "all-reduce times", plot_all_reduce_times(Link(1e-5, 1e9), 16, measured={"ring": [(1e5, 1e-3)]})
    values = torch.randn(4000, generator=torch.Generator().manual_seed(0)) * 1e-5
    yield (
        "exponents",
        plot_exponents({"queries": [values], "scaled": [values * 2**16]}, alt="Two histograms."),
    )
    parts = {"embedding": 1.0, "stage 1": 5.0, "stage 2": 20.0, "stage 3": 70.0, "head": 2.0}
    yield (
        "shares",
        plot_shares(
            {"parameters": parts, "saved for backward": parts}, {"parameters": "B", "saved for backward": "B"}
        ),
    )
    bars = {
        f"{p} ranks": {"the same\non every rank": 4e10, "divided among\nthe ranks": 1e11 / p}
        for p in (1, 2, 4, 8)
    }
    yield "parts", plot_parts(bars)
    whole, own = (
        Held("norm", (8, 4), (8, 4)),
        Held("dropout", (4, 4), (8, 4), before="g-bar:\nreduce-scatter"),
    )
    yield "held parts", plot_held({"tensor parallelism": [whole], "with sequence parallelism": [whole, own]})
    ring = collectives.reduce_scatter
    yield "rounds beside", plot_rounds(traced(ring, 4), "Ring reduce-scatter")
    yield "rounds above", plot_rounds(traced(collectives.broadcast, 4, start="root"), "A tree")
    net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    yield "cut matrices", plot_cut_mlp()
    yield "cut loss", plot_cut_loss([1000, 1002, 1001, 1003, 1000], 1, [2, 1, 1, 1])
    yield "shared heads", plot_shared_heads([(range(2 * r, 2 * r + 2), r // 2) for r in range(4)])
    gpus = [8 * 4**i for i in range(8)]
    falling = {"saved often": [1 - i / 20 for i in range(8)], "saved rarely": [1 - i / 8 for i in range(8)]}
    yield "useful time", plot_useful_time(falling, gpus, marked=(8192, "one run"))
    arrows = [
        Arrow("open", "sealed", "time is over", (0.5, 0.8), 0.3),
        Arrow("sealed", "open", "one leaves", (0.5, 0.2), 0.3),
    ]
    yield "states", plot_states({"open": (0.15, 0.5), "sealed": (0.85, 0.5)}, arrows)
    yield "network", draw(net, torch.zeros(4, 8), depth=2)


def traced(collective, ranks, **how):
    from course_lib.observe.ledgers.messages import trace_collective

    return trace_collective(collective, ranks=ranks, **how)


@pytest.fixture(scope="module")
def pictures() -> dict[str, Picture]:
    return dict(drawn())


def test_text_can_be_read_in_a_narrow_window(pictures):
    small = {
        name: round(size, 1) for name, p in pictures.items() if (size := smallest_text(p.svg)) < SMALLEST
    }
    assert not small


def test_the_measure_sees_small_text():
    svg = '<svg width="960pt" viewBox="0 0 960 10"><text style="font: 9px Arial">a</text></svg>'
    assert smallest_text(svg) == pytest.approx(4.5 * 4 / 3)


def test_nothing_overlaps_and_nothing_is_cut(pictures):
    wrong = []
    for name, picture in pictures.items():
        if picture._figure is None:
            continue
        boxes = list(visible_texts(picture._figure))
        page = picture._figure.bbox
        for text, box in boxes:
            if box.x0 < page.x0 - 1 or box.x1 > page.x1 + 1 or box.y0 < page.y0 - 1 or box.y1 > page.y1 + 1:
                wrong.append(f"{name}: {text!r} is cut")
        for (a, first), (b, second) in itertools.combinations(boxes, 2):
            width = min(first.x1, second.x1) - max(first.x0, second.x0)
            height = min(first.y1, second.y1) - max(first.y0, second.y0)
            if width > 2 and height > 3:
                wrong.append(f"{name}: {a!r} lies on {b!r}")
    assert not wrong


def visible_texts(figure):
    """Each with its box."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    FigureCanvasAgg(figure).draw()
    hidden = {t for axis in figure.axes if not axis.get_visible() for t in axis.findobj(Text)}
    hidden |= {t for axis in figure.axes for one in (axis.xaxis, axis.yaxis) for t in not_drawn(one)}
    for text in figure.findobj(Text):
        if text.get_text().strip() and text.get_visible() and text not in hidden:
            box = text.get_window_extent()
            if math.isfinite(box.x0):
                yield text.get_text(), box


def not_drawn(axis):
    """Labels of ticks outside the limits: they exist without being drawn."""
    low, high = sorted(axis.get_view_interval())
    slack = 1e-6 * (high - low)
    shown = {*axis.get_ticklabels(), *axis.get_ticklabels(minor=True)}
    for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
        for text in (tick.label1, tick.label2):
            where = text.get_position()[axis.axis_name == "y"]
            if text not in shown or not low - slack <= where <= high + slack:
                yield text


def test_axes_have_units(pictures):
    """A number on an axis carries its unit, or the axis says what is counted."""
    bare = []
    for name, picture in pictures.items():
        for axis in picture._figure.axes if picture._figure else ():
            for which in (axis.xaxis, axis.yaxis):
                numbers = [
                    t.get_text() for t in which.get_ticklabels() if re.fullmatch(r"[\d.,-]+", t.get_text())
                ]
                others = [getattr(a, which.axis_name + "axis") for a in axis.figure.axes]
                if len(numbers) > 1 and not any(o.get_label_text() for o in others):
                    bare.append(f"{name}: {numbers}")
    assert not bare
