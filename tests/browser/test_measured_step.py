"""A measured step in the explorer, in a real browser: it lies below its prediction, to the pixel."""

from dataclasses import replace

import pytest
from drawn import wait_until_drawn, wrong_boxes

from simulator.explorer import Explorer, explore
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule

pytestmark = pytest.mark.timeout(600)  # the waits inside are shorter, and say what did not come


def test_a_measured_step_lies_below_its_prediction(tab, tmp_path):
    real = simulate(
        make_schedule("1f1b", 4, 8), [1.1, 1.3, 1, 1.2], [1, 1.1, 1.4, 1], [1, 1.2, 1, 1.1], transfer=0.4
    )
    shown = explore("1f1b", ranks=4, microbatches=8, measured=real)
    shown.save(path := tmp_path / "measured.html")
    page = tab
    page.goto(path.as_uri())
    canvas, said = wait_until_drawn(page, shown.question), page.locator(".said")
    assert wrong_boxes(canvas, shown.question) == []
    assert wrong_boxes(canvas, shown.question, real) == []
    page.locator(".beside").get_by_text(f"The measured step took {real.makespan:.4g} s. ").wait_for()
    page.get_by_label("message to the next rank", exact=True).fill("0")
    question = replace(shown.question, transfer=0)
    wait_until_drawn(page, question)
    assert wrong_boxes(canvas, question) + wrong_boxes(canvas, question, real) == []
    longer = real.makespan - Explorer(question).execution().makespan
    page.locator(".beside").get_by_text(f"This is {longer:.4g} s longer than predicted").wait_for()
    canvas.press("ArrowRight")
    said.get_by_text("F0 on rank 0").get_by_text("Measured: from 0 to 1.1 s. ").wait_for()
    frame, box = canvas.evaluate("canvas => ({...canvas.dataset})"), canvas.bounding_box()
    left, right, row, to = (float(frame[name]) for name in ("left", "right", "row", "to"))
    gap = next(g for g in real.idle_gaps() if g.rank == 3)
    middle = left + (gap.start + gap.end) / 2 * (right - left) / to
    page.mouse.move(box["x"] + middle, box["y"] + 3.75 * row)
    said.get_by_text("In the measured step rank 3 computed nothing from 0 to").wait_for()
    page.get_by_text("As tables").press("Enter")
    table = page.locator("table", has_text="Measured beside predicted")
    assert f"{real.busy(2):.4g}" in table.locator("tbody tr").nth(2).inner_text().split("\t")
    page.get_by_role("button", name="Measured").click()
    page.wait_for_function(f"() => document.querySelector('canvas.timeline').dataset.row < {row}")
    assert wrong_boxes(canvas, question) == []
    page.get_by_label("schedule").select_option("zb-h1")
    page.locator(".beside").get_by_text("is 1f1b with 4 ranks and 8 microbatches. Choose these").wait_for()
