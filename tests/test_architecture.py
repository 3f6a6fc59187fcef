"""What may import what: the house rules of DESIGN, read from the source."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from source_lines import code_lines

ROOT = Path(__file__).parents[1]
TECHNIQUES = (
    "data_parallel",
    "tensor_parallel",
    "pipeline",
    "context_parallel",
    "expert_parallel",
    "finetuning",
    "compression",
    "elastic",
)
GROUND = ("models", "data", "text", "attention", "one_device")  # know nothing of parallelism
TOP = ("observe", "chapters", "notebooks", "grading", "progress")  # see everything; nobody below sees them

# The most lines of code that a file may reach in its folder, and where more are reached today: those only shrink.
REACH = 400
FURTHEST = {
    "course_lib/comparison/compression": 436,
    "course_lib/data_parallel": 1064,  # Muon on shards; experts have fewer copies
    "course_lib/elastic": 1618,
    "course_lib/finetuning": 408,
    "course_lib/comparison/finetuning": 664,
    "course_lib/grading": 736,
    "course_lib/models": 744,  # the balance loss of experts
    "course_lib/notebooks": 544,
    "course_lib/observe/networks": 893,  # a step of backward says what it keeps
    "course_lib/models/pretrained": 503,  # seven families
    "course_lib/parallelize": 1106,  # two axes more, Muon, activation offload, fp8, a balance loss
    "course_lib/pipeline": 822,
    "course_lib/runtime": 1722,  # under torchrun, threads end before Python does
    "course_lib/tensor_parallel": 1426,
    "course_lib/train": 940,  # --profile, models with experts and their balance, fp8
    "simulator/cli": 719,
    "simulator/explorer": 781,
    "simulator/inputs": 690,  # kinds of layers and of experts; layouts that many plans share
    "simulator/pipeline": 430,
    "simulator/planner": 551,
    "simulator/plots": 840,  # a dense timeline is drawn twice as fast
    "simulator/published": 638,  # every paper's rows in one list
    "simulator/predict": 1015,  # experts, three ways of context parallelism, Muon, activation offload
}


def modules():
    for package in ("course_lib", "simulator"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT)


def scripts():
    """JavaScript, which is held to the same length."""
    for package in ("course_lib", "simulator"):
        for path in sorted((ROOT / package).rglob("*.js")):
            yield path.relative_to(ROOT)


def imports(path):
    """The dotted names that a file imports, those inside functions too."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import: write the full name"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def folder(name):
    """``course_lib.models.bert`` -> ``models``."""
    parts = name.split(".")
    return parts[1] if parts[0] == "course_lib" and len(parts) > 1 else ""


@pytest.mark.parametrize("path", [p for p in modules() if p.parts[0] == "simulator"], ids=str)
def test_the_simulator_stands_on_the_ground(path):
    for name in imports(path):
        assert name.split(".")[0] not in ("torch", "course_lib", "torchview", "transformers"), (
            f"{path} imports {name}"
        )


@pytest.mark.parametrize(
    "path", [p for p in modules() if p.parts[0] == "course_lib" and len(p.parts) > 2], ids=str
)
def test_course_lib_imports_downwards(path):
    here = path.parts[1]
    for name in imports(path):
        there = folder(name)
        if here in GROUND:
            assert there not in (*TECHNIQUES, *TOP, "parallelize"), f"{path} imports {name}"
            assert not name.startswith("torch.distributed"), f"{path} knows of parallelism: {name}"
        if here in TECHNIQUES:
            others = [t for t in TECHNIQUES if t != here]
            assert there not in (*others, *TOP), (
                f"{path} imports {name}: only parallelize.py composes techniques"
            )
        if here == "runtime":
            assert there in ("", "runtime", "processes"), f"{path} imports {name}"
        # What the files there may import, tests/course_lib/by_hand/test_rules.py says.
        assert there != "by_hand" or here == "chapters", (
            f"{path} imports {name}: the syllabus is read, run and drawn, nothing is built on it"
        )


def test_no_two_files_import_each_other():
    """Directly or through others, inside functions or for annotations alone: of two files, one can be read first."""
    names = {".".join(path.with_suffix("").parts): path for path in modules()}
    graph = {name: {n for n in imports(path) if n in names} for name, path in names.items()}
    TopologicalSorter(graph).prepare()  # a CycleError names the files


def test_no_two_folders_import_each_other():
    """Directly or through others, a package's own ``__init__`` with it: of two folders, one can be read first."""
    at = {".".join(path.with_suffix("").parts): path.parent for path in modules()}
    at |= {".".join(path.parent.parts): path.parent for path in modules() if path.name == "__init__.py"}
    graph = {}
    for path in modules():
        beyond = {at[name] for name in imports(path) if name in at} - {path.parent}
        graph.setdefault(path.parent, set()).update(beyond)
    TopologicalSorter(graph).prepare()  # a CycleError names the folders


@pytest.mark.parametrize("path", [*modules()], ids=str)
def test_a_file_can_be_read_in_one_sitting(path):
    lines = code_lines((ROOT / path).read_text())
    assert lines <= 250, f"{path} has {lines} lines of code; 250 is the most that is read in one sitting"


@pytest.mark.parametrize("path", [*scripts()], ids=str)
def test_a_script_can_be_read_in_one_sitting(path):
    lines = (ROOT / path).read_text().count("\n")
    assert lines <= 300, f"{path} has {lines} lines, with its comments; 300 is the most"


def test_a_file_reaches_no_further_into_its_folder():
    """Reach: the lines of code of a file and of all files beside it that it imports, directly or through others."""
    files = {".".join(path.with_suffix("").parts): path for path in modules()}
    size = {name: code_lines((ROOT / path).read_text()) for name, path in files.items()}
    beside = {
        name: {n for n in imports(path) if n in files and files[n].parent == path.parent}
        for name, path in files.items()
    }
    beyond = {}
    for name, path in files.items():
        reached, todo = {name}, [name]
        while todo:
            new = beside[todo.pop()] - reached
            reached |= new
            todo += new
        lines = sum(size[n] for n in reached)
        if lines > FURTHEST.get(str(path.parent), REACH):
            beyond[str(path)] = lines
    assert not beyond, "a file pulls in more of its folder than before; give it fewer neighbours"
