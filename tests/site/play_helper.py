"""What the tests of the page share: the package ``play``, and its cells run by a plain Python without any package."""

import json
import subprocess
import sys
import zipfile
from functools import cache
from tempfile import TemporaryDirectory

from play.cells import CHAPTERS, chapter

RUN = """
import json, sys
folder = sys.argv[1]
sys.path.insert(0, folder)
from play.browser.kernel import Chapter
from play.browser.pictures import install
install()
results = []
for cells in json.load(sys.stdin):
    kept = Chapter()
    for source in cells:
        printed = []
        results.append(kept.run(source, printed.append) | {"printed": "".join(printed)})
from_outside = sorted(
    name for name, module in sys.modules.items()
    if name.split(".")[0] in ("simulator", "course_lib", "play") and not (module.__file__ or "").startswith(folder)
)
packages = sorted({"numpy", "torch", "matplotlib", "click"} & set(sys.modules))
json.dump({"results": results, "from_outside": from_outside, "packages": packages}, sys.stdout)
"""


@cache
def chapters():
    return [chapter(number) for number in CHAPTERS]


def cells():
    """Every cell of the page with its chapter, in order."""
    return [(part, cell) for part in chapters() for cell in part.cells]


def run_without_packages(archive, sources):
    """Run lists of cells with nothing but the standard library and the archive's files, unpacked as on the page."""
    with TemporaryDirectory(prefix="course-play-") as folder:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", RUN, folder],
            input=json.dumps(sources),
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
