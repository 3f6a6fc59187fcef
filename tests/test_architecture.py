"""What may import what: the house rules of DESIGN, read from the source."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

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
    "course_lib/data_parallel": 1081,  # Muon on shards, also of stacks; experts have fewer copies
    "course_lib/elastic": 1618,
    "course_lib/finetuning": 408,
    "course_lib/comparison/finetuning": 664,
    "course_lib/grading": 736,
    "course_lib/models": 762,  # the balance loss of experts, and their capacity
    "course_lib/notebooks": 544,
    "course_lib/observe/show": 403,  # a guess outside of its slider is refused
    "course_lib/observe/networks": 893,  # a step of backward says what it keeps
    "course_lib/models/pretrained": 503,  # seven families
    "course_lib/parallelize": 1111,  # two axes more, Muon, activation offload, fp8, a balance loss
    "course_lib/pipeline": 822,
    "course_lib/runtime": 1724,  # under torchrun, threads end before Python does; None of a collective is explained
    "course_lib/tensor_parallel": 1426,
    "course_lib/train": 965,  # --profile, models with experts, their balance and what they drop, fp8
    "simulator/cli": 719,
    "simulator/explorer": 781,
    "simulator/inputs": 692,  # kinds of layers and of experts; layouts that many plans share
    "simulator/pipeline": 430,
    "simulator/planner": 551,
    "simulator/plots": 840,  # a dense timeline is drawn twice as fast
    "simulator/published": 638,  # every paper's rows in one list
    "simulator/predict": 1013,  # experts, three ways of context parallelism, Muon, activation offload
}


def modules():
    for package in ("course_lib", "simulator"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT)


@cache  # every rule below reads every file
def read(path):
    """Lines of code, and the dotted names that a file imports, those inside functions too."""
    source = (ROOT / path).read_text()
    tree, names = ast.parse(source), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import: write the full name"
            names += (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    return code_lines(source, tree), names


def imports(path):
    return read(path)[1]


def folder(name):
    """``course_lib.models.bert`` -> ``models``."""
    parts = name.split(".")
    return parts[1] if parts[0] == "course_lib" and len(parts) > 1 else ""


def broken(here, name):
    """The rule that a file in this folder of course_lib breaks with this import, if one."""
    there = folder(name)
    if here in GROUND and (
        there in (*TECHNIQUES, *TOP, "parallelize") or name.startswith("torch.distributed")
    ):
        return "the ground knows of no parallelism"
    if here in TECHNIQUES and there != here and there in (*TECHNIQUES, *TOP):
        return "only parallelize composes techniques"
    if here == "runtime" and there not in ("", "runtime", "processes"):
        return "runtime stands on itself"
    # What the files of by_hand may import, tests/course_lib/by_hand/test_rules.py says.
    if there == "by_hand" and here != "chapters":
        return "the syllabus is read, run and drawn, nothing is built on it"
    return None


def test_the_simulator_stands_on_the_ground():
    above = ("torch", "course_lib", "torchview", "transformers")
    files = [path for path in modules() if path.parts[0] == "simulator"]
    wrong = [
        f"{path} imports {name}" for path in files for name in imports(path) if name.split(".")[0] in above
    ]
    assert not wrong, "\n".join(wrong)


def test_course_lib_imports_downwards():
    files = [path for path in modules() if path.parts[0] == "course_lib" and len(path.parts) > 2]
    every = [(path, name, broken(path.parts[1], name)) for path in files for name in imports(path)]
    wrong = [f"{path} imports {name}: {rule}" for path, name, rule in every if rule]
    assert not wrong, "\n".join(wrong)


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


def test_a_file_can_be_read_in_one_sitting():
    """250 lines of code; of a script, 300 with its comments."""
    assert not {str(path): lines for path in modules() if (lines := read(path)[0]) > 250}
    scripts = [path for package in ("course_lib", "simulator") for path in (ROOT / package).rglob("*.js")]
    assert scripts
    assert not {str(path): lines for path in scripts if (lines := path.read_text().count("\n")) > 300}


def test_a_file_reaches_no_further_into_its_folder():
    """Reach: the lines of code of a file and of all files beside it that it imports, directly or through others."""
    files = {".".join(path.with_suffix("").parts): path for path in modules()}
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
        lines = sum(read(files[n])[0] for n in reached)
        if lines > FURTHEST.get(str(path.parent), REACH):
            beyond[str(path)] = lines
    assert not beyond, "a file pulls in more of its folder than before; give it fewer neighbours"
