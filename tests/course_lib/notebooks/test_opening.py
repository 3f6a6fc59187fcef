"""Where else the course opens: nowhere until it has an address, then the same everywhere; and Colab's cell works."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_lib.jupyter.colab import COLABS_OWN, needed, replaced_torch
from course_lib.notebooks.opening import (
    CLONE,
    COLAB,
    LINKS,
    NOT_NAMED,
    Addresses,
    main,
    opening,
    with_address,
    with_opening,
)

ROOT = Path(__file__).parents[3]
ADDRESSES = Addresses("https://github.com/Somebody/course")
ELSEWHERE = re.compile(r"colab\.research|mybinder\.org|codespaces\.new|[Ss]omebody[/.]|" + NOT_NAMED)


def pages(root):
    """What a reader opens: every notebook and exercise, and every page of words; by its place."""
    files = [
        path for folder in ("notebooks", "exercises", "solutions") for path in root.glob(f"{folder}/*.ipynb")
    ]
    files += [path for pattern in ("*.md", "docs/*.md", "site/pages/*.md") for path in root.glob(pattern)]
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in sorted(files)}


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """By account, its pages and what the script says: a copy of the course gets an address, and then none."""
    root, found = tmp_path_factory.mktemp("copied"), {}
    for name, text in pages(ROOT).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    for account in ("Somebody", NOT_NAMED):
        about = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        address = f'Repository = "https://github.com/{account}/course"'
        about = re.sub("^Repository = .*", address, about, flags=re.MULTILINE)
        (root / "pyproject.toml").write_text(about, encoding="utf-8")
        result = CliRunner().invoke(main, ["--root", str(root)])
        assert result.exit_code == 0, result.output
        found[account] = pages(root), result.output
    return found


def test_the_course_is_as_the_script_writes_it_for_the_address_that_it_has():
    result = pages(ROOT)
    addresses = Addresses.of(ROOT)
    assert result["README.md"] == with_address(result["README.md"], addresses)
    for name in (name for name in result if name.endswith(".ipynb")):
        cells = json.loads(result[name])["cells"]
        found = [cell for cell in cells if cell["id"] in (LINKS, COLAB)]
        wanted = opening(name, addresses)
        assert [("".join(cell["source"]), cell["metadata"]) for cell in found] == [
            (cell.source, cell.metadata) for cell in wanted
        ], f"{name}: run python -m course_lib.notebooks.opening"
        assert not any(cell.get("outputs") for cell in found), "Colab's cell says nothing elsewhere"


def test_without_an_address_no_page_offers_to_open_the_course_elsewhere(copied):
    written, said = copied[NOT_NAMED]  # and those that were there go
    assert len(written) > 60
    assert {name: found[0] for name, text in written.items() if (found := ELSEWHERE.search(text))} == {}
    assert "In a browser alone" not in written["README.md"]
    assert said.startswith("No links are shown: in pyproject.toml, put your account")


def test_with_an_address_every_notebook_and_the_readme_show_the_same_one(copied):
    written, said = copied["Somebody"]
    assert "https://github.com/Somebody/course" in said
    for name in (name for name in written if name.endswith(".ipynb")):
        opened = opening(name, ADDRESSES)
        cells = json.loads(written[name])["cells"][1:3]
        assert ["".join(cell["source"]) for cell in cells] == [cell.source for cell in opened], name
    assert "git clone https://github.com/Somebody/course && cd course\n" in written["README.md"]
    assert "[on the site](https://somebody.github.io/course)" in written["README.md"]
    assert NOT_NAMED not in "".join(written.values())


def test_a_link_leads_to_the_notebook_in_which_it_stands():
    name = "Somebody/course"
    for path in ("notebooks/05_ddp.ipynb", "solutions/05_ddp.ipynb"):
        links = opening(path, ADDRESSES)[0].source
        opened = path if path.startswith("notebooks") else "exercises/05_exercises_ddp.ipynb"
        assert f"](https://colab.research.google.com/github/{name}/blob/main/{opened})" in links
        assert f"](https://mybinder.org/v2/gh/{name}/main?urlpath=lab/tree/{opened})" in links
        assert f"](https://codespaces.new/{name})" in links
        assert (ROOT / opened).exists()
    site = opening("notebooks/05_ddp.ipynb", ADDRESSES)[0].source
    assert f"]({ADDRESSES.site}/notebooks/05_ddp.html)" in site
    assert "![" not in site, "words, and no picture from elsewhere"


def test_the_cells_take_the_place_of_those_that_are_there_and_all_else_stays():
    cells = [new_markdown_cell("# 97"), new_markdown_cell("## The problem"), new_code_cell("1")]
    notebook = new_notebook(cells=cells)
    first = with_opening(notebook, "notebooks/97_try.ipynb", ADDRESSES)
    assert [cell.id for cell in first.cells] == [cells[0].id, LINKS, COLAB, cells[1].id, cells[2].id]
    nbformat.validate(first)
    first.cells[2].execution_count = 1
    other = Addresses("https://github.com/another/course", "https://course.example")
    second = with_opening(first, "notebooks/97_try.ipynb", other)
    assert with_opening(second, "notebooks/97_try.ipynb", ADDRESSES) == first
    assert "another/course" in second.cells[1].source
    assert "another/course" in second.cells[2].source


@pytest.mark.parametrize("urls", ["", '[project.urls]\nRepository = "https://example.org/x"'])
def test_an_address_of_another_form_is_refused(tmp_path, urls):
    (tmp_path / "pyproject.toml").write_text(f"[project]\nname = 'x'\n{urls}\n")
    with pytest.raises(
        ValueError, match=r"Repository in pyproject\.toml must be https://github.com/ACCOUNT/NAME"
    ):
        Addresses.of(tmp_path)


def test_the_account_that_stands_for_a_missing_one_is_nobodys():
    assert len(NOT_NAMED) > 39, "GitHub allows 39 characters; Colab runs what lies at the course's address"


def test_colab_keeps_its_jupyter_and_a_torch_that_fits():
    wanted = needed()
    assert not any(each.startswith(tuple(COLABS_OWN)) for each in wanted)
    assert any(each.startswith("nbval") for each in wanted)
    versions = {"2.9.0+cu126": "2.9.0+cu126", "2.11.0": None, "2.15.0+cu130": None, "2.16.0": "2.16.0"}
    for version, replaced in versions.items():
        assert replaced_torch(wanted, lambda _, v=version: v) == replaced


def test_codespaces_and_binder_set_the_course_up():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["postCreateCommand"] == "make setup"
    assert re.search(r"^setup:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert re.search(r"^uv pip install .*-e \.$", (ROOT / "binder" / "postBuild").read_text(), re.MULTILINE)


def test_elsewhere_the_cell_does_nothing(capfd):
    source, names = opening("notebooks/05_ddp.ipynb", ADDRESSES)[1].source, {}
    assert len(source.splitlines()) <= 12
    exec(source, names)
    assert set(names) == {"__builtins__", "sys"}
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def empty_environment(tmp_path):
    """A Python of its own that has what the course needs, and not the course."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    others = tmp_path / "others"
    others.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.match(
            r"(_*editable_+)?training_large_models|__editable__|course_lib|simulator|zz_", entry.name
        ):
            (others / entry.name).symlink_to(entry)
    python = tmp_path / "env" / "bin" / "python"
    paths = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = subprocess.run(paths, check=True, capture_output=True, text=True).stdout.strip()
    (Path(own) / "others.pth").write_text(f"{others}\n")
    return python


@pytest.fixture
def published(tmp_path):
    """A repository with the course as it is here."""
    place = tmp_path / "published"
    for folder in ("course_lib", "simulator", "solutions"):
        shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    git = ["git", "-C", place, "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    return place.as_uri()


@pytest.mark.timeout(600)  # pip and the imports take seconds; on a busy machine a minute
@pytest.mark.skipif(
    not (find_spec("setuptools") and find_spec("pip") and shutil.which("git") and os.name != "nt"),
    reason="needs pip, setuptools, git and a shell",
)
def test_in_colab_the_first_cells_of_a_chapter_run_anywhere(tmp_path, empty_environment, published):
    """Without a network: what the course needs is there, so pip has nothing to fetch."""
    cells = json.loads((ROOT / "notebooks" / "00_start_here.ipynb").read_text(encoding="utf-8"))["cells"]
    own = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code" and cell["id"] != COLAB)
    imports = next(own)
    install = opening("notebooks/00_start_here.ipynb", ADDRESSES)[1].source
    install = install.replace(ADDRESSES.repository, published).replace(CLONE, str(tmp_path / "course"))
    program = "\n".join(
        [
            "import sys, types, importlib.util",
            "assert importlib.util.find_spec('course_lib') is None, 'the environment is not empty'",
            "sys.modules['google.colab'] = types.ModuleType('google.colab')",
            install,
            imports,
            install,  # a second run finds the course and does nothing
            "import torch\nfrom course_lib.notebooks.places import course_root",
            "print(course_root(), torch.ones(2).sum().item())",
        ]
    )
    (elsewhere := tmp_path / "elsewhere").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    pip = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_ROOT_USER_ACTION": "ignore"}
    command = [empty_environment, "-c", program]
    ran = subprocess.run(command, cwd=elsewhere, env=kept | pip, capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1] == f"{tmp_path / 'course'} 2.0"
