"""Photographs of the built site: ``python tests/site/photograph.py --out /tmp/site``. Look at them before it is shown.

By default some pages of each kind, in windows of 800, 1,100 and 1,600 px, light and dark.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "browser"))

from served import served  # noqa: E402
from server import chromium  # noqa: E402

PAGES = (
    "index",
    "notebooks/00_start_here",
    "notebooks/05_ddp",
    "notebooks/11_pipeline_parallel",
    "exercises/05_exercises_ddp",
    "docs/glossary",
    "explorer",
    "memory",
    "reference/index",
    "reference/data_parallel",
    "course_lib/data_parallel/ddp",
    "search",
)
WIDTHS = (800, 1100, 1600)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", default=PAGES, help="pages, without .html")
    parser.add_argument("--site", type=Path, default=ROOT / "build" / "site", help="the built site")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the photographs")
    parser.add_argument("--width", type=int, nargs="*", default=WIDTHS, help="of the window, in px")
    parser.add_argument("--theme", nargs="*", default=("light", "dark"), help="light, dark or both")
    parser.add_argument("--whole", action="store_true", help="whole pages, not only what the window shows")
    parser.add_argument("--open", action="store_true", help="with all results shown")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    with served(asked.site) as address, chromium() as browser:
        for theme in asked.theme:
            for width in asked.width:
                page = browser.new_page(viewport={"width": width, "height": 700}, color_scheme=theme)
                for name in asked.pages:
                    page.goto(f"{address}/{name}.html", wait_until="networkidle")
                    if asked.open and page.locator(".all-results button").count():
                        page.locator(".all-results button").click()
                    file = asked.out / f"{name.replace('/', '-')}-{width}-{theme}.png"
                    page.screenshot(path=file, full_page=asked.whole)
                    print(file)
                page.close()


if __name__ == "__main__":
    main()
