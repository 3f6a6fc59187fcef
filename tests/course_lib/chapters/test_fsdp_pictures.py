"""The pictures of chapter 07, and the step that it records."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.by_hand import fsdp as by_hand
from course_lib.chapters.flash_changes import changed
from course_lib.chapters.fsdp_at_scale import plot_before_and_in_step
from course_lib.chapters.fsdp_step import Step, quickest, record_step, slow_blocks, until_waited
from course_lib.chapters.whole_units import Moment, plot_whole_units
from course_lib.observe.ledgers.timeline import Mark
from course_lib.runtime import launch
from simulator.ledgers.timeline import Span, Timeline
from simulator.plots.picture import smallest_text
from simulator.predict.unsharded import unsharded_history

BLOCKS, BLOCK, ROOT, RANKS = 3, 8 * 8 + 8, (4 * 8 + 8) + (8 * 4 + 4), 2  # elements


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 8)  # the root has parameters at both ends, as a language model's has
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(BLOCKS))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def step_that_keeps_blocks_whole():
    old = "attach(block, reshard_after_forward=True)"
    file = changed(by_hand, old, old.replace("True", "False"))
    model = slow_blocks(Model(), forward=0.001)
    units = file.fsdp(model, model.blocks)
    with record_step(file, model, units, gather=0.001) as recorded:
        model(torch.ones(2, 4)).sum().backward()
    return recorded()


def test_blocks_that_stay_whole_are_gathered_once():
    for step in launch(step_that_keeps_blocks_whole, RANKS):
        assert step.sent == 4 * (2 * BLOCKS * BLOCK + 2 * ROOT) / 2
        assert [m.units.count("whole") for m in step.moments] == [2, 3, 4, 4, 3, 2]


def steps():
    found = []
    for prefetch in (False, True):
        model = slow_blocks(Model(), forward=0.001)
        units = by_hand.fsdp(model, model.blocks, prefetch)
        with record_step(by_hand, model, units, gather=0.001) as recorded:
            model(torch.ones(2, 4) * (1 + dist.get_rank())).sum().backward()
        found.append(recorded())
    return found


def test_a_step_holds_and_sends_what_is_predicted():
    for rank in launch(steps, RANKS):
        for prefetch, step in enumerate(rank):
            expected = unsharded_history(
                [4 * BLOCK] * BLOCKS, ranks=RANKS, root_bytes=4 * ROOT, prefetch=prefetch
            )
            assert [m.bytes for m in step.moments] == [h.total for h in expected.held[1:-1]]
            assert step.peak == expected.peak.bytes
            assert step.sent == 4 * (3 * BLOCKS * BLOCK + 2 * ROOT) / 2
            assert [m.name for m in step.moments] == ["F0", "F1", "F2", "B2", "B1", "B0"]
            coming = [m.units.count("coming") for m in step.moments]
            assert coming == [prefetch * n for n in (1, 1, 0, 1, 1, 0)]
            assert {s.name for s in step.timeline.of(0)} >= {"F block 0", "B block 2", "all-gather"}


def test_the_quickest_recording_of_each_kind_of_step():
    lengths = iter([(5.0, 4.0), (9.0, 2.0), (3.0, 8.0)])
    taken = []

    def recorder(kind):
        def record():
            if kind == 0:
                taken[:] = next(lengths)
            return Step(Timeline([Span(0, "compute", "F0", 1.0, 1.0 + taken[kind])]), 0.0, [])

        return record

    assert [step.seconds for step in quickest(recorder(0), recorder(1))] == [3, 2]


def test_a_gather_ends_with_the_wait_for_it():
    waited, ahead = Mark("communication", "all-gather", 0, 7), Mark("communication", "all-gather", 5, 9)
    reduced = Mark("communication", "reduce-scatter", 6, 8)
    marks = [Mark("waiting", "", 1, 5), waited, ahead, Mark("waiting", "", 6, 8), reduced]
    assert until_waited(marks) == [marks[0], waited._replace(end=5), ahead, *marks[3:]]


def test_a_row_is_a_unit_and_a_column_a_computation():
    moments = [
        Moment("F0", ["whole", "whole", "coming"], 3e6),
        Moment("B1", ["whole", "shard", "whole"], 2e6),
    ]
    picture = plot_whole_units(moments, titles=["two blocks"])
    assert picture.alt.startswith("two blocks: at most 3 MB of parameters")
    for word in ("root", "block 1", "F0", "2 MB", "being gathered", "computes backward"):
        assert word in picture.svg
    assert "whole model" in plot_whole_units([Moment("F0", ["whole"], 1e6)]).svg
    assert smallest_text(picture.svg) >= 11
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_whole_units()


def test_memory_before_and_in_a_step():
    picture = plot_before_and_in_step(78.8e9, 19.9e9, 80e9, "one H100")
    assert "78.8 GB of states, 19.9 GB more in a step; one H100 has 80 GB" in picture.alt
    assert "of what?" in picture.svg
    assert smallest_text(picture.svg) >= 11
    with pytest.raises(ValueError, match="needed"):
        plot_before_and_in_step(1e9, 0, 80e9, "one H100")
