"""Build the site: ``make site``, or ``python site/build.py --out FOLDER``. Nothing of the course is executed."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import play.build
from gather import VIEWS, gather
from npm import npm_package

HERE = Path(__file__).parent
BUILD = HERE.parent / "build"
MATHJAX = "3.2.2"


def build(out: Path) -> None:
    """Write the whole site into a folder.

    Raises:
        RuntimeError: Sphinx has found something wrong, or a tool is missing.
    """
    pages, static = BUILD / "site-pages", BUILD / "site-static"
    gather(pages)
    shutil.rmtree(static, ignore_errors=True)
    (static / "mathjax").mkdir(parents=True)
    shutil.copy(npm_package("mathjax", MATHJAX) / "es5" / "tex-svg.js", static / "mathjax")
    shutil.copy(npm_package("mathjax", MATHJAX) / "LICENSE", static / "mathjax")
    for name in ("game.js", "game.css"):
        shutil.copy(HERE.parent / "course_lib" / "observe" / "show" / name, static)
    (static / "explorer").mkdir()
    for name, view in VIEWS.items():
        view.save(static / "explorer" / f"{name}.html")
    options = ["--builder", "html", "--conf-dir", HERE, "--doctree-dir", BUILD / "site-doctrees"]
    options += ["--fail-on-warning", "--keep-going", "--quiet", "--jobs", "auto"]
    environment = os.environ | {"SITE_STATIC": str(static)}
    if subprocess.run([sys.executable, "-m", "sphinx", *options, pages, out], env=environment).returncode:
        raise RuntimeError("the site was not built; the lines above say what is wrong with which page")
    play.build.build(out / "play")  # last: its page links to those that it finds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=BUILD / "site", help="where the site is written: build/site"
    )
    out = parser.parse_args().out.resolve()
    try:
        build(out)
    except RuntimeError as error:
        sys.exit(str(error))
    print(f"The site is in {out}. To look at it: python -m http.server --directory {out}")


if __name__ == "__main__":
    main()
