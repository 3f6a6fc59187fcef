"""From a slider to pixels: how long the explorer's standalone page takes for 16 x 64, and for 64 x 512.

A slider's event is sent in a headless Chromium. The clock stops when the canvas has been drawn, and its pixels have
been read back, so that nothing is left to be drawn later. The wall-clock time is that of a busy machine, too: run it
on an idle one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

# In place of this folder, whose simulator.py would hide the package of that name.
sys.path[0] = str(Path(__file__).parents[1] / "tests" / "browser")

from server import chromium  # noqa: E402

from simulator.explorer import explore  # noqa: E402

REPEATED = 9
CASES = (("1f1b", 16, 64), ("zb-h1", 16, 64), ("zb-v", 16, 64), ("zb-h1", 64, 512), ("dualpipe-v", 64, 512))
MOVE = """() => new Promise(done => {
  const slider = document.querySelector(".control.forward input[type=range]");
  const drawing = document.querySelector(".drawing"), canvases = [...document.querySelectorAll("canvas")];
  const begin = performance.now();
  drawing.addEventListener("drawn", () => {
    for (const canvas of canvases) canvas.getContext("2d").getImageData(60, 10, 1, 1);
    done(performance.now() - begin);
  }, { once: true });
  slider.value = Number(slider.value) >= 2 ? 1 : Number(slider.value) + 0.1;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
})"""


def main() -> None:
    print(f"{'schedule':12} ranks x microbatches   actions   slider to pixels, ms: median (least)")
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        for schedule, ranks, microbatches in CASES:
            explorer = explore(schedule, ranks, microbatches, transfer=0.1)
            path = Path(folder) / "explorer.html"
            explorer.save(path)
            page = browser.new_page(viewport={"width": 1100, "height": 1000})
            page.goto(path.as_uri())
            page.locator(".explorer[data-shown]").wait_for()
            times = [page.evaluate(MOVE) for _ in range(REPEATED)]
            actions = len(explorer.execution().schedule)
            size = f"{ranks} x {microbatches}"
            print(f"{schedule:12} {size:>20} {actions:9}   {median(times):.0f} ({min(times):.0f})")
            page.close()


if __name__ == "__main__":
    main()
